"""verbbench over aperture0: every row comes out, with its data checked; a bad one says why.

Figures are not validated here, only that there are some and that they are of the right kind. What
arrives is compared byte by byte, and sequence numbers, fetched sums and refused windows are
checked, inside verbbench: a row is ok only if they were right.
"""
import json
import os
import subprocess
import sys
import unittest

import cpus

SOURCE = os.environ.get("APERTURE_SOURCE_DIR") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.environ.get("APERTURE_BUILD_DIR") or os.path.join(SOURCE, "build", "release")
VERBBENCH = os.path.join(BUILD, "bench", "verbbench")
APERTURE = os.path.join(BUILD, "bin", "aperture")
MILLION = "verbs_bind_lat_many/64"  # takes seconds to set up: a run of its own
UNITS = {"lat": "ns", "rate": "M/s", "bw": "GB/s"}


def verbbench(*words, lead=(APERTURE, "run", "--")):
    done = subprocess.run([*lead, VERBBENCH, cpus.OPTION, *words], capture_output=True, text=True,
                          check=False, timeout=150)
    return done.returncode, done.stdout.splitlines(), done.stderr


def rows(*words, **more):
    code, lines, err = verbbench("--json", *words, **more)
    return code, [json.loads(x) for x in lines], err


def listed():
    code, lines, err = verbbench("--list")
    assert code == 0, err
    return [x.split("\t")[0] for x in lines]


class VerbsBench(unittest.TestCase):
    def check_rows(self, keys, got):
        self.assertEqual([f"{r['measure']}/{r['size']}" for r in got], keys)
        for r in got:
            self.assertTrue(r["ok"], r)
            self.assertGreater(r["value"], 0, r)
            kind = "bw" if "_bw" in r["measure"] else "rate" if "_rate" in r["measure"] else "lat"
            unit = "M/s" if kind == "bw" and r["size"] == 8 else UNITS[kind]
            self.assertEqual(r["unit"], unit, r)

    def test_every_row_comes_out(self):
        keys = [k for k in listed() if k != MILLION]
        self.assertGreater(len(keys), 20)
        code, got, err = rows("--only", ",".join(keys), "--count", "128")
        self.assertEqual(code, 0, err + str([r for r in got if not r["ok"]]))
        self.check_rows(keys, got)

    def test_row_beside_a_million_regions_comes_out(self):
        code, got, err = rows("--only", MILLION, "--count", "128", "--timeout", "60")
        self.assertEqual(code, 0, err + str(got))
        self.check_rows([MILLION], got)
        self.assertIn("1000000 regions", got[0]["note"])

    def test_rows_for_counting_are_taken_in_one_look_each(self):
        keys = ["verbs_send_steps/8", "verbs_write_imm_steps/8"]
        self.assertNotIn(keys[0], listed())
        code, got, err = rows("--only", ",".join(keys), "--count", "128")
        self.assertEqual(code, 0, err)
        self.check_rows(keys, got)
        for r in got:
            self.assertIn("1.00 polls per message", r["note"])

    def test_device_that_is_not_there_is_a_failed_row_with_its_reason(self):
        code, got, _ = rows("--only", "verbs_send_lat", "--device", "nosuch0")
        self.assertEqual((code, got[0]["ok"]), (1, False))
        self.assertIn("there is no device 'nosuch0', only", got[0]["note"])

    def test_without_aperture_run_the_reason_says_what_to_do(self):
        code, got, _ = rows("--only", "verbs_send_lat", lead=())
        self.assertEqual((code, got[0]["ok"]), (1, False))
        self.assertIn("aperture run", got[0]["note"])

    def test_unknown_measure_is_wrong_usage(self):
        code, got, err = rows("--only", "nosuchmeasure")
        self.assertEqual((code, got), (2, []))
        self.assertIn("nosuchmeasure", err)

    def test_unknown_option_is_wrong_usage(self):
        code, lines, err = verbbench("--nosuchoption")
        self.assertEqual((code, lines), (2, []))
        self.assertIn("--gid-index", err)


class Driver(unittest.TestCase):
    def run_bench(self, *words):
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(SOURCE, "bench", "run"), "--build", BUILD,
             cpus.OPTION, "--quick", "--seconds", "0.05", "--rounds", "1", "--json", *words],
            capture_output=True, text=True, check=False, timeout=150)
        return done, json.loads(done.stdout)["measures"]

    def test_verbs_rows_stand_beside_those_of_libfabric(self):
        only = "verbs_send_lat/8,verbs_write_imm_lat/8,verbs_bind_lat/4096"
        done, measures = self.run_bench("--subjects", "aperture", "--only", only)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertEqual([f"{m['measure']}/{m['size']}" for m in measures], only.split(","))
        for m in measures:
            figure = m["subjects"]["aperture"]
            self.assertEqual(figure["failure"], "")
            self.assertGreater(figure["median"], 0)
            self.assertEqual(figure["base"] > 0, m["measure"] != "verbs_bind_lat", m)
            self.assertIn(m["verdict"], ("met", "NOT met"))

    def test_device_that_is_not_there_is_a_failed_subject(self):
        done, measures = self.run_bench("--subjects", "verbs:nosuch0", "--only",
                                        "verbs_send_lat/8,send_lat/8")
        self.assertEqual(done.returncode, 1)
        by_name = {m["measure"]: m["subjects"] for m in measures}
        self.assertEqual(by_name["send_lat"], {})
        self.assertIn("nosuch0", by_name["verbs_send_lat"]["verbs:nosuch0"]["failure"])


if __name__ == "__main__":
    if not os.access(VERBBENCH, os.X_OK):
        sys.exit(f"{VERBBENCH} was not built")
    cpus.skip_with_fewer_than_two()
    unittest.main()
