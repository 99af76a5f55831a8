"""Where the two cores lay in each group, told by the ping-pong of a cache line.

A host places virtual CPUs anew while a run goes on, and each placement has latencies of its own: a
median over two of them is the figure of neither. So rounds are set apart by their line. A group in
the middle of which the line changed belongs to no placement.
"""
from dataclasses import dataclass, field

from .figures import quantile, summarise
from .goals import Measure

# Where the next larger line is this many times as long, another placement begins. Those seen are
# four times apart (24, 60 to 75, 245 to 315 ns), and lines of one differ by less than a third.
APART = 1.5


@dataclass
class Placement:
    lines: list = field(default_factory=list)  # ns of each group, sorted
    kind: str = ""  # near, far, between; empty where the run has one placement

    @property
    def line_ns(self) -> float:
        return quantile(self.lines, 0.5)

    @property
    def text(self) -> str:
        return f"{self.kind} {self.line_ns:.0f} ns" if self.kind else ""

    def holds(self, lines: list) -> bool:
        return self.lines[0] / APART < min(lines) and max(lines) < self.lines[-1] * APART


def placements(groups: list) -> list:
    """Those in which the groups of a run were taken, nearest first."""
    seen = []
    for line in sorted(quantile(x, 0.5) for x in (_lines(g) for g in groups if g.stayed) if x):
        if not seen or line > seen[-1].lines[-1] * APART:
            seen.append(Placement())
        seen[-1].lines.append(line)
    if len(seen) > 1:
        for placement in seen:
            placement.kind = "between"
        seen[0].kind, seen[-1].kind = "near", "far"
    return seen


def summaries(measures: list, groups: list, names: list) -> list:
    """A result of each measure in each placement that it was taken in.

    Whoever was taken in none that lasted has one of all its groups, which is noisy.
    """
    known = placements(groups)
    results = []
    for measure in measures:
        mine = [g for g in groups if g.measure is measure]
        parts = [(p, [g for g in mine if place_of(g, known) is p]) for p in known]
        parts = [(p, part) for p, part in parts if part]
        lost = [g.disturbance or "line unknown" for g in mine
                if place_of(g, known) is None] if parts else []
        for placement, part in parts or ([(None, mine)] if mine else []):
            result = summarise(measure, part, names)
            result.disturbed += lost
            if len(known) > 1:
                result.place = placement.text if placement else "moved"
                result.share = f"{len(part)} of {len(mine)}"
            results.append(result)
    return results


def place_of(group, known: list):
    """None where it moved in between, or no ping-pong was measured."""
    lines = _lines(group)
    return next((p for p in known if lines and p.holds(lines)), None)


def by_placement(groups: list, known: list) -> list:
    """(what is written beside the name, groups) of each placement, moved ones left out; of a run
    with one placement all of them."""
    if len(known) < 2:
        return [("", groups)] if groups else []
    parts = [(p.text, [g for g in groups if place_of(g, known) is p]) for p in known]
    return [(text, part) for text, part in parts if part]


def described(groups: list) -> str:
    """For the head of raw figures: how many groups were taken in which placement."""
    known = placements(groups)
    counts = [sum(place_of(g, known) is p for g in groups) for p in known]
    text = ", ".join(f"{p.text or f'{p.line_ns:.0f} ns'}: {n}" for p, n in zip(known, counts))
    moved = len(groups) - sum(counts)
    return text + (f", moved or unknown: {moved}" if moved else "")


def _lines(group) -> list:
    return [x for x in group.lines if x > 0]
