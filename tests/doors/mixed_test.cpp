// A long stream of messages of mixed sizes, calls and flags between two processes, each with its
// sequence number and contents that follow from it: nothing is lost, comes twice, overtakes or is
// changed, exactly the completions come that are due, and neither process grows. fi_msg(3),
// fi_tagged(3), fi_endpoint(3) on op_flags.
//
// APERTURE_MESSAGES is how many (default 20,000; ./dev soak: 10,000,000).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kLargest = 300'000;
constexpr size_t kWindow = 24;  // operations under way at each side, of each kind
// Messages that come before their receives are kept, up to 16 MiB of them (msg/core.hpp).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kGrowthKiB = SIZE_MAX / 2;  // they keep what was freed
#else
constexpr size_t kGrowthKiB = 20 * 1024;
#endif

uint64_t messages() {
  const char* text = std::getenv("APERTURE_MESSAGES");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 20'000;
}

Options options() {
  return {.caps = FI_MSG | FI_TAGGED | FI_FENCE,
          .cq_flags = FI_SELECTIVE_COMPLETION,
          .tx_op_flags = FI_COMPLETION,
          .rx_op_flags = FI_COMPLETION,
          .cq_data_size = 8};
}

struct Header {
  uint64_t sequence;
  uint64_t len;
};

// A few bits of a number that both sides draw for a message.
class Draw {
 public:
  explicit Draw(uint64_t seed) : left_((seed + 1) * 0x9E3779B97F4A7C15ull) {
    left_ = (left_ ^ (left_ >> 31)) * 0xBF58476D1CE4E5B9ull;
    left_ ^= left_ >> 29;
  }
  uint64_t below(uint64_t n) {
    const uint64_t drawn = left_ % n;
    left_ /= n;
    return drawn;
  }

 private:
  uint64_t left_;
};

enum class Call { plain, vector, message, with_data, inject, inject_data, count };

// What message number `sequence` is.
struct Plan {
  Plan(uint64_t seed, uint64_t sequence, size_t inject_size) {
    Draw draw(seed + sequence);
    tagged = draw.below(2) == 1;
    call = static_cast<Call>(draw.below(static_cast<uint64_t>(Call::count)));
    const uint64_t kind = draw.below(1000);
    const size_t top = kind < 850 ? 200 : kind < 970 ? 4096 : kind < 999 ? 65536 : kLargest;
    len = sizeof(Header) + draw.below(top - sizeof(Header) + 1);
    if (call == Call::inject || call == Call::inject_data) len = std::min(len, inject_size);
    pieces = 1 + draw.below(4);
    if (call == Call::message) choose_flags(draw, inject_size);
    data = call == Call::with_data || call == Call::inject_data || (flags & FI_REMOTE_CQ_DATA) != 0;
    completes = (flags & FI_COMPLETION) != 0 || call == Call::plain || call == Call::vector ||
                call == Call::with_data;
  }
  void choose_flags(Draw& draw, size_t inject_size) {
    constexpr uint64_t kLevels[] = {0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE,
                                    FI_DELIVERY_COMPLETE};
    flags = kLevels[draw.below(std::size(kLevels))] | FI_COMPLETION;
    if (len <= inject_size && draw.below(3) == 0) {
      // without a completion the buffer is free at once all the same
      flags = FI_INJECT | (draw.below(2) == 0 ? FI_COMPLETION : 0);
    }
    if (draw.below(2) == 0) flags |= FI_REMOTE_CQ_DATA;
    if (draw.below(4) == 0) flags |= FI_MORE;
    if (draw.below(16) == 0) flags |= FI_FENCE;
  }
  bool tagged = false, data = false, completes = false;
  Call call = Call::plain;
  size_t len = 0, pieces = 1;
  uint64_t flags = 0;
};

// A buffer in that many pieces.
struct Pieces {
  Pieces(uint8_t* at, size_t len, size_t pieces) : count(pieces) {
    for (size_t i = 0; i < count; ++i) {
      const size_t here = i + 1 == count ? len : len / count;
      iov[i] = {at, here};
      at += here;
      len -= here;
    }
  }
  iovec iov[4];
  size_t count;
};

size_t resident_kib() {
  size_t pages = 0;
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "r"), std::fclose);
  if (!file || std::fscanf(file.get(), "%*u %zu", &pages) != 1) return 0;
  return pages * 4;
}

// Says what has grown since it was first asked.
class Growth {
 public:
  std::string seen() {
    const size_t now = resident_kib();
    const Holdings held = count_holdings();
    if (first_kib_ == 0) {
      first_kib_ = now;
      first_ = held;
      return {};
    }
    if (now > first_kib_ + kGrowthKiB)
      return "grew from " + std::to_string(first_kib_) + " to " + std::to_string(now) + " KiB";
    if (held.fds > first_.fds) return "more descriptors than after a tenth of the messages";
    return {};
  }

