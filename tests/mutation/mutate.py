#!/usr/bin/env python3
"""Takes the checks of src/protect/ out, one at a time, and sees that a test notices.

The list is mutations.py. Works on a copy of the tree in a scratch folder (src/ is never touched),
builds there what the tests in question need, and runs for each mutation the tests that are nearest
to it first, until one fails (killed) or all have passed (survived). A mutation that
survives must have a reason in the list; else the run fails. The whole list takes an hour or more;
--minutes and --seed take a part of it, which the seed fixes.
"""
import argparse
import math
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutations import ALL, Mutation

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("src", "tests", "cmake", "include", "docs", "bench", "examples")
LIMIT_S = 240  # of one test; most take a few seconds
PRODUCT = ("aperture", "aperture-fi", "aperture-verbs")  # what tests without a program start

PROTECT_TESTS = ("access_check", "side_record", "bound", "key_table", "key_entries", "key_chains",
                 "own_key_file", "peer_key_view", "revocation", "accessors", "interleave",
                 "dormant", "descriptor", "rights", "explain", "wording", "steps", "drawn_keys",
                 "key_numbers", "window", "threads", "processes")
NEAREST = {  # the test program that most likely notices, by file
    "protect/side_record.cpp": "side_record", "protect/side_record.hpp": "side_record",
    "protect/beside.cpp": "side_record", "protect/grant.hpp": "side_record",
    "protect/accessors.cpp": "revocation", "protect/revocation.cpp": "revocation",
    "protect/thread_probe.cpp": "accessors", "protect/own_key_file.cpp": "own_key_file",
    "protect/key_chains.cpp": "key_chains", "protect/drawn_keys.cpp": "drawn_keys",
    "protect/key_entries.cpp": "key_entries", "protect/key_entries.hpp": "key_entries",
    "protect/peer_key_view.cpp": "peer_key_view", "protect/key_file.cpp": "peer_key_view",
    "protect/key_table.cpp": "key_table",
    "protect/key_numbers.cpp": "key_numbers", "protect/key_numbers.hpp": "key_numbers",
    "protect/window.cpp": "window", "protect/window.hpp": "window",
    "protect/rights.cpp": "rights", "protect/descriptor.cpp": "descriptor",
}


def tests_for(m: Mutation) -> list[str]:
    if m.tests:
        return list(m.tests)
    first = NEAREST.get(m.file, "access_check")
    return ["protect_" + t for t in sorted(PROTECT_TESTS, key=lambda t: t != first)]


def stale_entries() -> list[str]:
    """What of the list no longer fits the sources."""
    out = []
    for number, m in enumerate(ALL, 1):
        found = (ROOT / "src" / m.file).read_text().count(m.old)
        if found != 1:
            out.append(f"{number} ({m.what}): its text occurs {found} times in src/{m.file}")
        if m.old == m.new:
            out.append(f"{number} ({m.what}): changes nothing")
    return out


