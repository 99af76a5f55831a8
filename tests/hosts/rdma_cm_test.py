"""Connections of rdma_cm between two hosts, without queue pairs: `rdma_cm_test.py PRELOAD`, the
library with the commands of the verbs door.

What is played is written in Python against the kernel's interface (tests/rdma_cm/ucma.py); each
part is a process on one of the hosts, and speaks to the test by lines.
"""
import errno
import json
import os
import socket
import struct
import subprocess
import sys
import time
import unittest

import two_hosts

HERE = os.path.dirname(os.path.abspath(__file__))
PRELOAD = sys.argv.pop(1)
if __name__ == "__main__" and "PART" not in os.environ:
    two_hosts.enter()
sys.path.insert(0, f"{HERE}/../rdma_cm")
import ucma  # noqa: E402

PORT, PORTER = 7471, 4791
SPACES = {"tcp": ucma.PS_TCP, "udp": ucma.PS_UDP}
HEAD = b"APERTPH\0"


def hello(port=PORT, source=40000, space=0, version=1, magic=HEAD, zero=0) -> bytes:
    return magic + struct.pack("<HBBHH", version, space, zero, port, source)


# Somebody of the id's own user who passes on what is no connection of another host: "closed" for
# each that the id lets go of.
FALSE_PORTER = """
import array, os, socket, struct, sys
ip, name = sys.argv[1], b"\\0" + sys.argv[2].encode()
listening = socket.create_server((ip, 0))
own = socket.create_connection(listening.getsockname())
unix = socket.socketpair()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((ip, 0))
note = b"APERTPN\\0" + struct.pack("<HHHH", 1, 0, 4000, 0)
for said, passed in ((note, []), (note, [own]), (note, [listening]), (note, [unix[0]]),
                     (note, [udp]), (note, [own, own]), (note + b"x", [own]), (note[:15], [own]),
                     (os.urandom(16), [own]), (b"APERTCM\\0" + bytes(8), [own])):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    s.connect(name)
    fds = array.array("i", [p.fileno() for p in passed])
    s.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if passed else [])
    try:
        print("answered" if s.recv(1) else "closed")
    except ConnectionResetError:
        print("closed")
"""


# ---- the parts: what runs on a host --------------------------------------------------------------

class Part:
    """Commands by lines of JSON, on a channel and ids of its own."""

    def __init__(self):
        self.channel = ucma.Channel()

    def listen(self, ip, port, space="tcp", backlog=0):
        return self.channel.listening(1, ip, port, SPACES[space], backlog)

    def resolved(self, ip, port, space="tcp"):
        return self.channel.resolved(2, ip, port, SPACES[space])

    def resolve(self, ip, port):
        try:
            self.channel.resolve(self.channel.create(3), ip, port)
        except OSError as error:
            return errno.errorcode[error.errno]
        return "resolved"

    def connect(self, handle, data="", qpn=0):
        self.channel.connect(handle, data=data.encode(), qpn=qpn)

    def accept(self, handle, data="", qpn=0):
        self.channel.accept(handle, 4, data=data.encode(), qpn=qpn)

    def establish(self, handle):
        self.channel.establish(handle)

    def reject(self, handle, data=""):
        self.channel.reject(handle, data.encode())

    def disconnect(self, handle):
        self.channel.disconnect(handle)

    def destroy(self, handle):
        self.channel.destroy(handle)

    def event(self):
        e = self.channel.event()
        return {"kind": e.kind, "id": e.id, "status": e.status, "qpn": e.qpn,
                "data": (e.data[:e.size] if e.size else b"").rstrip(b"\0").decode("latin-1"),
                "ud_data": e.ud_data[:e.ud_size].rstrip(b"\0").decode("latin-1")}

    def is_quiet(self, ms):
        return not self.channel.is_ready(ms)

    def route(self, handle):
        found = self.channel.query_route(handle)
        return {"src": found["src"], "dst": found["dst"], "dgid": found["dgid"].hex()}

    def become(self, uid):
        """Of another user from now on. (The control thread, which connects and listens, too: libc
        sees to that.)"""
        os.setuid(uid)

    def serve(self):
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            call, arguments = json.loads(line)
            print(json.dumps(getattr(self, call)(**arguments)), flush=True)


# ---- the test -----------------------------------------------------------------------------------

class Ends(dict):
    __getattr__ = dict.__getitem__


