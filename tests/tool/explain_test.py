"""`aperture explain` with real clients and the real provider: each refusal is a sentence."""
import os
import random
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sandbox"))
import listeners  # noqa: E402

BUILD = sys.argv.pop(1)
KNOWN_NAMES = sys.argv.pop(1)  # tests/guests/known_names.c
COMMAND = f"{BUILD}/bin/aperture"


class Explain(unittest.TestCase):
    def start(self, word, *client, mr_mode=None, env=None, options=()):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("FI_", "OMPI_", "APERTURE_"))}
        if mr_mode is not None:
            clean["APERTURE_MR_MODE"] = mr_mode
        return subprocess.Popen([COMMAND, word, *options, "--", *client],
                                env={**clean, **(env or {})},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def finish(self, process):
        """What it said on stderr beside the notice, and its exit code."""
        try:
            _, said = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        lines = [line for line in said.splitlines()
                 if "software NIC" not in line and "answering under" not in line]
        return [line for line in lines if line.startswith("aperture:")], process.returncode

    def say(self, *client, word="explain", **how):
        return self.finish(self.start(word, *client, **how))

    def refused(self, *client, mr_mode=None):
        """The one sentence of a client whose only fi_getinfo finds nothing."""
        lines, code = self.say(*client, mr_mode=mr_mode)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("fi_getinfo: ", lines[0])
        return lines[0]

    def test_the_hint_that_excluded_aperture_is_named(self):
        self.assertIn("FI_MULTICAST", self.refused("fi_info", "-p", "aperture", "-t", "FI_EP_RDM",
                                                   "-c", "FI_MULTICAST"))
        self.assertIn("addr_format", self.refused("fi_info", "-p", "aperture", "-a",
                                                  "FI_ADDR_PSMX2"))
        self.assertIn("domain \"another\"", self.refused("fi_info", "-p", "aperture", "-d",
                                                         "another"))

    def test_whoever_asks_is_told(self):
        multicast = ("fi_info", "-t", "FI_EP_RDM", "-c", "FI_MULTICAST")
        self.assertIn("FI_MULTICAST", self.refused(*multicast))
        quiet, code = self.say(*multicast, word="run")
        self.assertNotEqual(code, 0)
        self.assertEqual(quiet, [])

    def test_hints_that_are_met_are_told_too(self):
        lines, code = self.say("fi_info", "-p", "aperture")
        self.assertEqual(code, 0)
        self.assertEqual(len(lines), 3, lines)
        for line, kind in zip(lines, ("RDM", "MSG", "DGRAM")):
            self.assertIn(f"met by FI_EP_{kind} ", line)

    def test_a_setting_that_cannot_be_read_is_told(self):
        (command, line), code = self.say("fi_info", "-p", "aperture", mr_mode="local,lokal")
        self.assertNotEqual(code, 0)
        self.assertIn("APERTURE_MR_MODE=local,lokal means nothing", command)
        self.assertIn("fi_getinfo: ", line)
        for word in ("'lokal'", "local", "raw", "virt_addr", "allocated", "prov_key", "mmu_notify",
                     "rma_event", "endpoint", "hmem", "verbs", "none"):
            self.assertIn(word, line)

    def test_another_providers_name_is_told_with_the_option_that_answers_under_it(self):
        for name in ("tcp", "efa", "sockets", "cxi", "verbs;ofi_rxm"):
            line = self.refused("fi_info", "-p", name)
            self.assertIn(f'provider "{name}" is asked for', line)
            self.assertIn(f"run with --as '{name}'", line)
            quiet, _ = self.say("fi_info", "-p", name, word="run")
            self.assertEqual(quiet, [])

    def test_a_misspelt_provider_is_told_with_the_one_that_is_meant(self):
        line = self.refused("fi_info", "-p", "apertrue")
        self.assertIn('"apertrue" is asked for', line)
        self.assertIn('"aperture" is perhaps what is meant', line)
        lines, code = self.say("fi_info", "-p", "Aperture")  # libfabric minds no capitals
        self.assertEqual(code, 0)
        self.assertIn("met by FI_EP_RDM of aperture", lines[0])

    def test_a_misspelt_provider_in_the_list_is_told_with_the_one_that_is_meant(self):
        lines, _ = self.say("fi_info", "-p", "aperture", env={"FI_PROVIDER": "apertrue"})
        self.assertIn("'apertrue' is perhaps aperture, misspelt", lines[0])
        lines, _ = self.say("fi_info", "-p", "aperture", env={"FI_PROVIDER": "shm"})
        self.assertIn("FI_PROVIDER=shm is set, so libfabric will not choose Aperture; unset it",
                      lines[0])

    def test_a_program_that_takes_none_of_the_answer_is_told_of_the_option(self):
        lines, code = self.say(KNOWN_NAMES)
        self.assertEqual(code, 3)
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("no fabric of it was opened", lines[1])
        self.assertIn("run with --as", lines[1])
        lines, code = self.say(KNOWN_NAMES, options=("--as", "tcp"))
        self.assertEqual(code, 0)
        self.assertTrue(all("met by FI_EP_RDM of" in line for line in lines[1:]), lines)

    def test_an_api_that_libfabric_does_not_know_is_told(self):
        line = self.refused(KNOWN_NAMES, "99.0")
        self.assertRegex(line, r"API 99\.0 is asked of libfabric \d+\.\d+, which refuses a newer")

    def test_a_plugins_own_libfabric_is_asked_too(self):
        ask = ("import ctypes; f = ctypes.CDLL('libfabric.so.1', mode=ctypes.RTLD_LOCAL); "
               "import sys; i = ctypes.c_void_p(); "
               "g = ctypes.CDLL(None).fi_getinfo; "
               "sys.exit(-g(99 << 16, None, None, ctypes.c_uint64(0), None, ctypes.byref(i)))")
        self.assertIn("API 99.0 is asked of libfabric", self.refused("python3", "-c", ask))

    def test_a_look_up_below_the_devices_paths_that_cannot_be_answered_is_named(self):
        for path in ("/sys/class/infiniband/aperture0/nonsense",
                     "/sys/class/infiniband/aperture0/ports/7/state"):
            lines, code = self.say("cat", path)
            self.assertEqual(code, 1)
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(path, lines[0])
            self.assertIn("the device has no such file", lines[0])
            self.assertEqual(self.say("cat", path, word="run"), ([], 1))
        self.assertEqual(self.say("cat", "/sys/class/infiniband/aperture0/ports/1/state"), ([], 0))

    def test_each_call_that_looks_there_in_vain_is_named(self):
        calls = ("listdir", "scandir", "stat", "readlink", "chdir", "open", "getxattr")
        script = ("import os, sys\n"
                  "arguments = {'open': (os.O_RDONLY,), 'getxattr': ('user.x',)}\n"
                  "for name in sys.argv[1:]:\n"
                  "    try: getattr(os, name)('/sys/class/infiniband/aperture0/no_' + name,\n"
                  "                           *arguments.get(name, ()))\n"
                  "    except FileNotFoundError: continue\n"
                  "    sys.exit(name + ' found it')\n")
        lines, code = self.say("python3", "-c", script, *calls)
        self.assertEqual(code, 0, lines)
        named = re.findall(r"aperture0/no_(\w+): the device has no such file", "\n".join(lines))
        self.assertEqual(named, list(calls))
        self.assertEqual(len(lines), len(calls), lines)

    def test_what_is_looked_for_from_another_folder_in_vain_is_named(self):
        for command, told in (
                ("cd /sys/class; test -e infiniband/aperture0/nonsense",
                 "/sys/class/infiniband/aperture0/nonsense: the device has no such file"),
                ("cd /sys/class/infiniband/aperture0/ports; test -e nonsense",
                 "/sys/devices/virtual/infiniband/aperture0/ports/nonsense: the device has no"),
                ("cd /sys/class/infiniband/aperture0/ports; test -e 1/state; cd $HOME; test -e x",
                 None),
                ("cd /sys/class; test -e infiniband/mlx5_77", None),  # no device of ours
                ("test -e /sys/class/net/nonsense || test -e infiniband/aperture0/nonsense", None)):
            lines, _ = self.say("bash", "-c", command)
            self.assertEqual(len(lines), 1 if told else 0, (command, lines))
            self.assertIn(told or "", "\n".join(lines))

    def test_what_is_opened_to_write_or_for_a_child_is_named(self):
        lines, _ = self.say("bash", "-c", ": >/sys/class/infiniband/aperture0/node_desc; true")
        self.assertIn("is read, not written", "\n".join(lines))
        script = ("import os; os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=["
                  "(os.POSIX_SPAWN_OPEN, 5, '/dev/infiniband/rdma_cm', 0, 0)])")
        lines, _ = self.say("python3", "-c", script)
        self.assertIn("posix_spawn() does not open it for the child", "\n".join(lines))

    def pingpong(self, mr_mode):
        port = str(random.randrange(20000, 30000))
        common = ("fi_pingpong", "-p", "aperture", "-e", "rdm", "-I", "10", "-S", "64")
        server = self.start("explain", *common, "-B", port, mr_mode=mr_mode)
        self.addCleanup(lambda: server.poll() is None and server.kill())
        deadline = time.monotonic() + 20
        while not listeners.by_tcp(int(port)) and time.monotonic() < deadline:
            time.sleep(0.05)
        client = self.say(*common, "-P", port, "127.0.0.1", mr_mode=mr_mode)
        return client, self.finish(server)

    def test_what_a_program_lacks_for_a_nic_is_named(self):
        _, (lines, code) = self.pingpong("local,endpoint")  # the server asks first, and gives up
        self.assertNotEqual(code, 0)
        self.assertIn("FI_MR_ENDPOINT", lines[0])
        self.assertNotIn("FI_MR_LOCAL,", lines[0])

    def test_a_program_that_obeys_a_verbs_nic_runs(self):
        for lines, code in self.pingpong("verbs"):
            self.assertEqual(code, 0, lines)
            self.assertIn("met by", lines[0])


if __name__ == "__main__":
    unittest.main()
