"""Memory windows, statement by statement of the slides "User-space Memory Windows": what each says
is legal, and its forbidden neighbour. docs/conformance/memory-windows.md names these tests.

APERTURE_MW_TYPE chooses whether the device's windows of type 2 are 2A or 2B; the tests run once
under each.
"""
import errno
import os
import unittest

from ends import (ATOMIC, BINDABLE, LOCAL, MR, MW, READ, SGE, SIZE, WRITE, ZERO_BASED, Ends,
                  PyverbsError, PyverbsRDMAError, RecvWR, SendWR, e, next_key)

TYPE_2A = os.environ.get("APERTURE_MW_TYPE", "2B") == "2A"


class Purpose(Ends):
    def test_a_region_without_remote_access_is_reached_through_a_window_only(self):
        region = self.region(BINDABLE)
        window = self.bound(e.IBV_MW_TYPE_1, region, WRITE)
        self.assert_lands(self.write(region.buf, window.key), region)
        self.assert_refused(self.write(region.buf, region.rkey, "bypassed"))

    def test_a_window_covers_its_part_of_the_region_and_no_byte_more(self):
        for offset, fits in ((64, True), (120, True), (63, False), (121, False), (0, False)):
            with self.subTest(offset=offset):
                self.setUp()
                region, window = self.reachable(e.IBV_MW_TYPE_1, WRITE, offset=64, length=64)
                done = self.write(region.buf + offset, window.key)
                if fits:
                    self.assert_lands(done, region, offset=offset)
                else:
                    self.assert_refused(done, region)

    def test_a_window_grants_the_rights_it_was_given_and_no_other(self):
        reaches = {READ: self.read, WRITE: self.write, ATOMIC: self.fetch_add}
        for granted in reaches:
            for asked in reaches:
                with self.subTest(granted=granted, asked=asked):
                    self.setUp()
                    region, window = self.reachable(e.IBV_MW_TYPE_1, granted)
                    reach = {READ: self.read, WRITE: self.write, ATOMIC: self.fetch_add}[asked]
                    status = reach(region.buf, window.key).status
                    wanted = e.IBV_WC_SUCCESS if granted == asked else e.IBV_WC_REM_ACCESS_ERR
                    self.assertEqual(status, wanted)

    def test_local_writes_among_the_rights_of_a_window_are_taken_and_change_nothing(self):
        for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
            with self.subTest(kind=kind):
                self.setUp()
                region, window = self.reachable(kind, LOCAL | WRITE)
                self.assert_lands(self.write(region.buf, window.key), region)
                self.assertEqual(self.read(region.buf, window.key).status,
                                 e.IBV_WC_REM_ACCESS_ERR)

    def test_other_flags_of_regions_are_taken_too_as_devices_do(self):
        others = e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_ON_DEMAND | e.IBV_ACCESS_RELAXED_ORDERING
        for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
            with self.subTest(kind=kind):
                self.setUp()
                region, window = self.reachable(kind, others | WRITE)
                self.assert_lands(self.write(region.buf, window.key), region)
                self.assertEqual(self.read(region.buf, window.key).status,
                                 e.IBV_WC_REM_ACCESS_ERR)

    def test_local_writes_are_taken_by_ibv_wr_bind_mw_too(self):
        region, window = self.unbound(e.IBV_MW_TYPE_2)
        self.bind_type_2(window, region, LOCAL | WRITE, key=next_key(window.rkey))
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assert_lands(self.write(region.buf, window.key), region)

    def test_binding_is_posted_to_the_send_queue_and_completes_in_order(self):
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        self.bind_type_1(window, region, WRITE)
        first = self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assertEqual(first.wr_id, 1)


