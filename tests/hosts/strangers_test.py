"""Hostile inputs over TCP, from another host: `strangers_test.py PLAYER` (fabric_player.cpp). The
numbers are those of the list of hostile inputs; layouts: src/wire/hello.hpp, src/wire/frame.hpp.

After each case an honest peer still works over the connection that it had, a newcomer gets in, and
the server holds what it held. APERTURE_SILENT_STRANGERS: how many connect and say nothing (default
1000).
"""
import contextlib
import os
import random
import resource
import socket
import struct
import sys
import time
import unittest

import two_hosts
from fabric_player import Player

PROGRAM = sys.argv.pop(1)
two_hosts.enter()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

PORT = 7480
SILENT = int(os.environ.get("APERTURE_SILENT_STRANGERS", 1000))
SEED = int(os.environ.get("APERTURE_SEED", time.time_ns() % 2**32))
VERSION = 10  # of the hello: src/wire/hello.hpp
STAYS, WRONG_DESTINATION, WRONG_VERSION, BUSY = 3, 4, 5, 6
OPEN, ACCEPT, REJECT, CONNECT, WITHDRAW = 3, 4, 5, 8, 11
BAD_TICKET, WRONG_KIND = 2, 6
CELLS, BYTES, CREDIT, CLOSE, PIECE = 1, 2, 3, 4, 5
HANDSHAKE_SECONDS = 5
draw = random.Random(SEED)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def table_entry(n: int) -> int:
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    return n


TABLE = [table_entry(n) for n in range(256)]


def place(ip: str, port: int) -> bytes:
    return bytes(10) + b"\xff\xff" + socket.inet_aton(ip) + struct.pack("<H", port)


def frame(kind: int, channel=0, count=0, rest=b"", payload=b"", crc=None) -> bytes:
    head = struct.pack("<BBH", kind, channel, count)
    return head + struct.pack("<I", crc32c(head + rest) if crc is None else crc) + rest + payload


def cells(count: int, bodies: bytes, channel=0) -> bytes:
    return frame(CELLS, channel, count, bodies)


def run_of(position: int, length: int, payload=None, channel=0) -> bytes:
    return frame(BYTES, channel, 0, struct.pack("<QI", position, length),
                 bytes(length) if payload is None else payload)


def piece(position: int, length: int, body=bytes(60), payload=b"", channel=0) -> bytes:
    return frame(PIECE, channel, 0, struct.pack("<QI", position, length) + body, payload)


def credit(consumed: int, freed: int, channel=0) -> bytes:
    return frame(CREDIT, channel, 0, struct.pack("<QQ", consumed, freed))


def summed(whole: bytes, number: int) -> bytes:
    """With the checksum that it ends with where either side has asked for that."""
    return whole + struct.pack("<II", crc32c(struct.pack("<Q", number) + whole), 0)


class Stranger:
    """One connection to the server, from that IP."""

    def __init__(self, hosts: two_hosts.TwoHosts, ip: str | None = None, at=PORT):
        self.ip, self.to, self.at = ip or hosts.client.ip, hosts.server.ip, at
        with hosts.client.inside_network():
            self.socket = socket.create_connection((self.to, at), 10, (self.ip, 0))
        self.said = b""
        self.incarnation, self.nonce = draw.randbytes(16), draw.randbytes(16)
        self.port = 20000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data: bytes):
        self.said += data
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while len(got) < size and (more := self.socket.recv(size - len(got))):
                got += more
        return got

    def is_hung_up_on(self, seconds=10.0) -> bool:
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def hello(self, source=None, port=None, version=VERSION, length=128, kind=1, zero=0) -> bytes:
        head = b"APERTURE" + struct.pack("<HBBI", version, kind, zero, length)
        return (head + b"another hosts id" + struct.pack("<Q", 77) + self.incarnation + self.nonce +
                place(source or self.ip, self.port) + place(self.to, port or self.at) +
                bytes(4 + 8 + 8))

    def greeted(self, **how) -> int:
        """Says hello: the verdict, 0 if there is none."""
        self.send(self.hello(**how))
        answer = self.receive(96)
        self.offered, self.ticket = answer[56:72], answer[88:96]
        return answer[11] if len(answer) == 96 else 0

    def opening(self, nonce=None, source=None, kind=OPEN, size=136, bits=0, rest=b"") -> bytes:
        return (struct.pack("<BBHI", kind, 1, bits, size) + (nonce or self.offered) + self.ticket +
                place(source or self.ip, self.port) + place(self.to, self.at) +
                struct.pack("<IIIQQI", 0, 0, 1, 0, 0, 1) + bytes(4 + 32) + rest)

    def asked(self, packet: bytes) -> tuple[int, int]:
        """The answer's type, and why it says no; zeros: hung up on."""
        self.send(packet)
        answer = self.receive(8)
        if len(answer) < 8:
            return 0, 0
        rest = self.receive(struct.unpack("<I", answer[4:])[0] - 8)
        return answer[0], struct.unpack("<I", rest[4:8])[0] if answer[0] == REJECT else 0

    def open(self) -> bool:
        return self.greeted() == STAYS and self.asked(self.opening())[0] == ACCEPT


