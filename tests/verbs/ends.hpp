// Queue pairs of aperture0 as programs make them, through the installed libibverbs alone; run under
// `aperture run`. One thread, unless a test says otherwise.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace aperture::test {

constexpr int kEverything = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr uint32_t kDepth = 64;

// A signaled work request of one piece, which must outlive it.
inline ibv_send_wr send_wr(ibv_wr_opcode opcode, ibv_sge& sge, uint64_t id = 0) {
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  return wr;
}

inline int post_wr(ibv_qp* qp, ibv_send_wr wr) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

// Why a call made nothing; 0 if it has made something.
inline int refusal_of(const void* made) {
  return made == nullptr ? errno : 0;
}

struct Device {
  Device() {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    for (int i = 0; list != nullptr && i < count; ++i) {
      if (std::string(ibv_get_device_name(list[i])) == "aperture0") {
        context = ibv_open_device(list[i]);
      }
    }
    ibv_free_device_list(list);
  }
  ~Device() {
    if (context != nullptr) {
      EXPECT_EQ(ibv_close_device(context), 0);
    }
  }
  ibv_context* context = nullptr;
};

// Bytes with a region over them.
struct Memory {
  Memory(ibv_pd* pd, size_t size, char fill = '.', int access = kEverything)
      : bytes(size, fill), mr(ibv_reg_mr(pd, bytes.data(), size, access)) {}
  ~Memory() { EXPECT_EQ(ibv_dereg_mr(mr), 0); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint64_t at(size_t offset = 0) const { return reinterpret_cast<uint64_t>(bytes.data()) + offset; }
  ibv_sge sge(size_t offset, uint32_t length) const { return {at(offset), length, mr->lkey}; }
  std::string text(size_t offset, size_t length) const { return {bytes.data() + offset, length}; }

  std::vector<char> bytes;
  ibv_mr* mr;
};

struct End {
  End(ibv_context* its_context, ibv_pd* its_pd, ibv_comp_channel* channel = nullptr)
      : context(its_context), pd(its_pd), cq(ibv_create_cq(context, 16384, nullptr, channel, 0)) {
    ibv_qp_init_attr_ex attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.cap = {kDepth, kDepth, 4, 4, 128};
    attr.qp_type = IBV_QPT_RC;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.pd = pd;
    attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND |
                          IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;
    qp = ibv_create_qp_ex(context, &attr);
  }
  ~End() {
    if (qp != nullptr) {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  ibv_qp_ex* ex() const { return ibv_qp_to_qp_ex(qp); }

  int post(ibv_wr_opcode opcode, ibv_sge sge, uint64_t id = 0, uint64_t remote = 0,
           uint32_t rkey = 0, unsigned flags = IBV_SEND_SIGNALED) const {
    ibv_send_wr wr = send_wr(opcode, sge, id);
    wr.send_flags = flags;
    wr.wr.rdma = {remote, rkey};
    return post_wr(qp, wr);
  }
  // Posts and waits: how it ended; IBV_WC_FATAL_ERR if it could not be posted.
  ibv_wc_status run(ibv_wr_opcode opcode, ibv_sge sge, uint64_t remote = 0,
                    uint32_t rkey = 0) const {
    return post(opcode, sge, 0, remote, rkey) == 0 ? completion().status : IBV_WC_FATAL_ERR;
  }
  int receive(ibv_sge sge, uint64_t id = 0) const {
    ibv_recv_wr wr{id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }
  // The next completion; a status of IBV_WC_GENERAL_ERR and id ~0 if none comes.
  ibv_wc completion(int milliseconds = 10000) const { return completion_of(cq, milliseconds); }
  static ibv_wc completion_of(ibv_cq* cq, int milliseconds = 10000) {
    ibv_wc wc{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    do {
      if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
    } while (std::chrono::steady_clock::now() < end);
    wc.wr_id = ~uint64_t{0};
    wc.status = IBV_WC_GENERAL_ERR;
    return wc;
  }

  ibv_context* context;
  ibv_pd* pd;
  ibv_cq* cq;
  ibv_qp* qp = nullptr;
};

// One end of a connection, ready to send.
inline void bring_up(ibv_qp* qp, uint32_t peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = kEverything;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, mask), 0);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 1;
  attr.ah_attr.port_num = 1;
  mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (qp->qp_type != IBV_QPT_XRC_SEND) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, mask), 0);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.max_rd_atomic = 4;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
  if (qp->qp_type != IBV_QPT_XRC_RECV) {
    mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  ASSERT_EQ(ibv_modify_qp(qp, &attr, mask), 0);
}

inline void connect(ibv_qp* one, ibv_qp* other) {
  bring_up(one, other->qp_num);
  bring_up(other, one->qp_num);
}

// A device, a protection domain, and two connected ends of it.
class Verbs : public ::testing::Test {
 protected:
  void SetUp() override {
    ::alarm(60);
    ASSERT_NE(device_.context, nullptr) << "run it under `aperture run`";
    pd_ = ibv_alloc_pd(device_.context);
    ASSERT_NE(pd_, nullptr);
    channel_ = ibv_create_comp_channel(device_.context);
    here_ = std::make_unique<End>(device_.context, pd_, channel_);
    there_ = std::make_unique<End>(device_.context, pd_);
    ASSERT_TRUE(here_->qp != nullptr && there_->qp != nullptr);
    connect(here_->qp, there_->qp);
  }
  void TearDown() override {
    here_.reset();
    there_.reset();
    if (channel_ != nullptr) {
      EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
    }
    if (pd_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    }
    ::alarm(0);
  }

  Device device_;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  std::unique_ptr<End> here_, there_;
};

// Two contexts, and with them engines, of one process, each with a protection domain.
class TwoContexts : public ::testing::Test {
 protected:
  void SetUp() override {
    ::alarm(110);
    for (const Device* device : {&here_, &there_}) {
      ASSERT_NE(device->context, nullptr) << "run it under `aperture run`";
    }
    here_pd_ = ibv_alloc_pd(here_.context);
    there_pd_ = ibv_alloc_pd(there_.context);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_dealloc_pd(here_pd_), 0);
    EXPECT_EQ(ibv_dealloc_pd(there_pd_), 0);
    ::alarm(0);
  }

  Device here_, there_;
  ibv_pd* here_pd_ = nullptr;
  ibv_pd* there_pd_ = nullptr;
};

}  // namespace aperture::test
