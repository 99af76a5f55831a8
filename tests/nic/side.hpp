// One end of a first contact in a test: a listener with its doorbell, and a record of what it is
// told.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.hpp"
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

struct Told {
  enum class What { up, failed, down } what;
  Address remote;
  std::unique_ptr<link::Lane> lane;  // up
  link::Lane* which = nullptr;       // down
  Errc why = Errc::ok;
  uint64_t at_ns = 0;
};

class Side final : public ContactEvents {
 public:
  explicit Side(uint32_t domain = 1, const Address& at = loopback_v4(),
                std::shared_ptr<const Secret> auth_key = nullptr)
      : domain_(domain) {
    doorbell_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    ListenSpec spec;
    spec.local = at;
    spec.domain = domain;
    spec.doorbell_fd = doorbell_.get();
    spec.events = this;
    spec.auth_key = std::move(auth_key);
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
    for (Told& t : told_) {
      if (t.lane) contact().close_lane(std::move(t.lane));
    }
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
  std::unique_ptr<link::Lane> lane(int timeout_ms = 3000) {
    auto t = next(timeout_ms);
    EXPECT_TRUE(t.has_value()) << "nothing came";
    if (!t) return nullptr;
    EXPECT_EQ(t->what, Told::What::up) << describe(t->why);
    return std::move(t->lane);
  }
  Errc failure(int timeout_ms = 8000) {
    auto t = next(timeout_ms);
    EXPECT_TRUE(t.has_value()) << "nothing came";
    if (!t) return Errc::ok;
    EXPECT_EQ(t->what, Told::What::failed);
    return t->why;
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
    tell({Told::What::up, remote, std::move(lane), nullptr, Errc::ok, now_ns()});
  }
  void on_connect_failed(const Address& remote, Errc why) noexcept override {
    tell({Told::What::failed, remote, nullptr, nullptr, why, now_ns()});
  }
  void on_lane_down(link::Lane* lane, Errc why) noexcept override {
    tell({Told::What::down, {}, nullptr, lane, why, now_ns()});
  }

 private:
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

}  // namespace aperture::nic::test
