// Two queue pairs joined by a lane, as the tests of qp/ use them: everything that an engine and an
// endpoint would give them, in one process. On the direct link each side may reach the other by CMA
// (the other is this very process), with a real key view and real accessor slots.
#pragma once

#include <deque>
#include <functional>

#include "base/clock.hpp"
#include "link/bytes.hpp"
#include "link/lane_pair.hpp"
#include "qp/line.hpp"

namespace aperture::qp::test {

using namespace link::test;  // NOLINT: what those tests have, these have

inline bool same_bytes(const std::byte* a, const std::byte* b, size_t n) {
  return n == 0 || std::memcmp(a, b, n) == 0;
}

// Memory with canaries on both sides.
class Guarded {
 public:
  explicit Guarded(size_t n, unsigned fill = 0)
      : size_(n), bytes_(n + 2 * kCanary, static_cast<std::byte>(fill)) {
    std::fill_n(bytes_.begin(), kCanary, kMark);
    std::fill_n(bytes_.rbegin(), kCanary, kMark);
  }
  std::byte* data() { return bytes_.data() + kCanary; }
  size_t size() const { return size_; }
  uint64_t address() { return reinterpret_cast<uint64_t>(data()); }
  void set(const std::vector<std::byte>& from) { std::copy(from.begin(), from.end(), data()); }
  std::vector<std::byte> get() { return {data(), data() + size_}; }
  bool canaries_intact() const {
    for (size_t i = 0; i < kCanary; ++i) {
      if (bytes_[i] != kMark || bytes_[kCanary + size_ + i] != kMark) return false;
    }
    return true;
  }
  bool all(unsigned value) {
    for (size_t i = 0; i < size_; ++i) {
      if (data()[i] != static_cast<std::byte>(value)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kCanary = 4096;
  static constexpr std::byte kMark{0xa5};
  size_t size_;
  std::vector<std::byte> bytes_;
};

inline iovec iov_of(const std::vector<std::byte>& data) {
  return {const_cast<std::byte*>(data.data()), data.size()};
}
inline iovec iov_of(Guarded& memory) {
  return {memory.data(), memory.size()};
}

// A work request over one piece of memory.
template <typename Wr>
Wr work_of(const iovec& iov, uint64_t context) {
  Wr wr;
  wr.iov = &iov;
  wr.iov_count = 1;
  wr.len = iov.iov_len;
  wr.context = reinterpret_cast<void*>(context);
  return wr;
}
inline constexpr auto send_of = work_of<SendWr>;
inline RmaWr rma_of(const iovec& iov, const RemoteRange& range, uint64_t context) {
  RmaWr wr = work_of<RmaWr>(iov, context);
  wr.ranges = &range;
  wr.range_count = 1;
  return wr;
}

// The oldest completion of a queue, which is there and a success.
inline Completion take(Cq& cq) {
  EXPECT_FALSE(cq.empty());
  if (cq.empty()) return {};
  if (cq.error_first()) {
    ADD_FAILURE() << cq.pop_error().sentence;
    return {};
  }
  const Completion c = cq.front();
  cq.pop();
  return c;
}
// How the oldest one ended.
inline Errc take_end(Cq& cq) {
  EXPECT_FALSE(cq.empty());
  if (cq.empty()) return Errc::timed_out;
  if (cq.error_first()) return cq.pop_error().err;
  cq.pop();
  return Errc::ok;
}
// The contexts of all that have ended, each in success.
inline std::vector<uint64_t> take_contexts(Cq& cq) {
  std::vector<uint64_t> contexts;
  while (!cq.empty()) contexts.push_back(reinterpret_cast<uint64_t>(take(cq).context));
  return contexts;
}

struct Received {
  Arrival::Where where = Arrival::Where::cells;
  bool tagged = false;
  bool has_imm = false;
  Beside beside = Beside::nothing;
  uint64_t tag = 0;
  uint64_t imm = 0;
  uint64_t len = 0;  // of the message
  std::vector<std::byte> payload{};
  Errc err = Errc::ok;
  bool done = true;  // false: offered, and its bytes are on their way
};

// Takes every message and writes down what it was.
class RecordingSink final : public MessageSink {
 public:
  bool on_message(Qp& qp, const Arrival& a) noexcept override {
    if (!accepting) return false;
    Received r = received_of(a);
    if (a.where != Arrival::Where::offered) {
      r.payload.resize(a.len);
      const size_t half = a.len / 2;  // two pieces, so that scattering is met too
      const iovec iov[2] = {{r.payload.data(), half}, {r.payload.data() + half, a.len - half}};
      if (a.len == 0) {
        // nothing to copy, and nowhere to
      } else if (a.len % 2 == 0) {
        a.copy_to(r.payload.data(), a.len);
      } else {
        a.scatter_to(iov, 2, a.len);
      }
      messages.push_back(std::move(r));
      return true;
    }
    if (hold_offers) {
      held.push_back(a);
      return true;
    }
    begin(qp, a);
    return true;
  }

  void begin(Qp& qp, const Arrival& a) {
    Received r = received_of(a);
    r.done = false;
    const uint64_t want = std::min(a.len, at_most);
    r.payload.resize(want);
    messages.push_back(std::move(r));
    Received& kept = messages.back();
    const size_t third = want / 3;
    iovs.push_back({});
    auto& iov = iovs.back();
    iov[0] = {kept.payload.data(), third};
    iov[1] = {kept.payload.data() + third, want - third};
    const Status s = qp.begin_receive(a, {iov.data(), 2, want, &kept});
    if (!s) on_received(qp, &kept, s.error());
  }

  void on_received(Qp&, void* cookie, Errc err) noexcept override {
    auto& r = *static_cast<Received*>(cookie);
    EXPECT_FALSE(r.done) << "told twice";
    r.done = true;
    r.err = err;
  }

  bool all_done() const {
    for (const Received& r : messages) {
      if (!r.done) return false;
    }
    return true;
  }

  bool accepting = true;
  bool hold_offers = false;
  uint64_t at_most = ~uint64_t{0};
  std::deque<Received> messages;  // a deque: cookies stay where they are
  std::deque<std::array<iovec, 2>> iovs;
  std::vector<Arrival> held;

 private:
  static Received received_of(const Arrival& a) {
    const bool has_imm = a.beside != Beside::nothing;
    return {.where = a.where,
            .tagged = a.tagged,
            .has_imm = has_imm,
            .beside = a.beside,
            .tag = a.tag,
            .imm = has_imm ? a.imm : 0,
            .len = a.len};
  }
};

struct Options {
  size_t cq_entries = 1024;
  size_t tx_size = 1024;
  bool strict = false;
};

struct Side {
  Side(protect::KeyTable& keys, const Options& o, const Address& remote)
      : port(keys, 64), tx_cq(o.cq_entries), rx_cq(o.cq_entries), domain(protect::new_domain()) {
    port.domain = domain;
    port.sink = &sink;
    port.tx_cq = &tx_cq;
    port.rx_cq = &rx_cq;
    port.send_counter = &sends;
    port.read_counter = &reads;
    port.write_counter = &writes;
    port.set_imm_flag(1);
    port.remote_write_flags = 2;
    port.strict_rma_order = o.strict;
    port.tx.size = o.tx_size;
    qp = std::make_unique<Qp>(port, remote);
  }
  bool poll() {
    if (lanes != nullptr) lanes->before_poll(which);
    const bool any = qp->poll(++polls);
    if (lanes != nullptr) lanes->after_poll(which);
    return any;
  }
  Status send(const iovec& iov, uint64_t context) {
    return qp->requester().send(send_of(iov, context));
  }
  Status rma(WqeKind kind, const iovec& iov, const RemoteRange& range, uint64_t context) {
    return qp->requester().rma(kind, rma_of(iov, range, context));
  }
  // As a door tries it first, with one piece. False: nothing was done.
  bool write_line(const RmaWr& wr) {
    return qp->line().write({.addr = wr.ranges->addr,
                             .len = wr.len,
                             .key = wr.ranges->key,
                             .imm = wr.imm,
                             .context = wr.context,
                             .flags = wr.flags,
                             .has_imm = wr.has_imm,
                             .completion = wr.completion != kCounted},
                            wr.iov->iov_base);
  }
  Status write(const iovec& iov, const RemoteRange& range, uint64_t context) {
    return rma(WqeKind::write, iov, range, context);
  }
  Status read(const iovec& iov, const RemoteRange& range, uint64_t context) {
    return rma(WqeKind::read, iov, range, context);
  }
  // Counts the accesses of peers; before attach() it also asks to be told of direct ones.
  void count_accesses() {
    port.remote_read_counter = &remote_reads;
    port.remote_write_counter = &remote_writes;
  }

  Port port;
  Cq tx_cq;
  Cq rx_cq;
  Counter sends, reads, writes, remote_reads, remote_writes;
  RecordingSink sink;
  protect::DomainId domain;
  uint64_t polls = 0;
  std::unique_ptr<Qp> qp;
  link::test::LanePair* lanes = nullptr;  // which of them is moved with each poll
  LanePair::Of which = LanePair::Of::a;
};

class Pair : public link::test::LanePair {
 public:
  explicit Pair(LinkKind kind, const Options& o = {}) : LanePair(kind) {
    Address there;
    there.ip[15] = 1;
    there.port = 7;
    a = std::make_unique<Side>(*keys, o, there);
    b = std::make_unique<Side>(*keys, o, there);
    a->lanes = b->lanes = this;
    b->which = Of::b;
    make(a->domain, b->domain);
  }
  ~Pair() {
    // a Qp hands its slot back: before the segment goes
    if (a) a->qp->finish(Errc::shut_down);
    if (b) b->qp->finish(Errc::shut_down);
  }

  // Dead queue pairs give way to new ones over a new lane of the same segment.
  void renew() {
    for (auto* side : {&a, &b}) {
      Side& s = **side;
      s.qp = std::make_unique<Qp>(s.port, s.qp->remote());
      s.sink.messages.clear();
    }
    make(a->domain, b->domain);
    attach();
  }

  // Both sides have their lane, and know what the other one permits.
  void attach() {
    a->qp->attach(std::move(lane_a));
    b->qp->attach(std::move(lane_b));
    a->poll();
    b->poll();
  }
  // Side a alone; the bare lane at the other end has taken its permit.
  void attach_a() {
    a->qp->attach(std::move(lane_a));
    LanePair::move();
    lane_b->response_rx.cells.advance(1);
  }

  // Polls both sides until it is so; false after about five seconds.
  bool until(const std::function<bool()>& so) { return until(so, true, true); }
  bool until(const std::function<bool()>& so, bool poll_a, bool poll_b) {
    const uint64_t end = now_ns() + 5'000'000'000;
    for (;;) {
      if (so()) return true;
      if (now_ns() > end) return false;
      if (poll_a) a->poll();
      if (poll_b) b->poll();
    }
  }
  void settle() {
    for (int i = 0; i < 200; ++i) {
      a->poll();
      b->poll();
    }
  }

  // A region of side `of` that the other side may reach.
  protect::RegionHandle region(Side& of, Guarded& memory, protect::Rights rights,
                               bool zero_based = false) {
    protect::RegionSpec spec = spec_of(of, memory, rights);
    spec.zero_based = zero_based;
    return *keys->add(spec);
  }
  static protect::RegionSpec spec_of(Side& of, Guarded& memory, protect::Rights rights) {
    protect::RegionSpec spec;
    spec.pd = of.domain;
    spec.base = memory.address();
    spec.length = memory.size();
    spec.rights = rights;
    return spec;
  }
  void close(protect::RegionHandle region) {
    EXPECT_TRUE(keys->revocation().revoke(region, now_ns() + 1'000'000'000));
  }

  std::unique_ptr<Side> a, b;
};

// A lane of a pair of the suite's, with both sides at hand.
template <typename Param>
class OnePair : public testing::TestWithParam<Param> {
 protected:
  explicit OnePair(LinkKind link) : pair_(link) {}
  Side& a() { return *pair_.a; }
  Side& b() { return *pair_.b; }

  Pair pair_;
};

}  // namespace aperture::qp::test
