// A process that ends while it has objects open: destructors of its own close them, after those of
// the libraries that were first used later.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

std::vector<fid*> g_open;

void close_all() {
  while (!g_open.empty()) {
    if (fi_close(g_open.back()) != 0) _exit(3);
    g_open.pop_back();
  }
}

DOOR_ROLE(closes_when_it_ends) {
  (void)control;
  if (std::atexit(close_all) != 0) return 1;  // before anything of libfabric's has been called
  for (int i = 0; i < 3; ++i) {
    const Info info = get_info({});
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    if (fi_fabric(info->fabric_attr, &fabric, nullptr) != 0) return 2;
    g_open.push_back(&fabric->fid);
    if (fi_domain(fabric, info.get(), &domain, nullptr) != 0) return 2;
    g_open.push_back(&domain->fid);
  }
  std::exit(0);
}

TEST(Exit, destructors_of_the_application_may_close_what_is_open) {
  Child child("closes_when_it_ends");
  const int status = child.join(30000);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace aperture::doors
