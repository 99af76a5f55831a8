"""Small resource limits (setrlimit(2)) under a program of Aperture: each run ends with success or
with an error that is told, never by a signal and never not at all.

Two programs open one of everything and exchange data with themselves: an example through libfabric,
and verbs_exchange.c through libibverbs and librdmacm. What the kernel does to a process that cannot
even start (no address space, no stack, no CPU time) is not ours to mend, and such values are left
out; the loader says itself what it lacks. APERTURE_ROUNDS, as the soak sets it, tries every value.
"""
import os
import resource
import sys
import unittest

from guest import BUILD, Guest

PROGRAMS = (f"{os.path.abspath(BUILD)}/bin/refused_write", os.path.abspath(sys.argv.pop(1)))

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (0, 1, 4 * KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB, 140 * MIB, 256 * MIB, GIB)
COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 128)
LIMITS = {
    "RLIMIT_AS": tuple(n for n in SIZES if n >= 8 * MIB),
    "RLIMIT_CORE": (0, 1),
    "RLIMIT_DATA": tuple(n for n in SIZES if n >= MIB),
    "RLIMIT_FSIZE": SIZES,
    "RLIMIT_MEMLOCK": (0, 1, 4 * KIB, 64 * KIB),
    "RLIMIT_MSGQUEUE": (0, 1),
    "RLIMIT_NICE": (0,),
    "RLIMIT_NOFILE": COUNTS,
    "RLIMIT_NPROC": COUNTS,
    "RLIMIT_RSS": (0, MIB),
    "RLIMIT_RTPRIO": (0,),
    "RLIMIT_SIGPENDING": (0, 1),
    "RLIMIT_STACK": (64 * KIB, 128 * KIB, MIB),
}
EVERY = 1 if "APERTURE_ROUNDS" in os.environ else 3
BANNER = "aperture: software NIC, no RDMA hardware is in use\n"


class Limits(Guest):
    def run_limited(self, program: str, name: str, value: int):
        _, hard = resource.getrlimit(getattr(resource, name))
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        process = self.start("prlimit", f"--{name[7:].lower()}={value}:", program,
                             env={"APERTURE_LOG": "warn"})
        output, status = self.ended(process)
        self.assertGreaterEqual(status, 0, f"{name}={value}: by signal {-status}\n{output[-2000:]}")
        return output, status

    def try_each(self, program: str):
        for name, values in LIMITS.items():
            for value in values[::EVERY]:
                with self.subTest(limit=name, value=value):
                    output, status = self.run_limited(program, name, value)
                    self.assertTrue(status == 0 or output.replace(BANNER, ""), status)

    def test_each_small_limit_ends_in_success_or_in_an_error_that_is_told(self):
        self.try_each(PROGRAMS[0])

    def test_each_small_limit_ends_in_success_or_in_an_error_that_is_told_by_verbs(self):
        self.try_each(PROGRAMS[1])

    def test_a_limit_on_file_sizes_is_named(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                output, status = self.run_limited(program, "RLIMIT_FSIZE", 64 * MIB)
                self.assertNotEqual(status, 0)
                self.assertIn("ulimit -f", output)

    def test_limits_that_are_large_enough_are_met_by_nobody(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                output, status = self.run_limited(program, "RLIMIT_NOFILE", 1024)
                self.assertEqual(status, 0, output[-2000:])


if __name__ == "__main__":
    unittest.main()
