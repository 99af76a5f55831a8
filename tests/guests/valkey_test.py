"""Valkey's own test of its RDMA transport: its server with the module valkey-rdma.so, and its
client rdma-test with four threads.

APERTURE_VALKEY_SOURCE is a folder with the source, in which src/ has been built with
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
BUILT = ("src/valkey-server", "src/valkey-rdma.so")


class Valkey(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for file in BUILT:
            shutil.copy(f"{SOURCE}/{file}", cls.tree)
            os.chmod(f"{cls.tree}/{os.path.basename(file)}", 0o755)
        subprocess.run(["cc", "-O1", f"{SOURCE}/tests/rdma/rdma-test.c", "-o",
                        f"{cls.tree}/rdma-test", "-lrdmacm", "-libverbs", "-lpthread"], check=True)

    def test_its_client_is_served_over_rdma_alone(self):
        for user in users():
            with self.subTest(user=user):
                port = random.randrange(20000, 30000)
                server = self.start(f"{self.tree}/valkey-server", "--port", "0", "--appendonly",
                                    "no", "--save", "", "--dir", self.folder, "--loadmodule",
                                    f"{self.tree}/valkey-rdma.so", f"port={port}",
                                    "bind=127.0.0.1", user=user)
                self.wait_until_listening(port)
                self.run_guest(f"{self.tree}/rdma-test", "--thread", "4", "-h", "127.0.0.1", "-p",
                               str(port), user=user)
                self.assertIsNone(server.poll(), "the server has ended")
                self.end(server)


if __name__ == "__main__":
    if not all(os.path.exists(f"{SOURCE}/{file}") for file in BUILT):
        print("skipped: APERTURE_VALKEY_SOURCE names no source of Valkey that is built with RDMA")
        sys.exit(77)
    unittest.main()
