"""Who is measured: libfabric providers through fabbench, verbs devices through verbbench, UCX
through ucx_perftest, the limits.

Each subject answers measure() with an Observation and never raises for a measure that failed.
"""
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field

from .builds import Build, libfabric, ucx
from .goals import Measure


@dataclass
class Observation:
    ok: bool
    value: float = 0.0
    unit: str = ""
    min: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    mean: float = 0.0
    count: int = 0
    note: str = ""


@dataclass
class Settings:
    build: str
    seconds: float = 0.25
    cpus: tuple = (0, 1)
    timeout: float = 15.0
    libfabric: Build = field(default_factory=lambda: libfabric(""))  # of providers, not Aperture's
    ucx: Build = field(default_factory=lambda: ucx(""))
    modules: dict = field(default_factory=dict)  # of peers' registration caches: name -> path


def failed(note: str) -> Observation:
    return Observation(ok=False, note=note)


def run_program(argv: list, timeout: float, env: dict) -> tuple:
    """(exit code or None when it had to be ended, stdout, stderr)."""
    proc = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=env, start_new_session=True)
    try:
        out, err = proc.communicate(timeout=timeout)
        return proc.returncode, out, err
    except BaseException as e:
        os.killpg(proc.pid, signal.SIGKILL)
        out, err = proc.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            return None, out, err
        raise


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no output"


class RowProgram:
    """A program of ours that prints one JSON row per measure."""

    def __init__(self, argv: list, settings: Settings, env: dict) -> None:
        self._argv, self._settings, self._env = argv, settings, env

    def row(self, key: str, extra: list, seconds: float) -> Observation:
        s = self._settings
        argv = self._argv + ["--json", "--only", key, "--seconds", f"{seconds:g}",
                             "--cpus", f"{s.cpus[0]},{s.cpus[1]}"] + extra
        code, out, err = run_program(argv, 3 * s.timeout + 20, self._env)
        if code is None:
            return failed("had to be ended")
        try:
            row = json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return failed(f"exit code {code}: {last_line(err)}")
        fields = ("ok", "value", "unit", "min", "p50", "p99", "mean", "count", "note")
        seen = Observation(**{name: row[name] for name in fields})
        if seen.ok and seen.value <= 0:  # nothing takes no time: too little was seen of it
            return failed("the machine let too little of it run to be measured")
        return seen


class Limits:
    name = "limits"

    def __init__(self, settings: Settings) -> None:
        self._program = RowProgram([os.path.join(settings.build, "bench", "limits")], settings,
                                   dict(os.environ))
        self._seconds = settings.seconds

    def measure(self, key: str) -> Observation:
        return self._program.row(key, [], self._seconds)

    def line_lat(self, seconds: float = 0.03) -> float:
        """One way of a cache line in nanoseconds; 0 when it could not be measured."""
        seen = self._program.row("line_lat/8", [], seconds)
        return seen.value if seen.ok else 0.0


class Sockets:
    """TCP on loopback, by the same loop as that of the rows of programs asleep in epoll."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._limits = Limits(settings)

    def offers(self, measure: Measure) -> bool:
        return measure.event_driven

    def measure(self, measure: Measure) -> Observation:
        kind = measure.name.removeprefix("verbs_").removeprefix("send_")
        return self._limits.measure(f"tcp_{kind}/{measure.size}")


class Fabric:
    """One libfabric provider: NAME or NAME:MODE, MODE being a registration mode of fabbench."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        provider, _, mode = name.partition(":")
        ours = provider == "aperture"
        env = dict(os.environ) if ours else settings.libfabric.env(os.environ)
        if ours and not env.get("FI_PROVIDER_PATH"):
            env["FI_PROVIDER_PATH"] = os.path.join(settings.build, "lib", "libfabric")
        argv = [os.path.join(settings.build, "bench", "fabbench"), "-p", provider,
                "--mr", mode or "any", "--timeout", f"{settings.timeout:g}"]
        self._program = RowProgram(argv, settings, env)
        self._over_tcp = None
        if provider in ("aperture", "tcp"):
            self._over_tcp = RowProgram(argv, settings, {**env, "APERTURE_LINK": "tcp"})
        self._seconds = settings.seconds
        self._lenient = set()

    def offers(self, measure: Measure) -> bool:
        if measure.is_tcp:
            return self._over_tcp is not None
        return not (measure.is_mpi or measure.is_verbs or measure.is_cache or measure.is_run)

    def measure(self, measure: Measure) -> Observation:
        extra = ["--rigour", "lenient"] if measure.key in self._lenient else []
        program = self._over_tcp if measure.is_tcp else self._program
        seen = program.row(measure.key.removeprefix("tcp_"), extra, self._seconds)
        if seen.ok and seen.note.startswith("LENIENT"):
            self._lenient.add(measure.key)
        return seen


