"""Two containers of one host, each with namespaces of its own, which have a directory in common:
`containers_test.py BUILD PLAYER [CASE...]`. Each has it mounted at another path, which
APERTURE_SHARE names.

That memory is shared is seen by the sentence that both say at APERTURE_LOG=info, and by what a
player has mapped. The forgers' layouts: src/wire/hello.hpp.
"""
import copy
import os
import random
import re
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

PLAYER = sys.argv.pop(2)

import players  # noqa: E402
import two_hosts  # noqa: E402
from fabric_player import Player  # noqa: E402

SHARED = "shares memory with us"
OVER_TCP = r"is in another network namespace of this host, and connected over TCP: ([^;]+);"
HELLO, ANSWER, TAG = 128, 96, slice(120, 128)
MEETS, STAYS = 8, 3
HANDSHAKE_SECONDS = 5
SEED = int(os.environ.get("APERTURE_SEED", time.time_ns() % 2**32))
draw = random.Random(SEED)


class Containers(players.BetweenHosts):
    @classmethod
    def setUpClass(cls):
        print(f"APERTURE_SEED={SEED}", flush=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="aperture-share-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.port = draw.randrange(20000, 30000)

    def containers(self, *, folders: tuple[str | None, str | None] | None = None, log="info",
                   mounted=("--bind",)) -> two_hosts.TwoHosts:
        """Both have self.folder, or the one that is theirs, or none."""
        pair = self.hosts(env={"APERTURE_LOG": log})
        for host, folder in zip(pair.hosts, folders or (self.folder, self.folder)):
            if folder is not None:
                path = f"/dev/shm/volume-of-{host.device}"
                host.run("mkdir", path)
                host.run("mount", *mounted, folder, path)
                host.env["APERTURE_SHARE"] = path
        return pair

    def is_empty(self, folder: str | None = None, seconds=1.0):
        end = time.monotonic() + seconds
        while (left := os.listdir(folder or self.folder)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(left, [])

    def player(self, host: two_hosts.Host, *options: str, env=None, by=()) -> Player:
        made = Player(host, *by, PLAYER, *options, env=env)
        self.addCleanup(made.end)
        return made

    def has_shared(self, one: Player) -> bool:
        with open(f"/proc/{one.pid}/maps", encoding="utf-8") as file:
            return "aperture-lanes" in file.read()

    def works(self, one: Player, other: Player, shared: bool, end=0) -> int:
        """The number of the other, from whom it has read and to whom it has written."""
        peer = one.know(other, end)
        for kind, size in (("read", 64), ("write", 100000)):
            code, _ = one.once(kind, peer, size)
            self.assertEqual(code, 0, os.strerror(abs(code)))
        self.assertEqual((self.has_shared(one), self.has_shared(other)), (shared, shared))
        return peer

    def pingpong(self, pair: two_hosts.TwoHosts, kind="rdm") -> tuple[str, str]:
        self.needs("fi_pingpong")
        common = ["fi_pingpong", "-p", "aperture", "-e", kind, "-I", "10", "-S", "all"]
        self.port += 1
        return self.play(pair, [*common, "-B", str(self.port)],
                         [*common, "-P", str(self.port), "@server"], f"tcp:{self.port}")


class Clients(Containers):
    def setUp(self):
        super().setUp()
        self.pair = self.containers()

    def both_share(self, said: tuple[str, str]):
        for printed in said:
            self.assertIn(SHARED, printed)
            self.assertNotRegex(printed, OVER_TCP)
        self.is_empty()

    def test_pingpong_of_libfabric(self):
        for kind in ("rdm", "msg"):
            self.both_share(self.pingpong(self.pair, kind))

    def test_pingpong_of_verbs(self):
        self.needs("ibv_rc_pingpong")
        command = ["ibv_rc_pingpong", "-d", "aperture0", "-g", "0", "-c", "-p", str(self.port)]
        self.both_share(self.play(self.pair, command, [*command, "@server"], f"tcp:{self.port}"))

    def test_rping(self):
        self.needs("rping")
        common = ["-p", str(self.port), "-C", "20", "-V"]
        self.both_share(self.play(self.pair, ["rping", "-s", "-a", "0.0.0.0", *common],
                                  ["rping", "-c", "-a", "@server", *common], f"cm:{self.port}"))


class Peers(Containers):
    def test_the_owner_executes_all_and_both_ways_work(self):
        pair = self.containers(log="off")
        server, client = self.player(pair.server), self.player(pair.client)
        self.works(client, server, shared=True)
        self.works(server, client, shared=True)
        for one in (server, client):
            seen = one.look()
            self.assertEqual((seen["failed"], seen["twice"]), (0, 0), seen)
        self.is_empty()

    def test_one_that_is_killed_is_noticed(self):
        pair = self.containers(log="off")
        for victim_connects in (False, True):
            survivor = self.player(pair.client)
            victim = self.player(pair.server)
            if victim_connects:
                self.works(victim, survivor, shared=True)
            peer = self.works(survivor, victim, shared=True)
            survivor.ask(f"keep read 0 {peer} 8 100000")
            began = time.monotonic()
            victim.kill()
            seen = survivor.until(lambda seen: seen["failed"] > 0, 10)
            took = time.monotonic() - began
            self.assertGreater(seen["failed"], 0, seen)
            print(f"the death of a peer is noticed after {took * 1e3:.1f} ms", flush=True)
            self.assertLess(took, 2)
            survivor.look("stop")
            seen = survivor.until(lambda seen: seen["pending"] == 0, 10)
            self.assertEqual((seen["pending"], seen["twice"]), (0, 0), seen)
            newcomer = self.player(pair.server)
            self.works(survivor, newcomer, shared=True)
        self.is_empty()

    def test_further_endpoints_of_both_use_what_is_there(self):
        pair = self.containers(log="off")
        server, client = (self.player(host, "--endpoints", "3") for host in pair.hosts)
        for end in range(3):
            self.works(client, server, shared=True, end=end)
            self.works(server, client, shared=True, end=end)
        self.is_empty()

    def test_both_connect_at_once(self):
        pair = self.containers(log="off")
        for _ in range(10):
            both = [self.player(host) for host in pair.hosts]
            peers = [both[0].know(both[1]), both[1].know(both[0])]
            for one, peer in zip(both, peers):
                one.tell(f"once read 0 {peer} 64 20000")
            for one in both:
                self.assertEqual(int(one.line().split()[0]), 0)
                self.assertTrue(self.has_shared(one))
            for one in both:
                one.end()
        self.is_empty()

    def test_two_users_share_where_the_one_that_connects_may_come(self):
        self.needs("setpriv")
        os.chmod(self.folder, 0o1777)
        user = ("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups")
        pair = self.containers(log="off")
        server, client = self.player(pair.server, by=user), self.player(pair.client)
        self.works(client, server, shared=True)
        self.works(server, client, shared=True)
        # root's socket is not for others; nor are two users that differ
        other = ("setpriv", "--reuid=4712", "--regid=4712", "--clear-groups")
        for by in (user, other):
            server = self.player(pair.server, by=() if by == user else user)
            self.works(self.player(pair.client, by=by), server, shared=False)
        # in user namespaces of their own, both with the one user that they are outside
        own = (*user, "unshare", "--user", "--map-root-user")
        server, client = self.player(pair.server, by=own), self.player(pair.client, by=own)
        self.works(client, server, shared=True)
        self.is_empty()

    def test_only_the_network_namespace_is_another(self):
        pair = self.containers(log="off")
        alone = []
        for host in pair.hosts:
            made = copy.copy(host)
            made.env = {**host.env, "APERTURE_SHARE": self.folder}
            made.inside = lambda *command, host=host: [
                "nsenter", f"--target={host.pid}", "--net",
                "timeout", "--foreground", "100", *command]  # its child, as nsenter's elsewhere
            alone.append(made)
        survivor, victim = (self.player(host) for host in alone)
        self.works(survivor, victim, shared=True)
        peer = self.works(survivor, victim, shared=True)
        survivor.ask(f"keep read 0 {peer} 8 100000")
        victim.kill()
        seen = survivor.until(lambda seen: seen["failed"] > 0, 10)
        self.assertGreater(seen["failed"], 0, seen)
        self.is_empty()

    def test_a_process_that_is_stopped_is_not_taken_for_a_dead_one(self):
        pair = self.containers(log="off")
        server, client = self.player(pair.server), self.player(pair.client)
        peer = self.works(client, server, shared=True)
        server.signal(signal.SIGSTOP)
        self.addCleanup(server.signal, signal.SIGCONT)
        client.ask(f"keep read 0 {peer} 4 64")
        time.sleep(1)
        server.signal(signal.SIGCONT)
        client.look("stop")
        seen = client.until(lambda seen: seen["pending"] == 0, 10)
        self.assertEqual((seen["pending"], seen["failed"]), (0, 0), seen)


class WithoutADirectory(Containers):
    """Where something of it is missing it works all the same, and both say why."""

    def goes_over_tcp(self, pair: two_hosts.TwoHosts, server: str, client: str):
        for said, why in zip(self.pingpong(pair), (server, client)):
            self.assertNotIn(SHARED, said)
            self.assertRegex(said, OVER_TCP)
            self.assertIn(why, re.search(OVER_TCP, said)[1])

    def test_nobody_has_the_setting(self):
        self.goes_over_tcp(self.containers(folders=(None, None)), "is not set here",
                           "is not set here")

    def test_one_has_the_setting(self):
        self.goes_over_tcp(self.containers(folders=(self.folder, None)), "it has no directory",
                           "is not set here")
        self.goes_over_tcp(self.containers(folders=(None, self.folder)), "is not set here",
                           "it has no such directory")
        self.is_empty()

    def test_the_two_have_different_directories(self):
        with tempfile.TemporaryDirectory() as another:
            self.goes_over_tcp(self.containers(folders=(self.folder, another)),
                               "another directory than ours", "another than ours")
            self.is_empty(another)
        self.is_empty()

    def test_the_directory_cannot_be_written(self):
        pair = self.containers()
        pair.server.run("mount", "-o", "remount,bind,ro", pair.server.env["APERTURE_SHARE"])
        said = self.pingpong(pair)
        for printed in said:
            self.assertRegex(printed, OVER_TCP)
        self.is_empty()

    def test_it_is_no_directory(self):
        pair = self.containers(log="off")
        pair.client.env["APERTURE_SHARE"] = "/dev/null"
        server, client = self.player(pair.server), self.player(pair.client)
        self.works(client, server, shared=False)
        self.is_empty()

    def test_only_streams_are_wanted(self):
        pair = self.containers(log="off")
        for forced in pair.hosts:
            env = {"APERTURE_LINK": "tcp"}
            server = self.player(pair.server, env=env if forced is pair.server else None)
            client = self.player(pair.client, env=env if forced is pair.client else None)
            self.works(client, server, shared=False)
        self.is_empty()


class Forgers(Containers):
    def setUp(self):
        super().setUp()
        self.pair = self.containers(log="off")

    def hear(self, talk: socket.socket, size: int) -> bytes:
        talk.settimeout(10)
        got = b""
        while len(got) < size and (more := talk.recv(size - len(got))):
            got += more
        return got

    def is_hung_up_on(self, talk: socket.socket, seconds=10.0) -> bool:
        talk.settimeout(seconds)
        try:
            return talk.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def listener(self) -> socket.socket:
        """Of ours, on the server."""
        with self.pair.server.inside_network():
            self.port += 2
            listening = socket.create_server((self.pair.server.ip, self.port))
        self.addCleanup(listening.close)
        listening.settimeout(10)
        return listening

    def asks(self, listening: socket.socket) -> Player:
        """A player of the client's that is about to read from whoever listens there."""
        ip, port = listening.getsockname()
        one = self.player(self.pair.client)
        twin = self.player(self.pair.server, "--at", ip, str(port + 1))
        name = bytearray.fromhex(twin.ask("name 0"))  # a sockaddr_in
        self.assertEqual(name[2:4], struct.pack(">H", port + 1), name.hex())
        name[2:4] = struct.pack(">H", port)
        peer = int(one.ask(f"peer {name.hex()} {twin.ask('region')}"))
        one.tell(f"once read 0 {peer} 64 8000")
        return one

    def answer(self, hello: bytes, verdict: int, name: bytes) -> bytes:
        net = struct.unpack("<Q", hello[32:40])[0] + 1
        return (hello[:10] + struct.pack("<BBI", 2, verdict, ANSWER) + hello[16:32] +
                struct.pack("<Q", net) + draw.randbytes(32) + name +
                struct.pack("<Q", 1))

    def falls_back(self, put) -> float:
        """A listener that says MEETS, with a name under which `put` has put something: the honest
        one comes again, after so many seconds, and without a tag."""
        listening = self.listener()
        one = self.asks(listening)
        first, _ = listening.accept()
        hello = self.hear(first, HELLO)
        self.assertNotEqual(hello[TAG], bytes(8))
        name = draw.randbytes(16)
        path = f"{self.folder}/aperture.{name.hex()}"
        put(path)
        began = time.monotonic()
        first.sendall(self.answer(hello, MEETS, name))
        second, _ = listening.accept()
        took = time.monotonic() - began
        again = self.hear(second, HELLO)
        self.assertEqual(again[TAG], bytes(8))
        self.assertTrue(self.is_hung_up_on(first))
        # whom nobody has asked to meet cannot say so
        second.sendall(self.answer(again, MEETS, name))
        self.assertTrue(self.is_hung_up_on(second))
        self.assertGreater(int(one.line(20).split()[0]), 0)
        first.close()
        second.close()
        return took

    def unix_server(self, path: str, mode=0o600) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(made.close)
        made.bind(path)
        os.chmod(path, mode)
        made.listen(4)
        return made

    def test_names_that_lead_nowhere_or_elsewhere_are_not_followed(self):
        elsewhere = tempfile.TemporaryDirectory()
        self.addCleanup(elsewhere.cleanup)
        outside = self.unix_server(f"{elsewhere.name}/outside")
        for put in (lambda path: None,
                    lambda path: os.symlink(f"{elsewhere.name}/outside", path),
                    lambda path: os.symlink("/dev/zero", path),
                    os.mkdir, os.mkfifo,
                    lambda path: open(path, "w", encoding="ascii").close()):
            took = self.falls_back(put)
            self.assertLess(took, 2)
        self.assertEqual(select.select([outside], [], [], 0)[0], [])

    def test_a_socket_of_somebody_else_is_not_believed(self):
        def speak(server: socket.socket):
            came, _ = server.accept()
            join = came.recv(512)
            # everything is right but the nonce that our side has said
            came.send(struct.pack("<BBHI", 2, 1, 0, 64) + bytes(16) + join[24:])
            self.addCleanup(came.close)

        def put(path: str):
            speaker = threading.Thread(target=speak, args=(self.unix_server(path),), daemon=True)
            speaker.start()
            self.addCleanup(speaker.join, 10)

        self.assertLess(self.falls_back(put), 2)
        # and one that says nothing is not waited for for long
        self.assertLess(self.falls_back(self.unix_server), 4)

    def heard_and_server(self):
        """The hello of one that asks us, and then a server, at another port."""
        listening = self.listener()
        self.asks(listening)
        first, _ = listening.accept()
        hello = self.hear(first, HELLO)
        first.close()
        listening.close()
        self.port += 2
        return hello, self.player(self.pair.server, "--at", self.pair.server.ip, str(self.port))

    def test_who_repeats_a_hello_gets_no_further_than_a_name(self):
        hello, server = self.heard_and_server()

        def said(**changed) -> tuple[socket.socket, bytes]:
            with self.pair.client.inside_network():
                talk = socket.create_connection((self.pair.server.ip, self.port), 10)
            self.addCleanup(talk.close)
            words = bytearray(hello)
            words[90 + 16:90 + 18] = struct.pack("<H", self.port)
            for place, what in changed.values():
                words[place:place + len(what)] = what
            talk.sendall(words)
            return talk, self.hear(talk, ANSWER)

        talk, answer = said()
        self.assertEqual(answer[11], MEETS)
        name = os.listdir(self.folder)
        self.assertEqual(name, [f"aperture.{answer[72:88].hex()}"])
        self.assertEqual(os.lstat(f"{self.folder}/{name[0]}").st_mode & 0o7777, 0o600)
        # without the right nonce nobody gets in, and those who say nothing hold nothing
        incarnation = hello[40:56]
        knocks = []
        for nonce in (bytes(16), answer[56:71] + bytes([answer[71] ^ 1])):
            knock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.addCleanup(knock.close)
            knock.connect(f"{self.folder}/{name[0]}")
            knock.send(struct.pack("<BBHI", 1, 1, 0, 64) + nonce + incarnation + bytes(24))
            self.assertTrue(self.is_hung_up_on(knock))
        for _ in range(12):
            knocks.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            knocks[-1].setblocking(False)
            self.addCleanup(knocks[-1].close)
            try:
                knocks[-1].connect(f"{self.folder}/{name[0]}")
            except BlockingIOError:
                pass
        # it is gone when its time is up, or with the connection of the hello
        self.assertTrue(self.is_hung_up_on(talk, HANDSHAKE_SECONDS + 3))
        self.is_empty()
        talk, answer = said()
        self.assertEqual(answer[11], MEETS)
        talk.close()
        self.is_empty()
        # another's tag, address, or namespace
        for place, what in ((120, draw.randbytes(8)), (120, bytes(8)), (56, draw.randbytes(16)),
                            (72 + 12, socket.inet_aton("10.83.0.9")),
                            (16, draw.randbytes(16))):
            talk, answer = said(changed=(place, what))
            self.assertEqual((answer[11], answer[72:88]), (STAYS, bytes(16)), place)
            talk.close()
        self.is_empty()
        client = self.player(self.pair.client)
        self.works(client, server, shared=True)

    def test_who_is_killed_in_its_midst_leaves_what_the_next_removes(self):
        hello, server = self.heard_and_server()
        with self.pair.client.inside_network():
            talk = socket.create_connection((self.pair.server.ip, self.port), 10)
        self.addCleanup(talk.close)
        talk.sendall(hello[:106] + struct.pack("<H", self.port) + hello[108:])
        self.assertEqual(self.hear(talk, ANSWER)[11], MEETS)
        left = os.listdir(self.folder)
        self.assertEqual(len(left), 1)
        server.kill()
        self.assertEqual(os.listdir(self.folder), left)
        long_ago = time.time() - 60
        os.utime(f"{self.folder}/{left[0]}", (long_ago, long_ago), follow_symlinks=False)
        one, other = self.player(self.pair.client), self.player(self.pair.server)
        self.works(one, other, shared=True)
        self.is_empty()


if __name__ == "__main__":
    unittest.main()
