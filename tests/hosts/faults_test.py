"""What happens between two hosts when one of them dies, is cut off, stopped, slow or new, and when
the way loses packets: `faults_test.py PLAYER` (fabric_player.cpp). What was measured is printed.

APERTURE_LOSSY_TIMES: so many times as many messages over a way that loses or delays packets
(default 1); APERTURE_RESTARTS: of a server at its address (default 20); APERTURE_CONNECTIONS: of
one process (default 100, which are watched for 2 s; more, for 10 s).
"""
import errno
import os
import resource
import signal
import sys
import tempfile
import time
import unittest

import two_hosts
from fabric_player import Player

PROGRAM = sys.argv.pop(1)
two_hosts.enter()

SILENCE = 5  # seconds that a connection may be silent: link/tcp/stream.cpp
KIB, MIB = 1024, 1024 * 1024
AIMED_RESET_MS = 50  # printed beside what was seen: a machine under load may take longer
REGION = ("--region", str(4 * MIB))


def setting(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def say(what: str):
    print(what, flush=True)


def ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"


class Faults(unittest.TestCase):
    def setUp(self):
        # what both say is printed where the test fails, or at once if APERTURE_LOG is set
        self.log = None if "APERTURE_LOG" in os.environ else tempfile.TemporaryFile()
        self.addCleanup(self.show_log)

    def show_log(self):
        if self.log is None:
            return
        with self.log as log:
            log.seek(0)
            result = self._outcome.result
            if any(test is self for test, _ in [*result.failures, *result.errors]):
                say(log.read().decode(errors="replace")[-4000:])

    def hosts(self, **how) -> two_hosts.TwoHosts:
        made = two_hosts.TwoHosts(env={"APERTURE_LOG": os.environ.get("APERTURE_LOG", "info")},
                                  **how)
        self.addCleanup(made.close)
        return made

    def player(self, host: two_hosts.Host, *options: str, env=None) -> Player:
        made = Player(host, PROGRAM, *options, env=env, stderr=self.log)
        self.addCleanup(made.end)
        return made

    def ends_well(self, one: Player, kind: str, peer: int, size: int, **how) -> float:
        code, seconds = one.once(kind, peer, size, **how)
        self.assertEqual(code, 0, f"{kind}: {os.strerror(abs(code))}")
        return seconds

    def load(self, one: Player, peer: int):
        """Something of each kind under way, small and large."""
        one.ask(f"keep receive 0 {peer} 16 {MIB}")
        for kind, depth, size in (("send", 16, 8), ("send", 4, MIB), ("write", 8, 64),
                                  ("write", 4, MIB), ("read", 8, 8), ("read", 4, MIB)):
            one.ask(f"keep {kind} 0 {peer} {depth} {size}")

    def all_ended(self, one: Player, seconds: float, cancels=True) -> dict:
        """Everything has completed, once and nothing well after the end; a receive may wait for
        somebody else, and does so until it is cancelled."""
        one.look("stop")
        seen = one.until(lambda seen: seen["pending"] == 0, seconds)
        self.assertEqual(seen["pending"], 0, seen)
        self.assertGreater(seen["failed"], 0, seen)
        if cancels:
            one.look("cancel")
            one.until(lambda seen: seen["receives"] == 0, 5)
            time.sleep(0.1)  # for a second completion of something
        again = one.look()
        self.assertEqual(again["twice"], 0, again)
        self.assertEqual(again["accepted"] - again["receives"], again["ok"] + again["failed"])
        if cancels:
            self.assertEqual(again["receives"], 0, again)
        return seen

    # --- ends ---

    def test_a_killed_peer_ends_what_is_under_way_and_nothing_else(self):
        hosts = self.hosts()
        lasted = []
        for busy in ("survivor", "victim", "both", "both"):
            survivor = self.player(hosts.client, *REGION)
            victim = self.player(hosts.server, *REGION)
            there, here = survivor.know(victim), victim.know(survivor)
            self.ends_well(survivor, "read", there, 8)
            survivor.ask(f"keep receive 0 {there} 16 {MIB}")
            victim.ask(f"keep receive 0 {here} 16 {MIB}")
            if busy != "survivor":
                self.load(victim, here)
            if busy != "victim":
                self.load(survivor, there)
            else:
                survivor.ask(f"keep read 0 {there} 1 8")
            time.sleep(0.1)
            killed = victim.kill()
            seen = self.all_ended(survivor, 10)
            lasted.append(seen["last_ns"] - killed)
            self.assertLess(lasted[-1], 2e9)
            self.assertLessEqual(set(seen["errors"]) - {str(errno.ECANCELED)},
                                 {str(errno.ECONNRESET), str(errno.EPIPE)})
            newcomer = self.player(hosts.server, *REGION)
            self.ends_well(survivor, "read", survivor.know(newcomer), MIB)
            self.ends_well(newcomer, "write", newcomer.know(survivor), MIB)
            newcomer.end()
            survivor.end()
        say(f"killed: the last completion {', '.join(map(ms, lasted))} after the kill "
            f"(aimed at: {AIMED_RESET_MS} ms at most)")

    def test_a_cut_cable_ends_what_is_under_way_and_what_is_idle(self):
        hosts = self.hosts()
        busy = [self.player(host, *REGION) for host in (hosts.client, hosts.server)]
        idle = [self.player(host) for host in (hosts.client, hosts.server)]
        to = [busy[0].know(busy[1]), busy[1].know(busy[0])]
        idly = [idle[0].know(idle[1]), idle[1].know(idle[0])]
        self.ends_well(idle[0], "read", idly[0], 8)
        reader, target = (self.player(host, *REGION) for host in (hosts.server, hosts.client))
        read_from = reader.know(target)
        self.ends_well(reader, "read", read_from, 8)
        reader.ask(f"keep read 0 {read_from} 8 {MIB}")
        for one, peer in zip(busy, to):
            self.load(one, peer)
        time.sleep(0.1)
        quiet = {"idle": idle[0], "idle too": idle[1], "only a target": target}
        held = {name: one.descriptors() for name, one in quiet.items()}
        cut = time.monotonic_ns()
        hosts.cut()
        seen = [self.all_ended(one, 3 * SILENCE, cancels=False) for one in busy]
        say("cut off: under way ended after " +
            ", ".join(ms(s["last_ns"] - cut) + f" {s['errors']}" for s in seen))
        for one in seen:
            self.assertLess(one["last_ns"] - cut, (SILENCE + 3) * 1e9)
        found = {}  # each by itself: its socket is closed
        while len(found) < len(quiet) and time.monotonic_ns() - cut < 3 * SILENCE * 1e9:
            time.sleep(0.02)
            for name, one in quiet.items():
                if name not in found and one.descriptors() < held[name]:
                    found[name] = time.monotonic_ns() - cut
        say("cut off: found dead " +
            ", ".join(f"({name}) after {ms(after)}" for name, after in found.items()))
        self.assertEqual(len(found), len(quiet), found)
        self.assertLess(max(found.values()), (SILENCE + 3) * 1e9)
        self.all_ended(reader, 1)
        code, seconds = idle[0].once("send", idly[0], 8)
        say(f"cut off: a new operation ends with {os.strerror(code)} after {seconds:.2f} s")
        self.assertGreater(code, 0)
        hosts.cut(False)
        took = [self.ends_well(idle[0], "read", idly[0], 8),
                self.ends_well(busy[1], "write", to[1], MIB),
                self.ends_well(busy[0], "read", to[0], MIB)]
        say(f"plugged in: connected anew after {', '.join(f'{t * 1e3:.1f} ms' for t in took)}")

    def test_a_stopped_peer_is_waited_for(self):
        """For longer than silence is suffered; also one whose kernel says that it has no more room.
        The cable is out for a shorter time meanwhile: whoever is idle is asked three times before
        silence ends it, and the third time it is in again."""
        hosts = self.hosts()
        one, stopped = (self.player(h, *REGION, "--endpoints", "2")
                        for h in (hosts.client, hosts.server))
        other, full = self.player(hosts.server, *REGION), self.player(hosts.server, *REGION)
        filling = self.player(hosts.client, *REGION)
        there, here, beside = one.know(stopped), stopped.know(one), one.know(other)
        into = filling.know(full)
        self.ends_well(one, "read", beside, 8)
        self.ends_well(filling, "read", into, 8)
        self.load(one, there)
        self.load(stopped, here)
        time.sleep(0.1)
        for player in (stopped, full):
            player.signal(signal.SIGSTOP)
        at = time.monotonic()
        filling.ask(f"keep write 0 {into} 4 {MIB}")
        filling.ask(f"keep read 0 {into} 4 {MIB}")
        filling.look("stop")
        time.sleep(0.2)
        closed = one.numbers("close")
        say(f"stopped: our region closed with {closed[0]} after {ms(closed[1])}")
        self.assertEqual(closed[0], 0)
        self.ends_well(one, "read", beside, 8)  # idle from now on
        hosts.cut()
        time.sleep(SILENCE - 3)
        hosts.cut(False)
        self.ends_well(one, "read", beside, 64 * KIB)
        slowest = 0.0
        while time.monotonic() < at + SILENCE + 3:
            slowest = max(slowest, self.ends_well(one, "read", beside, 64 * KIB),
                          self.ends_well(one, "write", beside, 64 * KIB, end=1))
            time.sleep(0.1)
        say(f"stopped: reads from and writes to another took {slowest * 1e3:.1f} ms at most")
        during = [one.look("stop"), filling.look()]
        for player in (stopped, full):
            player.signal(signal.SIGCONT)
        for player, then, name in zip((one, filling), during, ("", " with full buffers")):
            after = player.until(lambda seen: seen["pending"] == 0)
            say(f"stopped{name}: {then['pending']} under way at the end of the stop; "
                f"{after['failed']} failed {after['errors']}, {after['twice']} twice")
            self.assertGreater(then["pending"], 0)
            self.assertEqual((after["failed"], after["pending"], after["twice"]), (0, 0, 0), after)

    # --- the way ---

    def exchange(self, hosts, count: int, depth=16):
        one, two = self.player(hosts.client), self.player(hosts.server)
        to, back = one.know(two), two.know(one)
        began = time.monotonic()
        one.ask(f"expect 0 {to} {count} 7 {depth}")
        two.ask(f"expect 0 {back} {count} 5 {depth}")
        one.ask(f"stream 0 {to} {count} 5 {depth}")
        two.ask(f"stream 0 {back} {count} 7 {depth}")
        ends = []
        for player in (one, two):
            ends.append(player.until(
                lambda seen: seen["failed"] or seen["came"] >= count and seen["sent"] >= count,
                60 + count))
        took = time.monotonic() - began
        for seen in ends:
            self.assertEqual([seen[of] for of in ("failed", "twice", "wrong", "damaged", "came",
                                                  "sent")], [0, 0, 0, 0, count, count], seen)
        return took

    def lossy(self, loss: float, few: int):
        count = few * setting("APERTURE_LOSSY_TIMES", 1)
        took = self.exchange(self.hosts(loss=loss), count)
        say(f"{loss} % lost: {count} messages each way in {took:.1f} s")

    def test_of_a_hundred_packets_one_is_lost(self):
        self.lossy(1, 5000)

    def test_of_a_hundred_packets_five_are_lost(self):
        self.lossy(5, 1000)

    def test_of_a_hundred_packets_twenty_are_lost(self):
        self.lossy(20, 20)

    def test_packets_take_their_time(self):
        count = 200 * setting("APERTURE_LOSSY_TIMES", 1)
        took = self.exchange(self.hosts(delay_ms=20), count)
        say(f"20 ms each way: {count} messages each way in {took:.1f} s")

    def test_packets_overtake_each_other(self):
        count = 2000 * setting("APERTURE_LOSSY_TIMES", 1)
        hosts = self.hosts(disorder=5)
        took = self.exchange(hosts, count)
        with open(f"/proc/{hosts.server.pid}/net/netstat", encoding="ascii") as counters:
            names, values = [line.split() for line in counters if line.startswith("TcpExt:")]
        early = int(values[names.index("TCPOFOQueue")])
        self.assertGreater(early, count // 100)
        say(f"of five packets one is overtaken: {count} messages each way in {took:.1f} s, "
            f"{early} packets came early")

    def over_bad_memory(self, *env) -> list[dict]:
        """What both say of messages of all sizes, of whose large packets one in 40 has a flipped
        bit that TCP does not find; the environment of each."""
        hosts = self.hosts(damage=40)
        one, two = (self.player(host, env=e) for host, e in zip((hosts.client, hosts.server), env))
        to, back = one.know(two), two.know(one)
        count = 400
        for player, peer in ((one, to), (two, back)):
            player.ask(f"expect 0 {peer} {count} 5 16")
            player.ask(f"stream 0 {peer} {count} 5 16")
        over = time.monotonic() + 30
        while True:
            seen = [player.look() for player in (one, two)]
            if any(s["failed"] or s["damaged"] or s["came"] == count for s in seen):
                break
            self.assertLess(time.monotonic(), over, seen)
        time.sleep(0.1)
        return [player.look() for player in (one, two)]

    def test_what_tcp_lets_pass_is_found_by_checksums(self):
        on = {"APERTURE_CHECKSUMS": "on"}
        without = self.over_bad_memory({}, {})
        # a header or a small message has its checksum always: then the connection has ended
        self.assertTrue(any(s["damaged"] or s["failed"] for s in without), without)
        for env in ((on, on), (on, {}), ({}, on)):
            seen = self.over_bad_memory(*env)
            say(f"damaged: {seen[0]['came']} and {seen[1]['came']} messages came well, then "
                f"{seen[0]['errors']}, {seen[1]['errors']}")
            self.assertEqual([s["damaged"] for s in seen], [0, 0], seen)
            self.assertTrue(any(s["failed"] for s in seen), seen)

    # --- restart ---

    def test_who_comes_back_at_the_same_address_is_another(self):
        hosts = self.hosts()
        one = self.player(hosts.client, *REGION)
        at = ("--at", hosts.server.ip, "7480", *REGION)
        server = self.player(hosts.server, *at)
        peer = one.know(server)
        slowest = 0.0
        rounds = setting("APERTURE_RESTARTS", 20)
        for _ in range(rounds):
            server.ask(f"keep receive 0 0 4 {64 * KIB}")
            for kind, size in (("send", 64 * KIB), ("send", 8), ("read", MIB), ("write", MIB)):
                one.ask(f"keep {kind} 0 {peer} 8 {size}")
            time.sleep(0.02)
            server.kill()
            server.end()
            self.all_ended(one, 10, cancels=False)
            server = self.player(hosts.server, *at)
            server.ask(f"keep receive 0 0 64 {64 * KIB}")
            # regions of a new life have new keys
            peer = one.know(server)
            slowest = max([slowest, *(self.ends_well(one, "send", peer, 8) for _ in range(3))])
            seen = server.until(lambda seen: seen["ok"] >= 3, 5)
            time.sleep(0.02)
            seen = server.look()
            self.assertEqual((seen["ok"], seen["failed"], seen["twice"]), (3, 0, 0), seen)
            server.look("stop")
            server.look("cancel")
        say(f"restarted {rounds} times: the slowest send after it took {slowest * 1e3:.1f} ms")

    # --- back-pressure ---

    def slow(self, hosts, *options: str):
        one, slow = self.player(hosts.client), self.player(hosts.server, *options)
        to = one.know(slow)
        slow.ask("rest")
        before = one.status("VmRSS"), slow.status("VmRSS")
        taken, refused = one.numbers(f"flood {to} 4096 200000 3000", 90)
        grown = one.status("VmRSS") - before[0], slow.status("VmRSS") - before[1]
        say(f"nobody reads {options}: {taken} sends of 4 KiB taken, {refused} times no room; "
            f"the sender grew by {grown[0]} KiB, the receiver by {grown[1]} KiB")
        self.assertGreater(refused, 0)
        self.assertLess(max(grown), 64 * KIB)
        slow.ask(f"keep receive 0 0 64 {4 * KIB}")
        seen = slow.until(lambda seen: seen["ok"] >= taken)
        self.assertEqual((seen["ok"], seen["failed"], seen["twice"]), (taken, 0, 0), seen)
        seen = one.until(lambda seen: seen["pending"] == 0)
        self.assertEqual((seen["ok"], seen["failed"], seen["twice"]), (taken, 0, 0), seen)

    def test_who_does_not_read_holds_back_who_sends(self):
        hosts = self.hosts()
        self.slow(hosts, "--manual")
        self.slow(hosts)

    # --- limits ---

    def test_idle_connections_cost_nothing(self):
        connections = setting("APERTURE_CONNECTIONS", 100)
        watched = 2 if connections <= 100 else 10
        each = min(connections, 100)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        hosts = self.hosts()
        hub = self.player(hosts.server)
        hub.ask("keep receive 0 0 64 8")
        names = ("VmRSS", "VmSize")
        before = [hub.status(name) for name in names]
        began = time.monotonic()
        others = []
        for _ in range(connections // each):
            other = self.player(hosts.client, "--endpoints", str(each))
            others.append(other)
            to = other.know(hub)
            for end in range(each):
                self.ends_well(other, "send", to, 8, end=end)
        seen = hub.until(lambda seen: seen["ok"] >= connections)
        self.assertEqual(seen["ok"], connections, seen)
        took = time.monotonic() - began
        grown = [(hub.status(name) - was) / connections for name, was in zip(names, before)]
        say(f"{connections} connections: {took / connections * 1e3:.2f} ms, {grown[0]:.1f} KiB of "
            f"memory and {grown[1]:.0f} KiB mapped for each")
        for player in (hub, *others):
            player.ask("rest")
        time.sleep(2)  # the control thread has ticked for the last time
        before = [player.sleeps() for player in (hub, *others)]
        time.sleep(watched)
        woken = [{name: count - was[name] for name, count in now.items() if count != was[name]}
                 for now, was in zip([player.sleeps() for player in (hub, *others)], before)]
        say(f"{connections} idle connections, {watched} s: woken {woken[0] or 'nobody'}, at the "
            f"other host {[w for w in woken[1:] if w] or 'nobody'}")
        self.assertFalse(any(woken), woken)
        for other in others:  # and all of them are there still
            other.tell("look")
            other.line()
            self.ends_well(other, "send", 0, 8, end=each - 1)

    # --- progress ---

    def test_a_target_that_never_calls_is_read_from(self):
        hosts = self.hosts()
        one, target = self.player(hosts.client), self.player(hosts.server)
        to = one.know(target)
        self.ends_well(one, "read", to, 8)
        for how in ("look", "spin", "rest"):
            target.ask(how)
            time.sleep(0.3)
            p50, p99, longest = one.numbers(f"latency {to} 300")
            self.assertLess(p99, 1e9, how)  # on any machine: nobody had to call for it
            say(f"8 bytes read from a target that {'polls' if how == 'look' else how + 's'}: p50 "
                f"{p50 / 1e3:.0f} us, p99 {p99 / 1e3:.0f} us, longest {longest / 1e3:.0f} us")


if __name__ == "__main__":
    unittest.main()
