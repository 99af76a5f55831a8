"""The measures, the limit that each runs into, and the goal that each has.

A goal is a list of criteria that must all hold. Goals that were set as an absolute figure on a
machine whose limit was known are kept as the share of that limit, because only ratios within one
run can be compared: the limit differs between machines, and on one machine from hour to hour.
"""
import re
from dataclasses import dataclass, field

KIB, MIB = 1024, 1024 * 1024


SMALLER_IS_BETTER = ("ns", "KiB")


@dataclass(frozen=True)
class Criterion:
    # "limit", "value", "p99", "limit p99", "base", "base+limit" or the name of a subject
    against: str
    # At most (latency) or at least (rate) this many times it; "value": the figure itself;
    # "p99": its 99th percentile; "limit p99": that one, beside the limit's; "base+limit": the base
    # measure and this many limits on top
    factor: float

    def text(self, unit: str) -> str:
        sign = "<=" if unit in SMALLER_IS_BETTER else ">="
        if self.against == "value":
            return f"{sign} {self.factor:g} {unit}"
        if self.against == "p99":
            return f"p99 {sign} {self.factor:g} {unit}"
        if self.against == "limit":
            return f"{sign} {self.factor:.3g}x limit"
        if self.against == "limit p99":
            return f"p99 {sign} {self.factor:.3g}x that of limit"
        if self.against == "base+limit":
            return f"{sign} base + {self.factor:g} limit"
        return f"{sign} {self.factor:.3g}x {self.against}"


@dataclass(frozen=True)
class Measure:
    name: str
    size: int
    unit: str  # ns, M/s, GB/s, KiB
    limit: str = ""  # key among the limits
    limit_times: float = 1.0  # the limit is this many times the measured figure
    goal: tuple = field(default=())
    extended: bool = False  # not part of --quick
    base: str = ""  # key of a measure of the same subject, taken beside it for a ratio
    tail: bool = False  # the 99th percentile is stated beside the figure
    pattern: bool = False  # of a real program's: more peers stand beside it

    @property
    def key(self) -> str:
        return f"{self.name}/{self.size}"

    @property
    def ranks(self) -> int:
        """Processes of a measure of MPI: mpi_NAME_4 has four."""
        return int((re.search(r"_(\d+)$", self.name) or (0, 2))[1])

    @property
    def crowd(self) -> tuple:
        """(the measure of one pair, pairs, whether all are on one core)."""
        match = re.fullmatch(r"(\w+)_crowded_(\d+)(_one)?", self.name)
        return (match[1], int(match[2]), bool(match[3])) if match else (self.name, 1, False)

    @property
    def threads(self) -> tuple:
        """(the measure of one thread, threads, what each has of its own or nothing)."""
        match = re.fullmatch(r"(\w+)_threads_(\d+)(?:_(\w+))?", self.name)
        return (match[1], int(match[2]), match[3] or "") if match else (self.name, 0, "")

    @property
    def is_tcp(self) -> bool:
        return self.name.startswith("tcp_")

    @property
    def event_driven(self) -> bool:
        return "_epoll" in self.name

    @property
    def smaller_is_better(self) -> bool:
        return self.unit in SMALLER_IS_BETTER

    @property
    def is_mpi(self) -> bool:
        return self.name.startswith("mpi_")

    @property
    def is_verbs(self) -> bool:
        return self.name.startswith("verbs_")

    @property
    def is_cache(self) -> bool:
        return self.name.startswith("cache_")

    @property
    def is_run(self) -> bool:
        return self.name.startswith("run_")


def _bandwidth(name: str, size: int, share: float = 0.0, idle: bool = False) -> Measure:
    limit = f"{'cma_bw' if idle else 'pair_copy'}/{size}"
    goal = (Criterion("limit", share),) if share else ()
    return Measure(name, size, "GB/s", limit, 1.0, goal, extended=size != MIB or idle)


# Shares of the two-core copy: 45 of 61, 50 of 61 and 42 of 53 GB/s.
SHARES = {64 * KIB: 45 / 61, MIB: 50 / 61, 4 * MIB: 42 / 53}
# Of the call that copies between processes, where the target is away: over both doors.
IDLE_SHARE = 0.95
IDLE_LAT = (Criterion("limit", 1.1),)


