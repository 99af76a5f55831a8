"""Memory regions: each right, range, domain and lifetime, with its forbidden neighbour. What
pyverbs has no call for (iova, null MRs) is in tests/verbs."""
import ctypes
import errno
import mmap
import unittest

from pyverbs.device import DM, AllocDmAttr
from pyverbs.mr import DMMR, DmaBufMR

from ends import (ATOMIC, BINDABLE, LOCAL, MR, READ, SGE, SIZE, WRITE, ZERO_BASED, Ends,
                  PyverbsError, PyverbsRDMAError, RecvWR, SendWR, e)

EVERYTHING = LOCAL | READ | WRITE | ATOMIC
PROTECTION = e.IBV_WC_LOC_PROT_ERR
RELAXED = e.IBV_ACCESS_RELAXED_ORDERING
ON_DEMAND = e.IBV_ACCESS_ON_DEMAND


class Regions(Ends):
    def post(self, end, buffer, key=None, opcode=e.IBV_WR_SEND, offset=0, length=8):
        """A work request of that end with that local buffer; remote operations go to `target`."""
        sge = SGE(buffer.buf + offset, length, buffer.lkey if key is None else key)
        wr = SendWR(opcode=opcode, num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED)
        if opcode != e.IBV_WR_SEND:
            self.target = self.region(EVERYTHING)
            wr.set_wr_rdma(self.target.rkey, self.target.buf)
        end.qp.post_send(wr)
        return end.completion()

    def assert_registration_refused(self, error, access, length=SIZE, **how):
        self.assert_errno(error, MR, self.here.pd, length, access, **how)


class RemoteRights(Regions):
    def test_each_right_is_what_was_given_and_no_other(self):
        for access in (LOCAL, LOCAL | READ, LOCAL | WRITE, LOCAL | ATOMIC, READ):
            for right, reach in ((READ, self.read), (WRITE, self.write), (ATOMIC, self.fetch_add)):
                with self.subTest(access=access, right=right):
                    self.setUp()
                    region = self.region(access)
                    done = reach(region.buf, region.rkey)
                    if access & right:
                        self.assertEqual(done.status, e.IBV_WC_SUCCESS)
                    else:
                        self.assert_refused(done, region)

    def test_a_refusal_ends_the_queue_pair_and_flushes_what_follows(self):
        region = self.region(LOCAL)
        self.assert_refused(self.write(region.buf, region.rkey), region)
        self.assert_refused(self.write(region.buf, region.rkey), region, e.IBV_WC_WR_FLUSH_ERR)

    def test_remote_writes_and_atomics_need_local_writes(self):
        for access in (WRITE, ATOMIC, READ | WRITE):
            with self.subTest(access=access):
                self.assert_registration_refused(errno.EINVAL, access)
        self.region(READ)

    def test_an_unknown_right_is_refused(self):
        self.assert_registration_refused(errno.EINVAL, LOCAL | 1 << 12)

    def test_an_atomic_needs_an_aligned_address(self):
        region = self.region(EVERYTHING)
        self.assertEqual(self.fetch_add(region.buf + 8, region.rkey).status, e.IBV_WC_SUCCESS)
        self.assertNotEqual(self.fetch_add(region.buf + 4, region.rkey).status, e.IBV_WC_SUCCESS)

    def test_windows_need_the_right_to_bind(self):
        for access, wanted in ((BINDABLE, e.IBV_WC_SUCCESS), (LOCAL, e.IBV_WC_MW_BIND_ERR)):
            with self.subTest(access=access):
                self.setUp()
                self.bind_type_2(self.window(e.IBV_MW_TYPE_2), self.region(access), READ)
                self.assertEqual(self.here.completion().status, wanted)


