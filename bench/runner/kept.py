"""Raw figures that were kept, read back as the groups that they are of.

Goals are those of today: a row whose limit or base was another when it was measured has none.
"""
from dataclasses import replace

from .goals import MEASURES, OTHER_LIMITS, Measure
from .schedule import Group
from .subjects import Limits, Observation

FIRST = ["round", "measure", "size", "subject", "ok", "value", "unit"]


class NoFigures(Exception):
    """The file holds no raw figures of bench/run."""


def read(path: str) -> tuple:
    """(facts, groups). Throws NoFigures."""
    facts, rows, columns = {}, [], None
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            cells = line.rstrip("\n").split("\t")
            if line.startswith("# "):
                key, _, value = line[2:].strip().partition(": ")
                facts[key] = value
            elif columns is None:
                columns = cells
                if columns[:len(FIRST)] != FIRST:
                    break
            else:
                rows.append(dict(zip(columns, cells)))
    if not rows:
        raise NoFigures(f"{path} has no raw figures of bench/run")
    try:
        return facts, _groups(rows)
    except (KeyError, ValueError) as e:
        raise NoFigures(f"{path} is damaged: {e!r}") from e


def names(groups: list) -> list:
    """The subjects of the groups, in the order in which they were asked."""
    out = []
    for group in groups:
        for name in group.seen:
            if name not in out:
                out.insert(0 if name == "aperture" else len(out), name)
    return out


def _groups(rows: list) -> list:
    parts = {}
    for row in rows:
        parts.setdefault((int(row["round"]), row["measure"], int(row["size"])), []).append(row)
    measures = {}
    for (_, name, size), part in parts.items():
        measures.setdefault((name, size), []).extend(part)
    measures = {key: _measure(*key, part) for key, part in measures.items()}
    return [_group(number, measures[name, size], part)
            for (number, name, size), part in parts.items()]


def _group(number: int, measure: Measure, rows: list) -> Group:
    group = Group(number, measure, [float(x) for x in rows[0]["line_ns"].split(",") if x],
                  float(rows[0]["foreign"]))
    for row in rows:
        seen = Observation(row["ok"] == "1", float(row["value"]), row["unit"],
                           *(float(row[x]) for x in ("min", "p50", "p99", "mean")),
                           int(row["count"]), row["note"])
        subject = row["subject"]
        if subject.startswith("limit:"):
            group.limit = seen
        elif "/" in subject:
            group.bases[subject.rpartition(":")[0]] = seen
        else:
            group.seen[subject] = seen
    return group


def _measure(name: str, size: int, rows: list) -> Measure:
    """Today's of that name, beside the limit and the base that it had then."""
    subjects = [row["subject"] for row in rows]
    limit = next((x.removeprefix("limit:") for x in subjects if x.startswith("limit:")), "")
    base = next((x.rpartition(":")[2] for x in subjects
                 if "/" in x and not x.startswith("limit:")), "")
    unit = next((row["unit"] for row in rows if row["unit"] and "/" not in row["subject"]), "")
    # limits have rows of their own too, with names that measures may have
    of = OTHER_LIMITS if Limits.name in subjects else MEASURES
    now = next((m for m in of if (m.name, m.size) == (name, size)), None)
    if now is None:
        return Measure(name, size, unit, limit, base=base)
    lost = (limit and limit != now.limit) or (base and base != now.base)
    return replace(now, limit=limit, base=base, limit_times=1.0, goal=()) if lost else now