def _two_sided(kind: str) -> list:
    lat = Criterion("limit", 1.15), Criterion("ucx", 1.0)
    rate = Criterion("value", 60.0), Criterion("ucx", 1.2), Criterion("shm", 3.0)
    rows = [
        Measure(f"{kind}_lat", 8, "ns", "line_lat/8", 1.0, lat),
        Measure(f"{kind}_lat", 4096, "ns", "", 1.0, (Criterion("value", 200.0),)),
        Measure(f"{kind}_rate", 8, "M/s", "ring_rate/64", 1.0, rate),
    ]
    rows.append(Measure(f"{kind}_lat_safe", 8, "ns", "line_lat/8", extended=True,
                        base=f"{kind}_lat/8"))
    rows.append(Measure(f"{kind}_rate_safe", 8, "M/s", "ring_rate/64", 1.0,
                        (Criterion("value", 40.0),), True, base=f"{kind}_rate/8"))
    return rows + [_bandwidth(f"{kind}_bw", size, share) for size, share in SHARES.items()]


def _one_sided() -> list:
    rows = [
        Measure("write_lat", 8, "ns", "line_lat/8", 1.0, (Criterion("limit", 1.25),)),
        Measure("read_lat", 8, "ns", "line_lat/8", 2.0, (Criterion("limit", 140 / 110),)),
    ]
    for size in SHARES:
        rows.append(_bandwidth("write_bw", size, 45 / 61 if size == MIB else 0.0))
        rows.append(_bandwidth("read_bw", size))
    rows.append(Measure("write_lat_idle", 8, "ns", "cma_lat/8", 1.0, IDLE_LAT))
    rows.append(Measure("read_lat_idle", 8, "ns", "cma_lat/8", 1.0, IDLE_LAT))
    for size in SHARES:
        rows.append(_bandwidth("write_bw_idle", size, IDLE_SHARE, idle=True))
        rows.append(_bandwidth("read_bw_idle", size, IDLE_SHARE, idle=True))
    return rows


def _both_ways(prefix: str) -> list:
    """Each side on the other's memory at once, beside one way in the same round and, over
    libfabric, beside shm. UCX's tests know no such pattern."""
    rows = []
    for verb in ("write", "read"):
        for size in (8, 512, 4 * KIB, 64 * KIB, MIB):
            one_way = f"{prefix}{verb}_bw"
            unit = "M/s" if size == 8 else "GB/s"
            known = _one_sided() + _verbs_bandwidths()
            if not any(row.key == f"{one_way}/{size}" for row in known):
                rows.append(Measure(one_way, size, unit, extended=True))
            goal = (Criterion("base", 1.6 if size < 64 * KIB else 1.0),)
            goal += () if prefix else (Criterion("shm", 1.0),)
            rows.append(Measure(f"{one_way}_both", size, unit, "", 1.0, goal, True,
                                base=f"{one_way}/{size}"))
    return rows


def _registrations() -> list:
    """A million regions are over one buffer of 64 MiB; a miss is one of memory, measured there."""
    miss = "miss_lat/67108864"
    return [
        Measure("register_lat", 4096, "ns", "", 1.0, (Criterion("value", 70.0),), True),
        Measure("register_lat_many", 4096, "ns", "", 1.0,
                (Criterion("value", 70.0), Criterion("base", 1.15)), True,
                base="register_lat/4096"),
        Measure("register_lat_crowd", 4096, "ns", "", 1.0,
                (Criterion("value", 100.0), Criterion("base", 1.15)), True,
                base="register_lat/4096"),
        Measure("revoke_lat", 4096, "ns", "", 1.0,
                (Criterion("value", 2e3), Criterion("p99", 1e6)), True),
        Measure("revoke_stopped_lat", 4096, "ns", "", 1.0, (Criterion("p99", 50e6),), True),
        Measure("read_any_lat", 8, "ns", miss, 1.0,
                (Criterion("base+limit", 2.0), Criterion("base", 1.3)), True,
                base="read_same_lat/8"),
        Measure("read_any_lat_idle", 8, "ns", miss, 1.0, (Criterion("base", 1.3),), True,
                base="read_same_lat_idle/8"),
    ]


