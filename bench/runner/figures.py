"""From groups to figures: medians, percentiles over rounds, ratios and verdicts."""
from dataclasses import dataclass, field

from .goals import Measure

FEWEST_QUIET = 3


def quantile(values: list, rank: float) -> float:
    """Linear between neighbours; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = rank * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass
class Figure:
    """One subject at one measure."""
    median: float = 0.0
    p10: float = 0.0
    p90: float = 0.0
    p99: float = 0.0       # median over rounds of the rounds' 99th percentile; 0 when unknown
    rounds: int = 0
    failure: str = ""      # why there is no figure
    note: str = ""
    per_limit: float = 0.0  # median over rounds of figure / limit in that round
    base: float = 0.0       # median of the base measure, where there is one
    per_base: float = 0.0   # median over rounds of figure / base in that round


@dataclass
class Result:
    measure: Measure
    limit: Figure
    figures: dict                                # subject name -> Figure
    gains: dict = field(default_factory=dict)    # peer -> how many times better the first is
    goal: str = ""
    verdict: str = ""                            # met, not met, unknown, or empty without goal
    quiet: int = 0
    disturbed: list = field(default_factory=list)
    place: str = ""  # where the run had several placements, the one of these rounds
    share: str = ""  # and how many rounds of the measure were in it

    @property
    def noisy(self) -> bool:
        return self.quiet < min(FEWEST_QUIET, self.quiet + len(self.disturbed))


def summarise(measure: Measure, groups: list, names: list) -> Result:
    mine = [g for g in groups if g.measure is measure]
    quiet = [g for g in mine if not g.disturbance]
    used = quiet if len(quiet) >= min(FEWEST_QUIET, len(mine)) else mine
    limits = [g.limit.value * measure.limit_times for g in used if g.limit and g.limit.ok]
    tails = [g.limit.p99 for g in used if g.limit and g.limit.ok and g.limit.p99]
    limit = Figure(quantile(limits, 0.5), quantile(limits, 0.1), quantile(limits, 0.9),
                   quantile(tails, 0.5) if measure.tail else 0.0, rounds=len(limits))
    figures = {}
    for name in names:
        seen = [g for g in used if name in g.seen]
        if seen:
            figures[name] = _figure(measure, name, seen)
    result = Result(measure, limit, figures, quiet=len(quiet),
                    disturbed=[g.disturbance for g in mine if g.disturbance])
    _compare(result, used, names)
    return result


def _figure(measure: Measure, name: str, groups: list) -> Figure:
    good = [g for g in groups if g.seen[name].ok]
    if not good:
        return Figure(failure=groups[-1].seen[name].note or "failed")
    values = [g.seen[name].value for g in good]
    shares = [g.seen[name].value / (g.limit.value * measure.limit_times)
              for g in good if g.limit and g.limit.ok]
    p99 = [g.seen[name].p99 for g in good if g.seen[name].p99]
    note = good[-1].seen[name].note
    if len(good) < len(groups):
        bad = next(g.seen[name].note for g in groups if not g.seen[name].ok)
        note = f"failed in {len(groups) - len(good)} of {len(groups)} rounds ({bad}); {note}"
    return Figure(quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9),
                  quantile(p99, 0.5) if measure.smaller_is_better else 0.0, len(values), "", note,
                  quantile(shares, 0.5), *_beside_base(name, good))


def _beside_base(name: str, groups: list) -> tuple:
    """The base measure's median, and the median of the ratios to it."""
    pairs = [(g.seen[name].value, g.bases[name].value) for g in groups
             if name in g.bases and g.bases[name].ok and g.bases[name].value > 0]
    return quantile([b for _, b in pairs], 0.5), quantile([a / b for a, b in pairs], 0.5)


def _beside_base_and_limit(name: str, groups: list, times: float, factor: float) -> float:
    """Of figure / (base + factor limits), round by round."""
    return quantile([g.seen[name].value / (g.bases[name].value + factor * times * g.limit.value)
                     for g in groups
                     if name in g.seen and g.seen[name].ok and name in g.bases
                     and g.bases[name].ok and g.limit and g.limit.ok], 0.5)


def _ratios(groups: list, first: str, other: str) -> list:
    """first / other, round by round: only figures of the same minute are compared."""
    return [g.seen[first].value / g.seen[other].value for g in groups
            if first in g.seen and other in g.seen and g.seen[first].ok and g.seen[other].ok
            and g.seen[other].value > 0]


def _compare(result: Result, groups: list, names: list) -> None:
    measure, first = result.measure, names[0]
    for other in names[1:]:
        ratios = _ratios(groups, first, other)
        if ratios:
            ratio = quantile(ratios, 0.5)
            result.gains[other] = 1 / ratio if measure.smaller_is_better else ratio
    if not measure.goal:
        return
    criteria = [c for c in measure.goal if c.against != first]
    result.goal = ", ".join(c.text(measure.unit) for c in criteria)
    figure = result.figures.get(first)
    if figure is None or figure.failure:
        result.verdict = "failed" if figure else "unknown"
        return
    verdicts = [_holds(result, c, figure, groups, first) for c in criteria]
    if False in verdicts:
        result.verdict = "NOT met"
    else:
        result.verdict = "unknown" if None in verdicts else "met"


def _holds(result: Result, criterion, figure: Figure, groups: list, first: str):
    """True, False, or None when what it is measured against is missing."""
    if criterion.against == "value":
        ratio = figure.median
    elif criterion.against == "p99":
        ratio = figure.p99
    elif criterion.against == "limit p99":
        ratio = quantile([g.seen[first].p99 / g.limit.p99 for g in groups
                          if first in g.seen and g.seen[first].ok and g.limit and g.limit.ok
                          and g.limit.p99 > 0], 0.5)
    elif criterion.against == "limit":
        ratio = figure.per_limit
    elif criterion.against == "base":
        ratio = figure.per_base
    elif criterion.against == "base+limit":
        ratio = _beside_base_and_limit(first, groups, result.measure.limit_times, criterion.factor)
        return None if ratio == 0 else ratio <= 1
    else:
        ratio = quantile(_ratios(groups, first, criterion.against), 0.5)
    if ratio == 0:
        return None
    if result.measure.smaller_is_better:
        return ratio <= criterion.factor
    return ratio >= criterion.factor
