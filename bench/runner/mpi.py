"""Open MPI as a subject: one MPI program under mpirun, over Aperture or Open MPI's own ways.

aperture    over mtl ofi, as `aperture run` leads it there (answers for the provider of that name)
ompi        Open MPI's own shared memory, as it comes: single copies by CMA where they are allowed
ompi-nocma  the same without single copies
"""
import json
import os
import shutil

from .goals import Measure
from .subjects import Observation, Settings, failed, last_line, run_program

CHOICES = {
    "aperture": {},
    "ompi": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"},
    "ompi-nocma": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader",
                   "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                   "OMPI_MCA_smsc": "^cma,xpmem,knem"},
}
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
           "OMPI_MCA_hwloc_base_binding_policy": "none",
           "PRTE_MCA_hwloc_default_binding_policy": "none"}


class Mpi:
    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self._settings = settings
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_"))}
        self._env |= ALLOWED | CHOICES[name]
        self._lead = []
        if name == "aperture":
            self._lead = [os.path.join(settings.build, "bin", "aperture"), "run", "--"]

    def offers(self, measure: Measure) -> bool:
        return measure.is_mpi

    def measure(self, measure: Measure) -> Observation:
        s = self._settings
        launcher = shutil.which("mpirun.openmpi")
        program = os.path.join(s.build, "bench", "mpi_patterns")
        if launcher is None:
            return failed("mpirun.openmpi is not installed (Debian: openmpi-bin)")
        if not os.access(program, os.X_OK):
            return failed("mpi_patterns was not built (Debian: libopenmpi-dev)")
        argv = self._lead + [launcher, "-n", str(measure.ranks), program, measure.name,
                             str(measure.size), f"{s.seconds:g}", str(s.cpus[0]), str(s.cpus[1])]
        code, out, err = run_program(argv, 3 * s.timeout + 20, self._env)
        if code is None:
            return failed("had to be ended")
        try:
            row = json.loads(next(x for x in out.splitlines() if x.startswith("{")))
        except (ValueError, StopIteration):
            return failed(f"exit code {code}: {last_line(err or out)}")
        carried = "libaperture-fi.so" in row["note"]
        if carried != (self.name == "aperture"):
            return failed(f"another way was taken than the one that is measured: {row['note']}")
        return Observation(True, **row)
