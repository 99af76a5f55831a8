"""ibverbs-utils and perftest between two hosts: every transport, with payloads checked where the
program does, by polling and by events, over one queue pair and over 16, and by rdma_cm.
"""
import os
import unittest

import players
from players import ways

DEVICE = "aperture0"
TRANSPORTS = {"send": ("RC", "UC", "UD", "XRC"), "write": ("RC", "UC", "XRC"),
              "read": ("RC", "XRC"), "atomic": ("RC", "XRC")}
ROW = r"(?m)^\s*{size}\s+{count}\s+[\d.]+\s+[\d.]+\s+[\d.]+"  # of either kind
# ibv_xsrq_pingpong and perftest make them, and leave them behind: as whoever they run as here, so
# that the next user's would find them in the way.
XRC_FILES = [f"/tmp/xrc_domain{end}" for end in ("", "_client", "_server")]


class XrcClients(players.Clients):
    def setUp(self):
        super().setUp()
        for path in XRC_FILES:
            if not os.path.exists(path):
                self.addCleanup(lambda path=path: os.path.exists(path) and os.unlink(path))


class Pingpongs(XrcClients):
    def pingpong(self, kind: str, *options, ends=r"\d+ iters in [\d.]+ seconds"):
        self.needs(f"ibv_{kind}_pingpong")
        command = [f"ibv_{kind}_pingpong", "-d", DEVICE, "-g", "0", "-p", str(self.port), *options]
        with self.subTest(kind=kind, options=options):
            for printed in self.both(command):
                self.assertRegex(printed, ends)
        self.port += 1

    def test_reliable_and_unreliable_connections_play(self):
        for options in ways(("-c",), ("-c", "-e"), more=[
                (), ("-e",), ("-c", "-n", "50", "-s", "1048576"), ("-c", "-m", "256", "-r", "4")]):
            self.pingpong("rc", *options)
        self.pingpong("rc", "-c", "-n", "20", "-s", "1048576")
        for options in ways(("-c", "-e"), more=[("-c",), (), ("-c", "-s", "100000", "-n", "100")]):
            self.pingpong("uc", *options)

    def test_shared_receives_play(self):
        for options in ways(("-c",), more=[("-e",), ("-c", "-e"), ("-c", "-q", "3", "-s", "64")]):
            self.pingpong("srq", *options)

    def test_extended_connections_play(self):
        for options in ways((), more=[("-e",), ("-s", "262144", "-n", "50")]):
            self.pingpong("xsrq", "-c", "1", *options, ends=r"(?m)^success$")

    def test_datagrams_play(self):
        for options in ways(("-c", "-e"), more=[("-c",), ("-c", "-n", "5000")]):
            self.pingpong("ud", "-s", "1024", *options)


class Perftest(XrcClients):
    def measure(self, operation: str, kind: str, *options, count=500, size: int | None = None,
                queue_pairs=1):
        """Latency ("lat") or bandwidth ("bw") of so many operations of each queue pair."""
        self.needs(f"ib_{operation}_{kind}")
        if queue_pairs > 1:
            options += ("-q", str(queue_pairs))
        sized = () if size is None or operation == "atomic" else ("-s", str(size))
        command = [f"ib_{operation}_{kind}", "-d", DEVICE, "-x", "0", "-F", "-p", str(self.port),
                   "-n", str(count), *sized, *options]
        size = 8 if operation == "atomic" else size or (2 if kind == "lat" else 65536)
        with self.subTest(operation=operation, kind=kind, options=options):
            _, printed = self.both(command, by="cm" if "-R" in options else "tcp")
            self.assertRegex(printed, ROW.format(size=size, count=count * queue_pairs))
        self.port += 1

    def test_each_operation_has_a_latency(self):
        for operation, transports in TRANSPORTS.items():
            for transport in transports[:len(ways(0, more=[1] * len(transports)))]:
                self.measure(operation, "lat", "-c", transport)

    def test_each_operation_has_a_bandwidth_over_each_transport(self):
        # the connections have their latency (above) and the case below
        for operation, transports in TRANSPORTS.items():
            for transport in ways(*transports[1:], more=transports[:1]):
                size = 4096 if transport == "UD" else None
                self.measure(operation, "bw", "-c", transport, count=200, size=size)

    def test_both_directions_at_once_over_16_queue_pairs(self):
        for operation in ("send", "write", "read"):
            for options in ways(("-b",), more=[()]):
                self.measure(operation, "bw", *options, count=200, size=4096, queue_pairs=16)
            if players.ALL:
                self.measure(operation, "bw", "-b", count=200)
                self.measure(operation, "bw", "-b", "-c", "XRC", count=200, queue_pairs=16)
        self.measure("atomic", "bw", "-b", count=100, queue_pairs=16)

    def test_messages_of_a_megabyte(self):
        for operation in ways("write", more=["send", "read"]):
            self.measure(operation, "bw", count=50, size=1 << 20)

    def test_events_serve_instead_of_polling(self):
        # so few that one look takes all that is there (tests/guests/perftest_test.py says why)
        self.measure("send", "lat", "-e")
        if players.ALL:
            for operation in ("send", "read", "atomic"):
                self.measure(operation, "bw", "-e", size=4096)
            self.measure("read", "lat", "-e")
            self.measure("send", "bw", "-e", "-b", size=4096)
            self.measure("send", "bw", "-e", count=100, size=4096, queue_pairs=16)

    def test_queue_pairs_that_rdma_cm_connects(self):
        for operation, kind in ways(("send", "lat"), ("write", "bw"), more=[
                ("send", "bw"), ("write", "lat"), ("read", "lat"), ("read", "bw"),
                ("atomic", "lat"), ("atomic", "bw")]):
            self.measure(operation, kind, "-R", count=200)
        if players.ALL:
            self.measure("write", "bw", "-R", "-b", count=200, queue_pairs=16)
            self.measure("send", "bw", "-R", "-c", "UD", count=200, size=1024)


if __name__ == "__main__":
    unittest.main()
