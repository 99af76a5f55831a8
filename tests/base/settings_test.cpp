// The table of settings: what is legal, and what is said of the rest.
#include "base/settings.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/forked.hpp"

namespace aperture {
namespace {

// All that is said of these lines of an environment.
std::vector<std::string> faults(std::vector<std::string> lines) {
  std::vector<char*> environment;
  environment.reserve(lines.size() + 1);
  for (std::string& line : lines) environment.push_back(line.data());
  environment.push_back(nullptr);
  return faults_of_settings(environment.data());
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(Settings, legal_and_empty_values_and_what_others_set_are_no_faults) {
  const std::vector<std::string> lines = {"APERTURE_LOG=warn",
                                          "APERTURE_LOG=",
                                          "APERTURE_EXPLAIN=1",
                                          "APERTURE_AS=tcp",
                                          "APERTURE_AS=verbs;ofi_rxm",
                                          "APERTURE_CMA=deny",
                                          "APERTURE_CMA=allow",
                                          "APERTURE_SHARE=/tmp",
                                          "APERTURE_DEVICE_SHARE=on",
                                          "APERTURE_MR_MODE=local, virt_addr,verbs",
                                          "APERTURE_MR_MODE= none ",
                                          "APERTURE_MR_CLOSE=lenient",
                                          "APERTURE_MR_DELAY_MS=20",
                                          "APERTURE_RMA_EVENT=off",
                                          "APERTURE_MW_TYPE=2A",
                                          "APERTURE_RDMA_CM=kernel",
                                          "APERTURE_CHECKSUMS=on",
                                          "APERTURE_CM_PORT=1",
                                          "APERTURE_CM_PORT=65535",
                                          "APERTURE_SILENCE_MS=1000",
                                          "APERTURE_SILENCE_MS=3600000",
                                          "FI_APERTURE_IFACE=lo",
                                          "FI_APERTURE_IFACE=127.0.0.1",
                                          "APERTURE_PRIORITY=f/2.8",
                                          "HOME=/root",
                                          "nothing"};
  EXPECT_EQ(faults(lines), std::vector<std::string>());
}

TEST(Settings, a_value_that_means_nothing_is_named_with_what_is_legal) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"APERTURE_LOG=loud", "one of off, warn, info, debug, trace"},
      {"APERTURE_EXPLAIN=maybe", "set it to 1"},
      {"APERTURE_AS=aperture", "the name of another provider"},
      {"APERTURE_AS=ofi_rxm", "the name of another provider"},
      {"APERTURE_AS=off_coll", "the name of another provider"},
      {"APERTURE_AS=tcp;verbs", "the name of another provider"},
      {"APERTURE_AS=verbs;ofi_", "the name of another provider"},
      {"APERTURE_AS=verbs;ofi_rxm;ofi_mrail", "the name of another provider"},
      {"APERTURE_AS=tcp,sockets", "the name of another provider"},
      {"APERTURE_CMA=x", "one of deny, allow"},
      {"APERTURE_SHARE=/dev/null", "a directory that containers of this host have mounted"},
      {"APERTURE_DEVICE_SHARE=yes", "one of on, off"},
      {"APERTURE_MR_MODE=lokal", "some of local, raw"},
      {"APERTURE_MR_MODE=local,none", "some of local, raw"},
      {"APERTURE_MR_MODE=local,", "some of local, raw"},
      {"APERTURE_MR_CLOSE=Lenient", "lenient"},
      {"APERTURE_MR_DELAY_MS=20ms", "a whole number"},
      {"APERTURE_MR_DELAY_MS=-1", "a whole number"},
      {"APERTURE_MR_DELAY_MS=99999999999999999999", "a whole number"},
      {"APERTURE_RMA_EVENT=no", "one of on, off"},
      {"APERTURE_MW_TYPE=2", "one of 2A, 2B"},
      {"APERTURE_RDMA_CM=user", "set it to kernel"},
      {"APERTURE_CHECKSUMS=crc", "one of on, off"},
      {"APERTURE_CM_PORT=0", "a port, from 1 to 65535"},
      {"APERTURE_CM_PORT=65536", "a port, from 1 to 65535"},
      {"APERTURE_CM_PORT=-4791", "a port, from 1 to 65535"},
      {"APERTURE_SILENCE_MS=0", "a whole number from 1000 to 3600000"},
      {"APERTURE_SILENCE_MS=999", "a whole number from 1000 to 3600000"},
      {"APERTURE_SILENCE_MS=3600001", "a whole number from 1000 to 3600000"},
      {"FI_APERTURE_IFACE=nonsense", "an interface of this host"},
  };
  for (const auto& [line, legal] : cases) {
    const std::vector<std::string> said = faults({line});
    ASSERT_EQ(said.size(), 1u) << line;
    EXPECT_EQ(said[0].rfind(std::string(line) + " means nothing, so ", 0), 0u) << said[0];
    EXPECT_TRUE(has(said[0], legal)) << said[0];
  }
}

