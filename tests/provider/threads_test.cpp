// The provider by itself under each threading level, with as many threads as it permits: the
// program of ThreadSanitizer. fi_domain(3), "Multi-threading Support".
#include "provider/thread_play.hpp"

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint32_t kMessages = 200;
#else
constexpr uint32_t kMessages = 1500;
#endif

// A fabric and two domains of that level and type.
class Threads {
 protected:
  explicit Threads(const std::tuple<fi_threading, fi_ep_type>& of) : level(std::get<0>(of)) {
    const fi_ep_type type = std::get<1>(of);
    Answer answer = ask(kApi117, [this, type](fi_info& hints) {
      hints.caps = type == FI_EP_DGRAM ? FI_MSG : FI_MSG | FI_RMA;
      hints.ep_attr->type = type;
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
  void play(fid_domain* a, fid_domain* b) {
    const auto free_info = [](fi_info* of_request) { FreeInfo()(of_request); };
    thread_play::play_pair({fabric.get(), a, b, info.get(), free_info}, level, kMessages);
  }

  const fi_threading level;
  Info info;
  Opened<fid_fabric> fabric;
  Opened<fid_domain> first, second;
};

class ThreadsOfDomains : public thread_play::Test, protected Threads {
 protected:
  ThreadsOfDomains() : Threads(GetParam()) {}
};
class ThreadsOfOneDomain : public thread_play::Test, protected Threads {
 protected:
  ThreadsOfOneDomain() : Threads(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(levels, ThreadsOfDomains,
                         testing::Combine(thread_play::kLevels, thread_play::kTypes),
                         thread_play::name_of);
INSTANTIATE_TEST_SUITE_P(levels, ThreadsOfOneDomain,
                         testing::Combine(thread_play::kLevelsInOneDomain, thread_play::kTypes),
                         thread_play::name_of);

TEST_P(ThreadsOfDomains, have_the_level_asked_for) {
  EXPECT_EQ(info->domain_attr->threading, level);
}

TEST_P(ThreadsOfDomains, pass_messages_between_the_two) {
  play(first.get(), second.get());
}

TEST_P(ThreadsOfOneDomain, pass_messages) {
  play(first.get(), first.get());
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
