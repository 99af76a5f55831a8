"""libfabric's own tests, fabtests, run over Aperture: `./dev fabtests DIR`.

DIR is a source tree of libfabric. Which tests there are, the lists in its
fabtests/scripts/runfabtests.sh say; that script itself is not run, because it ends every process
whose name begins with fi_. As it does, a test is a program alone or a server and a client, and has
not run where both answer that the provider does not offer what they ask for. fi_ubertest takes its
configurations from the tree too, with the provider's name put in and what configured() leaves out.

What came of each is kept in out/fabtests/VERSION.tsv, and what the tests printed in the folder
out/fabtests/VERSION.
The whole run fails when a test does worse than docs/conformance/fabtests.md says.
"""
import argparse
import collections
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = f"{SOURCE}/out/fabtests"
TABLE = f"{SOURCE}/docs/conformance/fabtests.md"
HOST = "127.0.0.1"
SETS = ["unit", "functional", "short", "ubertest"]

# Whose configurations of fi_ubertest a provider is run with. sockets' ask for all kinds of
# endpoints, tcp's for counters and wait objects; those of `verify` for many atomics of many types,
# some 1,400 processes each, one after another.
CONFIGURATIONS = {
    "ubertest": {"aperture": ["sockets/quick", "tcp/all"], "shm": ["shm/quick"],
                 "tcp": ["tcp/all"]},
    "verify": {"aperture": ["shm/quick", "sockets/verify"], "shm": ["shm/verify"]}}

Test = collections.namedtuple("Test", "name kind")  # kind: one of Suite.outcome()
Outcome = collections.namedtuple("Outcome", "provider test result reason seconds")
ORDER = {"fail": 0, "not run": 1, "excluded": 1, "pass": 2}
NOT_RUN = (errno.ENODATA, errno.ENOSYS)


