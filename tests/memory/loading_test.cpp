// When a driver's library is loaded and set up, and when it is left alone. Each kind begins without
// its library, so each of these tests runs once in a process.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/forked.hpp"
#include "memory/driver_of.hpp"

namespace aperture::memory {
namespace {

using test::DeviceKind;
using test::Devices;
using test::holds_in_child;

bool is_loaded(DeviceKind kind) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(std::string("/") + test::library_of(kind)) != std::string::npos) return true;
  }
  return false;
}

// The library as the application may have loaded it, and not set up.
class Loaded {
 public:
  explicit Loaded(DeviceKind kind)
      : library_(::dlopen(test::library_of(kind), RTLD_NOW | RTLD_LOCAL)) {}
  bool there() const { return library_ != nullptr && is_standin(); }
  bool is_standin() const { return ::dlsym(library_, "standin_says") != nullptr; }
  void fail(size_t nth) const {
    reinterpret_cast<standin_fail_fn*>(::dlsym(library_, "standin_fail"))(nth);
  }
  standin_counts counts() const {
    standin_counts now{};
    reinterpret_cast<standin_count_fn*>(::dlsym(library_, "standin_count"))(&now);
    return now;
  }

 private:
  void* const library_;
};

// The Nth call of the set-up fails: it is refused with a sentence, or done without that call; and
// it leaves nothing behind, so that the next one to ask has it. True: so it was. `met`: it failed.
bool recovers_from(const Loaded& library, Kind kind, size_t nth, bool& met) {
  library.fail(nth);
  const standin_counts before = library.counts();
  const char* why = nullptr;
  const auto first = driver(kind, why);
  library.fail(0);
  met = library.counts().calls >= before.calls + nth;
  if (!first) {
    if (first.error() != Errc::not_supported || why == nullptr) return false;
    const standin_counts after = library.counts();
    if (after.contexts != before.contexts || after.allocations != before.allocations) return false;
  }
  return driver(kind, why).ok();
}

constexpr int kNotMet = 2;  // a child's exit status: so many calls are not made

class Loading : public testing::TestWithParam<DeviceKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Loading, testing::ValuesIn(test::kDeviceKinds),
                         test::name_of_param);

TEST_P(Loading, happens_when_a_driver_is_asked_for_and_not_before) {
  const Kind kind = kind_of(GetParam());
  int here = 0;
  ASSERT_FALSE(is_loaded(GetParam()));
  EXPECT_EQ(find(&here), nullptr);
  EXPECT_EQ(find(nullptr), nullptr);
  EXPECT_FALSE(is_loaded(GetParam()));

  // in children, so that this process stays without
  EXPECT_TRUE(holds_in_child([&] {
    const char* why = nullptr;
    const auto made = driver(kind, why);
    return made.ok() && is_loaded(GetParam()) && find(&here) == nullptr;
  }));
  EXPECT_TRUE(holds_in_child([&] {  // the application's own use is seen
    std::string said;
    auto devices = Devices::open(GetParam(), said);
    void* const at = devices->allocate(4096);
    Driver* const found = find(at);
    return found != nullptr && found->kind() == kind && find(&here) == nullptr;
  }));
  ASSERT_FALSE(is_loaded(GetParam()));

  const Loaded library(GetParam());
  ASSERT_TRUE(library.there());
  // a library that was loaded and not set up is not set up by a question
  EXPECT_EQ(find(&here), nullptr);
  EXPECT_EQ(library.counts().contexts, 0);
  EXPECT_EQ(library.counts().calls, 0);

  int status = 0;
  for (size_t nth = 1; status == 0; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth));
    status = test::status_of_child([&] {
      bool met = false;
      const bool recovered = recovers_from(library, kind, nth, met);
      ::_exit(!recovered ? 1 : met ? 0 : kNotMet);
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1);
  }
  EXPECT_EQ(WEXITSTATUS(status), kNotMet);
}

}  // namespace
}  // namespace aperture::memory
