"""Runs a build tree's tests again and again with new seeds: what ./dev soak repeats.

The tests, their environment and their time limits are asked of ctest, so that a test is declared
only once. Each round runs every test once, in random order, with a seed of its own; the seed of a
failure is printed and repeats it (APERTURE_SEED=n ./dev test -R name). With --jobs as many run at a
time as ctest would start on so many cores, those with the longest limits first. Exits 1 if any
failed.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time


def declared_tests(build: str, label: str) -> list[dict]:
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"],
                           capture_output=True, text=True, check=True)
    tests = []
    for test in json.loads(shown.stdout)["tests"]:
        properties = {each["name"]: each["value"] for each in test.get("properties", [])}
        if "command" in test and (not label or label in properties.get("LABELS", [])):
            tests.append({"name": test["name"], "command": test["command"],
                          "seconds": properties.get("TIMEOUT", 60),
                          "cores": properties.get("PROCESSORS", 1),
                          "alone": properties.get("RUN_SERIAL", False),
                          "cwd": properties.get("WORKING_DIRECTORY", build),
                          "env": dict(pair.split("=", 1)
                                      for pair in properties.get("ENVIRONMENT", []))})
    return tests


def run_once(test: dict, seed: int, limit_factor: float, keep: str) -> str:
    """"" if it passed or was skipped, else what went wrong. Its output goes to a file in `keep`:
    the last one of each test, and that of each failure.
    """
    env = {**os.environ, **test["env"], "APERTURE_SEED": str(seed)}
    own_limit = "APERTURE_TEST_LIMIT"  # a door test's own watchdog, seconds for each case
    if own_limit in env:
        env[own_limit] = str(int(float(env[own_limit]) * limit_factor))
    process = subprocess.Popen(test["command"], cwd=test["cwd"], env=env, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, errors="replace", start_new_session=True)
    trouble = ""
    try:
        output, _ = process.communicate(timeout=test["seconds"] * limit_factor)
        if process.returncode not in (0, 77):
            trouble = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its own session: whatever the test started goes with it
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # all but what has left that session
            output = "(something that it started still holds its output)"
        trouble = f"no end within {test['seconds'] * limit_factor:.0f} s"
    if keep:
        name = f"{test['name']}-{seed}-failed" if trouble else test["name"]
        with open(os.path.join(keep, f"{name}.log"), "w", encoding="utf-8") as log:
            log.write(output)
    return f"{trouble}\n{output[-4000:]}" if trouble else ""


class Cores:
    """How many tests may run at a time; may be used by several threads."""

    def __init__(self, count: int):
        self.count, self.used, self.changed = count, 0, threading.Condition()

    def of(self, test: dict) -> int:
        return self.count if test["alone"] else min(test["cores"], self.count)

    def take(self, test: dict):
        with self.changed:
            self.changed.wait_for(lambda: self.used + self.of(test) <= self.count)
            self.used += self.of(test)

    def give(self, test: dict):
        with self.changed:
            self.used -= self.of(test)
            self.changed.notify_all()


class Results:
    """What has run so far; may be used by several threads."""

    def __init__(self, limit_factor: float, keep: str):
        self.limit_factor, self.keep = limit_factor, keep
        self.passed, self.failed, self.telling = 0, 0, threading.Lock()

    def run(self, test: dict, seed: int, cores: Cores):
        start = time.monotonic()
        trouble = "it could not be run"
        try:
            trouble = run_once(test, seed, self.limit_factor, self.keep)
        finally:
            seconds = time.monotonic() - start
            cores.give(test)
            with self.telling:
                self.passed += not trouble
                self.failed += bool(trouble)
                print(f"{self.passed + self.failed}: {test['name']}, {seconds:.0f} s", flush=True)
                if trouble:
                    print(f"FAILED: APERTURE_SEED={seed} {test['name']}: {trouble}", flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("build")
    arguments.add_argument("--label", default="", help="only tests that have it")
    arguments.add_argument("--minutes", type=float, default=0, help="no new test after that")
    arguments.add_argument("--rounds", type=int, default=0, help="0: until the minutes are over")
    arguments.add_argument("--limit-factor", type=float, default=2, help="on the tests' limits")
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--jobs", type=int, default=1, help="cores for tests side by side")
    arguments.add_argument("--keep", default="",
                           help="directory for the tests' last output, and for that of failures")
    chosen = arguments.parse_args()
    seeds = random.Random(chosen.seed)
    tests = declared_tests(chosen.build, chosen.label)
    if not tests:
        print(f"no test has the label '{chosen.label}'" if chosen.label else "there are no tests")
        return 1
    deadline = time.monotonic() + 60 * chosen.minutes if chosen.minutes else float("inf")
    cores, results, rounds = Cores(chosen.jobs), Results(chosen.limit_factor, chosen.keep), 0
    while time.monotonic() < deadline and (not chosen.rounds or rounds < chosen.rounds):
        rounds += 1
        order = seeds.sample(tests, len(tests))
        if chosen.jobs > 1:
            order.sort(key=lambda test: -test["seconds"])
        running = []
        for test in order:
            seed = seeds.randrange(1, 1 << 32)
            cores.take(test)
            if time.monotonic() >= deadline:
                cores.give(test)
                break
            running.append(threading.Thread(target=results.run, args=(test, seed, cores)))
            running[-1].start()
        for thread in running:
            thread.join()
        print(f"round {rounds}: {results.passed} passed, {results.failed} failed so far",
              flush=True)
    print(f"{results.passed} passed, {results.failed} failed")
    return 1 if results.failed or not results.passed else 0


if __name__ == "__main__":
    sys.exit(main())
