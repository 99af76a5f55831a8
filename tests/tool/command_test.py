"""The `aperture` command as a user meets it: what it prints, where, and its exit codes.

The command is copied into a tree of its own beside a stand-in for the provider, so these tests say
nothing about the provider itself (tests/doors does).
"""
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../sandbox"))
import denied_calls  # noqa: E402

BUILT = sys.argv.pop(1)
NOTICE = "aperture: software NIC, no RDMA hardware is in use"
# of the verbs door, which the copied tree has not
NO_DOOR = ("aperture: running without the verbs door: libibverbs.so.1 is not beside the provider")


def settings_of(done):
    """What `env -0` has printed; a variable of the user's may hold lines."""
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0")[:-1])


class Command(unittest.TestCase):
    def setUp(self):
        self.tree = os.path.realpath(tempfile.mkdtemp(prefix="aperture-command-"))
        self.addCleanup(shutil.rmtree, self.tree)
        os.makedirs(f"{self.tree}/bin")
        os.makedirs(f"{self.tree}/lib/libfabric")
        self.command = shutil.copy(BUILT, f"{self.tree}/bin/aperture")
        self.provider = f"{self.tree}/lib/libfabric/libaperture-fi.so"
        with open(self.provider, "w", encoding="ascii") as stand_in:
            stand_in.write("not a library\n" * 100)

    def call(self, *arguments, env=None, code=0, denied=(),
             error=errno.EPERM, before=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("FI_", "OMPI_"))}
        done = subprocess.run([self.command, *arguments], env={**clean, **(env or {})},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
                              check=False,
                              preexec_fn=before or denied_calls.deny(*denied, error=error))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def script(self, name, text, mode=0o755):
        path = f"{self.tree}/{name}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    # --- run ---
    def test_run_passes_the_environment_and_says_once_what_it_is(self):
        done = self.call("run", "--", "sh", "-c", "sh -c 'env -0'")
        settings = settings_of(done)
        self.assertEqual(settings["FI_PROVIDER"], "aperture")
        self.assertEqual(settings["FI_PROVIDER_PATH"].split(":")[0], f"{self.tree}/lib/libfabric")
        self.assertTrue(settings["FI_PROVIDER_PATH"].split(":")[1].endswith("/libfabric"))
        self.assertEqual(settings["OMPI_MCA_mtl_ofi_provider_include"], "aperture")
        self.assertEqual(done.stderr.splitlines(), [NOTICE, NO_DOOR])

    def test_run_hands_on_arguments_untouched_and_the_exit_code(self):
        done = self.call("run", "--", "printf", "%s|", "--json", "--", "a b", "-h")
        self.assertEqual(done.stdout, "--json|--|a b|-h|")
        self.call("run", "--", "sh", "-c", "exit 42", code=42)
        self.assertEqual(self.call("run", "printf", "%s", "--help").stdout, "--help")

    def test_run_is_replaced_by_the_command(self):
        done = self.call("run", "--", "sh", "-c", "kill -TERM $$", code=-15)
        self.assertEqual(done.stderr.splitlines(), [NOTICE, NO_DOOR])

    def test_run_keeps_a_setting_and_says_that_it_is_in_the_way(self):
        done = self.call("run", "--", "sh", "-c", "echo $OMPI_MCA_pml", env={"OMPI_MCA_pml": "ob1"})
        self.assertEqual(done.stdout, "ob1\n")
        self.assertIn("OMPI_MCA_pml=ob1 is set, so Open MPI will not choose Aperture", done.stderr)

    def test_run_within_run_begins_anew(self):
        def inside(outer, *inner):
            return ("run", *outer, "--", self.command, "run", *inner, "--", "env", "-0")

        for outer in ((), ("--one-sided",), ("--as", "tcp"), ("--as", "sockets", "--one-sided")):
            for inner in ((), ("--one-sided",), ("--as", "tcp")):
                done = self.call(*inside(outer, *inner))
                settings = settings_of(done)
                self.assertNotIn("is set", done.stderr)
                self.assertEqual(settings["OMPI_MCA_pml"],
                                 "ob1" if "--one-sided" in inner else "cm")
                self.assertEqual("OMPI_MCA_mtl" in settings, "--one-sided" not in inner)
                self.assertEqual("OMPI_MCA_osc" in settings, "--one-sided" in inner)
                name = next((word for word in inner + outer if word in ("tcp", "sockets")), None)
                self.assertEqual(settings["FI_PROVIDER"],
                                 f"aperture,{name}" if name else "aperture")
                self.assertEqual(settings.get("APERTURE_AS"), name)

    def test_run_within_run_keeps_what_the_user_has_set(self):
        within = ("sh", "-c", f"FI_PROVIDER=shm exec {self.command} run --one-sided -- env")
        done = self.call("run", "--", *within, env={"OMPI_MCA_osc": "pt2pt"})
        self.assertIn("FI_PROVIDER=shm\n", done.stdout)
        self.assertIn("FI_PROVIDER=shm is set", done.stderr)
        self.assertIn("OMPI_MCA_osc=pt2pt\n", done.stdout)
        self.assertIn("OMPI_MCA_osc=pt2pt is set", done.stderr)
        self.assertIn("OMPI_MCA_pml=ob1\n", done.stdout)

    def test_run_names_a_setting_with_a_value_that_means_nothing(self):
        for line, legal in (("APERTURE_LOG=loud", "one of off, warn, info, debug, trace"),
                            ("APERTURE_CMA=x", "one of deny, allow"),
                            ("APERTURE_MR_MODE=lokal", "some of local, raw"),
                            ("FI_APERTURE_IFACE=nonsense", "an interface of this host"),
                            ("APERTURE_MW_TYPE=3", "one of 2A, 2B"),
                            ("APERTURE_SILENCE_MS=10", "a whole number from 1000")):
            name, value = line.split("=")
            said = self.call("run", "--", "true", env={name: value}).stderr.splitlines()
            self.assertEqual(len(said), 3, said)
            self.assertTrue(said[2].startswith(f"aperture: {line} means nothing, so "), said)
            self.assertIn(legal, said[2])
            self.assertIn(said[2], self.call("explain", "--", "true", env={name: value}).stderr)

    def test_run_names_a_setting_that_is_misspelt(self):
        said = self.call("run", "--", "true", env={"APERTURE_MRMODE": "local"}).stderr.splitlines()
        self.assertEqual(len(said), 3, said)
        self.assertIn("APERTURE_MRMODE is set", said[2])
        self.assertIn("APERTURE_MR_MODE is perhaps what is meant", said[2])

    def test_run_says_nothing_of_settings_that_are_sound(self):
        sound = {"APERTURE_LOG": "warn", "APERTURE_CMA": "deny", "APERTURE_MR_MODE": "verbs",
                 "FI_APERTURE_IFACE": "lo", "APERTURE_MW_TYPE": "2A"}
        done = self.call("run", "--", "true", env=sound)
        self.assertEqual(done.stderr.splitlines(), [NOTICE, NO_DOOR])

    def test_run_of_nothing(self):
        for arguments in (["run"], ["run", "--"]):
            self.assertIn("run what?", self.call(*arguments, code=2).stderr)
        for arguments in (["explain"], ["explain", "--"]):
            self.assertIn("explain what?", self.call(*arguments, code=2).stderr)

    def test_explain_is_run_with_a_provider_that_speaks(self):
        done = self.call("explain", "--", "sh", "-c", "env -0; exit 42", code=42)
        settings = settings_of(done)
        self.assertEqual(settings["FI_PROVIDER"], "aperture")
        self.assertEqual(settings["APERTURE_LOG"], "warn")
        self.assertEqual(settings["APERTURE_EXPLAIN"], "1")
        self.assertEqual(done.stderr.splitlines(), [NOTICE, NO_DOOR])
        self.assertNotIn("APERTURE_EXPLAIN", settings_of(self.call("run", "--", "env", "-0")))

    def test_explain_says_when_a_setting_silences_it(self):
        done = self.call("explain", "--", "true", env={"APERTURE_LOG": "off"})
        self.assertIn("APERTURE_LOG=off is set, so nothing will be explained", done.stderr)

    def test_run_of_a_command_that_is_not_there(self):
        done = self.call("run", "--", "no-such-command", code=127)
        self.assertIn("cannot run no-such-command: no folder of PATH has it", done.stderr)
        self.assertNotIn(NOTICE, done.stderr)

    def test_run_of_a_command_in_the_current_folder_that_path_ends_with(self):
        self.script("here", "#!/bin/sh\necho found\n")
        done = subprocess.run([self.command, "run", "--", "here"], cwd=self.tree, check=False,
                              env={**os.environ, "PATH": os.environ["PATH"] + ":"}, text=True,
                              capture_output=True, timeout=30)
        self.assertEqual(done.stdout, "found\n", done.stderr)

    def test_run_of_a_command_that_cannot_be_executed(self):
        plain = self.script("plain", "echo\n", 0o644)
        self.assertIn("chmod +x", self.call("run", "--", plain, code=126).stderr)
        self.assertIn("it is a directory", self.call("run", "--", self.tree, code=126).stderr)
        orphan = self.script("orphan", "#!/no/such/interpreter\n")
        self.assertIn("interpreter", self.call("run", "--", orphan, code=126).stderr)

    def test_run_remarks_on_a_set_user_id_program_and_runs_it(self):
        suid = shutil.copy("/bin/true", f"{self.tree}/suid")
        os.chmod(suid, 0o755 | stat.S_ISUID)
        self.assertIn("set-user-ID", self.call("run", "--", suid).stderr)

    def test_run_without_the_provider(self):
        os.unlink(self.provider)
        done = self.call("run", "--", "true", code=125)
        self.assertIn(f"{self.tree}/lib/libfabric", done.stderr)
        self.assertIn("./dev build", done.stderr)

    def test_nothing_is_sought_in_the_current_folder_where_there_is_no_proc(self):
        without = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
        if subprocess.run([*without, self.command, "--version"], capture_output=True,
                          check=False).returncode != 0:
            self.skipTest("needs a mount namespace of its own, so root, and no sanitizer, which "
                          "would read /proc itself")
        os.makedirs(f"{self.tree}/lib/aperture")
        shutil.copy(self.provider, f"{self.tree}/lib/aperture/libibverbs.so.1")
        for arguments, code in ((("run", "--", "true"), 125), (("explain", "true"), 125),
                                (("info",), 1), (("info", "--json"), 1)):
            done = subprocess.run([*without, self.command, *arguments], cwd=f"{self.tree}/bin",
                                  capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            (said,) = done.stderr.splitlines()
            self.assertIn("/proc is not mounted", said)

    # --- info ---
    def test_info_is_readable_and_json_says_the_same(self):
        text = self.call("info").stdout
        facts = json.loads(self.call("info", "--json").stdout)
        for key in ("aperture", "provider", "libfabric", "kernel", "cpus", "cma", "memfd",
                    "membarrier", "userfaultfd", "locked_memory", "open_files", "dev_shm"):
            self.assertIn(key, facts)
        self.assertIn(facts["aperture"]["version"], text)
        self.assertIn("software NIC", text)
        self.assertTrue(all(len(line) < 300 for line in text.splitlines()))
        for fact in facts.values():
            if fact.get("available") is False:
                self.assertTrue(fact["why_not"])
                self.assertTrue(fact["gain"])
                self.assertIn(fact["why_not"], text)

    def test_info_says_why_a_provider_does_not_load(self):
        provider = json.loads(self.call("info", "--json").stdout)["provider"]
        self.assertIs(provider["available"], False)
        self.assertIn("invalid ELF header", provider["why_not"])

    def library(self, path, constructor):
        """A library in the tree that does that as it is loaded."""
        os.makedirs(os.path.dirname(f"{self.tree}/{path}"), exist_ok=True)
        code = ("#include <stdlib.h>\n#include <unistd.h>\n"
                "__attribute__((constructor)) static void begin(void) { " + constructor + " }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{self.tree}/{path}"],
                       input=code, text=True, check=True)

    def test_info_tells_a_crash_whoever_ignores_the_ends_of_children(self):
        os.unlink(self.provider)
        for way, said in (("abort();", "it crashed"), ("_exit(3);", "with exit code 3")):
            self.library("lib/libfabric/libaperture-fi.so", way)
            for how in (signal.SIG_DFL, signal.SIG_IGN):
                done = self.call("info", "--json",
                                 before=lambda: signal.signal(signal.SIGCHLD, how))
                provider = json.loads(done.stdout)["provider"]
                self.assertIs(provider["available"], False)
                self.assertIn(said, provider["why_not"])

    def test_run_finds_a_bad_library_whoever_ignores_the_ends_of_children(self):
        self.library("lib/aperture/libibverbs.so.1", "_exit(3);")
        say = "import signal; print(int(signal.getsignal(signal.SIGCHLD)))"
        for how in (signal.SIG_DFL, signal.SIG_IGN):
            done = self.call("run", "--", "python3", "-c", say,
                             before=lambda: signal.signal(signal.SIGCHLD, how))
            self.assertIn("running without the verbs door", done.stderr)
            self.assertEqual(done.stdout, f"{int(how)}\n")  # the program has it as it was

    def test_info_is_json_where_a_path_is_no_utf_8(self):
        moved = os.fsencode(self.tree) + b"/\xff"
        os.makedirs(moved)
        for part in (b"bin", b"lib"):
            os.rename(os.fsencode(self.tree) + b"/" + part, moved + b"/" + part)
        self.command = moved + b"/bin/aperture"
        provider = json.loads(self.call("info", "--json").stdout)["provider"]
        self.assertEqual(provider["file"],
                         f"{self.tree}/\N{REPLACEMENT CHARACTER}/lib/libfabric/libaperture-fi.so")

    def test_info_says_that_the_provider_is_missing(self):
        os.unlink(self.provider)
        provider = json.loads(self.call("info", "--json").stdout)["provider"]
        self.assertIs(provider["available"], False)
        self.assertIsNone(provider["file"])

    def test_info_says_what_a_sandbox_denies_and_why(self):
        denied = ("process_vm_readv", "userfaultfd", "membarrier")
        facts = json.loads(self.call("info", "--json", denied=denied).stdout)
        self.assertIs(facts["cma"]["available"], False)
        self.assertEqual(facts["cma"]["errno"], errno.EPERM)
        for fact in ("cma", "membarrier"):
            self.assertTrue(facts[fact]["why_not"])
            self.assertTrue(facts[fact]["gain"])
        self.assertIs(facts["membarrier"]["available"], False)
        self.assertIs(facts["userfaultfd"]["syscall"], False)

    def test_info_names_the_remedy_for_each_scope_of_yama(self):
        """Yama is played: its file by a mount, its refusals by the sandbox."""
        os.makedirs(f"{self.tree}/kernel/yama")
        within = ("unshare", "-m", "sh", "-c",
                  f'mount --bind {self.tree}/kernel /proc/sys/kernel && exec "$@"', "sh")
        if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("needs a mount namespace of its own, so it needs root")
        command, self.command = self.command, within[0]
        for scope, allow, remedy in ((1, "", "APERTURE_CMA=allow"), (2, "allow", "as root"),
                                     (3, "", "reboot")):
            self.script("kernel/yama/ptrace_scope", f"{scope}\n")
            done = self.call(*within[1:], command, "info", "--json", env={"APERTURE_CMA": allow},
                             denied=("process_vm_readv",))
            cma = json.loads(done.stdout)["cma"]
            self.assertEqual(cma["yama_ptrace_scope"], scope)
            self.assertIn(f"ptrace_scope is {scope}", cma["why_not"])
            self.assertIn(remedy, cma["gain"])

    def test_info_where_there_are_no_memory_files(self):
        memfd = json.loads(self.call("info", "--json", denied=("memfd_create",)).stdout)["memfd"]
        self.assertIs(memfd["available"], False)
        self.assertIn("memfd_create", memfd["why_not"])

    def test_info_where_nobody_knows_memory_files(self):
        memfd = json.loads(self.call("info", "--json", denied=("memfd_create",),
                                     error=errno.ENOSYS).stdout)["memfd"]
        self.assertIs(memfd["available"], False)
        self.assertIn("has no memfd_create", memfd["why_not"])

    def test_info_that_cannot_be_written_fails(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            code = subprocess.call([self.command, "info"], stdout=full, stderr=subprocess.DEVNULL)
        self.assertEqual(code, 1)

    # --- the rest ---
    def test_help_has_examples_and_version_is_one_line(self):
        self.assertIn("examples:", self.call("run", "--help").stdout)
        self.assertIn("examples:", self.call("info", "--help").stdout)
        self.assertIn("examples:", self.call("explain", "--help").stdout)
        self.assertIn("run", self.call("--help").stdout)
        self.assertRegex(self.call("--version").stdout, r"^aperture \d+\.\d+\.\d+\n$")

    def test_misuse_is_exit_code_2(self):
        self.assertIn("there is no word 'bogus'", self.call("bogus", code=2).stderr)
        self.call(code=2)
        self.call("info", "--bogus", code=2)
        self.call("info", "extra", code=2)
        self.call("run", "--bogus", "--", "true", code=2)
        self.call("explain", "--bogus", "--", "true", code=2)


if __name__ == "__main__":
    unittest.main()
