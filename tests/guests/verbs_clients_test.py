"""Larger programs over aperture0, unmodified: qperf, fio's rdma engine, ucx_perftest over rc_verbs
and ud_verbs, a listener of UCX, and fi_pingpong over libfabric's own verbs provider.
"""
import os
import random
import signal
import subprocess
import unittest

from guest import SECONDS, Guest

DEVICE = "aperture0"


class Qperf(Guest):
    TESTS = ("rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_lat", "rc_rdma_read_bw",
             "rc_rdma_write_lat", "rc_rdma_write_bw", "rc_rdma_write_poll_lat",
             "rc_compare_swap_mr", "rc_fetch_add_mr", "uc_lat", "uc_bw", "uc_rdma_write_bw",
             "ver_rc_compare_swap", "ver_rc_fetch_add")
    BY_CONNECTION_MANAGER = ("rc_lat", "rc_bw", "rc_rdma_write_bw")

    def test_each_measure_ends_with_a_figure(self):
        port = random.randrange(20000, 30000)
        server = self.start("qperf", "-lp", str(port))
        self.wait_until_listening(port)
        runs = [(name, ()) for name in self.TESTS]
        runs += [(name, ("-cm", "1")) for name in self.BY_CONNECTION_MANAGER]
        for name, options in runs:
            with self.subTest(name=name, options=options):
                printed = self.run_guest("qperf", "127.0.0.1", "-lp", str(port), *options, "-t",
                                         "1", name)
                if not name.startswith("ver_"):
                    self.assertRegex(printed, r"(?m)(latency|bw|msg_rate) +=")
        # its address handles for datagrams are of LIDs, which no Ethernet port takes
        printed, _ = self.ended(self.start("qperf", "127.0.0.1", "-lp", str(port), "-t", "1",
                                           "ud_lat"))
        self.assertIn("failed to create address handle", printed)
        self.assertIsNone(server.poll())


