// Two connected queue pairs over a lane, as the tests of ib/ use them: everything that an engine
// and a context would give them, in one process.
#pragma once

#include <functional>

#include "base/clock.hpp"
#include "ib/rc_qp.hpp"
#include "ib/window_book.hpp"
#include "link/bytes.hpp"
#include "link/lane_pair.hpp"

namespace aperture::ib::test {

using namespace link::test;  // NOLINT: what those tests have, these have
using protect::Rights;

constexpr Rights kLocal = Rights::local_read | Rights::local_write;
constexpr Rights kEverything =
    kLocal | Rights::remote_read | Rights::remote_write | Rights::remote_atomic;

// What completions end with, oldest first; and with the ids of their work requests.
using enum WcStatus;
using Ends = std::vector<WcStatus>;
using Ended = std::vector<std::pair<uint64_t, WcStatus>>;

inline Ended ended(CompletionQueue& cq) {
  Ended all;
  for (; !cq.empty(); cq.pop()) all.emplace_back(cq.front().id, cq.front().status);
  return all;
}
inline Ends ends_of(CompletionQueue& cq) {
  Ends all;
  for (const auto& [id, status] : ended(cq)) all.push_back(status);
  return all;
}

class Events final : public CqEvents, public QpEvents, public SrqEvents {
 public:
  void on_completion_event() noexcept override {
    ++completions;
    if (on_completion) on_completion();
  }
  void on_overrun() noexcept override { ++overruns; }
  void on_async_event(AsyncEvent event) noexcept override { async.push_back(event); }
  void on_limit_reached() noexcept override { ++limits; }
  std::function<void()> on_completion;
  int completions = 0;
  int overruns = 0;
  int limits = 0;
  std::vector<AsyncEvent> async;
};

constexpr uint32_t kXrcDomain = 5;

struct Options {
  QpType type = QpType::rc;
  uint32_t send_wrs = 64;
  uint32_t recv_wrs = 64;
  uint32_t cq_entries = 256;
  uint32_t access = kAllowRemoteRead | kAllowRemoteWrite | kAllowRemoteAtomic;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 1;
  uint8_t timeout = 0;
  uint8_t retry_cnt = 0;
  bool sig_all = true;
  ReceiveQueue* srq = nullptr;  // not owned; of its engine
};

// Memory that is registered under one key.
struct Registered {
  explicit Registered(size_t size) : memory(size) {}

  uint64_t address(size_t offset = 0) const {
    return reinterpret_cast<uint64_t>(memory.data()) + offset;
  }
  uint32_t key() const { return static_cast<uint32_t>(region.key); }
  Sge sge(size_t offset, size_t len) const {
    return {address(offset), static_cast<uint32_t>(len), key()};
  }
  void fill(size_t offset, const std::vector<std::byte>& from) {
    std::copy(from.begin(), from.end(), memory.begin() + static_cast<ptrdiff_t>(offset));
  }
  std::vector<std::byte> bytes(size_t offset, size_t n) const {
    const auto at = memory.begin() + static_cast<ptrdiff_t>(offset);
    return {at, at + static_cast<ptrdiff_t>(n)};
  }
  // The oldest completion of a queue, which is there.
  static Wc take(CompletionQueue& cq) {
    EXPECT_FALSE(cq.empty());
    if (cq.empty()) return {};
    const Wc wc = cq.front();
    cq.pop();
    return wc;
  }

  std::vector<std::byte> memory;
  protect::RegionHandle region;
};

// One end, with memory that says where it belongs.
class Side final : public LaneHost, public Registered {
 public:
  Side(protect::KeyTable& keys, const Options& o, uint32_t qpn, size_t memory_bytes)
      : Registered(memory_bytes),
        keys_(keys),
        domain(protect::new_domain()),
        send_cq(o.cq_entries, events, false),
        recv_cq(o.cq_entries, events, false) {
    QpSpec spec{.type = o.type,
                .qpn = qpn,
                .keys = &keys,
                .pd = domain,
                .windows = &windows,
                .send_cq = &send_cq,
                .recv_cq = &recv_cq,
                .srq = o.srq,
                .max_send_wr = o.send_wrs,
                .max_recv_wr = o.recv_wrs,
                .max_send_sge = 4,
                .max_recv_sge = 4,
                .max_inline_bytes = 256,
                .sq_sig_all = o.sig_all,
                .events = &events};
    if (o.type == QpType::xrc_recv) {
      spec.send_cq = spec.recv_cq = nullptr;
      spec.xrc_domain = kXrcDomain;
    }
    qp = std::make_unique<RcQp>(spec, *this);
    region = add(memory.data(), memory.size(), kEverything);
    options_ = o;
  }
  ~Side() override {
    qp->leave();
    qp.reset();
  }

  void want_lane() noexcept override { ++wanted; }
  void give_back(std::unique_ptr<link::Lane> lane) noexcept override {
    given_back = std::move(lane);
  }
  void share_taken() noexcept override { ++shares; }

  protect::RegionHandle add(void* base, size_t len, Rights rights) {
    static uint64_t next_key = 0x1000;
    return *keys_.add({.pd = domain,
                       .base = reinterpret_cast<uint64_t>(base),
                       .length = len,
                       .rights = rights,
                       .requested_key = next_key++});
  }

