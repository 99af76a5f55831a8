"""The programs of rdmacm-utils that connect, and qperf, between two hosts: addresses are resolved
and queue pairs connected by librdmacm alone. What its datagram ids do is in datagrams_test.py.
"""
import os
import random
import shutil
import tempfile
import unittest

import players
from players import ways


class Ids(players.Clients):
    def test_rping_verifies_what_it_reads_and_writes(self):
        self.needs("rping")
        for size, count in ways((100, 20), (60000, 100), more=[(64, 1000), (4096, 500)]):
            common = ["-p", str(self.port), "-C", str(count), "-S", str(size), "-V"]
            common += ["-v"] if size == 100 else []
            served, printed = self.play(self.pair, ["rping", "-s", "-a", "0.0.0.0", *common],
                                        ["rping", "-c", "-a", "@server", *common],
                                        f"cm:{self.port}")
            self.assertNotRegex(printed, "mismatch|error")
            if size == 100:
                self.assertEqual(served.count("server ping data: rdma-ping-"), count)
                self.assertEqual(printed.count("ping data: rdma-ping-"), count)
            self.port += 1

    def test_rping_by_ipv6(self):
        self.needs("rping")
        common = ["-p", str(self.port), "-C", "10", "-V", "-v"]
        env = [{"FI_APERTURE_IFACE": host.device} for host in self.pair.hosts]
        serving = self.serve(self.pair, ["rping", "-s", "-a", "::", *common], f"cm:{self.port}",
                             env=env[0])
        printed = self.call(self.pair, ["rping", "-c", "-a", "@server6", *common], env=env[1])
        self.assertEqual(printed.count("ping data: rdma-ping-"), 10)
        self.ended_well(serving)

    def test_a_persistent_rping_serves_one_client_after_the_other(self):
        self.needs("rping")
        common = ["-p", str(self.port), "-C", "5", "-V", "-v"]
        serving = self.serve(self.pair, ["rping", "-s", "-P", "-a", "0.0.0.0", *common],
                             f"cm:{self.port}")
        for _ in range(3):
            printed = self.call(self.pair, ["rping", "-c", "-a", "@server", *common])
            self.assertEqual(printed.count("ping data: rdma-ping-"), 5)
        self.assertIsNone(serving.poll())

    def test_ucmatose_makes_many_connections_and_sends_on_each(self):
        self.needs("ucmatose")
        connections, messages = ways(("8", "20"), more=[("64", "100")])[-1]
        command = ["ucmatose", "-p", str(self.port), "-c", connections, "-C", messages, "-S",
                   "5000"]
        for said in self.both(command, "-s", "@server", by="cm"):
            self.assertIn("return status 0", said)
            self.assertIn("data transfers complete", said)

    def test_rdma_client_and_server_end_well(self):
        for name in ("rdma_client", "rdma_xclient"):
            self.needs(name)
            server = name.replace("client", "server")
            said = self.play(self.pair, [server, "-p", str(self.port)],
                             [name, "-s", "@server", "-p", str(self.port)], f"cm:{self.port}")
            self.assertIn(f"{server}: end 0", said[0])
            self.assertIn(f"{name}: end 0", said[1])
            self.port += 1


class Rsockets(players.Clients):
    def stream(self, program: str, *options):
        self.needs(program)
        with self.subTest(program=program, options=options):
            for said in self.both([program, "-p", str(self.port), *options], "-s", "@server",
                                  by="cm"):
                self.assertRegex(said, r"(?m)^custom +\S+ +\d+ +\d+ +\S+ +[\d.]+s +[\d.]+")
        self.port += 1

    def test_streams_verify_what_they_carry(self):
        # (polled asynchronously, -T a, rstream trips over the other's hanging up: on one host, too)
        for options in ways(("-T", "r", "-T", "v", "-S", "100000", "-I", "10", "-C", "10"), more=[
                ("-T", "v", "-S", "1048576", "-I", "8", "-C", "8"),
                ("-T", "b", "-T", "v", "-S", "64", "-I", "500", "-C", "1"),
                ("-T", "n", "-T", "v", "-S", "1000", "-I", "50", "-C", "50")]):
            self.stream("rstream", *options)
        self.stream("riostream", "-T", "v", "-S", "50000", "-I", "8", "-C", "8")

    def test_a_file_is_copied(self):
        self.needs("rcopy")
        folder = tempfile.mkdtemp(prefix="aperture-rcopy-")
        self.addCleanup(shutil.rmtree, folder)
        content = random.randbytes(3_000_000)
        with open(f"{folder}/source", "wb") as file:
            file.write(content)
        self.serve(self.pair, ["rcopy", "-p", str(self.port)], f"cm:{self.port}")
        printed = self.call(self.pair, ["rcopy", f"{folder}/source", f"@server:{folder}/copy", "-p",
                                        str(self.port)])
        self.assertIn(f"{len(content)} bytes in", printed)
        with open(f"{folder}/copy", "rb") as file:
            self.assertEqual(file.read(), content)


class Qperf(players.Clients):
    """Without -cm it addresses by LID, which is to say: this host."""
    needed = ("qperf",)
    FIGURE = r"(?m)(latency|bw|msg_rate) += +[\d.]+ \S+"

    def test_each_measure_ends_with_a_figure(self):
        serving = self.serve(self.pair, ["qperf", "-lp", str(self.port)], f"tcp:{self.port}")
        for name in ways("rc_lat", "rc_bw", "rc_rdma_write_bw", "rc_rdma_read_lat",
                         "ver_rc_compare_swap", more=[
                             "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_lat",
                             "rc_rdma_write_poll_lat", "rc_compare_swap_mr", "rc_fetch_add_mr",
                             "ver_rc_fetch_add"]):
            with self.subTest(name=name):
                printed = self.call(self.pair, ["qperf", "@server", "-lp", str(self.port), "-cm",
                                                "1", "-t", "1", name])
                if not name.startswith("ver_"):
                    self.assertRegex(printed, self.FIGURE)
        self.assertIsNone(serving.poll())


if __name__ == "__main__":
    os.umask(0o022)
    unittest.main()
