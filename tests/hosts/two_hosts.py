#!/usr/bin/env python3
"""Two hosts on one machine, and programs on both: network namespaces joined by a veth pair.

    two_hosts.py [options] -- SERVER... --- CLIENT...

SERVER runs on the one host, CLIENT on the other once the server is waited for; `@server` and
`@client` in their arguments (`@server6`, `@client6`) are the hosts' addresses. Both have their
address in FI_APERTURE_IFACE. The exit status is 0 if both end with 0, 1 if one of them does not or
time is up (what both printed then comes out), 77 where no hosts can be made here (the reason does).

    --wait WHAT     before the client starts: tcp:PORT, udp:PORT, cm:PORT (an id of rdma_cm) or
                    sleep:SECONDS; may be given several times
    --seconds N     for all of it (default 60)
    --loss PERCENT  of the packets that arrive at either host
    --delay MS      of each packet, one way (the hosts are then joined by no Ethernet, and slower)
    --mtu BYTES     of the link (default 1500)
    --env K=V       for both
    --no-iface      FI_APERTURE_IFACE stays unset (in Python: iface=None)
    --ignore-server-status  the server may end as it likes; it is killed if it does not end
    --verbose       what both print comes out in any case

Each host has namespaces of its own for network, processes, IPC, mounts (its /proc and /dev/shm) and
its name, so that nothing of one is seen from the other; the boot id alone is the same. Whatever
ends this program ends all that it started, with the namespaces. In Python:

    two_hosts.enter()                    # first of all; may end the process with 77
    with two_hosts.TwoHosts() as hosts:
        process = hosts.server.start(["ibv_devices"])
"""
import argparse
import collections
import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../sandbox")
import listeners  # noqa: E402

SKIP = 77
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
INSIDE = "APERTURE_TEST_HOSTS"
OWN = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts"]


def skip(why: str):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def enter():
    """Runs this program again, as the first process of namespaces in which hosts can be made, and
    ends as it does. Returns in that one only."""
    if os.environ.get(INSIDE) == "1":
        os.environ.pop(INSIDE)  # hosts may be made within a host
        return
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for tool in ("ip", "unshare", "nsenter"):
        if not shutil.which(tool, path=path):
            skip(f"{tool} is not installed")
    own = [*OWN, *([] if os.geteuid() == 0 else ["--map-root-user"])]
    probe = subprocess.run([*own, "sh", "-c",
                            "ip link add here type veth peer name there && unshare --net true"],
                           capture_output=True, text=True, check=False, env={"PATH": path})
    if probe.returncode != 0:
        skip(f"no network namespaces can be made here: {probe.stderr.strip()}")
    os.environ.update({INSIDE: "1", "PATH": path})
    # however we end, unshare is killed, and its child then
    inner = subprocess.Popen([*own, *sys.orig_argv], preexec_fn=end_with_parent)
    sys.exit(inner.wait())


def set_namespace(fd: int):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def child_of(parent: int) -> int:
    """Its only child, once it has one."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == parent:
                        return int(pid)
            except OSError:
                pass
        time.sleep(0.01)
    raise RuntimeError("a host did not start")


def kill(process: subprocess.Popen):
    """What Host.start() returned: nsenter, which the program is a child of."""
    os.kill(child_of(process.pid), signal.SIGKILL)
    process.wait()


class Host:
    """One of the two. `env` is what its programs have beside our own environment."""

    def __init__(self, number: int, env: dict[str, str]):
        self.ip, self.ip6 = f"10.83.0.{number}", f"fd83::{number}"
        self.env = env
        self.device = f"host{number}"
        # what runs first says that mounts and name are there, then lives as long as we do
        self.holder = subprocess.Popen(
            [*OWN, "sh", "-c", "mount -t sysfs none /sys; "
             "mount -t tmpfs none /dev/shm && hostname \"$0\" && echo up && exec sleep 1000000",
             self.device],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "up\n":
            skip(f"no host can be made here: {self.holder.stderr.read().strip()}")
        self.pid = child_of(self.holder.pid)
        self.started: list[subprocess.Popen] = []
        self.run("ip", "link", "set", "lo", "up")

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", "--ipc", "--uts",
                "--wd=.", *command]

    @contextlib.contextmanager
    def inside_network(self):
        """This thread is in the host's network: what it opens meanwhile stays there."""
        with open(f"/proc/{self.pid}/ns/net", encoding="ascii") as there, \
                open("/proc/self/ns/net", encoding="ascii") as own:
            set_namespace(there.fileno())
            try:
                yield
            finally:
                set_namespace(own.fileno())

    def file(self, path: str) -> str:
        """Of the host's, as we can open it."""
        return f"/proc/{self.pid}/root{path}"

    def run(self, *command: str, **how):
        subprocess.run(self.inside(*command), check=True, **how)

    def start(self, command: list[str], env: dict[str, str] | None = None, **how):
        """A Popen; its output is a pipe unless `how` says otherwise."""
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
               "text": True, "errors": "replace", **how}
        process = subprocess.Popen(self.inside(*command),
                                   env={**os.environ, **self.env, **(env or {})}, **how)
        self.started.append(process)
        return process

    def is_listening(self, what: str) -> bool:
        kind, _, port = what.partition(":")
        by = {"tcp": listeners.by_tcp, "udp": listeners.by_udp, "cm": listeners.by_rdma_cm}
        return by[kind](int(port), net=f"/proc/{self.pid}/net")

    def wait_for(self, what: str, server: subprocess.Popen | None = None, seconds: float = 30):
        """tcp:PORT, udp:PORT, cm:PORT, sleep:SECONDS. False: not in time, or the server ended."""
        if what.startswith("sleep:"):
            time.sleep(float(what[6:]))
            return True
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.is_listening(what):
                return True
            if server is not None and server.poll() is not None:
                return False
            time.sleep(0.02)
        return False


