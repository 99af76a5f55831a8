"""`python3 tests/tidy/conformance.py ROOT`: every test that a table in docs/conformance/ names must
exist in tests/, and every row must name one or say why there is none.

A table has four columns; the last holds `Suite.name`, several with commas between them, of a test
in C++ or of a method of a class in tests/pyverbs. A name that is followed by "(pending merge)" is
not looked for. Tables of what another project's tests make of us (OUTCOMES) name tests of theirs.
"""
import re
import sys
from pathlib import Path

TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.M)
PYTHON = re.compile(r"^class (\w+)\(|^    def (test_\w+)\(self", re.M)
NAMED = re.compile(r"`(\w+\.\w+)`( \(pending merge\))?")
EXCUSES: tuple[str, ...] = ()
OUTCOMES = ("rdma-core-tests.md", "fabtests.md")
HEADINGS = ("| Page ", "| Slide ", "| ---")


def python_tests(path: Path) -> set[str]:
    found, suite = set(), ""
    for named, test in PYTHON.findall(path.read_text()):
        suite = named or suite
        if test:
            found.add(f"{suite}.{test}")
    return found


def existing(root: Path) -> set[str]:
    tests = {f"{suite}.{name}" for path in (root / "tests").rglob("*_test.cpp")
             for suite, name in TEST.findall(path.read_text())}
    return tests.union(*map(python_tests, (root / "tests" / "pyverbs").glob("*_test.py")))


def faults_in(table: Path, tests: set[str]) -> list[str]:
    out, seen = [], set()
    for number, line in enumerate(table.read_text().splitlines(), 1):
        if not line.startswith("|") or line.startswith(HEADINGS):
            continue
        where = f"{table.name}:{number}"
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not all(cells):
            out.append(f"{where}: a row has four cells, none of them empty")
            continue
        if (key := (cells[0], cells[1])) in seen:
            out.append(f"{where}: the sentence is there twice: {cells[1]}")
        seen.add(key)
        named = NAMED.findall(cells[3])
        if not named and cells[3] not in EXCUSES:
            out.append(f"{where}: no test is named")
        out += [f"{where}: there is no test {test}" for test, pending in named
                if not pending and test not in tests]
    return out


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    tables = sorted(path for path in (root / "docs" / "conformance").glob("*.md")
                    if path.name not in OUTCOMES)
    tests = existing(root)
    faults = [fault for table in tables for fault in faults_in(table, tests)]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"conformance: {len(tables)} tables, {len(tests)} tests known, {len(faults)} faults")
    return 1 if faults or not tables else 0


if __name__ == "__main__":
    sys.exit(main())
