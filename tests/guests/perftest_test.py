"""Debian's perftest over aperture0: latency and bandwidth of every operation and transport."""
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
import unittest

from guest import SECONDS, Guest

DEVICE = "aperture0"
TRANSPORTS = {"write": ("RC", "UC", "XRC"), "read": ("RC", "XRC"),
              "send": ("RC", "UC", "UD", "XRC"), "atomic": ("RC", "XRC")}
LATENCY_ROW = r"(?m)^\s*{size}\s+\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+"
BANDWIDTH_ROW = r"(?m)^\s*{size}\s+\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+"


class Perftest(Guest):
    def run_one(self, operation: str, kind: str, *options, size=8, row=True, **how) -> str:
        port = random.randrange(20000, 30000)
        sized = () if operation == "atomic" else ("-s", str(size))
        common = (f"ib_{operation}_{kind}", "-d", DEVICE, "-p", str(port), "-F", *sized, *options)
        served, printed = self.run_pair(common, (*common, "127.0.0.1"), port, **how)
        if row:
            pattern = LATENCY_ROW if kind == "lat" else BANDWIDTH_ROW
            self.assertRegex(printed, pattern.format(size=size), served)
        return printed

    def each_transport(self, operation: str, *options):
        for transport in TRANSPORTS[operation]:
            for kind in ("lat", "bw"):
                with self.subTest(operation=operation, kind=kind, transport=transport,
                                  options=options):
                    self.run_one(operation, kind, "-c", transport, "-n", "1000", *options)

    def test_writes_run_over_each_transport(self):
        self.each_transport("write")

    def test_reads_run_over_each_transport(self):
        self.each_transport("read")

    def test_sends_run_over_each_transport(self):
        self.each_transport("send")

    def test_atomics_run_over_each_transport(self):
        for what in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
            self.each_transport("atomic", "-A", what)

    def test_large_messages_get_through(self):
        for operation in ("write", "read", "send"):
            with self.subTest(operation=operation):
                self.run_one(operation, "bw", "-n", "100", size=1 << 20)

    def test_each_operation_runs_with_rdma_cm(self):
        for operation in TRANSPORTS:
            for kind in ("lat", "bw"):
                with self.subTest(operation=operation, kind=kind):
                    self.run_one(operation, kind, "-R", "-n", "500")

    def test_64_queue_pairs_run_at_once(self):
        for operation in ("write", "send"):
            with self.subTest(operation=operation):
                self.run_one(operation, "bw", "-q", "64", "-n", "500")

    def test_both_directions_at_once_over_one_and_16_queue_pairs(self):
        for operation in ("write", "send", "read"):
            for options in (("-b",), ("-b", "-q", "16")):
                with self.subTest(operation=operation, options=options):
                    self.run_one(operation, "bw", "-n", "500", *options, size=4096)

    def test_events_serve_both_directions_at_once_and_16_queue_pairs(self):
        # So few that one look at a queue takes all of it: for each event perftest 4.5 looks once,
        # at 16 sends and rx_depth receives, and then sleeps on what it has left in the queue. (All
        # three options together leave more than that there; later versions look until it is empty.)
        for operation, options in (("send", ("-b", "-e", "-n", "500")),
                                   ("send", ("-e", "-q", "16", "-n", "100"))):
            with self.subTest(operation=operation, options=options):
                self.run_one(operation, "bw", *options, size=4096)

    def test_run_infinitely_is_cut_by_a_signal(self):
        port = random.randrange(20000, 30000)
        common = ("ib_write_bw", "-d", DEVICE, "-p", str(port), "-F", "--run_infinitely", "-D", "1")
        server = self.start(*common)
        self.wait_until_listening(port)
        client = self.start("stdbuf", "-oL", *common, "127.0.0.1")  # it dies without flushing
        self.wait_until_printed(client, rb"(?m)^\s*65536\s+[1-9]\d*\s")
        for process in (client, server):
            os.kill(process.pid, signal.SIGINT)
            self.ended(process)

    def wait_until_printed(self, process: subprocess.Popen, pattern: bytes):
        printed, end = b"", time.monotonic() + SECONDS
        while not re.search(pattern, printed):
            ready, _, _ = select.select([process.stdout], [], [], max(0, end - time.monotonic()))
            chunk = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                self.fail(f"{process.args} printed no {pattern!r}, but\n{printed.decode()}")
            printed += chunk

    def test_events_serve_instead_of_polling(self):
        self.run_one("send", "lat", "-e", "-n", "500")

    def test_a_client_sleeps_while_its_server_is_stopped(self):
        # reads are done directly, and go on
        for operation in ("send", "atomic"):
            with self.subTest(operation=operation):
                port = random.randrange(20000, 30000)
                sized = () if operation == "atomic" else ("-s", "4096")
                common = (f"ib_{operation}_bw", "-d", DEVICE, "-p", str(port), "-F", "-e", *sized,
                          "-n", "5000000")
                server = self.start(*common)
                self.wait_until_listening(port)
                client = self.start(*common, "127.0.0.1")
                time.sleep(0.7)
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(0.3)
                before = self.cpu_seconds(client)
                time.sleep(0.5)
                used = self.cpu_seconds(client) - before
                os.kill(server.pid, signal.SIGCONT)
                before = self.cpu_seconds(client)
                time.sleep(0.5)
                self.assertGreater(self.cpu_seconds(client), before, "it goes on")
                self.assertIsNone(client.poll(), "it ended too early to be seen asleep")
                print(f"{operation}: {used / 0.5:.0%} of a core while the server is stopped")
                self.assertLess(used, 0.2, "it did not sleep")

    def cpu_seconds(self, process: subprocess.Popen) -> float:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(unittest.main())
