// What is said: nothing by default; with APERTURE_LOG one line for each refusal that says what to
// do, and for a refused remote access the sentence that explains it.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "doors/child.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

// Makes a few mistakes and one refused write, with stderr in the file that the parent named.
DOOR_ROLE(mistakes) {
  if (!say_to_parent()) return 1;
  NodePair p;
  Region region(p.b, 64, FI_REMOTE_READ);
  Op op;
  fi_send(p.a.ep(), "x", 1, nullptr, p.to_b + 12345, &op);
  fi_inject(p.a.ep(), "x", 1 << 20, p.to_b);
  p.a.post(fi_write, "12345678", 8, nullptr, p.to_b, region.remote().base, region.remote().key,
           &op);
  const int err = p.a.wait(&op).err;
  fi_cq_err_entry none{};
  const bool right = err == FI_EACCES && fi_cq_readerr(p.a.cq(), &none, 0) == -FI_EAGAIN;
  control.put(right);
  return right ? 0 : 2;
}

TEST(Log, is_silent_by_default) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  EXPECT_EQ(said_by("mistakes", "off"), "");
}

TEST(Log, says_what_was_refused_and_what_to_do) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  const std::string text = said_by("mistakes", "warn");
  EXPECT_NE(text.find("aperture:"), std::string::npos) << text;
  EXPECT_NE(text.find("fi_send"), std::string::npos) << text;
  EXPECT_NE(text.find("fi_inject"), std::string::npos) << text;
  // the refused write names the key and the right that was missing
  EXPECT_NE(text.find("write"), std::string::npos) << text;
  std::printf("%s", text.c_str());
}

bool says(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

// --- settings ---

constexpr const char* kWrongSettings[] = {"APERTURE_CMA=maybe",      "APERTURE_MR_CLOSE=lenent",
                                          "APERTURE_MR_DELAY_MS=5x", "APERTURE_RMA_EVENT=nothing",
                                          "APERTURE_MW_TYPE=2C",     "APERTURE_RDMA_CM=kernl",
                                          "FI_APERTURE_LOG=warn"};
constexpr const char* kRightSettings[] = {"APERTURE_CMA=deny",      "APERTURE_MR_CLOSE=strict",
                                          "APERTURE_MR_DELAY_MS=5", "APERTURE_RMA_EVENT=on",
                                          "APERTURE_MW_TYPE=2A",    "APERTURE_RDMA_CM=",
                                          "FI_APERTURE_IFACE=lo"};

template <size_t kCount>
void set_all(const char* const (&settings)[kCount]) {
  for (const char* setting : settings) putenv(const_cast<char*>(setting));
}

DOOR_ROLE(wrong_settings) {
  if (!say_to_parent()) return 1;
  set_all(kWrongSettings);
  get_info({});
  get_info({});
  return control.put(true) ? 0 : 2;
}
DOOR_ROLE(right_settings) {
  if (!say_to_parent()) return 1;
  set_all(kRightSettings);
  get_info({});
  return control.put(true) ? 0 : 2;
}
DOOR_ROLE(wrong_log_level) {
  if (!say_to_parent()) return 1;
  setenv("APERTURE_LOG", "wran", 1);
  get_info({});
  return control.put(true) ? 0 : 2;
}
DOOR_ROLE(wrong_modes_and_place) {
  if (!say_to_parent()) return 1;
  fi_info* info = nullptr;
  const Info hints = make_hints({});
  setenv("APERTURE_MR_MODE", "verbose", 1);
  if (fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &info) == 0) return 2;
  unsetenv("APERTURE_MR_MODE");
  setenv("FI_APERTURE_IFACE", "nosuch9", 1);
  const int there = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &info);
  return control.put(there) && there != 0 ? 0 : 3;
}

TEST(Log, names_each_setting_with_a_value_that_means_nothing_once) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  const std::string text = said_by("wrong_settings", "warn");
  for (const std::string setting : kWrongSettings) {
    const std::string named =
        setting.substr(0, setting[0] == 'F' ? setting.find('=') : setting.npos);
    const size_t at = text.find(named);
    EXPECT_NE(at, std::string::npos) << named << " in " << text;
    EXPECT_EQ(text.find(named, at + 1), std::string::npos) << named << " in " << text;
  }
}

TEST(Log, has_nothing_to_say_of_right_settings) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  EXPECT_EQ(said_by("right_settings", "warn"), "");
}

TEST(Log, names_a_level_that_is_none_and_warns_from_then_on) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  EXPECT_TRUE(says(said_by("wrong_log_level", "off"), "APERTURE_LOG=wran"));
}

