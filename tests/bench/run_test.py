"""A short bench over libfabric's shm provider ends with sane rows; a bad one says why.

Figures are not validated here, only that there are some and that they are of the right kind.
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
FABBENCH = os.path.join(BUILD, "bench", "fabbench")
STOCK = {k: v for k, v in os.environ.items() if k != "FI_PROVIDER_PATH"}


def fabbench(*words):
    done = subprocess.run([FABBENCH, "--json", cpus.OPTION, *words], capture_output=True, text=True,
                          check=False, env=STOCK, timeout=150)
    return done.returncode, [json.loads(x) for x in done.stdout.splitlines()], done.stderr


class Bench(unittest.TestCase):
    def test_quick_run_over_a_stock_provider(self):
        only = "send_lat/8,send_bw/65536,write_lat/8,read_bw/65536"
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(SOURCE, "bench", "run"), "--build", BUILD,
             cpus.OPTION, "--quick", "--seconds", "0.05", "--rounds", "1", "--json",
             "--subjects", "shm", "--only", only],
            capture_output=True, text=True, check=False, env=STOCK, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertRegex(json.loads(done.stdout)["facts"]["libfabric"], r"^\d+\.\d+")
        measures = json.loads(done.stdout)["measures"]
        self.assertEqual([f"{m['measure']}/{m['size']}" for m in measures], only.split(","))
        for m in measures:
            figure = m["subjects"]["shm"]
            self.assertEqual(figure["failure"], "")
            self.assertGreater(figure["median"], 0)
            self.assertGreater(m["limit"]["median"], 0)

    def test_every_row_of_a_pattern_comes_out_over_aperture(self):
        for only, count in (("*_crowded_*", 18), ("*_threads_*", 12), ("*_all_to_all", 4),
                            ("*_both", 10), ("*_epoll*", 4)):
            code, rows, err = fabbench("-p", "aperture", "--only", only, "--count", "128")
            self.assertEqual(code, 0, err + str([r for r in rows if not r["ok"]]))
            self.assertEqual(len(rows), count)
            for row in rows:
                self.assertGreater(row["value"], 0, row)
                lat = "_lat" in row["measure"]
                bandwidth = "_bw" in row["measure"] and row["size"] != 8
                self.assertEqual(row["unit"], "ns" if lat else "GB/s" if bandwidth else "M/s", row)

    def test_threads_with_an_endpoint_each_come_out_over_a_stock_provider(self):
        code, rows, err = fabbench("-p", "tcp", "--only", "send_rate_threads_2*", "--count", "128")
        self.assertEqual(code, 0, err + str(rows))
        self.assertEqual(len(rows), 3)

    def test_version_of_the_library_stands_beside_the_figures(self):
        done = subprocess.run([FABBENCH, "--version"], capture_output=True, text=True, check=False,
                              env=STOCK, timeout=60)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^libfabric \d+\.\d+")

    def test_prefix_without_a_build_is_wrong_usage(self):
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(SOURCE, "bench", "run"), "--build", BUILD,
             "--libfabric", "/nonexistent", "--only", "send_lat/8"],
            capture_output=True, text=True, check=False, env=STOCK, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no libfabric.so.1 under /nonexistent", done.stderr)

    def test_unknown_provider_is_a_failed_row_with_its_reason(self):
        code, rows, _ = fabbench("-p", "nosuchprovider", "--only", "send_lat/8")
        self.assertEqual(code, 1)
        self.assertFalse(rows[0]["ok"])
        self.assertIn("fi_getinfo", rows[0]["note"])

    def test_measure_that_only_aperture_can_serve_says_so_for_another(self):
        code, rows, _ = fabbench("-p", "shm", "--only", "revoke*")
        self.assertEqual(code, 1)
        self.assertEqual([r["measure"] for r in rows], ["revoke_lat", "revoke_stopped_lat"])
        for row in rows:
            self.assertFalse(row["ok"])
            self.assertIn("skipped: it is Aperture alone", row["note"])

    def test_unknown_measure_is_wrong_usage(self):
        code, rows, err = fabbench("-p", "shm", "--only", "nosuchmeasure")
        self.assertEqual((code, rows), (2, []))
        self.assertIn("nosuchmeasure", err)


if __name__ == "__main__":
    if not os.access(FABBENCH, os.X_OK):
        sys.exit(f"{FABBENCH} was not built")
    cpus.skip_with_fewer_than_two()
    unittest.main()