class Process:
    def __init__(self, host: two_hosts.Host, user: int | None = None):
        env = {"LD_PRELOAD": PRELOAD, "PART": "1", "APERTURE_LOG": "warn",
               "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = host.start([sys.executable, os.path.abspath(__file__), PRELOAD], env=env,
                                  stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        self.heard()
        if user is not None:
            self.become(uid=user)

    def heard(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"a part has ended: {self.process.stderr.read()}")
        answer = json.loads(line)
        return Ends(answer) if isinstance(answer, dict) else answer

    def __getattr__(self, call):
        def ask(**arguments):
            self.process.stdin.write(json.dumps([call, arguments]) + "\n")
            self.process.stdin.flush()
            return self.heard()
        return ask

    def kill(self):
        two_hosts.kill(self.process)

    def end(self) -> str:
        """What it has said on stderr."""
        self.process.stdin.close()
        said = self.process.stderr.read()
        self.process.wait()
        return said


class BetweenHosts(unittest.TestCase):
    iface: str | None = "address"
    env: dict[str, str] = {}

    def setUp(self):
        self.hosts = two_hosts.TwoHosts(iface=self.iface, env=self.env)
        self.addCleanup(self.hosts.close)
        self.server = Process(self.hosts.server)
        self.client = Process(self.hosts.client)
        self.ip = self.hosts.server.ip

    def expect(self, part: Process, kind: int, status=0) -> Ends:
        event = part.event()
        self.assertEqual((event.kind, event.status), (kind, status))
        return event

    def listen(self, part: Process | None = None, **how):
        (part or self.server).listen(**{"ip": "0.0.0.0", "port": PORT, **how})
        self.assertTrue(self.hosts.server.wait_for(f"tcp:{PORTER}"))

    def established(self, server: Process | None = None) -> tuple[int, int]:
        server = server or self.server
        active = self.client.resolved(ip=self.ip, port=PORT)
        self.client.connect(handle=active, data="to you", qpn=0x1234)
        request = self.expect(server, ucma.CONNECT_REQUEST)
        self.assertEqual((request.data, request.qpn), ("to you", 0x1234))
        server.accept(handle=request.id, data="and back", qpn=0x5678)
        answer = self.expect(self.client, ucma.CONNECT_RESPONSE)
        self.assertEqual((answer.data, answer.qpn), ("and back", 0x5678))
        self.client.establish(handle=active)
        self.expect(server, ucma.ESTABLISHED)
        return active, request.id

    def raw(self, *messages: bytes) -> socket.socket:
        """A stranger on the client's host."""
        with self.hosts.client.inside_network():
            made = socket.create_connection((self.ip, PORTER), timeout=10)
        for message in messages:
            made.sendall(message)
        self.addCleanup(made.close)
        return made

    def assert_closed(self, stranger: socket.socket, before: bytes = b""):
        got = b""
        try:
            while part := stranger.recv(1000):
                got += part
        except ConnectionResetError:
            pass
        self.assertEqual(got, before)


class Exchange(BetweenHosts):
    def test_a_connection_is_made_and_ended(self):
        self.listen()
        active, passive = self.established()
        seen = self.server.route(handle=passive)
        self.assertEqual(seen["src"], [self.ip, PORT])
        self.assertEqual(seen["dst"][0], self.hosts.client.ip)
        self.assertEqual(seen["dst"], self.client.route(handle=active)["src"])
        self.assertEqual(seen["dgid"], ucma.mapped(self.hosts.client.ip).hex())
        self.client.disconnect(handle=active)
        self.expect(self.server, ucma.DISCONNECTED)
        self.expect(self.client, ucma.DISCONNECTED)

    def test_either_side_may_reject(self):
        self.listen()
        active = self.client.resolved(ip=self.ip, port=PORT)
        self.client.connect(handle=active)
        request = self.expect(self.server, ucma.CONNECT_REQUEST)
        self.server.reject(handle=request.id, data="not you")
        self.assertEqual(self.expect(self.client, ucma.REJECTED, 28).data, "not you")

    def test_a_killed_peer_is_noticed(self):
        self.listen()
        self.established()
        self.client.kill()
        self.expect(self.server, ucma.DISCONNECTED)

    def test_a_service_id_is_resolved(self):
        self.listen(space="udp")
        asking = self.client.resolved(ip=self.ip, port=PORT, space="udp")
        self.client.connect(handle=asking, data="who?")
        request = self.expect(self.server, ucma.CONNECT_REQUEST)
        self.assertEqual(request.ud_data, "who?")
        self.server.accept(handle=request.id, data="me", qpn=0xABCD)
        answer = self.expect(self.client, ucma.ESTABLISHED)
        self.assertEqual((answer.ud_data, answer.qpn), ("me", 0xABCD))

    def test_where_nobody_listens_it_is_rejected_or_unreachable(self):
        for with_porter in (False, True):
            if with_porter:
                self.listen()
            for space, kind, status in (("tcp", ucma.REJECTED, 8), ("udp", ucma.UNREACHABLE, 1)):
                with self.subTest(space=space, with_porter=with_porter):
                    id = self.client.resolved(ip=self.ip, port=PORT + 1, space=space)
                    self.client.connect(handle=id)
                    self.expect(self.client, kind, status)
        self.assertTrue(self.server.is_quiet(ms=10))

    def test_a_host_that_is_not_there_is_unreachable(self):
        id = self.client.resolved(ip="10.83.0.77", port=PORT)
        self.client.connect(handle=id)
        self.expect(self.client, ucma.UNREACHABLE, -errno.ETIMEDOUT)

    def test_an_id_at_another_address_is_not_reached(self):
        self.listen(port=PORT + 1)
        self.server.listen(ip="127.0.0.1", port=PORT)
        id = self.client.resolved(ip=self.ip, port=PORT)
        self.client.connect(handle=id)
        self.expect(self.client, ucma.REJECTED, 8)

    def test_the_id_that_waits_longest_is_destroyed_on_its_way(self):
        self.listen()
        self.hosts.cut()
        for _ in range(3):
            id = self.client.resolved(ip=self.ip, port=PORT)
            self.client.connect(handle=id)
            self.client.destroy(handle=id)
        self.assertTrue(self.client.is_quiet(ms=100))


class ByInterface(BetweenHosts):
    iface = "name"

    def test_a_connection_is_made_over_ipv6(self):
        self.ip = self.hosts.server.ip6
        self.listen(ip="::")
        active, passive = self.established()
        self.assertEqual(self.server.route(handle=passive)["dst"][0], self.hosts.client.ip6)
        self.client.disconnect(handle=active)
        self.expect(self.server, ucma.DISCONNECTED)


class ByAnotherPort(BetweenHosts):
    env = {"APERTURE_CM_PORT": "1018"}

    def test_a_connection_is_made(self):
        self.server.listen(ip="0.0.0.0", port=PORT)
        self.assertTrue(self.hosts.server.wait_for("tcp:1018"))
        self.assertFalse(self.hosts.server.is_listening(f"tcp:{PORTER}"))
        self.established()

    @unittest.skipUnless(os.geteuid() == 0, "needs two users")
    def test_who_has_no_privilege_is_no_porter_there(self):
        self.server.become(uid=65534)
        self.server.listen(ip="0.0.0.0", port=PORT)
        self.assertFalse(self.hosts.server.wait_for("tcp:1018", seconds=0.5))
        self.assertIn("TCP port 10.83.0.1:1018 cannot be had", self.server.end())


class TakenPort(BetweenHosts):
    def test_a_program_that_has_the_port_is_named_and_the_next_to_listen_looks_again(self):
        code = ("import socket, sys; s = socket.create_server((sys.argv[1], 4791));"
                "s.accept(); sys.exit(0)")
        other = self.hosts.server.start([sys.executable, "-c", code, self.ip])
        self.assertTrue(self.hosts.server.wait_for(f"tcp:{PORTER}"))
        self.server.listen(ip="0.0.0.0", port=PORT)
        time.sleep(2.5)
        self.raw().close()  # and with that the other program ends
        other.wait()
        self.listen(port=PORT + 1)
        self.established()
        self.assertIn("address in use", self.server.end())


class NotOffered(BetweenHosts):
    iface = None

    def test_the_way_out_has_to_be_offered(self):
        self.assertEqual(self.client.resolve(ip=self.ip, port=PORT), "ENETUNREACH")
        self.assertIn("set FI_APERTURE_IFACE", self.client.end())

    def test_no_porter_is_to_be_had(self):
        self.server.listen(ip="0.0.0.0", port=PORT)
        self.assertFalse(self.hosts.server.wait_for(f"tcp:{PORTER}", seconds=0.5))


class Succession(BetweenHosts):
    @staticmethod
    def switches(pid: int) -> int:
        """How often its threads have been put on or taken off a processor."""
        count = 0
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as file:
                count += sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
        return count

    def test_who_waits_for_the_post_has_it_when_its_holder_ends(self):
        self.listen(port=PORT + 1)  # the porter, who has nothing else to do with it
        second, third = Process(self.hosts.server), Process(self.hosts.server)
        self.listen(second)
        self.listen(third, port=PORT + 2)
        self.established(second)
        self.server.kill()
        self.assertTrue(self.hosts.server.wait_for(f"tcp:{PORTER}"))
        self.established(second)
        second.kill()
        for _ in range(2):  # also the one that the first porter has brought
            self.expect(self.client, ucma.DISCONNECTED)
        self.assertTrue(self.hosts.server.wait_for(f"tcp:{PORTER}"))
        again = Process(self.hosts.server)
        self.listen(again)
        self.established(again)

    def test_who_listens_no_more_leaves_the_post(self):
        first = self.server.listen(ip="0.0.0.0", port=PORT + 1)
        second = Process(self.hosts.server)
        self.listen(second)
        self.server.destroy(handle=first)
        time.sleep(0.2)
        self.assertTrue(self.hosts.server.wait_for(f"tcp:{PORTER}"))
        self.established(second)

    def test_who_waits_for_the_post_uses_no_processor(self):
        self.listen(port=PORT + 1)
        second = Process(self.hosts.server)
        self.listen(second)

        pids = [two_hosts.child_of(part.process.pid) for part in (self.server, second)]
        before = [self.switches(pid) for pid in pids]
        time.sleep(1)
        self.assertEqual([self.switches(pid) for pid in pids], before)

    def test_a_squatter_of_the_post_costs_little(self):
        """Whoever has the name and does not listen, or lets go of everybody at once."""
        for squat in ("s.bind(n)", "s.bind(n); s.listen()\nwhile True: s.accept()[0].close()"):
            name = f"aperture/rdma_cm/porter/{self.ip}:{PORTER}"
            code = ("import socket, time\nn = b'\\0' + " + repr(name.encode()) +
                    "\ns = socket.socket(socket.AF_UNIX)\n" + squat + "\ntime.sleep(60)")
            squatter = self.hosts.server.start([sys.executable, "-c", code])
            while not any(name in line for line in self.unix_sockets()):
                time.sleep(0.02)
            part = Process(self.hosts.server)
            part.listen(ip="0.0.0.0", port=PORT)
            pid = two_hosts.child_of(part.process.pid)
            before = self.switches(pid)
            time.sleep(2)
            self.assertLess(self.switches(pid) - before, 40)
            two_hosts.kill(squatter)
            self.assertTrue(self.hosts.server.wait_for(f"tcp:{PORTER}"))
            self.established(part)
            part.kill()
            self.expect(self.client, ucma.DISCONNECTED)

    def unix_sockets(self):
        with open(f"/proc/{self.hosts.server.pid}/net/unix", encoding="utf-8") as file:
            return file.readlines()

    @unittest.skipUnless(os.geteuid() == 0, "needs two users")
    def test_a_porter_of_another_user_is_not_believed(self):
        self.server.become(uid=65534)
        self.listen(port=PORT + 1)
        second = Process(self.hosts.server)  # root's
        self.listen(second)
        id = self.client.resolved(ip=self.ip, port=PORT)
        self.client.connect(handle=id)
        self.expect(self.client, ucma.REJECTED, 8)
        self.assertTrue(second.is_quiet(ms=10))
        said = second.end()
        self.assertIn("is another user's", said)
        self.assertIn("they are refused", said)

    @unittest.skipUnless(os.geteuid() == 0, "needs two users")
    def test_a_porter_of_root_is_believed(self):
        self.listen(port=PORT + 1)
        second = Process(self.hosts.server, user=65534)
        self.listen(second)
        self.established(second)


class Hostile(BetweenHosts):
    def setUp(self):
        super().setUp()
        self.listen()

    def tearDown(self):
        self.established()  # honest peers are heard, whatever came before

    def test_hostile_24_25_rubbish_is_closed_unanswered(self):
        sound = hello()
        for wrong in (hello(magic=b"APERTPX\0"), hello(version=2), hello(space=4), hello(port=0),
                      hello(source=0), hello(zero=1), os.urandom(16), bytes(16), os.urandom(5000),
                      b"GET / HTTP/1.1\r\n\r\n"):
            self.assert_closed(self.raw(wrong))
        for cut in range(0, len(sound), 3):
            stranger = self.raw(sound[:cut])
            stranger.shutdown(socket.SHUT_WR)
            self.assert_closed(stranger)
        self.assertTrue(self.server.is_quiet(ms=50))

    def test_hostile_31_a_slow_hello_is_cut_off(self):
        slow = self.raw()
        begin = time.monotonic()
        with self.assertRaises(OSError):
            for byte in hello():
                slow.sendall(bytes([byte]))
                time.sleep(0.5)
        self.assertLess(time.monotonic() - begin, 7)

    def test_hostile_33_a_thousand_half_open_hold_nobody_up(self):
        crowd = [self.raw() for _ in range(1000)]
        begin = time.monotonic()
        self.established()
        self.assertLess(time.monotonic() - begin, 3)
        self.assert_closed(crowd[0])

    def test_hostile_33_a_thousand_without_a_request_hold_nobody_up(self):
        crowd = [self.raw(hello(source=1 + n)) for n in range(1000)]
        begin = time.monotonic()
        self.established()
        self.assertLess(time.monotonic() - begin, 3)
        self.assertEqual(len(crowd[0].recv(16)), 16)
        self.assert_closed(crowd[0])

    def test_what_is_no_request_after_the_hello_ends_the_connection(self):
        head = b"APERTCM\0"
        for wrong in (os.urandom(132), head + struct.pack("<HBBI", 1, 1, 0, 0),
                      head + struct.pack("<HBBI", 1, 1, 0, 1 << 31),
                      head + struct.pack("<HBBI", 1, 4, 0, 16),
                      head + struct.pack("<HBBI", 1, 1, 0, 132) + os.urandom(500)):
            stranger = self.raw(hello(), wrong)
            answer = stranger.recv(16)
            self.assertEqual(answer, b"APERTPA\0" + struct.pack("<HB5x", 1, 1))
            self.assert_closed(stranger)
        self.assertTrue(self.server.is_quiet(ms=50))

    def test_hostile_4_a_request_that_lies_about_its_addresses_is_rejected(self):
        there = ucma.mapped(self.ip) + struct.pack("<H", PORT)
        for source in (ucma.mapped("10.83.0.9") + struct.pack("<H", 40000),
                       ucma.mapped(self.hosts.client.ip) + struct.pack("<H", 40001),
                       ucma.mapped("127.0.0.1") + struct.pack("<H", 40000)):
            request = b"APERTCM\0" + struct.pack("<HBBI", 1, 1, 0, 132) + source + there + bytes(80)
            stranger = self.raw(hello(source=40000), request)
            self.assertEqual(len(stranger.recv(16, socket.MSG_WAITALL)), 16)
            answer = stranger.recv(168, socket.MSG_WAITALL)
            self.assertEqual(struct.unpack_from("<BxII", answer, 10)[::2], (5, 8))

    def test_of_this_host_nobody_comes_by_the_porter(self):
        """Whoever is here has a name, which says what his port is."""
        code = ("import socket, sys; s = socket.create_connection((sys.argv[1], 4791), timeout=10);"
                "s.sendall(bytes.fromhex(sys.argv[2])); print(s.recv(100))")
        local = self.hosts.server.start([sys.executable, "-c", code, self.ip, hello().hex()])
        self.assertEqual(local.communicate(timeout=20)[0], "b''\n")
        self.assertTrue(self.server.is_quiet(ms=50))

    def test_what_is_no_connection_of_another_host_is_not_taken(self):
        porter = self.hosts.server.start([sys.executable, "-c", FALSE_PORTER, self.ip,
                                          f"aperture/rdma_cm/tcp/{self.ip}:{PORT}"])
        said, _ = porter.communicate(timeout=60)
        self.assertEqual(said.split(), ["closed"] * 10)
        self.assertTrue(self.server.is_quiet(ms=50))

    def test_a_hello_for_nobody_is_answered_so(self):
        self.assert_closed(self.raw(hello(port=9)), b"APERTPA\0" + struct.pack("<HB5x", 1, 2))


if __name__ == "__main__":
    if "PART" in os.environ:
        Part().serve()
    else:
        unittest.main()
