"""Refusals in libibverbs' words: what was refused, the rule, where the region was registered, and
the call or flag that would make it legal."""
import re
import unittest

from door import BUILD, Door

PROGRAM = f"{BUILD}/tests/verbs/verbs_calls_check"
WINDOWS = f"{BUILD}/tests/verbs/verbs_apart_check"
REFUSALS = f"{BUILD}/tests/verbs/verbs_refusals_check"


class Sentences(Door):
    def told_by(self, test: str, program=PROGRAM) -> list[str]:
        done = self.run_in(program, f"--gtest_filter={test}",
                           env=self.environment(APERTURE_LOG="warn"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [line for line in done.stderr.splitlines() if " warn: " in line]

    def assert_each_says(self, lines: list[str], *parts: str):
        for line in lines:
            for part in parts:
                self.assertIn(part, line)
            self.assertNotRegex(line, r"\bfi_|FI_")

    def test_both_ends_name_the_line_that_registered_and_the_call_that_would_help(self):
        lines = self.told_by("Special.a_region_with_an_iova*")
        self.assertEqual(len(lines), 2, lines)
        self.assert_each_says(lines, "the range leaves the MR or memory window",
                              "TestBody() at calls_test.cpp:", "give addresses inside the MR",
                              "ibv_reg_mr_iova()")

    def test_a_peer_does_not_claim_to_know_where_an_iova_begins(self):
        theirs = [line for line in self.told_by("Special.a_region_with_an_iova*")
                  if "was refused by" in line]
        self.assertEqual(len(theirs), 1)
        self.assertIn("the key names 64 bytes that count from where their owner has chosen",
                      theirs[0])
        self.assertNotIn("past its end", theirs[0])

    def test_a_key_of_nothing_has_a_remedy_too(self):
        lines = self.told_by("Special.a_null_region*")
        self.assertEqual(len(lines), 2, lines)
        self.assert_each_says(lines, "no MR and no bound memory window has this key",
                              "ibv_reg_mr() returned")

    def test_an_invalidation_names_the_window_at_both_ends(self):
        lines = [line for line in self.told_by("*do_not_end_the_window*", WINDOWS)
                 if "invalidat" in line.split("refused")[0]]
        self.assertEqual(len(lines), 2, lines)
        theirs = re.search(r"invalidation of key (0x[0-9a-f]+) refused", lines[0])
        ours = re.search(r"send with invalidate of 100 bytes and rkey (0x[0-9a-f]+) was refused",
                         lines[1])
        self.assertEqual(theirs.group(1), ours.group(1))

    def assert_in_order(self, lines: list[str], *parts: str):
        self.assertEqual(len(lines), len(parts), lines)
        for line, part in zip(lines, parts):
            self.assertIn(part, line)

    def test_a_refused_send_says_the_one_thing_that_was_wrong(self):
        full = "the send queue is full: max_send_wr is 64"
        self.assert_in_order(
            self.told_by("Refusals.each_send*", REFUSALS),
            "the queue pair is in RESET", "5 pieces, and max_send_sge is 4",
            "129 bytes inline, and max_inline_data is 128", "operation 4 takes no inline data",
            "7 bytes for an operation on 8", "2147483656 bytes, and max_msg_sz is 2147483648",
            "there is no operation 10", "send_flags 0x20 have unknown bits", "num_sge is -1",
            full, full)

    def test_a_refused_receive_says_the_one_thing_that_was_wrong(self):
        self.assert_in_order(
            self.told_by("Refusals.each_receive*", REFUSALS),
            "the queue pair is in RESET", "5 pieces, and max_sge is 4",
            "the queue is full: its max_wr is 64", "post them by ibv_post_srq_recv()")

    def test_a_message_too_long_says_both_lengths_at_both_ends(self):
        lines = self.told_by("Refusals.a_message_too_long*", REFUSALS)
        self.assertEqual(len(lines), 4, lines)
        for length, (one, other) in zip((64, 100000), (lines[:2], lines[2:])):
            self.assertIn(f"a message of {length} bytes", one)
            self.assertIn("a receive of 48", one)
            self.assertIn(f"send of {length} bytes was refused", other)
            self.assertIn("the receive there has room for 48", other)

    def test_a_receive_that_never_comes_is_told_once(self):
        lines = self.told_by("Refusals.a_receive_that_never_comes*", REFUSALS)
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("rnr_retry is 7", lines[0])

    def test_nothing_is_said_unless_it_is_asked_for(self):
        done = self.run_in(PROGRAM, "--gtest_filter=Special.*",
                           env=self.environment(APERTURE_LOG=""))
        self.assertEqual(done.returncode, 0)
        self.assertNotIn(" warn: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
