// Atomic writes and flushes as programs post them, those too that were built with newer headers
// than are installed: ibv_wr_atomic_write and ibv_wr_flush (ibv_wr_post(3)), the access bits of
// ibv_reg_mr(3) and what the device says of itself.
#include <sys/mman.h>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

// What the newest header has, by number and place.
constexpr int kFlushGlobal = 1 << 8;
constexpr int kFlushPersistent = 1 << 9;
constexpr auto kWrFlush = static_cast<ibv_wr_opcode>(14);
constexpr auto kWrAtomicWrite = static_cast<ibv_wr_opcode>(15);
constexpr int kWcFlush = 8;
constexpr int kWcAtomicWrite = 9;
constexpr uint64_t kWithFlush = 1 << 11;
constexpr uint64_t kWithAtomicWrite = 1 << 12;
constexpr uint8_t kGlobal = 1, kPersistent = 2;
constexpr uint8_t kRange = 0, kMr = 1;

// The n-th function behind wr_abort.
template <typename Fn>
Fn* younger(ibv_qp_ex* ex, size_t n) {
  Fn* fn = nullptr;
  const auto* behind = reinterpret_cast<const char*>(&ex->wr_abort) + sizeof ex->wr_abort;
  std::memcpy(&fn, behind + n * sizeof fn, sizeof fn);
  return fn;
}
void wr_atomic_write(ibv_qp_ex* ex, uint32_t rkey, uint64_t addr, const void* value) {
  younger<void(ibv_qp_ex*, uint32_t, uint64_t, const void*)>(ex, 0)(ex, rkey, addr, value);
}
void wr_flush(ibv_qp_ex* ex, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
              uint8_t level) {
  younger<void(ibv_qp_ex*, uint32_t, uint64_t, size_t, uint8_t, uint8_t)>(ex, 1)(ex, rkey, addr,
                                                                                 len, type, level);
}

// A page of a file, mapped shared.
class MappedPage {
 public:
  MappedPage() {
    const int fd = ::mkstemp(name_);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(::ftruncate(fd, kSize), 0);
    at_ = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(at_, MAP_FAILED);
    ::close(fd);
  }
  ~MappedPage() {
    ::munmap(at_, kSize);
    ::unlink(name_);
  }
  void* at() const { return at_; }
  static constexpr size_t kSize = 4096;

 private:
  char name_[40] = "/tmp/aperture-placement-XXXXXX";
  void* at_;
};