class Fio(Guest):
    """Its rdma engine, with every byte verified by fio.

    Only the receiver of its verb "send" can be told to verify what arrives. For its verbs "write"
    and "read" no hardware would do: the engine is FIO_UNIDIR, for which fio leaves out its
    verification phase, and the other end waits for one message that says "over" and completes no
    block, so it looks at none. There the buffers are mappings of files (mem=mmapshared), and fio
    verifies those, with its engine "sync", when the transfer is over. Which slot of the target a
    block goes to is of fio's choosing, so all blocks hold the same pattern.
    """
    BLOCK, DEPTH = 65536, 8

    def pair(self, verb: str, receiver: tuple, sender: tuple, *, blocks=256, block=BLOCK):
        """What the end that listens printed, and its exit status; the other end has succeeded."""
        port = random.randrange(20000, 30000)
        common = ("--ioengine=rdma", f"--port={port}", f"--bs={block}", f"--size={blocks * block}")
        server = self.start("fio", "--name=receiver", "--rw=read", *common, *receiver)
        self.wait_until_listening(port)
        printed = self.run_guest("fio", "--name=sender", *common, "--hostname=127.0.0.1",
                                 f"--verb={verb}", "--rw=write", *sender)  # whoever connects
        self.assertIn("err= 0", printed)
        self.assertIn(f"issued rwts: total=0,{blocks},0,0", printed)
        return self.ended(server)

    def test_the_receiver_verifies_each_block_that_was_sent(self):
        # the receiver is the deeper one, as fio's HOWTO asks for
        for method, deep, flat, block in (("crc32c", 16, 4, 65536), ("md5", 64, 8, 4096),
                                          ("sha256", 2, 1, 1 << 18)):
            with self.subTest(method=method):
                verify = f"--verify={method}"
                printed, status = self.pair("send", (verify, f"--iodepth={deep}"),
                                            (verify, "--do_verify=0", f"--iodepth={flat}"),
                                            block=block)
                self.assertEqual(status, 0, printed)
                self.assertIn("issued rwts: total=256,0,0,0", printed)

    # In these the receiver is as deep as there are blocks: it stops at the first that is wrong, and
    # a sender whose messages nobody takes waits for ever, in fio's own loop.
    def test_the_receiver_notices_one_wrong_bit(self):
        printed, status = self.pair(
            "send", ("--verify=pattern", "--verify_pattern=0x5a5a5a5a", "--iodepth=16"),
            ("--verify=pattern", "--verify_pattern=0x5a5a5a5b", "--do_verify=0", "--iodepth=4"),
            blocks=16)
        self.assertNotEqual(status, 0, printed)
        self.assertIn("got pattern '5b', wanted '5a'. Bad bits 1", printed)

    def test_the_receiver_notices_blocks_that_are_not_those_it_expects(self):
        verify = "--verify=crc32c"
        printed, status = self.pair(
            "send", (verify, "--iodepth=16"),
            (verify, "--do_verify=0", "--iodepth=4", f"--offset={self.BLOCK}"), blocks=16)
        self.assertNotEqual(status, 0, printed)
        self.assertIn(f"bad header offset {self.BLOCK}, wanted 0", printed)

    def memory(self, name: str, content: bytes) -> str:
        path = f"{self.folder}/{name}"
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o666)
        return path

    def verify_file(self, path: str, *method: str) -> tuple[int, str]:
        """Of fio without RDMA and without Aperture."""
        done = subprocess.run(
            ["fio", "--name=check", "--ioengine=sync", "--rw=read", f"--bs={self.BLOCK}",
             f"--size={self.DEPTH * self.BLOCK}", f"--filename={path}", *method],
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=SECONDS, check=False)
        return done.returncode, done.stdout + done.stderr

    def move(self, verb: str, target: str, *sender: str):
        depth = f"--iodepth={self.DEPTH}"
        printed, status = self.pair(verb, (f"--mem=mmapshared:{target}", depth), (depth, *sender))
        self.assertEqual(status, 0, printed)

    def pattern(self, content: bytes) -> tuple[str, str]:
        return "--verify=pattern", f"--verify_pattern=0x{content.hex()}"

    def test_what_was_written_is_in_the_memory_of_the_target(self):
        content = random.randbytes(500)  # no divisor of the block: each place is known by its bytes
        target = self.memory("target", bytes(self.DEPTH * self.BLOCK))
        self.assertNotEqual(self.verify_file(target, *self.pattern(content))[0], 0, "not yet")
        self.move("write", target, *self.pattern(content))
        status, printed = self.verify_file(target, *self.pattern(content))
        self.assertEqual(status, 0, printed)
        flipped = bytes([content[0] ^ 1]) + content[1:]
        status, printed = self.verify_file(target, *self.pattern(flipped))
        self.assertNotEqual(status, 0, printed)

    def test_what_was_read_is_what_the_memory_of_the_target_held(self):
        content = random.randbytes(500)
        block = (content * (self.BLOCK // len(content) + 1))[:self.BLOCK]
        target = self.memory("target", block * self.DEPTH)
        landed = self.memory("landed", bytes(self.DEPTH * self.BLOCK))
        sender = (f"--mem=mmapshared:{landed}", "--zero_buffers")
        self.move("read", target, *sender)
        status, printed = self.verify_file(landed, *self.pattern(content))
        self.assertEqual(status, 0, printed)
        wrong = bytearray(block * self.DEPTH)
        wrong[3 * self.BLOCK + 7777] ^= 1  # one bit of one block
        target = self.memory("target", wrong)
        self.move("read", target, *sender)
        status, printed = self.verify_file(landed, *self.pattern(content))
        self.assertNotEqual(status, 0, printed)
        self.assertIn("Bad bits 1", printed)


class Ucx(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # where it is built with MPI (Debian 13) it takes itself for a rank unless it is told not to
        asked = subprocess.run(["ucx_perftest", "-h"], capture_output=True, text=True, check=False)
        cls.alone = ("-P", "0") if "MPI mode" in asked.stdout + asked.stderr else ()

    def measure(self, transport: str, test: str, *options):
        port = random.randrange(20000, 30000)
        settings = {"UCX_LOG_LEVEL": "error"}
        common = ("ucx_perftest", "-d", f"{DEVICE}:1", "-x", transport, "-t", test, "-n", "2000",
                  "-w", "200", "-p", str(port), *self.alone, *options)
        return self.run_pair(common, (*common, "127.0.0.1"), port, env=settings)[1]

    def test_each_measure_runs_over_rc_verbs(self):
        for test, options in (("am_lat", ()), ("am_bw", ("-s", "1024", "-D", "bcopy")),
                              ("put_lat", ()),
                              ("put_bw", ("-s", "65536", "-D", "zcopy")),
                              ("get", ("-s", "4096", "-D", "zcopy"))):
            with self.subTest(test=test):
                self.assertIn("Final:", self.measure("rc_verbs", test, *options))

    def test_each_measure_runs_over_ud_verbs(self):
        for test, options in (("am_lat", ()), ("am_bw", ("-s", "1024", "-D", "bcopy"))):
            with self.subTest(test=test):
                self.assertIn("Final:", self.measure("ud_verbs", test, *options))

    def test_a_listener_of_rdma_cm_and_of_tcp_under_one_number(self):
        """UCX listens by both; clients of either are served, and the server checks the data."""
        port = random.randrange(20000, 30000)
        settings = {"UCX_LOG_LEVEL": "error", "UCX_TLS": "rc,ud,tcp,self",
                    "UCX_NET_DEVICES": f"{DEVICE}:1,lo"}

        def by(transports):
            return {**settings, "UCX_SOCKADDR_TLS_PRIORITY": transports}

        server = self.start("io_demo", "-q", "-p", str(port), env=by("rdmacm,tcp"))
        self.wait_until_listening(port, by=all)
        for transports in ("rdmacm,tcp", "rdmacm", "tcp"):
            with self.subTest(client=transports):
                printed = self.run_guest("io_demo", "-q", "-i", "200", "-o", "read,write",
                                         f"127.0.0.1:{port}", env=by(transports))
                self.assertIn("Client exit with status 'OK'", printed)
        server.send_signal(signal.SIGINT)
        printed = self.output_of(server)
        self.assertNotIn("ERROR", printed)


class Libfabric(Guest):
    def test_fi_pingpong_runs_over_its_own_verbs_provider(self):
        port = random.randrange(20000, 30000)
        settings = {"FI_PROVIDER": "verbs"}
        common = ("fi_pingpong", "-p", "verbs", "-e", "msg", "-c", "-S", "all", "-I", "20")
        _, printed = self.run_pair((*common, "-B", str(port)),
                                   (*common, "-P", str(port), "127.0.0.1"), port, env=settings)
        for size in ("64", "1k", "64k", "1m"):
            self.assertRegex(printed, rf"(?m)^{size}\s+20\s")


if __name__ == "__main__":
    os.umask(0o022)
    unittest.main()
