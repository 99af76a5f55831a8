// Two streams joined in memory, for lanes over streams: one thread, and one source of chance that
// says how much of each call is taken, when a side stalls, and where the stream breaks. And what
// else such a lane needs to be moved.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "link/tcp/mover.hpp"
#include "link/tcp/stream_lane.hpp"

namespace aperture::link::test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(static_cast<uint32_t>(seed * 2654435761u + 1)) {
    for (int i = 0; i < 4; ++i) engine_();
  }
  uint32_t operator()() { return static_cast<uint32_t>(engine_()); }

 private:
  std::minstd_rand engine_;
};

// One direction. The lock is for the tests whose sides are two threads.
struct Pipe {
  std::mutex lock{};
  std::vector<std::byte> bytes{};
  size_t given = 0;  // of them: the others are on their way
  size_t capacity = size_t{1} << 20;
  uint64_t taken = 0;  // in all
  bool finished = false;
  bool reset = false;

  std::span<std::byte> under_way() { return std::span(bytes).subspan(given); }
  void put(std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
    taken += more.size();
  }
  void give(void* to, size_t n) {
    std::memcpy(to, bytes.data() + given, n);
    given += n;
    if (given != bytes.size()) return;
    bytes.clear();
    given = 0;
  }
};

struct Chance {
  size_t at_most = size_t{1} << 20;  // taken or given in one call
  unsigned stalls_percent = 0;
};

class SimulatedStream final : public tcp::Stream {
 public:
  SimulatedStream(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in, const Chance& chance = {},
                  Random* random = nullptr)
      : out_(std::move(out)), in_(std::move(in)), chance_(chance), random_(random) {}
  // As a socket's end: what is sent to it now is answered with a reset.
  ~SimulatedStream() override {
    finish();
    const std::lock_guard guard(in_->lock);
    in_->reset = true;
  }

  Result<size_t> send(std::span<const iovec> pieces) noexcept override {
    const std::lock_guard guard(out_->lock);
    EXPECT_FALSE(out_->finished) << "sent after the end";
    if (out_->reset) return Errc::peer_lost;
    size_t room = amount(out_->capacity - std::min(out_->capacity, out_->under_way().size()));
    if (room == 0) return Errc::again;
    size_t n = 0;
    for (const iovec& piece : pieces) {
      const size_t part = std::min(piece.iov_len, room);
      const auto* from = static_cast<const std::byte*>(piece.iov_base);
      out_->put({from, part});
      n += part;
      room -= part;
    }
    EXPECT_NE(n, 0u);
    return n;
  }
  Result<size_t> receive(std::span<const iovec> places) noexcept override {
    const std::lock_guard guard(in_->lock);
    if (in_->under_way().empty()) {
      if (in_->reset) return Errc::peer_lost;
      return in_->finished ? Errc::shut_down : Errc::again;
    }
    size_t there =
        std::max(amount(in_->under_way().size()), std::min(promised_, in_->under_way().size()));
    if (there == 0) return Errc::again;
    size_t n = 0;
    for (const iovec& place : places) {
      const size_t part = std::min(place.iov_len, there);
      if (part != 0) in_->give(place.iov_base, part);
      n += part;
      there -= part;
    }
    EXPECT_NE(n, 0u);
    promised_ -= std::min(promised_, n);
    return n;
  }
  size_t waiting() const noexcept override {
    if (random_ != nullptr && (*random_)() % 2 == 0) return 0;
    const std::lock_guard guard(in_->lock);
    return promised_ = in_->under_way().size();
  }
  void finish() noexcept override {
    const std::lock_guard guard(out_->lock);
    out_->finished = true;
  }
  int fd() const noexcept override { return -1; }

 private:
  size_t amount(size_t possible) {
    if (random_ == nullptr || possible == 0) return possible;
    if ((*random_)() % 100 < chance_.stalls_percent) return 0;
    return 1 + (*random_)() % std::min(possible, chance_.at_most);
  }

  std::shared_ptr<Pipe> out_, in_;
  const Chance chance_;
  Random* const random_;
  mutable size_t promised_ = 0;  // can be had without a stall
};

// Whom the mover and the lanes of one side tell things.
class MovingHost final : public tcp::MoverHost, public tcp::StreamHost {
 public:
  Status begin_moving(Progress&) noexcept override {
    EXPECT_FALSE(moving);
    moving = refuse == Errc::ok;
    return refuse;
  }
  void end_moving(Progress&) noexcept override {
    EXPECT_TRUE(moving);
    moving = false;
  }
  void on_stream_down(Errc why) noexcept override { ends.push_back(why); }

  bool moving = false;
  Errc refuse = Errc::ok;
  std::vector<Errc> ends;
};

// One side: its mover, and the host of both.
struct MovingSide {
  std::shared_ptr<MovingHost> host = std::make_shared<MovingHost>();
  std::shared_ptr<tcp::Mover> mover = std::make_shared<tcp::Mover>(*host);

  std::unique_ptr<tcp::StreamLane> lane_over(std::unique_ptr<tcp::Stream> stream,
                                             const wire::FrameTrailers& trailers = {}) const {
    tcp::StreamSpec spec;
    spec.remote = Address::v4(0x7f000001, 4711);
    spec.remote_domain = 1;
    spec.trailers = trailers;
    spec.host = host;
    spec.mover = mover;
    return std::move(tcp::StreamLane::make(std::move(stream), std::move(spec))).value();
  }
  // A whole poll of an engine's, with what is done in the midst of it.
  bool poll(
      const std::function<void()>& within = [] {}, bool hurry = true) const {
    const bool any = mover->progress();
    within();
    mover->flush(hurry);
    return any;
  }
};

}  // namespace aperture::link::test