class Scratch:
    """A copy of the tree and its build folder."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.build = folder / "build"

    def prepare(self) -> None:
        for part in PARTS:
            self.copy(ROOT / part, self.tree / part)
        self.write(self.tree / "CMakeLists.txt", (ROOT / "CMakeLists.txt").read_text())
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja",
                        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                        "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1"],
                       check=True, stdout=subprocess.DEVNULL)

    def copy(self, source: Path, to: Path) -> None:
        """Touches only what differs, so that a second run need not build everything again."""
        for path in sorted(p for p in source.rglob("*") if p.is_file()):
            if "__pycache__" not in path.parts:
                target = to / path.relative_to(source)
                self.write(target, path.read_text(errors="surrogateescape"))
                shutil.copymode(path, target)  # the build runs scripts

    @staticmethod
    def write(path: Path, text: str) -> None:
        if path.exists() and path.read_text(errors="surrogateescape") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, errors="surrogateescape")

    def targets_of(self, test: str) -> list[str]:
        known = subprocess.run(["ninja", "-C", self.build, "-t", "query", "test_" + test],
                               capture_output=True).returncode == 0
        return ["test_" + test] if known else list(PRODUCT)

    def failure_of(self, test: str, jobs: int) -> str:
        """Builds and runs one test: the first that failed in it, or "" when all passed."""
        made = subprocess.run(["ninja", "-C", self.build, "-j", str(jobs), *self.targets_of(test)],
                              capture_output=True, text=True)
        if made.returncode != 0:
            raise RuntimeError("does not build:\n" + made.stdout[-3000:])
        env = {**os.environ, "APERTURE_ROUNDS": "20", "GTEST_BRIEF": "1", "GTEST_FAIL_FAST": "1"}
        try:
            ran = subprocess.run(["ctest", "--test-dir", self.build, "-R", f"^{test}$",
                                  "--no-tests=error", "--output-on-failure"], capture_output=True,
                                 text=True, errors="replace", timeout=LIMIT_S, env=env)
        except subprocess.TimeoutExpired:
            return f"{test} (does not end)"
        if ran.returncode == 0:
            return ""
        failed = re.search(r"\[  FAILED  \] ([\w/.]+)|^(?:FAIL|ERROR): (\w+)", ran.stdout, re.M)
        return failed.group(1) or failed.group(2) if failed else f"{test} (fails)"

    def killer_of(self, m: Mutation, jobs: int) -> str:
        path = self.tree / "src" / m.file
        before = path.read_text()
        path.write_text(before.replace(m.old, m.new))
        try:
            for test in tests_for(m):
                if failure := self.failure_of(test, jobs):
                    return failure
            return ""
        finally:
            path.write_text(before)


def check_sound(scratch: Scratch, chosen: list[int], jobs: int) -> None:
    """Without a mutation every test must pass, or nothing below means anything."""
    for test in sorted({t for n in chosen for t in tests_for(ALL[n - 1])}):
        if failure := scratch.failure_of(test, jobs):
            sys.exit(f"mutation: {failure} fails without any mutation; mend that first")


def run(scratch: Scratch, chosen: list[int], jobs: int, end: float) -> int:
    killed, excused, survived, left = 0, 0, [], 0
    for done, number in enumerate(chosen, 1):
        m, start = ALL[number - 1], time.monotonic()
        if start > end:
            left = len(chosen) - done + 1
            break
        broken = ""
        try:
            killer = scratch.killer_of(m, jobs)
        except RuntimeError as e:
            killer, broken = "", str(e)
        if broken:
            survived.append(number)  # it says nothing about the tests: mend the list
            verdict = broken
        elif killer:
            killed += 1
            verdict = f"killed by {killer}"
        elif m.reason:
            excused += 1
            verdict = f"survived, as it may: {m.reason}"
        else:
            survived.append(number)
            verdict = "SURVIVED"
        print(f"[{done}/{len(chosen)}] {number:3} {m.file}: {m.what}: {verdict}"
              f" ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"mutation: {killed} killed, {excused} survived with a reason, {len(survived)} survived"
          + (f" without: {' '.join(map(str, survived))}" if survived else "")
          + (f"; {left} left out, the minutes are over" if left else ""))
    return 1 if survived else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "mutation",
                        help="scratch folder (default: %(default)s)")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="these of the list only")
    parser.add_argument("--minutes", type=float, default=math.inf,
                        help="begin none after so many (default: all of the list, an hour or more)")
    parser.add_argument("--seed", type=int, help="in a random order, which this number fixes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the compiler")
    parser.add_argument("--list", action="store_true", help="print the list, run nothing")
    parser.add_argument("--check", action="store_true",
                        help="only see whether the list fits the sources; builds nothing")
    args = parser.parse_args()
    if args.list:
        for number, m in enumerate(ALL, 1):
            print(f"{number:3} src/{m.file}: {m.what}" + (f" [{m.reason}]" if m.reason else ""))
        return 0
    if stale := stale_entries():
        print("mutation: mutations.py no longer fits the sources:", *stale, sep="\n  ")
        return 1
    if args.check:
        print(f"mutation: {len(ALL)} mutations fit the sources")
        return 0
    chosen = args.only or list(range(1, len(ALL) + 1))
    if args.seed is not None:
        random.Random(args.seed).shuffle(chosen)
    if any(not 1 <= n <= len(ALL) for n in chosen):
        parser.error(f"the list has numbers 1 to {len(ALL)}")
    scratch = Scratch(args.build.resolve())
    scratch.prepare()
    check_sound(scratch, chosen, args.jobs)
    return run(scratch, chosen, args.jobs, time.monotonic() + 60 * args.minutes)


if __name__ == "__main__":
    sys.exit(main())
