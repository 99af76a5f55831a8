"""Registration caches as subjects: Aperture's own and those of peers, through cachebench.

No peer shows its cache to programs, so its module (bench/cachebench/NAME_peer.c) is made here of
what --peer NAME=PATH names: an installed UCX, or the folder in which libfabric was built.
"""
import glob
import os
import shlex
import subprocess

from .builds import Build, NoBuild
from .goals import Measure
from .subjects import Observation, RowProgram, Settings, failed

# subject: whose cache, by which monitor
CHOICES = {
    "aperture": ("aperture", "userfaultfd"),
    "aperture-memhooks": ("aperture", "memhooks"),
    "bare": ("none", "none"),
    "libfabric-userfaultfd": ("libfabric", "userfaultfd"),
    "libfabric-memhooks": ("libfabric", "memhooks"),
    "ucx-hooks": ("ucx", "hooks"),
}
PEERS = ("libfabric", "ucx")
# Without a cache memory can be unmapped and dropped, and nothing found.
OF_BARE = ("cache_unmap_lat", "cache_unmap_lat_unwatched", "cache_drop_lat",
           "cache_drop_lat_unwatched")
SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cachebench")


def of_peer(peer: str) -> list:
    return [name for name, (whose, _) in CHOICES.items() if whose == peer]


def _first_error(text: str) -> str:
    lines = [x for x in text.splitlines() if "error" in x or "cannot find" in x] or [text.strip()]
    return lines[0][:300]


def _run(argv: list, what: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise NoBuild(f"{what}: {e}") from e
    if done.returncode != 0:
        raise NoBuild(f"{what}: {_first_error(done.stderr + done.stdout)}")
    return done.stdout


def ucx_words(path: str) -> list:
    """What the compiler is told of an installed UCX; where its libraries are not under that prefix
    (an unpacked package for developers), the machine's own are meant."""
    if not os.path.isfile(os.path.join(path, "include", "ucs", "memory", "rcache.h")):
        raise NoBuild(f"there is no include/ucs/memory/rcache.h under {path} "
                      "(Debian: libucx-dev, in /usr)")
    words = ["-isystem", os.path.join(path, "include")]
    try:
        folder = Build(path, "libucs.so.0").libraries
        words += [f"-L{folder}", f"-Wl,--disable-new-dtags,-rpath,{folder}"]
    except NoBuild:
        pass
    return words + ["-l:libucs.so.0", "-l:libucp.so.0"]


def libfabric_words(path: str, into: str) -> list:
    """The same of a source tree in which libfabric was built: of its static library the objects
    cannot be part of a shared module, of its shared one what is wanted cannot be seen, so the
    objects of the latter are put into an archive."""
    objects = sorted(glob.glob(os.path.join(path, "**", ".libs", "*libfabric_la-*.o"),
                               recursive=True))
    if not objects or not os.path.isfile(os.path.join(path, "config.h")):
        raise NoBuild(f"{path} is no source tree in which libfabric was built as a shared library "
                      "(./configure && make)")
    archive = os.path.join(into, "cache_peer_libfabric.a")
    if os.path.exists(archive):
        os.remove(archive)
    _run(["ar", "qcs", archive, *objects], "libfabric's objects")
    scripts = [os.path.join(path, "libfabric.map"), os.path.join(SOURCES, "libfabric_peer.map")]
    return ["-DHAVE_CONFIG_H", "-DNDEBUG", "-isystem", path, "-isystem",
            os.path.join(path, "include"), archive, "-Wl,--exclude-libs,ALL",
            *(f"-Wl,--version-script={x}" for x in scripts), "-latomic", "-lpthread", "-ldl"]


def make_module(peer: str, path: str, into: str) -> str:
    """The path of the module; NoBuild says why there is none."""
    path = os.path.abspath(os.path.expanduser(path))
    words = ucx_words(path) if peer == "ucx" else libfabric_words(path, into)
    module = os.path.join(into, f"cache_peer_{peer}.so")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    _run([*compiler, "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-shared",
          "-o", module, os.path.join(SOURCES, f"{peer}_peer.c"), *words],
         f"the module of {peer}'s cache cannot be made")
    return module


def paths_of(words: list) -> dict:
    """Of NAME=PATH each; NoBuild for a name that is no peer's."""
    paths = {}
    for word in words:
        peer, _, path = word.partition("=")
        if peer not in PEERS or not path:
            raise NoBuild(f"--peer {word}: libfabric=PATH and ucx=PATH are known")
        paths[peer] = path
    return paths


def version_of(build: str, module: str) -> str:
    return _run([os.path.join(build, "bench", "cachebench"), "--cache", module, "--version"],
                "the module of a peer's cache").strip()


class Cache:
    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._whose, monitor = CHOICES[name]
        self._seconds = settings.seconds
        self._path = os.path.join(settings.build, "bench", "cachebench")
        self._module = settings.modules.get(self._whose, "")
        if self._whose in ("aperture", "none"):
            self._module = self._whose
        argv = [self._path, "--cache", self._module, "--monitor", monitor,
                "--timeout", f"{settings.timeout:g}"]
        self._program = RowProgram(argv, settings, dict(os.environ))

    def offers(self, measure: Measure) -> bool:
        return measure.name in OF_BARE if self._whose == "none" else measure.is_cache

    def measure(self, measure: Measure) -> Observation:
        if not self._module:
            return failed(f"its sources were not named: --peer {self._whose}=PATH")
        if not os.access(self._path, os.X_OK):
            return failed("cachebench was not built")
        return self._program.row(measure.key, [], self._seconds)
