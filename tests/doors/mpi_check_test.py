"""mpi_check.c under the distribution's Open MPI over mtl ofi, 2 and 4 ranks.

As an ordinary user and as root, with direct copies allowed and denied, with MPI_THREAD_MULTIPLE.

    mpi_check_test.py PROGRAM PROVIDER_FILE
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sandbox"))
import own_shm  # noqa: E402

PROGRAM, PROVIDER = sys.argv[1:3]
del sys.argv[1:3]
NOBODY = 65534
IS_ROOT = os.geteuid() == 0
own_shm.take()
LAUNCHER = shutil.which("mpirun.openmpi")
MCA = {"pml": "cm", "mtl": "ofi", "mtl_ofi_provider_include": "aperture",
       "rmaps_base_oversubscribe": "1", "btl": "self"}


@unittest.skipUnless(LAUNCHER, "openmpi-bin is not installed")
class MpiCheck(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # an ordinary user may not be able to read the build tree
        cls.tree = tempfile.mkdtemp(prefix="aperture-mpi-")
        os.chmod(cls.tree, 0o755)
        for path in (PROGRAM, PROVIDER):
            copy = shutil.copy(path, cls.tree)
            os.chmod(copy, 0o755)
        cls.program = os.path.join(cls.tree, os.path.basename(PROGRAM))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.tree)

    def run_ranks(self, ranks, *arguments, ordinary=True, **env):
        folder = tempfile.mkdtemp(prefix="aperture-mpi-cwd-")
        os.chmod(folder, 0o777)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        settings = {k: v for k, v in os.environ.items() if not k.startswith(("FI_", "OMPI_"))}
        settings |= {f"OMPI_MCA_{name}": value for name, value in MCA.items()}
        settings |= {"FI_PROVIDER_PATH": self.tree, "HOME": folder, "TMPDIR": folder,
                     "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                     "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", **env}
        who = {}
        if IS_ROOT and ordinary:
            who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        before = set(os.listdir("/dev/shm"))
        process = subprocess.Popen([LAUNCHER, "-n", str(ranks), self.program, *arguments],
                                   cwd=folder, env=settings, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   start_new_session=True, **who)
        try:
            output, _ = process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session made above
            output, _ = process.communicate()
            self.fail(f"no end within 90 s: {ranks} ranks, {arguments}, {env}\n{output[-3000:]}")
        self.assertEqual(process.returncode, 0, output[-3000:])
        self.assertIn(f"mpi_check: ok, {ranks} ranks", output)
        self.assertEqual(set(os.listdir("/dev/shm")) - before, set(), "left behind")

    def test_every_rank_is_right_as_an_ordinary_user(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.run_ranks(ranks)

    @unittest.skipUnless(IS_ROOT, "this is not root")
    def test_every_rank_is_right_as_root(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.run_ranks(ranks, ordinary=False)

    def test_where_direct_copies_are_denied(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.run_ranks(ranks, APERTURE_CMA="deny")

    def test_every_rank_is_right_with_threads(self):
        self.run_ranks(2, "--threads")

    def test_one_rank_is_right_alone(self):
        self.run_ranks(1)


if __name__ == "__main__":
    unittest.main()
