// Atomic writes and flushes between two queue pairs: 8 bytes that nobody sees half of; and what was
// written before is placed, or in the file behind it, when the flush completes. IBTA vol. 1, annex
// A19.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/synced.hpp"
#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

// Read when something is logged first.
const bool g_speaks = ::setenv("APERTURE_LOG", "warn", 1) == 0;

constexpr uint32_t kFlushes = kAllowFlushGlobal | kAllowFlushPersistent;
constexpr Rights kFlushRights = Rights::flush_global | Rights::flush_persistent;
constexpr size_t kPage = 4096;

Options flushable() {
  Options o;
  o.access |= kFlushes;
  return o;
}

// What was synced since the last call touches [at, at + n), and how much it was.
size_t synced_bytes(uint64_t at, size_t n) {
  size_t bytes = 0;
  for (const aperture::test::Synced& s : aperture::test::synced()) {
    EXPECT_TRUE(s.from < at + n && at < s.end);
    bytes += s.end - s.from;
  }
  aperture::test::forget_syncs();
  return bytes;
}

SendWr atomic_write(uint64_t id, uint64_t remote, uint32_t rkey) {
  return Side::work(SendOp::atomic_write, id, remote, rkey);
}
SendWr flush(uint64_t id, uint64_t remote, uint32_t rkey, uint64_t len, uint64_t how) {
  SendWr wr = Side::work(SendOp::flush, id, remote, rkey);
  wr.compare_add = len;
  wr.swap = how;
  return wr;
}

class Placement : public OverEachLink {
 protected:
  // A key for all of b's memory, with those rights.
  uint32_t key_for(Pair& p, Rights rights, size_t at = 0, size_t n = Pair::kMemory) {
    return static_cast<uint32_t>(p.b->add(p.b->memory.data() + at, n, rights).key);
  }
  static uint64_t word_of(Pair& p, size_t at) {
    uint64_t word;
    std::memcpy(&word, p.b->memory.data() + at, sizeof word);
    return word;
  }
  // How it ends, of two queue pairs that are new.
  void expect_refused(const SendWr& wr, WcStatus status, Pair& p) {
    const auto before = p.b->bytes(0, Pair::kMemory);
    ASSERT_TRUE(p.a->qp->post_send(wr));
    EXPECT_EQ(p.next_end(p.a->send_cq), status);
    EXPECT_EQ(p.b->bytes(0, Pair::kMemory), before);
    EXPECT_EQ(p.a->qp->state(), QpState::err);
  }
};
INSTANTIATE_TEST_SUITE_P(Links, Placement, kEachLink, link_name);

TEST_P(Placement, an_atomic_write_changes_eight_bytes_with_the_right_to_write_alone) {
  ConnectedPair p(GetParam());
  const uint32_t key = key_for(p, Rights::remote_write);
  p.a->fill(0, pattern(8, 5));
  ASSERT_TRUE(p.a->post(atomic_write(1, p.b->address(16), key), {p.a->sge(0, 8)}));
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }));
  const Wc wc = Side::take(p.a->send_cq);
  EXPECT_EQ(wc.status, success);
  EXPECT_EQ(wc.opcode, WcOpcode::atomic_write);
  EXPECT_EQ(p.b->bytes(16, 8), pattern(8, 5));
  EXPECT_EQ(word_of(p, 8), 0u);
  EXPECT_EQ(word_of(p, 24), 0u);
}

TEST_P(Placement, an_atomic_write_takes_its_bytes_inline_when_it_is_posted) {
  ConnectedPair p(GetParam());
  uint64_t value = 0x1122334455667788;
  const InlinePart part{&value, sizeof value};
  SendWr wr = atomic_write(1, p.b->address(), p.b->key());
  wr.inline_parts = &part;
  wr.inline_count = 1;
  ASSERT_TRUE(p.a->qp->post_send(wr));
  value = 0;
  EXPECT_EQ(p.next_end(p.a->send_cq), success);
  EXPECT_EQ(word_of(p, 0), 0x1122334455667788u);
}

TEST_P(Placement, an_atomic_write_of_other_than_eight_bytes_is_not_posted) {
  ConnectedPair p(GetParam());
  for (const size_t n : {size_t{0}, size_t{4}, size_t{7}, size_t{9}, size_t{16}}) {
    const SendWr wr = atomic_write(1, p.b->address(), p.b->key());
    EXPECT_EQ(p.a->post(wr, {p.a->sge(0, n)}).error(), Errc::invalid) << n;
  }
  EXPECT_EQ(p.a->qp->state(), QpState::rts);
}

TEST_P(Placement, an_atomic_write_lands_after_the_writes_before_it) {
  ConnectedPair p(GetParam());
  const size_t n = 1 << 20;
  for (unsigned round = 1; round <= 20; ++round) {
    p.a->fill(0, pattern(n, round));
    const uint64_t mark = round;
    const InlinePart part{&mark, sizeof mark};
    ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, n, p.b->address(64), p.b->key()));
    SendWr wr = atomic_write(2, p.b->address(), p.b->key());
    wr.inline_parts = &part;
    wr.inline_count = 1;
    ASSERT_TRUE(p.a->qp->post_send(wr));
    ASSERT_TRUE(p.until([&] { return word_of(p, 0) == mark; }));
    EXPECT_EQ(p.b->bytes(64, n), pattern(n, round));
    EXPECT_EQ(p.ended_of(p.a->send_cq, 2), (Ended{{1, success}, {2, success}}));
  }
}

