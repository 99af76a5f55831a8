"""The driver's arithmetic: quantiles, ratios round by round, disturbed groups, verdicts."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))

from runner import builds, report  # noqa: E402
from runner.figures import quantile, summarise  # noqa: E402
from runner.lineup import BesidePatterns  # noqa: E402
from runner.goals import MEASURES, Criterion, Measure  # noqa: E402
from runner.main import exit_code, show  # noqa: E402
from runner.schedule import Group, Schedule  # noqa: E402
from runner.subjects import Observation, RowProgram, Settings, Ucx, failed  # noqa: E402

LAT = Measure("send_lat", 8, "ns", "line_lat/8", 1.0,
              (Criterion("limit", 1.15), Criterion("ucx", 1.0)))
RATE = Measure("send_rate", 8, "M/s", "", 1.0, (Criterion("value", 60),))


def group(measure, number, limit=None, lines=(50, 50), **values):
    g = Group(number, measure, list(lines))
    if limit is not None:
        g.limit = Observation(True, limit, measure.unit)
    for name, value in values.items():
        g.seen[name] = failed(value) if isinstance(value, str) else Observation(
            True, value, measure.unit)
    return g


def of_three(measure, limit=None, **values):
    """The result of three groups alike, of the subjects that have values."""
    return summarise(measure, [group(measure, i, limit, **values) for i in range(3)], list(values))


class Builds(unittest.TestCase):
    def made(self, *files):
        """A prefix with these files, which are programs that say where they look for libraries."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in files:
            path = os.path.join(folder.name, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as out:
                out.write("#!/bin/sh\necho \"version 9.8.7 of $LD_LIBRARY_PATH\"\n")
            os.chmod(path, 0o755)
        return folder.name

    def test_build_under_a_prefix_is_found_wherever_its_libraries_lie(self):
        for where in ("lib", "lib64", "lib/x86_64-linux-gnu"):
            prefix = self.made(f"{where}/libfabric.so.1")
            env = builds.libfabric(prefix).env({"LD_LIBRARY_PATH": "/x"})
            self.assertEqual(env["LD_LIBRARY_PATH"], os.path.join(prefix, where) + ":/x")

    def test_prefix_without_the_build_is_refused(self):
        with self.assertRaisesRegex(builds.NoBuild, "libfabric.so.1"):
            builds.libfabric(self.made("lib/libfabric.so.2"))
        with self.assertRaisesRegex(builds.NoBuild, "ucx_perftest"):
            builds.ucx(self.made("lib/libucp.so.0"))

    def test_machines_own_build_changes_nothing(self):
        own = builds.libfabric("")
        self.assertFalse(own.named)
        self.assertEqual(own.env({"A": "b"}), {"A": "b"})

    def test_ucx_of_a_prefix_is_what_is_run_and_its_version_is_told(self):
        prefix = self.made("lib/libucp.so.0", "bin/ucx_perftest", "bin/ucx_info")
        other = builds.ucx(prefix)
        self.assertEqual(other.program("ucx_perftest"), os.path.join(prefix, "bin/ucx_perftest"))
        self.assertEqual(builds.versions("/nonexistent", builds.libfabric(""), other),
                         {"libfabric": "unknown", "ucx": "9.8.7"})
        fabric = builds.libfabric(self.made("lib/libfabric.so.1", "fabbench"))
        self.assertEqual(builds.versions(os.path.join(prefix, "bin/ucx_info"), fabric, other)[
            "libfabric of the peers"], "9.8.7")

    def test_command_that_is_kept_names_no_folder_of_the_machine(self):
        self.assertEqual(builds.without_prefixes(["--ucx=/a/b/ucx-1/", "--only", "x"],
                                                 ["", "/a/b/ucx-1/"]),
                         ["--ucx=ucx-1", "--only", "x"])


class Figures(unittest.TestCase):
    def test_quantile_lies_between_neighbours(self):
        self.assertEqual(quantile([], 0.5), 0)
        self.assertEqual(quantile([4, 1], 0.5), 2.5)
        self.assertEqual(quantile([3, 1, 2], 1), 3)

    def test_ratios_are_taken_round_by_round(self):
        # the second round ran on a machine four times slower: the ratios are the same
        groups = [group(LAT, 1, 50, aperture=55, ucx=60),
                  group(LAT, 2, 200, (200, 200), aperture=220, ucx=240)]
        result = summarise(LAT, groups, ["aperture", "ucx"])
        self.assertAlmostEqual(result.figures["aperture"].per_limit, 1.1)
        self.assertAlmostEqual(result.gains["ucx"], 60 / 55)
        self.assertEqual(result.verdict, "met")

    def test_goal_that_is_missed_by_one_criterion_is_not_met(self):
        self.assertEqual(of_three(LAT, 50, aperture=55, ucx=54).verdict, "NOT met")

    def test_verdict_is_unknown_without_the_peer(self):
        self.assertEqual(of_three(LAT, 50, aperture=55).verdict, "unknown")

    def test_rates_want_to_be_large(self):
        for value, verdict in ((61, "met"), (59, "NOT met")):
            result = of_three(RATE, aperture=value, shm=20)
            self.assertEqual(result.verdict, verdict)
            self.assertAlmostEqual(result.gains["shm"], value / 20)

    def test_disturbed_groups_are_left_out_while_enough_are_quiet(self):
        groups = [group(RATE, i, aperture=70) for i in range(3)]
        groups.append(group(RATE, 4, lines=(50, 70), aperture=1))
        result = summarise(RATE, groups, ["aperture"])
        self.assertEqual(result.figures["aperture"].p10, 70)
        self.assertFalse(result.noisy)
        self.assertEqual(len(result.disturbed), 1)

    def test_disturbed_groups_count_when_there_are_no_others_and_it_is_said(self):
        groups = [group(RATE, i, lines=(50, 70), aperture=70) for i in range(4)]
        result = summarise(RATE, groups, ["aperture"])
        self.assertEqual(result.figures["aperture"].rounds, 4)
        self.assertTrue(result.noisy)

    def test_failure_keeps_its_reason(self):
        result = of_three(LAT, 50, aperture="target: wrong data", ucx=60)
        self.assertEqual(result.verdict, "failed")
        text = report.table([result], ["aperture", "ucx"])
        self.assertIn("aperture: send_lat/8: target: wrong data", text)

    def test_goal_beside_a_base_is_the_ratio_to_it_round_by_round(self):
        crowd = Measure("send_lat_crowd", 8, "ns", "", 1.0, (Criterion("base", 1.1),),
                        base="send_lat/8")
        for value, verdict in ((108, "met"), (112, "NOT met")):
            groups = [group(crowd, i, aperture=value * i) for i in (1, 2, 3)]
            for g in groups:
                g.bases["aperture"] = Observation(True, 100.0 * g.round, "ns")
            result = summarise(crowd, groups, ["aperture"])
            self.assertEqual(result.verdict, verdict)
            self.assertAlmostEqual(result.figures["aperture"].per_base, value / 100)
            self.assertEqual(result.figures["aperture"].base, 200)
        groups[0].bases["aperture"] = failed("hang")
        self.assertEqual(summarise(crowd, groups[:1], ["aperture"]).verdict, "unknown")

    def test_goal_of_base_and_limits_adds_them(self):
        random = Measure("read_any_lat", 8, "ns", "miss_lat/67108864", 1.0,
                         (Criterion("base+limit", 2.0),), base="read_same_lat/8")
        for value, verdict in ((299, "met"), (301, "NOT met")):
            groups = [group(random, i, 100, aperture=value) for i in range(3)]
            for g in groups:
                g.bases["aperture"] = Observation(True, 100.0, "ns")
            self.assertEqual(summarise(random, groups, ["aperture"]).verdict, verdict)

    def test_memory_wants_to_be_small(self):
        memory = Measure("peer_memory", 64, "KiB", goal=(Criterion("value", 64.0),))
        for value, verdict in ((63, "met"), (65, "NOT met")):
            self.assertEqual(of_three(memory, aperture=value).verdict, verdict)

    def test_goal_of_the_slowest_is_judged_by_the_99th_percentile(self):
        revoke = Measure("revoke_lat", 4096, "ns",
                         goal=(Criterion("value", 2000.0), Criterion("p99", 1e6)))
        for p99, verdict in ((0.9e6, "met"), (1.1e6, "NOT met"), (0, "unknown")):
            groups = [group(revoke, i, aperture=1500) for i in range(3)]
            for g in groups:
                g.seen["aperture"].p99 = p99
            result = summarise(revoke, groups, ["aperture"])
            self.assertEqual(result.verdict, verdict)
            self.assertIn("p99 <= 1e+06 ns", result.goal)

    def test_goal_of_the_tail_is_judged_beside_that_of_the_limit(self):
        asleep = Measure("send_lat_epoll", 64, "ns", "unix_lat_epoll/64",
                         goal=(Criterion("limit", 1.1), Criterion("limit p99", 2.0)), tail=True)
        for p99, verdict in ((190, "met"), (210, "NOT met"), (0, "unknown")):
            groups = [group(asleep, i, 50, aperture=50) for i in range(3)]
            for g in groups:
                g.limit.p99, g.seen["aperture"].p99 = 100, p99
            result = summarise(asleep, groups, ["aperture"])
            self.assertEqual(result.verdict, verdict)
            self.assertEqual(result.limit.p99, 100)
            self.assertIn("50 p99 100", report.table([result], ["aperture"]))

    def test_crowded_row_says_what_it_is_a_crowd_of(self):
        for name, crowd in (("write_bw_crowded_4", ("write_bw", 4, False)),
                            ("tagged_rate_crowded_8_one", ("tagged_rate", 8, True)),
                            ("write_bw", ("write_bw", 1, False)),
                            ("send_lat_crowd", ("send_lat_crowd", 1, False))):
            self.assertEqual(Measure(name, 8, "M/s").crowd, crowd)

    def test_row_of_threads_says_how_many_there_are_and_what_each_has(self):
        for name, threads in (("send_rate_threads_4", ("send_rate", 4, "")),
                              ("send_rate_threads_8_endpoint", ("send_rate", 8, "endpoint")),
                              ("send_rate", ("send_rate", 0, ""))):
            self.assertEqual(Measure(name, 8, "M/s").threads, threads)

    def test_row_of_threads_that_falls_below_one_thread_misses_its_goal(self):
        rows = [m for m in MEASURES if m.threads[1]]
        self.assertEqual(len(rows), 15)
        for row in rows:
            name, threads, each = row.threads
            self.assertEqual(row.base, f"{name}_threads_1{'_' + each if each else ''}/8")
            for value, verdict in ((10.1, "met"), (9.9, "NOT met")):
                groups = [group(row, i, aperture=value, ucx=5) for i in range(3)]
                for g in groups:
                    g.bases["aperture"] = Observation(True, 10.0, "M/s")
                result = summarise(row, groups, ["aperture", "ucx"])
                self.assertEqual(result.verdict, verdict)

    def test_crowded_rows_over_verbs_are_judged_beside_those_over_libfabric(self):
        for row in (m for m in MEASURES if m.is_verbs and m.crowd[1] > 1):
            for value, verdict in ((9.0, "met"), (8.0, "NOT met")):
                groups = [group(row, i, aperture=value) for i in range(3)]
                for g in groups:
                    g.bases["aperture"] = Observation(True, 10.0, row.unit)
                self.assertEqual(summarise(row, groups, ["aperture"]).verdict, verdict)

    def test_ucx_has_a_worker_for_each_thread_and_no_other_way(self):
        ucx = Ucx("ucx", Settings(build=""))
        for name, offers in (("send_rate_threads_4_endpoint", True), ("send_rate_threads_4", False),
                             ("send_rate_threads_4_domain", False), ("send_rate", True),
                             ("tagged_rate_crowded_4", True), ("send_rate_epoll", False)):
            self.assertEqual(ucx.offers(Measure(name, 8, "M/s")), offers, name)

    def test_rate_of_several_threads_of_ucx_is_their_sum(self):
        ucx = Ucx("ucx", Settings(build=""))
        row = Measure("send_rate_threads_2_endpoint", 8, "M/s")
        seen = ucx._parse(row, "200000,114.899,0.13,17407\n", "")
        self.assertTrue(seen.ok)
        self.assertEqual((seen.value, seen.count), (0.017407, 200000))
        self.assertFalse(ucx._parse(row, "", "cannot connect").ok)

    def test_measure_of_mpi_says_how_many_ranks_it_has(self):
        self.assertEqual(Measure("mpi_allreduce_lat_4", 8, "ns").ranks, 4)
        self.assertEqual(Measure("mpi_bw", 8, "GB/s").ranks, 2)

    def test_peers_of_patterns_are_asked_nowhere_else(self):
        peer = BesidePatterns(Stub("tcp", [Observation(True, 1.0, "ns")]))
        self.assertFalse(peer.offers(LAT))
        self.assertTrue(peer.offers(Measure("send_lat_epoll", 64, "ns", pattern=True)))

    def test_bases_are_measures_of_fabbench(self):
        for m in MEASURES:
            if m.base:
                self.assertRegex(m.base, r"^[a-z_\d]+/\d+$")
                self.assertNotEqual(m.base, m.key)

    def test_verbs_rows_have_their_goals(self):
        goals = {m.key: ", ".join(c.text(m.unit) for c in m.goal) for m in MEASURES if m.is_verbs}
        self.assertEqual(goals["verbs_send_lat/8"], "<= 1.2x base")
        self.assertEqual(goals["verbs_write_imm_lat/8"], "<= 1.2x base")
        self.assertEqual(goals["verbs_write_lat/8"], "<= 1.1x limit")
        self.assertEqual(goals["verbs_bind_lat/4096"], "<= 100 ns")

    def test_what_is_aimed_at_is_judged(self):
        goals = {m.key: [c.text(m.unit) for c in m.goal] for m in MEASURES}
        for key, wanted in {
                "send_rate_safe/8": ">= 40 M/s", "tagged_rate_safe/8": ">= 40 M/s",
                "verbs_send_rate/8": ">= 30 M/s", "verbs_send_bw/1048576": ">= 1x base",
                "atomic_lat/8": "<= 1.3x limit", "atomic_rate/8": ">= 1x ucx",
                "read_any_lat/8": "<= 1.3x base", "verbs_bind_lat_many/64": "<= 1.3x base",
                "mpi_lat/8": "<= 0.95x ompi", "mpi_bw/1048576": ">= 3x ompi",
                "verbs_write_lat_idle/8": "<= 1.1x limit",
                "verbs_read_lat_idle/8": "<= 1.1x limit"}.items():
            self.assertIn(wanted, goals[key], key)

    def test_bulk_to_an_idle_target_is_judged_at_each_size_over_both_doors(self):
        rows = [m for m in MEASURES if m.name.endswith("_bw_idle") and m.size > 8]
        self.assertEqual(len(rows), 8)
        for row in rows:
            self.assertEqual(row.limit, f"cma_bw/{row.size}")
            for value, verdict in ((9.6, "met"), (9.4, "NOT met")):
                self.assertEqual(of_three(row, 10, aperture=value).verdict, verdict, row.key)

    def test_both_ways_at_once_over_libfabric_are_no_slower_than_shm(self):
        rows = [m for m in MEASURES if m.name.endswith("_both")]
        self.assertEqual(len(rows), 20)
        for row in rows:
            groups = [group(row, i, aperture=16.1, shm=17) for i in range(3)]
            for g in groups:
                g.bases["aperture"] = Observation(True, 10.0, row.unit)
            result = summarise(row, groups, ["aperture", "shm"])
            self.assertEqual(result.verdict, "met" if row.is_verbs else "NOT met", row.key)
            for g in groups:
                g.seen["shm"].value = 16.0
            self.assertEqual(summarise(row, groups, ["aperture", "shm"]).verdict, "met")

    def test_goals_that_are_not_met_fail_no_run(self):
        g = group(LAT, 1, 50, aperture=500, ucx=60)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            (result,) = show({}, [g], [], ["aperture", "ucx"], False)
        self.assertEqual(result.verdict, "NOT met")
        self.assertIn("Goals not met", out.getvalue())
        self.assertEqual(exit_code([result], "aperture"), 0)
        g.seen["aperture"] = failed("hang")
        with contextlib.redirect_stdout(io.StringIO()):
            results = show({}, [g], [], ["aperture", "ucx"], False)
        self.assertEqual(exit_code(results, "aperture"), 1)

    def test_row_that_states_its_tail_does_so(self):
        read = Measure("verbs_read_lat_idle", 8, "ns", tail=True)
        groups = [group(read, i, aperture=1500) for i in range(3)]
        for g in groups:
            g.seen["aperture"].p99 = 2750
        result = summarise(read, groups, ["aperture"])
        self.assertIn(" p99 2750", report.table([result], ["aperture"]))
        read = Measure("verbs_read_lat", 8, "ns")
        result = summarise(read, [group(read, 1, aperture=1500)], ["aperture"])
        self.assertNotIn("p99", report.table([result], ["aperture"]))

    def test_measures_have_names_of_their_own(self):
        keys = [m.key for m in MEASURES]
        self.assertEqual(len(keys), len(set(keys)))


class Stub:
    """A subject or the limits, with figures from a list."""

    def __init__(self, name, answers):
        self.name, self.answers, self.asked = name, answers, 0

    def offers(self, _):
        return True

    def measure(self, _):
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]

    def line_lat(self):
        return self.measure(None).value


