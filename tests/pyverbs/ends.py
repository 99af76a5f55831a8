"""Two connected queue pairs of aperture0 in one process, as the pyverbs tests use them: `here` owns
the memory, `there` is the peer that reaches it.

Everything goes through Debian's python3-pyverbs; run under `aperture run`.
"""
import time
import unittest

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE = "aperture0"
LOCAL = e.IBV_ACCESS_LOCAL_WRITE
BINDABLE = LOCAL | e.IBV_ACCESS_MW_BIND
READ = e.IBV_ACCESS_REMOTE_READ
WRITE = e.IBV_ACCESS_REMOTE_WRITE
ATOMIC = e.IBV_ACCESS_REMOTE_ATOMIC
ZERO_BASED = e.IBV_ACCESS_ZERO_BASED
SIZE = 4096


class End:
    """A queue pair with a completion queue, in a protection domain of its own or a given one."""

    def __init__(self, context, pd=None):
        self.pd = pd or PD(context)
        self.cq = CQ(context, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(self.pd, init)

    def attributes(self, context, peer_number):
        route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
        attr = QPAttr()
        attr.port_num = 1
        attr.qp_access_flags = LOCAL | READ | WRITE | ATOMIC
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer_number
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = attr.rnr_retry = 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        return attr

    def completion(self, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            count, found = self.cq.poll(1)
            if count:
                return found[0]
        raise AssertionError(f"no completion within {seconds} s")

    def has_no_completion(self):
        for _ in range(200):
            if self.cq.poll(1)[0]:
                return False
        return True


def connect(context, one, other):
    one.qp.to_rts(one.attributes(context, other.qp.qp_num))
    other.qp.to_rts(other.attributes(context, one.qp.qp_num))


class Ends(unittest.TestCase):
    def setUp(self):
        self.context = Context(name=DEVICE)
        self.here, self.there = End(self.context), End(self.context)
        connect(self.context, self.here, self.there)
        self.buffer = MR(self.there.pd, SIZE, LOCAL)

    # --- what the owner does ---

    def region(self, access=BINDABLE, size=SIZE):
        region = MR(self.here.pd, size, access)
        region.write("." * size, size)
        return region

    def info(self, region, access, offset=0, length=SIZE, addr=None):
        return MWBindInfo(region, region.buf + offset if addr is None else addr, length, access)

    def bind_type_1(self, window, region, access, end=None, **where):
        """Posts the bind; the completion is the caller's to take."""
        end = end or self.here
        bind = MWBind(self.info(region, access, **where), e.IBV_SEND_SIGNALED, 1)
        end.qp.bind_mw(window, bind)

    def bind_type_2(self, window, region, access, end=None, **where):
        end = end or self.here
        wr = SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_bind_wr(window, self.info(region, access, **where))
        end.qp.post_send(wr)

    def invalidate(self, key, end=None):
        wr = SendWR(opcode=e.IBV_WR_LOCAL_INV, send_flags=e.IBV_SEND_SIGNALED)
        wr.imm_data = key
        (end or self.here).qp.post_send(wr)

    def bound(self, kind, region, access, **where):
        """A window that is bound, and whose bind has been polled."""
        window = MW(self.here.pd, kind)
        bind = self.bind_type_1 if kind == e.IBV_MW_TYPE_1 else self.bind_type_2
        bind(window, region, access, **where)
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        return window

    # --- what the peer does ---

    def reach(self, opcode, address, key, length=8, end=None):
        end = end or self.there
        buffer = self.buffer
        sge = SGE(buffer.buf, length, buffer.lkey)
        wr = SendWR(opcode=opcode, num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED)
        if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(key, address, 1, 0)
        else:
            wr.set_wr_rdma(key, address)
        end.qp.post_send(wr)
        return end.completion()

    def write(self, address, key, text="written!", **how):
        self.buffer.write(text, len(text))
        return self.reach(e.IBV_WR_RDMA_WRITE, address, key, length=len(text), **how)

    def read(self, address, key, **how):
        return self.reach(e.IBV_WR_RDMA_READ, address, key, **how)

    def fetch_add(self, address, key, **how):
        return self.reach(e.IBV_WR_ATOMIC_FETCH_AND_ADD, address, key, **how)

    # --- what is expected ---

    def assert_done(self, end, opcode):
        found = end.completion()
        self.assertEqual((found.status, found.opcode), (e.IBV_WC_SUCCESS, opcode))
        return found

    def assert_lands(self, completion, region, text="written!", offset=0):
        self.assertEqual(completion.status, e.IBV_WC_SUCCESS)
        self.assertEqual(region.read(len(text), offset).decode(), text)

    def assert_refused(self, completion, region=None, status=e.IBV_WC_REM_ACCESS_ERR):
        self.assertEqual(completion.status, status)
        if region is not None:
            self.assertEqual(set(region.read(region.length, 0).decode()), {"."})


__all__ = ["ATOMIC", "BINDABLE", "DEVICE", "End", "Ends", "LOCAL", "MR", "MW", "MWBind",
           "MWBindInfo", "PD", "PyverbsError", "PyverbsRDMAError", "READ", "RecvWR", "SGE", "SIZE",
           "SendWR", "WRITE", "ZERO_BASED", "connect", "e"]
