"""The order of things: rounds, and within a round each measure for all subjects back to back.

A group is one measure in one round: its limit and every subject, with a cache-line ping-pong
before, between and after. A group in which the ping-pong changed, or other programs ran, is
disturbed: it is taken again later, and left out of the figures while there are enough quiet ones.
"""
import sys
import time
from dataclasses import dataclass, field

from .goals import Measure
from .machine import ForeignLoad
from .subjects import Observation

MOST_CHANGE = 1.15
MOST_FOREIGN = 0.10  # of one CPU
GIVE_UP_AFTER = 2    # failures of a subject at a measure


@dataclass
class Group:
    round: int
    measure: Measure
    lines: list = field(default_factory=list)  # nanoseconds
    foreign: float = 0.0
    limit: Observation = None
    seen: dict = field(default_factory=dict)  # subject name -> Observation
    bases: dict = field(default_factory=dict)  # the same of the base measure, where there is one

    @property
    def stayed(self) -> bool:
        """The two cores lay as far apart at the end as at the beginning."""
        lines = [x for x in self.lines if x > 0]
        return not lines or max(lines) / min(lines) <= MOST_CHANGE

    @property
    def disturbance(self) -> str:
        """Empty when the machine was quiet."""
        lines = [x for x in self.lines if x > 0]
        if not self.stayed:
            return f"line {min(lines):.0f}-{max(lines):.0f} ns"
        if self.foreign > MOST_FOREIGN:
            return f"others used {self.foreign:.0%} of a CPU"
        return ""


class Schedule:
    def __init__(self, measures: list, subjects: list, limits, rounds: int, extra: int) -> None:
        self._measures, self._subjects, self._limits = measures, subjects, limits
        self._rounds, self._extra = rounds, extra
        self._failures = {}
        self.groups = []

    def run(self, warm_up: bool) -> None:
        start = time.monotonic()
        if warm_up:
            self._pass(0, self._measures, keep=False)
        for number in range(1, self._rounds + 1):
            self._pass(number, self._measures, keep=True)
        for number in range(self._rounds + 1, self._rounds + self._extra + 1):
            lacking = [m for m in self._measures if self._quiet(m) < self._rounds]
            if lacking:
                self._pass(number, lacking, keep=True)
        say(f"measured in {time.monotonic() - start:.0f} s\n")

    def _quiet(self, measure: Measure) -> int:
        return sum(1 for g in self.groups if g.measure is measure and not g.disturbance)

    def _pass(self, number: int, measures: list, keep: bool) -> None:
        if not sys.stderr.isatty():
            say(f"{'round ' + str(number) if keep else 'warm-up'}: {len(measures)} measures\n")
        for i, measure in enumerate(measures):
            say(f"\r\x1b[K{'round ' + str(number) if keep else 'warm-up'}: "
                f"{measure.key} ({i + 1} of {len(measures)})")
            group = self._take(number, measure)
            if keep:
                self.groups.append(group)
        say("\r\x1b[K")

    def _take(self, number: int, measure: Measure) -> Group:
        group = Group(number, measure)
        load = ForeignLoad()
        group.lines.append(self._limits.line_lat())
        if measure.limit:
            group.limit = self._limits.measure(measure.limit)
        for subject in self._subjects:
            if not subject.offers(measure):
                continue
            base = base_of(measure) if measure.base else None
            if base and subject.offers(base):
                group.bases[subject.name] = self._ask(subject, base)
            group.seen[subject.name] = self._ask(subject, measure)
            group.lines.append(self._limits.line_lat())
        group.foreign = load.share()
        return group

    def _ask(self, subject, measure: Measure) -> Observation:
        """A subject that failed at a measure twice is not asked again: hangs cost seconds."""
        key = (subject.name, measure.key)
        count, last = self._failures.get(key, (0, None))
        if count >= GIVE_UP_AFTER:
            return last
        seen = subject.measure(measure)
        if not seen.ok:
            self._failures[key] = (count + 1, seen)
        return seen


def base_of(measure: Measure) -> Measure:
    name, _, size = measure.base.partition("/")
    return Measure(name, int(size), measure.unit)


def say(text: str) -> None:
    """Progress, for a person who waits."""
    if sys.stderr.isatty() or not text.startswith("\r"):
        sys.stderr.write(text)
        sys.stderr.flush()
