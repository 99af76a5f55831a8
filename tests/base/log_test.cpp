// Log lines: one write each, their level, their limit, and silence by default.
#include "base/log.hpp"

#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/forked.hpp"

namespace aperture {
namespace {

// What a child with those settings writes to stderr while it runs `body`.
template <typename Body>
std::string stderr_of(const char* aperture_log, const char* fi_log, Body body) {
  const std::vector<char> text = test::written_by_child([&](int to) {
    ::unsetenv("APERTURE_LOG");
    ::unsetenv("FI_LOG_LEVEL");
    if (aperture_log != nullptr) ::setenv("APERTURE_LOG", aperture_log, 1);
    if (fi_log != nullptr) ::setenv("FI_LOG_LEVEL", fi_log, 1);
    ::dup2(to, STDERR_FILENO);
    ::close(to);
    body();
  });
  return {text.begin(), text.end()};
}

void one_of_each() {
  APERTURE_WARN("w%d", 1);
  APERTURE_INFO("i%d", 2);
  APERTURE_DEBUG("d%d", 3);
}

TEST(Log, is_silent_by_default_and_when_off) {
  EXPECT_EQ(stderr_of(nullptr, nullptr, one_of_each), "");
  EXPECT_EQ(stderr_of("off", "debug", one_of_each), "");
  EXPECT_EQ(stderr_of(nullptr, "loud", one_of_each), "");
}

TEST(Log, a_level_that_there_is_not_is_taken_as_warn) {
  const std::string text = stderr_of("loud", nullptr, one_of_each);
  EXPECT_NE(text.find("w1"), std::string::npos);
  EXPECT_EQ(text.find("i2"), std::string::npos);
}

TEST(Log, each_level_brings_those_above_it) {
  const std::string warn = stderr_of("warn", nullptr, one_of_each);
  EXPECT_NE(warn.find("warn: w1\n"), std::string::npos);
  EXPECT_EQ(warn.find("i2"), std::string::npos);
  const std::string info = stderr_of("info", nullptr, one_of_each);
  EXPECT_NE(info.find("info: i2\n"), std::string::npos);
  EXPECT_EQ(info.find("d3"), std::string::npos);
  const std::string debug = stderr_of("debug", nullptr, one_of_each);
  EXPECT_NE(debug.find("debug: d3\n"), std::string::npos);
  EXPECT_EQ(debug.rfind("aperture: [", 0), 0u);
}

TEST(Log, libfabric_level_counts_where_ours_is_unset) {
  EXPECT_NE(stderr_of(nullptr, "warn", one_of_each).find("w1"), std::string::npos);
  EXPECT_NE(stderr_of("", "info", one_of_each).find("i2"), std::string::npos);
  EXPECT_EQ(stderr_of("warn", "debug", one_of_each).find("d3"), std::string::npos);
}

TEST(Log, long_line_is_cut_and_still_ends) {
  const std::string text = stderr_of("warn", nullptr, [] {
    const std::string long_text(5000, 'x');
    APERTURE_WARN("%s", long_text.c_str());
    APERTURE_WARN("next");
  });
  const size_t end = text.find('\n');
  ASSERT_NE(end, std::string::npos);
  EXPECT_LE(end, 1023u);
  EXPECT_GT(end, 900u);
  EXPECT_NE(text.find("warn: next\n", end), std::string::npos);
}

TEST(Log, keeps_errno) {
  const std::string text = stderr_of("warn", nullptr, [] {
    errno = EXDEV;
    APERTURE_WARN("text");
    if (errno != EXDEV) ::_exit(1);
  });
  EXPECT_NE(text, "");
}

}  // namespace
}  // namespace aperture
