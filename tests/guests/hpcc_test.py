"""hpcc of the distribution over mtl ofi: a large MPI program that verifies its own results.

HPL, PTRANS, RandomAccess (both), FFT, DGEMM, STREAM and its latency and bandwidth part, 2 and 4
ranks. A run counts only if every one of them says that it passed, and if Aperture carried it: the
choice of transport is required (`mtl ofi`), and with another provider there is none.
"""
import os
import re
import shutil
import unittest

from guest import DIRECT_COPIES, Guest

# The lines of HPL's input file, in HPL's order, up to line 31; then those of PTRANS.
INPUT = """HPLinpack benchmark input file
Aperture
HPL.out
8        device out: a file
1        problem sizes
{size}   N
1        block sizes
{block}  NB
0        row-major
1        process grids
{rows}   P
{columns}  Q
16.0     threshold
1        panel factorisations
2        PFACTs
1        recursive stopping criteria
4        NBMINs
1        panels in recursion
2        NDIVs
1        recursive panel factorisations
1        RFACTs
1        broadcasts
1        BCASTs
1        lookahead depths
1        DEPTHs
2        SWAP
64       swapping threshold
0        L1 transposed
0        U transposed
1        equilibration
8        memory alignment
## separator ##
0        additional problem sizes for PTRANS
1200
0        additional block sizes for PTRANS
40
"""


@unittest.skipUnless(shutil.which("hpcc"), "hpcc is not installed")
class Hpcc(Guest):
    def hpcc(self, rows: int, columns: int, size: int, **how) -> str:
        with open(f"{self.folder}/hpccinf.txt", "w", encoding="ascii") as file:
            file.write(INPUT.format(size=size, block=64, rows=rows, columns=columns))
        results = f"{self.folder}/hpccoutf.txt"
        if os.path.exists(results):
            os.remove(results)
        launcher = shutil.which("mpirun.openmpi") or "mpirun"
        self.run_guest(launcher, "-n", str(rows * columns), "hpcc", **how)
        with open(results, encoding="ascii") as file:
            return file.read()

    def expect_verified(self, results: str, ranks: int):
        def value(name: str) -> float:
            found = re.search(rf"(?m)^{name}=(\S+)$", results)
            self.assertIsNotNone(found, f"{name} is missing:\n{results[-3000:]}")
            return float(found[1])

        self.assertEqual(value("Success"), 1)
        self.assertEqual(value("CommWorldProcs"), ranks)
        for name in ("MPIRandomAccess_Errors", "MPIRandomAccess_LCG_Errors"):
            self.assertEqual(value(name), 0)
        self.assertLess(value("PTRANS_residual"), 16)
        self.assertLess(value("MPIFFT_maxErr"), 1e-12)
        # HPL and each PTRANS run
        self.assertRegex(results, r"\|\|Ax-b\|\|.* PASSED")
        self.assertNotRegex(results, r"(?m)FAILED|^Node\(s\) with error [1-9]")
        self.assertIn("1 tests completed and passed residual checks", results)
        self.assertIn("5 tests completed and passed residual checks", results)
        self.assertEqual(len(re.findall("(?m) 0 tests completed and failed residual", results)), 2)
        self.assertNotIn("not passed", results)
        self.assertIn("Solution Validates", results)

    def test_two_ranks_verify_everything(self):
        self.expect_verified(self.hpcc(1, 2, 1200), 2)

    def test_four_ranks_verify_everything(self):
        self.expect_verified(self.hpcc(2, 2, 400), 4)

    def test_two_ranks_where_direct_copies_are_denied(self):
        self.expect_verified(self.hpcc(1, 2, 800, denied=DIRECT_COPIES), 2)


if __name__ == "__main__":
    unittest.main()
