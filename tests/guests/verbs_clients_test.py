"""Larger programs over aperture0, unmodified: qperf, fio's rdma engine,
ucx_perftest over rc_verbs and ud_verbs, and fi_pingpong over libfabric's own verbs provider.
"""
import os
import random
import unittest

from guest import Guest

DEVICE = "aperture0"


class Qperf(Guest):
    TESTS = ("rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_lat", "rc_rdma_read_bw",
             "rc_rdma_write_lat", "rc_rdma_write_bw", "rc_rdma_write_poll_lat",
             "rc_compare_swap_mr", "rc_fetch_add_mr", "uc_lat", "uc_bw", "uc_rdma_write_bw",
             "ud_lat", "ud_bw", "ver_rc_compare_swap", "ver_rc_fetch_add")
    BY_CONNECTION_MANAGER = ("rc_lat", "rc_bw", "rc_rdma_write_bw")

    def test_each_measure(self):
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
        self.assertIsNone(server.poll())


class Fio(Guest):
    def test_its_rdma_engine_moves_what_it_was_asked_to(self):
        # not its verb "send": it asks for no RNR retry, and sends before its other side receives
        for verb in ("write", "read"):
            with self.subTest(verb=verb):
                port = random.randrange(20000, 30000)
                common = ("--ioengine=rdma", f"--port={port}", "--bs=64k", "--size=16m",
                          "--iodepth=8")
                server = self.start("fio", "--name=target", "--rw=read", *common)
                self.wait_until_listening(port)
                printed = self.run_guest("fio", "--name=initiator", *common,
                                         "--hostname=127.0.0.1", f"--verb={verb}",
                                         "--rw=write")  # whoever connects
                self.assertIn("err= 0", printed)
                self.assertRegex(printed, r"io=16\.0MiB")
                self.output_of(server)


class Ucx(Guest):
    def measure(self, transport: str, test: str, *options):
        port = random.randrange(20000, 30000)
        settings = {"UCX_LOG_LEVEL": "error"}
        common = ("ucx_perftest", "-d", f"{DEVICE}:1", "-x", transport, "-t", test, "-n", "2000",
                  "-w", "200", "-p", str(port), *options)
        return self.run_pair(common, (*common, "127.0.0.1"), port, env=settings)[1]

    def test_over_rc_verbs(self):
        for test, options in (("am_lat", ()), ("am_bw", ("-s", "1024", "-D", "bcopy")),
                              ("put_lat", ()),
                              ("put_bw", ("-s", "65536", "-D", "zcopy")),
                              ("get", ("-s", "4096", "-D", "zcopy"))):
            with self.subTest(test=test):
                self.assertIn("Final:", self.measure("rc_verbs", test, *options))

    def test_over_ud_verbs(self):
        for test, options in (("am_lat", ()), ("am_bw", ("-s", "1024", "-D", "bcopy"))):
            with self.subTest(test=test):
                self.assertIn("Final:", self.measure("ud_verbs", test, *options))


class Libfabric(Guest):
    def test_fi_pingpong_over_its_own_verbs_provider(self):
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
