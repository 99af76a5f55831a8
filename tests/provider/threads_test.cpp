// The provider by itself under each threading level, with as many threads as it permits: the
// program of ThreadSanitizer. fi_domain(3), "Multi-threading Support".
#include "provider/thread_levels.hpp"

#include "direct.hpp"

namespace aperture {

thread_play::Place thread_play::open_place(fi_threading level, fi_ep_type type) {
#if defined(__SANITIZE_THREAD__)
  constexpr uint32_t kMessages = 200;
#else
  constexpr uint32_t kMessages = 1500;
#endif
  using namespace provider_tests;  // NOLINT: the program's own
  Answer answer = ask(kApi117, [&](fi_info& hints) {
    hints.caps = type == FI_EP_DGRAM ? FI_MSG : FI_MSG | FI_RMA;
    hints.ep_attr->type = type;
    hints.domain_attr->threading = level;
  });
  must(answer.code, "fi_getinfo");
  answer.info->fabric_attr->api_version = kApi117;
  fid_fabric* fabric = nullptr;
  must(provider().fabric(answer.info->fabric_attr, &fabric, nullptr), "fi_fabric");
  const auto free_info = [](fi_info* info) { FreeInfo()(info); };
  return {Opened<fid_fabric>(fabric), {answer.info.release(), free_info}, kMessages};
}

namespace provider_tests {
namespace {

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
}  // namespace provider_tests
}  // namespace aperture
