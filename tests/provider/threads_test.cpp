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

// An address vector tells its endpoints what comes and goes, also those that are being enabled.
TEST(ThreadsOfOneVector, enable_endpoints_while_addresses_come_and_go) {
  for (const fi_ep_type type : {FI_EP_RDM, FI_EP_DGRAM}) {
    Bench b([type](fi_info& hints) {
      hints.caps = FI_MSG;
      hints.ep_attr->type = type;
    });
    std::atomic<bool> over{false};
    std::thread inserting([&] {
      sockaddr_in at{};
      at.sin_family = AF_INET;
      at.sin_port = htons(9);
      at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      while (!over) {
        fi_addr_t addr = 0;
        EXPECT_EQ(fi_av_insert(b.av.get(), &at, 1, &addr, 0, nullptr), 1);
        EXPECT_EQ(fi_av_remove(b.av.get(), &addr, 1, 0), 0);
      }
    });
    for (int i = 0; i < 40; ++i) {
      const auto ep = opened("fi_endpoint", fi_endpoint, b.domain.get(), b.info.get());
      EXPECT_EQ(fi_ep_bind(ep.get(), &b.av->fid, 0), 0);
      EXPECT_EQ(fi_ep_bind(ep.get(), &b.cq->fid, FI_TRANSMIT | FI_RECV), 0);
      EXPECT_EQ(fi_enable(ep.get()), 0);
    }
    over = true;
    inserting.join();
  }
}

}  // namespace
}  // namespace aperture::provider_tests