def _atomics() -> list:
    ahead = Criterion("shm", 1.0), Criterion("ucx", 1.0)
    return [
        Measure("atomic_lat", 8, "ns", "line_lat/8", 2.0, (Criterion("limit", 1.3), *ahead), True),
        Measure("atomic_lat_idle", 8, "ns", extended=True),
        Measure("atomic_rate", 8, "M/s", "ring_rate/64", 1.0, ahead, True),
    ]


def _crowds() -> list:
    return [
        Measure("send_lat_crowd", 8, "ns", "line_lat/8", 1.0, (Criterion("base", 1.1),), True,
                base="send_lat/8"),
        Measure("peer_memory", 64, "KiB", "", 1.0, (Criterion("value", 64.0),), True),
    ]


def _start_up() -> list:
    """Two processes until their first message is answered, `aperture run -- true`, a connection.

    libfabric loads all of its providers in the first fi_getinfo() of a process: start_open_lat is
    what remains without that.
    """
    whole = Criterion("value", 5e6), Criterion("shm", 1.0), Criterion("tcp", 1.0)
    return [
        Measure("start_lat", 8, "ns", "", 1.0, whole, True, pattern=True),
        Measure("start_open_lat", 8, "ns", "", 1.0, whole, True, pattern=True),
        Measure("run_lat", 0, "ns", "", 1.0, (Criterion("value", 10e6),), True),
        Measure("verbs_connect_lat", 8, "ns", "", 1.0, (Criterion("value", 200e3),), True),
    ]


def _event_driven(prefix: str) -> list:
    """Both sides asleep in epoll, beside a unix socket with the same loop."""
    rows = []
    for cores in ("", "_one"):
        lat, rate = f"send_lat_epoll{cores}", f"send_rate_epoll{cores}"
        rows.append(Measure(prefix + lat, 64, "ns", f"unix_lat_epoll{cores}/64", 1.0,
                            (Criterion("limit", 1.1), Criterion("limit p99", 2.0)), True,
                            base=f"{lat}/64" if prefix else "", tail=True, pattern=True))
        rows.append(Measure(prefix + rate, 64, "M/s", f"unix_rate_epoll{cores}/64", 1.0,
                            (Criterion("limit", 1.0),), True,
                            base=f"{rate}/64" if prefix else "", pattern=True))
    return rows


# A rate over verbs beside the same over libfabric, as near = 1.2 has it for times.
NEAR_BASE_RATE = (Criterion("base", 1 / 1.2),)


def _crowded(verbs: bool) -> list:
    """Several pairs of polling processes on two cores, and on one: the sum of their rates.

    UCX's one-sided counterpart is its CMA: memory of the application's own (bench/README.md).
    """
    rows = []
    for fabric_name, verbs_name, size, unit, ucx in (
            ("write_bw", "verbs_write_bw", 4 * KIB, "GB/s", "ucx-cma"),
            ("tagged_rate", "verbs_send_rate", 64, "M/s", "ucx"),
            ("tagged_bw", "verbs_send_bw", 64 * KIB, "GB/s", "ucx")):
        for suffix in (f"_crowded_{pairs}{cores}" for pairs in (2, 4, 8) for cores in ("", "_one")):
            if verbs:
                rows.append(Measure(verbs_name + suffix, size, unit, "", 1.0, NEAR_BASE_RATE, True,
                                    base=f"{fabric_name}{suffix}/{size}", pattern=True))
            else:
                ahead = tuple(Criterion(peer, 1.0) for peer in ("shm", "tcp", ucx))
                rows.append(Measure(fabric_name + suffix, size, unit, "", 1.0, ahead, True,
                                    pattern=True))
    return rows


