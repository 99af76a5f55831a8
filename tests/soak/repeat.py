"""Runs a build tree's tests again and again with new seeds: what ./dev soak repeats.

The tests, their environment and their time limits are asked of ctest, so that a test is declared
only once. Each round runs every test once, in random order, with a seed of its own; the seed of a
failure is printed and repeats it (APERTURE_SEED=n ./dev test -R name). Exits 1 if any failed.
"""
import argparse
import json
import os
import random
import subprocess
import sys
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


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("build")
    arguments.add_argument("--label", default="", help="only tests that have it")
    arguments.add_argument("--minutes", type=float, default=0, help="no new test after that")
    arguments.add_argument("--rounds", type=int, default=0, help="0: until the minutes are over")
    arguments.add_argument("--limit-factor", type=float, default=2, help="on the tests' limits")
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--keep", default="",
                           help="directory for the tests' last output, and for that of failures")
    chosen = arguments.parse_args()
    seeds = random.Random(chosen.seed)
    tests = declared_tests(chosen.build, chosen.label)
    if not tests:
        print(f"no test has the label '{chosen.label}'" if chosen.label else "there are no tests")
        return 1
    deadline = time.monotonic() + 60 * chosen.minutes if chosen.minutes else float("inf")
    passed, failed, rounds = 0, 0, 0
    while time.monotonic() < deadline and (not chosen.rounds or rounds < chosen.rounds):
        rounds += 1
        for test in seeds.sample(tests, len(tests)):
            if time.monotonic() >= deadline:
                break
            seed = seeds.randrange(1, 1 << 32)
            start = time.monotonic()
            trouble = run_once(test, seed, chosen.limit_factor, chosen.keep)
            passed, failed = passed + (not trouble), failed + bool(trouble)
            seconds = time.monotonic() - start
            print(f"{passed + failed}: {test['name']}, {seconds:.0f} s", flush=True)
            if trouble:
                print(f"FAILED: APERTURE_SEED={seed} {test['name']}: {trouble}", flush=True)
        print(f"round {rounds}: {passed} passed, {failed} failed so far", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
