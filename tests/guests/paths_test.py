"""How programs look for devices beside asking libibverbs: ibstat, ibstatus, ls, find, shells and
Python's os, over the folders of /sys and /dev that the device has under `aperture run`.
"""
import subprocess
import unittest

from guest import IS_ROOT, Guest, users

DEVICE = "/sys/class/infiniband/aperture0"
RESOLVED = "/sys/devices/virtual/infiniband/aperture0"


class Paths(Guest):
    def shell(self, script: str, **how) -> list[str]:
        said = self.run_guest("bash", "-c", script, **how).splitlines()
        return [line for line in said if not line.startswith("aperture: ")]

    def python(self, expression: str) -> str:
        script = f"import os, pathlib; print({expression})"
        return self.run_guest("python3", "-c", script).splitlines()[-1]

    def test_ibstat_and_ibstatus_tell_of_the_port(self):
        for user in users():
            told = self.run_guest("ibstat", user=user)
            for part in ("CA 'aperture0'", "State: Active", "Link layer: Ethernet"):
                self.assertIn(part, told)
            told = self.run_guest("ibstatus", user=user)
            self.assertRegex(told, r"'aperture0' port 1 status(?s:.*)state:\s+4: ACTIVE")

    def test_tools_list_the_folders(self):
        self.assertEqual(self.shell("ls /sys/class/infiniband"), ["aperture0"])
        self.assertEqual(self.shell("ls /sys/class/infiniband_verbs"),
                         ["abi_version", "uverbs-aperture0"])
        nodes = self.shell("ls -l /dev/infiniband")
        self.assertEqual([line[0] + line.split()[-1] for line in nodes[1:]],
                         ["crdma_cm", "cuverbs-aperture0"])
        self.assertIn(f"{DEVICE}/ports/1/gids/0", self.shell(f"find {DEVICE}/"))
        self.assertEqual(self.shell("cat /sys/class/infiniband/*/ports/*/state"), ["4: ACTIVE"])
        self.assertIn("lo", self.shell(f"ls {DEVICE}/device/net"))

    def test_links_resolve_as_the_kernels_do(self):
        for given, found in ((DEVICE, RESOLVED), (f"{DEVICE}/", RESOLVED),
                             (f"{DEVICE}/device", f"{RESOLVED}/device"),
                             (f"{DEVICE}//ports/./1/../1", f"{RESOLVED}/ports/1"),
                             (f"{DEVICE}/../..", "/sys/devices/virtual"),
                             ("/sys/class/infiniband", "/sys/class/infiniband"),
                             ("/sys/class/infiniband/..", "/sys/class"),
                             (f"{RESOLVED}/device/net/lo", "/sys/devices/virtual/net/lo"),
                             ("/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm")):
            self.assertEqual(self.shell(f"realpath {given}; readlink -f {given}"), [found] * 2)
            self.assertEqual(self.python(f"os.path.realpath('{given}')"), found)
        self.assertEqual(self.shell(f"readlink {DEVICE}"),
                         ["../../devices/virtual/infiniband/aperture0"])
        # what a resolved path leads to
        for below in (f"{DEVICE}/../..", DEVICE + "/device"):
            self.assertEqual(self.shell(f"cat $(realpath {below})/numa_node"), ["-1"])

    def test_shells_can_go_there(self):
        self.assertEqual(self.shell(f"cd {DEVICE}; pwd -P; cat node_type; cd -P ../..; pwd"),
                         [RESOLVED, "1: CA", "/sys/devices/virtual"])

    def test_python_sees_the_device(self):
        self.assertEqual(self.python("os.listdir('/sys/class/infiniband')"), "['aperture0']")
        self.assertEqual(self.python(f"os.path.exists('{DEVICE}'), os.path.isdir('{DEVICE}')"),
                         "True True")
        self.assertEqual(
            self.python("[e.is_symlink() for e in os.scandir('/sys/class/infiniband')]"), "[True]")
        self.assertEqual(
            self.python(f"sum('gids' in names for _, names, _ in os.walk('{DEVICE}'))"), "1")
        self.assertEqual(self.python("sorted(e.name for e in os.scandir("
                                     "os.open('/sys/class/infiniband_verbs', 0)))"),
                         "['abi_version', 'uverbs-aperture0']")
        # beside a descriptor
        self.assertEqual(
            self.python(f"os.read(os.open('ports/1/rate', 0, dir_fd=os.open('{DEVICE}', 0)), 9)"),
            "b'100 Gb/se'")

    def test_pythons_paths_lead_to_what_can_be_read(self):
        for below, file, text in (("device", "numa_node", "-1"), ("ports/1", "state", "4: ACTIVE"),
                                  (".", "device/numa_node", "-1")):
            found = "/".join([RESOLVED, *(below,) * (below != ".")])
            path = f"pathlib.Path('{DEVICE}/{below}')"
            self.assertEqual(self.python(f"{path}.resolve(strict=True)"), found)
            self.assertEqual(self.python(f"({path}.resolve() / '{file}').read_text()[:-1]"), text)
            self.assertEqual(self.python(f"'{file.split('/')[0]}' in "
                                         f"[p.name for p in {path}.iterdir()]"), "True")
            self.assertEqual(self.python(f"[p.is_file() for p in {path}.glob('{file}')]"), "[True]")
        entries = "next(e for e in os.scandir('/sys/class/infiniband') if e.name == 'aperture0')"
        self.assertEqual(self.python(f"(lambda e: (e.is_dir(), e.is_dir(follow_symlinks=False)))"
                                     f"({entries})"), "(True, False)")
        self.assertEqual(self.python(f"os.readlink({entries})"),
                         "../../devices/virtual/infiniband/aperture0")
        self.assertEqual(self.python("[p.name for p in pathlib.Path('/sys/class').glob("
                                     "'infiniband/*/ports/1/state')]"), "['state']")
        self.assertEqual(self.python(f"pathlib.Path('{DEVICE}/ports/7').exists()"), "False")

    def test_the_device_is_found_from_the_kernels_folders(self):
        for script, told in (("cd /sys/class; ls infiniband", ["aperture0"]),
                             ("cd /sys/class; cat inf*/a*/node_type", ["1: CA"]),
                             ("cd /sys; ls class/infiniband_verbs",
                              ["abi_version", "uverbs-aperture0"]),
                             ("ls /sys/class | grep infiniband",
                              ["infiniband", "infiniband_verbs"]),
                             ("ls /dev | grep infiniband", ["infiniband"]),
                             ("echo /sys/class/inf*d/*", ["/sys/class/infiniband/aperture0"]),
                             ("find /sys/class/ -path '*infiniband/*'", [DEVICE]),
                             ("cd /sys/class/net; cat ../infiniband/aperture0/node_type",
                              ["1: CA"]),
                             ("cd /sys/class/infiniband; ls -d ../net", ["../net"]),
                             ("cd /dev/infiniband; stat -c %F rdma_cm", ["character special file"]),
                             ("cd $HOME; mkdir infiniband; ls infiniband", [])):
            self.assertEqual(self.shell(script), told, script)

    def test_python_finds_the_device_from_the_kernels_folders(self):
        there = "(os.chdir('/sys/class'), "
        for expression, told in (
                (there + "os.path.exists('infiniband/aperture0'))[1]", "True"),
                (there + "os.path.exists('infiniband/aperture1'))[1]", "False"),
                (there + "os.listdir('infiniband'))[1]", "['aperture0']"),
                ("'infiniband' in os.listdir('/sys/class')", "True"),
                ("'infiniband' in os.listdir(os.open('/sys/class', 0))", "True"),
                ("os.listdir(os.open('infiniband', 0, dir_fd=os.open('/sys/class', 0)))",
                 "['aperture0']"),
                ("__import__('glob').glob('/sys/class/inf*d/*/ports/1/state')",
                 f"['{DEVICE}/ports/1/state']"),
                ("[str(p) for p in pathlib.Path('/sys/class').glob('inf*d/*/node_type')]",
                 f"['{DEVICE}/node_type']")):
            self.assertEqual(self.python(expression), told, expression)

    def test_a_device_of_the_kernels_stays_beside_ours(self):
        """In a mount namespace whose /sys/class has one."""
        made = ("mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mlx5_9 "
                "/sys/class/net && echo 'of the kernel' >/sys/class/infiniband/mlx5_9/node_desc")
        if not IS_ROOT or subprocess.run(["unshare", "-m", "sh", "-c", made], check=False,
                                         capture_output=True).returncode != 0:
            self.skipTest("needs to mount over /sys/class")
        look = ("cd /sys/class; ls; ls infiniband; echo /sys/class/inf*d/*; "
                "cat infiniband/*/node_desc")
        told = subprocess.run(
            ["unshare", "-m", "sh", "-c", f"{made} && exec {self.tree}/bin/aperture run -- "
             f"bash -c '{look}'"], capture_output=True, text=True, check=True, timeout=60).stdout
        self.assertEqual(told.splitlines(), [
            "infiniband", "infiniband_verbs", "net", "aperture0", "mlx5_9",
            "/sys/class/infiniband/aperture0 /sys/class/infiniband/mlx5_9", "aperture0",
            "of the kernel"])

    def test_nothing_there_can_be_written(self):
        for user in users():
            tried = self.shell(f"echo x >{DEVICE}/node_desc; test -w {DEVICE}/node_desc || echo no",
                               user=user)
            self.assertIn("Permission denied", tried[0])
            self.assertEqual(tried[1:], ["no"])

    def test_explain_names_what_was_looked_for_in_vain(self):
        told = self.run_guest("bash", "-c", f"test -e {DEVICE}/ports/1/counters; "
                              f"test -e {DEVICE}/ports/1/gids/999 || true",
                              env={"APERTURE_LOG": "warn"})
        self.assertIn(f"{DEVICE}/ports/1/counters: the device has no such file", told)
        self.assertNotIn("999", told)


if __name__ == "__main__":
    unittest.main()
