// The provider by itself under each threading level, with as many threads as it permits: the
// program of ThreadSanitizer. fi_domain(3), "Multi-threading Support".
#include "provider/thread_play.hpp"

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint32_t kMessages = 400;
#else
constexpr uint32_t kMessages = 1500;
#endif

class Threads : public testing::TestWithParam<fi_threading> {
 protected:
  Threads() {
    const fi_threading level = GetParam();
    Answer answer = ask(kApi117, [level](fi_info& hints) {
      hints.caps = FI_MSG | FI_RMA;
      hints.ep_attr->type = FI_EP_RDM;
      hints.domain_attr->threading = level;
    });
    EXPECT_EQ(answer.code, 0);
    info = std::move(answer.info);
    info->fabric_attr->api_version = kApi117;
    fid_fabric* f = nullptr;
    EXPECT_EQ(provider().fabric(info->fabric_attr, &f, nullptr), 0);
    fabric.reset(f);
    first = open_domain();
    second = open_domain();
  }
  Opened<fid_domain> open_domain() {
    fid_domain* d = nullptr;
    EXPECT_EQ(fi_domain(fabric.get(), info.get(), &d, nullptr), 0);
    return Opened<fid_domain>(d);
  }
  Info info;
  Opened<fid_fabric> fabric;
  Opened<fid_domain> first, second;
};
INSTANTIATE_TEST_SUITE_P(levels, Threads, thread_play::kLevels,
                         [](const auto& p) { return thread_play::name_of(p.param); });

TEST_P(Threads, the_level_is_the_one_asked_for) {
  EXPECT_EQ(info->domain_attr->threading, GetParam());
}

TEST_P(Threads, in_one_domain) {
  if (GetParam() == FI_THREAD_DOMAIN) GTEST_SKIP() << "one thread at a time in one domain";
  thread_play::play_pair(first.get(), first.get(), info.get(), GetParam(), kMessages);
}

TEST_P(Threads, across_two_domains) {
  thread_play::play_pair(first.get(), second.get(), info.get(), GetParam(), kMessages);
}

}  // namespace
}  // namespace aperture::provider_tests
