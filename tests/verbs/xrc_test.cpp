// XRC: domains, receive queues that are named by number, queue pairs of both types, and further
// faces of one that receives. ibv_open_xrcd(3), ibv_create_srq_ex(3), ibv_open_qp(3).
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <utility>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr int kNoFile = -1;

ibv_xrcd* open_domain(ibv_context* context, int fd, int oflags,
                      uint32_t mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS) {
  ibv_xrcd_init_attr attr{mask, fd, oflags};
  errno = 0;
  return ibv_open_xrcd(context, &attr);
}

class Xrc : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    domain_ = open_domain(device_.context, kNoFile, O_CREAT);
    ASSERT_NE(domain_, nullptr);
    landing_ = std::make_unique<Memory>(pd_, 256);
    from_ = std::make_unique<Memory>(pd_, 64, 'x');
  }
  void TearDown() override {
    for (ibv_qp* qp : {receiver_, sender_}) {
      if (qp != nullptr) {
        EXPECT_EQ(ibv_destroy_qp(qp), 0);
      }
    }
    landing_.reset();
    from_.reset();
    if (domain_ != nullptr) {
      EXPECT_EQ(ibv_close_xrcd(domain_), 0);
    }
    Verbs::TearDown();
  }

  ibv_srq* make_srq(ibv_xrcd* domain, ibv_cq* cq) {
    ibv_srq_init_attr_ex attr{};
    attr.attr = {16, 1, 0};
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_XRC;
    attr.pd = pd_;
    attr.xrcd = domain;
    attr.cq = cq;
    return ibv_create_srq_ex(device_.context, &attr);
  }
  ibv_qp* make_receiver(ibv_xrcd* domain) {
    ibv_qp_init_attr_ex attr{};
    attr.qp_type = IBV_QPT_XRC_RECV;
    attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    attr.xrcd = domain;
    return ibv_create_qp_ex(device_.context, &attr);
  }
  ibv_qp* make_sender() {
    ibv_qp_init_attr_ex attr{};
    attr.qp_type = IBV_QPT_XRC_SEND;
    attr.send_cq = here_->cq;
    attr.cap = {16, 0, 2, 0, 32};
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.pd = pd_;
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
    return ibv_create_qp_ex(device_.context, &attr);
  }
  void connect_in(ibv_xrcd* domain) {
    receiver_ = make_receiver(domain);
    sender_ = make_sender();
    ASSERT_TRUE(receiver_ != nullptr && sender_ != nullptr);
    connect(receiver_, sender_);
  }
  int receive(ibv_srq* srq, uint64_t id, size_t at) {
    ibv_sge sge = landing_->sge(at, 64);
    ibv_recv_wr wr{id, nullptr, &sge, 1}, *bad = nullptr;
    return ibv_post_srq_recv(srq, &wr, &bad);
  }
  int send(uint32_t srq_number, uint32_t length = 16) {
    ibv_sge sge = from_->sge(0, length);
    ibv_send_wr wr = send_wr(IBV_WR_SEND, sge);
    wr.qp_type.xrc.remote_srqn = srq_number;
    return post_wr(sender_, wr);
  }
  static uint32_t number_of(ibv_srq* srq) {
    uint32_t number = 0;
    EXPECT_EQ(ibv_get_srq_num(srq, &number), 0);
    return number;
  }

  ibv_xrcd* domain_ = nullptr;
  ibv_qp *receiver_ = nullptr, *sender_ = nullptr;
  std::unique_ptr<Memory> landing_, from_;
};

TEST_F(Xrc, a_domain_without_a_file_is_made_anew_each_time) {
  constexpr uint32_t kBoth = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  const struct {
    int oflags;
    uint32_t mask;
    bool taken;
  } cases[] = {{O_CREAT, kBoth, true},
               {O_CREAT | O_EXCL, kBoth, true},
               {0, kBoth, true},  // the kernel looks at them where there is a file
               {O_CREAT | O_TRUNC, kBoth, false},
               {O_CREAT, IBV_XRCD_INIT_ATTR_FD, false},
               {O_CREAT, kBoth | IBV_XRCD_INIT_ATTR_RESERVED, false}};
  for (const auto& c : cases) {
    ibv_xrcd* made = open_domain(device_.context, kNoFile, c.oflags, c.mask);
    EXPECT_EQ(made != nullptr, c.taken) << c.oflags;
    if (!c.taken) {
      EXPECT_EQ(errno, EINVAL);
    }
    if (made != nullptr) {
      EXPECT_EQ(ibv_close_xrcd(made), 0);
    }
  }
}

