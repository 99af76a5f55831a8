// A connected queue pair of the verbs door and the engine that progresses it: lanes that come while
// it is brought up by one thread and the engine is put to sleep by another.
#include "nic/rc_verbs_qp.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "nic/eventually.hpp"
#include "nic/verbs_nic.hpp"

namespace aperture::nic::test {
namespace {

using ib::QpState;

constexpr uint32_t kToRtr = ib::kAttrState | ib::kAttrAv | ib::kAttrDestQpn;

class ConnectedEnd final : public ib::CqEvents, public ib::QpEvents {
 public:
  explicit ConnectedEnd(char fill) : cq(64, *this, false), memory(8, std::byte(fill)) {
    nic = *VerbsNic::create();
    ib::QpSpec spec;
    spec.pd = protect::new_domain();
    spec.send_cq = spec.recv_cq = &cq;
    spec.max_send_wr = spec.max_recv_wr = 8;
    spec.max_send_sge = spec.max_recv_sge = 1;
    spec.events = this;
    qp = *nic->make_qp(spec);
    protect::RegionSpec region;
    region.pd = spec.pd;
    region.base = reinterpret_cast<uint64_t>(memory.data());
    region.length = memory.size();
    region.rights = protect::Rights::local_read | protect::Rights::local_write;
    region.requested_key = 0x700;
    piece_ = {region.base, 8, static_cast<uint32_t>((*nic->keys().add(region)).key)};
    go_to(QpState::init);
  }
  ~ConnectedEnd() override { qp.reset(); }

  void on_completion_event() noexcept override {}
  void on_overrun() noexcept override {}
  void on_async_event(ib::AsyncEvent) noexcept override {}

  void go_to(QpState state, const ConnectedEnd* peer = nullptr) {
    ib::QpAttributes attr;
    attr.state = state;
    attr.rnr_retry = 7;
    attr.route.local = attr.route.remote = Address::v4(0x7f000001, 0);
    if (peer != nullptr) attr.dest_qpn = peer->qp->qp().qpn();
    const uint32_t mask = peer != nullptr ? kToRtr : ib::kAttrState | ib::kAttrRnrRetry;
    EXPECT_TRUE(qp->modify(attr, mask));
  }
  Engine& engine() { return nic->engine(); }
  Status post_recv() {
    const EngineGuard guard(engine());
    return qp->qp().post_recv({1, &piece_, 1});
  }
  // Nobody asks for its end: who waits for one rings a peer that does not come.
  Status send() {
    ib::SendWr wr;
    wr.sge = &piece_;
    wr.sge_count = 1;
    wr.flags = 0;
    const EngineGuard guard(engine());
    return qp->qp().post_send(wr);
  }
  bool has_lane() {
    const EngineGuard guard(engine());
    return static_cast<ib::RcQp&>(qp->qp()).lane() != nullptr;
  }
  bool is_asleep() {
    const EngineGuard guard(engine());
    return engine().sleep().is_asleep();
  }
  bool has_completion() {
    const EngineGuard guard(engine());
    return !cq.empty();
  }

  std::unique_ptr<VerbsNic> nic;
  ib::CompletionQueue cq;
  std::vector<std::byte> memory;
  std::unique_ptr<VerbsQp> qp;

 private:
  ib::Sge piece_;
};

// The lane of a peer that was faster comes while the program's thread is on its way to RTR: between
// the two the engine is put to sleep, as a thread does that waits for a completion channel.
TEST(RcVerbsQp, a_lane_that_is_attached_while_the_engine_sleeps_is_progressed) {
  ConnectedEnd here('.'), there('m');
  ASSERT_TRUE(here.post_recv());
  ASSERT_TRUE(eventually([&] { return here.is_asleep(); })) << "the control thread has left it";
  std::jthread program;
  {
    const EngineGuard guard(here.engine());
    here.engine().auto_progress().leave_to_application();  // else the control thread wants the lock
    program =
        std::jthread([&] { here.go_to(QpState::rtr, &there); });  // waits for the lock, or will
    there.go_to(QpState::rtr, &here);
    there.go_to(QpState::rts);
    ASSERT_TRUE(there.send());
    ASSERT_TRUE(eventually([&] { return there.has_lane(); }));
    for (const uint64_t end = now_ns() + 50'000'000; now_ns() < end;) here.engine().poll();
    while (!here.engine().sleep().prepare()) here.engine().poll();
  }
  program.join();
  EXPECT_TRUE(eventually([&] { return here.has_completion(); }));
  EXPECT_EQ(here.memory, there.memory);
}

}  // namespace
}  // namespace aperture::nic::test
