// Hostile inputs 21 and 32 through the verbs door, between two processes: a peer that goes on when
// its queue pair is gone, in error, or another one under the same number, and one that sends more
// than was posted. Run under `aperture run`.
#include <gtest/gtest.h>

#include "doors/child.hpp"
#include "doors/payload.hpp"
#include "verbs/ends.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::Control;
using doors::Guarded;
using test::End;
using test::Memory;

constexpr size_t kBytes = 256 * 1024;
constexpr size_t kLong = size_t{16} << 20;  // a write is under way for milliseconds
constexpr int kWait_ms = 20000;

struct Victim {
  uint32_t number = 0;
  uint64_t address = 0;
  uint32_t key = 0;
};

enum class Deed : uint32_t { write, send, leave };

// What an attacker is to do at a queue pair of the victim, from a new one of its own.
struct Errand {
  Deed deed = Deed::leave;
  Victim victim;
  uint32_t size = kBytes;
};

// Writes until that fails, with another byte each time; how it failed.
uint32_t write_on(const End& end, const Errand& errand, Memory& memory) {
  const Victim& victim = errand.victim;
  for (char fill = 1;; ++fill) {
    std::fill_n(memory.bytes.begin(), errand.size, fill);
    const auto status =
        end.run(IBV_WR_RDMA_WRITE, memory.sge(0, errand.size), victim.address, victim.key);
    if (status != IBV_WC_SUCCESS) return status;
  }
}

// Tells its number, and how each errand has ended.
DOOR_ROLE(attacker_by_verbs) {
  test::Device device;
  ibv_pd* pd = ibv_alloc_pd(device.context);
  {
    Memory memory(pd, kLong, 'a');
    for (;;) {
      End end(device.context, pd);
      Errand errand;
      if (!control.put(end.qp->qp_num) || !control.get(&errand)) return 1;
      if (errand.deed == Deed::leave) break;
      test::bring_up(end.qp, errand.victim.number, 1);
      uint32_t status = 0;
      if (errand.deed == Deed::write) {
        status = write_on(end, errand, memory);
      } else {
        status = end.run(IBV_WR_SEND, memory.sge(0, errand.size));
      }
      if (!control.put(status)) return 1;
    }
  }
  ibv_dealloc_pd(pd);
  return 0;
}

enum class Ending { destroyed, in_error, reset, failed };

