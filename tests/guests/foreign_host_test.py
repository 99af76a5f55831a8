"""What another host may do to programs here, and what it may not: it is a network namespace of its
own behind a veth pair, so its packets come with an address that is none of this host's.

Every port that a verbs queue pair listens on closes its connections unread, and datagrams to a UD
queue pair are dropped; after that, peers of this host play as before. Needs iproute2, and a kernel
that lets us make namespaces.
"""
import os
import shutil
import subprocess
import sys
import time
import unittest

HERE, THERE = "10.77.0.1", "10.77.0.2"
INSIDE = "APERTURE_TEST_IN_NAMESPACE"
SKIP = 77


def enter_namespace():
    """Starts this file again as root of a network namespace of its own, where it may."""
    if os.environ.get(INSIDE) == "1":
        return
    isolated = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    for tool in ("ip", "unshare", "nsenter"):
        if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            print(f"skipped: {tool} is not installed")
            sys.exit(SKIP)
    probe = subprocess.run([*isolated, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        print(f"skipped: no network namespace can be made here: {probe.stderr}")
        sys.exit(SKIP)
    os.environ[INSIDE] = "1"
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    os.execvp("unshare", [*isolated, sys.executable, *sys.argv])


enter_namespace()
from guest import Guest  # noqa: E402

# Connects to each port from there: "closed" if the other side ends it without a byte.
CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        with socket.create_connection((sys.argv[1], int(port)), timeout=5) as s:
            print("closed" if s.recv(1) == b"" else "answered")
    except ConnectionResetError:
        print("closed")
    except TimeoutError:
        print("kept")
"""
SEND = """
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in sys.argv[2:]:
    for size in (0, 1, 16, 64, 256, 1400):
        s.sendto(os.urandom(size), (sys.argv[1], int(port)))
"""


def ip(*arguments: str):
    subprocess.run(["ip", *arguments], check=True)


def ports_of(kind: str, listening: str) -> set[int]:
    """The ports of this network namespace whose sockets are in that state."""
    with open(f"/proc/net/{kind}", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == listening}


class ForeignHost(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.there = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        cls.addClassCleanup(cls.there.wait)
        cls.addClassCleanup(cls.there.kill)
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{cls.there.pid}/ns/net") == own:
            time.sleep(0.01)
        ip("link", "set", "lo", "up")
        ip("link", "add", "here", "type", "veth", "peer", "name", "there")
        ip("link", "set", "there", "netns", str(cls.there.pid))
        ip("addr", "add", f"{HERE}/24", "dev", "here")
        ip("link", "set", "here", "up")
        for command in (("link", "set", "lo", "up"), ("addr", "add", f"{THERE}/24", "dev", "there"),
                        ("link", "set", "there", "up")):
            subprocess.run([*cls.over_there(), "ip", *command], check=True)

    @classmethod
    def over_there(cls) -> list[str]:
        return ["nsenter", "--target", str(cls.there.pid), "--net"]

    def run_there(self, program: str, *arguments) -> list[str]:
        done = subprocess.run([*self.over_there(), sys.executable, "-c", program, HERE,
                               *map(str, arguments)], capture_output=True, text=True, timeout=30,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def serve(self, kind: str, port: int, *options):
        """A server of that pingpong, once it listens for its client."""
        common = (f"ibv_{kind}_pingpong", "-d", "aperture0", "-g", "1", "-p", str(port), *options)
        serving = self.start(*common, user="root", env={"APERTURE_LOG": "info"})
        self.wait_until_listening(port)
        return serving, (*common, HERE)

    def assert_plays(self, serving, client: tuple) -> str:
        self.assertRegex(self.run_guest(*client, user="root"), r"\d+ iters in")
        served = self.output_of(serving)
        self.assertRegex(served, r"\d+ iters in")
        return served

    def test_connections_to_queue_pairs_are_closed(self):
        serving, client = self.serve("rc", 18601, "-c")
        doors = ports_of("tcp", "0A") - {18601}
        self.assertTrue(doors, "the queue pair listens nowhere")
        self.assertEqual(self.run_there(CONNECT, *doors), ["closed"] * len(doors))
        served = self.assert_plays(serving, client)
        self.assertIn(f"{THERE}:", served)
        self.assertIn("of another host connected to queue pairs", served)

    def test_datagrams_to_queue_pairs_are_dropped(self):
        serving, client = self.serve("ud", 18602, "-c")
        doors = ports_of("udp", "07")
        self.assertTrue(doors, "the queue pair receives nowhere")
        self.run_there(SEND, *doors)
        self.assert_plays(serving, client)

    def test_a_client_of_another_host_ends_with_an_error(self):
        client = ("rping", "-c", "-a", HERE, "-p", "18603", "-C", "3")
        serving = self.start("rping", "-s", "-a", HERE, "-p", "18603", "-C", "3", user="root")
        self.wait_until_listening(18603)
        refused = subprocess.run(
            [*self.over_there(), f"{self.tree}/bin/aperture", "run", "--", *client],
            env={**os.environ, "APERTURE_LOG": "warn", "HOME": self.folder},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=60, check=False)
        self.assertNotEqual(refused.returncode, 0, refused.stdout)
        self.assertIn(f"{HERE}:18603 is on another host", refused.stdout)
        self.run_guest(*client, user="root")
        self.output_of(serving)


if __name__ == "__main__":
    unittest.main()