def listed(tree: str) -> dict[str, list[str]]:
    """The lists of runfabtests.sh by their names."""
    with open(f"{tree}/fabtests/scripts/runfabtests.sh", encoding="utf-8") as file:
        text = file.read()
    return {name: re.findall(r'"([^"]+)"', body) for name, body in
            re.findall(r"^(\w+)_tests=\(\s*\\?\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)}


def tests_of(tree: str, sets: list[str], provider: str) -> list[Test]:
    lists = listed(tree)
    found = []
    for name in sets:
        if name in CONFIGURATIONS:
            there = [c for c in CONFIGURATIONS[name].get(provider, [])
                     if os.path.exists(f"{tree}/fabtests/test_configs/{c}.test")]
            found += [Test(f"{program} {c}", "ubertest")
                      for program in lists["complex"] for c in there]
            continue
        if name not in lists:
            sys.exit(f"runfabtests.sh has no list '{name}'; it has: {' '.join(lists)}")
        kind = {"unit": "alone", "regression": "alone", "multinode": "many"}.get(name, "pair")
        found += [Test(test, kind) for test in lists[name]]
        if name == "unit":
            found += [Test(test, "refused") for test in lists["neg_unit"]]
    return found


def exclusions(tree: str, provider: str) -> list[str]:
    """The patterns by which libfabric leaves out what its own providers do not pass."""
    path = f"{tree}/fabtests/test_configs/{provider}/{provider}.exclude"
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def own_network():
    """Starts this script anew in a network namespace of its own, where that is allowed: fabtests'
    ports are fixed, and others may be using them."""
    if os.environ.get("APERTURE_FABTESTS_NETWORK") == "own" or not shutil.which("unshare"):
        return
    flags = "-n" if os.geteuid() == 0 else "-rn"
    up = 'ip link set lo up && APERTURE_FABTESTS_NETWORK=own exec "$@"'
    if subprocess.run(["unshare", flags, "ip", "link", "set", "lo", "up"],
                      capture_output=True, check=False).returncode == 0:
        os.execvp("unshare", ["unshare", flags, "sh", "-c", up, "sh", sys.executable, *sys.argv])


def anyone_listens() -> bool:
    """Whether a TCP socket listens or a UDP socket is bound in our network namespace."""
    for table, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        try:
            with open(f"/proc/net/{table}", encoding="ascii") as file:
                if any(line.split()[3] == state for line in file.readlines()[1:]):
                    return True
        except OSError:
            continue
    return False


def configured(text: str, provider: str) -> str:
    """A configuration of fi_ubertest for that provider: its own as it is, another's for Aperture.
    For that it leaves out:

    FI_WAIT_MUTEX_COND, which is refused with ENOSYS: the first refusal ends all of fi_ubertest.
    Unit tests of fi_sendv and fi_sendmsg: they compare lengths, and 16 bytes in 6 pieces, of which
    Aperture takes 8, are 17 where fi_ubertest rounds each (_ft_format_iov_weighted). Its latency
    and bandwidth tests of these calls stay.
    """
    if provider != "aperture":
        return text
    text = re.sub(r"(prov_name:\s*)[\w;]+", rf"\1{provider}", text)  # tcp;ofi_rxm among them
    blocks = []
    for block in re.findall(r"\{[^}]*\}", re.sub(r"#:.*\n", "", text)):
        block = re.sub(r"\s*FI_WAIT_MUTEX_COND,?", "", block)
        if "FT_TEST_UNIT" in block and re.search(r"FT_FUNC_SEND(V|MSG)\b", block):
            others = re.sub(r"\s*FT_TEST_UNIT,?", "", block)
            if "FT_TEST_" in others:
                blocks.append(others)
            block = re.sub(r"\s*FT_TEST_(LATENCY|BANDWIDTH),?", "", block)
            block = re.sub(r"\s*FT_FUNC_SEND(V|MSG)\b,?", "", block)
        blocks.append(block)
    return ",\n".join(blocks) + ",\n"


class Running:
    """A program of fabtests, in a process group of its own, its output in a file."""

    def __init__(self, command: list[str], env: dict, log: str):
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=file,
                                            stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self, until: float):
        """Its exit status; None when the time was over."""
        try:
            return self.process.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Ends it and whatever it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.process.wait()

    def said(self) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()


def why(said: str) -> str:
    """The first complaint in what a program printed, else its last line."""
    lines = [re.sub(r"\S*/source/fabtests/", "", line.strip()) for line in said.splitlines()
             if line.strip() and not line.startswith("libfabric:")]
    for line in lines:
        if re.search(r"ret=-\d|\bFAIL|[Ee]rror|ERROR|[Ff]ailed|mismatch", line):
            return line
    return lines[-1] if lines else "it printed nothing"


class Suite:
    def __init__(self, options):
        self.options = options
        self.env = dict(os.environ, FI_LOG_LEVEL=os.environ.get("FI_LOG_LEVEL", "warn"))
        if os.path.exists(f"{options.prefix}/lib/libfabric.so"):
            more = os.environ.get("LD_LIBRARY_PATH")
            self.env["LD_LIBRARY_PATH"] = f"{options.prefix}/lib" + (f":{more}" if more else "")
        self.alone_here = os.environ.get("APERTURE_FABTESTS_NETWORK") == "own"

    def start(self, provider: str, arguments: list[str], log: str) -> Running:
        over = [f"{self.options.build}/bin/aperture", "run", "--"] if provider == "aperture" else []
        program = f"{self.options.prefix}/bin/{arguments[0]}"
        return Running([*over, program, *arguments[1:]], self.env, log)

    def head_start(self, server: Running):
        """A second, as runfabtests.sh gives; on a busy machine, until somebody listens."""
        begin = time.monotonic()
        while server.process.poll() is None and time.monotonic() < begin + 10:
            if time.monotonic() > begin + 1 and (not self.alone_here or anyone_listens()):
                return
            time.sleep(0.05)

    def outcome(self, provider: str, test: Test) -> Outcome:
        begin = time.monotonic()
        log = f"{OUT}/{self.options.version}/{provider}-" + re.sub(r"[^\w]+", "-", test.name)
        run = {"alone": self.alone, "refused": self.alone, "pair": self.pair, "many": self.many,
               "ubertest": self.ubertest}[test.kind]
        result, reason = run(provider, test, log)
        return Outcome(provider, test.name, result, reason, round(time.monotonic() - begin, 1))

    def alone(self, provider: str, test: Test, log: str):
        words = test.name.replace("GOOD_ADDR", HOST).replace("SERVER_ADDR", HOST).split()
        program = self.start(provider, [*words, "-p", provider], log)
        status = program.wait(time.monotonic() + self.options.seconds)
        program.end()
        if test.kind == "refused":
            good = status == errno.ENODATA
            return ("pass", "") if good else ("fail", f"exit status {status}, not ENODATA")
        return self.judged([(status, program)])

    def pair(self, provider: str, test: Test, log: str):
        words = [*test.name.split(), "-p", provider]
        server = self.start(provider, [*words, "-s", HOST], f"{log}.server")
        self.head_start(server)
        client = self.start(provider, [*words, "-s", HOST, HOST], f"{log}.client")
        return self.judged(self.ended(server, [client], self.options.seconds))

    def many(self, provider: str, test: Test, log: str):
        words = [*test.name.split(), "-n", "3", "-p", provider, "-s", HOST]
        server = self.start(provider, words, f"{log}.server")
        self.head_start(server)
        clients = [self.start(provider, words, f"{log}.client{n}") for n in (1, 2)]
        return self.judged(self.ended(server, clients, self.options.seconds))

    @staticmethod
    def ended(server: Running, clients: list[Running], seconds: float):
        """(exit status, program) of each; the status of one that was not over in time is None."""
        until = time.monotonic() + seconds
        found = [(client.wait(until), client) for client in clients]
        if any(status != 0 for status, _ in found):
            until = time.monotonic() + 2  # who lost its peer may never notice it
        found.append((server.wait(until), server))
        for _, program in found:
            program.end()
        return found

    @staticmethod
    def judged(ended):
        statuses = [status for status, _ in ended]
        if all(status == 0 for status in statuses):
            return "pass", ""
        if len(set(statuses)) == 1 and statuses[0] in NOT_RUN:
            return "not run", why(ended[0][1].said())
        reasons = []
        for status, program in ended:
            if status is None:
                reasons.append("not over in time")
            elif status < 0:
                reasons.append(f"ended by {signal.Signals(-status).name}")
            elif status != 0:
                reasons.append(f"exit status {status}: {why(program.said())}")
        return "fail", "; ".join(reasons)

    def ubertest(self, provider: str, test: Test, log: str):
        program, configuration = test.name.split()
        mine = f"{log}.test"
        with open(f"{self.options.tree}/fabtests/test_configs/{configuration}.test",
                  encoding="utf-8") as file, open(mine, "w", encoding="utf-8") as out:
            out.write(configured(file.read(), provider))
        # -f, a process for each test, as runfabtests.sh -k does: one process would keep the 6 MiB
        # that each of its tests forgets to free
        server = self.start(provider, [program, "-x", "-f"], f"{log}.server")
        self.head_start(server)
        client = self.start(provider, [program, "-u", mine, HOST, "-f"], f"{log}.client")
        ended = self.ended(server, [client], self.options.seconds * 10)
        if any(status != 0 for status, _ in ended):
            return "fail", self.judged(ended)[1]
        counts = {name: int(n) for name, n in
                  re.findall(r"^(Success|ENODATA|ENOSYS|EIO|ERROR) *: (\d+)", client.said(), re.M)}
        summary = ", ".join(f"{name} {n}" for name, n in counts.items())
        if not counts.get("Success") or any(counts.get(n) for n in ("ENOSYS", "EIO", "ERROR")):
            return "fail", summary
        return "pass", summary


def kept(version: str) -> dict[tuple[str, str], str]:
    """What the kept table says: {(provider, test): result}. Its columns are headed by version and
    provider, its rows by the test in `quotes`."""
    said, columns = {}, []
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                columns = []
            elif cells[0] == "test":
                columns = [cell.split() for cell in cells]
            elif columns and (test := re.fullmatch(r"`(.+)`", cells[0])):
                for column, cell in zip(columns[1:], cells[1:]):
                    if cell and len(column) == 2 and column[0] == version:
                        said[column[1], test.group(1)] = re.sub(r"[:,(].*", "", cell).strip()
    return said


def compared(version: str, outcomes: list[Outcome]) -> int:
    """Says where the kept table and these outcomes differ; 1 where they are worse."""
    table, worse = kept(version), 0
    where = os.path.relpath(TABLE, SOURCE)
    for o in outcomes:
        known = table.get((o.provider, o.test))
        if known is None and o.result != "fail":
            continue
        if known is None or ORDER[o.result] < ORDER.get(known, 0):
            worse = 1
            print(f"worse than {where} says: {o.provider}, {o.test}: {o.result}, "
                  f"there: {known or 'not named'}", file=sys.stderr)
        elif ORDER[o.result] > ORDER.get(known, 0):
            print(f"better than {where} says, which is to be mended: {o.provider}, {o.test}: "
                  f"{o.result}, there: {known}", file=sys.stderr)
    return worse


def print_table(version: str, outcomes: list[Outcome]):
    providers = list(dict.fromkeys(o.provider for o in outcomes))
    tests = list(dict.fromkeys(o.test for o in outcomes))
    results = {(o.provider, o.test): o.result for o in outcomes}
    print("\n| test | " + " | ".join(f"{version} {p}" for p in providers) + " |")
    print("| --- |" + " --- |" * len(providers))
    for test in tests:
        cells = [results.get((p, test), "") for p in providers]
        print(f"| `{test}` | " + " | ".join(cells) + " |")
    for p in providers:
        counts = collections.Counter(o.result for o in outcomes if o.provider == p)
        print(f"\n{p}: " + ", ".join(f"{n} {result}" for result, n in counts.most_common()))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev fabtests", description=__doc__.split("\n")[0])
    parser.add_argument("tree", metavar="DIR", help="a source tree of libfabric")
    parser.add_argument("tests", metavar="TEST", nargs="*", help="only tests with this in the name")
    parser.add_argument("--build", default=f"{SOURCE}/build/release", help="Aperture's build")
    parser.add_argument("--prefix", required=True, help="where fabtests is installed")
    parser.add_argument("--version", required=True, help="of the source tree")
    parser.add_argument("--set", action="append", dest="sets", metavar="LIST",
                        help="a list of runfabtests.sh, ubertest, or verify; may be given more "
                        f"than once (default: {', '.join(SETS)})")
    parser.add_argument("--over", metavar="PROVIDER", action="append", dest="providers",
                        help="aperture (the default); shm or tcp for comparison, without what "
                        "libfabric itself excludes for them; may be given more than once")
    parser.add_argument("--seconds", type=float, default=120,
                        help="for one test (default: 120), ten times that for fi_ubertest")
    parser.add_argument("--json", action="store_true", help="the outcomes as JSON, no table")
    return parser.parse_intermixed_args()


def main() -> int:
    options = parsed()
    options.tree = os.path.abspath(options.tree)
    own_network()
    shutil.rmtree(f"{OUT}/{options.version}", ignore_errors=True)
    os.makedirs(f"{OUT}/{options.version}")
    suite, outcomes = Suite(options), []
    for provider in options.providers or ["aperture"]:
        excluded = exclusions(options.tree, provider)
        tests = [t for t in tests_of(options.tree, options.sets or SETS, provider)
                 if not options.tests or any(w in t.name for w in options.tests)]
        for n, test in enumerate(tests, 1):
            if any(re.search(pattern, test.name) for pattern in excluded):
                outcome = Outcome(provider, test.name, "excluded", "by libfabric itself", 0)
            else:
                outcome = suite.outcome(provider, test)
            outcomes.append(outcome)
            print(f"{provider} {n}/{len(tests)}  {outcome.result}  {outcome.seconds} s  "
                  f"{test.name}  {outcome.reason}", file=sys.stderr, flush=True)
    if not outcomes:
        sys.exit("no test has that in its name")
    with open(f"{OUT}/{options.version}.tsv", "w", encoding="utf-8") as file:
        file.writelines("\t".join(str(field) for field in o) + "\n" for o in outcomes)
    if options.json:
        print(json.dumps({"version": options.version, "tests": [o._asdict() for o in outcomes]},
                         indent=1))
    else:
        print_table(options.version, outcomes)
    return compared(options.version, outcomes)


if __name__ == "__main__":
    sys.exit(main())
