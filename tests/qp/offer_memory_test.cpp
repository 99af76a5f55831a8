// An offered message for whose pieces there is no memory. fallocate() is this program's own here.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "qp/one_sided.hpp"

namespace {

bool g_no_memory = false;

}  // namespace

extern "C" int fallocate(int fd, int mode, off_t offset, off_t len) {
  if (!g_no_memory) return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, len));
  errno = ENOMEM;
  return -1;
}

namespace aperture::qp::test {
namespace {

class OfferMemory : public OneSided {
 protected:
  ~OfferMemory() override { g_no_memory = false; }
};

INSTANTIATE_TEST_SUITE_P(links, OfferMemory, kSettings, setting_name);

// Its receiver may be in the middle of pulling a piece, and nothing else would end its receive.
TEST_P(OfferMemory, offer_that_cannot_be_pushed_ends_with_its_lane_and_not_before) {
  if (GetParam().link == LinkKind::loopback) GTEST_SKIP() << "its rings are ordinary memory";
  const auto data = pattern(300000, 1);
  const iovec iov = iov_of(data);
  ASSERT_TRUE(a().send(iov, 1));
  ASSERT_TRUE(pair_.until([&] { return b().sink.messages.size() == 1; }, false, true));
  g_no_memory = true;
  ASSERT_TRUE(pair_.until([&] { return a().qp->needs_wind_up(); }, true, false));
  EXPECT_TRUE(a().tx_cq.empty()) << "its buffer may still be read";
  EXPECT_EQ(a().qp->why_over(), Errc::no_memory);
  const auto lane = a().qp->finish(Errc::protocol);
  ASSERT_NE(lane, nullptr);
  EXPECT_EQ(take_end(a().tx_cq), Errc::no_memory);
  EXPECT_FALSE(a().qp->has_pending());
  for (uint32_t i = 0; i < link::Lane::kClaims && lane->claims_out != nullptr; ++i) {
    EXPECT_EQ(lane->claims_out[i].load(), 0u);
  }
  b().qp->lose(Errc::peer_lost);
  b().qp->finish(Errc::peer_lost);
  EXPECT_EQ(b().sink.messages[0].err, Errc::peer_lost);
}

}  // namespace
}  // namespace aperture::qp::test
