"""The command line of bench/run."""
import argparse
import fnmatch
import os
import signal
import sys
import time

from . import builds, caches, kept, machine, report
from .figures import Figure, quantile
from .goals import MEASURES, OTHER_LIMITS, Measure
from .lineup import BesidePatterns, make_subject
from .placement import by_placement, placements, summaries
from .schedule import Group, Schedule, say
from .subjects import Limits, Settings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_SUBJECTS = "aperture,shm,ucx,ucx-nocma,ucx-cma,ompi,ompi-nocma"
# Asked without being named, where a row is a pattern of real programs.
PATTERN_PEERS = ("tcp", "tcp-socket")

EPILOG = """subjects:
  aperture, shm, tcp, ...   libfabric providers, by fabbench; NAME:basic and NAME:scalable offer
                            only that registration mode
  ucx                       UCX over shared memory and CMA, by ucx_perftest
  ucx-nocma                 UCX without CMA (rows of send_bw and tagged_bw)
  ucx-cma                   UCX's CMA transport alone (one-sided rows)
  verbs:NAME                a verbs device (rows of verbs_*), where the machine has one: verbs:rxe0
  tcp-socket                TCP on loopback, without any library (rows of *_epoll)
  ompi, ompi-nocma          Open MPI's own shared memory, with and without CMA (rows of mpi_*)
  bare, aperture-memhooks   no registration cache, and Aperture's by another monitor (rows of
                            cache_*); libfabric-userfaultfd, libfabric-memhooks and ucx-hooks are
                            those of --peer
The first subject is the one that is validated. The limits are always measured beside them, and
unless --subjects says otherwise tcp and tcp-socket beside the patterns of real programs.

examples:
  bench/run                                   the whole table, an hour and more
  bench/run --quick                           a look: two rounds of the main rows
  bench/run --only 'send_*',tagged_lat/8      some rows
  bench/run --subjects aperture,aperture:scalable --only '*write*'
  bench/run --subjects shm,ucx --only send_bw --rounds 3 --json
  bench/run --subjects aperture,verbs:mlx5_0 --only 'verbs_*'
  bench/run --libfabric ~/libfabric-2 --ucx ~/ucx-1.19 --only '*_crowded_*'
                                              beside newer builds of the peers
  bench/run --only 'cache_*' --peer libfabric=~/libfabric-2 --peer ucx=/usr
                                              registration caches, beside those of peers
  bench/run --keep                            raw figures to bench/results, to be committed
  bench/run --read bench/results/FILE.tsv --only '*_idle'
                                              the table of figures that were kept

exit code: 0 measured, 1 the first subject failed at a measure, 2 wrong usage
"""


def parse(argv: list) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="bench/run", description=sys.modules[__name__].__doc__,
                                epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.description = ("Measures aperture, its peers and the machine's limits, interleaved in one "
                     "run, and compares them with the goals.")
    p.add_argument("--build", help="build directory (default: build/release, or the newest one)")
    p.add_argument("--subjects", default="", metavar="A,B,...",
                   help=f"default: {DEFAULT_SUBJECTS}")
    p.add_argument("--only", default="", metavar="LIST",
                   help="measures by name, name/size or glob, comma-separated")
    p.add_argument("--rounds", type=int, help="rounds after the warm-up (default 5)")
    p.add_argument("--extra", type=int,
                   help="more rounds for disturbed groups (default: as many as rounds)")
    p.add_argument("--seconds", type=float, help="per measure and subject (default 0.25)")
    p.add_argument("--timeout", type=float, default=15.0, help="seconds before a measure is ended")
    p.add_argument("--cpus", default="0,1", metavar="A,B",
                   help="CPUs to be pinned to (default 0,1)")
    p.add_argument("--libfabric", default="", metavar="DIR",
                   help="prefix of another build of libfabric, for the providers beside aperture")
    p.add_argument("--ucx", default="", metavar="DIR", help="prefix of another build of UCX")
    p.add_argument("--peer", default=[], action="append", metavar="NAME=PATH",
                   help="what a peer's registration cache is made of: ucx=PREFIX of an installed "
                        "UCX with its headers, libfabric=DIR of the sources where it was built")
    p.add_argument("--quick", action="store_true", help="main rows, two short rounds, no warm-up")
    p.add_argument("--keep", action="store_true", help="write the TSV to bench/results")
    p.add_argument("--json", action="store_true", help="print JSON instead of the table")
    p.add_argument("--read", metavar="FILE",
                   help="measure nothing: print the table of raw figures that were kept")
    p.add_argument("--list", action="store_true", help="print the measures and their goals")
    options = p.parse_args(argv)
    options.rounds = options.rounds or (2 if options.quick else 5)
    if options.extra is None:
        options.extra = 0 if options.quick else options.rounds
    options.seconds = options.seconds or (0.1 if options.quick else 0.25)
    return options


