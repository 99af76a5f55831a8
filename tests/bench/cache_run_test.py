"""The bench of registration caches: every row of Aperture's own comes out, a cache that is wrong is
not measured, and what a peer's would be made of is looked at before anything runs.

Figures are not validated here.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import cpus

SOURCE = os.environ.get("APERTURE_SOURCE_DIR") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.environ.get("APERTURE_BUILD_DIR") or os.path.join(SOURCE, "build", "release")
CACHEBENCH = os.path.join(BUILD, "bench", "cachebench")
DEAF = os.path.join(BUILD, "tests", "bench", "libbench_deaf_cache.so")
CHANGES = ["cache_unmap_lat", "cache_unmap_lat_unwatched", "cache_drop_lat",
           "cache_drop_lat_unwatched"]
ALL = ["cache_hit_lat", "cache_hit_lat_many", "cache_miss_lat", "cache_miss_lat_heap"] + CHANGES

sys.path.insert(0, os.path.join(SOURCE, "bench"))

from runner import builds, caches  # noqa: E402
from runner.goals import MEASURES  # noqa: E402
from runner.main import lineup_of  # noqa: E402
from runner.subjects import Settings  # noqa: E402

HIT = [m for m in MEASURES if m.name == "cache_hit_lat"]


def cachebench(*words):
    done = subprocess.run([CACHEBENCH, "--json", cpus.OPTION, "--count", "256", *words],
                          capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, [json.loads(x) for x in done.stdout.splitlines()], done.stderr


def run(*words):
    return subprocess.run(
        [sys.executable, "-B", os.path.join(SOURCE, "bench", "run"), "--build", BUILD, cpus.OPTION,
         "--quick", "--seconds", "0.02", "--rounds", "1", "--json", *words],
        capture_output=True, text=True, check=False, timeout=100)


class CacheBench(unittest.TestCase):
    def every_row_comes_out(self, monitor):
        code, rows, err = cachebench("--monitor", monitor)
        why_not = [r["note"] for r in rows if f"there is no {monitor} here" in r["note"]]
        if why_not:
            self.skipTest(why_not[0])
        self.assertEqual(code, 0, err + str([r for r in rows if not r["ok"]]))
        self.assertEqual([r["measure"] for r in rows], ALL)
        for row in rows:
            self.assertGreater(row["value"], 0, row)
            self.assertEqual((row["unit"], row["size"]), ("ns", 4096), row)
            self.assertTrue(row["note"].startswith(f"Aperture, {monitor}"), row)

    def test_every_row_comes_out_by_userfaultfd(self):
        self.every_row_comes_out("userfaultfd")

    def test_every_row_comes_out_by_memhooks(self):
        self.every_row_comes_out("memhooks")

    def test_without_a_cache_there_are_changes_and_no_hits(self):
        code, rows, err = cachebench("--cache", "none", "--only", ",".join(CHANGES))
        self.assertEqual((code, [r["measure"] for r in rows]), (0, CHANGES), err)
        code, rows, _ = cachebench("--cache", "none", "--only", "cache_hit_lat")
        self.assertEqual((code, rows[0]["ok"]), (1, False))
        self.assertIn("there is no cache", rows[0]["note"])

    def test_cache_that_does_not_notice_changes_has_hits_and_nothing_more(self):
        code, rows, _ = cachebench("--cache", DEAF, "--monitor", "none")
        self.assertEqual(code, 1)
        seen = {r["measure"]: r for r in rows}
        for name in ("cache_hit_lat", "cache_hit_lat_many", "cache_unmap_lat_unwatched"):
            self.assertTrue(seen[name]["ok"], seen[name])
            self.assertEqual(seen[name]["note"], "deaf 1.0, none")
        for name in ("cache_miss_lat", "cache_miss_lat_heap", "cache_unmap_lat", "cache_drop_lat"):
            self.assertFalse(seen[name]["ok"], seen[name])
            self.assertIn("it is wrong: 128 of 128 pages", seen[name]["note"])

    def test_what_is_no_module_or_no_monitor_is_a_failed_row_with_its_reason(self):
        for words, why in ((("--cache", "/nonexistent.so"), "/nonexistent.so"),
                           (("--monitor", "nosuch"), "there is no nosuch here")):
            code, rows, _ = cachebench("--only", "cache_hit_lat", *words)
            self.assertEqual((code, rows[0]["ok"]), (1, False))
            self.assertIn(why, rows[0]["note"])

    def test_run_names_the_peers_that_it_leaves_out(self):
        done = run("--subjects", "aperture-memhooks,bare,ucx-hooks",
                   "--only", "cache_hit_lat,cache_drop_lat")
        got = json.loads(done.stdout)
        self.assertEqual(got["facts"]["caches left out"],
                         "libfabric (no --peer libfabric=PATH), ucx (no --peer ucx=PATH)")
        hit, drop = (m["subjects"] for m in got["measures"])
        self.assertEqual(list(hit), ["aperture-memhooks", "ucx-hooks"])
        self.assertEqual(list(drop), ["aperture-memhooks", "bare", "ucx-hooks"])
        self.assertGreater(drop["bare"]["median"], 0)
        self.assertIn("--peer ucx=PATH", hit["ucx-hooks"]["failure"])

    def test_peer_that_cannot_be_made_is_wrong_usage(self):
        for word, why in (("ucx=/nonexistent", "no include/ucs/memory/rcache.h under /nonexistent"),
                          ("libfabric=/nonexistent", "/nonexistent is no source tree"),
                          ("shm=/usr", "libfabric=PATH and ucx=PATH are known"),
                          ("ucx", "libfabric=PATH and ucx=PATH are known")):
            done = run("--only", "cache_hit_lat", "--peer", word)
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)


class Peers(unittest.TestCase):
    def test_peers_that_are_given_stand_beside_our_own(self):
        for peers, expected in (((), []), (("ucx",), ["ucx-hooks"]),
                                (("libfabric",), ["libfabric-userfaultfd", "libfabric-memhooks"])):
            settings = Settings(build="", modules={x: f"{x}.so" for x in peers})
            own = ["aperture", "aperture-memhooks"]
            self.assertEqual([x.name for x in lineup_of("", HIT, settings)], own + expected)
            self.assertEqual([x.name for x in lineup_of("aperture", HIT, settings)],
                             ["aperture"] + expected)

    def test_library_of_a_prefix_is_linked_and_else_the_machines_own(self):
        with tempfile.TemporaryDirectory() as prefix:
            header = os.path.join(prefix, "include", "ucs", "memory", "rcache.h")
            with self.assertRaisesRegex(builds.NoBuild, "rcache.h"):
                caches.ucx_words(prefix)
            os.makedirs(os.path.dirname(header))
            open(header, "w", encoding="ascii").close()
            self.assertNotIn(f"-L{prefix}/lib", caches.ucx_words(prefix))
            os.makedirs(os.path.join(prefix, "lib"))
            open(os.path.join(prefix, "lib", "libucs.so.0"), "w", encoding="ascii").close()
            self.assertIn(f"-L{prefix}/lib", caches.ucx_words(prefix))

    def test_compiler_that_fails_is_quoted(self):
        with self.assertRaisesRegex(builds.NoBuild, "it: x.c:1: error: no"):
            caches._run(["sh", "-c", "echo 'in x.c'; echo 'x.c:1: error: no' >&2; exit 1"], "it")


if __name__ == "__main__":
    if not os.access(CACHEBENCH, os.X_OK):
        sys.exit(f"{CACHEBENCH} was not built")
    cpus.skip_with_fewer_than_two()
    unittest.main()
