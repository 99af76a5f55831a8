"""The verbs door under programs that change what it stands on: the user, the environment, the
folder with its links, the place where Aperture is installed.
"""
import glob
import os
import resource
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

    def installed_in(self, name):
        place = f"{self.folder}/{name}"
        for part in ("bin/aperture", "lib/aperture", "lib/libfabric"):
            os.makedirs(os.path.dirname(f"{place}/{part}"), exist_ok=True)
            copy = shutil.copy if os.path.isfile(f"{BUILD}/{part}") else shutil.copytree
            copy(f"{BUILD}/{part}", f"{place}/{part}")
        return f"{place}/bin/aperture"

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


class Kept(Door):
    """What the probes found is asked for again whenever it may have changed."""
    # Of processes that the command has started and seen end; an exec leaves them counted.
    PROGRAM = (sys.executable, "-c", "import resource as r\n"
               "print(r.getrusage(r.RUSAGE_CHILDREN).ru_minflt > 0)")

    def asks(self, command=COMMAND, **how) -> bool:
        done = self.start(command, "run", "--", *self.PROGRAM, **how)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("without the verbs door", done.stderr)
        return done.stdout == "True\n"

    def answer(self) -> str:
        (path,) = glob.glob(f"{self.folder}/aperture-*/verbs-*.answer")
        return path

    def test_a_door_that_opened_is_not_tried_again(self):
        self.assertEqual([self.asks() for _ in range(3)], [True, False, False])
        self.assertEqual(os.stat(self.answer()).st_mode & 0o777, 0o600)
        self.assertEqual(glob.glob(f"{self.answer()}.*"), [])
        done = self.run_in("ibv_devices")
        self.assertIn("aperture0", done.stdout, done.stderr)

    def test_links_that_are_gone_are_made_again(self):
        self.asks()
        (folder,) = glob.glob(f"{self.folder}/aperture-*/verbs-*[0-9a-f]")
        shutil.rmtree(folder)
        self.assertFalse(self.asks())
        self.assertIn("aperture0", self.run_in("ibv_devices").stdout)

    def test_a_changed_library_or_command_is_tried_again(self):
        command = self.installed_in("place")
        library = f"{self.folder}/place/lib/aperture/libibverbs.so.1"
        self.assertEqual([self.asks(command) for _ in range(2)], [True, False])
        for file in (library, command):
            shutil.copy(file, f"{file}.new")
            os.rename(f"{file}.new", file)
            self.assertEqual([self.asks(command) for _ in range(2)], [True, False], file)
            seen = os.stat(file)
            os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
            self.assertEqual([self.asks(command) for _ in range(2)], [True, False], file)
        with open(library, "r+b") as f:
            f.truncate(4096)
        for _ in range(2):
            done = self.start(command, "run", "--", "sh", "-c", "expr 6 '*' 7")
            self.assert_prints(done, "42\n")
            self.assertIn("without the verbs door", done.stderr)
        self.assertEqual(glob.glob(f"{self.folder}/aperture-*/verbs-*.answer"), [])

    def test_a_file_that_is_not_what_was_written_is_not_believed(self):
        self.asks()
        path = self.answer()
        with open(path, encoding="utf-8") as f:
            good = f.read()
        conditions, _, files = good.partition("limits ")
        real = files.splitlines()[1].split(" ")[0]
        bad = {"nothing": "", "half": good[:len(good) // 2], "no end": good[:-1],
               "more": good + "x", "a line more": good + "/bin/sh\n",
               "zeros": "\0" * len(good), "spaces": " " * 999,
               "long": good + "/" * 20000, "conditions alone": f"{conditions}limits \n",
               "another library": good.replace(real, "/bin/sh"),
               "a library that is not there": good.replace(real, "/nowhere/libibverbs.so.1"),
               "a relative one": good.replace(real, real[1:])}
        for name, text in bad.items():
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            self.assertEqual([self.asks() for _ in range(2)], [True, False], name)
            with open(path, encoding="utf-8") as f:
                self.assertEqual(f.read(), good, name)

    def test_a_file_that_is_not_the_users_alone_is_not_believed(self):
        self.asks()
        path = self.answer()
        other = f"{self.folder}/other"

        def move_away():
            os.rename(path, other)
            os.symlink(other, path)
        spoils = {"others may read it": lambda: os.chmod(path, 0o644),
                  "others may write it": lambda: os.chmod(path, 0o602),
                  "it has another name": lambda: os.link(path, other),
                  "it is a link": move_away}
        if os.geteuid() == 0:
            spoils["it is another user's"] = lambda: os.chown(path, NOBODY, NOBODY)
        for name, spoil in spoils.items():
            spoil()
            self.assertEqual([self.asks() for _ in range(2)], [True, False], name)
            if os.path.exists(other):
                os.remove(other)
        os.remove(path)
        os.mkfifo(path, 0o600)  # nobody waits for a writer
        self.assertEqual([self.asks() for _ in range(2)], [True, False])

    def test_a_folder_that_others_may_write_shuts_the_door_with_an_answer_too(self):
        self.asks()
        os.chmod(os.path.dirname(self.answer()), 0o777)
        done = self.run_in("sh", "-c", "expr 6 '*' 7")
        self.assert_prints(done, "42\n")
        self.assertIn("without the verbs door", done.stderr)

    def test_variables_of_ld_so_and_limits_are_another_question(self):
        self.asks()
        for variable in ("LD_LIBRARY_PATH", "LD_BIND_NOW", "GLIBC_TUNABLES"):
            for _ in range(2):
                self.assertTrue(self.asks(env={variable: ""}), variable)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        fewer = (min(soft, hard) - 1, hard)
        self.assertFalse(self.asks())
        self.assertTrue(self.asks(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                       fewer)))

    def test_info_asks_anew(self):
        self.asks()
        before = os.stat(self.answer()).st_ino
        held = open(self.answer(), "rb")  # its number is not given out again
        self.addCleanup(held.close)
        done = self.start(COMMAND, "info")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotEqual(os.stat(self.answer()).st_ino, before)
        self.assertFalse(self.asks())


class Characters(Door):
    """Of paths that go into lists which they would divide."""
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