class Strangers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"APERTURE_SEED={SEED}", flush=True)

    def setUp(self):
        env = {"APERTURE_LOG": os.environ.get("APERTURE_LOG", "off")}
        self.hosts = two_hosts.TwoHosts(env=env)
        self.addCleanup(self.hosts.close)
        self.server = self.player(self.hosts.server, "--at", self.hosts.server.ip, str(PORT))
        self.honest = self.player(self.hosts.client)
        self.to = self.honest.know(self.server)
        self.works(self.honest, self.to)
        self.held = self.server.descriptors()
        self.addCleanup(self.end_well)

    def player(self, host, *options, program=(PROGRAM,)) -> Player:
        made = Player(host, *program, *options)
        self.addCleanup(made.end)
        return made

    def works(self, one: Player, to: int, seconds=10.0) -> float:
        code, took = one.once("read", to, 64)
        self.assertEqual(code, 0, os.strerror(abs(code)))
        self.assertLess(took, seconds)
        return took

    def end_well(self):
        if self.server.process.poll() is not None:
            return self.fail("the server has ended")
        self.works(self.honest, self.to)
        end = time.monotonic() + 15
        while self.server.descriptors() > self.held and time.monotonic() < end:
            time.sleep(0.05)
        self.assertLessEqual(self.server.descriptors(), self.held)
        newcomer = self.player(self.hosts.client)
        self.works(newcomer, newcomer.know(self.server))
        seen = self.server.look()
        return self.assertEqual((seen["ok"], seen["failed"], seen["twice"]), (0, 0, 0), seen)

    def stranger(self, ip: str | None = None, at=PORT) -> Stranger:
        made = Stranger(self.hosts, ip, at)
        self.addCleanup(made.socket.close)
        return made

    def opened(self) -> Stranger:
        made = self.stranger()
        self.assertTrue(made.open())
        return made

    # --- first contact ---

    def test_25_a_hello_that_is_none_is_not_answered(self):
        self.assertEqual(self.stranger().greeted(), STAYS)
        self.assertEqual(self.stranger().greeted(version=VERSION + 1), WRONG_VERSION)
        for wrong in ({"kind": 2}, {"zero": 1}, {"length": 127}, {"length": 2**32 - 1}):
            self.assertEqual(self.stranger().greeted(**wrong), 0, wrong)
        self.assertEqual(self.stranger().greeted(port=PORT + 1), WRONG_DESTINATION)
        rubbish = self.stranger()
        rubbish.send(b"GET / HTTP/1.1\r\n\r\n")
        self.assertTrue(rubbish.is_hung_up_on(2))

    def test_5_who_says_to_be_at_another_address_is_refused(self):
        for ip in ("10.83.0.9", "10.83.0.1", "127.0.0.1", "0.0.0.0"):
            forger = self.stranger()
            if forger.greeted(source=ip) == STAYS:
                self.assertEqual(forger.asked(forger.opening(source=ip)), (REJECT, BAD_TICKET), ip)
            # nor does a ticket serve another endpoint than the one that it was for
            forger = self.stranger()
            self.assertEqual(forger.greeted(), STAYS)
            self.assertEqual(forger.asked(forger.opening(source=ip)), (REJECT, BAD_TICKET), ip)

    def test_5_a_ticket_without_its_nonce_is_refused(self):
        forger = self.stranger()
        self.assertEqual(forger.greeted(), STAYS)
        self.assertEqual(forger.asked(forger.opening(nonce=draw.randbytes(16))),
                         (REJECT, BAD_TICKET))
        # somebody else's ticket and nonce
        victim, thief = self.stranger(), self.stranger()
        self.assertEqual((victim.greeted(), thief.greeted()), (STAYS, STAYS))
        thief.offered, thief.ticket = victim.offered, victim.ticket
        self.assertEqual(thief.asked(thief.opening()), (REJECT, BAD_TICKET))
        self.assertEqual(victim.asked(victim.opening())[0], ACCEPT)

    def test_28_a_whole_handshake_that_is_replayed_is_refused(self):
        first = self.opened()
        first.send(cells(1, bytes(60)))
        again = self.stranger()
        again.send(first.said)
        self.assertEqual(again.receive(96)[11], STAYS)
        said = again.receive(16)
        self.assertIn(said[:1], (b"", bytes([REJECT])))
        self.assertTrue(again.is_hung_up_on())

    def test_31_asking_in_other_ways_is_refused(self):
        for wrong in ({"size": 135}, {"size": 0}, {"size": 2**32 - 1}, {"bits": 2}, {"kind": 0},
                      {"kind": 255}, {"kind": ACCEPT}, {"kind": WITHDRAW}):
            asking = self.stranger()
            self.assertEqual(asking.greeted(), STAYS)
            self.assertEqual(asking.asked(asking.opening(**wrong))[0], 0, wrong)
        for size, expected in ((256, (REJECT, WRONG_KIND)), (257, (0, 0))):  # of private data
            asking = self.stranger()
            self.assertEqual(asking.greeted(), STAYS)
            packet = asking.opening(kind=CONNECT, size=392, rest=bytes(256))
            packet = packet[:100] + struct.pack("<I", size) + packet[104:]
            self.assertEqual(asking.asked(packet), expected)

    # --- frames ---

    def ends(self, *said: bytes):
        one = self.opened()
        with contextlib.suppress(OSError):  # it may be hung up on before all is said
            for data in said:
                one.send(data)
        self.assertTrue(one.is_hung_up_on(), said[-1][:64].hex())

    def test_24_lengths_that_cannot_be(self):
        self.ends(cells(0, b""))
        self.ends(cells(257, bytes(257 * 60)))
        self.ends(frame(CELLS, 0, 65535, b""))
        for length in (0, 1, 63, 512 * 1024 + 64, 2**32 - 64, 2**32 - 1):
            self.ends(run_of(0, length, b""))
        for length in (0, 512 * 1024 + 1, 2**32 - 1):
            self.ends(piece(0, length))

    def test_25_kinds_channels_and_bits_that_there_are_not(self):
        for head in ((0, 0, 0), (6, 0, 0), (255, 0, 0), (CELLS, 2, 1), (BYTES, 0, 1),
                     (CREDIT, 0, 1), (CREDIT, 255, 0), (CLOSE, 1, 0), (CLOSE, 0, 1),
                     (PIECE, 0, 1), (PIECE, 2, 0)):
            self.ends(frame(*head, rest=bytes(72)))

    def test_26_checksums_that_are_wrong(self):
        self.ends(frame(CELLS, 0, 1, bytes(60), crc=crc32c(b"other")))
        self.ends(frame(CREDIT, 0, 0, bytes(16), crc=0))
        self.ends(run_of(0, 64)[:4] + bytes(4) + run_of(0, 64)[8:])

    def test_26_who_has_asked_for_checksums_sends_them(self):
        def asks() -> Stranger:
            one = self.stranger()
            self.assertEqual(one.greeted(), STAYS)
            self.assertEqual(one.asked(one.opening(bits=1))[0], ACCEPT)
            return one

        sound = asks()
        sound.send(summed(run_of(0, 64), 0))
        sound.send(summed(credit(0, 0), 1))
        self.assertFalse(sound.is_hung_up_on(0.3))
        damaged = bytearray(summed(run_of(0, 64), 0))
        damaged[40] ^= 1
        for wrong in (credit(0, 0) + bytes(8), bytes(damaged), summed(credit(0, 0), 1)):
            one = asks()
            one.send(wrong)
            self.assertTrue(one.is_hung_up_on(), wrong.hex())

    def test_27_what_nobody_has_asked_for(self):
        for kind in range(256):  # of a response
            body = bytes([kind]) + draw.randbytes(59)
            one = self.opened()
            with contextlib.suppress(OSError):
                one.send(cells(1, body, channel=1))
            one.socket.close()
        self.ends(credit(1, 0))
        self.ends(credit(2**64 - 1, 2**64 - 1, channel=1))

    def test_28_gaps_repeats_and_overlaps(self):
        self.ends(run_of(64, 64))
        self.ends(run_of(0, 64), run_of(0, 64))
        self.ends(run_of(0, 128), run_of(64, 64))
        self.ends(run_of(0, 64), run_of(192, 64))
        self.ends(*[run_of(n * 32768, 32768, channel=1) for n in range(17)])  # more than it holds
        self.ends(run_of(2**64 - 64, 64))
        self.ends(piece(64, 64))
        self.ends(piece(2**64 - 64, 64))
        self.ends(run_of(0, 64), piece(0, 100))
        self.ends(credit(0, 64))

    def test_29_addresses_that_wrap_and_keys_that_are_not_its(self):
        name, (base, key) = self.server.ask("name 0"), map(int, self.server.ask("region").split())
        for at, of, size in ((2**64 - 8, key, 64), (2**64 - 64, key, 64),
                             (base + 2**20 - 8, key, 64),
                             (base - 1 if base else 2**63, key, 8), (base, key + 1, 8),
                             (base, 2**64 - 1, 8), (base, draw.getrandbits(64) | 2, 8)):
            peer = int(self.honest.ask(f"peer {name} {at} {of}"))
            for kind in ("read", "write"):
                code, _ = self.honest.once(kind, peer, size)
                self.assertGreater(code, 0, (kind, at, of, size))

    def test_30_an_end_in_the_middle_and_more_behind_the_end(self):
        for said in (b"\1", cells(1, bytes(60))[:30], run_of(0, 4096)[:100], frame(CLOSE)[:7]):
            one = self.opened()
            one.send(said)
            one.socket.shutdown(socket.SHUT_WR)
            self.assertTrue(one.is_hung_up_on(), said.hex())
        self.ends(frame(CLOSE), cells(1, bytes(60)))

    def test_bytes_by_chance(self):
        for _ in range(50):
            one = self.opened()
            with contextlib.suppress(OSError):
                one.send(draw.randbytes(draw.choice((8, 64, 70000))))
                one.socket.shutdown(socket.SHUT_WR)
            self.assertTrue(one.is_hung_up_on())
        for _ in range(100):  # well framed
            one = self.opened()
            count = draw.randint(1, 4)
            bodies = b"".join(bytes([draw.randint(0, 40)]) + draw.randbytes(59)
                              for _ in range(count))
            with contextlib.suppress(OSError):
                one.send(cells(count, bodies, channel=draw.randint(0, 1)))
            one.socket.close()

    # --- crowds ---

    def test_31_33_a_newcomer_gets_in_beside_those_who_say_nothing_or_little(self):
        slow = [self.stranger() for _ in range(4)]
        crowd = [self.stranger() for _ in range(SILENT)]
        began = time.monotonic()
        slowest = 0.0

        def drip():
            for one in slow:
                with contextlib.suppress(OSError):
                    one.send(one.hello()[len(one.said):][:1])

        for _ in range(5):
            drip()
            newcomer = self.player(self.hosts.client)
            slowest = max(slowest, self.works(newcomer, newcomer.know(self.server), 2))
            newcomer.end()
        self.works(self.honest, self.to, 2)
        held = self.server.descriptors() - self.held
        print(f"beside {len(crowd)} half-open connections a newcomer is in after "
              f"{slowest * 1e3:.1f} ms at most; {held} of them are held", flush=True)
        while time.monotonic() < began + HANDSHAKE_SECONDS + 3:
            drip()
            time.sleep(0.2)
        for one in slow:
            self.assertTrue(one.is_hung_up_on(1))
            self.assertLess(len(one.said), 128)
        self.assertLessEqual(self.server.descriptors(), self.held + 8)

    def test_34_a_host_that_opens_all_it_can_leaves_room_for_another(self):
        limited = self.player(self.hosts.server, "--at", self.hosts.server.ip, str(PORT + 1),
                              program=("prlimit", "--nofile=512:512", PROGRAM))
        self.hosts.client.run("ip", "addr", "add", "10.83.0.3/24", "dev", self.hosts.client.device)
        greedy: list[Stranger] = []
        before = limited.status("VmSize")
        for port in range(20000, 20600):
            one = self.stranger("10.83.0.3", PORT + 1)
            one.port = port
            greeted = one.greeted()
            if greeted != STAYS or one.asked(one.opening())[0] != ACCEPT:
                break
            greedy.append(one)
        print(f"one host got {len(greedy)} connections of a process with 512 descriptors, and had "
              f"{(limited.status('VmSize') - before) // 1024} MiB mapped: then it was told "
              f"{'busy' if greeted == BUSY else greeted}", flush=True)
        self.assertLess(len(greedy), 256)
        self.assertGreater(len(greedy), 16)
        newcomer = self.player(self.hosts.client)
        self.works(newcomer, newcomer.know(limited), 2)
        self.assertFalse(greedy[0].is_hung_up_on(0.1))


if __name__ == "__main__":
    unittest.main()
