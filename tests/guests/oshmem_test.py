"""OpenSHMEM of Open MPI over UCX on aperture0: oshmem_check.c, 2 and 4 elements.

UCX is told to use that device and its verbs transports alone, so nothing else can carry anything.

    oshmem_test.py BUILD_DIR PROGRAM
"""
import os
import shutil
import sys
import unittest

PROGRAM = sys.argv.pop(2)

from guest import DIRECT_COPIES, Guest, users  # noqa: E402

# messages before and after the work of the elements are MPI's, which Aperture carries by its other
# door: with pml ob1 or ucx, Debian 12's Open MPI crashes in shmem_finalize over any network
ON_THE_DEVICE = {"UCX_NET_DEVICES": "aperture0:1", "OMPI_MCA_spml": "ucx"}


class OpenShmem(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = shutil.copy(PROGRAM, cls.tree)
        os.chmod(cls.program, 0o755)

    def oshrun(self, elements: int, transports: str, **how) -> tuple[str, int]:
        env = {**ON_THE_DEVICE, "UCX_TLS": transports, **how.pop("env", {})}
        return self.ended(self.start("oshrun", "-n", str(elements), self.program, env=env, **how))

    def check(self, elements: int, transports: str, **how):
        output, status = self.oshrun(elements, transports, **how)
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("oshmem_check: ok"), elements, output)

    def test_everybody_gets_right_results_over_rc(self):
        for user in users():
            with self.subTest(user=user):
                self.check(2, "rc_verbs,ud_verbs,self", user=user)

    def test_four_elements_get_right_results_over_rc_and_over_ud(self):
        for transports in ("rc_verbs,ud_verbs,self", "ud_verbs,self"):
            with self.subTest(transports=transports):
                self.check(4, transports)

    def test_where_direct_copies_are_denied(self):
        self.check(2, "rc_verbs,ud_verbs,self", denied=DIRECT_COPIES)

    def test_a_device_that_is_not_there_carries_nothing(self):
        output, status = self.oshrun(2, "rc_verbs,ud_verbs",
                                     env={"UCX_NET_DEVICES": "aperture9:1"})
        self.assertNotEqual(status, 0, output)
        self.assertNotIn("oshmem_check: ok", output)


if __name__ == "__main__":
    unittest.main()
