// Two processes of many threads each, whose puts, atomics and waits are mixed: nobody stops, and
// every counter reaches its sum. man 3 fi_domain, "FI_THREAD_SAFE", fi_cntr.
//
// APERTURE_CROWD_SECONDS: how long each case lasts (./dev soak gives it minutes).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"
#include "rdma/fi_atomic.h"

namespace aperture::doors {
namespace {

constexpr size_t kThreads = 8;
constexpr size_t kLarge = 96 * 1024;
constexpr uint64_t kSumAt = 0;      // all atomics add up here
constexpr uint64_t kPutsAt = 4096;  // a part of kLarge bytes for each thread

struct Case {
  const char* name;
  bool own_endpoints;  // each thread has one, in the one domain
  fi_wait_obj wait;    // of the counters
  bool denied;
};

struct Asked {
  Case what;
  uint32_t ms;
};
struct Place {
  std::array<Name, kThreads> names;
  Remote remote;
};
struct Counted {
  uint64_t puts = 0;
  uint64_t atomics = 0;
  uint64_t failures = 0;
};

uint32_t case_ms() {
  const char* seconds = std::getenv("APERTURE_CROWD_SECONDS");
  return seconds != nullptr ? static_cast<uint32_t>(std::atoi(seconds)) * 1000 : 1200;
}

// An endpoint of the domain with counters of its own. Successes have no entries.
class Station {
 public:
  Station(Node& host, fi_wait_obj wait) {
    fid_domain* domain = host.domain();
    fi_av_attr av_attr{};
    av_ = DOOR_MADE(fi_av_open, domain, &av_attr);
    fi_cq_attr cq_attr{.format = FI_CQ_FORMAT_CONTEXT};
    cq_ = DOOR_MADE(fi_cq_open, domain, &cq_attr);
    fi_cntr_attr attr{.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait};
    written_ = DOOR_MADE(fi_cntr_open, domain, &attr);
    read_ = DOOR_MADE(fi_cntr_open, domain, &attr);
    arrived_ = DOOR_MADE(fi_cntr_open, domain, &attr);
    ep_ = DOOR_MADE(fi_endpoint, domain, host.info());
    DOOR(fi_ep_bind(ep_.get(), &av_->fid, 0));
    DOOR(fi_ep_bind(ep_.get(), &cq_->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
    DOOR(fi_ep_bind(ep_.get(), &written_->fid, FI_WRITE));
    DOOR(fi_ep_bind(ep_.get(), &read_->fid, FI_READ));
    DOOR(fi_ep_bind(ep_.get(), &arrived_->fid, FI_REMOTE_WRITE | FI_REMOTE_READ));
    DOOR(fi_enable(ep_.get()));
  }
  Name name() { return name_of(&ep_->fid); }
  void aim(const Name& there) {
    if (fi_av_insert(av_.get(), there.data(), 1, &peer_, 0, nullptr) != 1) throw DoorError("av", 0);
  }

  bool put(const void* from, size_t len, const Remote& to, uint64_t at) {
    return posted(
        [&] { return fi_write(ep(), from, len, nullptr, peer_, to.base + at, to.key, 0); },
        asked_writes_);
  }
  bool add(const Remote& to, const uint64_t* by) {
    return posted(
        [&] {
          return fi_atomic(ep(), by, 1, nullptr, peer_, to.base + kSumAt, to.key, FI_UINT64, FI_SUM,
                           nullptr);
        },
        asked_writes_);
  }
  bool fetch_add(const Remote& to, const uint64_t* by, uint64_t* result) {
    return posted(
        [&] {
          return fi_fetch_atomic(ep(), by, 1, nullptr, result, nullptr, peer_, to.base + kSumAt,
                                 to.key, FI_UINT64, FI_SUM, nullptr);
        },
        asked_reads_);
  }
  // All that anybody had posted here when this was called.
  bool wait_for_writes() { return wait(written_.get(), asked_writes_.load()); }
  bool wait_for_reads() { return wait(read_.get(), asked_reads_.load()); }
  uint64_t arrived() { return fi_cntr_read(arrived_.get()); }
  bool counts_to(uint64_t value) { return wait(arrived_.get(), value); }
  uint64_t errors() { return fi_cntr_readerr(written_.get()) + fi_cntr_readerr(read_.get()); }

 private:
  fid_ep* ep() { return ep_.get(); }
  template <typename Call>
  bool posted(Call call, std::atomic<uint64_t>& asked) {
    // counted before: a threshold that was read in between is too high, never too low, and reached
    asked.fetch_add(1);
    const int64_t end = now_ns() + 20'000'000'000;
    for (;;) {
      const ssize_t rc = call();
      if (rc == 0) return true;
      if (rc != -FI_EAGAIN || now_ns() > end) return false;
      std::this_thread::yield();
    }
  }
  static bool wait(fid_cntr* counter, uint64_t threshold) {
    return fi_cntr_wait(counter, threshold, 20000) == 0;
  }

  Fid<fid_av> av_;
  Fid<fid_cq> cq_;
  Fid<fid_cntr> written_, read_, arrived_;
  Fid<fid_ep> ep_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::atomic<uint64_t> asked_writes_{0}, asked_reads_{0};
};

// One side of the crowd: its node, its memory, and its threads.
class Side {
 public:
  explicit Side(const Case& c)
      : host_({.caps = FI_RMA | FI_ATOMIC | FI_RMA_EVENT, .threading = FI_THREAD_SAFE}),
        region_(host_, kPutsAt + kThreads * kLarge, kAllAccess, 0) {
    std::memset(region_.memory().data(), 0, 8);
    for (size_t i = 0; i < (c.own_endpoints ? kThreads : 1); ++i) {
      places_.push_back(std::make_unique<Station>(host_, c.wait));
    }
  }
  Place place() {
    Place out{.names = {}, .remote = region_.remote()};
    for (size_t i = 0; i < kThreads; ++i) out.names[i] = at(i).name();
    return out;
  }
  Counted run(const Place& there, uint32_t ms) {
    for (size_t i = 0; i < places_.size(); ++i) places_[i]->aim(there.names[i]);
    there_ = there.remote;
    end_ns_ = now_ns() + int64_t{ms} * 1'000'000;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { live(i); });
    for (std::thread& t : threads) t.join();
    for (auto& place : places_) failures_ += place->errors();
    return {puts_.load(), atomics_.load(), failures_.load()};
  }
  // Whether what the other side has posted arrives here, no less and no more.
  bool receives(const Counted& theirs) {
    const int64_t end = now_ns() + 20'000'000'000;
    uint64_t counted = 0;
    while ((counted = arrived()) < theirs.puts + theirs.atomics && now_ns() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    uint64_t sum = 0;
    std::memcpy(&sum, region_.memory().data() + kSumAt, sizeof sum);
    EXPECT_EQ(counted, theirs.puts + theirs.atomics);
    EXPECT_EQ(sum, theirs.atomics);
    return counted == theirs.puts + theirs.atomics && sum == theirs.atomics;
  }

 private:
  Station& at(size_t thread) { return *places_[thread % places_.size()]; }
  uint64_t arrived() {
    uint64_t all = 0;
    for (auto& place : places_) all += place->arrived();
    return all;
  }
  void note(bool good) { failures_ += good ? 0 : 1; }
  void live(size_t self) {
    Station& place = at(self);
    std::vector<uint8_t> bytes(kLarge, static_cast<uint8_t>(self));
    const uint64_t one = 1;
    uint64_t before = 0;
    const size_t sizes[] = {8, 8, 200, 8, 5000, 8, kLarge};
    for (uint64_t i = self; now_ns() < end_ns_ && failures_.load() == 0; ++i) {
      const size_t size = sizes[i % std::size(sizes)];
      note(place.put(bytes.data(), size, there_, kPutsAt + self * kLarge));
      ++puts_;
      note(place.add(there_, &one));
      ++atomics_;
      if (i % 3 == 0) {
        note(place.fetch_add(there_, &one, &before));
        ++atomics_;
        note(place.wait_for_reads());
      }
      if (i % 4 == self % 4) note(place.wait_for_writes());
    }
    note(place.wait_for_writes());
    note(place.wait_for_reads());
  }

  Node host_;
  Region region_;
  std::vector<std::unique_ptr<Station>> places_;
  Remote there_;
  int64_t end_ns_ = 0;
  std::atomic<uint64_t> puts_{0}, atomics_{0}, failures_{0};
};

}  // namespace

DOOR_ROLE(one_side_of_a_crowd) {
  Asked asked;
  Place there;
  if (!control.get(&asked)) return 1;
  Side side(asked.what);
  if (!control.put(side.place()) || !control.get(&there)) return 2;
  const Counted mine = side.run(there, asked.ms);
  Counted theirs;
  const int patience_ms = static_cast<int>(asked.ms) + 60000;
  if (!control.put(mine) || !control.get(&theirs, patience_ms)) return 3;
  return control.put(side.receives(theirs)) && control.get(&theirs, patience_ms) ? 0 : 4;
}

namespace {

class Crowd : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, Crowd,
    testing::Values(Case{"one_endpoint", false, FI_WAIT_NONE, false},
                    Case{"one_endpoint_sleeping", false, FI_WAIT_UNSPEC, false},
                    Case{"one_endpoint_denied", false, FI_WAIT_NONE, true},
                    Case{"own_endpoints", true, FI_WAIT_NONE, false},
                    Case{"own_endpoints_sleeping", true, FI_WAIT_UNSPEC, false},
                    Case{"own_endpoints_sleeping_denied", true, FI_WAIT_UNSPEC, true}),
    kByName);

TEST_P(Crowd, gets_all_its_work_done) {
  const Case c = GetParam();
  const uint32_t ms = case_ms();
  const int patience_ms = static_cast<int>(ms) + 60000;
  Child peer("one_side_of_a_crowd", child_denying(c.denied));
  ASSERT_TRUE(peer.control().put(Asked{c, ms}));
  Side side(c);
  Place there;
  ASSERT_TRUE(peer.control().get(&there, 20000));
  ASSERT_TRUE(peer.control().put(side.place()));
  const Counted mine = side.run(there, ms);
  Counted theirs;
  ASSERT_TRUE(peer.control().get(&theirs, patience_ms)) << "it has stopped";
  ASSERT_TRUE(peer.control().put(mine));
  EXPECT_EQ(mine.failures, 0u);
  EXPECT_EQ(theirs.failures, 0u);
  EXPECT_TRUE(side.receives(theirs));
  bool peer_received = false;
  ASSERT_TRUE(peer.control().get(&peer_received, patience_ms));
  EXPECT_TRUE(peer_received);
  std::printf("%llu puts and %llu atomics each way\n", static_cast<unsigned long long>(mine.puts),
              static_cast<unsigned long long>(mine.atomics));
  EXPECT_TRUE(peer.control().put(mine));
  EXPECT_EQ(peer.join(), 0);
}

}  // namespace
}  // namespace aperture::doors
