"""Gloo's collectives over its ibverbs transport on aperture0: gloo_check.cpp with Debian's libgloo.

    gloo_test.py BUILD_DIR PROGRAM
"""
import os
import shutil
import sys
import unittest

PROGRAM = sys.argv.pop(2)

from guest import DIRECT_COPIES, Guest, users  # noqa: E402


class Gloo(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = shutil.copy(PROGRAM, cls.tree)
        os.chmod(cls.program, 0o755)

    def check(self, size: int, name: str, **how):
        meeting = f"{self.folder}/{name}"
        os.mkdir(meeting)
        os.chmod(meeting, 0o777)
        group = [self.start(self.program, str(rank), str(size), meeting, **how)
                 for rank in range(size)]
        for process in group:
            self.assertIn("gloo_check: ok", self.output_of(process))

    def test_everybody_gets_right_results(self):
        for user in users():
            with self.subTest(user=user):
                self.check(2, user, user=user)

    def test_three_and_four_processes_get_right_results(self):
        for size in (3, 4):
            with self.subTest(size=size):
                self.check(size, str(size))

    def test_where_direct_copies_are_denied(self):
        self.check(2, "denied", denied=DIRECT_COPIES)


if __name__ == "__main__":
    unittest.main()
