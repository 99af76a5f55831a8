"""What the tests of clients between two hosts share: a server on the one, a client on the other,
each under `aperture run`, and what they print.

A case's class says what it needs by `needs`; a case that needs a program that is not installed is
skipped. Without APERTURE_BETWEEN_HOSTS=all each client runs once or a few times; with it, in every
way that is listed.

    players.BUILD    the first argument of the test's program, and RUN what starts a program over it
"""
import os
import random
import re
import shutil
import subprocess
import sys
import unittest

import two_hosts

BUILD = sys.argv.pop(1)
RUN = [f"{BUILD}/bin/aperture", "run", "--"]
SECONDS = 60
ALL = os.environ.get("APERTURE_BETWEEN_HOSTS") == "all"
# on one host, too: objects that perftest, qperf and fio leave behind, a file that UCX looks for
EXPECTED_WARNINGS = re.compile(r"ibv_(close_device|dealloc_pd|destroy_(cq|comp_channel)): \d+ |"
                               r"/sys/class/infiniband/\S+: the device has no such file")
two_hosts.enter()


def ways(*some, more=()):
    """Some ways to run a client, and more where all are asked for."""
    return [*some, *(more if ALL else ())]


class BetweenHosts(unittest.TestCase):
    def hosts(self, *, env: dict[str, str] | None = None, **how) -> two_hosts.TwoHosts:
        made = two_hosts.TwoHosts(env={"APERTURE_LOG": "warn", **(env or {})}, **how)
        self.addCleanup(made.close)
        return made

    def needs(self, tool: str):
        if not shutil.which(tool):
            self.skipTest(f"{tool} is not installed")

    def ended(self, process: subprocess.Popen, seconds=SECONDS) -> tuple[int, str]:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            two_hosts.kill(process)
            printed, _ = process.communicate()
            self.fail(f"no end within {seconds} s: {process.args}\n{printed[-4000:]}")
        return process.returncode, printed

    def ended_well(self, process: subprocess.Popen, seconds=SECONDS) -> str:
        """What it printed, without a word of ours that all is not well."""
        status, printed = self.ended(process, seconds)
        self.assertEqual(status, 0, f"{process.args}\n{printed[-4000:]}")
        for line in printed.splitlines():
            if "aperture: " in line and ("warn: " in line or "error: " in line):
                self.assertRegex(line, EXPECTED_WARNINGS, process.args)
        return printed

    def serve(self, hosts, command: list[str], wait: str, run=tuple(RUN),
              **how) -> subprocess.Popen:
        serving = hosts.server.start(hosts.spelt([*run, *command]), **how)
        if not hosts.server.wait_for(wait, serving):
            said = "" if serving.poll() is None else self.ended(serving)[1]
            self.fail(f"nobody is at {wait}: {command}\n{said}")
        return serving

    def call(self, hosts, command: list[str], run=tuple(RUN), seconds=SECONDS, **how) -> str:
        """What a client printed that ended well."""
        return self.ended_well(hosts.client.start(hosts.spelt([*run, *command]), **how), seconds)

    def play(self, hosts, server: list[str], client: list[str], wait: str, *, seconds=SECONDS,
             **how) -> tuple[str, str]:
        """What the two printed, both of which end well."""
        serving = self.serve(hosts, server, wait, **how)
        printed = self.call(hosts, client, seconds=seconds, **how)
        return self.ended_well(serving, seconds), printed


class Clients(BetweenHosts):
    """Cases that share two hosts; each takes a port of its own."""
    needed: tuple[str, ...] = ()
    env: dict[str, str] = {}

    @classmethod
    def setUpClass(cls):
        cls.pair = two_hosts.TwoHosts(env={"APERTURE_LOG": "warn", **cls.env})
        cls.addClassCleanup(cls.pair.close)

    def setUp(self):
        for tool in self.needed:
            self.needs(tool)
        self.port = random.randrange(20000, 30000)
        before = len(self.pair.server.started), len(self.pair.client.started)
        self.addCleanup(self.end_all, before)

    def end_all(self, before: tuple[int, int]):
        """What a case that failed has left running."""
        for host, known in zip(self.pair.hosts, before):
            for process in host.started[known:]:
                if process.poll() is None:
                    two_hosts.kill(process)
                if process.stdout is not None:
                    process.stdout.close()

    def both(self, command: list[str], *to_server: str, by="tcp",
             **how) -> tuple[str, str]:
        """The same on both hosts, with the port; the client is told where the server is as well."""
        return self.play(self.pair, command, [*command, *(to_server or ("@server",))],
                         f"{by}:{self.port}", **how)
