// A library that is not there, or lacks every function: one sentence that says what to do. Which of
// the two it is, the environment of this program decides.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "memory/driver_of.hpp"

namespace aperture::memory {
namespace {

class AbsentDrivers : public testing::TestWithParam<test::DeviceKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AbsentDrivers, testing::ValuesIn(test::kDeviceKinds),
                         test::name_of_param);

TEST_P(AbsentDrivers, are_refused_with_a_sentence) {
  const std::string library = test::library_of(GetParam());
  void* const there = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (there != nullptr && ::dlsym(there, "standin_says") == nullptr)
    GTEST_SKIP() << "this machine has a driver";
  for (int i = 0; i < 2; ++i) {
    const char* why = "";
    EXPECT_EQ(driver(kind_of(GetParam()), why).error(), Errc::not_supported);
    const std::string sentence = why;
    EXPECT_NE(sentence.find(library), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("install"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(there != nullptr ? "lacks calls" : "is not there"), std::string::npos)
        << sentence;
  }
  EXPECT_EQ(find(&library), nullptr);
}

TEST(Drivers, have_names) {
  EXPECT_STREQ(name_of(Kind::cuda), "CUDA");
  EXPECT_STREQ(name_of(Kind::rocr), "ROCr");
  EXPECT_STREQ(name_of(Kind::ze), "Level Zero");
}

}  // namespace
}  // namespace aperture::memory