class Rounds(unittest.TestCase):
    def test_warm_up_is_not_kept_and_hopeless_subjects_are_asked_twice(self):
        subject = Stub("aperture", [failed("hang")])
        limits = Stub("limits", [Observation(True, 50.0, "ns")])
        schedule = Schedule([RATE], [subject], limits, rounds=5, extra=0)
        schedule.run(warm_up=True)
        self.assertEqual(len(schedule.groups), 5)
        self.assertEqual(subject.asked, 2)

    def test_base_is_not_asked_of_who_does_not_offer_it(self):
        subject = Stub("verbs:rxe0", [Observation(True, 1.0, "ns")])
        subject.offers = lambda measure: measure.is_verbs
        row = Measure("verbs_send_lat", 8, "ns", base="send_lat/8")
        schedule = Schedule([row], [subject], Stub("limits", [Observation(True, 50.0, "ns")]),
                            rounds=1, extra=0)
        schedule.run(warm_up=False)
        self.assertEqual(schedule.groups[0].bases, {})
        self.assertEqual(subject.asked, 1)

    def test_disturbed_groups_are_taken_again(self):
        subject = Stub("aperture", [Observation(True, 70.0, "M/s")])
        # before and after each group: the first two groups see the line change
        lines = [Observation(True, x, "ns") for x in (50.0, 100.0, 100.0, 50.0, 50.0)]
        schedule = Schedule([RATE], [subject], Stub("limits", lines), rounds=2, extra=5)
        schedule.run(warm_up=False)
        self.assertGreaterEqual(len(schedule.groups), 4)


class Rows(unittest.TestCase):
    def row(self, value):
        line = ('{"measure": "line_lat", "size": 8, "ok": true, "unit": "ns", "value": %g, '
                '"min": 0, "p50": 0, "p99": 0, "mean": 0, "count": 1, "note": ""}' % value)
        program = RowProgram(["/bin/sh", "-c", f"echo '{line}'"], Settings(build=""),
                             dict(os.environ))
        return program.row("line_lat/8", [], 0.01)

    def test_figure_of_zero_is_none(self):
        self.assertTrue(self.row(50).ok)
        seen = self.row(0)
        self.assertFalse(seen.ok)
        self.assertIn("too little", seen.note)


if __name__ == "__main__":
    unittest.main()
