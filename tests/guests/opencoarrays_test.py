"""OpenCoarrays of the distribution over one-sided Open MPI: Fortran's coarrays, whose puts, gets,
atomics, events and teams are MPI's, by programs of its own test suite (the package has them), each
of which checks what it gets.

`aperture run --one-sided` leaves btl ofi as the only way out of a process.
"""
import glob
import unittest

from guest import DIRECT_COPIES, Guest, users

PLACE = "/usr/lib/*/open-coarrays/openmpi/bin/OpenCoarrays-*-tests"
PROGRAMS = ("syncimages", "register", "get_array", "send_array", "strided_get",
            "get_with_vector_index", "atomics", "co_sum_test", "co_reduce_test",
            "coarray_distributed_transpose")
OF_FOUR = ("allocatable_p2p_event_post", "co_broadcast_test", "allocate_as_barrier",
           "strided_sendget", "sendget_convert_nums", "teams_coarray_sendget")


class OpenCoarrays(Guest):
    def check(self, images: int, program: str, **how):
        found = glob.glob(f"{PLACE}/{program}")
        self.assertEqual(len(found), 1, f"{program} in {PLACE}")
        printed = self.run_guest("cafrun", "-n", str(images), found[0], options=("--one-sided",),
                                 **how)
        self.assertRegex(printed, r"(?i)test passed", program)

    def test_each_program_of_two_images_passes(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                self.check(2, program)

    def test_programs_of_four_images_pass(self):
        for program in OF_FOUR:
            with self.subTest(program=program):
                self.check(4, program)

    def test_every_user_may_run_them_direct_copies_or_not(self):
        for user in users():
            with self.subTest(user=user):
                self.check(2, "strided_get", user=user)
                self.check(2, "strided_get", user=user, denied=DIRECT_COPIES)

    def test_every_image_is_carried_by_the_provider(self):
        printed = self.run_guest("cafrun", "-n", "2", *glob.glob(f"{PLACE}/syncall"),
                                 options=("--one-sided",), env={"APERTURE_LOG": "info"})
        self.assertGreaterEqual(printed.count("is enabled (software NIC)"), 2, printed)


if __name__ == "__main__":
    unittest.main()