TEST_P(Placement, an_atomic_write_is_refused_without_the_right_the_alignment_or_the_range) {
  struct Case {
    const char* what;
    Rights rights;
    size_t at;
    uint32_t access;
    WcStatus ends;
  };
  const uint32_t all = Options{}.access;
  const Case cases[] = {
      {"no right", Rights::remote_read | Rights::remote_atomic, 0, all, rem_access_err},
      {"behind the end", Rights::remote_write, Pair::kMemory, all, rem_access_err},
      {"not aligned", Rights::remote_write, 4, all, rem_inv_req_err},
      {"not of this queue pair", Rights::remote_write, 0, kAllowRemoteRead, rem_inv_req_err},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Options o;
    o.access = c.access;
    Pair p(GetParam(), o);
    p.connect();
    const uint64_t value = 7;
    const InlinePart part{&value, sizeof value};
    SendWr wr = atomic_write(1, p.b->address(c.at), key_for(p, c.rights));
    wr.inline_parts = &part;
    wr.inline_count = 1;
    expect_refused(wr, c.ends, p);
  }
}

TEST_P(Placement, a_flush_completes_after_the_writes_before_it) {
  ConnectedPair p(GetParam(), flushable());
  const uint32_t key = key_for(p, Rights::remote_write | Rights::flush_global);
  for (const size_t n : {size_t{8}, size_t{4096}, size_t{1} << 21}) {
    p.a->fill(0, pattern(n, 9));
    ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, n, p.b->address(), key));
    ASSERT_TRUE(p.a->qp->post_send(flush(2, p.b->address(), key, n, kFlushGlobal)));
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 2; }));
    EXPECT_EQ(p.b->bytes(0, n), pattern(n, 9));
    EXPECT_EQ(Side::take(p.a->send_cq).status, success);
    const Wc wc = Side::take(p.a->send_cq);
    EXPECT_EQ(wc.status, success);
    EXPECT_EQ(wc.opcode, WcOpcode::flush);
  }
  EXPECT_EQ(synced_bytes(0, 0), 0u);  // nothing persists that was not to
}

TEST_P(Placement,
       a_persistent_flush_syncs_its_range_and_one_of_the_whole_all_that_the_key_reaches) {
  ConnectedPair p(GetParam(), flushable());
  const uint64_t first = (p.b->address() + kPage - 1) & ~uint64_t{kPage - 1};
  const size_t at = first - p.b->address();
  const uint32_t key = key_for(p, kFlushRights, at, 8 * kPage);
  synced_bytes(0, 0);
  ASSERT_TRUE(p.a->qp->post_send(flush(1, first + kPage + 8, key, 16, kFlushPersistent)));
  EXPECT_EQ(p.next_end(p.a->send_cq), success);
  // from the beginning of its page to its end
  EXPECT_EQ(synced_bytes(first + kPage, kPage), 24u);
  // address and length are looked at no more
  const uint64_t how = kFlushPersistent | kFlushGlobal | kFlushWhole;
  ASSERT_TRUE(p.a->qp->post_send(flush(2, 12345, key, 1u << 30, how)));
  EXPECT_EQ(p.next_end(p.a->send_cq), success);
  EXPECT_EQ(synced_bytes(first, 8 * kPage), 8 * kPage);
}

TEST_P(Placement, a_flush_is_refused_without_each_right_that_it_needs) {
  struct Case {
    const char* what;
    Rights rights;
    uint32_t access;
    uint64_t how;
    size_t at, len;
    WcStatus ends;
  };
  const uint32_t all = kFlushes;
  const uint64_t both = kFlushGlobal | kFlushPersistent;
  const Rights writes = Rights::remote_write;
  const Rights no_global = writes | Rights::flush_persistent;
  const Rights no_persistent = writes | Rights::flush_global;
  const size_t end = Pair::kMemory;
  const Case cases[] = {
      {"writes alone", writes, all, kFlushGlobal, 0, 8, rem_access_err},
      {"not global", no_global, all, kFlushGlobal, 0, 8, rem_access_err},
      {"not persistent", no_persistent, all, kFlushPersistent, 0, 8, rem_access_err},
      {"one of both", no_persistent, all, both, 0, 8, rem_access_err},
      {"not persistent, whole", no_persistent, all, both | kFlushWhole, 0, 0, rem_access_err},
      {"past the end", kFlushRights, all, kFlushGlobal, 0, end + 1, rem_access_err},
      {"past the end, persistent", kFlushRights, all, both, end - 4, 8, rem_access_err},
      {"wraps", kFlushRights, all, kFlushGlobal, 8, ~size_t{0}, rem_access_err},
      {"queue pair", kFlushRights, kAllowFlushPersistent, kFlushGlobal, 0, 8, rem_inv_req_err},
      {"queue pair, persistent", kFlushRights, kAllowFlushGlobal, both, 0, 8, rem_inv_req_err},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Options o;
    o.access = c.access;
    Pair p(GetParam(), o);
    p.connect();
    const uint32_t key = key_for(p, c.rights);
    synced_bytes(0, 0);
    expect_refused(flush(1, p.b->address(c.at), key, c.len, c.how), c.ends, p);
    EXPECT_EQ(synced_bytes(0, 0), 0u);
  }
}

