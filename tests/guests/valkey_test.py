"""Valkey over RDMA: its server with the module valkey-rdma.so, its own client rdma-test with four
threads, valkey-cli and valkey-benchmark.

APERTURE_VALKEY_SOURCE is a folder with the source of 9.0 or later, built there with
`make BUILD_RDMA=module`; without it, a skip.
"""
import os
import random
import shutil
import subprocess
import sys
import unittest

from guest import Guest, users

SOURCE = os.environ.get("APERTURE_VALKEY_SOURCE", "")
BUILT = ("src/valkey-server", "src/valkey-cli", "src/valkey-benchmark", "src/valkey-rdma.so")


class Valkey(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for file in BUILT:
            shutil.copy(f"{SOURCE}/{file}", cls.tree)
            os.chmod(f"{cls.tree}/{os.path.basename(file)}", 0o755)
        subprocess.run(["cc", "-O1", f"{SOURCE}/tests/rdma/rdma-test.c", "-o",
                        f"{cls.tree}/rdma-test", "-lrdmacm", "-libverbs", "-lpthread"], check=True)

    def served(self, user: str) -> tuple[int, subprocess.Popen]:
        """The port and the process of a server. Without a TCP port it does not start; its clients
        are given the other one, where nothing listens by TCP."""
        port = random.randrange(20000, 25000)
        server = self.start(f"{self.tree}/valkey-server", "--port", str(port + 5000), "--bind",
                            "127.0.0.1", "--appendonly", "no", "--save", "", "--dir", self.folder,
                            "--loadmodule", f"{self.tree}/valkey-rdma.so", "--rdma-port", str(port),
                            "--rdma-bind", "127.0.0.1", user=user)
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
        self.with_each_user(lambda user, port: self.run_guest(
            f"{self.tree}/rdma-test", "--thread", "4", "-h", "127.0.0.1", "-p", str(port),
            user=user))

    def test_values_come_back_as_they_were_set(self):
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
