"""rdma-core's own tests of verbs and rdma_cm, run on aperture0: `./dev verbs-tests DIR`.

DIR is a source tree of rdma-core. Its tests/run_tests.py runs as it is, once for each test, under
`aperture run` and with a time limit. What came of each is kept in out/verbs-tests/VERSION.tsv, and
a table by file is printed. A failure that docs/conformance/rdma-core-tests.md does not
name fails the whole run, and so does one that it names and that is none any more.

Tests of one vendor's devices (mlx5, efa, ...) are left out unless `--all` is given.
"""
import argparse
import collections
import os
import re
import signal
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = f"{SOURCE}/out/verbs-tests"
TABLE = f"{SOURCE}/docs/conformance/rdma-core-tests.md"
PYTHON = "/usr/bin/python3"
ONE_VENDOR = re.compile(r"^tests\.test_(mlx5|efa|irdma|mana|hns)")

Outcome = collections.namedtuple("Outcome", "test result reason")


def version_of(tree: str) -> str:
    with open(f"{tree}/CMakeLists.txt", encoding="utf-8") as file:
        return re.search(r'PACKAGE_VERSION "([0-9.]+)"', file.read()).group(1)


def stand_in_for_the_rdma_tool() -> str:
    """A folder with an `rdma` that knows no device, as the tool itself says where the kernel has
    RDMA's netlink and no device: newer tests ask it before they look below /sys."""
    folder = f"{OUT}/bin"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/rdma", "w", encoding="ascii") as file:
        file.write("#!/bin/sh\necho '[]'\n")
    os.chmod(f"{folder}/rdma", 0o755)
    return folder


def environment(build: str | None) -> dict:
    """Of the installed pyverbs; or of one that was built, with the libraries built beside it."""
    env = dict(os.environ)
    tool = subprocess.run(["rdma", "link", "show", "-j"], capture_output=True, check=False)
    if tool.returncode != 0:
        env["PATH"] = f"{stand_in_for_the_rdma_tool()}:{env['PATH']}"
    if build:
        env["PYTHONPATH"] = f"{build}/python"
        env["LD_LIBRARY_PATH"] = f"{build}/lib"
    return env


class Suite:
    def __init__(self, options):
        self.options = options
        self.env = environment(options.pyverbs)
        # PYTHONPATH is not the tree's top: the folder pyverbs there holds no modules to import
        self.script = [PYTHON, "-B", f"{options.tree}/tests/run_tests.py"]

    def run(self, arguments, seconds: float):
        """What it printed, and its exit status; -SIGALRM when the time was over."""
        command = [f"{self.options.build}/bin/aperture", "run", "--", *self.script, *arguments]
        process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True)
        try:
            return process.communicate(timeout=seconds)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0], -signal.SIGALRM

    def tests(self) -> list[str]:
        said, status = self.run(["--list-tests"], 60)
        found = [line for line in said.splitlines() if re.fullmatch(r"tests\.[\w.]+", line)]
        if status != 0 or not found:
            sys.exit(f"the tests of {self.options.tree} cannot be listed:\n{said}")
        wanted = self.options.tests
        return [t for t in found
                if (not wanted or any(w in t for w in wanted)) and
                (self.options.all or not ONE_VENDOR.match(t))]

    def outcome(self, test: str) -> Outcome:
        said, status = self.run(["--dev", "aperture0", "-v", test], self.options.seconds)
        if self.options.show:
            print(said)
        name = test.removeprefix("tests.")
        skipped = re.search(r"\.\.\. skipped (['\"])(.*)\1$", said, re.MULTILINE)
        if status == -signal.SIGALRM:
            return Outcome(name, "fail", f"not over after {self.options.seconds:g} s")
        if status < 0:
            return Outcome(name, "fail", f"ended by {signal.Signals(-status).name}")
        if status != 0:
            return Outcome(name, "fail", self.reason(said))
        if skipped:
            return Outcome(name, "skip", skipped.group(2))
        ran = re.search(r"^Ran 1 test", said, re.MULTILINE)
        return Outcome(name, "pass" if ran else "fail", "" if ran else "no test of this name ran")

    @staticmethod
    def reason(said: str) -> str:
        """What a process of the test has met, else the exception of the first traceback."""
        found = (re.search(r"Player \w+ got: (.*?)(?=Player|$)", said, re.M) or
                 re.search(r"^Traceback.*?\n(\w[^\n]*)", said, re.MULTILINE | re.DOTALL))
        return found.group(1) if found else said.strip().splitlines()[-1]


def named_failures(version: str) -> set[str]:
    """Those that the kept table names for this version: | `file.Class.test` | 44.0, 64.0 | ... |"""
    rows = set()
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            row = re.match(r"\| `([\w.]+)` \| ([0-9., ]+) \|", line)
            if row and version in row.group(2).replace(" ", "").split(","):
                rows.add(row.group(1))
    return rows


def print_table(outcomes: list[Outcome]):
    files = collections.defaultdict(collections.Counter)
    for o in outcomes:
        files[o.test.split(".")[0]][o.result] += 1
    total = sum(files.values(), collections.Counter())
    print("\n| file | pass / skip / fail |\n| --- | --- |")
    for name, counts in [*files.items(), ("all", total)]:
        print(f"| {name} | {counts['pass']} / {counts['skip']} / {counts['fail']} |")
    print("\n| skipped because | how many |\n| --- | --- |")
    reasons = collections.Counter(o.reason for o in outcomes if o.result == "skip")
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count} |")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev verbs-tests", description=__doc__.split("\n")[0])
    parser.add_argument("tree", metavar="DIR", help="a source tree of rdma-core")
    parser.add_argument("tests", metavar="TEST", nargs="*", help="only tests with this in the name")
    parser.add_argument("--build", default=f"{SOURCE}/build/release", help="Aperture's build")
    parser.add_argument("--pyverbs", metavar="BUILD",
                        help="a build of rdma-core whose pyverbs is used (default: the installed)")
    parser.add_argument("--seconds", type=float, default=60, help="for one test (default: 60)")
    parser.add_argument("--all", action="store_true", help="those of one vendor's devices too")
    parser.add_argument("--show", action="store_true", help="what each test printed")
    return parser.parse_intermixed_args()


def main() -> int:
    options = parsed()
    options.tree = os.path.abspath(options.tree)
    version = version_of(options.tree)
    suite = Suite(options)
    outcomes = []
    for test in suite.tests():
        outcomes.append(suite.outcome(test))
        print("{0.result}  {0.test}  {0.reason}".format(outcomes[-1]), flush=True)
    os.makedirs(OUT, exist_ok=True)
    with open(f"{OUT}/{version}.tsv", "w", encoding="utf-8") as file:
        file.writelines("\t".join(o) + "\n" for o in outcomes)
    print_table(outcomes)
    failed = {o.test for o in outcomes if o.result == "fail"}
    known = named_failures(version) & {o.test for o in outcomes}
    for test in sorted(failed - known):
        print(f"failed, and {os.path.relpath(TABLE, SOURCE)} does not name it: {test}")
    for test in sorted(known - failed):
        print(f"did not fail, but {os.path.relpath(TABLE, SOURCE)} names it: {test}")
    return int(failed != known)


if __name__ == "__main__":
    sys.exit(main())