TEST_P(Placement, a_flush_of_a_key_that_is_gone_is_refused_whole_or_not) {
  for (const uint64_t how : {uint64_t{kFlushGlobal}, uint64_t{kFlushGlobal | kFlushWhole}}) {
    Pair p(GetParam(), flushable());
    p.connect();
    expect_refused(flush(1, p.b->address(), 0xffff00, 8, how), rem_access_err, p);
  }
}

TEST_P(Placement, a_flush_without_a_placement_type_or_with_unknown_ones_is_not_posted) {
  ConnectedPair p(GetParam(), flushable());
  for (const uint64_t how : {0u, 4u, 8u, 9u, 257u}) {
    EXPECT_EQ(p.a->qp->post_send(flush(1, p.b->address(), p.b->key(), 8, how)).error(),
              Errc::invalid)
        << how;
  }
  const SendWr wr = flush(1, p.b->address(), p.b->key(), 8, kFlushGlobal);
  EXPECT_EQ(p.a->post(wr, {p.a->sge(0, 8)}).error(), Errc::invalid);  // it has no bytes of its own
}

TEST_P(Placement, a_fence_waits_for_flushes_and_atomic_writes) {
  for (const bool flushes : {false, true}) {
    ConnectedPair p(GetParam(), flushable());
    const uint32_t key = key_for(p, Rights::remote_write | Rights::flush_global);
    if (flushes) {
      ASSERT_TRUE(p.a->qp->post_send(flush(1, p.b->address(), key, 8, kFlushGlobal)));
    } else {
      ASSERT_TRUE(p.a->post(atomic_write(1, p.b->address(), key), {p.a->sge(0, 8)}));
    }
    const uint64_t before = p.a->qp->lane()->request_tx.cells.pos();
    SendWr fenced = Side::work(SendOp::write, 2, p.b->address(64), key);
    fenced.flags |= kFence;
    ASSERT_TRUE(p.a->post(fenced, {p.a->sge(0, 8)}));
    EXPECT_EQ(p.a->qp->lane()->request_tx.cells.pos(), before) << "it is not begun";
    EXPECT_EQ(p.ended_of(p.a->send_cq, 2), (Ended{{1, success}, {2, success}}));
  }
}

TEST_P(Placement, without_places_for_reads_a_flush_goes_and_an_atomic_write_does_not) {
  const auto set = [](Side& side, uint8_t places) {
    QpAttributes attr;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = places;
    side.qp->modify(attr, kAttrMaxRdAtomic | kAttrMaxDestRdAtomic);
  };
  ConnectedPair p(GetParam(), flushable());
  const uint32_t key = key_for(p, Rights::remote_write | Rights::flush_global);
  set(*p.b, 0);
  ASSERT_TRUE(p.a->qp->post_send(flush(1, p.b->address(), key, 8, kFlushGlobal)));
  EXPECT_EQ(p.next_end(p.a->send_cq), success);
  ASSERT_TRUE(p.a->post(atomic_write(2, p.b->address(), key), {p.a->sge(0, 8)}));
  EXPECT_EQ(p.next_end(p.a->send_cq), rem_inv_req_err);
  ConnectedPair other(GetParam());
  testing::internal::CaptureStderr();
  set(*other.a, 0);
  ASSERT_TRUE(
      other.a->post(atomic_write(3, other.b->address(), other.b->key()), {other.a->sge(0, 8)}));
  EXPECT_EQ(other.next_end(other.a->send_cq), loc_qp_op_err);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("atomic write, and max_rd_atomic is 0"), std::string::npos) << told;
}

TEST(PlacementTypes, unreliable_connections_have_neither) {
  Options o = flushable();
  o.type = QpType::uc;
  ConnectedPair p(LinkKind::loopback, o);
  EXPECT_EQ(p.a->post(atomic_write(1, p.b->address(), p.b->key()), {p.a->sge(0, 8)}).error(),
            Errc::invalid);
  EXPECT_EQ(p.a->qp->post_send(flush(1, p.b->address(), p.b->key(), 8, kFlushGlobal)).error(),
            Errc::invalid);
}

TEST(PlacementTypes, operations_between_the_known_ones_are_not_posted) {
  ConnectedPair p(LinkKind::loopback);
  for (unsigned op = 10; op < 14; ++op) {
    EXPECT_EQ(p.a->post(static_cast<SendOp>(op), 1, 0, 8).error(), Errc::invalid) << op;
  }
  EXPECT_EQ(p.a->post(static_cast<SendOp>(16), 1, 0, 8).error(), Errc::invalid);
}

}  // namespace
}  // namespace aperture::ib::test
