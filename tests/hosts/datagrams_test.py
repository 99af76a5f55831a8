"""Datagrams between two hosts: unmodified programs of the distribution, and what is dropped where
other hosts are not served.
"""
import re
import shutil
import subprocess
import sys
import unittest

import two_hosts

BUILD = sys.argv.pop(1)
two_hosts.enter()
RUN = [f"{BUILD}/bin/aperture", "run", "--"]
SECONDS = 60


class BetweenHosts(unittest.TestCase):
    def hosts(self, **how) -> two_hosts.TwoHosts:
        made = two_hosts.TwoHosts(env={"APERTURE_LOG": "warn"}, **how)
        self.addCleanup(made.close)
        return made

    def needs(self, tool: str):
        if not shutil.which(tool):
            self.skipTest(f"{tool} is not installed")

    def ended(self, process: subprocess.Popen, seconds=SECONDS) -> tuple[int, str]:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail(f"no end within {seconds} s: {process.args}")
        return process.returncode, printed

    def play(self, hosts, server: list[str], client: list[str], wait: str) -> tuple[str, str]:
        """What the two printed, both of which end well."""
        serving = hosts.server.start(hosts.spelt([*RUN, *server]))
        self.assertTrue(hosts.server.wait_for(wait, serving), wait)
        ends = {"client": self.ended(hosts.client.start(hosts.spelt([*RUN, *client]))),
                "server": self.ended(serving)}
        for name, (status, printed) in ends.items():
            self.assertEqual(status, 0, f"{name}: {printed}")
        return ends["server"][1], ends["client"][1]

    def ud(self, hosts, *options):
        self.needs("ibv_ud_pingpong")
        common = ["ibv_ud_pingpong", "-d", "aperture0", "-c", *options]
        for printed in self.play(hosts, common, [*common, "@server"], "tcp:18515"):
            self.assertRegex(printed, r"\d+ iters in")

    def test_a_queue_pair_plays(self):
        hosts = self.hosts()
        self.ud(hosts, "-g", "0", "-s", "1024")
        self.ud(hosts, "-g", "0", "-s", "1024", "-e")

    def test_a_message_longer_than_the_way_carries_arrives_whole(self):
        self.ud(self.hosts(), "-g", "0", "-s", "4000", "-n", "200")

    def test_an_interface_serves_at_all_of_its_addresses(self):
        hosts = self.hosts(iface="name")
        self.ud(hosts, "-g", "0")
        self.ud(hosts, "-g", "1")  # the IPv6 one

    def test_addresses_that_nobody_has_named_hear_this_host_alone(self):
        self.needs("ibv_ud_pingpong")
        hosts = self.hosts(iface=None)
        common = [*RUN, "ibv_ud_pingpong", "-d", "aperture0", "-g", "0", "-n", "10"]
        serving = hosts.server.start(common)
        self.assertTrue(hosts.server.wait_for("tcp:18515", serving))
        client = hosts.client.start(["timeout", "3", *common, hosts.server.ip])
        status, printed = self.ended(client)
        self.assertEqual(status, 124, printed)
        self.assertRegex(printed, r"ibv_create_ah: \[?10\.83\.0\.1\S* is on another host")
        self.assertNotIn("iters in", printed)

    def test_an_endpoint_plays(self):
        self.needs("fi_pingpong")
        hosts = self.hosts()
        common = ["fi_pingpong", "-p", "aperture", "-e", "dgram", "-v"]
        for size in ("64", "1024", "4096"):
            sized = [*common, "-S", size]
            for printed in self.play(hosts, sized, [*sized, "@server"], "tcp:47592"):
                self.assertTrue(re.search(r"(?m)^\d+[kM]? +\d+", printed), printed)

    def test_a_group_has_members_on_both(self):
        self.needs("mckey")
        hosts = self.hosts()
        group = ["-m", "239.10.83.1", "-C", "5"]
        hearing = hosts.server.start(hosts.spelt([*RUN, "mckey", "-b", "@server", *group]))
        self.assertTrue(hosts.server.wait_for("udp:4791", hearing))
        status, printed = self.ended(hosts.client.start(
            hosts.spelt([*RUN, "mckey", "-s", "-b", "@client", *group])))
        self.assertEqual(status, 0, printed)
        self.assertEqual(self.ended(hearing)[0], 0)

    def test_ids_of_rdma_cm_find_each_other(self):
        self.needs("udaddy")
        hosts = self.hosts()
        self.assertIn("return status 0", "".join(self.play(
            hosts, ["udaddy"], ["udaddy", "-s", "@server"], "cm:7174")))
        printed = self.play(hosts, ["udaddy", "-b", "@server", "-C", "50", "-S", "4000"],
                            ["udaddy", "-s", "@server", "-b", "@client", "-C", "50", "-S", "4000"],
                            "cm:7174")
        for said in printed:
            self.assertIn("data transfers complete", said)


if __name__ == "__main__":
    unittest.main()
