// What is said: nothing by default; with APERTURE_LOG one line for each refusal that says what to
// do, and for a refused remote access the sentence that explains it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "doors/child.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

// Makes a few mistakes and one refused write, with stderr in the file that the parent named.
DOOR_ROLE(mistakes) {
  const char* path = std::getenv("APERTURE_TEST_STDERR");
  const int fd = path != nullptr ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
  if (fd < 0 || dup2(fd, STDERR_FILENO) < 0) return 1;
  NodePair p;
  Region region(p.b, 64, FI_REMOTE_READ);
  Op op;
  fi_send(p.a.ep(), "x", 1, nullptr, p.to_b + 12345, &op);
  fi_inject(p.a.ep(), "x", 1 << 20, p.to_b);
  post([&] {
    return fi_write(p.a.ep(), "12345678", 8, nullptr, p.to_b, region.remote().base,
                    region.remote().key, &op);
  });
  const int err = p.a.wait(&op).err;
  fi_cq_err_entry none{};
  const bool right = err == FI_EACCES && fi_cq_readerr(p.a.cq(), &none, 0) == -FI_EAGAIN;
  control.put(right);
  return right ? 0 : 2;
}

std::string said_with(const char* level) {
  char path[] = "/tmp/aperture-door-log-XXXXXX";
  const int fd = mkstemp(path);
  EXPECT_GE(fd, 0);
  ChildOptions options;
  options.env = {{"APERTURE_TEST_STDERR", path}, {"APERTURE_LOG", level}};
  {
    Child child("mistakes", options);
    EXPECT_EQ(child.join(30000), 0);
  }
  std::string text(1 << 16, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  close(fd);
  unlink(path);
  return text;
}

TEST(Log, is_silent_by_default) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  EXPECT_EQ(said_with("off"), "");
}

TEST(Log, says_what_was_refused_and_what_to_do) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  const std::string text = said_with("warn");
  EXPECT_NE(text.find("aperture:"), std::string::npos) << text;
  EXPECT_NE(text.find("fi_send"), std::string::npos) << text;
  EXPECT_NE(text.find("fi_inject"), std::string::npos) << text;
  // the refused write names the key and the right that was missing
  EXPECT_NE(text.find("write"), std::string::npos) << text;
  std::printf("%s", text.c_str());
}

}  // namespace
}  // namespace aperture::doors
