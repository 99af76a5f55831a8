// The steps again in processes that are set up as users' are: with another allocator, linked
// statically, and with the hooks of UCX and of Open MPI and libfabric's own monitors, which came
// before ours or come later.
#include <dlfcn.h>
#include <sys/wait.h>

#include <cstdlib>

#include "libfabric_monitor.h"
#include "steps.hpp"

namespace aperture::regcache::test {
namespace {

constexpr size_t kLen = 8 * kPage;
constexpr int kNotHere = 77;
constexpr const char* kNothingOfOurs = "/bin/true";

// Runs the child and hands back its exit status, or 128 and the signal that ended it.
template <typename Child>
int status_of(Child&& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

const std::string kAll = "By/*", kByHooks = "By/*/memhooks";

int run(const char* program, const char* preload, const std::string& steps) {
  const std::string filter = "--gtest_filter=" + steps;
  return status_of([&] {
    if (preload != nullptr) ::setenv("LD_PRELOAD", preload, 1);
    ::execl(program, program, filter.c_str(), "--gtest_brief=1", nullptr);
    return 126;
  });
}

// Some can be loaded with a process alone.
bool is_there(const char* library) {
  return status_of([&] {
           if (::dlopen(library, RTLD_NOW | RTLD_LOCAL) != nullptr) return 0;
           return std::strstr(::dlerror(), "No such file") != nullptr ? kNotHere : 0;
         }) == 0;
}

class Allocators : public testing::TestWithParam<const char*> {};

TEST_P(Allocators, step_18_all_steps_pass) {
  if (!is_there(GetParam())) GTEST_SKIP() << "no library here: " << GetParam();
  EXPECT_EQ(run(STEPS, GetParam(), kAll), 0);
  EXPECT_EQ(run(RACES, GetParam(), kByHooks), 0);
}
std::string name_of_library(const testing::TestParamInfo<const char*>& info) {
  const std::string name(info.param);
  return name.substr(0, name.find('.'));
}
INSTANTIATE_TEST_SUITE_P(By, Allocators,
                         testing::Values("libjemalloc.so.2", "libtcmalloc_minimal.so.4",
                                         "libmimalloc.so.2.0"),
                         name_of_library);

TEST(Static, step_18_a_program_that_is_linked_statically_has_no_hooks_and_is_right) {
  EXPECT_EQ(run(STATIC_STEPS, nullptr, "*"), 0);
}

// --- hooks of others ---

// UCX writes over code (bistro), or into the same words as we do (reloc). The latter ends a process
// in which it loads a library whose constructor frees what the C library has allocated for it: the
// C library allocates by UCX then, and the new library does not free by it yet. Its module for ROCm
// brings such a one (libnuma).
struct Others {
  const char* whose;
  const char* ucx_mode;
  const char* ucx_modules;
};

class HooksOf : public testing::TestWithParam<Others> {
 protected:
  void SetUp() override {
    ::setenv("APERTURE_TEST_HOOKS_OF", GetParam().whose, 1);
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", GetParam().ucx_mode, 1);
    ::setenv("UCX_MODULES", GetParam().ucx_modules, 1);
    ::setenv("UCX_HANDLE_ERRORS", "none", 1);
    const int status = run(kNothingOfOurs, HOOKS_OF_OTHERS, "");
    if (status == kNotHere) GTEST_SKIP() << "no library here of " << GetParam().whose;
    if (status != 0) {
      GTEST_SKIP() << "theirs alone end a process in which nothing of ours is: status " << status;
    }
  }
  void TearDown() override {
    for (const char* name :
         {"APERTURE_TEST_HOOKS_OF", "UCX_MEM_MMAP_HOOK_MODE", "UCX_MODULES", "UCX_HANDLE_ERRORS"}) {
      ::unsetenv(name);
    }
  }
};

TEST_P(HooksOf, step_19_all_steps_pass_after_theirs) {
  // UCX takes four arguments of mremap's and loses the fifth, with our hooks and without
  const std::string without =
      std::strcmp(GetParam().whose, "ucx") == 0 ? "-*step_05*:*step_21*:*step_23*" : "";
  EXPECT_EQ(run(STEPS, HOOKS_OF_OTHERS, kAll + without), 0);
  EXPECT_EQ(run(RACES, HOOKS_OF_OTHERS, kByHooks + without), 0);
}

// One cache of hooks in this process, while theirs come.
class Later : public StepsBy {
 public:
  Later() : StepsBy(MonitorKind::memhooks) {}
  void TestBody() override {
    for (int i = 0; i < 3; ++i) {
      go_through();
      if (i == 0) {
        ASSERT_NE(::dlopen(HOOKS_OF_OTHERS, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
      }
    }
    EXPECT_GT(cache_->counts().hits, 0u);
    cache_->trim();
    monitor_.reset();
    ::munmap(map(kPage), kPage);
  }

 private:
  void go_through() {
    uint8_t* at = kept(kLen);
    ASSERT_EQ(::munmap(at, kLen), 0);
    ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
    fill(at, kLen);
    keep(at, kLen);
    ASSERT_EQ(map(kLen, at, MAP_FIXED), at);
    fill(at, kLen);
    keep(at, kLen);
    ASSERT_EQ(::madvise(at, kLen, MADV_DONTNEED), 0);
    fill(at, kLen);
    keep(at, kLen);
    auto* const to = static_cast<uint8_t*>(::mremap(at, kLen, 64 * kLen, MREMAP_MAYMOVE));
    ASSERT_NE(to, MAP_FAILED);
    fill(to, kLen);
    expect_exact(to, kLen);
    ::munmap(to, 64 * kLen);
    for (int i = 0; i < 10; ++i) {
      auto* const block = static_cast<uint8_t*>(std::malloc(200'000));
      fill(block, 200'000);
      expect_exact(block, 200'000);
      std::free(block);
    }
  }
};

TEST_P(HooksOf, step_19_theirs_come_later) {
  const int status = status_of([] {
    Later later;
    later.TestBody();
    return testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(status, 0);
}

// --- libfabric's own cache ---

#if defined(LIBFABRIC_STEPS)
constexpr bool kHasLibfabrics = true;
#else
constexpr bool kHasLibfabrics = false;
#define LIBFABRIC_STEPS "/bin/true"
#endif

class LibfabricsOwn : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!kHasLibfabrics) GTEST_SKIP() << "no library here: libfabric.a, with its monitors in it";
  }
  void TearDown() override { ::unsetenv(kMonitorOfLibfabric); }
};

TEST_P(LibfabricsOwn, step_19_all_steps_pass_after_theirs) {
  ::setenv(kMonitorOfLibfabric, GetParam(), 1);
  const int status = run(LIBFABRIC_STEPS, nullptr, kAll);
  if (status == kNotHere) GTEST_SKIP() << "no kernel feature: " << GetParam();
  EXPECT_EQ(status, 0);
}
INSTANTIATE_TEST_SUITE_P(By, LibfabricsOwn, testing::Values("memhooks", "userfaultfd"),
                         [](const auto& monitor) { return std::string(monitor.param); });

TEST(LibfabricsOwnLater, steps_19_and_29_theirs_come_later) {
  if (!kHasLibfabrics) GTEST_SKIP() << "no library here: libfabric.a, with its monitors in it";
  for (const char* const test :
       {"step_19_its_hooks_come_later", "step_29_its_userfaultfd_comes_later"}) {
    for (const char* const monitor : {"userfaultfd", "memhooks"}) {
      SCOPED_TRACE(std::string(test) + " by " + monitor);
      EXPECT_EQ(
          run(LIBFABRIC_STEPS, nullptr, "Beside/Libfabric." + std::string(test) + "/" + monitor),
          0);
    }
  }
}

std::string name_of_others(const testing::TestParamInfo<Others>& info) {
  return std::string(info.param.whose) + "_" + info.param.ucx_mode;
}
INSTANTIATE_TEST_SUITE_P(By, HooksOf,
                         testing::Values(Others{"ucx", "bistro", "all"},
                                         Others{"ucx", "reloc", "^rocm"},
                                         Others{"openmpi", "none", "all"}),
                         name_of_others);

}  // namespace
}  // namespace aperture::regcache::test
