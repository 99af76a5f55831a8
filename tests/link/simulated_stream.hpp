// Two streams joined in memory, for lanes over streams: one thread, and one source of chance that
// says how much of each call is taken, when a side stalls, and where the stream breaks. And what
// else such a lane needs to be moved.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "link/tcp/mover.hpp"
#include "link/tcp/stream_lane.hpp"

namespace aperture::link::test {

using Random = std::minstd_rand;

// One direction.
struct Pipe {
  std::vector<std::byte> bytes{};  // on their way
  size_t capacity = size_t{1} << 20;
  uint64_t taken = 0;  // in all
  bool finished = false;
  bool reset = false;
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
    out_->finished = true;
    in_->reset = true;
  }

  Result<size_t> send(std::span<const iovec> pieces) noexcept override {
    EXPECT_FALSE(out_->finished) << "sent after the end";
    if (out_->reset) return Errc::peer_lost;
    size_t room = amount(out_->capacity - out_->bytes.size());
    if (room == 0) return Errc::again;
    size_t n = 0;
    for (const iovec& piece : pieces) {
      const size_t part = std::min(piece.iov_len, room);
      const auto* from = static_cast<const std::byte*>(piece.iov_base);
      out_->bytes.insert(out_->bytes.end(), from, from + part);
      n += part;
      room -= part;
    }
    EXPECT_NE(n, 0u);
    out_->taken += n;
    return n;
  }
  Result<size_t> receive(std::span<const iovec> places) noexcept override {
    if (in_->bytes.empty()) {
      if (in_->reset) return Errc::peer_lost;
      return in_->finished ? Errc::shut_down : Errc::again;
    }
    size_t there = amount(in_->bytes.size());
    if (there == 0) return Errc::again;
    size_t n = 0;
    for (const iovec& place : places) {
      const size_t part = std::min(place.iov_len, there);
      std::memcpy(place.iov_base, in_->bytes.data() + n, part);
      n += part;
      there -= part;
    }
    EXPECT_NE(n, 0u);
    in_->bytes.erase(in_->bytes.begin(), in_->bytes.begin() + static_cast<ptrdiff_t>(n));
    return n;
  }
  void finish() noexcept override { out_->finished = true; }
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
                                             std::optional<wire::FrameKeys> keys = {}) const {
    tcp::StreamSpec spec;
    spec.remote = Address::v4(0x7f000001, 4711);
    spec.remote_domain = 1;
    spec.keys = keys;
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
