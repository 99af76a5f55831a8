"""Datagrams, and connections of rdma_cm and of queue pairs between two hosts: unmodified programs,
and what is dropped where other hosts are not served.
"""
import re
import socket
import struct
import subprocess
import time
import unittest

import players
import two_hosts
from players import RUN


def checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(mac: bytes, ip: str, port: int, payload: bytes) -> bytes:
    """A datagram on Ethernet, of IPv6, that says to come from where it goes to."""
    here = socket.inet_pton(socket.AF_INET6, ip)
    size = 8 + len(payload)
    pseudo = here + here + struct.pack(">IHBB", size, 0, 0, socket.IPPROTO_UDP)
    summed = checksum(pseudo + struct.pack(">HHHH", port, port, size, 0) + payload)
    return (mac + b"\2\0\0\0\0\x99\x86\xdd" +
            struct.pack(">IHBB", 6 << 28, size, socket.IPPROTO_UDP, 64) + here + here +
            struct.pack(">HHHH", port, port, size, summed) + payload)


class Datagrams(players.BetweenHosts):
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

    def test_the_parts_of_a_message_may_overtake_each_other(self):
        hosts = self.hosts(disorder=4)
        self.ud(hosts, "-g", "0", "-s", "4000", "-n", "200")

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

    def forged_to(self, hosts, gid: str) -> subprocess.Popen:
        """ibv_ud_pingpong, which one message would make happy, and one that is forged under its own
        address. What it needs of a client before is exchanged here."""
        self.needs("ibv_ud_pingpong")
        serving = hosts.server.start([*RUN, "ibv_ud_pingpong", "-d", "aperture0", "-g", gid, "-n",
                                      "1"])
        self.assertTrue(hosts.server.wait_for("tcp:18515", serving))
        with hosts.client.inside_network(), \
                socket.create_connection((hosts.server.ip, 18515), timeout=10) as client, \
                socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
            client.sendall(f"0000:123400:000000:{'0' * 22}01{'0' * 8}\0".encode())
            number = int(client.recv(52, socket.MSG_WAITALL).split(b":")[1], 16)
            client.sendall(b"done\0")
            wire.bind((hosts.client.device, 0))
            sound = (struct.pack("<IBBH", 0x44555041, 1, 0, 8) + number.to_bytes(3, "little") +
                     bytes(1) + struct.pack("<4I", number, 0x11111111, 0, 0) + bytes(8))
            with open(hosts.server.file(f"/sys/class/net/{hosts.server.device}/address"),
                      encoding="ascii") as mac:
                forged = frame(bytes.fromhex(mac.read().strip().replace(":", "")),
                               hosts.server.ip6, number >> 8, sound)
            for _ in range(20):  # whenever it begins to receive
                wire.send(forged)
                time.sleep(0.05)
        return serving

    def test_who_forges_an_address_of_this_host_is_heard_only_where_other_hosts_are(self):
        hosts = self.hosts(iface="name")
        self.assertEqual(self.ended(self.forged_to(hosts, "1"))[0], 0)
        hosts = self.hosts(iface=None)
        serving = self.forged_to(hosts, "2")
        self.assertIsNone(serving.poll())

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

    def test_ids_of_rdma_cm_connect(self):
        """The exchange alone: cmtime sends nothing. (Its server does not end.)"""
        self.needs("cmtime")
        hosts = self.hosts()
        serving = hosts.server.start([*RUN, "cmtime", "-c", "20"])
        self.assertTrue(hosts.server.wait_for("tcp:4791", serving))
        client = [*RUN, "cmtime", "-c", "20", "-s", "@server"]
        status, printed = self.ended(hosts.client.start(hosts.spelt(client)))
        self.assertEqual(status, 0, printed)
        # up to rdma-core 44, and since
        self.assertRegex(printed, r"(?m)^(connect +:|cm connect) +\d")

    def connected(self, hosts) -> tuple[subprocess.Popen, subprocess.Popen]:
        """One that writes to the other over a reliable connection until something happens to it.
        (Who only waits for a message is not told, as with hardware.)"""
        self.needs("ib_write_bw")
        endless = [*RUN, "ib_write_bw", "-d", "aperture0", "-x", "0", "-F", "-s", "65536", "-n",
                   "5000000"]
        serving = hosts.server.start(endless)
        self.assertTrue(hosts.server.wait_for("tcp:18515", serving))
        client = hosts.client.start(hosts.spelt([*endless, "@server"]))
        time.sleep(4)
        self.assertIsNone(client.poll())
        return serving, client

    def completes_with_errors(self, client: subprocess.Popen, within: float):
        began = time.monotonic()
        status, printed = self.ended(client)
        took = time.monotonic() - began
        self.assertNotEqual(status, 0)
        told = re.search(r".*(Failed status|Completion with error).*", printed)
        self.assertIsNotNone(told, printed)
        print(f"after {took * 1e3:.1f} ms: {told[0].strip()}", flush=True)
        self.assertLess(took, within)

    def test_a_queue_pair_whose_peer_is_killed_completes_with_errors(self):
        serving, client = self.connected(self.hosts())
        two_hosts.kill(serving)
        self.completes_with_errors(client, 2)

    def test_a_queue_pair_that_is_cut_off_completes_with_errors(self):
        hosts = self.hosts()
        _, client = self.connected(hosts)
        hosts.cut()
        self.completes_with_errors(client, 8)

    def test_where_nobody_listens_a_client_is_told_so(self):
        self.needs("rping")
        hosts = self.hosts()
        client = [*RUN, "rping", "-c", "-a", "@server", "-p", "7471", "-C", "1"]
        status, printed = self.ended(hosts.client.start(hosts.spelt(client)))
        self.assertNotEqual(status, 0)
        self.assertIn("RDMA_CM_EVENT_REJECTED", printed)

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