class Verbs:
    """One verbs device, by its name; aperture0 is there for what `aperture run` has started."""

    OURS = "aperture0"

    def __init__(self, name: str, device: str, settings: Settings) -> None:
        self.name = name
        self._path = os.path.join(settings.build, "bench", "verbbench")
        lead = []
        if device == self.OURS:
            lead = [os.path.join(settings.build, "bin", "aperture"), "run", "--"]
        argv = lead + [self._path, "--device", device, "--timeout", f"{settings.timeout:g}"]
        self._program = RowProgram(argv, settings, dict(os.environ))
        self._seconds = settings.seconds

    def offers(self, measure: Measure) -> bool:
        return measure.is_verbs

    def measure(self, measure: Measure) -> Observation:
        if not os.access(self._path, os.X_OK):
            return failed("verbbench was not built (Debian: libibverbs-dev)")
        return self._program.row(measure.key, [], self._seconds)


# ucx_perftest's tests per measure. UCX's untagged counterpart of a message is a tagged one: it is
# what UCX's users (MPI) do.
UCP_TESTS = {
    "send_lat": ["tag_lat"], "send_rate": ["tag_bw"], "send_bw": ["tag_bw"],
    "tagged_lat": ["tag_lat"], "tagged_rate": ["tag_bw"], "tagged_bw": ["tag_bw"],
    "write_lat": ["ucp_put_lat"], "write_bw": ["ucp_put_bw"],
    "write_bw_idle": ["ucp_put_bw", "-o"],
    "read_lat": ["ucp_get"], "read_bw": ["ucp_get"],
    "read_lat_idle": ["ucp_get", "-o"], "read_bw_idle": ["ucp_get", "-o"],
    "atomic_lat": ["ucp_fadd"], "atomic_rate": ["ucp_add"],
}
CMA_TESTS = {
    "write_lat_idle": ["put_bw", "-D", "zcopy", "-O", "1"],
    "read_lat_idle": ["get", "-D", "zcopy", "-O", "1"],
    "write_bw": ["put_bw", "-D", "zcopy"], "read_bw": ["get", "-D", "zcopy"],
    "write_bw_idle": ["put_bw", "-D", "zcopy"], "read_bw_idle": ["get", "-D", "zcopy"],
}


def ucx_alone(program: str, env: dict) -> list:
    """What keeps a ucx_perftest built with MPI (Debian 13) from taking itself for a rank."""
    if not program:
        return []
    asked = subprocess.run([program, "-h"], capture_output=True, text=True, check=False, env=env)
    return ["-P", "0"] if "MPI mode" in asked.stdout + asked.stderr else []