TEST_F(Xrc, the_domain_of_a_file_is_one_as_long_as_it_is_open) {
  char name[] = "/tmp/aperture-xrc-XXXXXX";
  const int fd = ::mkstemp(name);
  ASSERT_GE(fd, 0);
  const int again = ::open(name, O_RDONLY);
  ::unlink(name);
  EXPECT_EQ(refusal_of(open_domain(device_.context, fd, 0)), EAGAIN);
  ibv_xrcd* one = open_domain(device_.context, fd, O_CREAT | O_EXCL);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(refusal_of(open_domain(device_.context, again, O_CREAT | O_EXCL)), EINVAL);
  ibv_xrcd* other = open_domain(device_.context, again, 0);
  ASSERT_NE(other, nullptr);
  // one domain: the receive queues of one opening are reached through queue pairs of the other
  ibv_srq* srq = make_srq(one, there_->cq);
  connect_in(other);
  ASSERT_EQ(receive(srq, 1, 0), 0);
  ASSERT_EQ(send(number_of(srq)), 0);
  EXPECT_EQ(there_->completion().wr_id, 1u);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_destroy_qp(receiver_), 0);
  receiver_ = nullptr;
  EXPECT_EQ(ibv_close_xrcd(one), 0);
  EXPECT_EQ(ibv_close_xrcd(other), 0);
  EXPECT_EQ(open_domain(device_.context, fd, 0), nullptr);
  ::close(fd);
  ::close(again);
  EXPECT_EQ(refusal_of(open_domain(device_.context, fd, O_CREAT)), EBADF);
}

// A file that goes with this.
struct OpenFile {
  OpenFile() {
    char name[] = "/tmp/aperture-xrc-XXXXXX";
    fd = ::mkstemp(name);
    ::unlink(name);
  }
  ~OpenFile() { ::close(fd); }
  int fd;
};

TEST_F(Xrc, the_domain_of_a_file_is_not_shared_with_another_context) {
  OpenFile file, neighbour;
  Device other;
  ASSERT_NE(other.context, nullptr);
  ibv_xrcd* here = open_domain(device_.context, file.fd, O_CREAT);
  ASSERT_NE(here, nullptr);
  for (const int oflags : {0, O_CREAT}) {
    EXPECT_EQ(refusal_of(open_domain(other.context, file.fd, oflags)), EOPNOTSUPP);
  }
  EXPECT_EQ(refusal_of(open_domain(other.context, file.fd, O_CREAT | O_EXCL)), EINVAL);
  ibv_xrcd* there = open_domain(other.context, neighbour.fd, O_CREAT);
  EXPECT_NE(there, nullptr);
  EXPECT_EQ(ibv_close_xrcd(here), 0);
  here = open_domain(other.context, file.fd, O_CREAT | O_EXCL);
  EXPECT_NE(here, nullptr) << "nobody has it open any more";
  EXPECT_EQ(ibv_close_xrcd(here), 0);
  EXPECT_EQ(ibv_close_xrcd(there), 0);
}

constexpr const char* kFdVariable = "APERTURE_TEST_XRC_FD";
constexpr const char* kOflagsVariable = "APERTURE_TEST_XRC_OFLAGS";

// What opening the domain of that file comes to in a process of its own: 0 or an errno.
int open_elsewhere(int fd, int oflags) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kFdVariable, std::to_string(fd).c_str(), 1);
    ::setenv(kOflagsVariable, std::to_string(oflags).c_str(), 1);
    ::execl("/proc/self/exe", "elsewhere", "--gtest_filter=Elsewhere.*",
            "--gtest_also_run_disabled_tests", nullptr);
    ::_exit(254);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

// The other process of open_elsewhere(); by itself it has no file to open.
TEST(Elsewhere, DISABLED_opens_what_it_is_told) {
  ::alarm(60);
  Device device;
  ibv_xrcd* domain = open_domain(device.context, std::stoi(::getenv(kFdVariable)),
                                 std::stoi(::getenv(kOflagsVariable)));
  ::_exit(domain != nullptr ? 0 : errno);
}

