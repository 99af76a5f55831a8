// Two lanes over a simulated pair of streams, in one thread and from one seed: short sends and
// receives at every byte, stalls, polls in any order, resets, ends in order, and bytes that change
// on their way. Whatever was published arrives once, in order and byte for byte, or the lane goes
// down; and it goes down only if the stream was broken.
//
// APERTURE_SIMULATIONS: how many seeds (default 10,000; ./dev soak: a million), from APERTURE_SEED
// on, which repeats one that has failed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "link/simulated_stream.hpp"
#include "transport/lane_end.hpp"
#include "transport/payload.hpp"

namespace aperture::link::test {
namespace {

using transport::LaneEnd;

// What a record of so many cells looks like, and the bytes that it names.
struct Record {
  uint64_t serial = 0;
  uint64_t position = 0;
  uint32_t bytes = 0;
  uint32_t cells = 1;
};
static_assert(sizeof(Record) <= ring::kBodyBytes);

std::byte fill_of(uint64_t serial, uint64_t nth) {
  return static_cast<std::byte>(serial * 37 + nth * 11 + 5);
}
// Whole granules: what lies between a piece and the next one is nobody's.
void fill_bytes(std::byte* to, const Record& record) {
  for (uint32_t at = 0; at < record.bytes; at += 64) {
    const size_t n = std::min<size_t>(64, record.bytes - at);
    std::memset(to + at, std::to_integer<int>(fill_of(record.serial, at / 64)), n);
  }
}
bool is_filled(const std::byte* from, const Record& record) {
  std::byte expected[64];
  for (uint32_t at = 0; at < record.bytes; at += 64) {
    const size_t n = std::min<size_t>(64, record.bytes - at);
    std::memset(expected, std::to_integer<int>(fill_of(record.serial, at / 64)), n);
    if (std::memcmp(from + at, expected, n) != 0) return false;
  }
  return true;
}

// One direction of one kind: what its producer has published, and what its consumer has seen.
struct Flow {
  uint64_t published = 0;
  uint64_t seen = 0;
};

class Side {
 public:
  Side(std::unique_ptr<tcp::Stream> stream, const wire::FrameTrailers& trailers,
       uint32_t most_bytes)
      : most_bytes_(most_bytes) {
    end_.attach(moving_.lane_over(std::move(stream), trailers));
  }
  ~Side() {
    if (end_) end_.release();
  }

  LaneEnd& end() { return end_; }
  bool lost() const { return end_->lost(); }
  const std::vector<Errc>& told() const { return moving_.host->ends; }
  bool needs_polling() const { return moving_.mover->needs_polling(); }

  void publish_request(Flow& flow, Random& random) {
    if (random() % 8 == 0) {
      return publish_piece(
          flow, random, end_->request_tx,
          [this](uint32_t n, auto record, auto fill) {
            return end_.payload().put_request_piece(n, record, fill);
          },
          [this] { end_.publish_request(1); });
    }
    publish(
        flow, random, end_->request_tx,
        [this](uint32_t n, uint64_t& at, auto fill) {
          return end_.payload().put_request_bytes(n, at, fill);
        },
        [this](uint32_t cells) { end_.publish_request(cells); });
  }
  void publish_response(Flow& flow, Random& random) {
    if (random() % 8 == 0) {
      return publish_piece(
          flow, random, end_->response_tx,
          [this](uint32_t n, auto record, auto fill) {
            return end_.payload().put_response_piece(n, record, fill);
          },
          [this] { end_.publish_response(1); });
    }
    publish(
        flow, random, end_->response_tx,
        [this](uint32_t n, uint64_t& at, auto fill) {
          return end_.payload().put_response_bytes(n, at, fill);
        },
        [this](uint32_t cells) { end_.publish_response(cells); });
  }

  bool poll(Flow& requests, Flow& responses, Random& random, bool hurry) {
    bool any = false;
    const bool moved = moving_.poll(
        [&] {
          any |= take(end_->request_rx, requests, random);
          if (random() % 2 == 0) end_.acknowledge_requests();
          any |= take(end_->response_rx, responses, random);
          if (random() % 2 == 0) end_.acknowledge_responses();
        },
        hurry);
    return moved || any;
  }
  void acknowledge_all() {
    end_.acknowledge_requests();
    end_.acknowledge_responses();
  }
  // Takes whatever is there.
  void drain(Flow& requests, Flow& responses, Random& random) {
    while (take(end_->request_rx, requests, random)) {
    }
    while (take(end_->response_rx, responses, random)) {
    }
  }
  std::unique_ptr<Lane> release() { return end_.release(); }

