"""The programs of Debian's libfabric-bin: fi_info and fi_pingpong."""
import random
import unittest

from guest import DIRECT_COPIES, Guest, users


class Fabtools(Guest):
    def pingpong(self, *options, endpoint="rdm", **how) -> str:
        port = str(random.randrange(20000, 30000))
        common = ("fi_pingpong", "-p", "aperture", "-e", endpoint, "-c", *options)
        server = self.start(*common, "-B", port, **how)
        self.wait_until_listening(int(port))
        client = self.run_guest(*common, "-P", port, "127.0.0.1", **how)
        self.output_of(server)
        return client

    def test_fi_info_lists_the_provider(self):
        for user in users():
            listed = self.run_guest("fi_info", "-p", "aperture", user=user)
            self.assertIn("provider: aperture", listed)
            self.assertIn("type: FI_EP_RDM", listed)
            self.assertIn("type: FI_EP_MSG", listed)
            self.assertIn("type: FI_EP_DGRAM", listed)
            self.assertNotIn("ofi_rxm", listed)
            self.assertNotIn("ofi_rxd", listed)

    def test_without_aperture_run_there_is_no_such_provider(self):
        listed = self.start("sh", "-c", "unset FI_PROVIDER_PATH FI_PROVIDER; fi_info -p aperture")
        output, _ = listed.communicate(timeout=20)
        self.assertIn("fi_getinfo: -61", output)

    def test_pingpong_checks_the_data_of_all_sizes(self):
        for user in users():
            rows = self.pingpong("-S", "all", "-I", "20", user=user)
            for size in ("64", "1k", "64k", "1m"):
                self.assertRegex(rows, rf"(?m)^{size}\s+20\s", rows)

    def test_pingpong_plays_with_tags(self):
        self.assertRegex(self.pingpong("-m", "tagged", "-S", "1024"), r"(?m)^1k\s")

    def test_pingpong_plays_where_direct_copies_are_denied(self):
        for how in ({"denied": DIRECT_COPIES}, {"env": {"APERTURE_CMA": "deny"}}):
            rows = self.pingpong("-S", "1048576", **how)
            self.assertRegex(rows, r"(?m)^1m\s")

    def test_connected_pingpong_checks_the_data_of_all_sizes(self):
        for user in users():
            rows = self.pingpong("-S", "all", "-I", "20", endpoint="msg", user=user)
            for size in ("64", "1k", "64k", "1m"):
                self.assertRegex(rows, rf"(?m)^{size}\s+20\s", rows)

    def test_datagram_pingpong_checks_the_data_of_all_sizes(self):
        # every client of it offers FI_MSG_PREFIX
        for user in users():
            rows = self.pingpong("-S", "all", "-I", "20", endpoint="dgram", user=user)
            for size in ("64", "1k", "4k"):
                self.assertRegex(rows, rf"(?m)^{size}\s+20\s", rows)
            self.assertNotRegex(rows, r"(?m)^6k\s", "more than max_msg_size")

    def test_connected_pingpong_where_direct_copies_are_denied(self):
        for how in ({"denied": DIRECT_COPIES}, {"env": {"APERTURE_CMA": "deny"}}):
            rows = self.pingpong("-S", "1048576", endpoint="msg", **how)
            self.assertRegex(rows, r"(?m)^1m\s")


if __name__ == "__main__":
    unittest.main()
