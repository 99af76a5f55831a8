"""The ways in which a program gets the verbs door, and programs that never use it."""
import ctypes.util
import os
import shutil
import subprocess
import tempfile
import unittest

from door import APERTURE, BUILD, LIBRARY, Door

GO_BUILD_SECONDS = 100  # where Go's own library has to be compiled first

LIST_DEVICES = """
import ctypes, os
before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
verbs = ctypes.CDLL("libibverbs.so.1")
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
at = libc.dlvsym(verbs._handle, b"ibv_get_device_list", b"IBVERBS_1.1")
get = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int))(at)
count = ctypes.c_int()
devices = get(ctypes.byref(count))
name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(
    libc.dlvsym(verbs._handle, b"ibv_get_device_name", b"IBVERBS_1.1"))
print([name(devices[i]).decode() for i in range(count.value)])
# what takes no object of a device comes from the real library
verbs.ibv_wc_status_str.restype = ctypes.c_char_p
print(verbs.ibv_wc_status_str(0).decode())
after = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
assert before == after, (before, after)
"""


class Loading(Door):
    def assert_finds(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("aperture0", done.stdout, done.stderr)

    def test_aperture_run(self):
        self.assert_finds(self.run_in("ibv_devices"))

    def test_aperture_run_within_aperture_run(self):
        done = self.run_in(APERTURE, "run", "--", "sh", "-c", "ibv_devices; echo $LD_PRELOAD")
        self.assert_finds(done)
        self.assertEqual(done.stdout.count("libibverbs.so.1"), 1, done.stdout)
        self.assertNotIn("without the verbs door", done.stderr)

    def test_ld_preload(self):
        env = self.environment(LD_PRELOAD=LIBRARY, LD_LIBRARY_PATH=self.real_folder())
        self.assert_finds(self.call("ibv_devices", env=env))

    def test_ld_library_path_alone(self):
        path = f"{os.path.dirname(LIBRARY)}:{self.real_folder()}"
        env = self.environment(LD_LIBRARY_PATH=path)
        self.assert_finds(self.call("ibv_devices", env=env))
        self.assert_finds(self.call("/usr/bin/python3", "-c", LIST_DEVICES, env=env))

    def test_dlopen_and_dlvsym_open_nothing_before_a_device_is_opened(self):
        done = self.run_in("/usr/bin/python3", "-c", LIST_DEVICES)
        self.assert_finds(done)
        self.assertIn("success", done.stdout)

    def test_the_name_without_a_version_is_the_same_library(self):
        done = self.run_in("/usr/bin/python3", "-c", LIST_DEVICES.replace("libibverbs.so.1",
                                                                          "libibverbs.so"))
        self.assert_finds(done)
        script = ("import ctypes; plain, one = map(ctypes.CDLL, ('libibverbs.so', "
                  "'libibverbs.so.1')); print('aperture0', plain._handle == one._handle)")
        done = self.run_in("/usr/bin/python3", "-c", script)
        self.assertEqual(done.stdout.strip(), "aperture0 True", done.stderr)

    def test_two_places_of_the_library_are_not_led_to_each_other(self):
        copy = f"{self.folder}/elsewhere"
        os.makedirs(f"{copy}/bin")
        shutil.copy(APERTURE, f"{copy}/bin/aperture")
        for part in ("aperture", "libfabric"):
            shutil.copytree(f"{BUILD}/lib/{part}", f"{copy}/lib/{part}")
        script = "readlink ${LD_LIBRARY_PATH%%:*}/libibverbs.so"
        for own in (APERTURE, f"{copy}/bin/aperture", APERTURE):
            done = self.call(own, "run", "--", "sh", "-c", script)
            wanted = os.path.normpath(f"{os.path.dirname(own)}/../lib/aperture/libibverbs.so.1")
            self.assertEqual(done.stdout.strip(), wanted, done.stderr)

    def test_a_setting_that_means_nothing_is_named_where_only_a_door_sees_it(self):
        for setting, program in (("FI_APERTURE_IFACE=nonsense", "ibv_devinfo"),
                                 ("APERTURE_MR_MODE=bogus", "fi_info")):
            done = self.run_in("env", setting, program)
            self.assertIn(f"{setting} means nothing, so ", done.stderr)

    def test_without_the_door_there_is_no_aperture0(self):
        done = self.call("ibv_devices")
        self.assertNotIn("aperture0", done.stdout)

    def test_libmlx5_and_libefa_find_their_private_symbols(self):
        for name in ("libmlx5.so.1", "libefa.so.1"):
            if ctypes.util.find_library(name[3:].split(".")[0]) is None:
                continue
            with self.subTest(name):
                script = f"import ctypes; ctypes.CDLL('{name}', mode=2); print('aperture0')"
                self.assert_finds(self.run_in("/usr/bin/python3", "-c", script))

    def test_programs_that_never_use_it(self):
        for command in (["/bin/sh", "-c", "echo $((6 * 7))"],
                        ["/usr/bin/python3", "-c", "import subprocess as s;"
                         "print(s.run(['expr', '6', '*', '7'], stdout=-1).stdout.decode())"]):
            with self.subTest(command[0]):
                done = self.run_in(*command)
                self.assertEqual((done.returncode, done.stdout.strip()), (0, "42"), done.stderr)

    def test_a_program_with_address_sanitizer(self):
        program = f"{self.folder}/sanitized"
        built = subprocess.run(["cc", "-fsanitize=address", "-x", "c", "-", "-o", program],
                               input="#include <stdlib.h>\nint main(void)"
                                     "{ free(malloc(7)); return 42; }\n",
                               capture_output=True, text=True, check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        done = self.run_in(program)
        self.assertEqual(done.returncode, 42, done.stderr)

    def test_a_static_program_is_told_once_that_it_finds_no_device(self):
        program = f"{self.folder}/static"
        built = subprocess.run(["cc", "-static", "-x", "c", "-", "-o", program],
                               input="#include <unistd.h>\nint main(void) { return "
                                     "access(\"/sys/class/infiniband/aperture0\", F_OK) != 0; }\n",
                               capture_output=True, text=True, check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        for word in ("run", "explain"):
            done = self.call(APERTURE, word, "--", program)
            self.assertEqual(done.returncode, self.call(program).returncode, done.stderr)
            self.assertEqual(done.stderr.count("nothing of the device under /sys"), 1, done.stderr)

    def test_a_cgo_program(self):
        """Of threads and stacks that are Go's own: it moves bytes while goroutines come and go."""
        if shutil.which("go") is None:
            self.skipTest("there is no Go compiler")
        shutil.copy(f"{os.path.dirname(os.path.abspath(__file__))}/loopback.go", self.folder)
        env = self.environment(GOCACHE=f"{self.folder}/cache", GO111MODULE="off", HOME=self.folder,
                               GOFLAGS="-trimpath")
        program = f"{self.folder}/loopback"
        built = subprocess.run(["go", "build", "-o", program, "loopback.go"], cwd=self.folder,
                               env=env, capture_output=True, text=True, timeout=GO_BUILD_SECONDS,
                               check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        done = self.run_in(program)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "42 writes landed"),
                         done.stderr)
        self.assertNotEqual(self.call(program).returncode, 0, "without the door")
        # as docs/man/aperture0.7 says of what makes its own system calls
        done = self.run_in(program, "look")
        self.assertEqual(done.stdout, self.call(program, "look").stdout)
        self.assertEqual(done.stderr.count("is a Go program"), 1, done.stderr)


class Rootless(Door):
    """Root of a user namespace that another user has made: `unshare -Ur`, rootless containers."""
    USER = 61234  # nobody's

    def as_root_of_a_namespace(self, *command) -> subprocess.CompletedProcess:
        return self.call("setpriv", f"--reuid={self.USER}", f"--regid={self.USER}",
                         "--clear-groups", "unshare", "-Ur", *command)

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs two users, so it needs root")
        os.chmod(self.folder, 0o1777)
        may = self.as_root_of_a_namespace("true")
        if may.returncode != 0:
            self.skipTest(f"another user may not make a user namespace here: {may.stderr.strip()}")
        # the build folder may lie in one that no other user reaches, as root's own does
        place = tempfile.TemporaryDirectory(prefix="aperture-place-")
        self.addCleanup(place.cleanup)
        os.chmod(place.name, 0o755)
        self.aperture = f"{place.name}/bin/aperture"
        for part in ("bin/aperture", "lib/aperture", "lib/libfabric"):
            os.makedirs(os.path.dirname(f"{place.name}/{part}"), exist_ok=True)
            copy = shutil.copy if os.path.isfile(f"{BUILD}/{part}") else shutil.copytree
            copy(f"{BUILD}/{part}", f"{place.name}/{part}")

    def device(self) -> str:
        done = self.as_root_of_a_namespace(self.aperture, "run", "--", "ls",
                                           "/sys/class/infiniband/aperture0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("without the verbs door", done.stderr)
        return done.stdout

    def test_the_door_is_open_beside_the_folder_of_the_real_root(self):
        os.mkdir(f"{self.folder}/aperture-0", 0o700)
        self.assertIn("node_guid", self.device())
        self.assertEqual(sorted(os.listdir(self.folder)), ["aperture-0", f"aperture-{self.USER}"])
        self.assertEqual(os.stat(f"{self.folder}/aperture-{self.USER}").st_uid, self.USER)

    def test_the_door_is_open_beside_somebody_elses_folder_of_that_name(self):
        os.mkdir(f"{self.folder}/aperture-{self.USER}", 0o700)
        self.assertIn("node_guid", self.device())
        made, = set(os.listdir(self.folder)) - {f"aperture-{self.USER}"}
        self.assertRegex(made, f"^aperture-{self.USER}-[0-9]+$")
        self.assertEqual(os.stat(f"{self.folder}/{made}").st_uid, self.USER)


class WithoutTheDoor(Door):
    def test_a_runtime_folder_that_others_may_write_is_not_used(self):
        folder = f"{self.folder}/aperture-{os.geteuid()}"
        os.mkdir(folder)
        os.chmod(folder, 0o777)
        done = self.run_in("sh", "-c", "echo still here")
        self.assertEqual(done.stdout.strip(), "still here")
        self.assertIn("running without the verbs door", done.stderr)
        self.assertIn(folder, done.stderr)

    def test_the_runtime_folder_does_not_grow(self):
        for _ in range(3):
            self.run_in("true")
        folder = f"{self.folder}/aperture-{os.geteuid()}"
        inner, answer = sorted(os.listdir(folder), key=lambda name: name.endswith(".answer"))
        self.assertRegex(answer, r"^verbs-[0-9a-f]{16}\.answer$")
        self.assertEqual(sorted(os.listdir(f"{folder}/{inner}")),
                         ["libaperture-real-ibverbs.so.1", "libibverbs.so", "libibverbs.so.1"])

    def test_info_tells_of_the_door(self):
        done = self.call(APERTURE, "info")
        self.assertRegex(done.stdout, r"verbs door +yes .*libibverbs\.so\.1")


if __name__ == "__main__":
    unittest.main()