class Damage:
    """Flips a bit in the middle of every Nth large packet of TCP (IPv4), and puts its checksum
    right: what has passed through somebody's bad memory."""

    LARGE = 512  # bytes of payload

    def __init__(self, every: int):
        self.every = every
        self.large = 0

    def done_to(self, packet: bytes) -> bytes:
        if self.every == 0 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return packet
        tcp = packet[0] % 16 * 4
        payload = tcp + packet[tcp + 12] // 16 * 4
        if len(packet) - payload < self.LARGE:
            return packet
        self.large += 1
        if self.large % self.every != 0:
            return packet
        at = payload + (len(packet) - payload) // 4 * 2
        at -= (at - tcp) % 2  # the sum is one of words of 16 bits
        spoilt = bytearray(packet)
        spoilt[at] ^= 0x10
        # RFC 1624: of the sum's complement, the old word is taken and the new one added
        said, = struct.unpack_from("!H", packet, tcp + 16)
        old, = struct.unpack_from("!H", packet, at)
        new, = struct.unpack_from("!H", spoilt, at)
        total = (said ^ 0xffff) + (old ^ 0xffff) + new
        total = (total & 0xffff) + (total >> 16)
        total = (total & 0xffff) + (total >> 16)
        struct.pack_into("!H", spoilt, tcp + 16, total ^ 0xffff)
        return bytes(spoilt)


class Disorder:
    """Lets the next two packets that go the same way overtake every Nth, if they come soon."""
    SOON_S = 0.002

    def __init__(self, every: int):
        self.every = every
        self.passed = 0
        # of a way: one that waits, how many it still lets by, and until when
        self.held: dict[int, tuple[bytes, int, float]] = {}

    def past(self, way: int, packet: bytes) -> list[bytes]:
        """What goes on now."""
        if self.every == 0:
            return [packet]
        if way in self.held:
            waiting, ahead, until = self.held[way]
            if ahead > 1:
                self.held[way] = waiting, ahead - 1, until
                return [packet]
            del self.held[way]
            return [packet, waiting]
        self.passed += 1
        if self.passed % self.every != 0:
            return [packet]
        self.held[way] = packet, 2, time.monotonic() + self.SOON_S
        return []

    def overdue(self) -> list[tuple[int, bytes]]:
        now = time.monotonic()
        due = [(way, packet) for way, (packet, _, until) in self.held.items() if until <= now]
        for way, _ in due:
            del self.held[way]
        return due


def relay(fds: list[int], delay_s: float, damage: int, disorder: int):
    """Passes each packet of either tunnel device on to the other, so much later, damages one in so
    many, and lets one in so many be overtaken (0: none)."""
    damaged, disordered = Damage(damage), Disorder(disorder)
    under_way: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        if disordered.held:
            wait = min(Disorder.SOON_S, wait or Disorder.SOON_S)
        for fd in select.select(fds, [], [], wait)[0]:
            try:
                for _ in range(64):
                    packet = damaged.done_to(os.read(fd, 65536))
                    to = fds[1 - fds.index(fd)]
                    under_way.extend((time.monotonic() + delay_s, to, each)
                                     for each in disordered.past(to, packet))
            except BlockingIOError:
                pass
            except OSError:  # the device is down
                time.sleep(0.001)
        under_way.extend((time.monotonic() + delay_s, *each) for each in disordered.overdue())
        while under_way and under_way[0][0] <= time.monotonic():
            _, fd, packet = under_way.popleft()
            try:
                os.write(fd, packet)
            except OSError:  # likewise: the packet is lost
                pass


