"""One-sided Open MPI over btl ofi: one_sided_check.c, 2 and 4 ranks, direct copies or not.

`aperture run --one-sided` says all that Open MPI has to be told. Each rank must have Aperture
loaded, and with no other transport than btl ofi to choose from, what leaves a rank goes through it.

    one_sided_test.py BUILD_DIR PROGRAM
"""
import os
import shutil
import sys
import unittest

PROGRAM = sys.argv.pop(2)

from guest import DIRECT_COPIES, Guest, users  # noqa: E402


class OneSided(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = shutil.copy(PROGRAM, cls.tree)
        os.chmod(cls.program, 0o755)

    def check(self, ranks: int, **how):
        launcher = shutil.which("mpirun.openmpi") or "mpirun"
        output = self.run_guest(launcher, "-n", str(ranks), self.program, seconds=80,
                                options=("--one-sided",), **how)
        self.assertIn(f"one_sided_check: ok, {ranks} ranks", output)
        self.assertEqual(output.count("carried by libaperture-fi.so"), ranks, output)

    def test_everybody_gets_right_results(self):
        for user in users():
            with self.subTest(user=user):
                self.check(2, user=user)

    def test_four_ranks_get_right_results(self):
        self.check(4)

    def test_where_direct_copies_are_denied(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.check(ranks, denied=DIRECT_COPIES)


if __name__ == "__main__":
    unittest.main()
