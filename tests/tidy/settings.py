"""`python3 tests/tidy/settings.py ROOT`: every setting of ours, APERTURE_* and FI_APERTURE_*, is a
row of the table in src/base/settings.cpp, an item of a manual page's ENVIRONMENT, and read in src/;
and each word of the table stands in a manual page.

It is read by setting_is, setting_text or setting_number, by name or by a constant that holds one; a
getenv of one is a fault. src/tool, which goes through other programs' variables, may ask getenv for
computed names.
"""
import re
import sys
from pathlib import Path

READ = re.compile(r"\b(?:secure_)?getenv\(([^)]*)\)")
ASKED = re.compile(r"\bsetting_(?:is|text|number)\(([\w\"]+)")
CONSTANT = re.compile(r"\b(k\w+)(?:\[\])?\s*=\s*\"(\w+)\"")
OURS = re.compile(r"\"?((?:FI_)?APERTURE_\w+)\"?")
ROW = re.compile(r"^    \{\"((?:FI_)?APERTURE_\w+)\", Kind::\w+,\s*((?:\"[^\"]*\"\s*)+),", re.M)
ITEM = re.compile(r"^\.It Ev ((?:.*\\\n)*.*)$", re.M)
TABLE = Path("src/base/settings.cpp")
OTHERS_VARIABLES = "tool"  # the room that reads by computed names


def settings_of_table(root: Path) -> dict[str, list[str]]:
    """Each setting with its words."""
    rows = ROW.findall((root / TABLE).read_text())
    return {name: [w for w in re.split(r"[\", \n]+", words) if w] for name, words in rows}


def settings_read(root: Path) -> tuple[set[str], list[str]]:
    texts = {path: path.read_text() for path in sorted((root / "src").rglob("*.[ch]pp"))}
    constants = {name: value for text in texts.values() for name, value in CONSTANT.findall(text)}
    read, faults = set(), []
    for path, text in texts.items():
        where = path.relative_to(root)
        if where in (TABLE, TABLE.with_suffix(".hpp")):
            continue
        read |= {constants.get(a, a.strip('"')) for a in ASKED.findall(text)}
        for argument in READ.findall(text):
            name = constants.get(argument, argument.strip('"'))
            if OURS.fullmatch(name):
                faults.append(f"{where}: getenv of {name}; base/settings.hpp is to be asked")
            elif name == argument and where.parts[1] != OTHERS_VARIABLES:
                faults.append(f"{where}: getenv({argument}) is of no known name")
    return read, faults


def settings_documented(root: Path) -> tuple[set[str], str]:
    pages = [page.read_text() for page in sorted((root / "docs" / "man").glob("*.[1-8]"))]
    items = " ".join(item for page in pages for item in ITEM.findall(page))
    return set(OURS.findall(items)), "\n".join(pages)


def faults_in(root: Path) -> list[str]:
    table = settings_of_table(root)
    read, faults = settings_read(root)
    documented, pages = settings_documented(root)
    if not table:
        faults.append(f"{TABLE} has no row: this check looks in the wrong place")
    for name in sorted(read | documented | set(table)):
        if name not in table:
            faults.append(f"{name} is no row of {TABLE}")
        if name not in documented:
            faults.append(f"{name} is in no manual page's ENVIRONMENT")
        if name not in read:
            faults.append(f"{name} is read nowhere in src/")
        faults += [f"{name} may be {word}, which no manual page says"
                   for word in table.get(name, []) if not re.search(rf"\b{word}\b", pages)]
    return faults


def main() -> int:
    faults = faults_in(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
