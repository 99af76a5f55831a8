// What is said: nothing by default; with APERTURE_LOG one line for each refusal that says what to
// do, and for a refused remote access the sentence that explains it.
#include <gtest/gtest.h>

#include <cstdio>

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

}  // namespace
}  // namespace aperture::doors
