"""A connection of rdma_cm to another host and one back, while memory runs out, or descriptors and
the like (tests/rdma_cm/connection_play.cpp): `failing_test.py BUILD CALL_BACK CHECK...`, programs.
"""
import os
import sys
import unittest

import players

CALL_BACK, *CHECKS = sys.argv[1:]
# thousands of connections take a while
SECONDS = 3600 if os.environ.get("APERTURE_ALLOCATIONS") == "all" else 140
del sys.argv[1:]


class Failing(players.Clients):
    def test_whatever_fails_of_a_connection_to_another_host_all_works_afterwards(self):
        self.serve(self.pair, [CALL_BACK, "@server", str(self.port)], f"cm:{self.port}")
        server, client = self.pair.server, self.pair.client
        env = {"APERTURE_CALL_BACK": f"{client.ip} {server.ip}:{self.port}", "APERTURE_LOG": "off"}
        for check in CHECKS:
            with self.subTest(check=check):
                status, printed = self.ended(client.start([*players.RUN, check], env=env), SECONDS)
                self.assertEqual(status, 0, printed[-8000:])


if __name__ == "__main__":
    unittest.main()
