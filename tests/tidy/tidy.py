"""The rules of the house, as far as a program can check them: `python3 tests/tidy/tidy.py ROOT`.

Prints `file:line: rule: what to do` for each breach and exits 1 if there is any. tidy_test.py
proves that every rule fires. CONTRIBUTING.md tells the rules that only people can check.
"""
import ast
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from typing import Iterable, Iterator, NamedTuple

import asserted
import class_size
import cpp_shape

MAX_COLUMNS = 100
MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 70

# Each room and the rooms beneath it; a room includes itself and these.
BENEATH = {
    "base": (),
    "ring": ("base",),
    "memory": ("base",),
    "regcache": ("base",),
    "wire": ("base", "ring"),
    "protect": ("base", "ring", "memory", "wire"),
    "link": ("base", "ring", "wire"),
    "transport": ("base", "ring", "memory", "wire", "protect", "link"),
    "qp": ("base", "ring", "memory", "wire", "protect", "link", "transport"),
    "ib": ("base", "ring", "memory", "wire", "protect", "link", "transport"),
    "msg": ("base", "ring", "memory", "wire", "protect", "link", "transport", "qp"),
    "collective": ("base", "ring", "memory", "wire", "protect", "link", "transport", "qp"),
    "nic": ("base", "ring", "memory", "wire", "protect", "link", "transport", "qp", "msg", "ib"),
    "cm": ("base", "ring", "memory", "wire", "protect", "link",
           "transport", "qp", "msg", "ib", "nic"),
    "provider": ("base", "ring", "memory", "regcache", "wire", "protect", "link",
                 "transport", "qp", "msg", "ib", "nic", "collective"),
    "verbs": ("base", "ring", "memory", "wire", "protect", "link",
              "transport", "qp", "msg", "ib", "nic", "cm"),
    "tool": ("base",),
}
# Foreign headers that only one room of src/ may know.
SOLE_USER = {"rdma": "provider", "infiniband": "verbs"}
# But this one, of the kernel's interface, is another's.
EXCEPTIONS = {"rdma/rdma_user_cm.h": "verbs"}

