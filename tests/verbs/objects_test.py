"""The life of objects, seen through libibverbs: who may go before whom, and what each call refuses.

Destroying is tried with libibverbs' own functions on its own objects: pyverbs would destroy the
children first.
"""
import ctypes
import errno
import mmap
import os
import struct
import unittest

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import DM, AllocDmAttr, Context, get_device_list
from pyverbs.mr import DMMR, MR, MW
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from door import main_inside

PAGE = mmap.PAGESIZE
ALL = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ |
       e.IBV_ACCESS_REMOTE_ATOMIC | e.IBV_ACCESS_MW_BIND)


class Objects(unittest.TestCase):
    def setUp(self):
        self.context = Context(name="aperture0")
        self.addCleanup(self.context.close)
        self.pd = PD(self.context)

    def assert_errno(self, wanted, call, *arguments, **named):
        with self.assertRaises((PyverbsRDMAError, PyverbsError)) as caught:
            call(*arguments, **named)
        self.assertEqual(getattr(caught.exception, "error_code", None), wanted, caught.exception)

    def qp_init(self, cq, **more):
        named = {"qp_type": e.IBV_QPT_RC, "scq": cq, "rcq": cq, "cap": QPCap(16, 16, 4, 4, 64),
                 **more}
        return QPInitAttr(**named)


class Devices(Objects):
    def test_what_the_device_is(self):
        device = [d for d in get_device_list() if d.name == b"aperture0"][0]
        self.assertEqual(device.node_type, e.IBV_NODE_CA)
        self.assertEqual(device.transport_type, e.IBV_TRANSPORT_IB)
        self.assertNotEqual(device.guid, 0)
        port = self.context.query_port(1)
        self.assertEqual(port.state, e.IBV_PORT_ACTIVE)
        self.assertEqual(port.link_layer, e.IBV_LINK_LAYER_ETHERNET)
        self.assertEqual(self.context.query_pkey(1, 0), 0xffff)
        for index in range(port.gid_tbl_len):
            self.assertNotEqual(str(self.context.query_gid(1, index))[20:], "0000:0000:0000:0000")

    def test_there_is_one_port(self):
        for port in (0, 2):
            self.assert_errno(errno.EINVAL, self.context.query_port, port)

    def test_a_gid_and_a_pkey_beyond_the_tables(self):
        beyond = self.context.query_port(1).gid_tbl_len
        for call in (self.context.query_gid, self.context.query_pkey):
            with self.assertRaises((PyverbsRDMAError, PyverbsError)):
                call(1, beyond)

    def test_windows_of_one_kind(self):
        flags = self.context.query_device().device_cap_flags
        self.assertTrue(flags & e.IBV_DEVICE_MEM_WINDOW)
        kinds = (e.IBV_DEVICE_MEM_WINDOW_TYPE_2A, e.IBV_DEVICE_MEM_WINDOW_TYPE_2B)
        wanted = kinds[0] if os.environ.get("APERTURE_MW_TYPE") == "2A" else kinds[1]
        self.assertEqual(flags & (kinds[0] | kinds[1]), wanted)


