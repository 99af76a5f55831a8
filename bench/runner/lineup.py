"""Who stands for a name on the command line: a provider, UCX, Open MPI."""
from .goals import Measure
from .mpi import CHOICES, Mpi
from .subjects import Fabric, Observation, Settings, Ucx


class Aperture:
    """The provider for the rows of libfabric, and Open MPI over it for those of MPI."""

    name = "aperture"

    def __init__(self, settings: Settings) -> None:
        self._fabric, self._mpi = Fabric(self.name, settings), Mpi(self.name, settings)

    def offers(self, _: Measure) -> bool:
        return True

    def measure(self, measure: Measure) -> Observation:
        return (self._mpi if measure.is_mpi else self._fabric).measure(measure)


def make_subject(name: str, settings: Settings):
    if name == Aperture.name:
        return Aperture(settings)
    if name in CHOICES:
        return Mpi(name, settings)
    if name in Ucx.TRANSPORTS:
        return Ucx(name, settings)
    return Fabric(name, settings)
