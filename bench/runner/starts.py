"""Starting a program under `aperture run`, beside starting it alone."""
import os
import shutil
import subprocess
import time

from .figures import quantile
from .goals import Measure
from .subjects import Observation, Settings, failed


def _seconds_of(argv: list) -> float:
    begun = time.perf_counter()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode(errors='replace')}")
    return time.perf_counter() - begun


class Starts:
    """`aperture run -- true`, from its fork to its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def offers(self, measure: Measure) -> bool:
        return measure.is_run

    def measure(self, measure: Measure) -> Observation:
        alone = shutil.which("true")
        if alone is None:
            return failed("there is no `true`")
        under = [os.path.join(self._settings.build, "bin", "aperture"), "run", "--", alone]
        taken, bare = [], []
        deadline = time.perf_counter() + max(self._settings.seconds, 0.1)
        try:
            while len(taken) < 5 or time.perf_counter() < deadline:
                bare.append(1e9 * _seconds_of([alone]))
                taken.append(1e9 * _seconds_of(under))
        except (OSError, RuntimeError) as e:
            return failed(str(e)[:200])
        middle = quantile(taken, 0.5)
        return Observation(True, middle, "ns", min(taken), middle, quantile(taken, 0.99),
                           sum(taken) / len(taken), len(taken),
                           f"`true` alone {quantile(bare, 0.5) / 1e6:.1f} ms")
