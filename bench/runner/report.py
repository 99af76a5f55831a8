"""What is printed and what is kept."""
import json
import os

from .figures import Figure, Result
from .goals import size_text
from .placement import described, placements


def number(x: float) -> str:
    if x == 0:
        return "0"
    if abs(x) >= 1000:
        return f"{x:.0f}"
    return f"{x:.3g}"


def spread(f: Figure) -> str:
    return f"{number(f.median)} [{number(f.p10)}-{number(f.p90)}]"


def star(f: Figure) -> str:
    return "*" if f.note.startswith("LENIENT") else ""


def layout(rows: list) -> str:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() + "\n"
                   for row in rows)


def beside(result: Result) -> str:
    """What stands beside the name where the cores were near in some rounds and far in others."""
    return f", {result.place}, {result.share}" if result.place else ""


def _cells(result: Result, names: list) -> list:
    m, first = result.measure, names[0]
    mine = result.figures.get(first)
    cells = [f"{m.name} {size_text(m.size)}" + beside(result), m.unit,
             number(result.limit.median) if result.limit.rounds else "-"]
    if result.limit.p99:
        cells[2] += f" p99 {number(result.limit.p99)}"
    if mine is None:
        cells += ["-", "-"]
    elif mine.failure:
        cells += ["failed", "-"]
    else:
        cells += [spread(mine) + star(mine), f"{mine.per_limit:.2f}" if mine.per_limit else "-"]
    if mine is not None and mine.per_base:
        cells[3] += f" {mine.per_base:.2f}x base {number(mine.base)}"
    if mine is not None and m.tail and mine.p99:
        cells[3] += f" p99 {number(mine.p99)}"
    for name in names[1:]:
        figure = result.figures.get(name)
        if figure is None:
            cells.append("-")
        elif figure.failure:
            cells.append("failed")
        else:
            gain = f" ({result.gains[name]:.2f}x)" if name in result.gains else ""
            if m.tail and figure.p99:
                gain += f" p99 {number(figure.p99)}"
            cells.append(spread(figure) + star(figure) + gain)
    return cells + [result.goal or "-", result.verdict + (" (noisy)" if result.noisy else "")]


def table(results: list, names: list) -> str:
    first = names[0]
    heading = ["measure", "unit", "limit", f"{first} [p10-p90]", "/limit"]
    heading += [f"{n} (gain)" for n in names[1:]] + ["goal", "verdict"]
    text = layout([heading] + [_cells(r, names) for r in results])
    text += (f"\nMedians over rounds. /limit: {first} divided by the limit, round by round. gain: "
             f"how many times\nbetter {first} is than that peer, round by round. Latencies are one "
             "way, but *read_*, *atomic_*,\nregister_*, revoke_*, cache_*, verbs_bind*, "
             "verbs_connect_*, mpi_allreduce_*, start_*, run_* and\n*_idle are whole operations, "
             "and *_lat_epoll* and mpi_ring_* round trips. base: without what the row "
             "adds, or over libfabric, in the same round (bench/README.md).\n")
    if any(r.place for r in results):
        text += ("near, far: the distance of the two cores in those rounds, as a cache line has "
                 "it;\nmoved: it changed within each round, and the figure is of no placement.\n")
    if any(f.note.startswith("LENIENT") for r in results for f in r.figures.values()):
        text += "*: only with a target that wakes between bursts of 128 operations.\n"
    return text + _failures(results) + _notes(results, first)


def _failures(results: list) -> str:
    reasons = {}
    for r in results:
        for name, figure in r.figures.items():
            if figure.failure:
                keys = reasons.setdefault((name, figure.failure), [])
                if r.measure.key not in keys:
                    keys.append(r.measure.key)
    if not reasons:
        return ""
    return "\nFailed:\n" + "".join(f"  {name}: {', '.join(keys)}: {why}\n"
                                   for (name, why), keys in reasons.items())


def _notes(results: list, first: str) -> str:
    lines = []
    for r in results:
        figure = r.figures.get(first)
        if r.verdict != "NOT met" or figure is None:
            continue
        away = f"{figure.per_limit:.2f} of the limit" if figure.per_limit else "no limit known"
        lines.append(f"  {r.measure.key}{beside(r)}: {number(figure.median)} {r.measure.unit}, "
                     f"{away}; goal {r.goal}\n")
    return "\nGoals not met:\n" + "".join(lines) if lines else ""


def noise(groups: list, results: list) -> str:
    lines = sorted(x for g in groups for x in g.lines if x > 0)
    disturbed = [g for g in groups if g.disturbance]
    if not lines:
        return "The cache-line ping-pong could not be measured.\n"
    middle = lines[len(lines) // 2]
    text = (f"Cache-line ping-pong, one way: median {middle:.1f} ns, {lines[0]:.1f} to "
            f"{lines[-1]:.1f} ns. {len(disturbed)} of {len(groups)} groups were disturbed")
    text += f" (as: {disturbed[0].disturbance})" if disturbed else ""
    text += f". By line: {described(groups)}" if len(placements(groups)) > 1 else ""
    noisy = [r for r in results if r.noisy]
    if noisy:
        text += (f".\nTHE MACHINE WAS NOISY: {len(noisy)} of {len(results)} rows have too few "
                 "quiet rounds and rest on disturbed ones")
    return text + ".\n"


def limits_table(seen: list) -> str:
    rows = [["limit", "unit", "value [p10-p90]"]]
    rows += [[f"{m.name} {size_text(m.size)}" + (f", {place}" if place else ""), m.unit,
              spread(f) if f.rounds else f"failed: {f.failure}"] for m, f, place in seen]
    return layout(rows)


def write_tsv(path: str, facts: dict, groups: list, limit_groups: list) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    columns = ["round", "measure", "size", "subject", "ok", "value", "unit", "min", "p50", "p99",
               "mean", "count", "line_ns", "foreign", "disturbance", "note"]
    with open(path, "w", encoding="utf-8") as out:
        for key, value in (facts | {"lines": described(groups)}).items():
            out.write(f"# {key}: {value}\n")
        out.write("\t".join(columns) + "\n")
        for g in groups + limit_groups:
            seen = ([(f"limit:{g.measure.limit}", g.limit)] if g.limit else [])
            seen += [(f"{name}:{g.measure.base}", o) for name, o in g.bases.items()]
            for subject, o in seen + list(g.seen.items()):
                row = [g.round, g.measure.name, g.measure.size, subject, int(o.ok),
                       f"{o.value:.6g}", o.unit, f"{o.min:.6g}", f"{o.p50:.6g}", f"{o.p99:.6g}",
                       f"{o.mean:.6g}", o.count, ",".join(f"{x:.1f}" for x in g.lines),
                       f"{g.foreign:.2f}", g.disturbance, o.note.replace("\t", " ")]
                out.write("\t".join(str(x) for x in row) + "\n")


def as_json(facts: dict, results: list, limits: list) -> str:
    return json.dumps({
        "facts": facts,
        "limits": {m.key + (f", {place}" if place else ""): {"unit": m.unit, **vars(f)}
                   for m, f, place in limits},
        "measures": [{
            "measure": r.measure.name, "size": r.measure.size, "unit": r.measure.unit,
            "place": r.place, "rounds": r.share,
            "limit": vars(r.limit), "subjects": {n: vars(f) for n, f in r.figures.items()},
            "gains": r.gains, "goal": r.goal, "verdict": r.verdict, "noisy": r.noisy,
            "disturbed": r.disturbed,
        } for r in results],
    }, indent=1)