def find_build(asked: str) -> str:
    def usable(path: str) -> bool:
        return all(os.access(os.path.join(path, "bench", x), os.X_OK)
                   for x in ("fabbench", "limits"))

    if asked:
        return os.path.abspath(asked) if usable(asked) else ""
    release = os.path.join(ROOT, "build", "release")
    if usable(release):
        return release
    build = os.path.join(ROOT, "build")
    found = [os.path.join(build, x) for x in (os.listdir(build) if os.path.isdir(build) else [])]
    found = [x for x in found if usable(x)]
    return max(found, key=lambda x: os.path.getmtime(os.path.join(x, "bench", "fabbench")),
               default="")


def chosen(measures: list, options: argparse.Namespace) -> list:
    if not options.only:
        return [m for m in measures if not (options.quick and m.extended)]
    patterns = [x.strip() for x in options.only.split(",") if x.strip()]
    return [m for m in measures
            if any(fnmatch.fnmatchcase(m.name, x) or fnmatch.fnmatchcase(m.key, x)
                   for x in patterns)]


def measure_limits(limits: Limits, wanted: list, rounds: int) -> list:
    """The limits without a row of their own in the main table."""
    groups = []
    for m in wanted:
        for number in range(1, rounds + 1):
            group = Group(number, m, [limits.line_lat()])
            group.seen[Limits.name] = limits.measure(m.key)
            group.lines.append(limits.line_lat())
            groups.append(group)
    return groups


def limit_figures(groups: list, others: list) -> list:
    """(measure, figure, placement): the limits that stand in the main table, with their spread,
    and the others."""
    seen = {}
    for g in groups:
        if g.limit is not None:
            seen.setdefault(g.measure.limit, []).append((g, g.limit))
    for g in others:
        seen.setdefault(g.measure.key, []).append((g, g.seen[Limits.name]))
    known, out = placements(groups + others), []
    for key, pairs in seen.items():
        name, _, size = key.partition("/")
        limit_of = {id(g): o for g, o in pairs}
        for place, part in by_placement([g for g, _ in pairs], known):
            of = [limit_of[id(g)] for g in part]
            values = [o.value for o in of if o.ok]
            m = Measure(name, int(size), of[0].unit or part[0].measure.unit)
            out.append((m, Figure(quantile(values, 0.5), quantile(values, 0.1),
                                  quantile(values, 0.9), rounds=len(values),
                                  failure="" if values else of[-1].note), place))
    return out


def tsv_path(facts: dict, keep: bool) -> str:
    name = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{machine.slug(facts['cpu'])}-{facts['commit']}.tsv"
    if keep:
        name = f"{time.strftime('%Y-%m-%d')}-{machine.slug(facts['cpu'])}-{facts['commit']}.tsv"
        return os.path.join(ROOT, "bench", "results", name)
    return os.path.join(ROOT, "out", "bench", name)


def lineup_of(asked: str, measures: list, settings: Settings) -> list:
    subjects = [make_subject(x.strip(), settings)
                for x in (asked or DEFAULT_SUBJECTS).split(",") if x.strip()]
    if not asked and any(m.pattern for m in measures):
        subjects += [BesidePatterns(make_subject(x, settings)) for x in PATTERN_PEERS]
    if any(m.is_cache for m in measures):
        more = [] if asked else ["bare", "aperture-memhooks"]
        more += [x for peer in settings.modules for x in caches.of_peer(peer)]
        named = [x.name for x in subjects]
        subjects += [make_subject(x, settings) for x in more if x not in named]
    # unless they were named, those who have no row are no column
    return [x for x in subjects if asked or any(x.offers(m) for m in measures)]


def make_caches(paths: dict, settings: Settings) -> dict:
    """Makes the modules of peers' registration caches; what is written beside the figures. Throws
    NoBuild."""
    facts = {}
    for peer, path in paths.items():
        where = os.path.join(settings.build, "bench")
        settings.modules[peer] = caches.make_module(peer, path, where)
        facts[f"cache of {peer}"] = caches.version_of(settings.build, settings.modules[peer])
    left_out = [x for x in caches.PEERS if x not in paths]
    if left_out:
        facts["caches left out"] = ", ".join(f"{x} (no --peer {x}=PATH)" for x in left_out)
    return facts


