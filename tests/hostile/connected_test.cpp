// Hostile input 21 at connected endpoints (FI_EP_MSG), between two processes: a peer that goes on
// writing when the endpoint is shut down, and one that has ended with writes under way. The region
// stays registered. With the peer's direct access and without.
#include <gtest/gtest.h>
#include <unistd.h>

#include "doors/child.hpp"
#include "doors/connected.hpp"
#include "doors/region.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::CmEvent;
using doors::Control;
using doors::Guarded;
using doors::Name;
using doors::Remote;
using doors::Station;

constexpr size_t kBytes = size_t{16} << 20;  // a write is under way for milliseconds
constexpr size_t kWord = 8, kWords = 150;
constexpr int kRounds = 5, kWait_ms = 20000;

enum class Deed : uint32_t { writes_on, posts_and_waits, leaves };

struct Errand {
  Deed deed = Deed::leaves;
  Name victim;
  Remote remote;
};

// Writes until that fails, with another byte each time; how it failed.
int64_t write_on(Station& s, fid_ep* ep, const Remote& remote) {
  std::vector<uint8_t> bytes(kBytes);
  int64_t code = 0;
  for (uint8_t fill = 1; code == 0; ++fill) {
    std::fill(bytes.begin(), bytes.end(), fill);
    code = s.run_at(ep, fi_write, bytes.data(), kBytes, nullptr, 0, remote.base, remote.key);
  }
  return code;
}

// As many words as the ring takes at once, one behind the other.
int64_t post_words(fid_ep* ep, const Remote& remote) {
  for (uint64_t i = 0; i < kWords; ++i) {
    const uint64_t word = i + 1;
    const ssize_t rc = fi_inject_write(ep, &word, kWord, 0, remote.base + i * kWord, remote.key);
    if (rc != 0) return rc;
  }
  return 0;
}

// Tells how each errand has ended.
DOOR_ROLE(attacker_by_connection) {
  // nothing of it is under way but in its own calls: a thread that progresses by itself might be in
  // the middle of a claim when it is killed, which is given up with what stands behind it
  Station s{{.threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL}};
  for (Errand errand; control.get(&errand) && errand.deed != Deed::leaves;) {
    const doors::Fid<fid_ep> ep = s.open();
    if (fi_connect(ep.get(), errand.victim.data(), nullptr, 0) != 0) return 1;
    if (s.event().type != FI_CONNECTED) return 2;
    const bool waits = errand.deed == Deed::posts_and_waits;
    const int64_t code =
        waits ? post_words(ep.get(), errand.remote) : write_on(s, ep.get(), errand.remote);
    if (!control.put(code)) return 3;
    while (waits) pause();
    // its own end is told too
    if (s.event().type != FI_SHUTDOWN) return 4;
  }
  return 0;
}

class HostileConnected : public testing::TestWithParam<bool> {
 protected:
  doors::Fid<fid_ep> attacked(Deed deed) {
    const auto at = reinterpret_cast<uint64_t>(memory_.data());
    const Errand errand{
        deed, doors::name_of(&pep_->fid), {at, fi_mr_key(region_.get()), kBytes, {}}};
    EXPECT_TRUE(attacker_.control().put(errand));
    doors::Fid<fid_ep> ep = accept_next(here_);
    here_.expect(FI_CONNECTED, &ep->fid);
    return ep;
  }
  int64_t outcome() {
    int64_t code = 0;
    EXPECT_TRUE(doors::pump_until([&] { return attacker_.control().ready(); }));
    EXPECT_TRUE(attacker_.control().get(&code, 0)) << "the attacker has ended";
    return code;
  }
  // Nothing lands there from now on, whether we poll or not.
  void expect_still(int for_ms) {
    const auto span = memory_.span();
    const std::vector<uint8_t> before(span.begin(), span.end());
    for (int i = 0; i < for_ms; ++i) {
      usleep(1000);
      if (i % 2 == 0) doors::pump();
      ASSERT_EQ(std::memcmp(before.data(), span.data(), before.size()), 0)
          << "something landed " << i << " ms later";
    }
  }

  Child attacker_{"attacker_by_connection", doors::child_denying(GetParam())};
  // nobody but the test progresses it
  Station here_{{.threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL}};
  doors::Fid<fid_pep> pep_ = here_.passive();
  Guarded memory_{kBytes};
  doors::Fid<fid_mr> region_ =
      doors::registered(here_.domain(), memory_.data(), kBytes, FI_REMOTE_WRITE, 0);
};

TEST_P(HostileConnected, hostile_21_nothing_lands_when_the_endpoint_is_shut_down) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    std::fill(memory_.span().begin(), memory_.span().end(), uint8_t{0});
    const doors::Fid<fid_ep> ep = attacked(Deed::writes_on);
    const volatile uint8_t* first = memory_.data();
    ASSERT_TRUE(doors::pump_until([&] { return *first != 0; })) << "the attacker never wrote";
    ASSERT_EQ(fi_shutdown(ep.get(), 0), 0);
    expect_still(30);
    EXPECT_NE(outcome(), 0);
    expect_still(5);
    here_.expect(FI_SHUTDOWN, &ep->fid);
  }
  EXPECT_TRUE(memory_.intact());
  ASSERT_TRUE(attacker_.control().put(Errand{}));
  EXPECT_EQ(attacker_.join(), 0);
}

// What it had published is executed before, as it is without the call.
TEST_P(HostileConnected, hostile_21_nothing_lands_after_the_shutdown_of_one_whose_peer_has_ended) {
  const doors::Fid<fid_ep> ep = attacked(Deed::posts_and_waits);
  int64_t code = -1;
  ASSERT_TRUE(attacker_.control().get(&code, kWait_ms));
  ASSERT_EQ(code, 0);
  attacker_.kill_now();
  // its end is told without a poll
  uint32_t type = 0;
  fi_eq_cm_entry entry;
  for (int i = 0; i < kWait_ms && type != FI_SHUTDOWN; ++i) {
    usleep(1000);
    fi_eq_read(here_.eq(), &type, &entry, sizeof entry, 0);
  }
  ASSERT_EQ(type, static_cast<uint32_t>(FI_SHUTDOWN));
  ASSERT_EQ(fi_shutdown(ep.get(), 0), 0);
  uint64_t last = 0;
  std::memcpy(&last, memory_.data() + (kWords - 1) * kWord, sizeof last);
  EXPECT_EQ(last, kWords);
  expect_still(30);
  EXPECT_TRUE(memory_.intact());
}

INSTANTIATE_TEST_SUITE_P(Paths, HostileConnected, testing::Bool(), [](const auto& p) {
  return std::string(p.param ? "owner_executed" : "direct");
});

}  // namespace
}  // namespace aperture::hostile
