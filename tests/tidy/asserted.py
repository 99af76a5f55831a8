"""Which files of src/ hold state, and whether they assert what they rely upon.

A class holds state if one of its data members can change: a name that ends with `_`, and that is
neither a reference nor constant. A header and its source count as one.
"""
import os
import re
from typing import Iterator, NamedTuple

import cpp_shape

LEAST = 2
# Files that hold state and have fewer, since nothing more can be said that only a defect of ours
# would break.
EXCUSED = {
    "src/base/not_cancelled": "what a thread was before, which the system keeps for us",
    "src/base/per_process": "locks that forks may cut in two: either state may be met in a child",
    "src/base/wild": "a peer's value, of which nothing is known",
    "src/link/lane": "what a link and a queue pair tell each other: flags that may come any time",
    "src/msg/group_matching": "two matchings, each of which asserts its own",
    "src/provider/cntr": "work.cpp asserts what waits for a counter, mr_bind.cpp its regions",
    "src/qp/port": "what one endpoint was opened with; its counts are asserted where they change",
    "src/transport/claim": "both sides write the word: what it holds is the peer's to say as well",
    "src/transport/turn": "where the ring stood, which the peer goes on writing",
    "src/verbs/path_next": "runs before constructors and in signal handlers, and finds or not",
    "src/verbs/real": "a function of another library, which there may be or not",
    "src/wire/request": "a header that was read: what is sound in it, its reader has decided",
}

_MEMBER = re.compile(r"[ \t]+(\S.*?)[ \t&*](\w+_)(?:\[[^\]]*\])*[ \t]*(?:=[^=].*|\{.*)?;$")
_NO_MEMBER = re.compile(r"(?:return|delete|static|using|friend|throw|constexpr)\b|const\b[^*]*$")
_ASSERTION = re.compile(r"\b(?:assert|APERTURE_DEBUG_ASSERT)\(")


class Few(NamedTuple):
    stem: str
    path: str  # of the first file of it
    found: int


def holds_state(text: str) -> bool:
    for line in cpp_shape.without_comments_and_literals(text).split("\n"):
        member = _MEMBER.match(line.rstrip())
        if not member or _NO_MEMBER.match(member.group(1)):
            continue
        declared = line[:member.start(2)].rstrip()
        if "(" not in re.sub(r"<.*>", "", declared) and not declared.endswith(("&", "const")):
            return True
    return False


def with_few(files: dict[str, str]) -> Iterator[Few]:
    """The stems of src/ that hold state and assert less than they should. files: path to text."""
    stems: dict[str, list[str]] = {}
    for path in sorted(files):
        if path.startswith("src/") and path.endswith((".hpp", ".cpp")):
            stems.setdefault(os.path.splitext(path)[0], []).append(path)
    for stem, paths in stems.items():
        text = "\n".join(files[path] for path in paths)
        bare = cpp_shape.without_comments_and_literals(text)
        found = len(_ASSERTION.findall(bare))
        if found < LEAST and holds_state(text):
            yield Few(stem, paths[0], found)