def list_measures(measures: list) -> None:
    rows = [["measure", "unit", "limit", "goal"]]
    rows += [[m.key, m.unit, (f"{m.limit_times:g} x " if m.limit_times != 1 else "") + m.limit,
              ", ".join(c.text(m.unit) for c in m.goal)] for m in measures]
    sys.stdout.write(report.layout(rows))


def present(facts: dict, groups: list, results: list, limits: list, names: list) -> str:
    text = "".join(f"{key}: {value}\n" for key, value in facts.items()) + "\n"
    if results:
        text += report.table(results, names) + "\n"
    if limits:
        text += report.limits_table(limits) + "\n"
    return text + report.noise(groups, results)


def show(facts: dict, groups: list, others: list, names: list, as_json: bool) -> list:
    """Prints what was measured; the results of the rows."""
    measures = list({id(g.measure): g.measure for g in groups}.values())
    results, limits = summaries(measures, groups, names), limit_figures(groups, others)
    if as_json:
        print(report.as_json(facts, results, limits))
    else:
        sys.stdout.write(present(facts, groups, results, limits, names))
    return results


def exit_code(results: list, first: str) -> int:
    """Goals that are not met are told; a figure that is not there is an error."""
    return 1 if any(first in r.figures and r.figures[first].failure for r in results) else 0


def show_kept(path: str, options: argparse.Namespace) -> int:
    try:
        facts, groups = kept.read(path)
    except (OSError, kept.NoFigures) as e:
        sys.stderr.write(f"bench/run: {e}\n")
        return 2
    wanted = {id(m) for m in chosen(list({id(g.measure): g.measure for g in groups}.values()),
                                    options)}
    groups = [g for g in groups if id(g.measure) in wanted]
    if not groups:
        sys.stderr.write(f"bench/run: {path} has no measure called '{options.only}'\n")
        return 2
    others = [g for g in groups if Limits.name in g.seen]
    groups = [g for g in groups if Limits.name not in g.seen]
    show(facts, groups, others, kept.names(groups), options.json)
    return 0


def main() -> int:
    options = parse(sys.argv[1:])
    if options.read:
        return show_kept(options.read, options)
    measures = chosen(MEASURES, options)
    others = chosen(OTHER_LIMITS, options)
    if options.list:
        list_measures(measures)
        return 0
    if not measures and not others:
        sys.stderr.write(f"bench/run: no measure is called '{options.only}'; try --list\n")
        return 2
    build = find_build(options.build)
    if not build:
        sys.stderr.write("bench/run: no build with bench/fabbench and bench/limits found; "
                         "build first (./dev build) or name one with --build\n")
        return 2
    cpus = tuple(int(x) for x in options.cpus.split(","))
    try:
        fabric, ucx = builds.libfabric(options.libfabric), builds.ucx(options.ucx)
        settings = Settings(build, options.seconds, cpus, options.timeout, fabric, ucx)
        peers = caches.paths_of(options.peer)
        of_caches = {}
        if any(m.is_cache for m in measures):
            of_caches = make_caches(peers, settings)
    except builds.NoBuild as e:
        sys.stderr.write(f"bench/run: {e}\n")
        return 2
    subjects = lineup_of(options.subjects, measures, settings)
    names = [x.name for x in subjects]
    facts = machine.describe(ROOT)
    facts |= builds.versions(os.path.join(build, "bench", "fabbench"), fabric, ucx) | of_caches
    words = builds.without_prefixes(sys.argv[1:], [options.libfabric, options.ucx, *peers.values()])
    facts["command"] = "bench/run " + " ".join(words)

    # Asked to end, as by an interrupt: what was measured so far is printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    limits = Limits(settings)
    schedule = Schedule(measures, subjects, limits, options.rounds, options.extra)
    other_groups = []
    try:
        schedule.run(warm_up=not options.quick)
        other_groups = measure_limits(limits, others, options.rounds)
    except KeyboardInterrupt:
        say("\ninterrupted: what was measured so far\n")

    path = tsv_path(facts, options.keep)
    report.write_tsv(path, facts, schedule.groups, other_groups)
    results = show(facts, schedule.groups, other_groups, names, options.json)
    say(f"raw figures: {os.path.relpath(path)}\n")
    return exit_code(results, names[0])
