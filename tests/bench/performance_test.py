"""docs/performance.md has each goal that the newest kept figures miss, and those figures."""
import os
import re
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))

from runner import kept  # noqa: E402
from runner.goals import MEASURES, size_text  # noqa: E402
from runner.placement import summaries  # noqa: E402
from runner.report import number  # noqa: E402

# In the order in which the page takes its figures: the newest first.
FILES = {"E": "2026-11-29-amd-epyc-8d50fad776",
         "C": "2026-11-28-amd-epyc-9f72edb800", "B": "2026-11-28-amd-epyc-3d9010cd77",
         "D": "2026-11-28-amd-epyc-71c3d6dd44", "A": "2026-11-28-amd-epyc-36df9db897",
         "T": "2026-11-27-amd-epyc-f6bb01ddbc"}
SCALES = {"": 1.0, " us": 1e3, " ms": 1e6}


def newest() -> dict:
    """(key of a measure, near or far) -> (letter of the file, result)."""
    found = {}
    for letter, name in FILES.items():
        _, groups = kept.read(os.path.join(ROOT, "bench", "results", name + ".tsv"))
        measures = list({id(g.measure): g.measure for g in groups}.values())
        for r in summaries(measures, groups, kept.names(groups)):
            kind = r.place.split()[0] if r.place else "far"
            if kind != "moved":
                found.setdefault((r.measure.key, kind), (letter, r))
    return found


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(ROOT, "docs", "performance.md"), encoding="utf-8") as f:
            cls.text = f.read()
        cls.newest = newest()
        cls.rows = {}
        for cells in re.findall(r"^\| `(\w+)`([^|]*)\|(.*)\|$", cls.text, re.MULTILINE):
            size = re.match(r" (\d+ (?:B|[KM]iB))", cells[1])
            cls.rows[cells[0], size[1] if size else ""] = [x.strip() for x in cells[2].split("|")]

    def row_of(self, measure):
        return self.rows.get((measure.name, size_text(measure.size)),
                             self.rows.get((measure.name, "")))

    def test_names_each_goal_that_is_missed_and_no_other(self):
        missed = [m for m in MEASURES
                  if any(self.newest[m.key, kind][1].verdict == "NOT met"
                         for kind in ("near", "far") if (m.key, kind) in self.newest)]
        self.assertEqual([m.key for m in missed if not self.row_of(m)], [])
        self.assertEqual(len(self.rows), len(missed))
        self.assertIn(f"{len(missed)} miss it", self.text)

    def test_figures_are_those_of_the_files(self):
        for measure in (m for m in MEASURES if self.row_of(m)):
            for kind, cell in zip(("near", "far"), self.row_of(measure)):
                if (measure.key, kind) not in self.newest:
                    self.assertEqual(cell, "-", measure.key)
                    continue
                letter, result = self.newest[measure.key, kind]
                figure = result.figures["aperture"]
                seen = re.match(r"(met: )?([\d.]+)( us| ms)?.* ?\(([A-Z])(\d*)\)$", cell)
                self.assertIsNotNone(seen, cell)
                self.assertEqual(seen[2], number(figure.median / SCALES[seen[3] or ""]),
                                 (measure.key, kind))
                self.assertEqual((seen[4], int(seen[5] or 3)), (letter, figure.rounds),
                                 (measure.key, kind))
                self.assertEqual(bool(seen[1]), result.verdict == "met", (measure.key, kind))

    def test_files_are_those_that_it_names(self):
        for name in FILES.values():
            self.assertIn(name.rpartition("-")[2], self.text)


if __name__ == "__main__":
    unittest.main()
