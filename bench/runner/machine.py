"""What the machine is, and whether it was quiet: the ping-pong of a cache line and foreign load."""
import os
import platform
import re
import subprocess
import time

GRANULE = 0.03  # seconds: the kernel's accounts are in ticks of 10 ms, per CPU
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            match = re.search(r"^model name\s*:\s*(.+)$", f.read(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.machine()


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unknown"


def commit(root: str) -> str:
    """The short hash of the tree that is measured, with -dirty when it differs from it."""
    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True,
                                  check=False)
        except OSError:  # no git here
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=10", "HEAD")
    if not head:
        return "nocommit"
    return head + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")


def describe(root: str) -> dict:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "cpu": cpu_name(),
        "cpus": os.cpu_count() or 0,
        "kernel": platform.release(),
        "commit": commit(root),
        "load": " ".join(f"{x:.2f}" for x in os.getloadavg()),
    }


def _cpu_seconds() -> tuple:
    """Busy and stolen seconds of all CPUs since boot."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = [int(x) for x in f.readline().split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq) / TICKS, steal / TICKS


def _own_seconds() -> float:
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


class ForeignLoad:
    """Share of one CPU that others (and the host) took since it was made."""

    def __init__(self) -> None:
        self._busy, self._steal = _cpu_seconds()
        self._own = _own_seconds()
        self._start = time.monotonic()

    def share(self) -> float:
        wall = max(time.monotonic() - self._start, 1e-3)
        busy, steal = _cpu_seconds()
        foreign = (busy - self._busy) - (_own_seconds() - self._own) + (steal - self._steal)
        return max(0.0, foreign - GRANULE) / wall
