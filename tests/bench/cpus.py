"""The CPUs that a bench under test is pinned to: two that this process may run on."""
import os
import sys

OURS = sorted(os.sched_getaffinity(0))[:2]
OPTION = "--cpus=" + ",".join(str(cpu) for cpu in OURS)


def skip_with_fewer_than_two():
    if len(OURS) < 2:
        print("skipped: there is one CPU for us, and a pair needs two")
        sys.exit(77)