class Capabilities(Ends):
    def test_the_device_says_which_windows_it_has(self):
        flags = self.context.query_device().device_cap_flags
        self.assertTrue(flags & e.IBV_DEVICE_MEM_WINDOW)
        self.assertTrue(flags & e.IBV_DEVICE_MEM_MGT_EXTENSIONS)
        self.assertEqual(bool(flags & e.IBV_DEVICE_MEM_WINDOW_TYPE_2A), TYPE_2A)
        self.assertEqual(bool(flags & e.IBV_DEVICE_MEM_WINDOW_TYPE_2B), not TYPE_2A)

    def test_windows_of_both_types_are_allocated_and_no_third(self):
        for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
            window = self.window(kind)
            self.assertEqual(window.type, kind)
            self.assertNotEqual(window.key, 0)
            window.close()
        with self.assertRaises(PyverbsError):
            MW(self.here.pd, 3)

    def test_a_window_that_is_bound_keeps_its_region_until_it_is_deallocated(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        self.assert_errno(errno.EBUSY, region.close)
        window.close()
        region.close()


class Type1(Ends):
    def test_the_key_is_seen_at_once_and_in_force_when_the_bind_completes(self):
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        before = window.key
        self.bind_type_1(window, region, WRITE)
        self.assertNotEqual(window.key, before)
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assert_lands(self.write(region.buf, window.key), region)

    def test_a_key_of_a_window_that_was_never_bound_is_refused(self):
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        self.assert_refused(self.write(region.buf, window.key), region)

    def test_it_may_be_bound_again_at_will_and_the_old_key_is_refused(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        old = window.key
        self.bind_type_1(window, region, WRITE)
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assertNotEqual(window.key, old)
        self.assert_lands(self.write(region.buf, window.key), region)
        self.assert_refused(self.write(region.buf, old))

    def test_length_0_unbinds(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        bound = window.key
        self.bind_type_1(window, region, 0, length=0)
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assert_refused(self.write(region.buf, bound), region)

    def test_a_bind_that_fails_flushes_what_follows(self):
        region = self.region(LOCAL)  # without the right to bind
        window = self.window(e.IBV_MW_TYPE_1)
        self.bind_type_1(window, region, WRITE)
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)
        self.bind_type_1(window, region, WRITE)
        self.assertEqual(self.here.completion().status, e.IBV_WC_WR_FLUSH_ERR)

    def tell(self, key, end, peer, length=8):
        """`end` sends that key, behind whatever it has posted; what the peer has received."""
        note, landing = self.keep(MR(end.pd, 64, LOCAL)), self.keep(MR(peer.pd, 64, LOCAL))
        note.write(f"{key:08x}", length)
        peer.qp.post_recv(RecvWR(9, 1, [SGE(landing.buf, 64, landing.lkey)]))
        end.qp.post_send(SendWR(2, num_sge=1, sg=[SGE(note.buf, length, note.lkey)]))
        return landing

    def test_a_message_behind_the_bind_may_tell_the_key(self):
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        self.bind_type_1(window, region, WRITE)
        landing = self.tell(window.key, self.here, self.there)
        self.assert_done(self.there, e.IBV_WC_RECV)
        told = int(landing.read(8, 0), 16)
        self.assertEqual(told, window.key)
        self.assert_lands(self.write(region.buf, told), region)

    def test_the_message_that_would_tell_the_key_of_a_failed_bind_is_flushed(self):
        window = self.window(e.IBV_MW_TYPE_1)
        self.bind_type_1(window, self.region(LOCAL), WRITE)
        try:
            self.tell(window.key, self.here, self.there)
        except PyverbsRDMAError:
            self.fail("a queue pair in the error state takes work requests, and flushes them")
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)
        self.assertEqual(self.here.completion().status, e.IBV_WC_WR_FLUSH_ERR)
        self.assertTrue(self.there.has_no_completion())

    def test_a_bind_that_is_not_signaled_completes_in_silence_and_one_that_is_does_not(self):
        quiet, peer = self.pair(self.here.pd, self.there.pd, signal_all=False)
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        self.bind_type_1(window, region, READ, end=quiet, flags=0)
        self.assertTrue(quiet.has_no_completion())
        self.bind_type_1(window, region, WRITE, end=quiet)
        self.assert_done(quiet, e.IBV_WC_BIND_MW)
        self.assertTrue(quiet.has_no_completion())
        self.assert_lands(self.write(region.buf, window.key, end=peer), region)

    def test_a_fenced_bind_waits_for_the_read_before_it(self):
        region, far = self.region(), self.keep(MR(self.there.pd, SIZE, LOCAL | READ))
        wr = SendWR(7, opcode=e.IBV_WR_RDMA_READ, num_sge=1,
                    sg=[SGE(region.buf, SIZE, region.lkey)])
        wr.set_wr_rdma(far.rkey, far.buf)
        window = self.window(e.IBV_MW_TYPE_1)
        self.here.qp.post_send(wr)
        self.bind_type_1(window, region, WRITE, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE)
        self.assert_done(self.here, e.IBV_WC_RDMA_READ)
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assert_lands(self.write(region.buf, window.key), region)

    def test_any_queue_pair_of_the_domain_reaches_it(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        _, fourth = self.pair(self.here.pd, self.there.pd)
        self.assert_lands(self.write(region.buf, window.key, end=fourth), region)

    def test_one_of_another_domain_does_not(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        _, fourth = self.pair(None, self.there.pd)
        self.assert_refused(self.write(region.buf, window.key, end=fourth), region)

    def test_zero_based_addresses_are_not_for_it(self):
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        self.assert_errno(errno.EINVAL, self.bind_type_1, window, region, WRITE | ZERO_BASED)

    def test_it_is_not_bound_by_post_send(self):
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        self.assert_errno(errno.EINVAL, self.bind_type_2, window, region, WRITE)

    def test_it_is_not_bound_by_ibv_wr_bind_mw(self):
        region, window = self.unbound(e.IBV_MW_TYPE_1)
        with self.assertRaises(PyverbsRDMAError):
            self.bind_type_2(window, region, WRITE, key=next_key(window.key))

    def test_it_is_not_invalidated_here(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        self.invalidate(window.key)
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)

    def test_it_is_not_invalidated_by_the_peer(self):
        region, window = self.reachable(e.IBV_MW_TYPE_1)
        self.assertNotEqual(send_and_invalidate(self, window.key).status, e.IBV_WC_SUCCESS)


def send_and_invalidate(test, key, here=None, there=None):
    """The peer sends with invalidate; its completion. The receive's is left in the queue."""
    here, there = here or test.here, there or test.there
    landing = test.keep(MR(here.pd, 64, LOCAL))
    here.qp.post_recv(RecvWR(9, 1, [SGE(landing.buf, 64, landing.lkey)]))
    wr = SendWR(opcode=e.IBV_WR_SEND_WITH_INV, num_sge=1, send_flags=e.IBV_SEND_SIGNALED,
                sg=[SGE(test.buffer.buf, 8, test.buffer.lkey)])
    wr.imm_data = key
    there.qp.post_send(wr)
    return there.completion()


class Type2(Ends):
    def test_it_is_bound_by_post_send_with_the_consumers_key(self):
        region, window = self.unbound(e.IBV_MW_TYPE_2)
        before = window.key
        self.bind_type_2(window, region, WRITE)
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assertEqual(window.key, next_key(before))
        self.assert_lands(self.write(region.buf, window.key), region)
        self.assert_refused(self.write(region.buf, before))

    def test_the_consumer_owns_the_last_8_bits_of_its_key_and_no_others(self):
        for change, wanted in ((0x5A, e.IBV_WC_SUCCESS), (0x100, e.IBV_WC_MW_BIND_ERR),
                               (1 << 31, e.IBV_WC_MW_BIND_ERR)):
            with self.subTest(change=change):
                self.setUp()
                region, window = self.unbound(e.IBV_MW_TYPE_2)
                self.bind_type_2(window, region, WRITE, key=window.key ^ change)
                self.assertEqual(self.here.completion().status, wanted)
                if wanted == e.IBV_WC_SUCCESS:
                    self.assert_lands(self.write(region.buf, window.key), region)

    def test_a_failed_bind_leaves_the_binding_before_it_and_flushes_what_follows(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        key = window.key
        third, _ = self.pair(self.here.pd, self.there.pd)
        self.bind_type_2(window, region, WRITE, end=third, key=next_key(key))
        self.assertEqual(third.completion().status, e.IBV_WC_MW_BIND_ERR)
        self.bind_type_2(window, region, WRITE, end=third, key=next_key(key))
        self.assertEqual(third.completion().status, e.IBV_WC_WR_FLUSH_ERR)
        self.assert_lands(self.write(region.buf, key), region)

    def test_it_is_not_bound_by_ibv_bind_mw(self):
        region, window = self.unbound(e.IBV_MW_TYPE_2)
        self.assert_errno(errno.EINVAL, self.bind_type_1, window, region, WRITE)

    def test_zero_based_addresses_count_from_the_window(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2, WRITE | ZERO_BASED, offset=128, length=64)
        self.assert_lands(self.write(8, window.key), region, offset=136)
        self.assert_refused(self.write(region.buf + 128, window.key))

    def test_it_is_not_bound_again_before_it_is_invalidated(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        self.bind_type_2(window, region, WRITE, key=next_key(window.key))
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)

    def test_a_local_invalidate_ends_it_and_says_which_key(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        ended = self.invalidated(window.key)
        self.assertEqual(ended.imm_data, window.key)
        self.assert_refused(self.write(region.buf, window.key), region)

    def test_after_a_local_invalidate_it_is_bound_anew_under_another_key(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        old = window.key
        self.invalidated(old)
        self.bind_type_2(window, region, WRITE, key=next_key(old))
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assert_lands(self.write(region.buf, window.key), region)
        self.assert_refused(self.write(region.buf, old))

    def test_the_peer_ends_it_by_a_send_that_says_its_key(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        self.assertEqual(send_and_invalidate(self, window.key).status, e.IBV_WC_SUCCESS)
        got = self.here.completion()
        self.assertEqual(got.status, e.IBV_WC_SUCCESS)
        self.assertTrue(got.wc_flags & e.IBV_WC_WITH_INV)
        self.assertEqual(got.imm_data, window.key)
        self.assert_refused(self.write(region.buf, window.key), region)

    def test_after_the_peer_has_ended_it_it_is_bound_anew(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        old = window.key
        self.assertEqual(send_and_invalidate(self, old).status, e.IBV_WC_SUCCESS)
        self.assertEqual(self.here.completion().status, e.IBV_WC_SUCCESS)
        self.bind_type_2(window, region, WRITE, key=next_key(old))
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        self.assert_lands(self.write(region.buf, window.key), region)
        self.assert_refused(self.write(region.buf, old))

    def test_a_key_of_nothing_cannot_be_invalidated(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        self.invalidate(next_key(window.key))
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)

    def test_the_key_of_a_region_cannot_be_invalidated(self):
        region = self.region(BINDABLE | WRITE)
        refused = send_and_invalidate(self, region.rkey)
        self.assertEqual(refused.status, e.IBV_WC_REM_ACCESS_ERR)
        _, fourth = self.pair(self.here.pd, self.there.pd)
        self.assert_lands(self.write(region.buf, region.rkey, end=fourth), region)

    def test_the_key_of_a_region_cannot_be_invalidated_here(self):
        region = self.region(BINDABLE | WRITE)
        self.invalidate(region.rkey)
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)
        _, fourth = self.pair(self.here.pd, self.there.pd)
        self.assert_lands(self.write(region.buf, region.rkey, end=fourth), region)

    def test_a_bind_outside_its_region_is_refused(self):
        for where in ({"offset": 1}, {"length": SIZE + 1}, {"addr": 0}):
            with self.subTest(where=where):
                self.setUp()
                window = self.window(e.IBV_MW_TYPE_2)
                self.bind_type_2(window, self.region(), WRITE, **where)
                self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)

    def test_a_region_that_must_not_be_written_gets_no_window_for_writing(self):
        for access, wanted in ((READ, e.IBV_WC_SUCCESS), (WRITE, e.IBV_WC_MW_BIND_ERR),
                               (ATOMIC, e.IBV_WC_MW_BIND_ERR)):
            with self.subTest(access=access):
                self.setUp()
                region = self.keep(MR(self.here.pd, SIZE, e.IBV_ACCESS_MW_BIND))
                window = self.window(e.IBV_MW_TYPE_2)
                self.bind_type_2(window, region, access)
                self.assertEqual(self.here.completion().status, wanted)

    def test_length_0_is_refused(self):
        window = self.window(e.IBV_MW_TYPE_2)
        self.bind_type_2(window, self.region(), WRITE, length=0)
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)

    def test_a_deallocated_window_is_refused(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        key = window.key
        window.close()
        self.assert_refused(self.write(region.buf, key), region)


class Type2Ties(Ends):
    """Types 2A and 2B: the same protection domain, the same queue pair."""

    def other_ends(self):
        """A further connection in the same domains."""
        return self.pair(self.here.pd, self.there.pd)

    def test_the_bind_needs_the_same_domain(self):
        for same, wanted in ((True, e.IBV_WC_SUCCESS), (False, e.IBV_WC_MW_BIND_ERR)):
            with self.subTest(same=same):
                self.setUp()
                window = self.window(e.IBV_MW_TYPE_2, self.here.pd if same else self.domain())
                self.bind_type_2(window, self.region(), WRITE)
                self.assertEqual(self.here.completion().status, wanted)

    def test_the_bind_needs_a_region_of_the_same_domain(self):
        other = self.keep(MR(self.domain(), SIZE, BINDABLE))
        self.bind_type_2(self.window(e.IBV_MW_TYPE_2), other, WRITE)
        self.assertEqual(self.here.completion().status, e.IBV_WC_MW_BIND_ERR)

    def test_access_needs_the_same_queue_pair(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        _, fourth = self.other_ends()
        self.assert_refused(self.write(region.buf, window.key, end=fourth), region)
        self.assert_lands(self.write(region.buf, window.key), region)

    def test_invalidation_needs_the_same_queue_pair(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        third, _ = self.other_ends()
        self.invalidate(window.key, end=third)
        self.assertEqual(third.completion().status, e.IBV_WC_MW_BIND_ERR)
        self.assert_lands(self.write(region.buf, window.key), region)

    def test_invalidation_by_a_peer_needs_the_same_queue_pair(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        third, fourth = self.other_ends()
        refused = send_and_invalidate(self, window.key, third, fourth)
        self.assertEqual(refused.status, e.IBV_WC_REM_ACCESS_ERR)
        self.assert_lands(self.write(region.buf, window.key), region)

    def test_a_queue_pair_whose_windows_were_invalidated_is_destroyed(self):
        window = self.bound(e.IBV_MW_TYPE_2, self.region(), WRITE)
        self.invalidated(window.key)
        self.here.qp.close()

    def test_a_window_without_its_queue_pair_keeps_its_region(self):
        if TYPE_2A:
            self.skipTest("under 2A the queue pair cannot be destroyed first")
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        self.here.qp.close()
        self.assert_errno(errno.EBUSY, region.close)
        window.close()
        region.close()

    def test_a_queue_pair_with_a_bound_window_is_destroyed(self):
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        if TYPE_2A:
            self.assert_errno(errno.EBUSY, self.here.qp.close)
            window.close()
            self.here.qp.close()
            return
        self.here.qp.close()
        # nobody reaches it there any more, though it is bound until it is deallocated
        self.assertNotEqual(self.write(region.buf, window.key).status, e.IBV_WC_SUCCESS)
        self.assertEqual(set(region.read(SIZE, 0).decode()), {"."})
        self.assert_errno(errno.EBUSY, region.close)
        window.close()
        region.close()

    def test_a_window_outlives_no_queue_pair_for_another(self):
        if TYPE_2A:
            self.skipTest("under 2A the queue pair cannot be destroyed first: see the test above")
        region, window = self.reachable(e.IBV_MW_TYPE_2)
        self.here.qp.close()
        _, fourth = self.other_ends()
        self.assert_refused(self.write(region.buf, window.key, end=fourth), region)

if __name__ == "__main__":
    unittest.main()
