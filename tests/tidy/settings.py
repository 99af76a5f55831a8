"""`python3 tests/tidy/settings.py ROOT`: every environment variable of ours that src/ reads is an
item of a manual page's ENVIRONMENT, and every item of that kind is read somewhere in src/.

Ours: APERTURE_* and FI_APERTURE_*. A read is a getenv or secure_getenv, by name or by a constant
that holds one. A call with anything else is a fault here too, as nobody could tell what it reads;
src/tool, which goes through other programs' variables, may do so.
"""
import re
import sys
from pathlib import Path

READ = re.compile(r"\b(?:secure_)?getenv\(([^)]*)\)")
CONSTANT = re.compile(r"\b(k\w+)(?:\[\])?\s*=\s*\"(\w+)\"")
OURS = re.compile(r"\"?((?:FI_)?APERTURE_\w+)\"?")
ITEM = re.compile(r"^\.It Ev ((?:.*\\\n)*.*)$", re.M)
OTHERS_VARIABLES = "tool"  # the room that reads by computed names


def settings_read(root: Path) -> tuple[set[str], list[str]]:
    texts = {path: path.read_text() for path in sorted((root / "src").rglob("*.[ch]pp"))}
    constants = {name: value for text in texts.values() for name, value in CONSTANT.findall(text)}
    read, faults = set(), []
    for path, text in texts.items():
        for argument in READ.findall(text):
            name = constants.get(argument, argument.strip('"'))
            if OURS.fullmatch(name):
                read.add(name)
            elif name == argument and path.relative_to(root).parts[1] != OTHERS_VARIABLES:
                faults.append(f"{path.relative_to(root)}: getenv({argument}) is of no known name")
    return read, faults


def settings_documented(root: Path) -> set[str]:
    pages = (root / "docs" / "man").glob("*.[1-8]")
    items = " ".join(item for page in pages for item in ITEM.findall(page.read_text()))
    return set(OURS.findall(items))


def faults_in(root: Path) -> list[str]:
    read, faults = settings_read(root)
    documented = settings_documented(root)
    if not read:
        faults.append("src/ reads no variable of ours: this check looks in the wrong place")
    faults += [f"{name} is read in src/ and is in no manual page's ENVIRONMENT"
               for name in sorted(read - documented)]
    faults += [f"{name} is in a manual page and is read nowhere in src/"
               for name in sorted(documented - read)]
    return faults


def main() -> int:
    faults = faults_in(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
