"""`aperture run --fault` with stock clients: each fault ends them with the status that a NIC would
give, and a line says that it was asked for; what is no fault runs nothing.
"""
import os
import random
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sandbox"))
import listeners  # noqa: E402

BUILD = sys.argv.pop(1)
COMMAND = f"{BUILD}/bin/aperture"
SECONDS = 60
FAULT = "fault injected (APERTURE_FAULT, "


class Fault(unittest.TestCase):
    def start(self, faults, *client, env=None):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("FI_", "OMPI_", "APERTURE_"))}
        options = ("--fault", faults) if faults else ()
        process = subprocess.Popen([COMMAND, "run", *options, "--", *client],
                                   env={**clean, **(env or {})}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
            process.communicate()

    def pair(self, server, client, *, at_server="", at_client=""):
        """What each end printed, and its exit status: the client's, the server's."""
        port = random.randrange(20000, 30000)
        listens = self.start(at_server, *server(port))
        deadline = time.monotonic() + SECONDS
        while not listeners.by_tcp(port) and time.monotonic() < deadline:
            time.sleep(0.02)
        asks = self.start(at_client, *client(port))
        printed, _ = asks.communicate(timeout=SECONDS)
        if asks.returncode != 0 and not at_server:
            listens.kill()  # some wait for a message that does not come
        other, _ = listens.communicate(timeout=SECONDS)
        return (printed, asks.returncode), (other, listens.returncode)

    def verbs(self, *options, program="ibv_rc_pingpong", **faults):
        common = (program, "-d", "aperture0", "-g", "0", *options)
        return self.pair(lambda port: (*common, "-p", str(port)),
                         lambda port: (*common, "-p", str(port), "127.0.0.1"), **faults)

    def fabric(self, kind, **faults):
        common = ("fi_pingpong", "-p", "aperture", "-e", kind, "-S", "64", "-I", "1000")
        return self.pair(lambda port: (*common, "-B", str(port)),
                         lambda port: (*common, "-P", str(port), "127.0.0.1"), **faults)

    def assert_struck(self, end, word, sentence):
        printed, status = end
        self.assertNotEqual(status, 0, printed)
        self.assertIn("faults are injected, as APERTURE_FAULT=", printed)
        self.assertIn(f"{FAULT}{word}): ", printed)
        self.assertIn(sentence, printed)

    # --- verbs ---

    def test_an_operation_that_nobody_answers(self):
        client, _ = self.verbs(at_client="seed=7,retry=after:100")
        self.assert_struck(client, "retry", "Failed status transport retry counter exceeded (12)")

    def test_a_queue_pair_in_error(self):
        client, _ = self.verbs(at_client="flush=after:100")
        self.assert_struck(client, "flush", "Failed status Work Request Flushed Error (5)")

    def test_a_peer_that_dies(self):
        client, _ = self.verbs(at_client="death=after:100")
        self.assert_struck(client, "death", "Failed status transport retry counter exceeded (12)")

    def test_a_receiver_that_is_not_ready_is_waited_for(self):  # rnr_retry is 7
        begun = time.monotonic()
        for printed, status in self.verbs(at_server="rnr=500ms:after:100"):
            self.assertEqual(status, 0, printed)
        self.assertGreater(time.monotonic() - begun, 0.5)

    def test_delays_end_nothing(self):
        delay = "seed=7,delay=2ms:2%"
        for events in ((), ("-e",)):  # polling, and asleep
            for printed, status in self.verbs(*events, at_server=delay, at_client=delay):
                self.assertEqual(status, 0, printed)
                self.assertNotIn(FAULT, printed)

    def test_late_datagrams(self):
        delay = "seed=7,delay=2ms:5%"
        for events in ((), ("-e",)):
            for printed, status in self.verbs(*events, program="ibv_ud_pingpong", at_server=delay,
                                              at_client=delay):
                self.assertEqual(status, 0, printed)

    # --- libfabric ---

    # Connected endpoints: with FI_EP_RDM a receive waits on, since another peer may answer it, and
    # fi_pingpong's sends are complete when they have gone out.
    def test_fabric_that_nobody_answers(self):
        client, _ = self.fabric("msg", at_client="retry=after:100")
        self.assert_struck(client, "retry", "timed out")

    def test_fabric_that_is_flushed(self):
        client, _ = self.fabric("msg", at_client="flush=after:100")
        self.assert_struck(client, "flush", "anceled")

    def test_fabric_whose_peer_dies(self):
        client, _ = self.fabric("msg", at_client="death=after:100")
        self.assert_struck(client, "death", "peer lost")

    def test_fabric_with_delays(self):
        delay = "seed=7,delay=2ms:2%,rnr=3ms:1%"
        for kind in ("rdm", "msg", "dgram"):
            for printed, status in self.fabric(kind, at_server=delay, at_client=delay):
                self.assertEqual(status, 0, printed)

    # --- what is said ---

    def test_the_seed_that_was_drawn_is_said_and_draws_the_same(self):
        client, _ = self.verbs(at_client="retry=1%")
        seed = client[0].split("; seed=")[1].split()[0]
        again, _ = self.verbs(at_client=f"retry=1%,seed={seed}")
        struck = [[line.split("nothing answers")[1] for line in printed.splitlines()
                   if FAULT in line] for printed, _ in (client, again)]
        self.assertEqual(len(struck[0]), 1, client[0])
        self.assertEqual(struck[0], struck[1])

    def test_what_is_no_fault_runs_nothing(self):
        for bad, said in (("dely=1ms:1%", "'delay' is perhaps what is meant"),
                          ("retry=5", "retry wants when: a share, such as 5% or 0.1%")):
            process = self.start(bad, "echo", "ran")
            printed, _ = process.communicate(timeout=SECONDS)
            self.assertEqual(process.returncode, 2, printed)
            self.assertIn(said, printed)
            self.assertNotIn("ran", printed.replace("ran out", ""))

    def test_a_setting_that_is_no_fault_is_named_and_injects_nothing(self):
        process = self.start("", "ibv_devinfo", "-d", "aperture0",
                             env={"APERTURE_FAULT": "dely=1ms:1%"})
        printed, _ = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, printed)
        self.assertIn("APERTURE_FAULT=dely=1ms:1% means nothing ('dely' is no fault; 'delay' is "
                      "perhaps what is meant), so no fault is injected", printed)
        self.assertNotIn("faults are injected, as", printed)

    def test_the_option_takes_the_place_of_the_setting(self):
        process = self.start("drop=1%", "printenv", "APERTURE_FAULT",
                             env={"APERTURE_FAULT": "drop=2%"})
        printed, _ = process.communicate(timeout=SECONDS)
        self.assertIn("APERTURE_FAULT=drop=2% is set, and --fault takes its place", printed)
        self.assertEqual(printed.splitlines()[-1], "drop=1%")


if __name__ == "__main__":
    unittest.main()
