"""Open MPI of the distribution on two hosts: two ranks on each, over mtl ofi, and one-sided over
btl ofi. All else that could carry data is left out, and the bytes are counted at the interface.

    mpi_test.py BUILD_DIR [ONE_SIDED_CHECK]

mpirun starts its daemon on the other host by remote_shell.py, and each rank is started by `aperture
run`, as where the hosts have nothing in common but the network.
"""
import os
import shutil
import sys
import tempfile
import unittest

import players
from players import RUN, ways
from remote_shell import RemoteShell

ONE_SIDED = sys.argv.pop(1) if sys.argv[1:] and os.path.isfile(sys.argv[1]) else None
HERE = os.path.dirname(os.path.abspath(__file__))
EXCHANGE = f"{HERE}/../../examples/mpi_exchange.py"
PYTHON = "/usr/bin/python3"  # the one that the distribution's mpi4py belongs to
LAUNCHER = shutil.which("mpirun.openmpi") or "mpirun"

COLLECTIVES = """
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
for n in (1, 1000, 300_000):
    mine = bytearray((rank * 7 + i) % 251 for i in range(n))
    root = bytearray(mine if rank == 1 else n)
    world.Bcast(root, root=1)
    assert root == bytes((7 + i) % 251 for i in range(n))
    everybody = bytearray(n * size)
    world.Allgather(mine, everybody)
    assert everybody == b"".join(bytes((r * 7 + i) % 251 for i in range(n)) for r in range(size))
    turned = bytearray(n * size)
    world.Alltoall(everybody, turned)
    assert turned == b"".join(bytes((rank * 7 + i) % 251 for i in range(n)) for _ in range(size))
assert world.allreduce(rank) == size * (size - 1) // 2
assert world.scan(rank) == rank * (rank + 1) // 2
world.Barrier()
for name in world.gather(MPI.Get_processor_name()) or ():
    print("collectives right on", name)
"""


class OpenMpi(players.Clients):
    needed = (LAUNCHER,)

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="aperture-hosts-mpi-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        shell = RemoteShell(f"{self.folder}/shell", self.pair.client.start)
        self.addCleanup(shell.close)

    def carried(self) -> int:
        """Bytes that have left the first host."""
        host = self.pair.server
        with open(host.file(f"/sys/class/net/{host.device}/statistics/tx_bytes"),
                  encoding="ascii") as file:
            return int(file.read())

    def mpirun(self, ranks: int, *command, options=(), seconds=players.SECONDS) -> str:
        agent = f"{sys.executable} {HERE}/remote_shell.py {self.folder}/shell"
        network = "10.83.0.0/24"
        # of Open MPI 4, and of 5, which has another launcher
        env = {"OMPI_MCA_plm_rsh_agent": agent, "PRTE_MCA_plm_ssh_agent": agent,
               "OMPI_MCA_oob_tcp_if_include": network, "PRTE_MCA_prte_if_include": network,
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "HOME": self.folder, "TMPDIR": self.folder}
        hosts = ",".join(f"{host.ip}:{ranks // 2}" for host in self.pair.hosts)
        run = [RUN[0], "run", *options, "--"]
        return self.ended_well(self.pair.server.start(
            [LAUNCHER, "--host", hosts, "-n", str(ranks), "--map-by", "node", "-x", "APERTURE_LOG",
             *run, *command], env=env, cwd=self.folder), seconds)

    def test_messages_of_all_sizes_between_four_ranks_are_right(self):
        before = self.carried()
        printed = self.mpirun(4, PYTHON, EXCHANGE)
        self.assertEqual(printed.count("all correct, carried by libaperture-fi.so"), 4, printed)
        # half of the ranks have half of their peers on the other host
        self.assertGreater(self.carried() - before, 4 * 5_000_000)

    def test_collectives_of_four_ranks_are_right(self):
        printed = self.mpirun(4, PYTHON, "-c", COLLECTIVES)
        for host in self.pair.hosts:
            self.assertEqual(printed.count(f"collectives right on {host.device}"), 2, printed)

    def test_benchmarks_of_mpi4py_run(self):
        loops = ways("100", more=["2000"])[-1]
        ring = self.mpirun(4, PYTHON, "-m", "mpi4py.bench", "ringtest", "-n", "65536", "-l", loops)
        self.assertIn("(4 processes, 65536 bytes)", ring)

    def test_netpipe_checks_what_it_receives(self):
        self.needs("NPopenmpi")
        most = ways("65536", more=["4194304"])[-1]
        before = self.carried()
        printed = self.mpirun(2, "NPopenmpi", "-i", "-n", "20", "-u", most)
        self.assertIn("Integrity check passed", printed)
        self.assertNotRegex(printed, r"(?i)integrity check failed|error")
        self.assertGreater(self.carried() - before, 20 * int(most))

    def test_netpipe_measures(self):
        self.needs("NPopenmpi")
        printed = self.mpirun(2, "NPopenmpi", "-n", "10", "-u", "1048576", "-p", "0")
        self.assertRegex(printed, r"1048576 bytes +\d+ times --> +[\d.]+ Mbps")

    @unittest.skipUnless(ONE_SIDED, "there is no MPI compiler to build one_sided_check with")
    def test_one_sided_communication_gets_right_results(self):
        # windows that are dynamic deadlock in Open MPI before 4.1.5 between hosts, whatever carries
        # them: its osc rdma takes a lock twice (open-mpi/ompi pull request 10518)
        for ranks in ways(2, more=[4]):
            with self.subTest(ranks=ranks):
                before = self.carried()
                printed = self.mpirun(ranks, ONE_SIDED, "static", options=("--one-sided",),
                                      seconds=150)
                self.assertIn(f"one_sided_check: ok, {ranks} ranks", printed)
                self.assertEqual(printed.count("carried by libaperture-fi.so"), ranks, printed)
                self.assertGreater(self.carried() - before, 5_000_000)


if __name__ == "__main__":
    unittest.main()
