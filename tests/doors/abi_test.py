"""What the provider's file promises: readelf's view of libaperture-fi.so, and loading it by hand.

No DT_NEEDED on libfabric (Open MPI loads that one RTLD_LOCAL, and one file serves 1.17 and 2.x),
one exported symbol, nothing undefined that is not in the C library, and no executable stack.
"""
import os
import re
import subprocess
import sys
import unittest

LIBRARY = sys.argv.pop(1)
SANITIZED = os.environ.get("APERTURE_TEST_SANITIZED", "") != ""


def readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", "--wide", *arguments, LIBRARY], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


class Abi(unittest.TestCase):
    def test_needs_no_libfabric(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic"))
        self.assertTrue(needed)
        self.assertEqual([name for name in needed if "fabric" in name], [])

    @unittest.skipIf(SANITIZED, "sanitizers bring their own libraries")
    def test_needs_only_what_every_system_has(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic"))
        for name in needed:
            self.assertRegex(name, r"^(libc|libm|libpthread|libdl|librt|ld-linux.*)\.so\.\d+$")

    def test_exports_the_entry_point_only(self):
        exported = []
        for line in readelf("--dyn-syms").splitlines():
            fields = line.split()
            if len(fields) >= 8 and fields[4] in ("GLOBAL", "WEAK") and fields[6] != "UND":
                exported.append(fields[7].split("@")[0])
        self.assertEqual(exported, ["fi_prov_ini"])

    def test_asks_for_no_symbol_of_libfabric(self):
        undefined = [line.split()[7] for line in readelf("--dyn-syms").splitlines()
                     if len(line.split()) >= 8 and line.split()[6] == "UND"]
        self.assertEqual([name for name in undefined if name.startswith(("fi_", "ofi_"))], [])

    def test_has_no_executable_stack_and_no_text_relocations(self):
        self.assertRegex(readelf("--segments"), r"GNU_STACK.* RW +0x")
        self.assertNotIn("TEXTREL", readelf("--dynamic"))

    def test_it_stays_loaded(self):
        """The control thread runs in this code, so a dlclose must not take it away."""
        self.assertRegex(readelf("--dynamic"), r"FLAGS_1.*NODELETE")

    @unittest.skipIf(SANITIZED, "the sanitizer's library would have to come first")
    def test_loads_alone_and_hands_out_a_provider(self):
        code = ("import ctypes, os, sys\n"
                "lib = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_LOCAL)\n"
                "lib.fi_prov_ini.restype = ctypes.c_void_p\n"
                "sys.exit(0 if lib.fi_prov_ini() else 'fi_prov_ini returned NULL')\n")
        subprocess.run([sys.executable, "-c", code, LIBRARY], check=True, timeout=30)


if __name__ == "__main__":
    unittest.main()
