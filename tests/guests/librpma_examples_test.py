"""The examples of librpma, built from its source with the distribution's library: each client and
server over rdma_cm, and what they say to each other.

APERTURE_RPMA_SOURCE is a folder with the source (its examples/ and cmake/); without it, a skip.
"""
import os
import random
import shutil
import subprocess
import sys
import unittest

from guest import Guest

SOURCE = os.environ.get("APERTURE_RPMA_SOURCE", "")
# the client's arguments, and what it prints when what came was right
EXAMPLES = {
    "01-connection": ((), ""),
    "02-read-to-volatile": ((), "Read a message: Hello client!"),
    "03-read-to-persistent": ((), "Translation: "),
    "04-write-to-persistent": ((), "Translation: "),
    "05-flush-to-persistent": ((), "Translation: "),
    "06-multiple-connections": (("7",), "My names is: "),
    "06scch-multiple-connections": (("7",), "My names is: "),
    "07-atomic-write": (("1st_word", "2nd_word", "3rd_word"), ""),
    "08-messages-ping-pong": (("7", "3"), "Value received: 9"),
    "08srq-simple-messages-ping-pong-with-srq": (("7", "3"), "Value received: 9"),
    "09-flush-to-persistent-GPSPM": ((), "Translation: "),
    "09scch-flush-to-persistent-GPSPM": ((), "Translation: "),
    "10-send-with-imm": (("1234", "1st_word"), ""),
    "11-write-with-imm": (("1234",), ""),
    "12-receive-completion-queue": (("7", "3"), "Value received: 9"),
    "12scch-receive-completion-queue": (("7", "3"), "Value received: 9"),
    "13-messages-ping-pong-with-srq": (("7", "3"), "value received: 9"),
}


class Librpma(Guest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        shutil.copytree(f"{SOURCE}/examples", f"{cls.tree}/source/examples")
        shutil.copytree(f"{SOURCE}/cmake", f"{cls.tree}/source/cmake")
        for example in EXAMPLES:
            for command in (("-S", f"{cls.tree}/source/examples/{example}"), ("--build",)):
                built = subprocess.run(["cmake", *command, *(("-B",) if command[0] == "-S" else ()),
                                        f"{cls.tree}/built/{example}"], check=False, text=True,
                                       capture_output=True)
                if built.returncode != 0:
                    raise RuntimeError(built.stdout + built.stderr)

    def test_each_example_ends_well_at_both_sides(self):
        for example, (arguments, said) in EXAMPLES.items():
            with self.subTest(example=example):
                port = random.randrange(20000, 30000)
                place = f"{self.tree}/built/{example}"
                _, printed = self.run_pair((f"{place}/server", "127.0.0.1", str(port)),
                                           (f"{place}/client", "127.0.0.1", str(port), *arguments),
                                           port)
                self.assertIn(said, printed)


if __name__ == "__main__":
    if not os.path.isdir(f"{SOURCE}/examples"):
        print("skipped: APERTURE_RPMA_SOURCE names no source of librpma")
        sys.exit(77)
    unittest.main()
