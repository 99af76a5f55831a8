"""One entry of the lists that mutate.py works through: mutations.py, window_mutations.py."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    what: str  # the rule that is taken out, in a few words
    file: str  # beneath src/
    old: str
    new: str
    reason: str = ""
    tests: tuple[str, ...] = ()
