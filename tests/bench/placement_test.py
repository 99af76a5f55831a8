"""Rounds with near cores and rounds with far ones are told apart, also in raw figures of old."""
import glob
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(HERE, "..", "..", "bench")
sys.path.insert(0, BENCH)

from runner import kept, report  # noqa: E402
from runner.goals import MEASURES, Criterion, Measure  # noqa: E402
from runner.main import limit_figures  # noqa: E402
from runner.placement import described, placements, summaries  # noqa: E402
from runner.schedule import Group  # noqa: E402
from runner.subjects import Observation, failed  # noqa: E402

LAT = Measure("send_lat", 8, "ns", "line_lat/8", 1.0, (Criterion("limit", 1.15),))
RATE = Measure("send_rate", 8, "M/s")


def group(measure, number, value, *lines):
    g = Group(number, measure, list(lines))
    if measure.limit and lines[0]:
        g.limit = Observation(True, float(lines[0]), "ns")
    g.seen["aperture"] = Observation(True, float(value), measure.unit)
    return g


def results_of(groups, measures=(LAT,)):
    return summaries(list(measures), groups, ["aperture"])


class Placements(unittest.TestCase):
    def test_near_and_far_rounds_have_a_median_each(self):
        groups = [group(LAT, 1, 96, 72, 74), group(LAT, 2, 320, 280, 290),
                  group(LAT, 3, 330, 270, 275), group(LAT, 4, 324, 281, 281)]
        near, far = results_of(groups)
        self.assertEqual((near.place, near.share), ("near 73 ns", "1 of 4"))
        self.assertEqual((far.place, far.share), ("far 281 ns", "3 of 4"))
        self.assertEqual(near.figures["aperture"].median, 96)
        self.assertEqual(far.figures["aperture"].median, 324)
        self.assertAlmostEqual(near.limit.median, 72)
        self.assertEqual((near.verdict, far.verdict), ("NOT met", "NOT met"))
        text = report.table([near, far], ["aperture"])
        self.assertIn("send_lat 8 B, near 73 ns, 1 of 4", text)
        self.assertIn("send_lat/8, far 281 ns, 3 of 4: 324 ns", text)

    def test_run_with_one_placement_reads_as_ever(self):
        (result,) = results_of([group(LAT, i, 96, 60 + 5 * i, 60 + 5 * i) for i in range(4)])
        self.assertEqual((result.place, result.share), ("", ""))
        self.assertEqual(result.figures["aperture"].rounds, 4)
        self.assertNotIn("near", report.table([result], ["aperture"]))

    def test_placement_is_that_of_the_run_also_for_a_row_that_saw_one(self):
        groups = [group(LAT, i, 320, 280, 280) for i in range(3)]
        groups += [group(RATE, i, 40, 73, 73) for i in range(3)]
        far, near = results_of(groups, (LAT, RATE))
        self.assertEqual((far.place, near.place), ("far 280 ns", "near 73 ns"))
        self.assertFalse(far.noisy or near.noisy)

    def test_three_placements_are_three(self):
        groups = [group(LAT, i, x, x, x) for i, x in enumerate((24, 62, 270))]
        self.assertEqual([r.place for r in results_of(groups)],
                         ["near 24 ns", "between 62 ns", "far 270 ns"])

    def test_round_in_which_the_line_changed_is_in_no_figure_and_makes_the_row_noisy(self):
        groups = [group(LAT, 1, 96, 72, 74), group(LAT, 2, 100, 73, 73),
                  group(LAT, 3, 200, 72, 280)]
        (result,) = results_of(groups)
        self.assertEqual(result.figures["aperture"].rounds, 2)
        self.assertEqual(result.figures["aperture"].median, 98)
        self.assertEqual(len(result.disturbed), 1)
        self.assertTrue(result.noisy)

    def test_row_that_moved_in_each_round_has_a_figure_and_says_so(self):
        groups = [group(LAT, i, 200, 72, 280) for i in range(3)]
        groups += [group(RATE, 1, 40, 73, 73), group(RATE, 2, 40, 280, 280)]
        moved, near, far = results_of(groups, (LAT, RATE))
        self.assertEqual((moved.place, moved.noisy), ("moved", True))
        self.assertEqual(moved.figures["aperture"].median, 200)
        self.assertEqual((near.share, far.share), ("1 of 2", "1 of 2"))

    def test_line_that_could_not_be_measured_is_no_placement(self):
        (result,) = results_of([group(LAT, i, 96, 0, 0) for i in range(3)])
        self.assertEqual((result.place, result.figures["aperture"].rounds), ("", 3))
        groups = [group(LAT, 1, 96, 72, 72), group(LAT, 2, 320, 280, 280), group(LAT, 3, 1, 0)]
        self.assertEqual([r.figures["aperture"].median for r in results_of(groups)], [96, 320])
        self.assertEqual(described(groups), "near 72 ns: 1, far 280 ns: 1, moved or unknown: 1")

    def test_limits_are_told_apart_too(self):
        groups = [group(LAT, 1, 96, 72, 74), group(LAT, 2, 320, 280, 290)]
        other = Group(1, Measure("memcpy", 4096, "GB/s"), [73, 73])
        other.seen["limits"] = Observation(True, 20.0, "GB/s")
        shown = [(m.key, f.median, place) for m, f, place in limit_figures(groups, [other])]
        self.assertEqual(shown, [("line_lat/8", 72, "near 73 ns"),
                                 ("line_lat/8", 280, "far 285 ns"),
                                 ("memcpy/4096", 20, "near 73 ns")])