  void go_to(QpState state, uint32_t mask = 0, QpAttributes attr = {}) {
    attr.state = state;
    qp->modify(attr, mask | kAttrState);
  }
  void bring_up() {
    QpAttributes attr;
    attr.access = options_.access;
    attr.rnr_retry = options_.rnr_retry;
    attr.min_rnr_timer = options_.min_rnr_timer;
    attr.timeout = options_.timeout;
    attr.retry_cnt = options_.retry_cnt;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
    for (const QpState state : {QpState::init, QpState::rtr, QpState::rts}) {
      attr.state = state;
      qp->modify(attr, kAttrState | kAttrAccessFlags | kAttrRnrRetry | kAttrMinRnrTimer |
                           kAttrTimeout | kAttrRetryCnt | kAttrMaxRdAtomic | kAttrMaxDestRdAtomic);
    }
  }

  Status post_recv(uint64_t id, std::initializer_list<Sge> pieces) {
    return qp->post_recv({id, pieces.begin(), static_cast<uint32_t>(pieces.size())});
  }
  Status post_recv(uint64_t id, size_t offset, size_t len) {
    return post_recv(id, {sge(offset, len)});
  }
  Status post(SendWr wr, std::initializer_list<Sge> pieces) {
    wr.sge = pieces.begin();
    wr.sge_count = static_cast<uint32_t>(pieces.size());
    return qp->post_send(wr);
  }
  Status post(SendOp op, uint64_t id, size_t offset, size_t len, uint64_t remote = 0,
              uint32_t rkey = 0) {
    return post(work(op, id, remote, rkey), {sge(offset, len)});
  }
  static SendWr work(SendOp op, uint64_t id, uint64_t remote = 0, uint32_t rkey = 0) {
    return {.id = id, .op = op, .flags = kSignaled, .remote_addr = remote, .rkey = rkey};
  }
  bool poll() {
    if (lanes != nullptr) lanes->before_poll(which);
    const bool any = qp->poll(++polls);
    linger();
    if (lanes != nullptr) lanes->after_poll(which);
    return any;
  }
  // As the control thread has a lane that was given back.
  void linger() {
    if (lanes != nullptr && given_back != nullptr) lanes->linger(*given_back);
  }

 private:
  protect::KeyTable& keys_;
  Options options_;

 public:
  const protect::DomainId domain;
  Events events;
  WindowBook windows;
  CompletionQueue send_cq;
  CompletionQueue recv_cq;
  std::unique_ptr<RcQp> qp;
  std::unique_ptr<link::Lane> given_back;
  int wanted = 0;
  int shares = 0;
  uint64_t polls = 0;
  LanePair* lanes = nullptr;  // which of them is moved with each poll
  LanePair::Of which = LanePair::Of::a;
};

class Pair {
 public:
  static constexpr size_t kMemory = 4 << 20;

  explicit Pair(LinkKind kind, const Options& o = {}) : Pair(kind, o, o) {}
  Pair(LinkKind kind, const Options& of_a, const Options& of_b, size_t memory = kMemory)
      : lanes(kind) {
    a = std::make_unique<Side>(*lanes.keys, of_a, 0x101, memory);
    b = std::make_unique<Side>(*lanes.keys, of_b, 0x202, memory);
    a->lanes = b->lanes = &lanes;
    b->which = LanePair::Of::b;
  }
  ~Pair() {
    a.reset();
    b.reset();
  }
  void connect() {
    a->bring_up();
    b->bring_up();
    join();
  }
  // A new lane between two that are up and have none.
  void join() {
    a->given_back.reset();
    b->given_back.reset();
    lanes.make(a->domain, b->domain);
    a->qp->attach(std::move(lanes.lane_a));
    b->qp->attach(std::move(lanes.lane_b));
  }
  // What was published arrives, also in a lane that was given back.
  void move() {
    a->linger();
    b->linger();
    lanes.move();
  }
  // Polls both sides until it is so; false after about five seconds.
  bool until(const std::function<bool()>& so, bool poll_a = true, bool poll_b = true) {
    const uint64_t end = now_ns() + 5'000'000'000;
    while (!so()) {
      if (now_ns() > end) return false;
      if (poll_a) a->poll();
      if (poll_b) b->poll();
    }
    return true;
  }
  // What so many completions of that queue end with; it has no more.
  Ends ends(CompletionQueue& cq, size_t n, bool poll_a = true, bool poll_b = true) {
    EXPECT_TRUE(until([&] { return cq.size() == n; }, poll_a, poll_b)) << cq.size() << " ended";
    return ends_of(cq);
  }
  Ended ended_of(CompletionQueue& cq, size_t n, bool poll_a = true, bool poll_b = true) {
    EXPECT_TRUE(until([&] { return cq.size() == n; }, poll_a, poll_b)) << cq.size() << " ended";
    return ended(cq);
  }
  // What the next one ends with.
  WcStatus next_end(CompletionQueue& cq) {
    EXPECT_TRUE(until([&] { return !cq.empty(); })) << "none ended";
    return Side::take(cq).status;
  }
  void settle() {
    for (int i = 0; i < 200; ++i) {
      a->poll();
      b->poll();
    }
  }

  link::test::LanePair lanes;
  std::unique_ptr<Side> a, b;
};

struct ConnectedPair : Pair {
  explicit ConnectedPair(LinkKind kind, const Options& o = {}) : Pair(kind, o) { connect(); }
};

class OverEachLink : public testing::TestWithParam<LinkKind> {};

}  // namespace aperture::ib::test