class LocalRights(Regions):
    def test_a_read_lands_where_local_writes_are_allowed_and_nowhere_else(self):
        for access, wanted in ((LOCAL, e.IBV_WC_SUCCESS), (0, PROTECTION)):
            with self.subTest(access=access):
                self.setUp()
                landing = self.keep(MR(self.there.pd, SIZE, access))
                done = self.post(self.there, landing, opcode=e.IBV_WR_RDMA_READ)
                self.assertEqual(done.status, wanted)

    def test_a_message_lands_where_local_writes_are_allowed_and_nowhere_else(self):
        for access, wanted, told in ((LOCAL, e.IBV_WC_SUCCESS, e.IBV_WC_SUCCESS),
                                     (0, PROTECTION, e.IBV_WC_REM_OP_ERR)):
            with self.subTest(access=access):
                self.setUp()
                landing = self.region(access)
                self.here.qp.post_recv(RecvWR(1, 1, [SGE(landing.buf, 64, landing.lkey)]))
                self.assertEqual(self.post(self.there, self.buffer).status, told)
                self.assertEqual(self.here.completion().status, wanted)
                if wanted != e.IBV_WC_SUCCESS:
                    self.assertEqual(set(landing.read(SIZE, 0).decode()), {"."})

    def test_a_region_without_any_right_may_be_sent_and_written_from(self):
        source = self.keep(MR(self.there.pd, SIZE, 0))
        done = self.post(self.there, source, opcode=e.IBV_WR_RDMA_WRITE)
        self.assertEqual(done.status, e.IBV_WC_SUCCESS)

    def test_buffers_stay_inside_their_region(self):
        for offset, wanted in ((0, e.IBV_WC_SUCCESS), (SIZE - 8, e.IBV_WC_SUCCESS),
                               (-1, PROTECTION), (SIZE - 7, PROTECTION)):
            for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ):
                with self.subTest(offset=offset, opcode=opcode):
                    self.setUp()
                    done = self.post(self.there, self.buffer, opcode=opcode, offset=offset)
                    self.assertEqual(done.status, wanted)

    def test_an_lkey_of_another_domain_or_of_nothing_is_refused(self):
        other = self.keep(MR(self.domain(), SIZE, LOCAL))
        done = self.post(self.there, other, opcode=e.IBV_WR_RDMA_WRITE)
        self.assertEqual(done.status, PROTECTION)
        for key in (0, 0xFFFFFFFF, self.buffer.lkey + 1):
            with self.subTest(key=key):
                self.setUp()
                done = self.post(self.there, self.buffer, key=key, opcode=e.IBV_WR_RDMA_WRITE)
                self.assertEqual(done.status, PROTECTION)


class Ranges(Regions):
    def test_not_a_byte_before_it_nor_past_it_is_reached(self):
        reaches = {"read": READ, "write": WRITE}
        for name, right in reaches.items():
            for offset, fits in ((0, True), (SIZE - 8, True), (-1, False), (SIZE - 7, False),
                                 (SIZE, False)):
                with self.subTest(reach=name, offset=offset):
                    self.setUp()
                    region = self.region(LOCAL | right)
                    done = getattr(self, name)(region.buf + offset, region.rkey)
                    wanted = e.IBV_WC_SUCCESS if fits else e.IBV_WC_REM_ACCESS_ERR
                    self.assertEqual(done.status, wanted)

    def test_addresses_that_wrap_round_are_refused(self):
        region = self.region(EVERYTHING)
        self.assert_refused(self.write(2**64 - 4, region.rkey), region)

    def test_zero_based_addresses_count_from_the_region(self):
        region = self.region(LOCAL | WRITE | ZERO_BASED)
        self.assert_lands(self.write(16, region.rkey), region, offset=16)
        self.assert_refused(self.write(region.buf, region.rkey))

    def test_of_an_empty_region_no_byte_is_reached(self):
        memory = self.region(LOCAL)
        empty = self.keep(MR(self.here.pd, 0, EVERYTHING, address=memory.buf))
        self.assertEqual(self.write(memory.buf, empty.rkey, "").status, e.IBV_WC_SUCCESS)
        self.assert_refused(self.write(memory.buf, empty.rkey, "!"), memory)
        self.setUp()
        memory = self.region(LOCAL)
        empty = self.keep(MR(self.here.pd, 0, LOCAL, address=memory.buf))
        done = self.post(self.here, memory, key=empty.lkey, opcode=e.IBV_WR_RDMA_WRITE)
        self.assertEqual(done.status, PROTECTION)


class Lifetimes(Regions):
    def test_a_key_reaches_nothing_through_another_domain(self):
        region = self.region(EVERYTHING)
        _, fourth = self.pair(None, self.there.pd)
        self.assert_refused(self.write(region.buf, region.rkey, end=fourth), region)
        self.assert_lands(self.write(region.buf, region.rkey), region)

    def test_a_key_of_a_region_that_is_gone_is_refused(self):
        region = self.region(EVERYTHING)
        address, key = region.buf, region.rkey
        self.assert_lands(self.write(address, key), region)
        region.close()
        self.assert_refused(self.write(address, key))

    def test_a_key_with_another_tag_is_refused(self):
        region = self.region(EVERYTHING)
        self.assert_refused(self.write(region.buf, region.rkey ^ 1), region)

    def test_keys_are_not_given_again_soon(self):
        keys = set()
        for _ in range(300):
            region = MR(self.here.pd, SIZE, LOCAL)
            self.assertNotIn(region.rkey >> 8, keys)
            keys.add(region.rkey >> 8)
            region.close()


