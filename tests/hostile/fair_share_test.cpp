// hostile 37 through libibverbs: one peer does as much as it can, and its neighbour keeps its share
// of a process that polls. One thread is all three of them, in a context each, so that nothing
// depends on the scheduler; as tests/doors/fair_share_test.cpp has it for libfabric. Run under
// `aperture run` with APERTURE_CMA=deny: it is the owner's polls that are counted.
#include <gtest/gtest.h>

#include "doors/fair_share.hpp"
#include "doors/fixture.hpp"
#include "verbs/ends.hpp"

namespace aperture::hostile {
namespace {

using doors::Attack;
using doors::kHogOps;
using doors::kReceives;
using doors::kShort;
using doors::Taken;
using test::Memory;

// A context of its own, and so an engine, with a queue pair for each peer on one completion queue.
class Party {
 public:
  Party()
      : pd_(ibv_alloc_pd(device_.context)),
        cq_(ibv_create_cq(device_.context, 8192, nullptr, nullptr, 0)) {}
  ~Party() {
    for (ibv_qp* qp : qps_) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
  }
  Party(const Party&) = delete;
  Party& operator=(const Party&) = delete;

  ibv_qp* queue_pair() {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq_;
    attr.cap = {kReceives, kReceives, 1, 1, kShort};
    attr.qp_type = IBV_QPT_RC;
    qps_.push_back(ibv_create_qp(pd_, &attr));
    return qps_.back();
  }
  ibv_pd* pd() const { return pd_; }
  int poll() { return ibv_poll_cq(cq_, static_cast<int>(wcs_.size()), wcs_.data()); }
  const ibv_wc& wc(int i) const { return wcs_[static_cast<size_t>(i)]; }

 private:
  test::Device device_;
  ibv_pd* pd_;
  ibv_cq* cq_;
  std::vector<ibv_qp*> qps_;
  std::vector<ibv_wc> wcs_ = std::vector<ibv_wc>(2048);
};

class FairShareVerbs : public testing::TestWithParam<Attack> {
 protected:
  void SetUp() override {
    test::connect(from_neighbour_, neighbour_qp_);
    test::connect(from_hog_, hog_qp_);
    for (size_t i = 0; i < kReceives; ++i) receive();
    for (size_t i = 0; i < kHogOps; ++i) receive_hogs();
  }
  void receive() { post_receive(from_neighbour_, short_in_.sge(0, kShort), kOfNeighbour); }
  void receive_hogs() { post_receive(from_hog_, long_in_.sge(0, size()), kOfHog); }
  static void post_receive(ibv_qp* qp, ibv_sge sge, uint64_t id) {
    ibv_recv_wr wr{id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
  }
  uint32_t size() const { return static_cast<uint32_t>(attack_.size); }

  // Puts as much as there is room for.
  void fill_neighbour() {
    ibv_sge sge = short_out_.sge(0, kShort);
    for (; sent_ < kReceives; ++sent_) {
      if (test::post_wr(neighbour_qp_, test::send_wr(IBV_WR_SEND, sge)) != 0) break;
    }
    sent_ -= drain(neighbour_);
  }
  void fill_hog() {
    const auto opcode = attack_.kind == Attack::Kind::send    ? IBV_WR_SEND
                        : attack_.kind == Attack::Kind::write ? IBV_WR_RDMA_WRITE
                                                              : IBV_WR_RDMA_READ;
    ibv_sge sge = long_out_.sge(0, size());
    ibv_send_wr wr = test::send_wr(opcode, sge);
    wr.wr.rdma = {long_in_.at(), long_in_.mr->rkey};
    for (; under_way_ < kHogOps && test::post_wr(hog_qp_, wr) == 0; ++under_way_) {
    }
    const size_t done = drain(hog_);
    under_way_ -= done;
    if (attack_.kind != Attack::Kind::send) hogs_done_ += done;
  }
  static size_t drain(Party& party) {
    const int n = party.poll();
    for (int i = 0; i < n; ++i) EXPECT_EQ(party.wc(i).status, IBV_WC_SUCCESS);
    return static_cast<size_t>(n);
  }
  // What so many polls take, each of which finds something of the neighbour's, and the hog's.
  Taken count(int polls, bool with_hog) {
    Taken taken;
    const size_t done_before = hogs_done_;
    for (int i = 0; i < polls; ++i) {
      fill_neighbour();
      if (with_hog) fill_hog();
      const double began = doors::thread_cpu_ns();
      const int n = owner_.poll();
      taken.cpu_ns += doors::thread_cpu_ns() - began;
      for (int k = 0; k < n; ++k) {
        EXPECT_EQ(owner_.wc(k).status, IBV_WC_SUCCESS);
        const bool neighbours = owner_.wc(k).wr_id == kOfNeighbour;
        taken.messages += neighbours;
        hogs_done_ += !neighbours;
        neighbours ? receive() : receive_hogs();
      }
    }
    taken.hog_ops = static_cast<double>(hogs_done_ - done_before);
    taken.hog_bytes = taken.hog_ops * static_cast<double>(attack_.size);
    return taken;
  }

  // While this thread has no core, the process's control thread goes on for the owner and the hog,
  // and nobody for the neighbour. That only adds: of several counts, the one that was disturbed
  // least is what polls take.
  template <typename Count>
  static Taken least(Count count) {
    Taken least = count();
    for (int i = 1; i < kCounts; ++i) {
      const Taken taken = count();
      if (taken.hog_bytes + taken.messages < least.hog_bytes + least.messages) least = taken;
    }
    return least;
  }

  static constexpr int kPolls = 125, kCounts = 40;
  static constexpr uint64_t kOfNeighbour = 1, kOfHog = 2;
  const Attack attack_ = GetParam();
  size_t sent_ = 0, under_way_ = 0, hogs_done_ = 0;
  Party owner_, neighbour_, hog_;
  ibv_qp* const from_neighbour_ = owner_.queue_pair();
  ibv_qp* const from_hog_ = owner_.queue_pair();
  ibv_qp* const neighbour_qp_ = neighbour_.queue_pair();
  ibv_qp* const hog_qp_ = hog_.queue_pair();
  Memory short_in_{owner_.pd(), kShort}, long_in_{owner_.pd(), attack_.size};
  Memory short_out_{neighbour_.pd(), kShort}, long_out_{hog_.pd(), attack_.size};
};

TEST_P(FairShareVerbs, hostile_37_the_neighbour_has_its_share_of_each_poll) {
  // both are connected, and have filled their lanes
  for (int i = 0; i < 5000 && (count(1, true).messages == 0 || hogs_done_ == 0); ++i) {
    ::usleep(100);
  }
  count(100, true);
  doors::expect_share(attack_, least([this] { return count(kPolls, true); }),
                      least([this] { return count(kPolls, false); }), kPolls);
}

INSTANTIATE_TEST_SUITE_P(Attacks, FairShareVerbs, testing::ValuesIn(doors::kAttacks),
                         doors::kByName);

}  // namespace
}  // namespace aperture::hostile