 private:
  template <typename Put, typename Publish>
  void publish(Flow& flow, Random& random, ring::ChannelTx& tx, Put&& put, Publish&& tell) {
    Record record;
    record.serial = flow.published;
    record.cells = 1 + random() % 3;
    if (!tx.room(record.cells)) return;
    if (random() % 3 == 0) {
      record.bytes = random() % 8 != 0 ? 1 + random() % std::min(most_bytes_, 300u)
                                       : 1 + random() % most_bytes_;
      const auto put_record = [&](std::byte* to) {
        fill_bytes(to, record);
        return true;
      };
      if (put(record.bytes, record.position, put_record) != transport::Put::done) return;
    }
    for (uint32_t i = 0; i < record.cells; ++i) {
      std::memset(tx.cells.body(i), std::to_integer<int>(fill_of(record.serial, i)),
                  ring::kBodyBytes);
    }
    std::memcpy(tx.cells.body(), &record, sizeof record);
    ++flow.published;
    tell(record.cells);
  }

  // As many as follow each other in one run. Their memory is another's as soon as that is over.
  template <typename Put, typename Tell>
  void publish_piece(Flow& flow, Random& random, ring::ChannelTx& tx, Put&& put, Tell&& tell) {
    std::vector<std::vector<std::byte>> sources;
    {
      const transport::PieceRun run(*end_.get());
      for (unsigned left = 1 + random() % 12; left != 0; --left) {
        put_one_piece(flow, random, tx, sources.emplace_back(), put, tell);
      }
    }
    for (auto& source : sources) std::fill(source.begin(), source.end(), std::byte{0xee});
  }
  template <typename Put, typename Tell>
  void put_one_piece(Flow& flow, Random& random, ring::ChannelTx& tx,
                     std::vector<std::byte>& source, Put&& put, Tell&& tell) {
    Record record;
    record.serial = flow.published;
    record.bytes = 1 + random() % most_bytes_;
    if (!tx.room(1)) return;
    source.resize(ring::ByteReader::after(0, record.bytes));
    fill_bytes(source.data(), record);
    const auto lay_out = [&](std::byte* body, uint64_t at) {
      record.position = at;
      std::memset(body, std::to_integer<int>(fill_of(record.serial, 0)), ring::kBodyBytes);
      std::memcpy(body, &record, sizeof record);
    };
    const auto fill = [&](transport::PieceOut out) {
      const iovec iov{source.data(), record.bytes};
      return transport::put_payload(out, &iov, 1, 0, record.bytes);
    };
    if (put(record.bytes, lay_out, fill) != transport::Put::done) return;
    ++flow.published;
    tell();
  }

  // False: it was left for later, or cannot be had.
  bool take_bytes(ring::ChannelRx& rx, const Record& record, Random& random) {
    transport::BytesIn bytes =
        end_.payload().take_piece(rx, Wild(record.position), uint64_t{record.bytes}, ~uint64_t{0});
    EXPECT_TRUE(bool(bytes)) << "bytes of " << record.serial;
    if (bytes.may_land()) {
      const unsigned what = random() % 4;
      if (what == 0) return false;
      if (what == 1) {
        if (!bytes.stage()) return false;
      } else {
        std::vector<std::byte> to(ring::ByteReader::after(0, record.bytes));
        if (!bytes.land(to.data())) return false;
        const auto rest = std::span(to).subspan(record.bytes);
        EXPECT_TRUE(
            std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{}; }));
        EXPECT_TRUE(is_filled(to.data(), record)) << "landed bytes of " << record.serial;
        end_.payload().done_with(rx, bytes);
        return true;
      }
    }
    EXPECT_TRUE(is_filled(bytes.from(), record)) << "bytes of " << record.serial;
    end_.payload().done_with(rx, bytes);
    return true;
  }

  bool take(ring::ChannelRx& rx, Flow& flow, Random& random) {
    bool any = false;
    for (unsigned budget = random() % 20; budget > 0 && rx.cells.ready(); --budget) {
      Record record;
      std::memcpy(&record, rx.cells.body(), sizeof record);
      EXPECT_EQ(record.serial, flow.seen);
      EXPECT_LT(record.cells, 4u);
      for (uint32_t i = 0; i < record.cells; ++i) {
        std::byte expected[ring::kBodyBytes];
        std::memset(expected, std::to_integer<int>(fill_of(record.serial, i)), sizeof expected);
        const size_t from = i == 0 ? sizeof record : 0;
        EXPECT_EQ(std::memcmp(rx.cells.body(i) + from, expected, sizeof expected - from), 0)
            << "record " << record.serial << ", cell " << i;
      }
      if (record.bytes != 0 && !take_bytes(rx, record, random)) break;
      rx.cells.advance(record.cells);
      ++flow.seen;
      any = true;
      if (testing::Test::HasFailure()) break;
    }
    return any;
  }