class Changes(Regions):
    """ibv_rereg_mr: each flag."""

    def assert_change_refused(self, region, flags, error=errno.EINVAL, **how):
        changes = {"pd": None, "addr": 0, "length": 0, "access": 0, **how}
        self.assert_errno(error, region.rereg, flags, **changes)

    def test_a_changed_access_is_in_force_at_once(self):
        region = self.region(LOCAL | WRITE)
        old = region.rkey
        region.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, LOCAL | READ)
        self.assertEqual(self.read(region.buf, region.rkey).status, e.IBV_WC_SUCCESS)
        self.assert_refused(self.write(region.buf, region.rkey))
        self.assertEqual((region.lkey, region.rkey), (old, old))

    def test_a_changed_translation_is_in_force_at_once(self):
        region, other = self.region(LOCAL | WRITE), self.region(LOCAL)
        region.rereg(e.IBV_REREG_MR_CHANGE_TRANSLATION, None, other.buf, SIZE, 0)
        done = self.write(other.buf, region.rkey)
        self.assert_lands(done, other)
        self.assertEqual(other.read(8, 0).decode(), "written!")

    def test_a_changed_domain_is_in_force_at_once(self):
        region = self.region(LOCAL | WRITE)
        domain = self.domain()
        _, fourth = self.pair(domain, self.there.pd)
        region.rereg(e.IBV_REREG_MR_CHANGE_PD, domain, 0, 0, 0)
        self.assert_lands(self.write(region.buf, region.rkey, end=fourth), region)
        self.assert_refused(self.write(region.buf, region.rkey, "bypassed"))

    def test_the_key_stays_unless_the_place_changes(self):
        region, domain = self.region(LOCAL | WRITE), self.domain()
        old = region.rkey
        for flags, how in ((e.IBV_REREG_MR_CHANGE_ACCESS, (None, 0, 0, LOCAL | WRITE | READ)),
                           (e.IBV_REREG_MR_CHANGE_PD, (domain, 0, 0, 0)),
                           (e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS,
                            (self.here.pd, 0, 0, LOCAL | WRITE))):
            region.rereg(flags, *how)
            self.assertEqual((region.lkey, region.rkey), (old, old))
        self.assert_lands(self.write(region.buf, old), region)

    def test_the_key_of_the_place_before_is_refused(self):
        region, other = self.region(LOCAL | WRITE), self.region(LOCAL)
        old = region.rkey
        region.rereg(e.IBV_REREG_MR_CHANGE_TRANSLATION, None, other.buf, SIZE, 0)
        self.assert_refused(self.write(other.buf, old), other)

    def test_wrong_ones_change_nothing(self):
        region = self.region(LOCAL | WRITE)
        for flags, how in ((0, {}), (1 << 7, {}), (e.IBV_REREG_MR_CHANGE_TRANSLATION, {}),
                           (e.IBV_REREG_MR_CHANGE_ACCESS, {"access": WRITE})):
            with self.subTest(flags=flags, **how):
                self.assert_change_refused(region, flags, **how)
        self.assert_lands(self.write(region.buf, region.rkey), region)

    def test_not_while_a_window_is_bound(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        self.assert_change_refused(region, e.IBV_REREG_MR_CHANGE_ACCESS, errno.EBUSY, access=LOCAL)
        window.close()
        region.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, LOCAL)