class Regions(Objects):
    def test_remote_write_or_atomic_needs_local_write(self):
        for access in (e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_ATOMIC):
            self.assert_errno(errno.EINVAL, MR, self.pd, 64, access)
            MR(self.pd, 64, access | e.IBV_ACCESS_LOCAL_WRITE).close()

    def test_keys_are_unlike_each_other(self):
        keys = [MR(self.pd, 64, ALL) for _ in range(64)]
        self.assertEqual(len({mr.rkey >> 8 for mr in keys}), len(keys))
        for mr in keys:
            self.assertEqual(mr.lkey, mr.rkey)

    def test_unknown_access_bits(self):
        self.assert_errno(errno.EINVAL, MR, self.pd, 64, 1 << 15)
        MR(self.pd, 64, ALL | e.IBV_ACCESS_RELAXED_ORDERING | e.IBV_ACCESS_ON_DEMAND).close()

    def test_memory_that_is_not_mapped(self):
        hole = mmap.mmap(-1, PAGE)
        at = ctypes.addressof(ctypes.c_char.from_buffer(hole))
        MR(self.pd, PAGE, ALL, address=at).close()
        self.assert_errno(errno.EFAULT, MR, self.pd, PAGE, ALL, address=PAGE)
        MR(self.pd, PAGE, ALL | e.IBV_ACCESS_ON_DEMAND, address=PAGE).close()

    def test_no_bytes(self):
        MR(self.pd, 0, ALL, address=PAGE).close()  # none of which need be mapped

    def test_rereg_changes_access_and_pd_under_the_same_key(self):
        other = PD(self.context)
        mr = MR(self.pd, PAGE, e.IBV_ACCESS_LOCAL_WRITE)
        before = mr.rkey
        mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, pd=None, addr=0, length=0, access=ALL)
        self.assertEqual((mr.lkey, mr.rkey), (before, before))
        mr.rereg(e.IBV_REREG_MR_CHANGE_PD, pd=other, addr=0, length=0, access=0)
        with self.assertRaises((PyverbsRDMAError, PyverbsError)):
            mr.rereg(8, pd=None, addr=0, length=0, access=0)
        mr.close()
        other.close()

    def test_device_memory(self):
        with DM(self.context, AllocDmAttr(4096)) as dm:
            dm.copy_to_dm(16, b"hello, 8", 8)
            self.assertEqual(dm.copy_from_dm(16, 8), b"hello, 8")
            with self.assertRaises((PyverbsRDMAError, PyverbsError)):
                dm.copy_to_dm(4092, b"hello, 8", 8)
            zero_based = e.IBV_ACCESS_ZERO_BASED | e.IBV_ACCESS_LOCAL_WRITE
            DMMR(self.pd, 64, zero_based, dm=dm, offset=4032).close()
            self.assert_errno(errno.EINVAL, DMMR, self.pd, 64, e.IBV_ACCESS_LOCAL_WRITE, dm=dm,
                              offset=0)
            self.assert_errno(errno.EINVAL, DMMR, self.pd, 64, zero_based, dm=dm, offset=4033)

    def test_windows_are_of_type_1_or_2(self):
        for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
            MW(self.pd, kind).close()
        self.assert_errno(errno.EINVAL, MW, self.pd, 3)


class Domains(Objects):
    def test_parent_domains(self):
        attr = ParentDomainInitAttr(pd=self.pd)
        parent = ParentDomain(self.context, attr=attr)
        mr = MR(parent, 64, ALL)
        cq_attr = CqInitAttrEx(cqe=4, comp_mask=e.IBV_CQ_INIT_ATTR_MASK_PD, parent_domain=parent)
        CQEX(self.context, cq_attr).close()
        mr.close()
        parent.close()

    def test_address_handles(self):
        gid = str(self.context.query_gid(1, 0))
        route = GlobalRoute(dgid=GID(gid), sgid_index=0)
        AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1)).close()
        self.assert_errno(errno.EINVAL, AH, self.pd, attr=AHAttr(is_global=0, port_num=1))
        self.assert_errno(errno.EINVAL, AH, self.pd,
                          attr=AHAttr(gr=route, is_global=1, port_num=2))
        beyond = GlobalRoute(dgid=GID(gid), sgid_index=200)
        self.assert_errno(errno.EINVAL, AH, self.pd,
                          attr=AHAttr(gr=beyond, is_global=1, port_num=1))