  const uint32_t most_bytes_;
  MovingSide moving_;
  LaneEnd end_;
};

enum class Fate { whole, reset, closed, damaged };

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    fate_ = static_cast<Fate>(pick({0, 0, 1, 2, 2, 3}));
    Chance chance;
    chance.at_most = pick({1, 7, 64, 1000, 5000, 65536, 65536, 1 << 20, 1 << 20});
    chance.stalls_percent = static_cast<unsigned>(pick({0, 0, 10, 50}));
    for (const auto& pipe : {there_, back_}) {
      pipe->capacity = pick({1, 100, 5000, 65536, 1 << 20, 1 << 20});
      chance.at_most = std::min(chance.at_most, pipe->capacity);
    }
    steps_ = chance.at_most < 64 ? 20 : 60;
    const auto most_bytes =
        static_cast<uint32_t>(std::min<size_t>(48 * 1024, 100 * chance.at_most));
    wire::FrameTrailers of_a;
    using Kind = wire::FrameTrailer::Kind;
    if (fate_ == Fate::damaged || random_() % 2 == 0) {
      of_a.out.kind = of_a.in.kind = random_() % 2 == 0 ? Kind::tag : Kind::checksum;
      for (std::byte& each : of_a.out.key) each = static_cast<std::byte>(random_());
      for (std::byte& each : of_a.in.key) each = static_cast<std::byte>(random_());
    }
    const wire::FrameTrailers of_b{.out = of_a.in, .in = of_a.out};
    a_ = std::make_unique<Side>(std::make_unique<SimulatedStream>(there_, back_, chance, &random_),
                                of_a, most_bytes);
    b_ = std::make_unique<Side>(std::make_unique<SimulatedStream>(back_, there_, chance, &random_),
                                of_b, most_bytes);
  }

  void run() {
    const uint64_t breaks_at = random_() % steps_;
    for (uint64_t step = 0; step < steps_ && !testing::Test::HasFailure(); ++step) {
      if (step == breaks_at && fate_ == Fate::reset) break_stream();
      if (step >= breaks_at && fate_ == Fate::damaged && !damaged_) damage();
      this->step();
    }
    switch (fate_) {
      case Fate::whole: return end_whole();
      case Fate::closed: return end_closed();
      case Fate::reset: return end_broken();
      case Fate::damaged: return damaged_ ? end_damaged() : end_whole();
    }
  }

 private:
  size_t pick(std::initializer_list<size_t> of) { return of.begin()[random_() % of.size()]; }

  void step() {
    const unsigned what = random_() % 100;
    if (what < 20) return a_->publish_request(requests_there_, random_);
    if (what < 35) return b_->publish_request(requests_back_, random_);
    if (what < 45) return a_->publish_response(responses_there_, random_);
    if (what < 55) return b_->publish_response(responses_back_, random_);
    if (what < 57) return a_->acknowledge_all();
    if (what < 59) return b_->acknowledge_all();
    if (what < 80) return poll_a();
    poll_b();
  }
  void poll_a() { a_->poll(requests_back_, responses_back_, random_, random_() % 2 == 0); }
  void poll_b() { b_->poll(requests_there_, responses_there_, random_, random_() % 2 == 0); }

  // As a router might that is switched off: what was under way may arrive in part.
  void break_stream() {
    for (const auto& pipe : {there_, back_}) {
      if (const size_t n = pipe->under_way().size(); n != 0 && random_() % 2 == 0) {
        pipe->bytes.resize(pipe->given + random_() % n);
      }
      pipe->reset = true;
    }
  }
  void damage() {
    Pipe& pipe = *(random_() % 2 == 0 ? there_ : back_);
    const auto bytes = pipe.under_way();
    if (bytes.empty()) return;
    bytes[random_() % bytes.size()] ^= std::byte{1} << random_() % 8;
    damaged_ = true;
  }

  bool all_seen() const {
    for (const Flow* flow :
         {&requests_there_, &requests_back_, &responses_there_, &responses_back_}) {
      if (flow->seen != flow->published) return false;
    }
    return true;
  }
  static bool all_acknowledged(Side& side) {
    Lane& lane = *side.end().get();
    return lane.request_tx.refresh() == lane.request_tx.cells.pos() &&
           lane.response_tx.refresh() == lane.response_tx.cells.pos();
  }

  // Polls until it is so.
  template <typename So>
  void until(So&& so, const char* what) {
    for (int i = 0; i < 2'000'000; ++i) {
      if (so() || testing::Test::HasFailure()) return;
      random_() % 2 == 0 ? poll_a() : poll_b();
      if (i % 16 == 0) {
        a_->acknowledge_all();
        b_->acknowledge_all();
      }
    }
    ADD_FAILURE() << "never: " << what;
  }

  void end_whole() {
    until([&] { return all_seen(); }, "all has arrived");
    until([&] { return all_acknowledged(*a_) && all_acknowledged(*b_); }, "all is acknowledged");
    EXPECT_FALSE(a_->lost() || b_->lost());
    EXPECT_TRUE(a_->told().empty() && b_->told().empty());
    expect_quiet();
  }
  // Nothing is left to be done, and nothing is sent for nothing.
  void expect_quiet() {
    until([&] { return there_->under_way().empty() && back_->under_way().empty(); },
          "nothing is under way");
    for (int i = 0; i < 20; ++i) {
      poll_a();
      poll_b();
    }
    const uint64_t taken = there_->taken + back_->taken;
    for (int i = 0; i < 20; ++i) {
      poll_a();
      poll_b();
    }
    EXPECT_EQ(there_->taken + back_->taken, taken);
    EXPECT_FALSE(a_->needs_polling() || b_->needs_polling());
  }

  // a gives its lane back: b has all that was published before, and then the end.
  void end_closed() {
    std::unique_ptr<Lane> lane = a_->release();
    auto& lingering = static_cast<tcp::StreamLane&>(*lane);
    bool over = false;
    for (int i = 0; i < 2'000'000 && !b_->lost(); ++i) {
      if (!over && random_() % 2 == 0) over = lingering.linger();
      poll_b();
      if (testing::Test::HasFailure()) return;
    }
    b_->drain(requests_there_, responses_there_, random_);
    for (int i = 0; i < 1000; ++i) b_->drain(requests_there_, responses_there_, random_);
    EXPECT_EQ(requests_there_.seen, requests_there_.published);
    EXPECT_EQ(responses_there_.seen, responses_there_.published);
    EXPECT_EQ(b_->told(), std::vector{Errc::shut_down});
    EXPECT_TRUE(a_->told().empty());
    std::unique_ptr<Lane> other = b_->release();
    EXPECT_TRUE(static_cast<tcp::StreamLane&>(*other).linger());
    other.reset();
    for (int i = 0; i < 2'000'000 && !over; ++i) over = lingering.linger();
    EXPECT_TRUE(over);
  }

  // Each side is told once, and has seen a part of what was published.
  void end_broken() {
    until([&] { return a_->lost() && b_->lost(); }, "it is lost");
    EXPECT_EQ(a_->told(), std::vector{Errc::peer_lost});
    EXPECT_EQ(b_->told(), std::vector{Errc::peer_lost});
  }
  // What has been damaged may be how long a frame is, whose end is awaited then: until more comes,
  // or the stream ends.
  void end_damaged() {
    for (int i = 0; i < 300 && !a_->lost() && !b_->lost(); ++i) step();
    const bool seen = a_->lost() || b_->lost();
    if (!seen) break_stream();
    until([&] { return a_->lost() || b_->lost(); }, "it is lost");
    for (Side* side : {a_.get(), b_.get()}) {
      if (!side->lost()) continue;
      EXPECT_TRUE(side->told() == std::vector{Errc::protocol} ||
                  (!seen && side->told() == std::vector{Errc::peer_lost}));
    }
  }

  Random random_;
  Fate fate_;
  uint64_t steps_;
  bool damaged_ = false;
  std::shared_ptr<Pipe> there_ = std::make_shared<Pipe>(), back_ = std::make_shared<Pipe>();
  std::unique_ptr<Side> a_, b_;
  Flow requests_there_, requests_back_, responses_there_, responses_back_;
};

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

TEST(StreamSimulation, what_is_published_arrives_once_and_in_order_or_the_lane_is_lost) {
  const uint64_t first = number_of("APERTURE_SEED", std::random_device()());
  const uint64_t count = number_of("APERTURE_SIMULATIONS", 10'000);
  std::printf("%" PRIu64 " simulations from seed %" PRIu64 " on\n", count, first);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Simulation(seed).run();
    if (HasFailure()) {
      std::printf("APERTURE_SEED=%" PRIu64 " APERTURE_SIMULATIONS=1 repeats it\n", seed);
      return;
    }
  }
}

}  // namespace
}  // namespace aperture::link::test
