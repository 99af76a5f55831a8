// Work requests that a queue pair does not take, each for one reason: the errno here, and the
// sentence in sentences_test.py, which counts on their order. And what devices take and a stricter
// reading would not. ibv_post_send(3), ibv_post_recv(3), ibv_create_qp(3).
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

class Refusals : public Verbs {
 protected:
  // A queue pair of that type that has been brought nowhere.
  ibv_qp* idle(ibv_qp_type type, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = here_->cq;
    init.cap = {2, 2, 1, 1, 0};
    init.qp_type = type;
    init.srq = srq;
    return ibv_create_qp(pd_, &init);
  }
  static int receive(ibv_qp* qp, std::vector<ibv_sge> pieces) {
    ibv_recv_wr wr{1, nullptr, pieces.data(), static_cast<int>(pieces.size())};
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_recv(qp, &wr, &bad);
    EXPECT_EQ(bad, error != 0 ? &wr : nullptr);
    return error;
  }
  ibv_srq* make_srq() {
    ibv_srq_init_attr attr{};
    attr.attr = {4, 1, 0};
    return ibv_create_srq(pd_, &attr);
  }
};

TEST_F(Refusals, each_send_that_is_refused_for_one_reason) {
  Memory m(pd_, 256);
  ibv_qp* early = idle(IBV_QPT_RC);
  ibv_sge one = m.sge(0, 8);
  EXPECT_EQ(post_wr(early, send_wr(IBV_WR_SEND, one)), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(early), 0);

  ibv_sge five[5] = {one, one, one, one, one};
  ibv_send_wr wr = send_wr(IBV_WR_SEND, five[0]);
  wr.num_sge = 5;
  EXPECT_EQ(post_wr(here_->qp, wr), EINVAL);
  EXPECT_EQ(here_->post(IBV_WR_SEND, m.sge(0, 129), 0, 0, 0, IBV_SEND_INLINE), EINVAL);
  EXPECT_EQ(here_->post(IBV_WR_RDMA_READ, one, 0, m.at(), m.mr->rkey, IBV_SEND_INLINE), EINVAL);
  EXPECT_EQ(here_->post(IBV_WR_ATOMIC_FETCH_AND_ADD, m.sge(0, 7)), EINVAL);
  ibv_sge huge[2] = {{m.at(), 1u << 31, m.mr->lkey}, one};
  wr = send_wr(IBV_WR_RDMA_WRITE, huge[0]);
  wr.num_sge = 2;
  EXPECT_EQ(post_wr(here_->qp, wr), EINVAL);
  EXPECT_EQ(here_->post(IBV_WR_TSO, one), EINVAL);
  EXPECT_EQ(here_->post(IBV_WR_SEND, one, 0, 0, 0, 1 << 5), EINVAL);
  wr = send_wr(IBV_WR_SEND, one);
  wr.num_sge = -1;
  EXPECT_EQ(post_wr(here_->qp, wr), EINVAL);
  int posted = 0;
  while (here_->post(IBV_WR_SEND, one, 0, 0, 0, 0) == 0) ++posted;  // nobody receives
  EXPECT_EQ(posted, static_cast<int>(kDepth));
  EXPECT_EQ(here_->post(IBV_WR_SEND, one), ENOMEM);
  here_.reset();  // before the memory of what waits
}

TEST_F(Refusals, a_checksum_of_ip_is_asked_of_a_connection_for_nothing) {
  Memory m(pd_, 16);
  ASSERT_EQ(there_->receive(m.sge(8, 8)), 0);
  ASSERT_EQ(here_->post(IBV_WR_SEND, m.sge(0, 8), 0, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM),
            0);
  EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(there_->completion().byte_len, 8u);
}

