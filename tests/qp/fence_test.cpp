// The end of a queue pair is a fence: what its peer has begun directly has landed when finish()
// returns, and nothing lands afterwards, though the region stays registered.
#include <sys/uio.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "protect/thread_probe.hpp"
#include "qp/pair.hpp"

namespace aperture::qp::test {
namespace {

using protect::Rights;
using std::chrono::milliseconds;

// A copy that is held up in its middle until the owner has begun to end.
struct HeldCopy {
  std::atomic<const std::atomic<uint64_t>*> gate{nullptr};  // null: copies are not held
  std::atomic<bool> begun{false};
  std::atomic<bool> has_landed{false};
  std::atomic<bool> is_finished{false};
  std::atomic<bool> was_overtaken{false};
};
HeldCopy held;

template <auto Copy>
ssize_t copy_late(pid_t pid, const iovec* local, unsigned long n_local, const iovec* remote,
                  unsigned long n_remote, unsigned long flags) {
  const iovec there = *remote;  // as the kernel takes it in when a copy begins
  const auto* gate = held.gate.exchange(nullptr);
  if (gate != nullptr) {
    held.begun = true;
    const uint64_t end = now_ns() + 5'000'000'000;
    while (gate->load() != 0 && now_ns() < end) std::this_thread::yield();
    std::this_thread::sleep_for(milliseconds(20));
    held.was_overtaken = held.is_finished.load();
  }
  const ssize_t copied = Copy(pid, local, n_local, &there, n_remote, flags);
  if (gate != nullptr) held.has_landed = true;
  return copied;
}

class Fence : public testing::Test {
 protected:
  Fence() : pair_(LinkKind::direct), memory_(64 * 1024, 7) {
    region_ = pair_.region(b(), memory_, Rights::remote_write);
    pair_.attach();
    b().qp->fall_asleep(ring::kUnnumbered);
  }
  Side& a() { return *pair_.a; }
  Side& b() { return *pair_.b; }
  // Side a writes until it is told to stop.
  void write_on() {
    const std::vector<std::byte> data(memory_.size(), std::byte{9});
    while (!stop_) {
      if (a().write(iov_of(data), {memory_.address(), data.size(), region_.key}, 1)) ++posted_;
      a().poll();
      while (!a().tx_cq.empty()) {
        if (take_end(a().tx_cq) == Errc::ok) ++written_;
      }
    }
  }
  // posted_ was `before` when the owner began to end: the initiator's queue may be full by now.
  void expect_nothing_lands_any_more(uint64_t before) {
    memory_.set(std::vector<std::byte>(memory_.size(), std::byte{3}));
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_GT(posted_, before) << "the initiator goes on";
    stop_ = true;
  }

  Pair pair_;
  Guarded memory_;
  protect::RegionHandle region_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> posted_{0}, written_{0};
};

TEST_F(Fence, nothing_lands_after_finish_of_what_was_written_in_a_loop) {
  std::thread writer([this] { write_on(); });
  while (written_ < 20) std::this_thread::yield();
  const uint64_t before = posted_;
  const auto lane = b().qp->finish(Errc::shut_down);
  expect_nothing_lands_any_more(before);
  writer.join();
  EXPECT_TRUE(memory_.all(3));
  EXPECT_TRUE(memory_.canaries_intact());
}

TEST_F(Fence, finish_waits_for_a_copy_in_its_middle) {
  auto* view = const_cast<protect::PeerKeyView*>(a().qp->lane()->direct.keys);
  view->set_copy_calls(&copy_late<::process_vm_writev>, nullptr);
  held.gate = &b().qp->lane()->request_rx.words().gate;
  std::thread writer([this] { write_on(); });
  while (!held.begun) std::this_thread::yield();
  const uint64_t before = posted_;
  const auto lane = b().qp->finish(Errc::shut_down);
  held.is_finished = true;
  EXPECT_TRUE(held.has_landed) << "it was begun while it was permitted";
  EXPECT_FALSE(held.was_overtaken);
  EXPECT_TRUE(memory_.all(9));
  expect_nothing_lands_any_more(before);
  writer.join();
  EXPECT_TRUE(memory_.all(3));
}

TEST_F(Fence, sender_has_its_buffer_back_when_nobody_pulls_from_it_any_more) {
  auto* view = const_cast<protect::PeerKeyView*>(b().qp->lane()->direct.keys);
  view->set_copy_calls(nullptr, &copy_late<::process_vm_readv>);
  std::vector<std::byte> data(1 << 20, std::byte{9});
  ASSERT_TRUE(a().send(iov_of(data), 1));
  held.begun = held.has_landed = held.is_finished = held.was_overtaken = false;
  held.gate = &a().qp->lane()->request_rx.words().gate;
  std::thread receiver([this] {  // which pulls, since the sender does not push
    while (!stop_) b().poll();
  });
  while (!held.begun) std::this_thread::yield();
  const auto lane = a().qp->finish(Errc::shut_down);
  held.is_finished = true;
  EXPECT_TRUE(held.has_landed) << "a chunk was being pulled";
  EXPECT_FALSE(held.was_overtaken);
  std::fill(data.begin(), data.end(), std::byte{3});
  std::this_thread::sleep_for(milliseconds(50));
  stop_ = true;
  receiver.join();
  b().qp->ending().lose(Errc::peer_lost);  // as its engine does when it hears of the end
  ASSERT_TRUE(pair_.until([this] { return b().qp->needs_wind_up(); }, false, true));
  b().qp->finish(Errc::peer_lost);
  ASSERT_EQ(b().sink.messages.size(), 1u);
  const Received& message = b().sink.messages[0];
  EXPECT_NE(message.err, Errc::ok) << "it was complete";
  for (const std::byte byte : message.payload) ASSERT_NE(byte, std::byte{3});
}

TEST_F(Fence, a_peer_that_stays_inside_holds_up_its_own_wind_up_and_no_poll) {
  b().qp->wake_up();
  b().poll();
  const link::Lane& lane = *b().qp->lane();
  protect::AccessorSlot& slot = lane.direct.watched->slots[15];  // it says that a thread is inside
  slot.lane = lane.direct.lane;
  slot.tid = ::getpid();
  slot.start_time = protect::thread_start_time(::getpid(), ::getpid());
  slot.pin = 4711;
  const uint64_t began = now_ns();
  b().qp->ending().lose(Errc::shut_down);
  int polls = 0;
  for (; now_ns() - began < 200'000'000; ++polls) {
    b().qp->poll(0);
    ASSERT_FALSE(b().qp->needs_wind_up());
  }
  EXPECT_GT(polls, 50) << "a poll that waits takes a second";
  EXPECT_TRUE(b().qp->needs_later_look());
  slot.pin = 0;
  while (!b().qp->needs_wind_up() && now_ns() - began < 20'000'000'000) b().qp->poll(0);
  EXPECT_TRUE(b().qp->needs_wind_up());
  EXPECT_NE(b().qp->finish(Errc::shut_down), nullptr);
}

}  // namespace
}  // namespace aperture::qp::test
