"""The verbs door under programs that change what it stands on: the user, the environment, the
folder with its links, the place where Aperture is installed.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = sys.argv.pop(1)
COMMAND = f"{BUILD}/bin/aperture"
SECONDS = 30
NOBODY = 65534
# what ld.so says of a preload that it does without
IGNORED = "from LD_PRELOAD cannot be preloaded"


class Door(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="aperture-door-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, *command, env=None, **how) -> subprocess.CompletedProcess:
        dropped = ("LD_PRELOAD", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "ASAN_OPTIONS")
        clean = {k: v for k, v in os.environ.items()
                 if k not in dropped and not k.startswith(("FI_", "OMPI_", "APERTURE_"))}
        settings = {**clean, "TMPDIR": self.folder, **(env or {})}
        return subprocess.run(command, env=settings, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=SECONDS, check=False, **how)

    def run_in(self, *command, word="run", options=(), **how) -> subprocess.CompletedProcess:
        return self.start(COMMAND, word, *options, "--", *command, **how)

    def assert_prints(self, done, printed):
        self.assertEqual((done.returncode, done.stdout), (0, printed), done.stderr)


class LostGround(Door):
    def test_a_program_without_the_library_path_has_the_device(self):
        done = self.run_in("sh", "-c", "unset LD_LIBRARY_PATH; ls -d /; ibv_devices")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("/\n"), done.stdout)
        self.assertIn("aperture0", done.stdout)
        self.assertNotIn(IGNORED, done.stderr)
        other = self.run_in("env", "LD_LIBRARY_PATH=/nowhere", "ibv_devices")
        self.assertIn("aperture0", other.stdout, other.stderr)

    def test_a_program_that_lost_the_folder_runs_without_the_device(self):
        done = self.run_in("sh", "-c", "rm -r ${LD_LIBRARY_PATH%%:*}; echo $(expr 6 '*' 7)")
        self.assert_prints(done, "42\n")
        self.assertIn(IGNORED, done.stderr)

    def test_a_program_that_becomes_another_user_runs_without_the_device(self):
        if os.geteuid() != 0:
            self.skipTest("becomes another user, so it needs root")
        done = self.run_in("setpriv", f"--reuid={NOBODY}", "--clear-groups", "id", "-u")
        self.assert_prints(done, f"{NOBODY}\n")
        self.assertIn(IGNORED, done.stderr)

    def test_a_run_inside_after_the_library_path_was_lost_has_the_device(self):
        done = self.run_in("env", "-u", "LD_LIBRARY_PATH", COMMAND, "run", "--", "ibv_devices")
        self.assertIn("aperture0", done.stdout, done.stderr)
        self.assertNotIn("without the verbs door", done.stderr)

    def test_what_is_installed_needs_no_library_path_either(self):
        prefix = f"{self.folder}/prefix"
        made = self.start("cmake", "--install", BUILD, "--prefix", prefix)
        self.assertEqual(made.returncode, 0, made.stderr)
        done = self.start(f"{prefix}/bin/aperture", "run", "--", "sh", "-c",
                          "unset LD_LIBRARY_PATH; ibv_devices")
        self.assertIn("aperture0", done.stdout, done.stderr)
        self.assertNotIn("without the verbs door", done.stderr)


class Probes(Door):
    def test_a_command_without_standard_input_and_output_has_the_device(self):
        closed = f"exec {COMMAND} run -- sh -c 'ibv_devices >&2' <&- >&-"
        done = self.start("sh", "-c", closed)
        self.assertIn("aperture0", done.stderr)
        self.assertNotIn("without the verbs door", done.stderr)


class Preloads(Door):
    def compile(self, name, *options, code="int main(void) { return 42; }"):
        path = f"{self.folder}/{name}"
        built = subprocess.run(["cc", "-x", "c", "-", "-o", path, *options], input=code + "\n",
                               capture_output=True, text=True, timeout=SECONDS, check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        return path

    def test_nothing_is_preloaded_into_a_program_for_musl(self):
        """Two that look so, and are for this machine's C library, so that they run."""
        say = ('#include <stdio.h>\n#include <stdlib.h>\n'
               'int main(void) { puts(getenv("LD_PRELOAD") ? "preloaded" : "none"); }')
        with_ld_so = f"-Wl,--dynamic-linker={self.folder}/ld-musl-any.so.1"
        os.symlink(next(glob.iglob("/lib*/ld-linux-*.so.*")), f"{self.folder}/ld-musl-any.so.1")
        library = self.compile("libc.musl-any.so.1", "-shared", "-Wl,-soname,libc.musl-any.so.1",
                               code="")
        with_library = ("-Wl,--no-as-needed", library, f"-Wl,-rpath,{self.folder}")
        for options, printed in (((with_ld_so,), "none\n"), (with_library, "none\n"),
                                 ((), "preloaded\n")):
            program = self.compile("program", "-xnone", *options, code=say)
            for word in ("run", "explain"):
                done = self.run_in(program, word=word)
                self.assert_prints(done, printed)
                self.assertEqual("built for the C library musl" in done.stderr,
                                 printed == "none\n", done.stderr)

    def test_a_program_with_address_sanitizer_is_explained_without_the_door_too(self):
        program = self.compile("sanitized", "-fsanitize=address")
        os.makedirs(f"{self.folder}/aperture-{os.geteuid()}")
        for others in (0o700, 0o777):  # a runtime folder that others may write shuts the door
            os.chmod(f"{self.folder}/aperture-{os.geteuid()}", others)
            done = self.run_in(program, word="explain")
            self.assertEqual(done.returncode, 42, done.stderr)
            self.assertEqual("without the verbs door" in done.stderr, others == 0o777)


