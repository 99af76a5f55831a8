// Two contexts of aperture0 while memory runs out, or descriptors and the like: PD, MR, CQ with a
// channel, QP; connect, send, an event, write, read; destroy all. Run under `aperture run`.
#include <fcntl.h>
#include <infiniband/verbs.h>

#include <array>
#include <memory>

#include "doors/nth_play.hpp"

namespace aperture::nth {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr size_t kBytes = 256 * 1024;

// A call that returns 0, or why it was refused.
void must(const char* call, int refusal) {
  if (refusal == 0) return;
  if (refusal < 0) throw Ended{stays_open, std::string(call) + " does not say why"};
  throw Ended{refused, std::string(call) + ": " + std::strerror(refusal)};
}

// What was made, until it is destroyed; a refused destruction must succeed the second time.
template <auto destroy, typename T>
struct Own {
  template <typename Make>
  Own(const char* call, Make&& make) {
    errno = 0;
    object = make();
    if (object == nullptr) must(call, errno != 0 ? errno : -1);
  }
  ~Own() {
    if (destroy(object) != 0 && destroy(object) != 0) all_closed = false;
  }
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;
  operator T*() const noexcept { return object; }
  T* operator->() const noexcept { return object; }

  T* object = nullptr;
};

ibv_context* open_aperture0() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) return nullptr;
  ibv_context* opened = nullptr;
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(ibv_get_device_name(list[i]), "aperture0") == 0) {
      opened = ibv_open_device(list[i]);
      break;
    }
  }
  const int why = errno;
  ibv_free_device_list(list);
  errno = why;
  return opened;
}

// One end of the connection, and what it stands on.
struct End {
  void bring_up(uint32_t peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = kAccess;
    must("ibv_modify_qp to INIT",
         ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.ah_attr.port_num = 1;
    must("ibv_modify_qp to RTR",
         ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    must("ibv_modify_qp to RTS",
         ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                           IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
  }
  ibv_sge sge() const { return {reinterpret_cast<uint64_t>(memory.data()), kBytes, mr->lkey}; }
  void receive() {
    ibv_sge piece = sge();
    ibv_recv_wr wr{1, nullptr, &piece, 1};
    ibv_recv_wr* bad = nullptr;
    must("ibv_post_recv", ibv_post_recv(qp, &wr, &bad));
  }
  void post(ibv_wr_opcode opcode, const End& to) {
    ibv_sge piece = sge();
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {to.sge().addr, to.mr->rkey};
    ibv_send_wr* bad = nullptr;
    must("ibv_post_send", ibv_post_send(qp, &wr, &bad));
  }
  bool completed() {
    ibv_wc wc{};
    const int n = ibv_poll_cq(cq, 1, &wc);
    if (n < 0) throw Ended{refused, "ibv_poll_cq"};
    if (n == 1 && wc.status != IBV_WC_SUCCESS) {
      throw Ended{refused, ibv_wc_status_str(wc.status)};
    }
    return n == 1;
  }
  // Whether the event has come that was asked for.
  bool told() {
    ibv_cq* which = nullptr;
    void* context_of_cq = nullptr;
    errno = 0;
    if (ibv_get_cq_event(channel, &which, &context_of_cq) != 0) {
      if (errno != EAGAIN && errno != EINTR) must("ibv_get_cq_event", errno != 0 ? errno : -1);
      return false;
    }
    ibv_ack_cq_events(which, 1);
    return true;
  }

  std::vector<char> memory = std::vector<char>(kBytes);
  Own<ibv_close_device, ibv_context> context{"ibv_open_device", [] { return open_aperture0(); }};
  Own<ibv_dealloc_pd, ibv_pd> pd{"ibv_alloc_pd", [&] { return ibv_alloc_pd(context); }};
  Own<ibv_dereg_mr, ibv_mr> mr{"ibv_reg_mr",
                               [&] { return ibv_reg_mr(pd, memory.data(), kBytes, kAccess); }};
  Own<ibv_destroy_comp_channel, ibv_comp_channel> channel{
      "ibv_create_comp_channel", [&] {
        ibv_comp_channel* const made = ibv_create_comp_channel(context);
        if (made != nullptr) ::fcntl(made->fd, F_SETFL, O_NONBLOCK);
        return made;
      }};
  Own<ibv_destroy_cq, ibv_cq> cq{"ibv_create_cq",
                                 [&] { return ibv_create_cq(context, 16, nullptr, channel, 0); }};
  Own<ibv_destroy_qp, ibv_qp> qp{"ibv_create_qp", [&] {
                                   ibv_qp_init_attr attr{};
                                   attr.send_cq = attr.recv_cq = cq;
                                   attr.cap = {4, 4, 1, 1, 16};
                                   attr.qp_type = IBV_QPT_RC;
                                   return ibv_create_qp(pd, &attr);
                                 }};
};

// An operation of `from`, of all the bytes: it completes, and they are those of `source`.
void run(End& from, ibv_wr_opcode opcode, End& to, const End& source, const End& sink) {
  from.post(opcode, to);
  until("a completion", [&] {
    static_cast<void>(to.completed());
    return from.completed();
  });
  if (source.memory != sink.memory) throw Ended{does_not_recover, "other bytes have come"};
}

}  // namespace

void play_connection() {
  End here, there;
  here.bring_up(there.qp->qp_num);
  there.bring_up(here.qp->qp_num);
  std::fill(here.memory.begin(), here.memory.end(), 'h');
  there.receive();
  must("ibv_req_notify_cq", ibv_req_notify_cq(there.cq, 0));
  here.post(IBV_WR_SEND, there);
  bool sent = false, told = false, received = false;
  until("completions", [&] {
    sent = here.completed() || sent;
    told = there.told() || told;  // before it is polled: it must come by the event alone
    received = (told && there.completed()) || received;
    return sent && received;
  });
  if (there.memory != here.memory) throw Ended{does_not_recover, "other bytes have come"};
  std::fill(here.memory.begin(), here.memory.end(), 'w');
  run(here, IBV_WR_RDMA_WRITE, there, here, there);
  std::fill(there.memory.begin(), there.memory.end(), 'r');
  run(here, IBV_WR_RDMA_READ, there, there, here);
}

void load_door() {}  // linked, and put in its place by `aperture run`

}  // namespace aperture::nth