 private:
  size_t first_kib_ = 0;
  Holdings first_;
};

struct Start {
  Name name;
  uint64_t seed;
  uint64_t messages;
};
struct Verdict {
  char text[200];
};

class Sender {
 public:
  Sender(Node& node, const Start& start)
      : node_(node), start_(start), to_(node.insert(start.name)), slots_(kWindow) {
    for (Slot& slot : slots_) slot.bytes.resize(kLargest);
  }
  std::string run() {
    const size_t inject_size = node_.info()->tx_attr->inject_size;
    Growth growth;
    for (uint64_t i = 0; i < start_.messages; ++i) {
      Slot& slot = slots_[i % kWindow];
      if (std::string wrong = reap(slot); !wrong.empty()) return wrong;
      const Plan plan(start_.seed, i, inject_size);
      const Header header{i, plan.len};
      std::memcpy(slot.bytes.data(), &header, sizeof header);
      fill({slot.bytes.data() + sizeof header, plan.len - sizeof header}, start_.seed + i);
      if (const int64_t code = post(plan, slot, i); code != 0)
        return "message " + std::to_string(i) + ": " + std::to_string(code);
      slot.busy = plan.completes;
      if (i == start_.messages / 10) growth.seen();
    }
    for (Slot& slot : slots_) {
      if (std::string wrong = reap(slot); !wrong.empty()) return wrong;
    }
    if (!node_.quiet()) return "a completion that is not due";
    return growth.seen();
  }

 private:
  struct Slot {
    std::vector<uint8_t> bytes;
    Op op;
    bool busy = false;
  };
  std::string reap(Slot& slot) {
    if (!slot.busy) return {};
    slot.busy = false;
    const int err = node_.wait(&slot.op, 60000).err;
    return err == 0 ? "" : "a send ended with " + std::to_string(err);
  }
  int64_t post(const Plan& plan, Slot& slot, uint64_t i) {
    uint8_t* at = slot.bytes.data();
    Pieces pieces(at, plan.len, plan.pieces);
    const uint64_t tag = ~i;
    const bool t = plan.tagged;
    switch (plan.call) {
      case Call::plain:
        return t ? node_.post(fi_tsend, at, plan.len, nullptr, to_, tag, &slot.op)
                 : node_.post(fi_send, at, plan.len, nullptr, to_, &slot.op);
      case Call::vector:
        return t ? node_.post(fi_tsendv, pieces.iov, nullptr, pieces.count, to_, tag, &slot.op)
                 : node_.post(fi_sendv, pieces.iov, nullptr, pieces.count, to_, &slot.op);
      case Call::with_data:
        return t ? node_.post(fi_tsenddata, at, plan.len, nullptr, i, to_, tag, &slot.op)
                 : node_.post(fi_senddata, at, plan.len, nullptr, i, to_, &slot.op);
      case Call::inject:
        return t ? node_.post(fi_tinject, at, plan.len, to_, tag)
                 : node_.post(fi_inject, at, plan.len, to_);
      case Call::inject_data:
        return t ? node_.post(fi_tinjectdata, at, plan.len, i, to_, tag)
                 : node_.post(fi_injectdata, at, plan.len, i, to_);
      default: break;
    }
    if (t) {
      const fi_msg_tagged m{pieces.iov, nullptr, pieces.count, to_, tag, 0, &slot.op, i};
      return node_.post(fi_tsendmsg, &m, plan.flags);
    }
    const fi_msg m{pieces.iov, nullptr, pieces.count, to_, &slot.op, i};
    return node_.post(fi_sendmsg, &m, plan.flags);
  }

  Node& node_;
  const Start start_;
  const fi_addr_t to_;
  std::vector<Slot> slots_;
};

// Messages of one kind are received in the order in which they were sent.
class Receiver {
 public:
  Receiver(Node& node, const Start& start)
      : node_(node), start_(start), inject_size_(node.info()->tx_attr->inject_size) {
    for (Line& line : lines_) {
      line.slots.resize(kWindow);
      for (Slot& slot : line.slots) slot.bytes.resize(kLargest);
    }
  }
  std::string post_all() {
    for (const bool tagged : {false, true}) {
      for (Slot& slot : lines_[tagged].slots) {
        if (post(slot, tagged) != 0) return "cannot post a receive";
      }
    }
    return {};
  }
  std::string run() {
    Growth growth;
    for (uint64_t i = 0; i < start_.messages; ++i) {
      const Plan plan(start_.seed, i, inject_size_);
      Line& line = lines_[plan.tagged];
      Slot& slot = line.slots[line.next++ % kWindow];
      const Completion c = node_.wait(&slot.op, 60000);
      if (std::string wrong = check(c, slot, plan, i); !wrong.empty())
        return "message " + std::to_string(i) + ": " + wrong;
      if (post(slot, plan.tagged) != 0) return "cannot post a receive";
      if (i == start_.messages / 10) growth.seen();
    }
    if (!node_.quiet()) return "more messages than were sent";
    return growth.seen();
  }

