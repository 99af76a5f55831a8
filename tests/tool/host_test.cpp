// What `aperture info` says of copies between processes, for each answer that a host may give.
#include "tool/host.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace aperture::tool {
namespace {

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(CmaFact, copies_that_work_need_no_advice) {
  for (const int yama : {0, 1}) {
    const Fact fact = cma_fact(0, yama, true);
    EXPECT_EQ(fact.state, Fact::State::yes);
    EXPECT_TRUE(fact.why_not.empty() && fact.gain.empty());
    EXPECT_EQ(has(fact.text, "APERTURE_CMA=allow"), yama == 1);
  }
  EXPECT_FALSE(has(cma_fact(0, std::nullopt, true).text, "APERTURE_CMA"));
  EXPECT_FALSE(has(cma_fact(0, 1, false).text, "APERTURE_CMA"));  // root's
}

TEST(CmaFact, each_scope_of_yama_has_its_own_remedy) {
  const Fact siblings = cma_fact(EPERM, 1, false);
  EXPECT_TRUE(has(siblings.why_not, "ptrace_scope is 1"));
  EXPECT_TRUE(has(siblings.gain, "APERTURE_CMA=allow"));
  EXPECT_TRUE(has(siblings.gain, "sysctl kernel.yama.ptrace_scope=0"));
  const Fact root = cma_fact(EPERM, 2, true);
  EXPECT_TRUE(has(root.why_not, "only root"));
  EXPECT_TRUE(has(root.gain, "run them as root"));
  EXPECT_FALSE(has(root.gain, "APERTURE_CMA"));
  const Fact nobody = cma_fact(EPERM, 3, false);
  EXPECT_TRUE(has(nobody.why_not, "root's neither"));
  EXPECT_TRUE(has(nobody.gain, "only a reboot"));
  EXPECT_FALSE(has(nobody.gain, "sysctl"));
}

TEST(CmaFact, what_is_not_yamas_fault_is_not_laid_at_its_door) {
  EXPECT_TRUE(has(cma_fact(ENOSYS, 1, false).why_not, "has no process_vm_readv"));
  for (const Fact& fact : {cma_fact(EPERM, 1, true), cma_fact(EPERM, 0, false),
                           cma_fact(EPERM, std::nullopt, false)}) {
    EXPECT_TRUE(has(fact.why_not, "seccomp"));
    EXPECT_FALSE(has(fact.gain, "yama"));
  }
}

}  // namespace
}  // namespace aperture::tool