C_FAMILY = (".cpp", ".hpp", ".c", ".h")
CODE = C_FAMILY + (".py", ".sh", ".cmake", "CMakeLists.txt", "/dev", ".ci/run")
EMPTY_NAMES = {"common", "util", "utils", "helper", "helpers", "manager", "misc"}
# Written in two pieces so that this file does not break its own rule.
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:wo" r"rk|ro" r"ot|ho" r"me)/[\w.]")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SYNC_POINT = re.compile(r"SYNC POINT: ([A-Za-z0-9_.-]*[A-Za-z0-9_])")
# ARCHITECTURE.md's drawing: a room on a floor of its own line, on the one of the line above, or
# beside all floors. What is described stands further to the right.
FLOOR = re.compile(r"^    (?:floor +(\d+)|(beside)|) +([a-z]+)/ ")
ROOM_COLUMN = 14
NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:hpp|cpp|h|c|pml|py|sh|md))`")
NAMED_DOCUMENT = re.compile(r"[\w./-]+\.md\b")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Breach(NamedTuple):
    path: str
    line: int
    rule: str
    advice: str


class Source(NamedTuple):
    path: str  # relative to the root, with slashes
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")[:-1] if self.text.endswith("\n") else self.text.split("\n")


def is_code(path: str) -> bool:
    return ("/" + path).endswith(CODE)


def check_includes(source: Source) -> Iterator[Breach]:
    parts = source.path.split("/")
    if len(parts) < 3 or parts[0] != "src" or not source.path.endswith(C_FAMILY):
        return
    room = parts[1]
    allowed = (room,) + BENEATH.get(room, ())
    if room not in BENEATH:
        yield Breach(source.path, 1, "include", f"place room '{room}' in tidy.py's BENEATH")
    for number, line in enumerate(source.lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, name = match.groups()
        head = name.split("/")[0]
        if bracket == '"' and "/" not in name:
            yield Breach(source.path, number, "include", f'name the room: "{room}/{name}"')
        elif bracket == '"' and head not in allowed:
            yield Breach(source.path, number, "include",
                         f"room '{room}' may not know room '{head}': only {', '.join(allowed)}")
        elif bracket == "<" and EXCEPTIONS.get(name, SOLE_USER.get(head, room)) != room:
            yield Breach(source.path, number, "include",
                         f"<{name}> belongs to room '{EXCEPTIONS.get(name) or SOLE_USER[head]}'")


def check_size(source: Source) -> Iterator[Breach]:
    if not is_code(source.path):
        return
    if len(source.lines) > MAX_FILE_LINES:
        yield Breach(source.path, MAX_FILE_LINES + 1, "file-length",
                     f"{len(source.lines)} lines, at most {MAX_FILE_LINES}: what room hides in it?")
    for number, line in enumerate(source.lines, 1):
        if len(line) > MAX_COLUMNS:
            yield Breach(source.path, number, "columns",
                         f"{len(line)} columns, at most {MAX_COLUMNS}")


def functions_of(source: Source) -> Iterable[cpp_shape.Function]:
    if source.path.endswith(C_FAMILY):
        yield from cpp_shape.functions(source.text)
    elif source.path.endswith(".py"):
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield cpp_shape.Function(node.name, node.lineno, node.end_lineno)


def check_functions(source: Source) -> Iterator[Breach]:
    for function in functions_of(source):
        length = function.last_line - function.first_line + 1
        if length > MAX_FUNCTION_LINES:
            yield Breach(source.path, function.first_line, "function-length",
                         f"{function.name} has {length} lines, at most {MAX_FUNCTION_LINES}")


def check_class_size(source: Source) -> Iterator[Breach]:
    if not source.path.startswith("src/") or not source.path.endswith(C_FAMILY):
        return
    for each in class_size.with_many(source.text):
        yield Breach(source.path, each.line, "class-size",
                     f"{each.name} has {each.functions} member functions, at most "
                     f"{class_size.MOST}: what idea in it is a class of its own?")


def check_name(source: Source) -> Iterator[Breach]:
    words = re.split(r"[/_.-]", source.path.lower())
    for word in EMPTY_NAMES.intersection(words):
        yield Breach(source.path, 1, "name", f"'{word}' says nothing: name what it does")


def check_opening(source: Source) -> Iterator[Breach]:
    if not is_code(source.path) or not source.text:
        return
    lines = [line for line in source.lines if line.strip()]
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    opening = lines[0].lstrip() if lines else ""
    marks = ("//", "/*") if source.path.endswith(C_FAMILY) else ("#", '"""', "'''")
    if not opening.startswith(marks) or opening.startswith("#include"):
        yield Breach(source.path, 1, "opening", "open with a comment: what this file is for")
    if source.path.endswith((".hpp", ".h")) and not re.search(
            r"^#pragma once$|^#ifndef \w+$", source.text, re.MULTILINE):
        yield Breach(source.path, 1, "opening", "a header needs #pragma once")


def check_words(source: Source) -> Iterator[Breach]:
    for number, line in enumerate(source.lines, 1):
        if MACHINE_PATHS.search(line):
            yield Breach(source.path, number, "machine-path", "this path is one machine's")
        if is_code(source.path) and UNFINISHED.search(line):
            yield Breach(source.path, number, "unfinished", "do it, or file an issue")
        if line != line.rstrip() and not source.path.endswith(".md") and is_code(source.path):
            yield Breach(source.path, number, "trailing-space", "blank at the end of the line")


def check_relaxed(source: Source) -> Iterator[Breach]:
    """`relaxed` says why it is enough: by a comment that explains it for its function, or by one in
    the same paragraph, on the line or above it."""
    if not source.path.startswith("src/") or not source.path.endswith(C_FAMILY):
        return
    lines = source.lines
    explained = [function for function in cpp_shape.functions(source.text)
                 if any(re.search("//.*relaxed", line)
                        for line in lines[function.first_line - 1:function.last_line])]
    for number, line in enumerate(lines, 1):
        if "memory_order_relaxed" not in line.split("//")[0]:
            continue
        if any(each.first_line <= number <= each.last_line for each in explained):
            continue
        start = number
        while start > 0 and lines[start - 1].strip():
            start -= 1
        if not any("//" in near for near in lines[start:number]):
            yield Breach(source.path, number, "relaxed", "say why relaxed is enough")


def floors_of(source: Source) -> dict[str, tuple[int, int]]:
    """Each room that is drawn, with its floor (-1: beside them all) and its line."""
    drawn, floor = {}, -1
    for number, line in enumerate(source.lines, 1):
        match = FLOOR.match(line)
        if not match or match.start(3) != ROOM_COLUMN:
            continue
        if match.group(1) or match.group(2):
            floor = int(match.group(1) or -1)
        drawn[match.group(3)] = (floor, number)
    return drawn


def check_floors(source: Source) -> Iterator[Breach]:
    """ARCHITECTURE.md draws each room once: over all rooms that it may know and no higher."""
    if source.path != "ARCHITECTURE.md":
        return
    drawn = floors_of(source)
    for room in sorted(set(BENEATH) - set(drawn)):
        yield Breach(source.path, 1, "floors", f"draw room '{room}', as tidy.py has it")
    for room, (floor, line) in drawn.items():
        if room not in BENEATH:
            yield Breach(source.path, line, "floors", f"tidy.py's BENEATH has no room '{room}'")
            continue
        known = [drawn[other][0] for other in BENEATH[room] if other in drawn]
        lowest = 1 + max(known, default=-1)
        if floor != lowest and floor != -1:
            yield Breach(source.path, line, "floors", f"room '{room}' stands on floor {lowest}")
        elif floor == -1 and (lowest > 1 or any(room in each for each in BENEATH.values())):
            yield Breach(source.path, line, "floors", f"room '{room}' is part of a floor")


def check_named_files(source: Source, exists) -> Iterator[Breach]:
    """A document names a file as it is called from the root, from src/ or from include/; a comment
    of the code names a document as it is called from the root."""
    pattern, roots = NAMED_FILE, ("", "src/", "include/")
    if source.path.endswith(C_FAMILY + (".pml",)):
        pattern, roots = NAMED_DOCUMENT, ("",)
    elif not source.path.endswith(".md") or source.path == "CHANGELOG.md":
        return
    for number, line in enumerate(source.lines, 1):
        for name in pattern.findall(line):
            if not any(exists(root + name) for root in roots):
                yield Breach(source.path, number, "named-file", f"there is no {name}")


def check_links(source: Source, exists) -> Iterator[Breach]:
    if not source.path.endswith(".md"):
        return
    for number, line in enumerate(source.lines, 1):
        for target in LINK.findall(line):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not exists(os.path.normpath(os.path.join(os.path.dirname(source.path), target))):
                yield Breach(source.path, number, "link", f"there is no {target}")


def check_sync_points(sources: Iterable[Source]) -> Iterator[Breach]:
    """A pairing has two ends: each name stands at two places of src/ at least."""
    places = defaultdict(list)
    for source in sources:
        if source.path.startswith("src/") and source.path.endswith(C_FAMILY):
            for number, line in enumerate(source.lines, 1):
                for name in SYNC_POINT.findall(line):
                    places[name].append((source.path, number))
    for name, found in sorted(places.items()):
        if len(found) < 2:
            yield Breach(*found[0], "sync-point", f"'{name}' has no other end: name it there too")


def check_asserted(sources: Iterable[Source]) -> Iterator[Breach]:
    """A file that holds state asserts what it relies upon."""
    files = {source.path: source.text for source in sources}
    for stem, path, found in asserted.with_few(files):
        if stem not in asserted.EXCUSED:
            yield Breach(path, 1, "asserted", f"holds state and has {found} assertions: state "
                         f"{asserted.LEAST} invariants, or say in asserted.py why there are none")


PER_FILE = (check_includes, check_size, check_functions, check_class_size, check_name,
            check_opening, check_words, check_relaxed, check_floors)


def check(sources: list[Source], exists=os.path.exists) -> list[Breach]:
    breaches = [breach for source in sources for rule in PER_FILE for breach in rule(source)]
    for rule in (check_links, check_named_files):
        breaches += [breach for source in sources for breach in rule(source, exists)]
    breaches += check_sync_points(sources)
    breaches += check_asserted(sources)
    return sorted(breaches)


def list_files(root: str) -> list[str]:
    """What git would keep; where git cannot tell, every file outside build/ and out/."""
    words = ["git", "-C", root, "ls-files", "-co", "--exclude-standard"]
    git = None
    if shutil.which("git"):
        git = subprocess.run(words, capture_output=True, text=True, check=False)
    if git and git.returncode == 0 and git.stdout:
        return [path for path in git.stdout.splitlines() if os.path.isfile(f"{root}/{path}")]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = set(folders) - {".git", "build", "out", "__pycache__"}
        found += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return found


def read_sources(root: str) -> list[Source]:
    sources = []
    for path in sorted(list_files(root)):
        with open(f"{root}/{path}", "rb") as file:
            data = file.read()
        if b"\0" in data or path == "LICENSE":
            continue
        try:
            sources.append(Source(path, data.decode("utf-8")))
        except UnicodeDecodeError:
            continue  # fuzz corpora and other bytes are not ours to read
    return sources


def main(root: str) -> int:
    sources = read_sources(root)
    breaches = check(sources, lambda path: os.path.exists(f"{root}/{path}"))
    for breach in breaches:
        print(f"{breach.path}:{breach.line}: {breach.rule}: {breach.advice}")
    print(f"tidy: {len(sources)} files read, {len(breaches)} breaches")
    return 1 if breaches or not sources else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