 private:
  struct Slot {
    std::vector<uint8_t> bytes;
    Op op;
  };
  struct Line {
    std::vector<Slot> slots;
    uint64_t next = 0;
  };
  std::string check(const Completion& c, const Slot& slot, const Plan& plan, uint64_t i) const {
    if (c.err != 0) return "ended with " + std::to_string(c.err);
    const uint64_t flags =
        FI_RECV | (plan.tagged ? FI_TAGGED : FI_MSG) | (plan.data ? FI_REMOTE_CQ_DATA : 0);
    if (c.flags != flags) return "flags " + std::to_string(c.flags);
    if (plan.data && c.data != i) return "data " + std::to_string(c.data);
    if (plan.tagged && c.tag != ~i) return "tag " + std::to_string(c.tag);
    if (c.len != plan.len) return "length " + std::to_string(c.len);
    Header header{};
    std::memcpy(&header, slot.bytes.data(), sizeof header);
    if (header.sequence != i) return "it is number " + std::to_string(header.sequence);
    if (header.len != plan.len) return "it says length " + std::to_string(header.len);
    const auto at = first_difference({slot.bytes.data() + sizeof header, plan.len - sizeof header},
                                     start_.seed + i);
    return at ? "byte " + std::to_string(*at) + " differs" : "";
  }
  int64_t post(Slot& slot, bool tagged) {
    uint8_t* at = slot.bytes.data();
    const Pieces pieces(at, kLargest, 1 + posted_ % 4);
    const bool by_vector = ++posted_ % 3 == 0;
    const bool by_message = posted_ % 3 == 1;
    if (tagged) {
      const fi_msg_tagged m{pieces.iov, nullptr, pieces.count, FI_ADDR_UNSPEC,
                            0,          ~0ull,   &slot.op,     0};
      if (by_message) return node_.post(fi_trecvmsg, &m, FI_COMPLETION);
      return by_vector
                 ? node_.post(fi_trecvv, pieces.iov, nullptr, pieces.count, FI_ADDR_UNSPEC, 0,
                              ~0ull, &slot.op)
                 : node_.post(fi_trecv, at, kLargest, nullptr, FI_ADDR_UNSPEC, 0, ~0ull, &slot.op);
    }
    const fi_msg m{pieces.iov, nullptr, pieces.count, FI_ADDR_UNSPEC, &slot.op, 0};
    if (by_message) return node_.post(fi_recvmsg, &m, FI_COMPLETION);
    return by_vector
               ? node_.post(fi_recvv, pieces.iov, nullptr, pieces.count, FI_ADDR_UNSPEC, &slot.op)
               : node_.post(fi_recv, at, kLargest, nullptr, FI_ADDR_UNSPEC, &slot.op);
  }

  Node& node_;
  const Start start_;
  const size_t inject_size_;
  Line lines_[2];
  uint64_t posted_ = 0;
};

DOOR_ROLE(mixed_sender) {
  Start start{};
  if (!control.get(&start)) return 1;
  Node node(options());
  const std::string wrong = Sender(node, start).run();
  Verdict verdict{};
  std::snprintf(verdict.text, sizeof verdict.text, "%s", wrong.c_str());
  control.put(verdict);
  pump_until([&] { return control.ready(); }, 60000);
  return wrong.empty() ? 0 : 2;
}

class Mixed : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(direct, Mixed, testing::Values(true, false),
                         [](const auto& p) { return p.param ? "allowed" : "denied"; });

TEST_P(Mixed, messages_of_all_sizes_and_flags_arrive_once_and_in_order) {
  const bool allowed = GetParam();
  const uint64_t share = allowed ? messages() : messages() / 10;
  Node node(options());
  const Start start{node.name(), seed_of(allowed ? 1 : 2), share};
  Receiver receiver(node, start);
  Child child("mixed_sender", child_denying(!allowed));
  ASSERT_EQ(receiver.post_all(), "");
  ASSERT_TRUE(child.control().put(start));
  EXPECT_EQ(receiver.run(), "");
  pump_until([&] { return child.control().ready(); }, 60000);
  Verdict verdict{};
  ASSERT_TRUE(child.control().get(&verdict, 0)) << "the sender ended";
  EXPECT_STREQ(verdict.text, "") << "at the sender";
}

}  // namespace
}  // namespace aperture::doors
