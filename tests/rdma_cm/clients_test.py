"""The programs of rdmacm-utils, unmodified, over the verbs door's libibverbs: `clients_test.py
connections` or `clients_test.py datagrams`. APERTURE_VERBS names the library.
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sandbox"))
import listeners  # noqa: E402

LIMIT_S = 40


def real_libibverbs():
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    return re.search(r"libibverbs\.so\.1 .*=> (\S+)", listing.stdout).group(1)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        os.symlink(real_libibverbs(), f"{self.folder}/libaperture-real-ibverbs.so.1")
        self.env = dict(os.environ, LD_PRELOAD=os.environ["APERTURE_VERBS"], APERTURE_LOG="warn",
                        LD_LIBRARY_PATH=self.folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def tearDown(self):
        shutil.rmtree(self.folder)

    def start(self, *words):
        return subprocess.Popen([str(word) for word in words], env=self.env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish(self, process):
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            self.fail(f"{process.args} hangs; it said:\n{out}")
        self.assertEqual(process.returncode, 0, f"{process.args} said:\n{out}")
        return out

    def both(self, server, client, wait=True):
        """What the two sides printed, both with exit code 0."""
        passive = self.start(*server)
        deadline = time.monotonic() + LIMIT_S
        while wait and not listeners.by_rdma_cm(self.port) and time.monotonic() < deadline:
            self.assertIsNone(passive.poll())
            time.sleep(0.02)
        if not wait:
            time.sleep(1)
        active = self.start(*client)
        try:
            return self.finish(passive), self.finish(active)
        finally:
            for process in (passive, active):
                if process.poll() is None:
                    process.kill()
                    process.communicate()


class Connections(Case):
    def test_rping_verifies_its_data(self):
        common = ("-a", "127.0.0.1", "-p", self.port, "-C", 10, "-V", "-v")
        _, said = self.both(("rping", "-s") + common, ("rping", "-c") + common)
        self.assertEqual(said.count("ping data: rdma-ping-"), 10)

    def test_rping_says_that_nobody_is_there(self):
        client = self.start("rping", "-c", "-a", "127.0.0.1", "-p", self.port, "-C", 1)
        out, _ = client.communicate(timeout=LIMIT_S)
        self.assertIn("RDMA_CM_EVENT_REJECTED", out)

    def test_ucmatose_makes_many_connections(self):
        options = ("-p", self.port, "-c", 8)
        for said in self.both(("ucmatose",) + options,
                              ("ucmatose", "-s", "127.0.0.1") + options):
            self.assertIn("return status 0", said)

    def test_rdma_client_and_server_end_well(self):
        server, client = self.both(("rdma_server", "-p", self.port),
                                   ("rdma_client", "-s", "127.0.0.1", "-p", self.port))
        self.assertIn("rdma_server: end 0", server)
        self.assertIn("rdma_client: end 0", client)

    def test_rstream_verifies_large_transfers(self):
        options = ("-p", self.port, "-S", 1 << 20, "-I", 8, "-C", 8, "-T", "v")
        _, said = self.both(("rstream", "-b", "127.0.0.1") + options,
                            ("rstream", "-s", "127.0.0.1") + options)
        self.assertIn("Gb/sec", said)


class Datagrams(Case):
    """Either program has one port, which whoever else runs this test on this host needs as well."""

    def setUp(self):
        super().setUp()
        # an abstract name: one at a time in this network namespace, whatever root they have
        self.turn = socket.socket(socket.AF_UNIX)
        self.addCleanup(self.turn.close)
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                self.turn.bind("\0aperture-test-datagram-clients")
                return
            except OSError:
                self.assertLess(time.monotonic(), deadline, "another run has the port for so long")
                time.sleep(0.1)

    def test_udaddy_ends_well_on_both_sides(self):
        for said in self.both(("udaddy", "-b", "127.0.0.1"),
                              ("udaddy", "-s", "127.0.0.1"), wait=False):
            self.assertIn("return status 0", said)

    def test_mckey_sends_to_a_group(self):
        options = ("-m", "239.255.7.1", "-b", "127.0.0.1")
        for said in self.both(("mckey",) + options, ("mckey", "-s") + options, wait=False):
            self.assertIn("return status 0", said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], sys.argv[1].capitalize()], verbosity=2)
