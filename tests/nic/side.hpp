// One end of a first contact in a test: a listener with its doorbell, and a record of what it is
// told.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "base/clock.hpp"
#include "base/doorbell.hpp"
#include "base/fd.hpp"
#include "nic/contact.hpp"
#include "nic/first_contact.hpp"

namespace aperture::nic::test {

inline FirstContact& contact() {
  auto instance = Contact::instance();
  EXPECT_TRUE(instance.ok()) << describe(instance.error());
  return static_cast<FirstContact&>(*instance.value());
}

inline Address loopback_v4(uint16_t port = 0) {
  return Address::v4(0x7f000001, port);
}

// A lane that is closed when nobody holds it any more.
struct CloseLane {
  void operator()(link::Lane* lane) const noexcept {
    contact().close_lane(std::unique_ptr<link::Lane>(lane));
  }
};
using HeldLane = std::unique_ptr<link::Lane, CloseLane>;

struct Told {
  enum class What { up, failed, down } what;
  Address remote;
  HeldLane lane;                // up
  link::Lane* which = nullptr;  // down
  Errc why = Errc::ok;
  uint64_t at_ns = 0;
};

class Side final : public ContactEvents {
 public:
  explicit Side(uint32_t domain = 1, const Address& at = loopback_v4(),
                std::shared_ptr<const Secret> auth_key = nullptr, bool at_open_port = false,
                std::shared_ptr<link::tcp::Mover> mover = nullptr)
      : domain_(domain) {
    doorbell_ = *make_doorbell();
    ListenSpec spec;
    spec.local = at;
    spec.domain = domain;
    spec.doorbell_fd = doorbell_.get();
    spec.mover = std::move(mover);
    spec.events = this;
    spec.auth_key = std::move(auth_key);
    spec.at_open_port = at_open_port;
    auto listening = contact().listen(spec, address_);
    listen_error_ = listening.error();
    if (listening.ok()) id_ = listening.value();
  }
  ~Side() override { stop(); }
  Side(const Side&) = delete;

  void stop() {
    if (id_ != 0) contact().unlisten(id_);
    id_ = 0;
    const std::lock_guard guard(mutex_);
    told_.clear();
  }

  const Address& address() const { return address_; }
  Errc listen_error() const { return listen_error_; }
  uint32_t domain() const { return domain_; }
  void connect(const Side& to) { connect(to.address()); }
  void connect(const Address& to) { contact().connect(id_, to); }
  void connect_within(const Address& to, uint64_t ns) { contact().connect(id_, to, ns); }

  // The next thing it is told, in order; nullopt after the time has passed.
  std::optional<Told> next(int timeout_ms = 3000) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return !told_.empty(); })) {
      return std::nullopt;
    }
    Told t = std::move(told_.front());
    told_.pop_front();
    return t;
  }
  // The lane of the next thing, which must be a lane that came up.
  HeldLane lane(int timeout_ms = 3000) { return next_of(Told::What::up, timeout_ms).lane; }
  // Asks for a lane and gets it, or the test ends.
  HeldLane lane_to(const Address& to) {
    connect(to);
    return sure(lane());
  }
  static HeldLane sure(HeldLane lane) {
    if (lane == nullptr) throw std::runtime_error("no lane came");
    return lane;
  }
  Errc failure(int timeout_ms = 8000) { return next_of(Told::What::failed, timeout_ms).why; }
  // Why its lane, or this one, is down.
  Errc down(const link::Lane* which = nullptr) {
    const Told t = next_of(Told::What::down, 3000);
    if (which != nullptr) {
      EXPECT_EQ(t.which, which);
    }
    return t.why;
  }
  bool silent(int for_ms) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, std::chrono::milliseconds(for_ms),
                              [&] { return !told_.empty(); });
  }
  bool rung() {
    uint64_t count = 0;
    return ::read(doorbell_.get(), &count, sizeof count) == sizeof count;
  }

  void on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept override {
    tell({Told::What::up, remote, HeldLane(lane.release()), nullptr, Errc::ok, now_ns()});
  }
  void on_connect_failed(const Address& remote, Errc why) noexcept override {
    tell({Told::What::failed, remote, nullptr, nullptr, why, now_ns()});
  }
  void on_lane_down(link::Lane* lane, Errc why) noexcept override {
    tell({Told::What::down, {}, nullptr, lane, why, now_ns()});
  }

 private:
  Told next_of(Told::What what, int timeout_ms) {
    auto t = next(timeout_ms);
    EXPECT_TRUE(t.has_value()) << "nothing came";
    if (!t) return {what, {}, nullptr};
    EXPECT_EQ(t->what, what) << describe(t->why);
    return *std::move(t);
  }
  void tell(Told t) {
    const std::lock_guard guard(mutex_);
    told_.push_back(std::move(t));
    changed_.notify_all();
  }

  const uint32_t domain_;
  UniqueFd doorbell_;
  Address address_;
  ListenerId id_ = 0;
  Errc listen_error_ = Errc::ok;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Told> told_;
};

// Puts a word on one end's requests and reads it at the other.
inline void send_word(link::Lane& lane, uint64_t word) {
  ASSERT_TRUE(lane.request_tx.room(1));
  std::memcpy(lane.request_tx.cells.body(), &word, sizeof word);
  lane.request_tx.cells.publish(1);
}

inline std::optional<uint64_t> receive_word(link::Lane& lane) {
  const uint64_t until = now_ns() + 3'000'000'000;
  while (!lane.request_rx.cells.ready()) {
    if (now_ns() > until) return std::nullopt;
  }
  uint64_t word;
  std::memcpy(&word, lane.request_rx.cells.body(), sizeof word);
  lane.request_rx.cells.advance(1);
  lane.request_rx.publish_consumed();
  return word;
}

// Both ends of the lane for which `from` asks.
struct Ends {
  HeldLane at_from, at_to;
};
inline Ends join(Side& from, Side& to) {
  HeldLane lane = from.lane_to(to.address());
  return {std::move(lane), Side::sure(to.lane())};
}

// The same, and both are closed again, that of `from` first.
inline void join_and_part(Side& from, Side& to) {
  Ends ends = join(from, to);
  ends.at_from.reset();
}

// Takes in what a side is told until it has exactly one lane that is up, and gives dead ones back.
inline void settle(Side& side, HeldLane& up) {
  while (!up || !side.silent(0)) {
    auto t = side.next();
    ASSERT_TRUE(t.has_value()) << "no lane came";
    ASSERT_NE(t->what, Told::What::failed) << describe(t->why);
    if (t->what == Told::What::up) {
      ASSERT_FALSE(up) << "a second lane while one is up";
      up = std::move(t->lane);
    } else {
      ASSERT_EQ(t->which, up.get());
      EXPECT_TRUE(up->lost());
      up.reset();
    }
  }
}

}  // namespace aperture::nic::test