class Characters(Door):
    """Of paths that go into lists which they would divide."""
    def installed_in(self, name):
        place = f"{self.folder}/{name}"
        for part in ("bin/aperture", "lib/aperture", "lib/libfabric"):
            os.makedirs(os.path.dirname(f"{place}/{part}"), exist_ok=True)
            copy = shutil.copy if os.path.isfile(f"{BUILD}/{part}") else shutil.copytree
            copy(f"{BUILD}/{part}", f"{place}/{part}")
        return f"{place}/bin/aperture"

    def said(self, done):
        """What stands on stderr behind the notice; nothing of it is ld.so's."""
        self.assertNotIn("ld.so", done.stderr)
        notice, *lines = done.stderr.splitlines()
        self.assertIn("software NIC", notice)
        return lines

    def test_of_the_folder_with_the_links(self):
        for name, character in (("a b", "a space"), ("a:b", "a colon"), ("a;b", "a semicolon")):
            folder = f"{self.folder}/{name}"
            os.mkdir(folder)
            done = self.run_in("sh", "-c", "expr 6 '*' 7", env={"TMPDIR": folder})
            self.assert_prints(done, "42\n")
            (line,) = self.said(done)
            self.assertIn(f"without the verbs door: '{folder}/aperture-", line)
            self.assertIn(f"has {character} in it", line)
            self.assertIn("set XDG_RUNTIME_DIR", line)
            done = self.run_in("ibv_devices", env={"TMPDIR": folder,
                                                   "XDG_RUNTIME_DIR": self.folder})
            self.assertIn("aperture0", done.stdout, done.stderr)

    def test_of_the_place_where_it_is_installed(self):
        command = self.installed_in("a b")
        done = self.start(command, "run", "--", "sh", "-c", "ibv_devices; fi_info -p aperture")
        self.assertEqual((done.returncode, self.said(done)), (0, []))
        self.assertIn("aperture0", done.stdout)
        done = self.start(command, "explain", "--", "sh", "-c", "ibv_devices; expr 6 '*' 7")
        self.assertTrue(done.stdout.endswith("42\n"), done.stderr)
        (line,) = self.said(done)
        self.assertIn("libaperture-explain.so' has a space in it, and LD_PRELOAD", line)
        self.assertIn("install Aperture in another folder", line)

    def test_a_colon_of_the_place_where_it_is_installed(self):
        done = self.start(self.installed_in("a:b"), "run", "--", "ibv_devices")
        self.assertIn("aperture0", done.stdout, done.stderr)
        (line,) = self.said(done)
        self.assertIn("has a colon in it, and FI_PROVIDER_PATH", line)


if __name__ == "__main__":
    unittest.main()
