"""Remote memory, flushes and messages through the distribution's librpma: librpma_check.cpp, a
server and a client.

    librpma_test.py BUILD_DIR PROGRAM
"""
import os
import random
import shutil
import sys
import unittest

PROGRAM = sys.argv.pop(2)

from guest import DIRECT_COPIES, Guest, users  # noqa: E402

ROUNDS = 1000


class Librpma(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = shutil.copy(PROGRAM, cls.tree)
        os.chmod(cls.program, 0o755)

    def check(self, **how):
        port = random.randrange(20000, 30000)
        common = ("127.0.0.1", str(port), str(ROUNDS))
        for printed in self.run_pair((self.program, "server", *common),
                                     (self.program, "client", *common), port, **how):
            self.assertIn("librpma_check: ok", printed)

    def test_both_sides_see_what_was_done(self):
        for user in users():
            with self.subTest(user=user):
                self.check(user=user)

    def test_where_direct_copies_are_denied(self):
        self.check(denied=DIRECT_COPIES)

    def test_a_side_that_is_wrong_says_so(self):
        """That a failure inside would not go unseen: nobody listens."""
        printed, status = self.ended(self.start(self.program, "client", "127.0.0.1", "9", "1"))
        self.assertEqual(status, 1, printed)
        self.assertIn("librpma_check: wrong at the client: ", printed)


if __name__ == "__main__":
    unittest.main()