class HostileVerbs : public test::Verbs {
 protected:
  // A queue pair to which the attacker is connected; what it does there has begun.
  std::unique_ptr<End> attacked(Deed deed, const Memory& memory, uint32_t size = kBytes) {
    auto end = std::make_unique<End>(device_.context, pd_);
    uint32_t number = 0;
    EXPECT_TRUE(attacker_.control().get(&number, kWait_ms));
    test::bring_up(end->qp, number);
    send_errand(deed, end->qp->qp_num, memory, size);
    return end;
  }
  void send_errand(Deed deed, uint32_t number, const Memory& memory, uint32_t size = kBytes) {
    const Errand errand{deed, {number, memory.at(), memory.mr->rkey}, size};
    EXPECT_TRUE(attacker_.control().put(errand));
  }
  ibv_wc_status outcome() {
    uint32_t status = IBV_WC_GENERAL_ERR;
    EXPECT_TRUE(attacker_.control().get(&status, kWait_ms)) << "the attacker says nothing";
    return static_cast<ibv_wc_status>(status);
  }
  // The attacker has written something since.
  static void await_a_write(const Memory& memory) {
    const volatile char* first = memory.bytes.data();
    for (int i = 0; *first == '.' && i < kWait_ms; ++i) ::usleep(1000);
    EXPECT_NE(*first, '.') << "the attacker never wrote";
  }
  // Nothing lands there from now on, as far as can be seen.
  static void expect_still(const Memory& memory, int for_ms = 30) {
    const std::vector<char> before = memory.bytes;
    for (int i = 0; i < for_ms; ++i) {
      ::usleep(1000);
      ASSERT_EQ(before, memory.bytes) << "something landed " << i << " ms later";
    }
  }
  void expect_others_work() {
    Memory from(pd_, 64, 'g'), to(pd_, 64);
    EXPECT_EQ(here_->run(IBV_WR_RDMA_WRITE, from.sge(0, 64), to.at(), to.mr->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(to.text(0, 64), from.text(0, 64));
  }
  void TearDown() override {
    uint32_t number = 0;
    if (attacker_.control().get(&number, kWait_ms)) attacker_.control().put(Errand{});
    EXPECT_EQ(attacker_.join(), 0);
    Verbs::TearDown();
  }
  void end_while_written(Ending ending);

  Child attacker_{"attacker_by_verbs"};
};

void await_error_state(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  for (int i = 0; i < kWait_ms; ++i) {
    ASSERT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    if (attr.qp_state == IBV_QPS_ERR) return;
    ::usleep(100);
  }
  FAIL() << "state " << attr.qp_state;
}

void HostileVerbs::end_while_written(Ending ending) {
  Memory memory(pd_, kLong), own(pd_, 64);
  auto end = attacked(Deed::write, memory, kLong);
  await_a_write(memory);
  ibv_qp_attr attr{};
  attr.qp_state = ending == Ending::in_error ? IBV_QPS_ERR : IBV_QPS_RESET;
  if (ending == Ending::destroyed) {
    end.reset();
  } else if (ending == Ending::failed) {
    ibv_sge wrong = own.sge(0, 8);
    wrong.lkey ^= 1u << 20;
    EXPECT_EQ(end->run(IBV_WR_SEND, wrong), IBV_WC_LOC_PROT_ERR);
    await_error_state(end->qp);
  } else {
    ASSERT_EQ(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE), 0);
  }
  expect_still(memory);
  EXPECT_NE(outcome(), IBV_WC_SUCCESS);
  expect_still(memory, 5);
  expect_others_work();
}

TEST_F(HostileVerbs, hostile_21_nothing_lands_when_the_queue_pair_is_destroyed) {
  for (int i = 0; i < 5 && !HasFailure(); ++i) end_while_written(Ending::destroyed);
}

TEST_F(HostileVerbs, hostile_21_nothing_lands_when_the_queue_pair_is_in_error) {
  for (int i = 0; i < 5 && !HasFailure(); ++i) end_while_written(Ending::in_error);
}

TEST_F(HostileVerbs, hostile_21_nothing_lands_when_the_queue_pair_is_reset) {
  for (int i = 0; i < 5 && !HasFailure(); ++i) end_while_written(Ending::reset);
}

// By a work request of its own, of which its peer hears nothing.
TEST_F(HostileVerbs, hostile_21_nothing_lands_when_the_queue_pair_has_failed) {
  for (int i = 0; i < 5 && !HasFailure(); ++i) end_while_written(Ending::failed);
}

// A number comes again when enough others have had their turn.
std::unique_ptr<End> end_with_number(ibv_context* context, ibv_pd* pd, uint32_t number) {
  for (int i = 0; i < 5000; ++i) {
    auto end = std::make_unique<End>(context, pd);
    if (end->qp->qp_num == number) return end;
  }
  return nullptr;
}

TEST_F(HostileVerbs, hostile_21_a_number_that_comes_again_is_another_queue_pair) {
  Memory memory(pd_, kBytes);
  auto first = attacked(Deed::write, memory);
  const uint32_t number = first->qp->qp_num;
  await_a_write(memory);
  first.reset();
  EXPECT_NE(outcome(), IBV_WC_SUCCESS);
  const auto again = end_with_number(device_.context, pd_, number);
  ASSERT_NE(again, nullptr) << "the number did not come again";
  End peer(device_.context, pd_);
  test::connect(again->qp, peer.qp);
  // it knows number, address and key, all of them good
  uint32_t its_number = 0;
  ASSERT_TRUE(attacker_.control().get(&its_number, kWait_ms));
  std::fill(memory.bytes.begin(), memory.bytes.end(), '.');
  send_errand(Deed::write, number, memory);
  EXPECT_NE(outcome(), IBV_WC_SUCCESS);
  EXPECT_EQ(memory.text(0, kBytes), std::string(kBytes, '.'));
  EXPECT_EQ(peer.run(IBV_WR_RDMA_WRITE, memory.sge(0, 8), memory.at(64), memory.mr->rkey),
            IBV_WC_SUCCESS);
}

TEST_F(HostileVerbs, hostile_32_a_send_larger_than_the_posted_receive) {
  for (const uint32_t posted : {0u, 16u, 1000u, 40000u}) {
    Memory memory(pd_, kBytes);
    auto end = std::make_unique<End>(device_.context, pd_);
    uint32_t number = 0;
    ASSERT_TRUE(attacker_.control().get(&number, kWait_ms));
    test::bring_up(end->qp, number);
    ASSERT_EQ(end->receive(memory.sge(4096, posted), 5), 0);
    send_errand(Deed::send, end->qp->qp_num, memory, posted + 1);
    const ibv_wc wc = end->completion();
    EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR) << posted;
    EXPECT_EQ(wc.wr_id, 5u);
    EXPECT_EQ(outcome(), IBV_WC_REM_INV_REQ_ERR) << posted;
    EXPECT_EQ(memory.text(0, 4096), std::string(4096, '.'));
    EXPECT_EQ(memory.text(4096 + posted, 4096), std::string(4096, '.'));
    expect_others_work();
  }
}

TEST_F(HostileVerbs, hostile_32_a_send_without_a_posted_receive) {
  for (const uint32_t size : {0u, 16u, 1000u, 40000u}) {
    Memory memory(pd_, kBytes);
    const auto end = attacked(Deed::send, memory, size);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(end->completion(1).wr_id, ~uint64_t{0}) << "of what?";
    }
    EXPECT_EQ(outcome(), IBV_WC_RNR_RETRY_EXC_ERR) << size;
    EXPECT_EQ(memory.text(0, kBytes), std::string(kBytes, '.'));
    expect_others_work();
  }
}

}  // namespace
}  // namespace aperture::hostile
