"""Every public function of the real libibverbs is answered, under the version that it has there."""
import re
import subprocess
import unittest

from door import LIBRARY, Door

# They take no object of a device: the real library serves them, ours does not stand in front.
LEFT_TO_THE_REAL = {
    "ibv_copy_ah_attr_from_kern", "ibv_copy_path_rec_from_kern", "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern", "ibv_dofork_range", "ibv_dontfork_range", "ibv_event_type_str",
    "ibv_fork_init", "ibv_get_sysfs_path", "ibv_is_fork_initialized", "ibv_node_type_str",
    "ibv_port_state_str", "ibv_rate_to_mbps", "ibv_rate_to_mult", "ibv_read_sysfs_file",
    "ibv_register_driver", "ibv_wc_status_str", "mbps_to_ibv_rate", "mult_to_ibv_rate",
}
# Private functions that programs of rdma-core's own call with a context.
PRIVATE = {"ibv_query_gid_type"}
NODES = ({f"IBVERBS_1.{n}" for n in (0, 1, *range(5, 19))} |
         {f"IBVERBS_PRIVATE_{n}" for n in (34, 57, 59, 64, 65)})


def symbols(library: str) -> dict[str, set[str]]:
    """The versions of each defined dynamic symbol."""
    text = subprocess.run(["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True,
                          check=True).stdout
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[6] not in ("UND", "Ndx", "ABS"):
            name, _, version = words[7].replace("@@", "@").partition("@")
            found.setdefault(name, set()).add(version)
    return found


class Exports(Door):
    def setUp(self):
        super().setUp()
        real = self.call("readlink", "-f", f"{self.real_folder()}/libaperture-real-ibverbs.so.1")
        self.real = symbols(real.stdout.strip())
        self.ours = symbols(LIBRARY)

    def test_each_public_function_is_ours_or_needs_no_object(self):
        public = {name for name, versions in self.real.items()
                  if any(not v.startswith("IBVERBS_PRIVATE") for v in versions)}
        self.assertGreater(len(public), 70)
        self.assertEqual(public - set(self.ours) - LEFT_TO_THE_REAL, set())
        self.assertEqual(set(self.ours) & LEFT_TO_THE_REAL, set())

    def test_each_has_the_newest_version_of_the_real_one(self):
        for name, versions in self.real.items():
            if name not in self.ours or name in PRIVATE:
                continue
            # IBVERBS_1.0 was another ABI: what is left of it never meets our device
            newest = max(versions, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
            self.assertIn(newest, self.ours[name], name)

    def test_each_version_is_defined(self):
        text = subprocess.run(["readelf", "-V", "-W", LIBRARY], capture_output=True, text=True,
                              check=True).stdout
        defined = text.split(".gnu.version_r")[0]
        self.assertEqual(NODES - set(re.findall(r"Name: (IBVERBS_\S+)", defined)), set())

    def test_the_private_function_of_tools_is_in_the_private_node_of_each_release(self):
        for name in PRIVATE:
            self.assertEqual(self.ours[name], {v for v in NODES if "PRIVATE" in v})

    def test_nothing_of_cpp_is_exported(self):
        self.assertEqual([name for name in self.ours if name.startswith("_Z")], [])


if __name__ == "__main__":
    unittest.main()