class Kept(unittest.TestCase):
    def file(self, groups, others=()):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "raw.tsv")
        report.write_tsv(path, {"cpu": "of: a test"}, list(groups), list(others))
        return path

    def test_what_was_written_is_read(self):
        crowd = next(m for m in MEASURES if m.name == "send_lat_crowd")
        g = group(crowd, 2, 96, 72, 74)
        g.bases["aperture"] = Observation(True, 90.0, "ns", p99=95.0)
        g.seen["shm"] = failed("hang")
        g.foreign = 0.05
        other = Group(1, Measure("memcpy", 64 * 1024, "GB/s"), [73])
        other.seen["limits"] = Observation(True, 20.0, "GB/s")
        facts, (read, limit) = kept.read(self.file([g], [other]))
        self.assertEqual(facts, {"cpu": "of: a test", "lines": "73 ns: 1"})
        self.assertIs(read.measure, crowd)
        self.assertEqual((read.lines, read.foreign, read.round), ([72, 74], 0.05, 2))
        self.assertEqual((read.limit.value, read.bases["aperture"].p99), (72, 95))
        self.assertEqual((read.seen["shm"].ok, read.seen["shm"].note), (False, "hang"))
        self.assertEqual(limit.seen["limits"].value, 20)
        self.assertEqual(kept.names([read]), ["aperture", "shm"])

    def test_row_that_had_another_limit_has_no_goal(self):
        g = group(Measure("write_lat", 8, "ns", "cma_lat/8"), 1, 100, 72)
        (read,) = kept.read(self.file([g]))[1]
        self.assertEqual((read.measure.limit, read.measure.goal), ("cma_lat/8", ()))
        g = group(Measure("of_old", 8, "ns", "cma_lat/8"), 1, 100, 72)
        (read,) = kept.read(self.file([g]))[1]
        self.assertEqual((read.measure.unit, read.measure.goal), ("ns", ()))

    def test_what_is_no_such_file_is_refused(self):
        path = self.file([])
        with self.assertRaises(kept.NoFigures):
            kept.read(path)
        whole = self.file([group(LAT, 1, 96, 72, 74)])
        with open(whole, encoding="utf-8") as f:
            text = f.read()
        with open(whole, "w", encoding="utf-8") as f:
            f.write(text.replace("\t96\t", "\tmany\t", 1))
        with self.assertRaisesRegex(kept.NoFigures, "damaged"):
            kept.read(whole)

    def test_all_that_was_ever_kept_is_read_and_none_of_it_mixes_placements(self):
        paths = [x for x in glob.glob(os.path.join(BENCH, "results", "*.tsv"))
                 if "nvidia" not in x]
        self.assertGreater(len(paths), 5)
        for path in paths:
            _, groups = kept.read(path)
            names = kept.names(groups)
            measures = list({id(g.measure): g.measure for g in groups}.values())
            results = summaries(measures, groups, names)
            self.assertGreaterEqual(len(results), len(measures), path)
            report.table(results, names)
            for p in placements(groups):
                self.assertLess(p.lines[-1], 2 * p.lines[0], path)

    def test_table_of_a_file_is_printed_by_bench_run(self):
        path = self.file([group(LAT, 1, 96, 72, 74), group(LAT, 2, 320, 280, 290)])
        run = [sys.executable, "-B", os.path.join(BENCH, "run"), "--read"]
        done = subprocess.run([*run, path], capture_output=True, text=True, check=False, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("send_lat 8 B, near 73 ns, 1 of 2", done.stdout)
        for words in ([path, "--only", "nosuchrow"], ["/nonexistent"]):
            done = subprocess.run([*run, *words], capture_output=True, text=True, check=False,
                                  timeout=30)
            self.assertEqual((done.returncode, done.stdout), (2, ""))


if __name__ == "__main__":
    unittest.main()
