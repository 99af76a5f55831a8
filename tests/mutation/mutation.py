"""One entry of the lists that mutate.py works through: mutations.py, window_mutations.py."""
from dataclasses import dataclass
from functools import partial
from typing import Callable


@dataclass(frozen=True)
class Mutation:
    what: str  # the rule that is taken out, in a few words
    old: str
    new: str = ""
    file: str = ""  # beneath src/
    reason: str = ""
    tests: tuple[str, ...] = ()


def in_file(file: str, tests: tuple[str, ...] = ()) -> Callable[..., Mutation]:
    """Makes entries of that file, for those tests unless an entry names others."""
    return partial(Mutation, file=file, tests=tests)