class PlacementVerbs : public Verbs {
 protected:
  ibv_wc_status flush(uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level) {
    ibv_qp_ex* ex = here_->ex();
    ibv_wr_start(ex);
    ex->wr_id = 3;
    ex->wr_flags = IBV_SEND_SIGNALED;
    wr_flush(ex, rkey, addr, len, type, level);
    const int error = ibv_wr_complete(ex);
    EXPECT_EQ(error, 0);
    if (error != 0) return IBV_WC_FATAL_ERR;
    const ibv_wc wc = here_->completion();
    if (wc.status == IBV_WC_SUCCESS) {
      EXPECT_EQ(static_cast<int>(wc.opcode), kWcFlush);
    }
    return wc.status;
  }
  // The right to flush through the other end's queue pair.
  void allow(int access) {
    ibv_qp_attr attr{};
    attr.qp_access_flags = static_cast<unsigned>(kEverything | access);
    ASSERT_EQ(ibv_modify_qp(there_->qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
  }
};

TEST_F(PlacementVerbs, an_atomic_write_is_posted_by_its_builder) {
  Memory to(pd_, 16);
  ibv_qp_ex* ex = here_->ex();
  char value[9] = "as-one-8";
  ibv_wr_start(ex);
  ex->wr_id = 5;
  ex->wr_flags = IBV_SEND_SIGNALED;
  wr_atomic_write(ex, to.mr->rkey, to.at(8), value);
  std::memset(value, 'x', sizeof value);  // it was copied
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  const ibv_wc wc = here_->completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(static_cast<int>(wc.opcode), kWcAtomicWrite);
  EXPECT_EQ(to.text(0, 16), "........as-one-8");
}

TEST_F(PlacementVerbs, an_atomic_write_is_posted_by_ibv_post_send) {
  Memory from(pd_, 8, 's'), to(pd_, 16);
  EXPECT_EQ(here_->run(kWrAtomicWrite, from.sge(0, 8), to.at(8), to.mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(to.text(0, 16), "........ssssssss");
  EXPECT_EQ(here_->post(kWrAtomicWrite, from.sge(0, 7), 0, to.at(8), to.mr->rkey), EINVAL);
}

TEST_F(PlacementVerbs, an_atomic_write_needs_remote_write_and_eight_aligned_bytes) {
  Memory from(pd_, 8, 's');
  Memory to(pd_, 16, '.', IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  EXPECT_EQ(here_->run(kWrAtomicWrite, from.sge(0, 8), to.at(), to.mr->rkey),
            IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(to.text(0, 16), "................");
}

TEST_F(PlacementVerbs, an_atomic_write_that_is_not_aligned_is_an_invalid_request) {
  Memory from(pd_, 8, 's'), to(pd_, 16);
  EXPECT_EQ(here_->run(kWrAtomicWrite, from.sge(0, 8), to.at(4), to.mr->rkey),
            IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(to.text(0, 16), "................");
}

TEST_F(PlacementVerbs, a_flush_of_a_range_and_of_the_whole_succeed_with_the_right) {
  allow(kFlushGlobal);
  Memory from(pd_, 8, 's'), to(pd_, 64, '.', kEverything | kFlushGlobal);
  ASSERT_EQ(here_->post(IBV_WR_RDMA_WRITE, from.sge(0, 8), 1, to.at(), to.mr->rkey, 0), 0);
  EXPECT_EQ(flush(to.mr->rkey, to.at(), 8, kGlobal, kRange), IBV_WC_SUCCESS);
  EXPECT_EQ(to.text(0, 8), "ssssssss");
  EXPECT_EQ(flush(to.mr->rkey, 12345, 67890, kGlobal, kMr), IBV_WC_SUCCESS);
  EXPECT_EQ(flush(to.mr->rkey, to.at(60), 5, kGlobal, kRange), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PlacementVerbs, a_flush_without_the_right_of_its_region_is_a_remote_access_error) {
  allow(kFlushGlobal | kFlushPersistent);
  Memory to(pd_, 64, '.', kEverything | kFlushGlobal);
  EXPECT_EQ(flush(to.mr->rkey, to.at(), 8, kPersistent, kRange), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PlacementVerbs, a_flush_that_the_queue_pair_does_not_take_is_an_invalid_request) {
  Memory to(pd_, 64, '.', kEverything | kFlushGlobal);
  EXPECT_EQ(flush(to.mr->rkey, to.at(), 8, kGlobal, kRange), IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(PlacementVerbs, memory_is_flushed_persistently_where_it_is_a_file) {
  allow(kFlushGlobal | kFlushPersistent);
  const MappedPage page;
  ibv_mr* mr = ibv_reg_mr(pd_, page.at(), page.kSize, kEverything | kFlushPersistent);
  ASSERT_NE(mr, nullptr);
  Memory from(pd_, 8, 's');
  const auto at = reinterpret_cast<uint64_t>(page.at());
  ASSERT_EQ(here_->post(IBV_WR_RDMA_WRITE, from.sge(0, 8), 1, at, mr->rkey, 0), 0);
  EXPECT_EQ(flush(mr->rkey, at, 8, kPersistent, kRange), IBV_WC_SUCCESS);
  EXPECT_EQ(flush(mr->rkey, 0, 0, kPersistent, kMr), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(page.at(), "ssssssss", 8), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(PlacementVerbs, memory_that_is_no_file_is_not_registered_for_persistent_flushes) {
  std::vector<char> bytes(4096);
  const int access = kEverything | kFlushPersistent;
  EXPECT_EQ(refusal_of(ibv_reg_mr(pd_, bytes.data(), bytes.size(), access)), EINVAL);
  ibv_mr* mr = ibv_reg_mr(pd_, bytes.data(), bytes.size(), kEverything);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, access),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(
      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kEverything | kFlushGlobal),
      0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(PlacementVerbs, a_window_gives_the_right_to_flush) {
  allow(kFlushGlobal);
  Memory to(pd_, 64, '.', kEverything | IBV_ACCESS_MW_BIND);
  ibv_mw* mw = ibv_alloc_mw(pd_, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  ibv_mw_bind bind{};
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_info = {to.mr, to.at(), 64, static_cast<unsigned>(kFlushGlobal)};
  ASSERT_EQ(ibv_bind_mw(there_->qp, mw, &bind), 0);
  ASSERT_EQ(there_->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(flush(mw->rkey, to.at(), 8, kGlobal, kRange), IBV_WC_SUCCESS);
  EXPECT_EQ(flush(mw->rkey, 0, 0, kGlobal, kMr), IBV_WC_SUCCESS);
  bind.bind_info.mw_access_flags = kFlushPersistent;
  ASSERT_EQ(ibv_bind_mw(there_->qp, mw, &bind), 0);
  EXPECT_EQ(there_->completion().status, IBV_WC_MW_BIND_ERR) << "its region is no file";
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(PlacementVerbs, a_flush_that_names_no_placement_or_level_is_not_posted) {
  Memory to(pd_, 64);
  ibv_qp_ex* ex = here_->ex();
  const uint8_t bad[][2] = {{0, kRange}, {4, kRange}, {kGlobal, 2}, {255, 255}};
  for (const auto& [type, level] : bad) {
    ibv_wr_start(ex);
    wr_flush(ex, to.mr->rkey, to.at(), 8, type, level);
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL) << int{type} << " " << int{level};
  }
  EXPECT_EQ(here_->post(kWrFlush, to.sge(0, 8), 0, to.at(), to.mr->rkey), EINVAL);
}

TEST_F(PlacementVerbs, the_device_says_that_it_has_them) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(device_.context, nullptr, &attr), 0);
  EXPECT_EQ(attr.device_cap_flags_ex >> 38 & 7, 7u);
  EXPECT_EQ(attr.device_cap_flags_ex & 0xffffffff, attr.orig_attr.device_cap_flags);
  EXPECT_EQ(attr.phys_port_cnt_ex, 1u);
  EXPECT_EQ(attr.odp_caps.per_transport_caps.rc_odp_caps >> 6 & 3, 3u);
  EXPECT_EQ(attr.odp_caps.per_transport_caps.uc_odp_caps >> 6 & 3, 0u);
}

TEST_F(PlacementVerbs, queue_pairs_have_them_where_their_type_has) {
  ibv_qp_init_attr_ex attr{};
  attr.send_cq = attr.recv_cq = here_->cq;
  attr.cap = {8, 8, 1, 1, 0};
  attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.pd = pd_;
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_XRC_SEND, IBV_QPT_UC, IBV_QPT_UD}) {
    for (const uint64_t ops : {kWithFlush, kWithAtomicWrite}) {
      attr.qp_type = type;
      attr.send_ops_flags = ops;
      ibv_qp* qp = ibv_create_qp_ex(device_.context, &attr);
      const bool has = type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND;
      EXPECT_EQ(refusal_of(qp), has ? 0 : EOPNOTSUPP) << type;
      if (qp != nullptr) {
        EXPECT_EQ(ibv_destroy_qp(qp), 0);
      }
    }
  }
}

}  // namespace
}  // namespace aperture::test
