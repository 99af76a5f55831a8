// The end of a queue pair is fenced as a region's close is: once it is in error, reset or about to
// be destroyed, or has taken remote writes away, nothing that its peer has begun lands any more.
// The peer is another thread over one mapping; its copies are made by a function of the test's, so
// that they can be held up in their middle, and so that ThreadSanitizer sees them.
#include <sys/uio.h>

#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/barrier.hpp"
#include "ib/pair.hpp"
#include "protect/thread_probe.hpp"

namespace aperture::ib::test {
namespace {

enum class End { error, reset, leave, access };
std::string name_of_end(const testing::TestParamInfo<End>& info) {
  constexpr const char* kNames[] = {"error", "reset", "leave", "access"};
  return kNames[static_cast<int>(info.param)];
}

// The owner does that as its program would have it done, and when it returns nothing of its peer's
// is under way.
void end_by(End how, Side& owner) {
  QpAttributes attr;
  attr.access = kAllowRemoteRead;
  if (how == End::access) {
    owner.qp->modify(attr, kAttrAccessFlags);
    while (!owner.qp->is_older_access_over()) cpu_relax();
    return;
  }
  while (!owner.qp->end_access()) cpu_relax();
  switch (how) {
    case End::error: return owner.go_to(QpState::err);
    case End::reset: return owner.go_to(QpState::reset);
    case End::leave: return owner.qp->leave();
    case End::access: return;
  }
}

ssize_t copy_here(pid_t, const iovec* local, unsigned long local_count, const iovec* remote,
                  unsigned long, unsigned long) {
  auto* to = static_cast<std::byte*>(remote->iov_base);
  size_t done = 0;
  for (unsigned long i = 0; i < local_count; ++i) {
    std::memcpy(to + done, local[i].iov_base, local[i].iov_len);
    done += local[i].iov_len;
  }
  return static_cast<ssize_t>(done);
}

constexpr uint64_t kPatienceNs = 20'000'000'000;

// Of the one copy that is held up, from the moment it is in the middle until the gate has moved.
std::atomic<bool> held_up{false};
std::atomic<bool> copied{false};
std::atomic<uint64_t>* gate = nullptr;

ssize_t copy_when_the_gate_has_moved(pid_t pid, const iovec* local, unsigned long local_count,
                                     const iovec* remote, unsigned long remote_count,
                                     unsigned long flags) {
  const uint64_t before = gate->load();
  held_up = true;
  const uint64_t end = now_ns() + kPatienceNs;
  while (gate->load() == before && now_ns() < end) cpu_relax();
  const ssize_t n = copy_here(pid, local, local_count, remote, remote_count, flags);
  copied = true;
  return n;
}

void set_copy(Side& side, protect::PeerKeyView::CopyCall call) {
  // the lane pair's own, which is no constant
  const_cast<protect::PeerKeyView*>(side.qp->lane()->direct.keys)->set_copy_calls(call, call);
}

// a reaches b directly: b sleeps, and its permit has been taken.
void make_direct(Pair& p) {
  p.a->poll();
  p.b->qp->fall_asleep(ring::kUnnumbered);
}

constexpr size_t kBytes = 64 * 1024;  // not one that goes by a cell
constexpr size_t kTarget = 1 << 20;

class Fence : public testing::TestWithParam<End> {};
INSTANTIATE_TEST_SUITE_P(Ends, Fence,
                         testing::Values(End::error, End::reset, End::leave, End::access),
                         name_of_end);

TEST_P(Fence, waits_for_the_copy_that_is_under_way_and_lets_none_begin) {
  ASSERT_TRUE(register_for_heavy_barriers());
  ConnectedPair p(LinkKind::direct);
  make_direct(p);
  set_copy(*p.a, &copy_when_the_gate_has_moved);
  gate = &p.a->qp->lane()->request_tx.words().gate;
  held_up = copied = false;
  p.a->fill(0, pattern(kBytes, 1));
  std::thread peer([&] {
    EXPECT_TRUE(p.a->post(SendOp::write, 1, 0, kBytes, p.b->address(kTarget), p.b->key()));
  });
  const uint64_t end = now_ns() + kPatienceNs;
  while (!held_up && now_ns() < end) cpu_relax();
  ASSERT_TRUE(held_up) << "it was not done directly";
  end_by(GetParam(), *p.b);
  EXPECT_TRUE(copied) << "over before the end had returned";
  const auto after = p.b->bytes(kTarget, kBytes);
  peer.join();
  EXPECT_EQ(after, pattern(kBytes, 1));

  set_copy(*p.a, &copy_here);
  p.a->fill(0, pattern(kBytes, 2));
  for (uint64_t id = 2; id < 6; ++id) {
    (void)p.a->post(SendOp::write, id, 0, kBytes, p.b->address(kTarget), p.b->key());
    for (int i = 0; i < 100; ++i) p.a->poll();
  }
  EXPECT_EQ(p.b->bytes(kTarget, kBytes), after) << "a write that began later has landed";
  if (GetParam() != End::access) return;
  p.b->qp->wake_up();
  p.settle();
  EXPECT_EQ(p.b->bytes(kTarget, kBytes), after) << "nor does the owner execute it";
  EXPECT_EQ(p.b->events.async, std::vector{AsyncEvent::qp_req_err});
}

// Writes the same bytes directly, over and over, until told to stop.
void write_on(Side& a, const Side& b, const std::atomic<bool>& stop, std::atomic<int>& landed) {
  for (uint64_t id = 1; !stop; ++id) {
    a.fill(0, pattern(kBytes, static_cast<unsigned>(id)));
    (void)a.post(SendOp::write, id, 0, kBytes, b.address(kTarget), b.key());
    a.poll();
    for (; !a.send_cq.empty(); a.send_cq.pop()) {
      if (a.send_cq.front().status == WcStatus::success) ++landed;
    }
  }
}

// Without a leave: a queue pair does that once.
class BusyFence : public testing::TestWithParam<End> {};
INSTANTIATE_TEST_SUITE_P(Ends, BusyFence, testing::Values(End::error, End::reset, End::access),
                         name_of_end);

TEST_P(BusyFence, nothing_lands_after_the_end_however_busy_the_writer) {
  ASSERT_TRUE(register_for_heavy_barriers());
  ConnectedPair p(LinkKind::direct);
  for (int round = 0; round < 12; ++round) {
    if (round != 0) {
      for (Side* s : {p.a.get(), p.b.get()}) s->go_to(QpState::reset);
      p.connect();
    }
    make_direct(p);
    set_copy(*p.a, &copy_here);
    std::atomic<bool> stop{false};
    std::atomic<int> landed{0};
    std::thread writer([&] { write_on(*p.a, *p.b, stop, landed); });
    const uint64_t end = now_ns() + kPatienceNs;
    while (landed < 20 && now_ns() < end) std::this_thread::yield();
    end_by(GetParam(), *p.b);
    const auto after = p.b->bytes(kTarget, kBytes);
    const uint64_t until = now_ns() + 2'000'000;
    while (now_ns() < until) std::this_thread::yield();
    const bool untouched = p.b->bytes(kTarget, kBytes) == after;
    stop = true;
    writer.join();
    ASSERT_GE(landed, 20) << "they were not done directly";
    ASSERT_TRUE(untouched) << "in round " << round;
    ASSERT_EQ(p.b->bytes(kTarget, kBytes), after);
  }
}

// A peer that says a living thread of its own is inside, for as long as this lives.
class Liar {
 public:
  explicit Liar(const link::Lane& lane) : slot_(lane.direct.watched->slots[15]) {
    slot_.lane = lane.direct.lane;
    slot_.tid = ::getpid();
    slot_.start_time = protect::thread_start_time(::getpid(), ::getpid());
    slot_.pin = 4711;
  }
  ~Liar() { slot_.pin = 0; }

