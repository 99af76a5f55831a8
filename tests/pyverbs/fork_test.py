"""Python's multiprocessing over the device: workers that are forked from a process that has it open
(or had it, and closed it) open it anew, and what they have inherited is refused."""
import errno
import multiprocessing
import unittest

from ends import DEVICE, LOCAL, MR, PD, SGE, SIZE, WRITE, Context, End, PyverbsRDMAError, SendWR, \
    connect, e

FORKING = multiprocessing.get_context("fork")
WORKERS = 4


def write_within(context, text):
    """Writes the text from one queue pair's memory to the other's; what arrived."""
    here, there = End(context), End(context)
    connect(context, here, there)
    with MR(here.pd, SIZE, LOCAL) as source, MR(there.pd, SIZE, LOCAL | WRITE) as target:
        source.write(text, len(text))
        wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, send_flags=e.IBV_SEND_SIGNALED,
                    sg=[SGE(source.buf, len(text), source.lkey)])
        wr.set_wr_rdma(target.rkey, target.buf)
        here.qp.post_send(wr)
        assert here.completion().status == e.IBV_WC_SUCCESS
        arrived = target.read(len(text), 0)
    for end in (here, there):
        end.qp.close()
        end.cq.close()
        end.pd.close()
    return arrived


def work(number):
    with Context(name=DEVICE) as context:
        return write_within(context, f"worker {number}")


class Inherited:
    context = None


def errno_of_inherited(_):
    try:
        PD(Inherited.context)
        return 0
    except PyverbsRDMAError as error:
        return error.error_code


class Workers(unittest.TestCase):
    def assert_workers_work(self):
        with FORKING.Pool(WORKERS) as pool:
            done = pool.map_async(work, range(3 * WORKERS)).get(timeout=40)
        self.assertEqual([bytes(text).decode() if isinstance(text, bytes) else text
                          for text in done], [f"worker {n}" for n in range(3 * WORKERS)])

    def test_workers_of_a_process_that_has_the_device_open_open_it_anew(self):
        with Context(name=DEVICE) as context:
            self.assertTrue(write_within(context, "before"))
            self.assert_workers_work()
            self.assertTrue(write_within(context, "after"))

    def test_workers_of_a_process_that_has_closed_the_device_open_it_anew(self):
        work(0)
        self.assert_workers_work()

    def test_what_a_worker_has_inherited_is_refused(self):
        Inherited.context = Context(name=DEVICE)
        with FORKING.Pool(1) as pool:
            self.assertEqual(pool.map_async(errno_of_inherited, [0]).get(timeout=40),
                             [errno.EOPNOTSUPP])
        Inherited.context.close()


if __name__ == "__main__":
    unittest.main()
