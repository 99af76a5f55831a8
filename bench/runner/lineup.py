"""Who stands for a name on the command line: a provider, a verbs device, sockets, UCX, Open MPI, a
registration cache."""
from . import caches
from .caches import Cache
from .goals import Measure
from .mpi import CHOICES, Mpi
from .starts import Starts
from .subjects import Fabric, Observation, Settings, Sockets, Ucx, Verbs

SOCKETS = "tcp-socket"


class Aperture:
    """The provider for the rows of libfabric, Open MPI over it for those of MPI, the device for
    those of verbs, the registration cache by the monitor that it has unless told otherwise, and
    `aperture run`."""

    name = "aperture"

    def __init__(self, settings: Settings) -> None:
        self._parts = [Fabric(self.name, settings), Mpi(self.name, settings),
                       Verbs(self.name, Verbs.OURS, settings), Cache(self.name, settings),
                       Starts(settings)]

    def offers(self, measure: Measure) -> bool:
        return any(part.offers(measure) for part in self._parts)

    def measure(self, measure: Measure) -> Observation:
        return next(part for part in self._parts if part.offers(measure)).measure(measure)


class BesidePatterns:
    """A peer that is asked only where patterns of real programs are measured."""

    def __init__(self, subject) -> None:
        self.name, self._subject = subject.name, subject

    def offers(self, measure: Measure) -> bool:
        return measure.pattern and self._subject.offers(measure)

    def measure(self, measure: Measure) -> Observation:
        return self._subject.measure(measure)


def make_subject(name: str, settings: Settings):
    if name == Aperture.name:
        return Aperture(settings)
    if name in CHOICES:
        return Mpi(name, settings)
    if name in caches.CHOICES:
        return Cache(name, settings)
    if name in Ucx.TRANSPORTS:
        return Ucx(name, settings)
    if name == SOCKETS:
        return Sockets(name, settings)
    if name.startswith("verbs:"):
        return Verbs(name, name.removeprefix("verbs:"), settings)
    return Fabric(name, settings)
