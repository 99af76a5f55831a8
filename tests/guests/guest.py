"""What the tests of guests share: a copy of the build that any user may read, and running in it.

Each program runs under `aperture run` in a session of its own, with a time limit, as root or as an
ordinary user, in a folder of its own; what it leaves behind in /dev/shm, which is of its own where
that is permitted, fails the test.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{SOURCE}/tests/sandbox")
import denied_calls  # noqa: E402
import listeners  # noqa: E402
import own_shm  # noqa: E402

BUILD = sys.argv.pop(1)
SECONDS = 60
NOBODY = 65534
MARK = "APERTURE_TEST_GUEST_OF"  # in the environment of whatever a test starts: that test's folder
DIRECT_COPIES = ("process_vm_readv", "process_vm_writev")  # what a container may refuse
IS_ROOT = os.geteuid() == 0
own_shm.take()


def users() -> list[str]:
    """Everybody whom this process can be: an ordinary user always, root if it is root."""
    return ["ordinary", "root"] if IS_ROOT else ["ordinary"]


def before_exec(*denied: str):
    deny = denied_calls.deny(*denied)

    def in_child():
        # a shell that starts us in the background has us ignore it, and the guest would too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        deny()

    return in_child


class Guest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = tempfile.mkdtemp(prefix="aperture-guest-")
        os.chmod(cls.tree, 0o755)
        for part in ("bin/aperture", "lib/libfabric/libaperture-fi.so",
                     "lib/aperture/libibverbs.so.1"):
            target = f"{cls.tree}/{part}"
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            shutil.copy(f"{BUILD}/{part}", target)
            os.chmod(target, 0o755)
        shutil.copy(f"{SOURCE}/examples/mpi_exchange.py", cls.tree)
        os.chmod(f"{cls.tree}/mpi_exchange.py", 0o644)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.tree)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="aperture-guest-cwd-")
        os.chmod(self.folder, 0o777)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        before = set(os.listdir("/dev/shm"))
        self.addCleanup(lambda: self.assertEqual(self.left_behind(before), set()))

    @staticmethod
    def left_behind(before: set[str]) -> set[str]:
        """What has stayed in /dev/shm: not what somebody is using right now, nor the segments of
        Open MPI 5, which a job of another test leaves there when it is killed."""
        end = time.monotonic() + SECONDS
        while True:
            left = {name for name in os.listdir("/dev/shm")
                    if name not in before and not name.startswith("sm_segment.")}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.5)

    def start(self, *command, user="ordinary", env=None, denied=(), options=()) -> subprocess.Popen:
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("FI_", "OMPI_", "PRTE_"))}
        settings = {**clean, "HOME": self.folder, "TMPDIR": self.folder, MARK: self.folder,
                    **(env or {})}
        identity = {}
        if IS_ROOT and user == "ordinary":
            identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        process = subprocess.Popen(
            [f"{self.tree}/bin/aperture", "run", *options, "--", *command],
            cwd=self.folder, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            preexec_fn=before_exec(*denied), **identity)
        self.addCleanup(self.end, process)
        return process

    def end(self, process: subprocess.Popen):
        self.kill(process)
        process.wait()
        process.stdout.close()

    def kill(self, process: subprocess.Popen):
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the session that start() made, nobody else's
        except ProcessLookupError:
            pass
        # and what has left for a session of its own, as fio's jobs do: each carries the mark
        mark = f"{MARK}={self.folder}".encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        os.kill(int(pid), signal.SIGKILL)
            except OSError:  # it is somebody else's, or gone
                pass

    def ended(self, process: subprocess.Popen, seconds=SECONDS) -> tuple[str, int]:
        """What it printed, and its exit status."""
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill(process)
            output, _ = process.communicate()
            self.fail(f"no end within {seconds} s: {process.args}\n{output[-4000:]}")
        return output, process.returncode

    def output_of(self, process: subprocess.Popen, seconds=SECONDS) -> str:
        output, status = self.ended(process, seconds)
        self.assertEqual(status, 0, f"{process.args}\n{output[-4000:]}")
        return output

    def wait_until_listening(self, port: int, by=any, server: subprocess.Popen | None = None):
        """By TCP or as an rdma_cm id."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and (server is None or server.poll() is None):
            if by((listeners.by_tcp(port), listeners.by_rdma_cm(port))):
                return
            time.sleep(0.05)
        said = "" if server is None or server.poll() is None else self.ended(server)[0]
        self.fail(f"nobody listens on port {port}\n{said[-4000:]}")

    def run_pair(self, server: tuple, client: tuple, port: int, *, seconds=SECONDS, **how):
        """Runs a server, and a client once the server listens: what both printed."""
        serving = self.start(*server, **how)
        self.wait_until_listening(port, server=serving)
        printed = self.run_guest(*client, seconds=seconds, **how)
        return self.output_of(serving, seconds), printed

    def run_guest(self, *command, seconds=SECONDS, **how) -> str:
        return self.output_of(self.start(*command, **how), seconds)