TEST_F(Xrc, the_domain_of_a_file_is_not_shared_with_another_process) {
  OpenFile file, neighbour;
  EXPECT_EQ(open_elsewhere(file.fd, 0), EAGAIN);
  ibv_xrcd* here = open_domain(device_.context, file.fd, O_CREAT);
  ASSERT_NE(here, nullptr);
  EXPECT_EQ(open_elsewhere(file.fd, 0), EOPNOTSUPP);
  EXPECT_EQ(open_elsewhere(file.fd, O_CREAT), 0) << "one of its own";
  EXPECT_EQ(open_elsewhere(file.fd, O_CREAT | O_EXCL), EINVAL);
  EXPECT_EQ(open_elsewhere(neighbour.fd, O_CREAT | O_EXCL), 0);
  ibv_xrcd* again = open_domain(device_.context, file.fd, O_CREAT);
  EXPECT_EQ(ibv_close_xrcd(here), 0);
  EXPECT_EQ(open_elsewhere(file.fd, 0), EOPNOTSUPP) << "it was opened twice";
  const pid_t bystander = ::fork();
  if (bystander == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_EQ(ibv_close_xrcd(again), 0);
  EXPECT_EQ(open_elsewhere(file.fd, O_CREAT | O_EXCL), 0) << "a forked child has no part in it";
  ::kill(bystander, SIGKILL);
  EXPECT_EQ(::waitpid(bystander, nullptr, 0), bystander);
  // the process that had it has gone
  here = open_domain(device_.context, file.fd, O_CREAT | O_EXCL);
  ASSERT_NE(here, nullptr);
  EXPECT_EQ(ibv_close_xrcd(here), 0);
}

TEST_F(Xrc, messages_go_to_the_queue_that_they_name) {
  connect_in(domain_);
  ibv_srq* first = make_srq(domain_, there_->cq);
  ibv_srq* second = make_srq(domain_, there_->cq);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_NE(number_of(first), number_of(second));
  ASSERT_EQ(receive(first, 1, 0), 0);
  ASSERT_EQ(receive(second, 2, 64), 0);
  ASSERT_EQ(send(number_of(second)), 0);
  EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
  const ibv_wc wc = there_->completion();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.qp_num, receiver_->qp_num);
  EXPECT_EQ(landing_->text(64, 16), std::string(16, 'x'));
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(sender_);
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(ex);
  ibv_wr_set_xrc_srqn(ex, number_of(first));
  ibv_wr_set_sge(ex, from_->mr->lkey, from_->at(), 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(there_->completion().wr_id, 1u);
  EXPECT_EQ(ibv_destroy_srq(first), 0);
  EXPECT_EQ(ibv_destroy_srq(second), 0);
}

// As ib_uverbs does: what a type has nothing of is left out, so that programs may give all of RC's.
TEST_F(Xrc, attributes_that_a_type_has_not_are_dropped) {
  receiver_ = make_receiver(domain_);
  sender_ = make_sender();
  ASSERT_TRUE(receiver_ != nullptr && sender_ != nullptr);
  const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const int to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  for (ibv_qp* qp : {receiver_, sender_}) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = attr.ah_attr.port_num = 1;
    const int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, to_init), 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = qp == sender_ ? receiver_->qp_num : sender_->qp_num;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 3;
    attr.min_rnr_timer = attr.timeout = 12;
    attr.retry_cnt = attr.rnr_retry = 7;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, to_rtr), 0);
    attr.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, to_rts), 0);
    ibv_qp_attr told{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(qp, &told, to_rtr | to_rts, &init), 0);
    EXPECT_EQ(told.max_dest_rd_atomic, qp == sender_ ? 0 : 3);
    EXPECT_EQ(told.max_rd_atomic, qp == sender_ ? 3 : 0);
    EXPECT_EQ(told.rnr_retry, qp == sender_ ? 7 : 0);
  }
  ibv_srq* srq = make_srq(domain_, there_->cq);
  ASSERT_EQ(receive(srq, 1, 0), 0);
  ASSERT_EQ(send(number_of(srq)), 0);
  EXPECT_EQ(there_->completion().byte_len, 16u);
  EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Xrc, a_queue_of_another_domain_is_not_reached) {
  connect_in(domain_);
  ibv_xrcd* other = open_domain(device_.context, kNoFile, O_CREAT);
  ibv_srq* srq = make_srq(other, there_->cq);
  ASSERT_EQ(receive(srq, 1, 0), 0);
  ASSERT_EQ(send(number_of(srq)), 0);
  EXPECT_EQ(here_->completion().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(there_->completion(50).wr_id, ~uint64_t{0});
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_close_xrcd(other), 0);
}

