// Hostile input 21 through librdmacm, between two processes: a peer that goes on writing when the
// id of its connection has been disconnected. The region stays registered. With the peer's direct
// access and without. Run under `aperture run`.
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <unistd.h>

#include "doors/child.hpp"
#include "rdma_cm/endpoints.hpp"
#include "verbs/ends.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::Control;
using test::End;

constexpr size_t kBytes = size_t{16} << 20;  // a write is under way for milliseconds
constexpr int kRounds = 5, kWait_ms = 20000;

struct Ended {
  void operator()(rdma_cm_id* id) const { rdma_destroy_ep(id); }
};
using Id = std::unique_ptr<rdma_cm_id, Ended>;

Id endpoint(const char* port, int flags) {
  return Id(test::endpoint(port, flags));
}

struct Errand {
  char port[8] = {};  // empty: leave
  uint64_t address = 0;
  uint32_t key = 0;
};

// Writes until that fails, with another byte each time; how it failed.
uint32_t write_on(rdma_cm_id* id, const Errand& errand) {
  std::vector<char> bytes(kBytes);
  ibv_mr* const mr = rdma_reg_msgs(id, bytes.data(), bytes.size());
  uint32_t status = IBV_WC_SUCCESS;
  for (char fill = 1; status == IBV_WC_SUCCESS; ++fill) {
    std::fill(bytes.begin(), bytes.end(), fill);
    const int rc = rdma_post_write(id, nullptr, bytes.data(), bytes.size(), mr, IBV_SEND_SIGNALED,
                                   errand.address, errand.key);
    status = rc == 0 ? End::completion_of(id->send_cq).status : IBV_WC_FATAL_ERR;
  }
  rdma_dereg_mr(mr);
  return status;
}

// Tells how each errand has ended.
DOOR_ROLE(attacker_by_rdma_cm) {
  for (Errand errand; control.get(&errand) && errand.port[0] != '\0';) {
    const Id id = endpoint(errand.port, 0);
    if (id == nullptr || rdma_connect(id.get(), nullptr) != 0) return 1;
    if (!control.put(write_on(id.get(), errand))) return 2;
  }
  return testing::Test::HasFailure() ? 3 : 0;
}

class HostileRdmaCm : public testing::TestWithParam<bool> {
 protected:
  HostileRdmaCm() {
    EXPECT_EQ(rdma_listen(listener_.get(), 4), 0);
    std::snprintf(errand_.port, sizeof errand_.port, "%u",
                  unsigned{ntohs(rdma_get_src_port(listener_.get()))});
  }
  // A connection through which the attacker has begun to write there.
  Id attacked(std::vector<char>& bytes, ibv_mr*& mr) {
    errand_.address = reinterpret_cast<uint64_t>(bytes.data());
    mr = ibv_reg_mr(listener_->pd, bytes.data(), bytes.size(),
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    errand_.key = mr->rkey;
    EXPECT_TRUE(attacker_.control().put(errand_));
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_get_request(listener_.get(), &id), 0) << std::strerror(errno);
    EXPECT_EQ(rdma_accept(id, nullptr), 0) << std::strerror(errno);
    const volatile char* first = bytes.data();
    for (int i = 0; *first == 0 && i < kWait_ms; ++i) usleep(1000);
    EXPECT_NE(*first, 0) << "the attacker never wrote";
    return Id(id);
  }
  static void expect_still(const std::vector<char>& bytes, int for_ms) {
    const std::vector<char> before = bytes;
    for (int i = 0; i < for_ms; ++i) {
      usleep(1000);
      ASSERT_EQ(before, bytes) << "something landed " << i << " ms later";
    }
  }

  Child attacker_{"attacker_by_rdma_cm", doors::child_denying(GetParam())};
  Id listener_ = endpoint("0", RAI_PASSIVE);
  Errand errand_;
};

TEST_P(HostileRdmaCm, hostile_21_nothing_lands_when_the_id_is_disconnected) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    std::vector<char> bytes(kBytes);
    ibv_mr* mr = nullptr;
    const Id id = attacked(bytes, mr);
    ASSERT_EQ(rdma_disconnect(id.get()), 0) << std::strerror(errno);
    expect_still(bytes, 30);
    uint32_t status = IBV_WC_SUCCESS;
    EXPECT_TRUE(attacker_.control().get(&status, kWait_ms)) << "the attacker says nothing";
    EXPECT_NE(status, IBV_WC_SUCCESS);
    expect_still(bytes, 5);
    EXPECT_EQ(rdma_dereg_mr(mr), 0);
  }
  ASSERT_TRUE(attacker_.control().put(Errand{}));
  EXPECT_EQ(attacker_.join(), 0);
}

INSTANTIATE_TEST_SUITE_P(Paths, HostileRdmaCm, testing::Bool(), [](const auto& p) {
  return std::string(p.param ? "owner_executed" : "direct");
});

}  // namespace
}  // namespace aperture::hostile
