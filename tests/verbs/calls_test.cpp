// Calls that pyverbs has not, on the wire: extended batches, timestamps, events for a receiver that
// sleeps, regions with an iova, null MRs, XRC, contexts that are closed early.

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <thread>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

class Batches : public Verbs {};

TEST_F(Batches, inline_lists_arrive_in_one_piece) {
  Memory to(pd_, 64);
  char parts[3][8] = {"one.", "two..", "three"};
  ibv_data_buf list[3] = {{parts[0], 4}, {parts[1], 5}, {parts[2], 5}};
  ibv_qp_ex* ex = here_->ex();
  ibv_wr_start(ex);
  ex->wr_id = 7;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(ex, to.mr->rkey, to.at(8));
  ibv_wr_set_inline_data_list(ex, 3, list);
  std::memset(parts, 'x', sizeof parts);  // they were copied
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  const ibv_wc wc = here_->completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(to.text(8, 15), "one.two..three.");
}

TEST_F(Batches, pieces_and_immediate_data_arrive_in_order) {
  Memory from(pd_, 64, 's'), to(pd_, 64);
  ASSERT_EQ(there_->receive(to.sge(0, 64), 1), 0);
  ASSERT_EQ(there_->receive(to.sge(32, 32), 2), 0);
  ibv_qp_ex* ex = here_->ex();
  const ibv_sge pieces[2] = {from.sge(0, 4), from.sge(32, 4)};
  ibv_wr_start(ex);
  ex->wr_flags = 0;
  ibv_wr_send(ex);
  ibv_wr_set_sge_list(ex, 2, pieces);
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(ex, htobe32(0x1234));
  ibv_wr_set_sge(ex, from.mr->lkey, from.at(), 3);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  const ibv_wc first = there_->completion(), second = there_->completion();
  EXPECT_EQ(first.wr_id, 1u);
  EXPECT_EQ(first.byte_len, 8u);
  EXPECT_EQ(second.wr_id, 2u);
  EXPECT_EQ(second.byte_len, 3u);
  EXPECT_EQ(be32toh(second.imm_data), 0x1234u);
  EXPECT_TRUE((second.wc_flags & IBV_WC_WITH_IMM) != 0 && (first.wc_flags & IBV_WC_WITH_IMM) == 0);
}

TEST_F(Batches, an_abort_posts_nothing) {
  Memory to(pd_, 8);
  ibv_qp_ex* ex = here_->ex();
  char text[] = "aborted";
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(ex, to.mr->rkey, to.at());
  ibv_wr_set_inline_data(ex, text, 8);
  ibv_wr_abort(ex);
  EXPECT_EQ(here_->completion(50).wr_id, ~uint64_t{0});
  EXPECT_EQ(to.text(0, 8), "........");
  ASSERT_EQ(here_->post(IBV_WR_RDMA_WRITE, to.sge(0, 8), 3, to.at(), to.mr->rkey), 0);
  EXPECT_EQ(here_->completion().wr_id, 3u);
}

TEST_F(Batches, one_that_cannot_be_posted_keeps_the_others_back) {
  Memory to(pd_, 8);
  ibv_qp_ex* ex = here_->ex();
  std::string text(129, 't');  // one byte more than max_inline_data
  for (const size_t length : {text.size(), text.size() - 1}) {
    Memory room(pd_, 129);
    ibv_wr_start(ex);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, to.mr->rkey, to.at());
    ibv_wr_set_inline_data(ex, text.data(), 8);
    ibv_wr_rdma_write(ex, room.mr->rkey, room.at());
    ibv_wr_set_inline_data(ex, text.data(), length);
    const bool fits = length == 128;
    EXPECT_EQ(ibv_wr_complete(ex), fits ? 0 : EINVAL);
    EXPECT_EQ(here_->completion(fits ? 10000 : 50).status,
              fits ? IBV_WC_SUCCESS : IBV_WC_GENERAL_ERR);
    EXPECT_EQ(to.text(0, 8), fits ? "tttttttt" : "........");
    if (fits) {
      EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
    }
  }
}