def _threaded(verbs: bool) -> list:
    """Several threads of both processes, beside one of them in the same round."""
    name, kinds = ("verbs_send_rate", ("", "_cq")) if verbs else (
        "send_rate", ("", "_endpoint", "_domain"))
    rows = []
    for kind in kinds:
        goal = (Criterion("base", 1.0),)
        if kind == "_endpoint":  # UCX: a worker each of one context
            goal += (Criterion("ucx", 1.0),)
        rows += [Measure(f"{name}_threads_{threads}{kind}", 8, "M/s", "", 1.0, goal, True,
                         base=f"{name}_threads_1{kind}/8", pattern=True)
                 for threads in (2, 4, 8)]
    return rows


def _all_to_all(prefix: str) -> list:
    """Four processes, each of which writes to the three others."""
    rows = []
    for size in (8, 512, 4 * KIB, 64 * KIB):
        name = "write_bw_all_to_all"
        goal = NEAR_BASE_RATE if prefix else tuple(Criterion(x, 1.0) for x in ("shm", "tcp"))
        rows.append(Measure(prefix + name, size, "M/s" if size == 8 else "GB/s", "", 1.0, goal,
                            True, base=f"{name}/{size}" if prefix else "", pattern=True))
    return rows


def _mpi() -> list:
    """Open MPI over mtl ofi, beside its own shared memory in the same run."""
    return [
        Measure("mpi_lat", 8, "ns", "line_lat/8", 1.0,
                (Criterion("limit", 95 / 55), Criterion("ompi", 0.95)), True),
        Measure("mpi_bw", MIB, "GB/s", f"pair_copy/{MIB}", 1.0,
                (Criterion("limit", 45 / 61), Criterion("ompi", 3.0)), True),
    ] + [Measure(name, size, "ns", "", 1.0, (Criterion("ompi", 1.0),), True, pattern=True)
         for name, sizes in (("mpi_allreduce_lat", (8, KIB, 8 * KIB)),
                             ("mpi_allreduce_lat_4", (64 * KIB, 256 * KIB, MIB)),
                             ("mpi_ring_lat_4", (64 * KIB,)))
         for size in sizes]


def _verbs_latencies() -> list:
    """Beside the same over the libfabric door, in the same round."""
    near, line, cma = (Criterion("base", 1.2),), "line_lat/8", "cma_lat/8"
    return [
        Measure("verbs_send_lat", 8, "ns", line, 1.0, near, base="send_lat/8"),
        Measure("verbs_send_lat_signaled", 8, "ns", line, extended=True, base="send_lat/8"),
        Measure("verbs_write_imm_lat", 8, "ns", line, 1.0, near, base="write_lat/8"),
        Measure("verbs_write_lat", 8, "ns", cma, 1.0, IDLE_LAT),
        Measure("verbs_read_lat", 8, "ns", line, 2.0, extended=True, base="read_lat/8"),
        Measure("verbs_atomic_lat", 8, "ns", line, 2.0, extended=True, base="atomic_lat/8"),
        Measure("verbs_write_lat_idle", 8, "ns", cma, 1.0, IDLE_LAT, True,
                base="write_lat_idle/8", tail=True),
        Measure("verbs_read_lat_idle", 8, "ns", cma, 1.0, IDLE_LAT, base="read_lat_idle/8",
                tail=True),
        Measure("verbs_atomic_lat_idle", 8, "ns", cma, base="atomic_lat_idle/8", tail=True),
    ]


def _verbs_bandwidths() -> list:
    rows = [
        Measure("verbs_send_rate", 8, "M/s", "ring_rate/64", 1.0, (Criterion("value", 30.0),),
                True, base="send_rate/8"),
        Measure("verbs_send_bw", MIB, "GB/s", f"pair_copy/{MIB}", 1.0, (Criterion("base", 1.0),),
                True, base=f"send_bw/{MIB}"),
    ]
    for verb in ("write", "read"):
        rows.append(Measure(f"verbs_{verb}_bw", 8, "M/s", "ring_rate/64", extended=True))
        rows.append(Measure(f"verbs_{verb}_bw", MIB, "GB/s", f"pair_copy/{MIB}",
                            extended=verb == "read", base=f"{verb}_bw/{MIB}"))
        rows.append(Measure(f"verbs_{verb}_bw_idle", 8, "M/s", extended=True))
        rows.append(Measure(f"verbs_{verb}_bw_idle", MIB, "GB/s", f"cma_bw/{MIB}", 1.0,
                            (Criterion("limit", IDLE_SHARE),), True,
                            base=f"{verb}_bw_idle/{MIB}"))
    return rows