TEST_F(Refusals, each_receive_that_is_refused_for_one_reason) {
  Memory m(pd_, 64);
  ibv_qp* early = idle(IBV_QPT_RC);
  EXPECT_EQ(receive(early, {m.sge(0, 8)}), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(early), 0);
  const std::vector<ibv_sge> five(5, m.sge(0, 8));
  EXPECT_EQ(receive(here_->qp, five), EINVAL);
  for (uint32_t i = 0; i < kDepth; ++i) ASSERT_EQ(receive(here_->qp, {m.sge(0, 8)}), 0);
  EXPECT_EQ(receive(here_->qp, {m.sge(0, 8)}), ENOMEM);
  ibv_srq* srq = make_srq();
  ibv_qp* shared = idle(IBV_QPT_RC, srq);
  EXPECT_EQ(receive(shared, {m.sge(0, 8)}), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(shared), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Refusals, a_message_too_long_for_its_receive_names_both_lengths_at_both_ends) {
  for (const uint32_t length : {64u, 100'000u}) {
    Memory from(pd_, length), to(pd_, 48);
    ASSERT_EQ(there_->receive(to.sge(0, 48), 1), 0);
    EXPECT_EQ(here_->run(IBV_WR_SEND, from.sge(0, length)), IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(there_->completion().status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(to.text(0, 48), std::string(48, '.'));
    here_.reset();
    there_.reset();
    here_ = std::make_unique<End>(device_.context, pd_, channel_);
    there_ = std::make_unique<End>(device_.context, pd_);
    connect(here_->qp, there_->qp);
  }
}

TEST_F(Refusals, a_receive_that_never_comes_is_named_once_where_rnr_retry_has_no_end) {
  Memory m(pd_, 8);
  ASSERT_EQ(here_->post(IBV_WR_SEND, m.sge(0, 8), 1), 0);
  EXPECT_EQ(here_->completion(4000).wr_id, ~uint64_t{0}) << "it waits";
  ASSERT_EQ(there_->receive(m.sge(0, 8), 2), 0);
  EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
}

// --- what is not here ---

TEST_F(Refusals, raw_packets_flow_steering_and_tag_matching_are_not_supported) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(device_.context, nullptr, &attr), 0);
  EXPECT_EQ(attr.raw_packet_caps, 0u);
  EXPECT_EQ(attr.tm_caps.max_num_tags, 0u);
  EXPECT_EQ(refusal_of(idle(IBV_QPT_RAW_PACKET)), EOPNOTSUPP);
  ibv_flow_attr flow{};
  flow.size = sizeof flow;
  flow.port = 1;
  errno = 0;
  EXPECT_EQ(refusal_of(ibv_create_flow(here_->qp, &flow)), EOPNOTSUPP);
  ibv_srq_init_attr_ex tagged{};
  tagged.attr = {4, 1, 0};
  tagged.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
  tagged.srq_type = IBV_SRQT_TM;
  tagged.pd = pd_;
  tagged.cq = here_->cq;
  tagged.tm_cap = {8, 8};
  EXPECT_EQ(refusal_of(ibv_create_srq_ex(device_.context, &tagged)), EOPNOTSUPP);
  ibv_srq* srq = make_srq();
  ibv_ops_wr op{};
  ibv_ops_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_ops(srq, &op, &bad), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// --- what devices take ---

TEST_F(Refusals, an_atomic_may_have_more_room_than_the_former_value_takes) {
  Memory m(pd_, 64);
  ibv_sge room = m.sge(8, 24);
  ibv_send_wr wr = send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, room);
  wr.wr.atomic = {m.at(), 1, 0, m.mr->rkey};
  ASSERT_EQ(post_wr(here_->qp, wr), 0);
  const ibv_wc wc = here_->completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_EQ(m.text(0, 8), "/.......");  // one more
  EXPECT_EQ(m.text(8, 24), std::string(24, '.'));
}

TEST_F(Refusals, an_srq_is_nothing_to_the_sending_half_of_xrc) {
  ibv_srq* srq = make_srq();
  ibv_qp* qp = idle(IBV_QPT_XRC_SEND, srq);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->srq, nullptr);
  EXPECT_EQ(ibv_destroy_srq(srq), 0) << "it is not used";
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

}  // namespace
}  // namespace aperture::test