// The first post asks for the connection, which comes while the queue pair goes.
TEST_F(Batches, may_be_destroyed_while_their_connection_comes) {
  Memory m(pd_, 64);
  for (int round = 0; round < 100; ++round) {
    End here(device_.context, pd_), there(device_.context, pd_);
    ASSERT_TRUE(here.qp != nullptr && there.qp != nullptr);
    connect(here.qp, there.qp);
    ASSERT_EQ(here.post(IBV_WR_SEND, m.sge(0, 8)), 0);
    for (int polls = 0; polls < round % 10; ++polls) {
      ibv_wc wc;
      ASSERT_GE(ibv_poll_cq(here.cq, 1, &wc), 0);
      ::usleep(20);
    }
  }
}

class Times : public Verbs {};

TEST_F(Times, an_extended_completion_queue_says_when) {
  ibv_cq_init_attr_ex attr{};
  attr.cqe = 16;
  attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                  IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_BYTE_LEN |
                  IBV_WC_EX_WITH_QP_NUM;
  ibv_cq_ex* cq = ibv_create_cq_ex(device_.context, &attr);
  ASSERT_NE(cq, nullptr);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
  init.cap = {8, 8, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* one = ibv_create_qp(pd_, &init);
  ibv_qp* other = ibv_create_qp(pd_, &init);
  ASSERT_TRUE(one != nullptr && other != nullptr);
  connect(one, other);
  Memory memory(pd_, 16);
  uint64_t before = 0, before_wall = 0;
  for (uint64_t id = 1; id <= 3; ++id) {
    ibv_sge sge = memory.sge(0, 8);
    ibv_send_wr wr = send_wr(IBV_WR_RDMA_WRITE, sge, id);
    wr.wr.rdma = {memory.at(8), memory.mr->rkey};
    ASSERT_EQ(post_wr(one, wr), 0);
    ibv_poll_cq_attr poll{};
    while (ibv_start_poll(cq, &poll) == ENOENT) {
    }
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    EXPECT_EQ(cq->wr_id, id);
    EXPECT_EQ(ibv_wc_read_qp_num(cq), one->qp_num);
    const uint64_t ticks = ibv_wc_read_completion_ts(cq);
    const uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq);
    EXPECT_GT(ticks, before);
    EXPECT_GE(wall, before_wall);
    const auto now = static_cast<uint64_t>(
        std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
    EXPECT_LT(now - wall + 1'000'000'000, 60'000'000'000u);
    before = ticks;
    before_wall = wall;
    EXPECT_EQ(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
  }
  EXPECT_EQ(ibv_destroy_qp(one), 0);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

class Sleepers : public Verbs {
 protected:
  // Waits for an event as a program does, without polling.
  bool sleeps_until_event(int milliseconds) {
    pollfd waiting{channel_->fd, POLLIN, 0};
    if (::poll(&waiting, 1, milliseconds) != 1) return false;
    ibv_cq* cq = nullptr;
    void* its_context = nullptr;
    if (ibv_get_cq_event(channel_, &cq, &its_context) != 0) return false;
    ibv_ack_cq_events(cq, 1);
    return cq == here_->cq;
  }
};

TEST_F(Sleepers, are_woken_by_a_message) {
  Memory from(pd_, 8, 'm'), to(pd_, 8);
  ASSERT_EQ(here_->receive(to.sge(0, 8), 4), 0);
  ASSERT_EQ(ibv_req_notify_cq(here_->cq, 0), 0);
  bool woken = false;
  std::thread sleeper([&] { woken = sleeps_until_event(20000); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(there_->post(IBV_WR_SEND, from.sge(0, 8)), 0);
  sleeper.join();
  EXPECT_TRUE(woken);
  EXPECT_EQ(here_->completion().wr_id, 4u);
  EXPECT_EQ(to.text(0, 8), "mmmmmmmm");
}

TEST_F(Sleepers, who_wait_for_solicited_messages_sleep_through_others) {
  Memory from(pd_, 8), to(pd_, 16);
  ASSERT_EQ(here_->receive(to.sge(0, 8), 1), 0);
  ASSERT_EQ(here_->receive(to.sge(8, 8), 2), 0);
  ASSERT_EQ(ibv_req_notify_cq(here_->cq, 1), 0);
  ASSERT_EQ(there_->run(IBV_WR_SEND, from.sge(0, 8)), IBV_WC_SUCCESS);
  EXPECT_FALSE(sleeps_until_event(100));
  ASSERT_EQ(
      there_->post(IBV_WR_SEND, from.sge(0, 8), 0, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED),
      0);
  EXPECT_TRUE(sleeps_until_event(20000));
  EXPECT_EQ(here_->completion().wr_id, 1u);
  EXPECT_EQ(here_->completion().wr_id, 2u);
}

TEST_F(Sleepers, memory_of_a_process_that_sleeps_is_written) {
  Memory from(pd_, 1 << 20, 'w'), to(pd_, 1 << 20);
  ASSERT_EQ(there_->run(IBV_WR_RDMA_WRITE, from.sge(0, 1 << 20), to.at(), to.mr->rkey),
            IBV_WC_SUCCESS);
  EXPECT_EQ(to.bytes, from.bytes);
}

class Special : public Verbs {};

TEST_F(Special, a_region_with_an_iova_is_reached_there_and_not_at_its_address) {
  constexpr uint64_t kIova = 0x7000'0000'0000;
  std::vector<char> bytes(64, '.');
  ibv_mr* mr = ibv_reg_mr_iova(pd_, bytes.data(), bytes.size(), kIova, kEverything);
  ASSERT_NE(mr, nullptr);
  Memory from(pd_, 8, 'i');
  ASSERT_EQ(there_->run(IBV_WR_RDMA_WRITE, from.sge(0, 8), kIova + 56, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(bytes.data() + 56, 8), "iiiiiiii");
  ASSERT_EQ(here_->run(IBV_WR_RDMA_READ, {kIova + 8, 8, mr->lkey}, from.at(), from.mr->rkey),
            IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(bytes.data() + 8, 8), "iiiiiiii");
  const auto address = reinterpret_cast<uint64_t>(bytes.data());
  ASSERT_EQ(there_->run(IBV_WR_RDMA_WRITE, from.sge(0, 8), address, mr->rkey),
            IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Special, a_null_region_gives_zeros_and_swallows_what_is_written) {
  ibv_mr* null = ibv_alloc_null_mr(pd_);
  ASSERT_NE(null, nullptr);
  for (const uint32_t length : {8u, 100'000u}) {
    Memory far(pd_, length, 'n');
    ASSERT_EQ(here_->run(IBV_WR_RDMA_READ, {0, length, null->lkey}, far.at(), far.mr->rkey),
              IBV_WC_SUCCESS);
    ASSERT_EQ(here_->run(IBV_WR_RDMA_WRITE, {8, length, null->lkey}, far.at(), far.mr->rkey),
              IBV_WC_SUCCESS);
    EXPECT_EQ(far.bytes, std::vector<char>(length, 0));
    ASSERT_EQ(there_->receive({0, length, null->lkey}, 3), 0);
    ASSERT_EQ(here_->post(IBV_WR_SEND, far.sge(0, length)), 0);
    EXPECT_EQ(there_->completion().byte_len, length);
    EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
  }
  Memory from(pd_, 8);
  ASSERT_EQ(here_->run(IBV_WR_RDMA_WRITE, from.sge(0, 8), 0, null->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(null), 0);
}

class Empty : public Verbs {};

// A receive of no bytes, in each way to write one.
TEST_F(Empty, receives_take_messages_of_no_bytes) {
  ibv_sge nowhere[2] = {{0, 0, 0}, {0, 0, 0}};
  Memory from(pd_, 8);
  for (int pieces = 0; pieces <= 2; ++pieces) {
    for (const bool with_imm : {false, true}) {
      ibv_recv_wr wr{uint64_t(pieces), nullptr, pieces != 0 ? nowhere : nullptr, pieces};
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_recv(there_->qp, &wr, &bad), 0) << pieces;
      ASSERT_EQ(here_->post(with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, from.sge(0, 0)), 0);
      const ibv_wc got = there_->completion();
      EXPECT_EQ(got.status, IBV_WC_SUCCESS) << pieces;
      EXPECT_EQ(got.wr_id, uint64_t(pieces));
      EXPECT_EQ(got.byte_len, 0u);
      EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS) << pieces;
    }
  }
}

TEST_F(Empty, receives_refuse_a_byte) {
  Memory from(pd_, 8);
  for (int pieces = 0; pieces <= 1; ++pieces) {
    here_ = std::make_unique<End>(device_.context, pd_);
    there_ = std::make_unique<End>(device_.context, pd_);
    connect(here_->qp, there_->qp);
    ibv_sge nowhere{0, 0, 0};
    ibv_recv_wr wr{1, nullptr, pieces != 0 ? &nowhere : nullptr, pieces}, *bad = nullptr;
    ASSERT_EQ(ibv_post_recv(there_->qp, &wr, &bad), 0);
    ASSERT_EQ(here_->post(IBV_WR_SEND, from.sge(0, 1)), 0);
    EXPECT_EQ(there_->completion().status, IBV_WC_LOC_LEN_ERR) << pieces;
    EXPECT_EQ(here_->completion().status, IBV_WC_REM_INV_REQ_ERR) << pieces;
  }
}

TEST_F(Empty, receives_take_writes_with_immediate_data) {
  Memory from(pd_, 8, 'i'), to(pd_, 8);
  ibv_sge nowhere{0, 0, 0};
  ibv_recv_wr wr{1, nullptr, &nowhere, 1}, *bad = nullptr;
  ASSERT_EQ(ibv_post_recv(there_->qp, &wr, &bad), 0);
  ASSERT_EQ(here_->run(IBV_WR_RDMA_WRITE_WITH_IMM, from.sge(0, 8), to.at(), to.mr->rkey),
            IBV_WC_SUCCESS);
  EXPECT_EQ(there_->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(to.text(0, 8), "iiiiiiii");
}

// Whatever was asked for: clients of librdmacm's examples ask for none and send 16 bytes inline.
TEST(Inline, is_granted_for_64_bytes_at_least) {
  ::alarm(60);
  Device device;
  ASSERT_NE(device.context, nullptr);
  ibv_pd* pd = ibv_alloc_pd(device.context);
  ibv_cq* cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  for (const auto type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.cap = {4, 4, 1, 1, 0};
    attr.qp_type = type;
    ibv_qp* qp = ibv_create_qp(pd, &attr);
    ASSERT_NE(qp, nullptr);
    EXPECT_GE(attr.cap.max_inline_data, 64u) << type;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
  }
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Empty, batches_send_inline_what_was_not_asked_for) {
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = here_->cq;
  attr.cap = {4, 4, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(pd_, &attr);
  ibv_qp* peer = ibv_create_qp(pd_, &attr);
  ASSERT_TRUE(qp != nullptr && peer != nullptr);
  connect(qp, peer);
  char text[64] = "sent inline";
  Memory to(pd_, 64);
  for (const uint32_t length : {64u, 65u}) {
    ibv_sge sge{reinterpret_cast<uint64_t>(text), length, 0};
    ibv_send_wr wr = send_wr(IBV_WR_RDMA_WRITE, sge);
    wr.send_flags |= IBV_SEND_INLINE;
    wr.wr.rdma = {to.at(), to.mr->rkey};
    ASSERT_EQ(post_wr(qp, wr), length == 64 ? 0 : EINVAL);
  }
  EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(to.text(0, 11), "sent inline");
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_qp(peer), 0);
}

class Datagrams : public Verbs {
 protected:
  static constexpr uint32_t kQkey = 0x1234;

  ibv_qp* make(ibv_cq* cq) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {4, 4, 1, 1, 0};
    init.qp_type = IBV_QPT_UD;
    ibv_qp* qp = ibv_create_qp(pd_, &init);
    ibv_qp_attr attr{};
    attr.port_num = 1;
    attr.qkey = kQkey;
    attr.qp_state = IBV_QPS_INIT;
    EXPECT_EQ(
        ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    return qp;
  }
};

TEST_F(Datagrams, tell_the_traffic_class_of_their_sender) {
  ibv_qp* from = make(here_->cq);
  ibv_qp* to = make(there_->cq);
  Memory source(pd_, 8, 'd'), target(pd_, 64);
  ibv_ah_attr route{};
  route.port_num = 1;
  route.is_global = 1;
  ASSERT_EQ(ibv_query_gid(device_.context, 1, 0, &route.grh.dgid), 0);
  for (const uint8_t traffic_class : {uint8_t{0}, uint8_t{0xa5}, uint8_t{0xff}}) {
    route.grh.traffic_class = traffic_class;
    ibv_ah* ah = ibv_create_ah(pd_, &route);
    ASSERT_NE(ah, nullptr);
    ibv_sge landing = target.sge(0, 64);
    ibv_recv_wr recv{1, nullptr, &landing, 1}, *bad = nullptr;
    ASSERT_EQ(ibv_post_recv(to, &recv, &bad), 0);
    ibv_sge sge = source.sge(0, 8);
    ibv_send_wr wr = send_wr(IBV_WR_SEND, sge);
    wr.wr.ud = {ah, to->qp_num, kQkey};
    ASSERT_EQ(post_wr(from, wr), 0);
    ibv_wc got = there_->completion();
    ASSERT_EQ(got.status, IBV_WC_SUCCESS);
    auto* grh = reinterpret_cast<ibv_grh*>(target.bytes.data());
    EXPECT_EQ(be32toh(grh->version_tclass_flow), 6u << 28 | uint32_t{traffic_class} << 20);
    ibv_ah_attr back{};
    ASSERT_EQ(ibv_init_ah_from_wc(device_.context, 1, &got, grh, &back), 0);
    EXPECT_EQ(back.grh.traffic_class, traffic_class);
    EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
  }
  EXPECT_EQ(ibv_destroy_qp(from), 0);
  EXPECT_EQ(ibv_destroy_qp(to), 0);
}

size_t open_files() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += !entry.path().empty();
  }
  return count;
}

// ibv_create_cq_ex(3): the queue does not go to the error state, and entries may be lost.
TEST_F(Empty, a_completion_queue_may_ignore_overruns) {
  ibv_cq_init_attr_ex wish{};
  wish.cqe = 2;
  wish.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  wish.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  ibv_cq_ex* cq = ibv_create_cq_ex(device_.context, &wish);
  ASSERT_NE(cq, nullptr);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
  attr.cap = {8, 8, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(pd_, &attr);
  ASSERT_NE(qp, nullptr);
  const End peer(device_.context, pd_);
  connect(qp, peer.qp);
  const Memory memory(pd_, 8);
  for (uint64_t id = 1; id <= 5; ++id) {
    ASSERT_EQ(peer.receive(memory.sge(0, 8)), 0);
    ibv_sge sge = memory.sge(0, 8);
    ASSERT_EQ(post_wr(qp, send_wr(IBV_WR_SEND, sge, id)), 0);
    EXPECT_EQ(peer.completion().status, IBV_WC_SUCCESS);
  }
  (void)peer.completion(50);  // what the peer has executed is told
  ibv_wc wc[4];
  ASSERT_EQ(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 4, wc), 2);
  EXPECT_EQ(wc[0].wr_id, 4u);
  EXPECT_EQ(wc[1].wr_id, 5u);
  ibv_qp_attr told{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(qp, &told, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(told.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

// ibv_query_qp(3), sq_draining: what was begun before SQD ends, and what is queued there waits.
TEST_F(Empty, a_queue_pair_has_drained_although_work_requests_are_queued) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  ASSERT_EQ(ibv_modify_qp(here_->qp, &attr, IBV_QP_STATE), 0);
  const Memory memory(pd_, 8);
  ASSERT_EQ(here_->post(IBV_WR_SEND, memory.sge(0, 8)), 0);
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(here_->qp, &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_SQD);
  EXPECT_EQ(attr.sq_draining, 0);
}

TEST(Contexts, one_that_is_closed_early_goes_with_its_last_object) {
  ::alarm(60);
  for (int i = 0; i < 3; ++i) {
    const size_t before = open_files();
    Device device;
    ASSERT_NE(device.context, nullptr);
    ibv_pd* pd = ibv_alloc_pd(device.context);
    auto end = std::make_unique<End>(device.context, pd);
    EXPECT_EQ(ibv_close_device(device.context), 0);
    device.context = nullptr;
    EXPECT_GT(open_files(), before);
    end.reset();
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    // what the process keeps for all of its devices may stay, but nothing of this one
    if (i > 0) {
      EXPECT_EQ(open_files(), before);
    }
  }
}

}  // namespace
}  // namespace aperture::test
