"""`python3 tests/tidy/compiled_once.py BUILD_DIR`: no source file is compiled twice in one build.

Who needs a file in two programs makes it a library (aperture_objects).
"""
import collections
import json
import re
import sys
from pathlib import Path


def sources_of(command: dict) -> list[str]:
    """Its file, or those that CMake has put into one (aperture_join)."""
    path = Path(command["file"])
    if path.parent.name != "Unity":
        return [str(path)]
    return re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE)


def main() -> int:
    commands = json.loads((Path(sys.argv[1]) / "compile_commands.json").read_text())
    times = collections.Counter(file for command in commands for file in sources_of(command))
    twice = [f"{file}: compiled {n} times" for file, n in sorted(times.items()) if n > 1]
    print(*twice, f"compiled_once: {len(times)} files, {len(twice)} faults", sep="\n")
    return 1 if twice or not times else 0


if __name__ == "__main__":
    sys.exit(main())
