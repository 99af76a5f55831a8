// The fixture of the tests of hostile peers: side a has a queue pair and memory that its peer may
// reach; at the other end is only the bare lane.
#pragma once

#include "link/hostile.hpp"
#include "qp/pair.hpp"

namespace aperture::qp::test {

using protect::Rights;
using wire::Head;
using wire::Op;

template <typename Fields>
void put(ring::ChannelTx& tx, const Head& head, const Fields& fields) {
  wire::store(tx.cells.body(), head);
  wire::store_fields(tx.cells.body(), fields);
  link::test::publish(tx, wire::cells_of(static_cast<Op>(head.op), head.flags, head.len));
}
inline void put(ring::ChannelTx& tx, const Head& head) {
  wire::store(tx.cells.body(), head);
  link::test::publish(tx, wire::cells_of(static_cast<Op>(head.op), head.flags, head.len));
}

class Attacked : public testing::TestWithParam<LinkKind> {
 protected:
  Attacked(size_t memory_bytes, Rights rights) : pair_(GetParam()), memory_(memory_bytes, 7) {
    region_ = pair_.region(a(), memory_, rights);
    pair_.attach_a();
  }
  ~Attacked() override {
    EXPECT_TRUE(memory_.canaries_intact());
    a().qp->finish(Errc::protocol);
    EXPECT_EQ(a().port.tx.wqes.out(), 0u);
    EXPECT_TRUE(a().sink.all_done());
  }
  Side& a() { return *pair_.a; }
  // What was published has arrived there.
  link::Lane& peer() {
    pair_.move();
    return *pair_.lane_b;
  }

  template <typename Fields>
  requires std::is_class_v<Fields>
  void request(Op op, const Fields& fields, uint8_t flags = 0, uint64_t word = 0) {
    put(peer().request_tx, Head::make(op, flags, 0, word), fields);
  }
  template <typename Fields>
  requires std::is_class_v<Fields>
  void response(Op op, const Fields& fields, uint64_t word = 0) {
    put(peer().response_tx, Head::make(op, 0, 0, word), fields);
  }
  void request(Op op, uint16_t len = 0, uint64_t word = 0) {
    put(peer().request_tx, Head::make(op, 0, len, word));
  }
  void response(Op op, uint16_t len = 0, uint64_t word = 0) {
    put(peer().response_tx, Head::make(op, 0, len, word));
  }
  // The peer has taken our first request.
  void acknowledge() {
    peer().request_rx.cells.advance(1);
    peer().request_rx.publish_consumed();
  }
  void poll(int n = 20) {
    for (int i = 0; i < n; ++i) a().poll();
  }
  // Another connection ends when `attack` has put something into that lane of its.
  template <typename Attack>
  void expect_breaks(Attack attack, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
    const testing::ScopedTrace trace(file, line, "expect_breaks");
    Pair pair(GetParam());
    pair.attach_a();
    attack(*pair.lane_b);
    for (int i = 0; i < 10; ++i) pair.a->poll();
    EXPECT_TRUE(pair.a->qp->broken());
  }

  Pair pair_;
  Guarded memory_;
  protect::RegionHandle region_;
};

}  // namespace aperture::qp::test
