"""That two hosts are two: what two_hosts.py promises to those who use it."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "two_hosts.py")
SERVE = """
import socket, sys
with socket.create_server(("", 5000)) as listening:
    print("heard", listening.accept()[1][0])
sys.exit(int(sys.argv[1]))
"""
CONNECT = """
import os, socket, sys
socket.create_connection((sys.argv[1], 5000)).recv(1)
print("from", os.environ.get("FI_APERTURE_IFACE"))
sys.exit(int(sys.argv[2]))
"""


def play(*options, server=("true",), client=("true",)) -> tuple[int, str]:
    done = subprocess.run([SCRIPT, *options, "--", *server, "---", *client], capture_output=True,
                          text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def exchange(*options, served=0, printed=0) -> tuple[int, str]:
    return play("--wait", "tcp:5000", *options, server=("python3", "-c", SERVE, str(served)),
                client=("python3", "-c", CONNECT, "@server", str(printed)))


def alive(mark: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                if file.read().startswith(f"sleep\0{mark}"):
                    return True
        except OSError:
            pass
    return False


class TwoHosts(unittest.TestCase):
    def test_both_ends_decide(self):
        self.assertEqual(exchange(), (0, ""))
        for ends in ({"served": 3}, {"printed": 3}):
            status, said = exchange(**ends)
            self.assertEqual(status, 1)
            self.assertIn("heard 10.83.0.2", said)
            self.assertIn("from 10.83.0.2", said)
        self.assertEqual(exchange("--ignore-server-status", served=3)[0], 0)

    def test_settings_are_passed_on(self):
        self.assertIn("from None", exchange("--no-iface", "--verbose")[1])
        show = ("sh", "-c", "echo $WHAT; cat /sys/class/net/host?/mtu")
        self.assertIn("this\n9000", play("--env", "WHAT=this", "--mtu", "9000", "--verbose",
                                         client=show)[1])

    def test_packets_get_lost(self):
        status, said = exchange("--loss", "100", "--seconds", "4")
        self.assertEqual(status, 1)
        self.assertNotIn("heard", said)
        # some get lost, and TCP sends them again
        self.assertEqual(exchange("--loss", "20", "--seconds", "30"), (0, ""))

    def test_packets_come_later(self):
        begin = time.monotonic()
        self.assertEqual(exchange("--delay", "300"), (0, ""))
        late = time.monotonic() - begin
        begin = time.monotonic()
        self.assertEqual(exchange(), (0, ""))
        self.assertGreater(late - (time.monotonic() - begin), 0.5)  # a SYN and its answer

    def test_nothing_of_one_is_seen_from_the_other(self):
        look = ("sh", "-c", "ls /proc | grep -c '^[0-9]'; ls /dev/shm; cat /proc/net/unix")
        status, said = play("--wait", "sleep:0.5", "--ignore-server-status", "--verbose",
                            server=("sh", "-c", "touch /dev/shm/seen; exec sleep 30"), client=look)
        self.assertEqual(status, 0, said)
        self.assertNotIn("seen", said)

    def test_time_ends(self):
        status, said = play("--seconds", "1", client=("sleep", "30"))
        self.assertEqual(status, 1)
        self.assertIn("not ended in time", said)

    def test_whatever_ends_it_ends_everything(self):
        for how in (signal.SIGKILL, signal.SIGTERM):
            mark = f"7{os.getpid()}"
            with tempfile.TemporaryFile() as out:
                script = subprocess.Popen([SCRIPT, "--", "sleep", mark, "---", "sleep", mark],
                                          stdout=out, stderr=out)
                for _ in range(200):
                    if alive(mark):
                        break
                    time.sleep(0.05)
                self.assertTrue(alive(mark))
                script.send_signal(how)
                script.wait()
            for _ in range(100):
                if not alive(mark):
                    break
                time.sleep(0.05)
            self.assertFalse(alive(mark), f"left behind after {how}")


if __name__ == "__main__":
    possible, why_not = play()
    if possible == 77:
        print(why_not)
        sys.exit(77)
    unittest.main()
