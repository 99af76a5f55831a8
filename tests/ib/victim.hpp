// The victim of the tests of hostile peers: one connected queue pair with memory that its peer may
// reach in part, and at the other end only the bare lane.
#pragma once

#include "ib/pair.hpp"
#include "link/hostile.hpp"

namespace aperture::ib::test {

using wire::RcHead;
using wire::RcOp;

inline constexpr size_t kMemory = 400'000;
inline constexpr size_t kRegion = 100'000;  // in the middle third or so of it
inline constexpr size_t kRegionAt = 150'000;
inline constexpr std::byte kFill{7};

class Victim {
 public:
  explicit Victim(LinkKind kind, const Options& o = {}) : lanes_(kind) {
    a = std::make_unique<Side>(*lanes_.keys, o, 0x101, kMemory);
    std::fill(a->memory.begin(), a->memory.end(), kFill);
    region_ = a->add(a->memory.data() + kRegionAt, kRegion, kEverything | Rights::bind_window);
    key = static_cast<uint32_t>(region_.key);
    address = a->address(kRegionAt);
    a->bring_up();
    lanes_.make(a->domain, protect::new_domain());
    a->lanes = &lanes_;
    link::Lane& bare = *lanes_.lane_b;
    EXPECT_TRUE(bare.prepare_request_bytes() && bare.prepare_response_bytes());
    a->qp->attach(std::move(lanes_.lane_a));
    EXPECT_EQ(wire::load_rc_head(peer()->response_rx.cells.body()).op,
              static_cast<uint8_t>(RcOp::permit));
    peer()->response_rx.cells.advance(1);
  }
  ~Victim() {
    a->qp->fail();
    drain();
    EXPECT_EQ(sends_ended, sends) << "each work request ends once";
    EXPECT_EQ(receives_ended, receives) << "each receive ends once";
    EXPECT_TRUE(outside_intact());
    a.reset();
    lanes_.drop(link::test::LanePair::Of::b);
  }

  // What was published has arrived there.
  link::Lane* peer() {
    lanes_.move();
    return lanes_.lane_b.get();
  }
  template <typename Fields>
  void put(ring::ChannelTx& tx, const RcHead& head, const Fields& f) {
    wire::store_rc(tx.cells.body(), head, f);
    link::test::publish(tx, wire::rc_cells_of(static_cast<RcOp>(head.op), head.flags, head.len));
  }
  template <typename Fields>
  void request(RcOp op, const Fields& f, uint8_t flags = 0, uint16_t len = 0, uint32_t imm = 0) {
    put(peer()->request_tx, RcHead{static_cast<uint8_t>(op), flags, len, imm}, f);
  }
  template <typename Fields>
  void response(RcOp op, const Fields& f, uint16_t len = 0, uint32_t imm = 0) {
    put(peer()->response_tx, RcHead{static_cast<uint8_t>(op), 0, len, imm}, f);
  }
  void send(uint8_t flags = 0, uint16_t len = 8, uint32_t imm = 0) {
    const RcHead head{static_cast<uint8_t>(RcOp::send), flags, len, imm};
    wire::store_rc(peer()->request_tx.cells.body(), head);
    link::test::publish(peer()->request_tx, wire::rc_cells_of(RcOp::send, flags, len));
  }
  void acknowledge(uint32_t cells) {
    peer()->request_rx.cells.advance(cells);
    peer()->request_rx.publish_consumed();
  }

  // Receives and work requests of ours, in their own part of the memory.
  void post_recv(size_t len = 64) { ASSERT_TRUE(a->post_recv(receives++, 0, len)); }
  uint64_t post(SendOp op, size_t len) {
    const uint64_t pos = a->qp->lane()->request_tx.cells.pos();
    EXPECT_TRUE(a->post(op, sends++, 1000, len, 0x1000, 1));
    return pos;
  }
  void poll(int n = 20) {
    for (int i = 0; i < n; ++i) a->poll();
    drain();
  }
  void drain() {
    for (; !a->send_cq.empty(); a->send_cq.pop()) {
      EXPECT_EQ(a->send_cq.front().id, sends_ended) << "in order, once";
      ++sends_ended;
      sent.push_back(a->send_cq.front().status);
    }
    for (; !a->recv_cq.empty(); a->recv_cq.pop()) {
      ++receives_ended;
      received.push_back(a->recv_cq.front());
    }
  }
  void expect_broken() {
    poll();
    EXPECT_EQ(a->qp->state(), QpState::err);
    EXPECT_EQ(a->events.async.size(), 1u);
    EXPECT_EQ(a->events.async, std::vector{AsyncEvent::qp_fatal});
    EXPECT_EQ(a->qp->lane(), nullptr);
    EXPECT_NE(a->given_back, nullptr);
    EXPECT_TRUE(region_intact());
  }
  // What a sound peer may get wrong, too: a refusal with its code.
  void expect_refused_access(protect::Denial denial = protect::Denial::out_of_range) {
    expect_refused(rem_access_err, AsyncEvent::qp_access_err, denial);
  }
  void expect_refused(WcStatus status, AsyncEvent event, protect::Denial denial) {
    poll();
    EXPECT_EQ(a->qp->state(), QpState::err);
    EXPECT_EQ(a->events.async, std::vector{event});
    ASSERT_TRUE(peer()->response_rx.cells.ready());
    const auto nak = wire::load_rc_head(peer()->response_rx.cells.body());
    EXPECT_EQ(nak.op, static_cast<uint8_t>(RcOp::nak));
    EXPECT_EQ(nak.len.unchecked(), static_cast<uint16_t>(status));
    EXPECT_EQ(nak.imm.unchecked(), static_cast<uint32_t>(denial));
    EXPECT_TRUE(region_intact());
  }
  void expect_alive() {
    poll();
    EXPECT_EQ(a->qp->state(), QpState::rts);
    EXPECT_TRUE(a->events.async.empty());
    EXPECT_NE(a->qp->lane(), nullptr);
  }
  // The region is closed, and another registered with its key.
  void register_anew() {
    EXPECT_TRUE(lanes_.keys->revocation().revoke(region_, now_ns() + 1'000'000'000));
    auto anew = lanes_.keys->add({.pd = a->domain,
                                  .base = address,
                                  .length = kRegion,
                                  .rights = kEverything,
                                  .requested_key = key});
    ASSERT_TRUE(anew);
    region_ = *anew;
  }
  bool region_intact() const { return all_of(kRegionAt, kRegion); }
  bool outside_intact() const {
    return all_of(100'000, kRegionAt - 100'000) &&
           all_of(kRegionAt + kRegion, kMemory - kRegionAt - kRegion);
  }

  std::unique_ptr<Side> a;
  uint64_t address = 0;
  uint32_t key = 0;
  uint64_t sends = 0, sends_ended = 0, receives = 0, receives_ended = 0;
  std::vector<WcStatus> sent;
  std::vector<Wc> received;

 private:
  bool all_of(size_t at, size_t n) const {
    const auto from = a->memory.begin() + static_cast<ptrdiff_t>(at);
    return std::all_of(from, from + static_cast<ptrdiff_t>(n),
                       [](std::byte b) { return b == kFill; });
  }

  link::test::LanePair lanes_;
  protect::RegionHandle region_;
};

}  // namespace aperture::ib::test
