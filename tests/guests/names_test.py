"""Provider names: programs that know other names than aperture, and those that want libfabric's own
verbs provider over aperture0.
"""
import random
import sys
import unittest

KNOWN_NAMES = sys.argv.pop(2)  # known_names.c
from guest import Guest  # noqa: E402

SIZES = {"64": "64", "65536": "64k"}


class Names(Guest):
    def pingpong(self, name: str, endpoint: str, **how):
        """Both ends check the data, and end well.

        After its figures each sends a farewell, waits for the other's and ends. ofi_rxm closes its
        queue pair as soon as it is told that the other has gone, without another look at its
        completions: the farewell must have been among those that it has seen.
        """
        for bytes_, size in SIZES.items():
            port = random.randrange(20000, 30000)
            common = ("fi_pingpong", "-p", name, "-e", endpoint, "-c", "-S", bytes_, "-I", "10")
            _, printed = self.run_pair((*common, "-B", str(port)),
                                       (*common, "-P", str(port), "127.0.0.1"), port, **how)
            self.assertRegex(printed, rf"(?m)^{size}\s+10\s")

    def listed(self, *command, env=None, **how) -> list[tuple[str, str]]:
        """The providers that fi_info lists, each with its fabric, in order and once."""
        output, status = self.ended(self.start("fi_info", *command, env=env, **how))
        self.assertIn(status, (0, 61), output)
        lines = [line.split(": ", 1) for line in output.splitlines() if ": " in line]
        names = [value for key, value in lines if key == "provider"]
        fabrics = [value for key, value in lines if key.strip() == "fabric"]
        return list(dict.fromkeys(zip(names, fabrics)))

    # --- run --as ---
    def test_pingpong_plays_under_another_name(self):
        for name, endpoint in (("tcp", "rdm"), ("tcp", "msg"), ("sockets", "rdm"),
                               ("verbs;ofi_rxm", "rdm")):
            with self.subTest(name=name, endpoint=endpoint):
                options = ("--as", name)
                self.assertEqual(self.listed("-p", name, options=options), [(name, "aperture")])
                self.pingpong(name, endpoint, options=options)

    def test_the_other_name_is_said_in_one_line_at_start(self):
        said = self.run_guest("true", options=("--as", "tcp")).splitlines()
        self.assertEqual([line for line in said if "tcp" in line],
                         ["aperture: answering under the name tcp too, which is another provider's "
                          "own"])

    def test_without_the_option_there_is_no_other_name(self):
        for name in ("tcp", "sockets", "verbs;ofi_rxm"):
            self.assertEqual(self.listed("-p", name), [], name)
        self.assertEqual(self.listed(), [("aperture", "aperture")])
        self.assertEqual(self.listed(env={"APERTURE_AS": "tcp"}), [("aperture", "aperture")])

    def test_whoever_asks_for_no_name_finds_both_and_whoever_asks_for_one_finds_that(self):
        for name in ("tcp", "verbs;ofi_rxm"):
            options = ("--as", name)
            self.assertEqual(sorted(self.listed(options=options)),
                             [("aperture", "aperture"), (name, "aperture")])
            self.assertEqual(self.listed("-p", "aperture", options=options),
                             [("aperture", "aperture")])
            self.assertEqual(self.listed("-p", "shm", options=options), [])

    def test_layers_of_the_other_name_mean_it_and_other_layers_do_not(self):
        options = ("--as", "verbs;ofi_rxm")
        for name in ("verbs;ofi_rxm", "ofi_rxm;verbs", "ofi_rxm", "VERBS;ofi_rxm"):
            self.assertEqual(self.listed("-p", name, options=options),
                             [("verbs;ofi_rxm", "aperture")], name)
        for name in ("tcp;ofi_rxm", "verbs;ofi_rxd"):
            self.assertEqual(self.listed("-p", name, options=options), [], name)

    def test_the_other_name_stands_before_the_provider_whose_it_is(self):
        env = {"FI_PROVIDER": "tcp,aperture"}
        self.assertNotIn(("tcp", "aperture"), self.listed("-p", "tcp", env=env))
        self.assertEqual(self.listed("-p", "tcp", env=env, options=("--as", "tcp")),
                         [("tcp", "aperture")])

    def test_a_program_that_knows_four_names_runs_under_one_of_them(self):
        output, status = self.ended(self.start(KNOWN_NAMES))
        self.assertEqual((status, output.splitlines()[-1]), (3, "not supported"))
        for name in ("cxi", "efa", "tcp", "sockets"):
            told = self.run_guest(KNOWN_NAMES, options=("--as", name)).splitlines()
            self.assertEqual(told[-2:], [f"{name} aperture aperture0", "written"])

    def test_a_second_run_inside_keeps_the_other_name(self):
        told = self.run_guest(f"{self.tree}/bin/aperture", "run", "--", KNOWN_NAMES,
                              options=("--as", "tcp")).splitlines()
        self.assertEqual(told[-2:], ["tcp aperture aperture0", "written"])

    # --- libfabric's own verbs provider ---
    def test_nobody_is_led_to_the_verbs_provider_unasked(self):
        self.assertEqual(self.listed("-t", "FI_EP_RDM"), [("aperture", "aperture")])
        self.assertEqual(self.listed("-t", "FI_EP_MSG"), [("aperture", "aperture")])

    def test_a_user_who_lists_the_verbs_provider_has_it_over_aperture0(self):
        for choice in ("aperture,verbs,ofi_rxm", "verbs", "verbs;ofi_rxm"):
            with self.subTest(choice=choice):
                env = {"FI_PROVIDER": choice}
                (name, fabric), = self.listed("-p", "verbs;ofi_rxm", env=env)
                self.assertEqual(name, "verbs;ofi_rxm")
                self.assertNotEqual(fabric, "aperture")
                self.pingpong("verbs;ofi_rxm", "rdm", env=env)

    def test_a_choice_of_the_verbs_provider_alone_is_said_to_go_over_the_device(self):
        said = self.run_guest("true", env={"FI_PROVIDER": "verbs;ofi_rxm"})
        self.assertIn("FI_PROVIDER=verbs;ofi_rxm is set, so libfabric goes over aperture0 by its "
                      "own verbs provider", said)
        self.assertNotIn("will not choose Aperture", said)


if __name__ == "__main__":
    unittest.main()
