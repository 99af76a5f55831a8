// Hostile input 34 through libibverbs, lanes and descriptors: a server with few descriptors takes
// in every queue pair that processes of another user bring it, and they keep them. Others still get
// in, what they have goes on, and all of it comes back. As exhaustion_test.cpp has it for
// libfabric. Run under `aperture run`.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "doors/few_descriptors.hpp"
#include "doors/fixture.hpp"
#include "doors/nursery.hpp"
#include "verbs/ends.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::Control;
using doors::Seedling;

constexpr size_t kAttackers = 40, kQueuePairs = 20;
constexpr rlim_t kDescriptors = 256;
constexpr int kWait_ms = 30000;
constexpr int64_t kWait_ns = 10'000'000'000;

using Numbers = std::array<uint32_t, kQueuePairs>;

// Queue pairs on one completion queue; the id of a work request is its queue pair's number.
class Group {
 public:
  Group()
      : pd_(ibv_alloc_pd(device_.context)),
        cq_(ibv_create_cq(device_.context, 4096, nullptr, nullptr, 0)),
        memory_(std::make_unique<test::Memory>(pd_, 64)) {}
  ~Group() {
    close(0);
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    memory_.reset();
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // All but the oldest `left`.
  void close(size_t left) {
    for (; qps_.size() > left; qps_.pop_back()) EXPECT_EQ(ibv_destroy_qp(qps_.back()), 0);
  }
  size_t size() const { return qps_.size(); }
  ibv_qp* open() {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq_;
    attr.cap = {2, 2, 1, 1, 0};
    attr.qp_type = IBV_QPT_RC;
    qps_.push_back(ibv_create_qp(pd_, &attr));
    return qps_.back();
  }
  void receive(ibv_qp* qp) {
    ibv_sge sge = memory_->sge(0, 1);
    ibv_recv_wr wr{qp->qp_num, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
  }
  int send(ibv_qp* qp) {
    ibv_sge sge = memory_->sge(32, 1);
    return test::post_wr(qp, test::send_wr(IBV_WR_SEND, sge, qp->qp_num));
  }
  ibv_wc completion(int milliseconds) { return test::End::completion_of(cq_, milliseconds); }

 private:
  test::Device device_;
  ibv_pd* pd_;
  ibv_cq* cq_;
  std::unique_ptr<test::Memory> memory_;
  std::vector<ibv_qp*> qps_;
};

DOOR_ROLE(greedy_verbs_nursery) {
  return doors::serve_nursery(control);
}

// Connects as many as it may, and keeps them. Tells how many it could use.
DOOR_ROLE(greedy_by_verbs) {
  Group group;
  std::vector<ibv_qp*> qps(kQueuePairs);
  std::ranges::generate(qps, [&] { return group.open(); });
  Numbers own{}, theirs{};
  std::ranges::transform(qps, own.begin(), [](const ibv_qp* qp) { return qp->qp_num; });
  if (!control.put(own) || !control.get(&theirs)) return 1;
  for (size_t i = 0; i < kQueuePairs; ++i) {
    test::bring_up(qps[i], theirs[i]);
    group.send(qps[i]);
  }
  uint32_t connected = 0;
  // what has not ended after a while waits for a connection
  for (const int64_t end = doors::now_ns() + 1'500'000'000; doors::now_ns() < end;) {
    connected += group.completion(10).status == IBV_WC_SUCCESS;
  }
  if (!control.put(connected)) return 1;
  while (!control.ready()) pause();
  return 0;
}

// Passes messages for as long as it is asked to. How long each took, or its status, negative.
DOOR_ROLE(modest_by_verbs) {
  {
    Group group;
    ibv_qp* const qp = group.open();
    uint32_t theirs = 0;
    if (!control.put(qp->qp_num) || !control.get(&theirs)) return 1;
    test::bring_up(qp, theirs);
    for (char word = 0; control.get(&word) && word != 'x';) {
      const int64_t began = doors::now_ns();
      if (group.send(qp) != 0) return 2;
      const ibv_wc wc = group.completion(10000);
      const int64_t took = doors::now_ns() - began;
      if (!control.put(wc.status == IBV_WC_SUCCESS ? took : -int64_t{wc.status})) return 1;
    }
  }
  return testing::Test::HasFailure() ? 3 : 0;
}

class ExhaustionVerbs : public testing::Test {
 protected:
  ibv_qp* connected_to(uint32_t number) {
    ibv_qp* const qp = group_->open();
    EXPECT_NE(qp, nullptr) << std::strerror(errno);
    if (qp == nullptr) return nullptr;
    test::bring_up(qp, number);
    group_->receive(qp);
    return qp;
  }
  ibv_qp* welcome(Control& control) {
    uint32_t number = 0;
    EXPECT_TRUE(control.get(&number, kWait_ms));
    ibv_qp* const qp = connected_to(number);
    EXPECT_TRUE(qp != nullptr && control.put(qp->qp_num));
    return qp;
  }
  void welcome_all_of(Control& control) {
    Numbers theirs{}, ours{};
    ASSERT_TRUE(control.get(&theirs, kWait_ms)) << "an attacker has ended";
    for (size_t i = 0; i < kQueuePairs; ++i) {
      ibv_qp* const qp = connected_to(theirs[i]);
      ASSERT_NE(qp, nullptr);
      ours[i] = qp->qp_num;
    }
    ASSERT_TRUE(control.put(ours));
  }
  // That process passes a message with us: how long it took.
  int64_t passes(Control& control, ibv_qp* qp) {
    EXPECT_TRUE(control.put('m'));
    ibv_wc wc{};
    do {  // attackers' messages come in between
      wc = group_->completion(kWait_ms);
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    } while (wc.status == IBV_WC_SUCCESS && wc.wr_id != qp->qp_num);
    group_->receive(qp);
    int64_t answer = -1;
    EXPECT_TRUE(control.get(&answer, kWait_ms));
    EXPECT_GE(answer, 0) << ibv_wc_status_str(static_cast<ibv_wc_status>(-answer));
    return answer;
  }

  doors::FewDescriptors few_{kDescriptors};  // before the first context looks
  std::unique_ptr<Group> group_ = std::make_unique<Group>();
};

TEST_F(ExhaustionVerbs, hostile_34_lanes_and_descriptors_of_one_user_leave_room_for_others) {
  if (geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
  Child early("modest_by_verbs", {.uid = 4713});
  ibv_qp* const its = welcome(early.control());
  passes(early.control(), its);
  doors::Nursery nursery("greedy_verbs_nursery");
  // the ports that so many queue pairs have are kept
  while (group_->size() <= kAttackers * kQueuePairs) ASSERT_NE(group_->open(), nullptr);
  group_->close(1);
  const size_t fds_at_first = doors::count_holdings().fds;
  std::vector<std::unique_ptr<Seedling>> attackers;
  for (size_t i = 0; i < kAttackers; ++i) {
    attackers.emplace_back(
        new Seedling(nursery.start("greedy_by_verbs", "APERTURE_TEST_UID", "4712")));
    ASSERT_NO_FATAL_FAILURE(welcome_all_of(attackers.back()->control()));
  }
  uint32_t lanes = 0;
  for (const auto& attacker : attackers) {
    uint32_t connected = 0;
    ASSERT_TRUE(attacker->control().get(&connected, kWait_ms)) << "an attacker has ended";
    lanes += connected;
  }
  const size_t taken = doors::count_holdings().fds - fds_at_first;
  EXPECT_GT(lanes, 0u);
  EXPECT_LT(lanes, kAttackers * kQueuePairs) << "the limit was never met";
  // as in exhaustion_test.cpp
  EXPECT_LT(taken, kDescriptors * 3 / 4);
  const int64_t goes_on = passes(early.control(), its);
  for (const uid_t user : {uid_t{4714}, uid_t{0}}) {
    Child newcomer("modest_by_verbs", {.uid = user});
    ibv_qp* const qp = welcome(newcomer.control());
    std::printf("user %u got in and passed a message in %.1f ms\n", user,
                static_cast<double>(passes(newcomer.control(), qp)) / 1e6);
  }
  std::printf(
      "%zu processes hold %u lanes and %zu of our descriptors; one that was there before "
      "passed a message in %.1f ms\n",
      kAttackers, lanes, taken, static_cast<double>(goes_on) / 1e6);
  attackers.clear();
  group_->close(1);
  const size_t most = fds_at_first + 2;
  size_t left = doors::count_holdings().fds;
  for (const int64_t end = doors::now_ns() + kWait_ns; left > most && doors::now_ns() < end;) {
    usleep(10000);
    left = doors::count_holdings().fds;
  }
  EXPECT_LE(left, most) << "descriptors";
  passes(early.control(), its);
  EXPECT_TRUE(early.control().put('x'));
  EXPECT_EQ(early.join(), 0);
}

}  // namespace
}  // namespace aperture::hostile
