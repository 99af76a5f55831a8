"""Open MPI of the distribution over mtl ofi: 2 and 4 ranks, every user, direct copies or not.

Every job must be carried by Aperture: a job that quietly took another way is a failure.
"""
import re
import shutil
import unittest

from guest import DIRECT_COPIES, Guest, users

PYTHON = "/usr/bin/python3"  # the one that the distribution's mpi4py belongs to


# Each rank has both doors: what it sends takes libfabric's, while libibverbs lists and opens
# aperture0 and registers memory there.
BOTH_DOORS = """
from mpi4py import MPI
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
import pyverbs.enums as e
world = MPI.COMM_WORLD
names = [device.name.decode() for device in get_device_list()]
assert names == ["aperture0"], names
keys = set()
with Context(name="aperture0") as context, PD(context) as pd:
    for size in (1, 4096, 1 << 20):
        with MR(pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE) as mr:
            mr.write("x" * size, size)
            assert world.allreduce(size) == size * world.Get_size()
            keys.add(world.bcast(mr.read(1, 0) + bytes(size - 1), root=0))
assert len(keys) == 3
with open("/proc/self/maps", encoding="ascii") as maps:
    loaded = maps.read()
both = "libaperture-fi.so" in loaded and "/lib/aperture/libibverbs.so.1" in loaded
print("both doors" if both else loaded, flush=True)
"""


class OpenMpi(Guest):
    def mpirun(self, ranks: int, *command, **how) -> str:
        launcher = shutil.which("mpirun.openmpi") or "mpirun"
        return self.run_guest(launcher, "-n", str(ranks), *command, **how)

    def exchange(self, ranks: int, **how):
        output = self.mpirun(ranks, PYTHON, f"{self.tree}/mpi_exchange.py", **how)
        self.assertEqual(output.count("carried by libaperture-fi.so"), ranks, output)

    def test_everybody_exchanges_checked_messages_of_all_sizes(self):
        for user in users():
            for ranks in (2, 4):
                with self.subTest(user=user, ranks=ranks):
                    self.exchange(ranks, user=user)

    def test_exchange_where_direct_copies_are_denied(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.exchange(ranks, env={"APERTURE_CMA": "deny"})
                self.exchange(ranks, denied=DIRECT_COPIES)

    def test_netpipe_from_1_byte_to_4_mib_checks_what_it_receives(self):
        for denied in ((), DIRECT_COPIES):
            output = self.mpirun(2, "NPopenmpi", "-i", "-n", "20", "-u", "4194304",
                                 denied=denied)
            self.assertNotRegex(output, r"(?i)integrity check failed|error")

    def test_netpipe_measures_up_to_4_mib(self):
        output = self.mpirun(2, "NPopenmpi", "-n", "20", "-u", "4194304", "-p", "0")
        self.assertRegex(output, r"4194304 bytes")

    def test_benchmarks_of_mpi4py_run(self):
        for ranks in (2, 4):
            self.mpirun(ranks, PYTHON, "-m", "mpi4py.bench", "helloworld")
            ring = self.mpirun(ranks, PYTHON, "-m", "mpi4py.bench", "ringtest", "-n", "65536", "-l",
                               "100")
            self.assertIn(f"({ranks} processes, 65536 bytes)", ring)

    def test_ranks_that_use_libibverbs_as_well(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                printed = self.mpirun(ranks, PYTHON, "-c", BOTH_DOORS)
                self.assertEqual(printed.count("both doors"), ranks, printed)

    def test_the_launcher_started_within_aperture_run_twice_has_one_door(self):
        printed = self.run_guest("sh", "-c", 'exec "$0" run -- "$@"', f"{self.tree}/bin/aperture",
                                 shutil.which("mpirun.openmpi") or "mpirun", "-n", "2", "sh", "-c",
                                 "echo preload=$LD_PRELOAD; ibv_devices")
        self.assertEqual(len(re.findall(r"(?m)^ +aperture0\s", printed)), 2, printed)
        for preload in re.findall(r"preload=(\S*)", printed):
            self.assertEqual(preload.count("libibverbs.so.1"), 1, preload)

    def test_a_choice_of_the_user_is_kept_and_named(self):
        output = self.mpirun(2, PYTHON, f"{self.tree}/mpi_exchange.py",
                             env={"OMPI_MCA_pml": "ob1"})
        self.assertIn("OMPI_MCA_pml=ob1 is set, so Open MPI will not choose Aperture", output)
        self.assertEqual(len(re.findall("carried by something else", output)), 2, output)


if __name__ == "__main__":
    unittest.main()
