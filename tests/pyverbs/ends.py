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
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE = "aperture0"
LOCAL = e.IBV_ACCESS_LOCAL_WRITE
BINDABLE = LOCAL | e.IBV_ACCESS_MW_BIND
READ = e.IBV_ACCESS_REMOTE_READ
WRITE = e.IBV_ACCESS_REMOTE_WRITE
ATOMIC = e.IBV_ACCESS_REMOTE_ATOMIC
ZERO_BASED = e.IBV_ACCESS_ZERO_BASED
SIZE = 4096


ALL_SENDS = (e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_RDMA_READ |
             e.IBV_QP_EX_WITH_LOCAL_INV | e.IBV_QP_EX_WITH_BIND_MW | e.IBV_QP_EX_WITH_SEND_WITH_INV)


def next_key(key):
    """As ibv_inc_rkey(3)."""
    return (key & ~0xFF) | ((key + 1) & 0xFF)


class Window(MW):
    """A window, and the key that it was bound with last: of type 2 the consumer keeps it."""

    given = None

    @property
    def key(self):
        return self.rkey if self.given is None else self.given


class End:
    """A queue pair with a completion queue, in a protection domain of its own or a given one."""

    def __init__(self, context, pd=None, signal_all=True):
        self.pd = pd or PD(context)
        self.cq = CQ(context, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2,
                    max_inline_data=64)
        init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, pd=self.pd,
                            sq_sig_all=int(signal_all), send_ops_flags=ALL_SENDS,
                            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        self.qp = QPEx(context, init)

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


def give_back(context, windows, regions, ends, domains):
    for window in windows:
        window.close()
    for end in ends:
        end.qp.close()
        end.cq.close()
    for region in regions:
        region.close()
    for domain in domains:
        domain.close()
    context.close()


def connect(context, one, other):
    one.qp.to_rts(one.attributes(context, other.qp.qp_num))
    other.qp.to_rts(other.attributes(context, one.qp.qp_num))


class Ends(unittest.TestCase):
    def setUp(self):
        self.context = Context(name=DEVICE)
        # what was made, to be given back in an order that no rule forbids
        self.windows, self.regions, self.ends, self.domains = made = [], [], [], []
        self.addCleanup(give_back, self.context, *made)
        self.here, self.there = self.pair()
        self.buffer = self.keep(MR(self.there.pd, SIZE, LOCAL))

    def keep(self, region):
        self.regions.append(region)
        return region

    def domain(self):
        self.domains.append(PD(self.context))
        return self.domains[-1]

    def pair(self, one=None, other=None, **how):
        """Two connected ends, in those domains or in new ones."""
        ends = [End(self.context, pd or self.domain(), **how) for pd in (one, other)]
        self.ends += ends
        connect(self.context, *ends)
        return ends

    def window(self, kind, pd=None):
        self.windows.append(Window(pd or self.here.pd, kind))
        return self.windows[-1]

    # --- what the owner does ---

    def region(self, access=BINDABLE, size=SIZE):
        region = self.keep(MR(self.here.pd, size, access))
        region.write("." * size, size)
        return region

    def info(self, region, access, offset=0, length=SIZE, addr=None):
        return MWBindInfo(region, region.buf + offset if addr is None else addr, length, access)

    def bind_type_1(self, window, region, access, end=None, flags=e.IBV_SEND_SIGNALED, **where):
        """Posts the bind; the completion is the caller's to take."""
        end = end or self.here
        bind = MWBind(self.info(region, access, **where), flags, 1)
        end.qp.bind_mw(window, bind)

    def bind_type_2(self, window, region, access, end=None, key=None, **where):
        """By ibv_post_send and the next of the first key; with a key by ibv_wr_bind_mw and that."""
        qp = (end or self.here).qp
        info = self.info(region, access, **where)
        if key is None:
            wr = SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
            wr.set_bind_wr(window, info)
            key = wr.rkey
            qp.post_send(wr)
        else:
            qp.wr_start()
            qp.wr_id, qp.wr_flags = 0, e.IBV_SEND_SIGNALED
            qp.wr_bind_mw(window, key, info)
            qp.wr_complete()
        window.given = key

    def invalidate(self, key, end=None):
        wr = SendWR(opcode=e.IBV_WR_LOCAL_INV, send_flags=e.IBV_SEND_SIGNALED)
        wr.imm_data = key
        (end or self.here).qp.post_send(wr)

    def invalidated(self, key):
        self.invalidate(key)
        return self.assert_done(self.here, e.IBV_WC_LOCAL_INV)

    def unbound(self, kind):
        """A region without remote rights, and a window."""
        return self.region(), self.window(kind)

    def bound(self, kind, region, access, **where):
        """A window that is bound, and whose bind has been polled."""
        window = self.window(kind)
        bind = self.bind_type_1 if kind == e.IBV_MW_TYPE_1 else self.bind_type_2
        bind(window, region, access, **where)
        self.assert_done(self.here, e.IBV_WC_BIND_MW)
        return window

    def reachable(self, kind, access=WRITE, **where):
        """A region without remote rights, and a window over it that gives some."""
        region = self.region()
        return region, self.bound(kind, region, access, **where)

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

    def assert_errno(self, error, call, *arguments, **named):
        with self.assertRaises(PyverbsRDMAError) as refused:
            call(*arguments, **named)
        self.assertEqual(refused.exception.error_code, error)

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
           "SendWR", "WRITE", "Window", "ZERO_BASED", "connect", "e", "next_key"]
