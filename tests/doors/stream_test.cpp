// Two processes that send to each other at the same time, as fast as they can, every message
// checked: windows of messages of all paths in both directions, with the buffers used again at
// once.
#include <gtest/gtest.h>

#include <cstdio>

#include "doors/child.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

struct Stream {
  char name[32];
  uint32_t messages;
  uint32_t window;
  uint32_t smallest;
  uint32_t largest;
  bool rma;  // writes and reads between the messages
  bool denied;
};

void PrintTo(const Stream& s, std::ostream* out) {
  *out << s.name;
}

struct Introduction {
  Stream stream;
  Remote remote;
  uint64_t seed;
  Name name;
};

constexpr size_t kRegionBytes = 512 * kKiB;

// One end: sends and receives the whole stream with its peer; an empty string if all was right.
class End {
 public:
  End() : node_(options()), region_(node_, kRegionBytes, kAllAccess, 1) {}

  Introduction introduce() { return {.remote = region_.remote(), .name = node_.name()}; }

  // `mine` and `theirs` are the seeds of the two directions.
  std::string run(const Introduction& peer, const Stream& s, uint64_t mine, uint64_t theirs) {
    to_ = node_.insert(peer.name);
    slots_.clear();
    for (uint32_t i = 0; i < s.window; ++i) slots_.push_back(std::make_unique<Slot>(s));
    uint32_t done = 0;
    for (uint32_t i = 0; i < s.window && i < s.messages; ++i)
      if (!begin(i, s, mine, theirs)) return "cannot post message " + std::to_string(i);
    for (; done < s.messages; ++done) {
      const std::string wrong = end(done, s, theirs);
      if (!wrong.empty()) return "message " + std::to_string(done) + ": " + wrong;
      if (s.rma && done % 5 == 0 && !access(peer.remote, s, done))
        return "remote access after message " + std::to_string(done);
      if (done + s.window < s.messages && !begin(done + s.window, s, mine, theirs))
        return "cannot post a message";
    }
    return {};
  }
  void linger(Control& control) {
    pump_until([&] { return control.ready(); }, 20000);
  }

 private:
  struct Slot {
    explicit Slot(const Stream& s) : out(s.largest), in(s.largest) {}
    Op send, receive;
    std::vector<uint8_t> out;
    Guarded in;
  };
  static Options options() { return {.mr_mode = kBasicMr}; }
  static size_t size_of(uint32_t i, const Stream& s, uint64_t seed) {
    uint64_t x = (seed + i) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    return s.smallest + x % (s.largest - s.smallest + 1);
  }
  bool begin(uint32_t i, const Stream& s, uint64_t mine, uint64_t theirs) {
    Slot& slot = *slots_[i % s.window];
    const size_t incoming = size_of(i, s, theirs), outgoing = size_of(i, s, mine);
    fill({slot.out.data(), outgoing}, mine + i);
    return node_.post(fi_trecv, slot.in.data(), incoming, nullptr, to_, i, 0, &slot.receive) == 0 &&
           node_.post(fi_tsend, slot.out.data(), outgoing, nullptr, to_, i, &slot.send) == 0;
  }
  std::string end(uint32_t i, const Stream& s, uint64_t theirs) {
    Slot& slot = *slots_[i % s.window];
    const Completion received = node_.wait(&slot.receive, 30000);
    if (received.err != 0) return "receive ended with " + std::to_string(received.err);
    if (received.len != size_of(i, s, theirs)) return "length " + std::to_string(received.len);
    if (const auto at = first_difference({slot.in.data(), received.len}, theirs + i))
      return "byte " + std::to_string(*at) + " of " + std::to_string(received.len) + " differs";
    if (!slot.in.intact()) return "canaries";
    const Completion sent = node_.wait(&slot.send, 30000);
    if (sent.err != 0) return "send ended with " + std::to_string(sent.err);
    return {};
  }
  // Writes into the peer's region and reads the same bytes back.
  bool access(const Remote& remote, const Stream& s, uint32_t i) {
    const size_t size = 1 + size_of(i, s, 77) % (kRegionBytes - 1);
    std::vector<uint8_t> out(size), in(size);
    fill(out, i);
    Op write, read;
    if (node_.post(fi_write, out.data(), size, nullptr, to_, remote.base, remote.key, &write) !=
            0 ||
        node_.wait(&write).err != 0)
      return false;
    if (node_.post(fi_read, in.data(), size, nullptr, to_, remote.base, remote.key, &read) != 0 ||
        node_.wait(&read).err != 0)
      return false;
    return in == out;
  }

  Node node_;
  Region region_;
  fi_addr_t to_ = FI_ADDR_UNSPEC;
  std::vector<std::unique_ptr<Slot>> slots_;
};

struct Verdict {
  char text[200];
};

DOOR_ROLE(streamer) {
  End end;
  Introduction peer{};
  if (!control.put(end.introduce()) || !control.get(&peer)) return 1;
  const std::string wrong = end.run(peer, peer.stream, peer.seed + 1, peer.seed);
  Verdict verdict{};
  std::snprintf(verdict.text, sizeof verdict.text, "%s", wrong.c_str());
  control.put(verdict);
  end.linger(control);
  return wrong.empty() ? 0 : 2;
}

class BothWays : public testing::TestWithParam<Stream> {};

TEST_P(BothWays, every_message_arrives_whole) {
  const Stream& s = GetParam();
  Child child("streamer", child_denying(s.denied));
  End end;
  Introduction peer{};
  ASSERT_TRUE(child.control().get(&peer, 20000));
  Introduction own = end.introduce();
  own.stream = s;
  own.seed = seed_of(s.largest);
  ASSERT_TRUE(child.control().put(own));
  EXPECT_EQ(end.run(peer, s, own.seed, own.seed + 1), "");
  end.linger(child.control());
  Verdict verdict{};
  ASSERT_TRUE(child.control().get(&verdict, 0)) << "the other end ended";
  EXPECT_STREQ(verdict.text, "") << "at the other end";
}

INSTANTIATE_TEST_SUITE_P(
    Streams, BothWays,
    testing::Values(Stream{"tiny", 50000, 64, 0, 64, false, false},
                    Stream{"one_at_a_time", 3000, 1, 16000, 70000, false, false},
                    Stream{"around_the_first_offer", 8000, 8, 15000, 34000, false, false},
                    Stream{"large", 400, 4, 200000, 3000000, false, false},
                    Stream{"all_sizes", 3000, 16, 0, 300000, false, false},
                    Stream{"with_remote_access", 2000, 8, 0, 100000, true, false},
                    Stream{"denied", 3000, 8, 0, 300000, false, true},
                    Stream{"denied_with_remote_access", 1000, 8, 0, 100000, true, true}),
    kByName);

}  // namespace
}  // namespace aperture::doors