 private:
  protect::AccessorSlot& slot_;
};

// One poll of the owner, and whether it ended in the error state; it must not wait in it.
bool has_failed(Side& owner) {
  owner.poll();
  return owner.qp->state() == QpState::err;
}

TEST(FenceByItself, a_peer_that_stays_inside_does_not_hold_up_the_polls_of_its_owner) {
  ASSERT_TRUE(register_for_heavy_barriers());
  ConnectedPair p(LinkKind::direct);
  p.settle();
  ASSERT_TRUE(p.b->post_recv(9, 0, 64));
  std::optional<Liar> liar(*p.b->qp->lane());
  p.a->fill(0, pattern(kBytes, 1));
  const auto before = p.b->bytes(kTarget, kBytes);
  ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, kBytes, p.b->address(kTarget), p.b->key()));
  const uint64_t began = now_ns();
  p.b->qp->fail();
  int polls = 0;
  for (; now_ns() - began < 200'000'000; ++polls) ASSERT_FALSE(has_failed(*p.b)) << polls;
  EXPECT_GT(polls, 50) << "a poll that waits takes a second";
  EXPECT_TRUE(p.b->recv_cq.empty()) << "flushed too early";
  EXPECT_TRUE(p.b->qp->needs_later_look());
  EXPECT_FALSE(p.b->qp->needs_polling());
  EXPECT_EQ(p.b->bytes(kTarget, kBytes), before) << "nothing is taken in any more";
  liar.reset();
  while (!has_failed(*p.b) && now_ns() - began < kPatienceNs) cpu_relax();
  EXPECT_EQ(p.b->qp->state(), QpState::err);
  EXPECT_EQ(p.b->recv_cq.front().status, WcStatus::wr_flush_err);
  EXPECT_EQ(p.b->qp->lane(), nullptr);
  EXPECT_TRUE(p.b->events.async.empty());
}