class TwoHosts:
    def __init__(self, *, env: dict[str, str] | None = None, iface: str | None = "address",
                 mtu=1500, loss=0.0, delay_ms=0.0, damage=0, disorder=0):
        """iface: what FI_APERTURE_IFACE says, "address" or "name" of the interface, or None.
        damage: of so many large packets one (0: none), see Damage. disorder: of so many packets one
        is overtaken (0: none). What this machine cannot do is a unittest.SkipTest: the other cases
        of a program go on."""
        by_relay = delay_ms > 0 or damage > 0 or disorder > 0
        if by_relay and not os.path.exists("/dev/net/tun"):
            raise unittest.SkipTest("there is no /dev/net/tun to do something to packets by")
        if loss > 0 and not shutil.which("nft"):
            raise unittest.SkipTest("nft is not installed")
        self.hosts = []
        for number in (1, 2):
            said = {"address": f"10.83.0.{number}", "name": f"host{number}"}
            own = {"FI_APERTURE_IFACE": said[iface]} if iface else {}
            self.hosts.append(Host(number, {**own, **(env or {})}))
        self.server, self.client = self.hosts
        self.relay = None
        if by_relay:
            self.join_by_relay(mtu, f"{delay_ms / 1000}, {damage}, {disorder}")
        else:
            ends = [("name", host.device, "mtu", str(mtu), "netns", str(host.pid))
                    for host in self.hosts]
            subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]],
                           check=True)
        for host in self.hosts:
            host.run("ip", "addr", "add", f"{host.ip}/24", "dev", host.device)
            host.run("ip", "addr", "add", f"{host.ip6}/64", "dev", host.device, "nodad")
            host.run("ip", "link", "set", host.device, "up")
            # a host has somewhere to send what is for none of its networks
            host.run("ip", "route", "add", "default", "dev", host.device)
            self.spoil(host, loss)

    def join_by_relay(self, mtu: int, what: str):
        """By tunnel devices instead of Ethernet: not every kernel delays packets by itself."""
        fds = []
        for host in self.hosts:
            with host.inside_network():
                fds.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
                fcntl.ioctl(fds[-1], TUNSETIFF,
                            struct.pack("16sH22x", host.device.encode(), IFF_TUN | IFF_NO_PI))
            host.run("ip", "link", "set", host.device, "mtu", str(mtu))
        code = f"import two_hosts; two_hosts.relay({fds}, {what})"
        self.relay = subprocess.Popen([sys.executable, "-c", code], pass_fds=fds, cwd=HERE)
        for fd in fds:
            os.close(fd)

    @staticmethod
    def spoil(host: Host, loss: float):
        if loss > 0:
            host.run("nft", "-f", "-", text=True, input=(
                "table inet spoil {\nchain in {\ntype filter hook input priority 0;\n"
                f"iifname {host.device} numgen random mod 100000 < {int(loss * 1000)} drop\n"
                "}\n}\n"))

    def cut(self, is_cut=True):
        """The cable is pulled, or plugged in again."""
        self.server.run("ip", "link", "set", self.server.device, "down" if is_cut else "up")

    def spelt(self, command: list[str]) -> list[str]:
        names = {"@server6": self.server.ip6, "@client6": self.client.ip6,
                 "@server": self.server.ip, "@client": self.client.ip}
        for name, address in names.items():
            command = [word.replace(name, address) for word in command]
        return command

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
        for host in self.hosts:
            host.holder.kill()  # and with it, by --kill-child, all processes of that host
            for process in (host.holder, *host.started):
                process.send_signal(signal.SIGCONT)  # nsenter stops with what it has started
                process.wait()
                for pipe in (process.stdout, process.stderr):
                    if pipe is not None:
                        pipe.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--wait", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--no-iface", action="store_true")
    parser.add_argument("--ignore-server-status", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    own, _, rest = "\0".join(sys.argv).partition("\0--\0")
    server, _, client = rest.partition("\0---\0")
    if not server or not client:
        parser.error("there is no server, or no client")
    given = parser.parse_args(own.split("\0")[1:])
    given.server, given.client = server.split("\0"), client.split("\0")
    return given


def status_of(process: subprocess.Popen, until: float) -> int | str:
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "not ended in time"


def play(hosts: TwoHosts, given: argparse.Namespace) -> bool:
    """Whether both ended well; what they printed has come out if they did not."""
    until = time.monotonic() + given.seconds
    with tempfile.TemporaryFile("w+") as served, tempfile.TemporaryFile("w+") as printed:
        server = hosts.server.start(hosts.spelt(given.server), stdout=served)
        ready = all(hosts.server.wait_for(what, server, until - time.monotonic())
                    for what in given.wait)
        ends: dict[str, int | str] = {"server": "not waiting for its client"}
        if ready:
            client = hosts.client.start(hosts.spelt(given.client), stdout=printed)
            ends = {"client": status_of(client, until)}
            # a server whose client has failed would wait for another one
            patience = 3600 if ends["client"] == 0 and not given.ignore_server_status else 3
            status = status_of(server, min(until, time.monotonic() + patience))
            if not given.ignore_server_status:
                ends["server"] = status
        well = all(status == 0 for status in ends.values())
        if given.verbose or not well:
            for name, file in (("server", served), ("client", printed)):
                file.seek(0)
                print(f"--- {name}: {ends.get(name, 'whatever')}\n{file.read()}", flush=True)
    return well


def main():
    given = arguments()
    enter()
    env = dict(pair.split("=", 1) for pair in given.env)
    try:
        with TwoHosts(env=env, iface=None if given.no_iface else "address", mtu=given.mtu,
                      loss=given.loss, delay_ms=given.delay) as hosts:
            well = play(hosts, given)
    except unittest.SkipTest as why:
        skip(str(why))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
