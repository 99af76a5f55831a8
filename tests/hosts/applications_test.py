"""Larger programs between two hosts: fi_pingpong, fio's rdma engine with what it moved verified,
ucx_perftest, and Gloo's collectives.

    applications_test.py BUILD_DIR [GLOO_CHECK]
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

import players
from players import RUN, SECONDS, ways

GLOO_CHECK = sys.argv.pop(1) if sys.argv[1:] and os.path.isfile(sys.argv[1]) else None
DEVICE = "aperture0"


class Pingpong(players.Clients):
    needed = ("fi_pingpong",)

    def rows(self, endpoint: str, sizes: tuple[str, ...], *options):
        command = ["fi_pingpong", "-p", "aperture", "-e", endpoint, "-c", "-I", "10", *options]
        _, printed = self.play(self.pair, [*command, "-B", str(self.port)],
                               [*command, "-P", str(self.port), "@server"], f"tcp:{self.port}")
        for size in sizes:
            self.assertRegex(printed, rf"(?m)^{size}\s+10\s", printed)
        self.port += 1

    def test_messages_of_all_sizes_are_right(self):
        for endpoint in ("rdm", "msg"):
            with self.subTest(endpoint=endpoint):
                self.rows(endpoint, ("64", "1k", "64k", "1m"), "-S", "all")
        self.rows("dgram", ("64", "1k", "4k"), "-S", "all")

    def test_messages_with_tags_are_right(self):
        self.rows("rdm", ("1m",), "-m", "tagged", "-S", "1048576")

    def test_fi_info_lists_what_it_lists_on_one_host(self):
        listed = self.call(self.pair, ["fi_info", "-p", "aperture"])
        for kind in ("RDM", "MSG", "DGRAM"):
            self.assertIn(f"type: FI_EP_{kind}", listed)


class Fio(players.Clients):
    """What each of its verbs can be made to verify: tests/guests/verbs_clients_test.py."""
    needed = ("fio",)
    BLOCK, DEPTH = 65536, 8

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="aperture-fio-")
        self.addCleanup(shutil.rmtree, self.folder)

    def move(self, verb: str, receiver: list[str], sender: list[str], *, blocks=256, block=BLOCK):
        common = ["--ioengine=rdma", f"--port={self.port}", f"--bs={block}",
                  f"--size={blocks * block}"]
        served, printed = self.play(
            self.pair, ["fio", "--name=receiver", "--rw=read", *common, *receiver],
            ["fio", "--name=sender", *common, "--hostname=@server", f"--verb={verb}", "--rw=write",
             *sender], f"cm:{self.port}", cwd=self.folder)
        self.assertIn("err= 0", printed)
        self.assertIn(f"issued rwts: total=0,{blocks},0,0", printed)
        self.port += 1
        return served

    def test_the_receiver_verifies_each_block_that_was_sent(self):
        for method, deep, flat, block in ways(("crc32c", 16, 4, 65536), more=[
                ("md5", 64, 8, 4096), ("sha256", 2, 1, 1 << 18)]):
            verify = f"--verify={method}"
            served = self.move("send", [verify, f"--iodepth={deep}"],
                               [verify, "--do_verify=0", f"--iodepth={flat}"], block=block)
            self.assertIn("issued rwts: total=256,0,0,0", served)

    def memory(self, name: str, content: bytes) -> str:
        with open(f"{self.folder}/{name}", "wb") as file:
            file.write(content)
        return f"{self.folder}/{name}"

    def holds(self, path: str, content: bytes) -> bool:
        """By fio without RDMA and without Aperture."""
        done = subprocess.run(
            ["fio", "--name=check", "--ioengine=sync", "--rw=read", f"--bs={self.BLOCK}",
             f"--size={self.DEPTH * self.BLOCK}", f"--filename={path}", "--verify=pattern",
             f"--verify_pattern=0x{content.hex()}"],
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS,
            check=False)
        return done.returncode == 0

    def test_what_was_written_and_what_was_read_is_right(self):
        content = random.randbytes(500)  # no divisor of the block: each place is known by its bytes
        depth = f"--iodepth={self.DEPTH}"
        target = self.memory("target", bytes(self.DEPTH * self.BLOCK))
        self.assertFalse(self.holds(target, content))
        self.move("write", [f"--mem=mmapshared:{target}", depth],
                  [depth, "--verify=pattern", f"--verify_pattern=0x{content.hex()}"])
        self.assertTrue(self.holds(target, content))
        landed = self.memory("landed", bytes(self.DEPTH * self.BLOCK))
        self.move("read", [f"--mem=mmapshared:{target}", depth],
                  [depth, f"--mem=mmapshared:{landed}", "--zero_buffers"])
        self.assertTrue(self.holds(landed, content))


class Ucx(players.Clients):
    needed = ("ucx_perftest",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # where it is built with MPI (Debian 13) it takes itself for a rank unless it is told not to
        asked = subprocess.run(["ucx_perftest", "-h"], capture_output=True, text=True,
                               check=False) if shutil.which("ucx_perftest") else None
        cls.alone = ["-P", "0"] if asked and "MPI mode" in asked.stdout + asked.stderr else []

    def test_each_measure_ends_with_a_figure(self):
        for transport, test, *options in ways(
                ("rc_verbs", "am_lat"), ("rc_verbs", "put_bw", "-s", "65536", "-D", "zcopy"),
                ("ud_verbs", "am_lat"), more=[
                    ("rc_verbs", "am_bw", "-s", "1024", "-D", "bcopy"), ("rc_verbs", "put_lat"),
                    ("rc_verbs", "get", "-s", "4096", "-D", "zcopy"),
                    ("ud_verbs", "am_bw", "-s", "1024", "-D", "bcopy")]):
            with self.subTest(transport=transport, test=test):
                command = ["ucx_perftest", "-d", f"{DEVICE}:1", "-x", transport, "-t", test, "-n",
                           "2000", "-w", "200", "-p", str(self.port), *self.alone, *options]
                _, printed = self.both(command, env={"UCX_LOG_LEVEL": "error"})
                self.assertIn("Final:", printed)
                self.port += 1

    def test_the_protocols_above_choose_it_by_its_name(self):
        # its connections are made by datagrams
        env = {"UCX_LOG_LEVEL": "error", "UCX_TLS": "rc_verbs,ud_verbs:aux",
               "UCX_NET_DEVICES": f"{DEVICE}:1"}
        for test, options in ways(("tag_lat", ()), more=[("tag_bw", ("-s", "1048576")),
                                                         ("ucp_put_lat", ()), ("ucp_get", ())]):
            with self.subTest(test=test):
                command = ["ucx_perftest", "-t", test, "-n", "500", "-w", "50", "-p",
                           str(self.port), *self.alone, *options]
                _, printed = self.both(command, env=env)
                self.assertIn("Final:", printed)
                self.port += 1


@unittest.skipUnless(GLOO_CHECK, "there is no libgloo to build gloo_check with")
class Gloo(players.Clients):
    def test_collectives_of_two_and_four_processes_are_right(self):
        folder = tempfile.mkdtemp(prefix="aperture-gloo-")
        self.addCleanup(shutil.rmtree, folder)
        for size in ways(2, more=[4]):
            os.mkdir(f"{folder}/{size}")
            group = [self.pair.hosts[rank % 2].start(
                [*RUN, GLOO_CHECK, str(rank), str(size), f"{folder}/{size}"])
                for rank in range(size)]
            for process in group:
                self.assertIn("gloo_check: ok", self.ended_well(process))


if __name__ == "__main__":
    unittest.main()