// It fails before all of it is in the ring, and the queue pair cannot be in error yet.
TEST(FenceByItself, a_send_that_failed_in_its_middle_is_over_although_a_peer_stays_inside) {
  ASSERT_TRUE(register_for_heavy_barriers());
  for (const bool more : {false, true}) {
    ConnectedPair p(LinkKind::direct, {.rnr_retry = 0, .min_rnr_timer = 1});
    p.settle();
    std::optional<Liar> liar(*p.b->qp->lane());
    ASSERT_TRUE(p.b->post(SendOp::send, 1, 0, Pair::kMemory));
    if (more) {
      ASSERT_TRUE(p.b->post(SendOp::send, 2, 0, 64));
    }
    ASSERT_TRUE(p.until([&] { return !p.b->send_cq.empty(); })) << "nobody receives it";
    EXPECT_EQ(ended(p.b->send_cq), (Ended{{1, WcStatus::rnr_retry_exc_err}}));
    for (int i = 0; i < 50; ++i) ASSERT_FALSE(has_failed(*p.b)) << i;
    ASSERT_TRUE(p.b->post(SendOp::send, 3, 0, 64));
    p.b->poll();
    EXPECT_TRUE(p.b->send_cq.empty()) << "flushed too early";
    liar.reset();
    ASSERT_TRUE(p.until([&] { return has_failed(*p.b); }));
    Ended flushed{{3, WcStatus::wr_flush_err}};
    if (more) flushed.insert(flushed.begin(), {2, WcStatus::wr_flush_err});
    EXPECT_EQ(ended(p.b->send_cq), flushed);
  }
}

// Its peer is gone, or a thread of it says that it is still inside.
TEST(FenceByItself, a_lane_that_is_lost_goes_back_once_nobody_is_inside) {
  ASSERT_TRUE(register_for_heavy_barriers());
  for (const bool waits : {false, true}) {
    ConnectedPair p(LinkKind::direct);
    p.settle();
    std::optional<Liar> liar(*p.b->qp->lane());
    if (waits) {
      ASSERT_TRUE(p.b->post(SendOp::send, 1, 0, 64));
    }
    p.b->qp->lose();
    const uint64_t began = now_ns();
    for (; now_ns() - began < 200'000'000;) {
      ASSERT_FALSE(has_failed(*p.b));
      ASSERT_NE(p.b->qp->lane(), nullptr) << "its memory would be somebody else's";
    }
    EXPECT_TRUE(p.b->qp->needs_later_look());
    EXPECT_TRUE(p.b->send_cq.empty());
    liar.reset();
    ASSERT_TRUE(p.until([&] {
      p.b->poll();
      return p.b->qp->lane() == nullptr;
    }));
    EXPECT_EQ(ended(p.b->send_cq), waits ? Ended({{1, WcStatus::retry_exc_err}}) : Ended());
    EXPECT_EQ(p.b->qp->state(), waits ? QpState::err : QpState::rts);
  }
}

TEST(FenceByItself, whoever_stays_inside_for_a_second_is_not_waited_for_any_longer) {
  ASSERT_TRUE(register_for_heavy_barriers());
  ConnectedPair p(LinkKind::direct);
  p.settle();
  const Liar liar(*p.b->qp->lane());
  const uint64_t began = now_ns();
  EXPECT_FALSE(p.b->qp->end_access());
  while (!p.b->qp->end_access() && now_ns() - began < kPatienceNs) p.b->poll();
  EXPECT_GE(now_ns() - began, 1'000'000'000u);
  EXPECT_LT(now_ns() - began, kPatienceNs);
  p.b->go_to(QpState::err);
  EXPECT_EQ(p.b->qp->state(), QpState::err);
}

TEST(FenceByItself, a_lane_that_is_attached_waits_for_nobody) {
  ASSERT_TRUE(register_for_heavy_barriers());
  ConnectedPair p(LinkKind::direct);
  for (Side* s : {p.a.get(), p.b.get()}) s->go_to(QpState::reset);
  p.connect();
  EXPECT_TRUE(p.b->qp->is_older_access_over());
}

}  // namespace
}  // namespace aperture::ib::test
