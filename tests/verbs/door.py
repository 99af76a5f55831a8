"""What the tests of the verbs door share: running programs under `aperture run`, or with the door's
library found in another way, each with a time limit and without leaving anything behind."""
import os
import subprocess
import sys
import tempfile
import unittest

BUILD = sys.argv.pop(1)
APERTURE = f"{BUILD}/bin/aperture"
LIBRARY = f"{BUILD}/lib/aperture/libibverbs.so.1"
SECONDS = 60


class Door(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="aperture-verbs-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def environment(self, **more) -> dict:
        dropped = ("LD_PRELOAD", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "ASAN_OPTIONS")
        clean = {k: v for k, v in os.environ.items() if k not in dropped}
        return {**clean, "TMPDIR": self.folder, **more}

    def call(self, *command, env=None) -> subprocess.CompletedProcess:
        return subprocess.run(command, env=env or self.environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SECONDS, check=False)

    def run_in(self, *command, env=None) -> subprocess.CompletedProcess:
        """Under `aperture run`."""
        return self.call(APERTURE, "run", "--", *command, env=env)

    def real_folder(self) -> str:
        """A folder with the link to the real library, as `aperture run` makes it."""
        found = self.run_in("sh", "-c", "echo $LD_LIBRARY_PATH")
        self.assertEqual(found.returncode, 0, found.stderr)
        return found.stdout.strip()


def main_inside(path: str):
    """Runs the tests of that file inside a process that has the door: this one, started again."""
    if os.environ.get("APERTURE_VERBS_INSIDE") == "1":
        unittest.main()
    with tempfile.TemporaryDirectory(prefix="aperture-verbs-") as folder:
        clean = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
        settings = {**clean, "APERTURE_VERBS_INSIDE": "1", "TMPDIR": folder}
        done = subprocess.run([APERTURE, "run", "--", "/usr/bin/python3", path, BUILD,
                               *sys.argv[1:]], env=settings, timeout=300, check=False)
        sys.exit(done.returncode)
