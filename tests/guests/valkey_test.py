"""Valkey over RDMA: its server with the module valkey-rdma.so, its own client rdma-test with four
threads, its own script that finds the device and runs both, and where the version has them over
RDMA (9.0 has), valkey-cli and valkey-benchmark.

APERTURE_VALKEY_SOURCE is a folder with the source of 8.1 or later, built there with
`make BUILD_RDMA=module`; without it, a skip.
"""
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import unittest

from guest import SECONDS, Guest, users

SOURCE = os.environ.get("APERTURE_VALKEY_SOURCE", "")
BUILT = ("src/valkey-server", "src/valkey-cli", "src/valkey-benchmark", "src/valkey-rdma.so")
PYTHON = "/usr/bin/python3"  # the distribution's, which has its packages
SCRIPT_PORT = 6379  # of Valkey's own script


class Valkey(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for file in BUILT:
            shutil.copy(f"{SOURCE}/{file}", cls.tree)
            os.chmod(f"{cls.tree}/{os.path.basename(file)}", 0o755)
        subprocess.run(["cc", "-O1", f"{SOURCE}/tests/rdma/rdma-test.c", "-o",
                        f"{cls.tree}/rdma-test", "-lrdmacm", "-libverbs", "-lpthread"], check=True)
        with open(f"{SOURCE}/valkey.conf", encoding="utf-8") as file:
            cls.has_port_option = "rdma-port" in file.read()
        usage = subprocess.run([f"{cls.tree}/valkey-cli", "--help"], check=False, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        cls.has_clients = "--rdma" in usage

    def served(self, user: str) -> tuple[int, subprocess.Popen]:
        """The port and the process of a server. 9.0 does not start without a TCP port; the clients
        of RDMA are given the other one, where nothing listens by TCP."""
        port = random.randrange(20000, 25000)
        module = ("--rdma-port", str(port), "--rdma-bind", "127.0.0.1")
        if not self.has_port_option:
            module = (f"port={port}", "bind=127.0.0.1")
        server = self.start(f"{self.tree}/valkey-server", "--port", str(port + 5000), "--bind",
                            "127.0.0.1", "--appendonly", "no", "--save", "", "--dir", self.folder,
                            "--dbfilename", f"{port}.rdb",  # or it would load another's
                            "--loadmodule", f"{self.tree}/valkey-rdma.so", *module, user=user)
        self.wait_until_listening(port)
        return port, server

    def with_each_user(self, clients):
        for user in users():
            with self.subTest(user=user):
                port, server = self.served(user)
                clients(user, port)
                self.assertIsNone(server.poll(), "the server has ended")
                self.end(server)

    def test_its_client_is_served(self):
        def clients(user, port):
            told = self.run_guest(f"{self.tree}/rdma-test", "--thread", "4", "-h", "127.0.0.1",
                                  "-p", str(port), seconds=4 * SECONDS, user=user)
            counts = {word: [int(n) for n in re.findall(rf"\] {word} (\d+) KVs \[OK\]", told)]
                      for word in ("SET", "GET")}
            self.assertEqual(len(counts["SET"]), 4, told)
            self.assertEqual(sorted(counts["SET"]), sorted(counts["GET"]), told)
            # and by TCP there is what was set by RDMA
            stored = self.run_guest(f"{self.tree}/valkey-cli", "-p", str(port + 5000), "dbsize",
                                    user=user)
            self.assertEqual(stored.splitlines()[-1], str(sum(counts["SET"])))

        self.with_each_user(clients)

    def test_its_own_script_finds_the_device_and_passes(self):
        """Unmodified: it looks into /sys/class/infiniband for the device's interface."""
        if not os.path.exists(f"{SOURCE}/tests/rdma/run.py"):
            self.skipTest("this version has no such script")
        if subprocess.run([PYTHON, "-c", "import netifaces"], check=False,
                          stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("python3-netifaces is not installed")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", SCRIPT_PORT)) == 0:
                self.skipTest(f"somebody listens on port {SCRIPT_PORT}, which the script takes")
        for user in users():
            with self.subTest(user=user):
                told = self.run_guest(PYTHON, self.copy_of_the_script(user), user=user,
                                      seconds=2 * SECONDS)
                self.assertIn("test prepare aperture0", told)
                self.assertRegex(told, r"(?m)^Valkey Over RDMA test over \S+ \[OK\]$")
                self.assertNotIn("FAILED", told)

    def copy_of_the_script(self, user: str) -> str:
        """In a tree as the script wants it, where that user may build its client."""
        place = f"{self.folder}/{user}"
        shutil.copytree(f"{SOURCE}/tests/rdma", f"{place}/tests/rdma",
                        ignore=shutil.ignore_patterns("rdma-test", "tmp"))
        os.mkdir(f"{place}/src")
        for file in ("valkey-server", "valkey-rdma.so"):
            os.symlink(f"{self.tree}/{file}", f"{place}/src/{file}")
        for folder, _, _ in os.walk(place):
            os.chmod(folder, 0o777)
        return f"{place}/tests/rdma/run.py"

    def needs_clients(self):
        if not self.has_clients:
            self.skipTest("valkey-cli and valkey-benchmark of this version know no --rdma")

    def test_values_come_back_as_they_were_set(self):
        self.needs_clients()

        def clients(user, port):
            cli = (f"{self.tree}/valkey-cli", "--rdma", "-h", "127.0.0.1", "-p", str(port))
            for length in (1, 64, 16384, 1 << 20):
                value = random.randbytes(length // 2).hex() or "x"
                with open(f"{self.folder}/value", "w", encoding="ascii") as file:
                    file.write(value)
                os.chmod(f"{self.folder}/value", 0o644)
                told = self.run_guest("sh", "-c", '"$@" -x set key <value && "$@" get key', "sh",
                                      *cli, user=user)
                self.assertEqual(told.splitlines()[-2:], ["OK", value])

        self.with_each_user(clients)

    def test_fifty_clients_are_served_at_once(self):
        self.needs_clients()

        def clients(user, port):
            for length, pipeline in ((64, 1), (64, 16), (16384, 1), (16384, 16)):
                told = self.run_guest(
                    f"{self.tree}/valkey-benchmark", "--rdma", "-h", "127.0.0.1", "-p", str(port),
                    "-c", "50", "-d", str(length), "-P", str(pipeline), "-n", "5000", "-t",
                    "set,get", "--csv", user=user)
                for name in ("SET", "GET"):
                    self.assertRegex(told, rf'(?m)^"{name}","[1-9]')

        self.with_each_user(clients)


if __name__ == "__main__":
    if not all(os.path.exists(f"{SOURCE}/{file}") for file in BUILT):
        print("skipped: APERTURE_VALKEY_SOURCE names no source of Valkey that is built with RDMA")
        sys.exit(77)
    unittest.main()