class Queues(Objects):
    def test_cq_sizes(self):
        for entries in (0, (1 << 22) + 1):
            self.assert_errno(errno.EINVAL, CQ, self.context, entries)
        cq = CQ(self.context, 1)
        cq.resize(100)
        self.assertEqual(cq.cqe, 100)

    def test_a_completion_vector_that_is_not_there(self):
        self.assert_errno(errno.EINVAL, CQ, self.context, 4, None, None,
                          self.context.num_comp_vectors)

    def test_extended_cqs_refuse_what_they_cannot_tell(self):
        known = e.IBV_WC_STANDARD_FLAGS | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
        CQEX(self.context, CqInitAttrEx(cqe=4, wc_flags=known)).close()
        for flag in (e.IBV_WC_EX_WITH_CVLAN, e.IBV_WC_EX_WITH_FLOW_TAG, e.IBV_WC_EX_WITH_TM_INFO):
            self.assert_errno(errno.EOPNOTSUPP, CQEX, self.context,
                              CqInitAttrEx(cqe=4, wc_flags=flag))

    def test_channels_can_be_polled(self):
        channel = CompChannel(self.context)
        cq = CQ(self.context, 4, None, channel)
        cq.req_notify()
        qp = QP(self.pd, self.qp_init(cq))
        mr = MR(self.pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = 0
        qp.to_init(attr)
        qp.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)]))
        qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        channel.get_cq_event(cq)
        got, completions = cq.poll()
        self.assertEqual((got, completions[0].status), (1, e.IBV_WC_WR_FLUSH_ERR))
        cq.ack_events(1)
        qp.close()
        cq.close()
        channel.close()

    def test_srqs(self):
        for bad in (SrqAttr(max_wr=0), SrqAttr(max_wr=1 << 20), SrqAttr(max_wr=1, max_sge=33)):
            self.assert_errno(errno.EINVAL, SRQ, self.pd, SrqInitAttr(bad))
        srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=8, max_sge=2)))
        self.assertEqual(srq.query().max_wr, 8)
        srq.modify(SrqAttr(max_wr=16), e.IBV_SRQ_MAX_WR)
        mr = MR(self.pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
        for _ in range(3):
            srq.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)]))
        srq.modify(SrqAttr(srq_limit=3), e.IBV_SRQ_LIMIT)
        self.assertEqual((srq.query().max_wr, srq.query().srq_limit), (16, 3))
        with self.assertRaises((PyverbsRDMAError, PyverbsError)):
            srq.modify(SrqAttr(srq_limit=17), e.IBV_SRQ_LIMIT)
        srq.modify(SrqAttr(srq_limit=4), e.IBV_SRQ_LIMIT)  # three are there: reached at once
        self.assertEqual(srq.query().srq_limit, 0)
        event = self.context.get_async_event()
        self.assertEqual(event.event_type, e.IBV_EVENT_SRQ_LIMIT_REACHED)
        event.ack()