def _verbs_windows() -> list:
    cheap = Criterion("value", 100.0)
    return [
        Measure("verbs_bind_lat", 4096, "ns", "", 1.0, (cheap,)),
        Measure("verbs_bind_lat_many", 64, "ns", "", 1.0, (cheap, Criterion("base", 1.3)), True,
                base="verbs_bind_lat/4096"),
        Measure("verbs_bind1_lat", 4096, "ns", extended=True),
    ]


def _registration_caches() -> list:
    """Kept registrations, beside the caches of peers; a change of memory that is kept, beside one
    of memory that is not."""
    return [
        Measure("cache_hit_lat", 4096, "ns", extended=True),
        Measure("cache_hit_lat_many", 4096, "ns", extended=True, base="cache_hit_lat/4096"),
        Measure("cache_miss_lat", 4096, "ns", extended=True),
        Measure("cache_miss_lat_heap", 4096, "ns", extended=True, base="cache_miss_lat/4096"),
        Measure("cache_unmap_lat", 4096, "ns", extended=True,
                base="cache_unmap_lat_unwatched/4096"),
        Measure("cache_drop_lat", 4096, "ns", extended=True,
                base="cache_drop_lat_unwatched/4096"),
        # those bases as rows, so that the table has them of every cache
        Measure("cache_unmap_lat_unwatched", 4096, "ns", extended=True),
        Measure("cache_drop_lat_unwatched", 4096, "ns", extended=True),
    ]


def _over_tcp() -> list:
    """Between two processes that share no memory, beside TCP alone in the same run."""
    return [
        Measure("tcp_send_lat", 8, "ns", "tcp_lat/8", 1.0,
                (Criterion("limit", 1.08), Criterion("tcp", 1.0)), True, pattern=True),
        Measure("tcp_send_rate", 8, "M/s", "", 1.0,
                (Criterion("value", 2.0), Criterion("tcp", 1.0)), True, pattern=True),
        Measure("tcp_read_lat", 8, "ns", "tcp_lat/8", 2.0, (Criterion("tcp", 1.0),), True,
                pattern=True),
    ] + [Measure(f"tcp_{kind}_bw", size, "GB/s", f"tcp_bw/{size}", 1.0,
                 (Criterion("limit", share), Criterion("tcp", 1.0)), True, pattern=True)
         for kind, share in (("send", 0.95), ("write", 0.9)) for size in (64 * KIB, MIB)]


MEASURES = (_two_sided("send") + _two_sided("tagged") + _one_sided() + _both_ways("")
            + _registrations() + _atomics() + _crowds() + _start_up()
            + _event_driven("")
            + _crowded(verbs=False) + _threaded(verbs=False)
            + _all_to_all("") + _mpi()
            + _verbs_latencies() + _verbs_bandwidths() + _both_ways("verbs_") + _verbs_windows()
            + _event_driven("verbs_") + _crowded(verbs=True) + _threaded(verbs=True)
            + _all_to_all("verbs_") + _registration_caches() + _over_tcp())

# Limits that no measure above refers to, shown for their own sake.
OTHER_LIMITS = [
    Measure("one_line_lat", 8, "ns", extended=True),
    Measure("ring_rate_credit", 64, "M/s", extended=True),
    Measure("cma_lat", 4096, "ns", extended=True),
    Measure("cma_seen_lat", 8, "ns"),
    Measure("cma_any_lat", 64 * MIB, "ns", extended=True),
] + [Measure("memcpy", size, "GB/s", extended=True)
     for size in (64 * KIB, MIB, 4 * MIB, 16 * MIB)]


def size_text(size: int) -> str:
    if size and size % MIB == 0:
        return f"{size // MIB} MiB"
    if size and size % KIB == 0:
        return f"{size // KIB} KiB"
    return f"{size} B"
