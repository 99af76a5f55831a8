"""Which build of a peer is measured: the machine's own, or one under a prefix; and its version."""
import glob
import os
import re
import shutil
import subprocess

VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?\S*")


class NoBuild(Exception):
    """A prefix that does not hold what it was named for."""


class Build:
    """A library by its file's name, and its programs: under a prefix, or wherever the machine has
    them when the prefix is empty."""

    def __init__(self, prefix: str, library: str) -> None:
        self._prefix = os.path.abspath(prefix) if prefix else ""
        self._libraries = ""
        if not prefix:
            return
        found = [x for where in ("lib", "lib64", os.path.join("lib", "*-linux-gnu*"))
                 for x in sorted(glob.glob(os.path.join(self._prefix, where, library)))]
        if not found:
            raise NoBuild(f"there is no {library} under {prefix}")
        self._libraries = os.path.dirname(found[0])

    @property
    def named(self) -> bool:
        return bool(self._prefix)

    @property
    def libraries(self) -> str:
        """The folder that the library lies in, under a prefix."""
        return self._libraries

    def env(self, env: dict) -> dict:
        """The same, in which the dynamic linker finds this library first."""
        if not self.named:
            return dict(env)
        others = env.get("LD_LIBRARY_PATH")
        return {**env, "LD_LIBRARY_PATH": self._libraries + (f":{others}" if others else "")}

    def program(self, name: str) -> str:
        """Its path, or nothing."""
        if not self.named:
            return shutil.which(name) or ""
        path = os.path.join(self._prefix, "bin", name)
        return path if os.access(path, os.X_OK) else ""

    def version_by(self, argv: list) -> str:
        """The first version that a program says which uses it."""
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20,
                                  env=self.env(dict(os.environ)))
        except (OSError, subprocess.TimeoutExpired):
            return "unknown"
        match = VERSION.search(done.stdout)
        return match[0] if match and done.returncode == 0 else "unknown"


def libfabric(prefix: str) -> Build:
    return Build(prefix, "libfabric.so.1")


def ucx(prefix: str) -> Build:
    build = Build(prefix, "libucp.so.0")
    if prefix and not build.program("ucx_perftest"):
        raise NoBuild(f"there is no bin/ucx_perftest under {prefix}")
    return build


def versions(fabbench: str, fabric: Build, other: Build) -> dict:
    """What is written beside the figures."""
    facts = {"libfabric": libfabric("").version_by([fabbench, "--version"])}
    if fabric.named:
        facts["libfabric of the peers"] = fabric.version_by([fabbench, "--version"])
    info = other.program("ucx_info")
    if info:
        facts["ucx"] = other.version_by([info, "-v"])
    return facts


def without_prefixes(words: list, prefixes: list) -> list:
    """A command line that says the same on every machine: of a prefix, its last part."""
    for prefix in (x for x in prefixes if x):
        words = [word.replace(prefix, os.path.basename(os.path.normpath(prefix)))
                 for word in words]
    return words