TEST(Settings, a_name_that_is_nearly_one_of_ours_is_named_with_the_one_that_is_meant) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"APERTURE_MRMODE=local", "APERTURE_MR_MODE"},
      {"APERTURE_MR_MODES=local", "APERTURE_MR_MODE"},
      {"FI_APERTURE_LOG=warn", "APERTURE_LOG"},
      {"APERTURE_IFACE=lo", "FI_APERTURE_IFACE"},
      {"APERTURE_EXPLIAN=1", "APERTURE_EXPLAIN"},
      {"APERTURE_Cma=deny", "APERTURE_CMA"},
      {"FI_APERTURE_SOMETHING_ELSE=1", "man 7 fi_aperture"},
  };
  for (const auto& [line, meant] : cases) {
    const std::vector<std::string> said = faults({line});
    ASSERT_EQ(said.size(), 1u) << line;
    EXPECT_TRUE(has(said[0], "no setting of Aperture has that name")) << said[0];
    EXPECT_TRUE(has(said[0], meant)) << said[0];
  }
}

TEST(Settings, readers_take_what_is_legal_and_nothing_else) {
  EXPECT_TRUE(test::holds_in_child([] {
    ::setenv("APERTURE_CMA", "deny", 1);
    ::setenv("APERTURE_MR_DELAY_MS", "25", 1);
    ::setenv("APERTURE_MR_MODE", "", 1);
    return setting_is("APERTURE_CMA", "deny") && !setting_is("APERTURE_CMA", "allow") &&
           setting_number("APERTURE_MR_DELAY_MS") == 25 &&
           setting_text("APERTURE_MR_MODE") == nullptr;
  }));
  EXPECT_TRUE(test::holds_in_child([] {
    ::setenv("APERTURE_CMA", "denied", 1);
    ::setenv("APERTURE_MR_DELAY_MS", "25 s", 1);
    ::unsetenv("APERTURE_MR_MODE");
    return !setting_is("APERTURE_CMA", "deny") && !setting_is("APERTURE_CMA", "allow") &&
           setting_number("APERTURE_MR_DELAY_MS") == 0 &&
           setting_text("APERTURE_MR_MODE") == nullptr;
  }));
}

// What a process with that log level says of a wrong setting when a door is opened twice.
std::string said_at_the_door(const char* level) {
  const std::vector<char> text = test::written_by_child([level](int to) {
    ::clearenv();
    ::setenv("APERTURE_CMA", "x", 1);
    ::setenv("APERTURE_MR_MODE", "x", 1);  // a door refuses this one by itself
    if (level != nullptr) ::setenv("APERTURE_LOG", level, 1);
    ::dup2(to, STDERR_FILENO);
    ::close(to);
    check_settings();
    check_settings();
  });
  return {text.begin(), text.end()};
}

TEST(Settings, a_door_says_a_fault_once_and_unasked) {
  for (const char* level : {"", "warn"}) {
    const std::string said = said_at_the_door(level);
    EXPECT_TRUE(has(said, "APERTURE_CMA=x means nothing")) << said;
    // the door's refusal names it where refusals are logged
    const bool is_refused_aloud = std::strcmp(level, "warn") == 0;
    EXPECT_NE(has(said, "APERTURE_MR_MODE=x means nothing"), is_refused_aloud) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), is_refused_aloud ? 1 : 2) << said;
  }
  EXPECT_EQ(said_at_the_door("off"), "");
}

TEST(Settings, a_wrong_log_level_is_among_the_faults) {
  const std::string said = said_at_the_door("loud");
  EXPECT_TRUE(has(said, "APERTURE_LOG=loud means nothing, so it is taken as warn")) << said;
}

}  // namespace
}  // namespace aperture
