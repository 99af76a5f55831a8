"""The verbs door beside the devices of a libibverbs that has some, and on a host that has no
libibverbs at all. The first is a stand-in, real_stand_in.c; the second a preloaded dlopen.
"""
import os
import sys
import unittest

NO_LIBIBVERBS, STAND_IN, CHECK = sys.argv.pop(), sys.argv.pop(), sys.argv.pop()

from door import APERTURE, Door  # noqa: E402


class BesideRealDevices(Door):
    def stand_in(self) -> dict:
        return self.environment(LD_LIBRARY_PATH=STAND_IN)

    def test_calls_about_each_device_reach_its_own_library(self):
        done = self.run_in(CHECK, env=self.stand_in())
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "both devices answer"),
                         done.stderr)

    def test_the_device_comes_after_the_real_ones(self):
        done = self.run_in("ibv_devices", env=self.stand_in())
        self.assertRegex(done.stdout, r"(?s)standin0.*aperture0")

    def test_without_the_door_the_real_ones_are_alone(self):
        done = self.call("ibv_devices", env=self.stand_in())
        self.assertIn("standin0", done.stdout)
        self.assertNotIn("aperture0", done.stdout)

    def test_the_link_leads_to_the_real_library_that_a_program_would_find(self):
        script = "readlink -f ${LD_LIBRARY_PATH%%:*}/libaperture-real-ibverbs.so.1"
        for environment, is_stand_in in ((self.environment(), False), (self.stand_in(), True),
                                         (self.environment(), False)):
            done = self.run_in("sh", "-c", script, env=environment)
            self.assertEqual(done.stdout.startswith(STAND_IN), is_stand_in, done.stdout)

    def test_a_running_program_keeps_its_real_library_when_another_run_finds_another(self):
        another = f"LD_PRELOAD= LD_LIBRARY_PATH= {APERTURE} run -- true"
        done = self.run_in("sh", "-c", f"{another} && ibv_devices", env=self.stand_in())
        self.assertRegex(done.stdout, r"(?s)standin0.*aperture0", done.stderr)


class WithoutLibibverbs(Door):
    def test_programs_run_without_the_door_and_a_sentence_says_so(self):
        env = self.environment(LD_PRELOAD=NO_LIBIBVERBS)
        done = self.run_in("sh", "-c", "echo still here; echo $LD_PRELOAD", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split("\n")[:2], ["still here", NO_LIBIBVERBS])
        self.assertIn("running without the verbs door", done.stderr)
        self.assertIn("this host has no libibverbs.so.1", done.stderr)

    def test_its_neighbour_has_the_door(self):
        done = self.run_in("sh", "-c", "echo $LD_PRELOAD")
        self.assertIn("libibverbs.so.1", done.stdout)
        self.assertNotIn("without the verbs door", done.stderr)

    def test_no_file_is_left_that_a_later_run_would_trip_over(self):
        self.run_in("true", env=self.environment(LD_PRELOAD=NO_LIBIBVERBS))
        self.assertIn("aperture0", self.run_in("ibv_devices").stdout)


if __name__ == "__main__":
    unittest.main()