class Kinds(Regions):
    def test_on_demand_and_relaxed_ordering_are_taken(self):
        for flags in (ON_DEMAND, RELAXED, ON_DEMAND | RELAXED):
            with self.subTest(flags=flags):
                self.setUp()
                region = self.region(LOCAL | WRITE | flags)
                self.assert_lands(self.write(region.buf, region.rkey), region)

    def test_the_whole_address_space_is_registered_on_demand_only(self):
        memory = self.region(LOCAL)
        everything = self.keep(MR(self.here.pd, 0, LOCAL | WRITE | ON_DEMAND, implicit=True))
        self.assert_lands(self.write(memory.buf, everything.rkey), memory)
        self.assert_registration_refused_implicit()

    def assert_registration_refused_implicit(self):
        self.assert_errno(errno.EINVAL, MR, self.here.pd, 0, LOCAL, implicit=True)

    def test_memory_that_is_not_mapped_is_refused(self):
        self.assert_registration_refused(errno.EFAULT, LOCAL, address=4096)

    def protect(self, page, protection):
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mprotect(ctypes.c_void_p(page), SIZE, protection), 0)

    def test_memory_that_cannot_be_written_is_registered_for_reading_alone(self):
        for pages in (1, 1024):  # the range is looked at in two ways, by its size
            memory = mmap.mmap(-1, (pages + 2) * SIZE)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            for protection, refused in ((mmap.PROT_READ, (LOCAL, LOCAL | WRITE)),
                                        (0, (LOCAL, 0, READ))):
                self.protect(start + pages * SIZE, protection)
                for access in refused:
                    for length in (pages * SIZE + 1, (pages + 2) * SIZE):
                        with self.subTest(protection=protection, access=access, length=length):
                            self.assert_registration_refused(errno.EFAULT, access, length=length,
                                                             address=start)
                            on_demand = access | ON_DEMAND
                            MR(self.here.pd, length, on_demand, address=start).close()
                MR(self.here.pd, pages * SIZE, LOCAL | WRITE, address=start).close()
                if protection != 0:
                    MR(self.here.pd, (pages + 2) * SIZE, READ, address=start).close()

    def test_what_is_no_dma_buf_is_refused_as_one(self):  # what is one: verbs/dma_buf_test.cpp
        with open("/dev/null", "rb") as file, self.assertRaises(PyverbsRDMAError) as refused:
            DmaBufMR(self.here.pd, SIZE, LOCAL, file.fileno())
        self.assertEqual(refused.exception.error_code, errno.EINVAL)

    def device_memory(self, access, offset=0, length=64):
        self.memory = DM(self.context, AllocDmAttr(length=128))
        self.addCleanup(self.memory.close)
        region = DMMR(self.here.pd, length, access, self.memory, offset)
        self.addCleanup(region.close)
        return region

    def test_device_memory_is_reached_within_its_region(self):
        for address, wanted in ((0, e.IBV_WC_SUCCESS), (56, e.IBV_WC_SUCCESS),
                                (57, e.IBV_WC_REM_ACCESS_ERR)):
            with self.subTest(address=address):
                self.setUp()
                region = self.device_memory(LOCAL | WRITE | ZERO_BASED, offset=8)
                self.assertEqual(self.write(address, region.rkey).status, wanted)
                if wanted == e.IBV_WC_SUCCESS:
                    self.assertEqual(bytes(self.memory.copy_from_dm(8 + address, 8)), b"written!")
                    self.memory.copy_to_dm(8 + address, b"replaced", 8)

    def test_a_region_of_device_memory_stays_what_it_is(self):
        region = self.device_memory(LOCAL | WRITE | ZERO_BASED)
        other = self.region(LOCAL)
        for flags, how in ((e.IBV_REREG_MR_CHANGE_ACCESS, (None, 0, 0, LOCAL)),
                           (e.IBV_REREG_MR_CHANGE_PD, (self.domain(), 0, 0, 0)),
                           (e.IBV_REREG_MR_CHANGE_TRANSLATION, (None, other.buf, SIZE, 0))):
            self.assert_errno(errno.EINVAL, region.rereg, flags, *how)
        self.assertEqual(self.write(0, region.rkey).status, e.IBV_WC_SUCCESS)
        region.close()
        self.memory.close()

    def test_device_memory_has_empty_regions_too(self):
        for offset in (0, 64, 128):
            with self.subTest(offset=offset):
                self.setUp()
                region = self.device_memory(LOCAL | WRITE | ZERO_BASED, offset=offset, length=0)
                self.assertEqual(self.write(0, region.rkey, "").status, e.IBV_WC_SUCCESS)
                self.assert_refused(self.write(0, region.rkey, "!"))

    def test_device_memory_is_copied_by_words_of_4_bytes(self):
        with DM(self.context, AllocDmAttr(length=128)) as memory:
            memory.copy_to_dm(124, b"last", 4)
            self.assertEqual(bytes(memory.copy_from_dm(124, 4)), b"last")
            memory.copy_to_dm(128, b"", 0)
            wrong = [(0, 3, errno.EINVAL), (2, 4, errno.EINVAL), (1, 0, errno.EINVAL),
                     (128, 4, errno.EFAULT), (124, 8, errno.EFAULT), (132, 0, errno.EFAULT),
                     (2**64 - 4, 8, errno.EFAULT)]
            for offset, length, error in wrong:
                with self.subTest(offset=offset, length=length):
                    self.assert_errno(error, memory.copy_to_dm, offset, b"x" * length, length)
                    self.assert_errno(error, memory.copy_from_dm, offset, length)
            self.assertEqual(bytes(memory.copy_from_dm(120, 8)), b"\0\0\0\0last")

    def test_device_memory_has_zero_based_regions_only(self):
        with self.assertRaises(PyverbsRDMAError):
            self.device_memory(LOCAL)
        with self.assertRaises(PyverbsRDMAError):
            self.device_memory(LOCAL | ZERO_BASED, offset=65)


if __name__ == "__main__":
    unittest.main()