class Ucx:
    """ucx_perftest over shared memory.

    ucx        posix, sysv and cma, as UCX would choose; its one-sided tests use memory that UCX
               itself allocated and both processes map
    ucx-nocma  shared memory only
    ucx-cma    UCX's CMA transport alone: one-sided access to memory of the application's own
    """

    TRANSPORTS = {"ucx": "posix,sysv,cma,self", "ucx-nocma": "posix,self", "ucx-cma": ""}

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._settings = settings
        self._tests = CMA_TESTS if name == "ucx-cma" else UCP_TESTS
        self._program = settings.ucx.program("ucx_perftest")
        self._env = settings.ucx.env(os.environ)
        if self.TRANSPORTS[name]:
            self._env["UCX_TLS"] = self.TRANSPORTS[name]
        self._env.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
        self._iterations = {}
        self._alone = ucx_alone(self._program, self._env)

    def offers(self, measure: Measure) -> bool:
        if measure.is_tcp:
            return self.name == "ucx" and self._test(measure) is not None
        if self.name == "ucx-nocma":
            return measure.name in ("send_bw", "tagged_bw")
        return self._test(measure) is not None

    def measure(self, measure: Measure) -> Observation:
        if not self._program:
            return failed("ucx_perftest is not installed (Debian: ucx-utils)")
        pace = self._iterations.get(measure.key)
        if pace is None:
            seen = self._once(measure, 2000 if measure.size <= 4096 else 200)
            if not seen.ok:
                return seen
        return self._once(measure, self._iterations[measure.key])

    def _test(self, measure: Measure) -> list:
        """Its words; None where it has no counterpart: its threads have a worker each."""
        name, threads, each = measure.threads
        if not threads:
            return self._tests.get(measure.crowd[0].removeprefix("tcp_"))
        test = self._tests.get(name)
        return [*test, "-T", str(threads)] if test and each == "endpoint" else None

    def _once(self, measure: Measure, iterations: int) -> Observation:
        """As many pairs at once as the measure has; of several, the sum.

        ucx_perftest times each by itself: what a pair does while others have not begun or have
        ended counts, so that the sum is rather too high.
        """
        _, pairs, one_core = measure.crowd
        first, second = (str(x) for x in self._settings.cpus)
        if pairs > 1 or measure.threads[1]:
            first = second = first if one_core else f"{first},{second}"
        test = [*self._test(measure), "-s", str(measure.size), "-n", str(iterations),
                "-w", str(max(10, iterations // 10))]
        servers, clients = [], []
        try:
            for _ in range(pairs):
                port = free_port()
                servers.append(self._start(measure, port, ["-c", second], subprocess.DEVNULL))
                if not await_listener(port, servers[-1]):
                    return failed("the server of ucx_perftest did not start")
                clients.append((port, ["127.0.0.1", "-c", first, "-t", *test]))
            clients = [self._start(measure, port, words, subprocess.PIPE)
                       for port, words in clients]
            seen = [self._finish(measure, client) for client in clients]
        finally:
            for proc in servers + [x for x in clients if isinstance(x, subprocess.Popen)]:
                end(proc)
        bad = next((x for x in seen if not x.ok), None)
        if bad or pairs == 1:
            return bad or seen[0]
        seen[0].value = seen[0].mean = sum(x.value for x in seen)
        seen[0].count = pairs
        seen[0].note = f"{pairs} pairs, each over its own time, {seen[0].note}"
        return seen[0]

    def _start(self, measure: Measure, port: int, words: list, out: int) -> subprocess.Popen:
        argv = [self._program, "-p", str(port), "-f", "-v", *self._alone]
        if self.name == "ucx-cma":
            argv += ["-d", "memory", "-x", "cma"]
        env = {**self._env, "UCX_TLS": "tcp,self"} if measure.is_tcp else self._env
        return subprocess.Popen(argv + words, env=env, stdout=out, stderr=out, text=True,
                                start_new_session=True)

    def _finish(self, measure: Measure, client: subprocess.Popen) -> Observation:
        try:
            out, err = client.communicate(timeout=self._settings.timeout)
        except subprocess.TimeoutExpired:
            return failed(f"did not end within {self._settings.timeout:g} s")
        return self._parse(measure, out, err)

    def _parse(self, measure: Measure, out: str, err: str) -> Observation:
        try:
            numbers = [float(x) for x in out.strip().splitlines()[-1].split(",")]
            if len(numbers) == 4:  # of several threads: the mean time of each, the sum of rates
                count, overall_us, _, rate = numbers
                p50_us = 0.0
            else:
                count, p50_us, _, overall_us = numbers[:4]
                rate = numbers[7]
        except (ValueError, IndexError):
            return failed(f"ucx_perftest: {last_line(err or out)}")
        if overall_us <= 0:
            return failed("ucx_perftest gave no figure")
        # A latency test that is a ping-pong takes two of these per iteration.
        self._iterations[measure.key] = max(
            32, min(4_000_000, int(self._settings.seconds * 1e6 / overall_us / 2)))
        value = {"ns": overall_us * 1e3, "M/s": rate / 1e6,
                 "GB/s": measure.size / overall_us / 1e3}[measure.unit]
        p50 = p50_us * 1e3 if measure.unit == "ns" else 0.0
        return Observation(True, value, measure.unit, 0.0, p50, 0.0, value, int(count),
                           f"{' '.join(self._test(measure))}, mean of the run")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def await_listener(port: int, server: subprocess.Popen) -> bool:
    """Watches the kernel's table: a trial connection would be taken for the client."""
    wanted = f":{port:04X}"
    until = time.monotonic() + 5
    while time.monotonic() < until and server.poll() is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            try:
                with open(table, encoding="ascii") as f:
                    if any(x.split()[1].endswith(wanted) and x.split()[3] == "0A"
                           for x in f.readlines()[1:]):
                        return True
            except OSError:
                continue
        time.sleep(0.005)
    return False


def end(proc: subprocess.Popen) -> None:
    """A server ends with its client; one that does not is ended."""
    try:
        proc.wait(timeout=2)
    except subprocess.TimeoutExpired:
        os.killpg(proc.pid, signal.SIGKILL)
        proc.wait()