TEST(Log, names_wrong_modes_and_a_wrong_place) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  const std::string text = said_by("wrong_modes_and_place", "warn");
  EXPECT_TRUE(says(text, "APERTURE_MR_MODE has 'verbose'")) << text;
  EXPECT_TRUE(says(text, "FI_APERTURE_IFACE=nosuch9")) << text;
}

// --- closing what is bound ---

DOOR_ROLE(closes_what_is_bound) {
  if (!say_to_parent()) return 1;
  Node node({.caps = FI_MSG | FI_RMA | FI_RMA_EVENT});
  uint8_t bytes[8];
  Fid<fid_mr> first = registered(node.domain(), bytes, 8, kAllAccess, 0x471);
  Fid<fid_mr> last = registered(node.domain(), bytes, 8, kAllAccess, 0x472);
  Fid<fid_cntr> counter = open_counter(node.domain());
  DOOR(fi_mr_bind(first.get(), &counter->fid, FI_REMOTE_WRITE));
  DOOR(fi_mr_bind(last.get(), &counter->fid, FI_REMOTE_WRITE));
  const bool closed =
      fi_close(&first.release()->fid) == 0 && fi_close(&counter.release()->fid) == 0;
  return control.put(closed) && closed ? 0 : 2;
}

TEST(Log, says_what_was_bound_to_what_is_closed) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  const std::string text = said_by("closes_what_is_bound", "warn");
  EXPECT_TRUE(says(text, "fi_close(mr): a counter")) << text;
  EXPECT_TRUE(says(text, "0x471")) << text;
  EXPECT_TRUE(says(text, "fi_close(cntr): it was bound to 1 region(s)")) << text;
  EXPECT_TRUE(says(text, "0x472")) << text;
}

// --- options ---

DOOR_ROLE(unknown_options) {
  if (!say_to_parent()) return 1;
  Node node;
  uint64_t value = 0;
  size_t len = sizeof value;
  const bool refused =
      fi_setopt(&node.ep()->fid, FI_OPT_ENDPOINT, 4711, &value, len) == -FI_ENOPROTOOPT &&
      fi_getopt(&node.ep()->fid, FI_OPT_ENDPOINT, 4712, &value, &len) == -FI_ENOPROTOOPT &&
      fi_control(&node.ep()->fid, 4713, &value) == -FI_ENOSYS &&
      fi_control(&node.cq()->fid, 4714, &value) == -FI_ENOSYS &&
      fi_control(&node.domain()->fid, 4715, &value) == -FI_ENOSYS &&
      fi_control(&node.av()->fid, 4716, &value) == -FI_ENOSYS &&
      fi_control(&node.fabric()->fid, 4717, &value) == -FI_ENOSYS &&
      fi_set_ops(&node.domain()->fid, "no_set_4718", 0, &value, nullptr) == -FI_ENOSYS &&
      fi_set_ops(&node.ep()->fid, "no_set_4719", 0, &value, nullptr) == -FI_ENOSYS;
  void* ops = nullptr;
  const bool not_opened =
      fi_open_ops(&node.domain()->fid, "no_set_4720", 0, &ops, nullptr) == -FI_ENOSYS &&
      fi_open_ops(&node.ep()->fid, "no_set_4721", 0, &ops, nullptr) == -FI_ENOSYS;
  const bool right = refused && not_opened && ops == nullptr;
  return control.put(right) && right ? 0 : 2;
}

TEST(Log, names_each_option_command_and_table_that_nobody_knows) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  const std::string text = said_by("unknown_options", "warn");
  for (int number = 4711; number <= 4721; ++number) {
    EXPECT_TRUE(says(text, std::to_string(number).c_str())) << number << " in " << text;
  }
}

// --- a sandbox without memory files ---

bool deny_memory_files() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(steps), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

DOOR_ROLE(without_memory_files) {
  if (!say_to_parent() || !deny_memory_files()) return 1;
  const Info info = get_info({});
  fid_fabric* fabric = nullptr;
  DOOR(fi_fabric(info->fabric_attr, &fabric, nullptr));
  const Fid<fid_fabric> owner(fabric);
  const int code = code_of(fi_domain, fabric, info.get());
  return control.put(code) && code == -FI_ENOSYS ? 0 : 2;
}

TEST(Log, says_that_there_is_no_memfd_create) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  const std::string text = said_by("without_memory_files", "warn");
  EXPECT_TRUE(says(text, "no memfd_create (ENOSYS)")) << text;
  EXPECT_TRUE(says(text, "fi_domain")) << text;
}

}  // namespace
}  // namespace aperture::doors