TEST_F(Xrc, a_message_that_waits_for_a_queue_that_goes_is_refused) {
  connect_in(domain_);
  ibv_srq* srq = make_srq(domain_, there_->cq);
  ASSERT_EQ(send(number_of(srq)), 0);
  EXPECT_EQ(here_->completion(50).wr_id, ~uint64_t{0});
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(here_->completion().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(Xrc, completions_outlive_the_queue_pair_that_brought_them) {
  connect_in(domain_);
  ibv_srq* srq = make_srq(domain_, there_->cq);
  ASSERT_EQ(receive(srq, 6, 0), 0);
  ASSERT_EQ(send(number_of(srq)), 0);
  EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_qp(receiver_), 0);
  receiver_ = nullptr;
  EXPECT_EQ(there_->completion().wr_id, 6u);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// AddressSanitizer watches: the queue pair may not look at where its last message completed.
TEST_F(Xrc, a_queue_pair_outlives_the_queues_that_its_messages_completed_in) {
  for (const bool modifies : {true, false}) {
    connect_in(domain_);
    ibv_cq* cq = ibv_create_cq(device_.context, 16, nullptr, nullptr, 0);
    ibv_srq* srq = make_srq(domain_, cq);
    ASSERT_EQ(receive(srq, 6, 0), 0);
    ASSERT_EQ(send(number_of(srq)), 0);
    EXPECT_EQ(End::completion_of(cq).wr_id, 6u);
    EXPECT_EQ(here_->completion().status, IBV_WC_SUCCESS);
    ASSERT_EQ(ibv_destroy_srq(srq), 0);
    ASSERT_EQ(ibv_destroy_cq(cq), 0);
    if (modifies) {
      ibv_qp_attr attr{};
      attr.qp_state = IBV_QPS_ERR;
      EXPECT_EQ(ibv_modify_qp(receiver_, &attr, IBV_QP_STATE), 0);
    }
    EXPECT_EQ(ibv_destroy_qp(std::exchange(receiver_, nullptr)), 0);
    EXPECT_EQ(ibv_destroy_qp(std::exchange(sender_, nullptr)), 0);
  }
}

TEST_F(Xrc, one_queue_pair_has_several_faces_and_goes_with_the_last) {
  connect_in(domain_);
  ibv_srq* srq = make_srq(domain_, there_->cq);
  ibv_qp_open_attr attr{};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  attr.qp_num = receiver_->qp_num;
  attr.xrcd = domain_;
  attr.qp_type = IBV_QPT_XRC_RECV;
  ibv_qp* face = ibv_open_qp(device_.context, &attr);
  ASSERT_NE(face, nullptr);
  EXPECT_EQ(face->qp_num, receiver_->qp_num);
  EXPECT_EQ(ibv_close_xrcd(domain_), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(receiver_), 0);
  receiver_ = face;
  ibv_qp_attr told{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(face, &told, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(told.qp_state, IBV_QPS_RTS);
  ASSERT_EQ(receive(srq, 3, 0), 0);
  ASSERT_EQ(send(number_of(srq)), 0);
  EXPECT_EQ(there_->completion().wr_id, 3u);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  // its forbidden neighbours
  attr.qp_num ^= 1;
  EXPECT_EQ(refusal_of(ibv_open_qp(device_.context, &attr)), ENOENT);
  attr.qp_num = here_->qp->qp_num;
  EXPECT_EQ(ibv_open_qp(device_.context, &attr), nullptr);
  attr.qp_num = face->qp_num;
  attr.qp_type = IBV_QPT_RC;
  EXPECT_EQ(refusal_of(ibv_open_qp(device_.context, &attr)), EINVAL);
}

TEST_F(Xrc, each_type_needs_its_parts_and_takes_no_others) {
  EXPECT_EQ(refusal_of(make_receiver(nullptr)), EINVAL);
  ibv_srq* srq = make_srq(domain_, there_->cq);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = here_->cq;
  attr.cap = {8, 8, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  attr.srq = srq;  // of type XRC
  EXPECT_EQ(refusal_of(ibv_create_qp(pd_, &attr)), EINVAL);
  attr.qp_type = IBV_QPT_XRC_SEND;
  attr.srq = nullptr;
  attr.send_cq = nullptr;
  EXPECT_EQ(ibv_create_qp(pd_, &attr), nullptr);
  EXPECT_EQ(make_srq(nullptr, there_->cq), nullptr);
  EXPECT_EQ(make_srq(domain_, nullptr), nullptr);
  ibv_srq_init_attr basic{nullptr, {8, 1, 0}};
  ibv_srq* plain = ibv_create_srq(pd_, &basic);
  uint32_t number = 0;
  EXPECT_EQ(ibv_get_srq_num(plain, &number), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_srq(plain), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Xrc, queue_pairs_receive_nothing_of_their_own) {
  connect_in(domain_);
  ibv_sge sge = landing_->sge(0, 8);
  for (ibv_qp* qp : {receiver_, sender_}) {
    ibv_recv_wr wr{1, nullptr, &sge, 1}, *bad = nullptr;
    EXPECT_EQ(ibv_post_recv(qp, &wr, &bad), EINVAL);
    EXPECT_EQ(bad, &wr);
  }
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_SEND;
  EXPECT_EQ(ibv_post_send(receiver_, &wr, &bad), EINVAL);
}

}  // namespace
}  // namespace aperture::test
