"""Debian's ibverbs-utils over aperture0: ibv_devices, ibv_devinfo and the pingpongs.

Each pingpong checks its payload (-c) where it can, with and without completion events (-e), with
and without a global route (-g).
"""
import itertools
import os
import random
import unittest

from guest import DIRECT_COPIES, Guest, users

DEVICE = "aperture0"
XRC_FILE = "/tmp/xrc_domain"  # ibv_xsrq_pingpong makes it, and leaves it behind


class Ibverbs(Guest):
    def pingpong(self, kind: str, *options, ends=r"\d+ iters in [\d.]+ seconds", **how) -> str:
        port = random.randrange(20000, 30000)
        common = (f"ibv_{kind}_pingpong", "-d", DEVICE, "-p", str(port), *options)
        served, printed = self.run_pair(common, (*common, "127.0.0.1"), port, **how)
        for output in (served, printed):
            self.assertRegex(output, ends)
        return printed

    def each_way(self, kind: str, *options, routes=((), ("-g", "0")), **how):
        for events, route in itertools.product(((), ("-e",)), routes):
            with self.subTest(kind=kind, options=(*options, *events, *route)):
                self.pingpong(kind, *options, *events, *route, **how)

    def test_ibv_devices_lists_the_device(self):
        for user in users():
            self.assertRegex(self.run_guest("ibv_devices", user=user), rf"(?m)^\s*{DEVICE}\s")

    def test_ibv_devinfo_tells_of_windows_and_the_port(self):
        for user in users():
            told = self.run_guest("ibv_devinfo", "-v", "-d", DEVICE, user=user)
            self.assertIn("PORT_ACTIVE", told)
            self.assertIn("link_layer:\t\tEthernet", told)
            self.assertIn("MEM_WINDOW", told)
            self.assertIn("MEM_WINDOW_TYPE_2B", told)
            self.assertIn("RoCE v2", told)

    def test_rc_plays_each_way(self):
        self.each_way("rc", "-c")

    def test_rc_plays_with_messages_of_many_pieces(self):
        self.pingpong("rc", "-c", "-s", "1048576", "-n", "50")

    def test_rc_where_direct_copies_are_denied(self):
        self.pingpong("rc", "-c", env={"APERTURE_CMA": "deny"})
        self.pingpong("rc", "-c", denied=DIRECT_COPIES)

    def test_uc_plays_each_way(self):
        self.each_way("uc", "-c")

    def test_ud_plays_each_way(self):
        self.each_way("ud", "-c", "-s", "1024", routes=(("-g", "0"),))

    def test_ud_needs_a_route_as_on_every_ethernet_port(self):
        port = random.randrange(20000, 30000)
        common = ("ibv_ud_pingpong", "-d", DEVICE, "-p", str(port))
        serving = self.start(*common)
        self.wait_until_listening(port)
        ends = [self.ended(self.start(*common, "127.0.0.1")), self.ended(serving)]
        self.assertNotIn(0, [status for _, status in ends])
        self.assertIn("Failed to create AH", "".join(printed for printed, _ in ends))

    def test_shared_receives_play_each_way(self):
        self.each_way("srq", "-c")

    def test_xrc_plays_each_way(self):
        if not os.path.exists(XRC_FILE):
            self.addCleanup(lambda: os.path.exists(XRC_FILE) and os.unlink(XRC_FILE))
        self.each_way("xsrq", ends=r"(?m)^success$")

    def test_xrc_plays_with_messages_of_many_pieces(self):
        if not os.path.exists(XRC_FILE):
            self.addCleanup(lambda: os.path.exists(XRC_FILE) and os.unlink(XRC_FILE))
        self.pingpong("xsrq", "-s", "262144", "-n", "50", ends=r"(?m)^success$")


if __name__ == "__main__":
    unittest.main()