class QueuePairs(Objects):
    def setUp(self):
        super().setUp()
        self.cq = CQ(self.context, 64)

    def test_caps(self):
        for cap in (QPCap(32769, 1, 1, 1, 0), QPCap(1, 32769, 1, 1, 0), QPCap(1, 1, 33, 1, 0),
                    QPCap(1, 1, 1, 33, 0), QPCap(1, 1, 1, 1, 1025)):
            self.assert_errno(errno.EINVAL, QP, self.pd, self.qp_init(self.cq, cap=cap))
        qp = QP(self.pd, self.qp_init(self.cq, cap=QPCap(3, 5, 2, 1, 100)))
        cap = qp.query(e.IBV_QP_CAP)[0].cap
        self.assertGreaterEqual(cap.max_send_wr, 3)
        self.assertGreaterEqual(cap.max_inline_data, 100)
        for asked in (0, 1, 63):  # 64 bytes are always granted
            init = self.qp_init(self.cq, cap=QPCap(3, 5, 2, 1, asked))
            qp = QP(self.pd, init)
            self.assertGreaterEqual(init.cap.max_inline_data, 64)
            self.assertGreaterEqual(qp.query(e.IBV_QP_CAP)[0].cap.max_inline_data, 64)

    def test_types_that_are_not_to_be_had(self):
        for kind in (e.IBV_QPT_RAW_PACKET, e.IBV_QPT_DRIVER):
            self.assert_errno(errno.EOPNOTSUPP, QP, self.pd, self.qp_init(self.cq, qp_type=kind))

    def test_send_operations_that_are_not_to_be_had(self):
        def attr(ops):
            return QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq,
                                cap=QPCap(4, 4, 1, 1, 0), pd=self.pd, send_ops_flags=ops,
                                comp_mask=e.IBV_QP_INIT_ATTR_PD |
                                e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        QPEx(self.context, attr(e.IBV_QP_EX_WITH_SEND)).close()
        self.assert_errno(errno.EOPNOTSUPP, QPEx, self.context, attr(e.IBV_QP_EX_WITH_TSO))

    def test_the_way_through_the_states(self):
        qp = QP(self.pd, self.qp_init(self.cq))
        self.assertEqual(qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_RESET)
        init = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        init.pkey_index = 0
        init.qp_access_flags = e.IBV_ACCESS_REMOTE_READ
        needed = (e.IBV_QP_STATE, e.IBV_QP_PKEY_INDEX, e.IBV_QP_PORT, e.IBV_QP_ACCESS_FLAGS)
        everything = sum(needed)
        for missing in needed[1:]:
            self.assert_errno(errno.EINVAL, qp.modify, init, everything - missing)
        for foreign in (e.IBV_QP_AV, e.IBV_QP_SQ_PSN, e.IBV_QP_QKEY, e.IBV_QP_CAP):
            self.assert_errno(errno.EINVAL, qp.modify, init, everything | foreign)
        init.port_num = 2
        self.assert_errno(errno.EINVAL, qp.modify, init, everything)
        init.port_num = 1
        init.pkey_index = 1
        self.assert_errno(errno.EINVAL, qp.modify, init, everything)
        init.pkey_index = 0
        qp.modify(init, everything)
        told = qp.query(e.IBV_QP_STATE | e.IBV_QP_ACCESS_FLAGS)[0]
        self.assertEqual((told.qp_state, told.qp_access_flags),
                         (e.IBV_QPS_INIT, e.IBV_ACCESS_REMOTE_READ))
        self.assert_errno(errno.EINVAL, qp.modify, QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
        wrong_now = QPAttr(qp_state=e.IBV_QPS_ERR, cur_qp_state=e.IBV_QPS_RTS)
        self.assert_errno(errno.EINVAL, qp.modify, wrong_now,
                          e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)
        qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        self.assertEqual(qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_ERR)
        qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        self.assertEqual(qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_RESET)

    def test_rights_that_change_nothing_here(self):
        qp = QP(self.pd, self.qp_init(self.cq))
        everything = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS
        init = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        flushes = 1 << 8 | 1 << 9  # IBV_ACCESS_FLUSH_GLOBAL and _PERSISTENT, younger than this file
        optional = 0x3ff00000  # IBV_ACCESS_OPTIONAL_RANGE
        of_regions = e.IBV_ACCESS_ZERO_BASED | e.IBV_ACCESS_HUGETLB | e.IBV_ACCESS_ON_DEMAND
        for access in (e.IBV_ACCESS_ON_DEMAND, e.IBV_ACCESS_ZERO_BASED, e.IBV_ACCESS_HUGETLB,
                       flushes, e.IBV_ACCESS_RELAXED_ORDERING, optional,
                       ALL | flushes | optional | of_regions):
            init.qp_access_flags = access
            qp.modify(init, everything)
            self.assertEqual(qp.query(e.IBV_QP_ACCESS_FLAGS)[0].qp_access_flags, access)
        for unknown in (1 << 15, 1 << 30):
            init.qp_access_flags = unknown
            self.assert_errno(errno.EINVAL, qp.modify, init, everything)

    def test_posting_before_the_state_allows_it(self):
        qp = QP(self.pd, self.qp_init(self.cq))
        mr = MR(self.pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
        pieces = [SGE(mr.buf, 64, mr.lkey)]
        self.assert_errno(errno.EINVAL, qp.post_recv, RecvWR(num_sge=1, sg=pieces))
        self.assert_errno(errno.EINVAL, qp.post_send, SendWR(num_sge=1, sg=pieces))


class Lives(unittest.TestCase):
    """By ctypes, in the order that the C program chooses."""

    def setUp(self):
        self.lib = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        pointer = ctypes.c_void_p
        for name in ("get_device_list", "open_device", "alloc_pd", "create_comp_channel",
                     "create_cq", "reg_mr", "create_srq", "create_qp"):
            getattr(self.lib, f"ibv_{name}").restype = pointer
        self.lib.ibv_get_device_list.argtypes = [pointer]
        self.lib.ibv_open_device.argtypes = [pointer]
        for name in ("close_device", "alloc_pd", "dealloc_pd", "create_comp_channel",
                     "destroy_comp_channel", "destroy_cq", "dereg_mr", "destroy_srq",
                     "destroy_qp"):
            getattr(self.lib, f"ibv_{name}").argtypes = [pointer]
        self.lib.ibv_create_cq.argtypes = [pointer, ctypes.c_int, pointer, pointer, ctypes.c_int]
        self.lib.ibv_reg_mr.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int]
        self.lib.ibv_create_qp.argtypes = [pointer, pointer]
        devices = ctypes.cast(self.lib.ibv_get_device_list(None), ctypes.POINTER(pointer))
        at = 0
        while devices[at + 1]:
            at += 1
        self.context = self.lib.ibv_open_device(devices[at])
        self.assertTrue(self.context)

    def make_qp(self, pd, cq):
        # struct ibv_qp_init_attr: context, two CQs, SRQ, five caps, type, sq_sig_all
        attr = struct.pack("PPPP5Iii", 0, cq, cq, 0, 4, 4, 1, 1, 0, e.IBV_QPT_RC, 0)
        return self.lib.ibv_create_qp(pd, attr)

    def test_who_is_used_cannot_go(self):
        lib = self.lib
        pd = lib.ibv_alloc_pd(self.context)
        channel = lib.ibv_create_comp_channel(self.context)
        cq = lib.ibv_create_cq(self.context, 8, None, channel, 0)
        memory = ctypes.create_string_buffer(64)
        mr = lib.ibv_reg_mr(pd, memory, 64, e.IBV_ACCESS_LOCAL_WRITE)
        qp = self.make_qp(pd, cq)
        self.assertTrue(pd and channel and cq and mr and qp)
        self.assertEqual(lib.ibv_dealloc_pd(pd), errno.EBUSY)
        self.assertEqual(lib.ibv_destroy_cq(cq), errno.EBUSY)
        self.assertEqual(lib.ibv_destroy_comp_channel(channel), errno.EBUSY)
        self.assertEqual(lib.ibv_destroy_qp(qp), 0)
        self.assertEqual(lib.ibv_dealloc_pd(pd), errno.EBUSY)  # its MR is still there
        self.assertEqual(lib.ibv_dereg_mr(mr), 0)
        self.assertEqual(lib.ibv_dealloc_pd(pd), 0)
        self.assertEqual(lib.ibv_destroy_comp_channel(channel), errno.EBUSY)
        self.assertEqual(lib.ibv_destroy_cq(cq), 0)
        self.assertEqual(lib.ibv_destroy_comp_channel(channel), 0)
        self.assertEqual(lib.ibv_close_device(self.context), 0)

    def test_a_context_may_be_closed_before_its_objects(self):
        pd = self.lib.ibv_alloc_pd(self.context)
        cq = self.lib.ibv_create_cq(self.context, 8, None, None, 0)
        qp = self.make_qp(pd, cq)
        memory = ctypes.create_string_buffer(64)
        self.assertTrue(self.lib.ibv_reg_mr(pd, memory, 64, e.IBV_ACCESS_LOCAL_WRITE))
        self.assertEqual(self.lib.ibv_close_device(self.context), 0)
        self.assertEqual(self.lib.ibv_destroy_qp(qp), 0)

    def test_a_forked_child_is_turned_away_and_harms_nobody(self):
        pd = self.lib.ibv_alloc_pd(self.context)
        child = os.fork()
        if child == 0:
            refused = (self.lib.ibv_alloc_pd(self.context) is None
                       and ctypes.get_errno() == errno.EOPNOTSUPP)
            os._exit(0 if refused and self.lib.ibv_dealloc_pd(pd) == 0 else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(self.lib.ibv_dealloc_pd(pd), 0)
        self.assertEqual(self.lib.ibv_close_device(self.context), 0)


if __name__ == "__main__":
    main_inside(__file__)
