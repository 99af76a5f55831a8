// A verbs program for limits_test.py: opens one of everything, exchanges data between two queue
// pairs of its own, and listens as an id of rdma_cm. The first call that fails is told on stderr,
// with its reason, and ends it with status 1.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  kBytes = 64 * 1024,
  kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
            IBV_ACCESS_REMOTE_ATOMIC
};

static _Noreturn void stop(const char* call, const char* why) {
  fprintf(stderr, "%s: %s\n", call, why);
  exit(1);
}

// Of calls that make something, and of those that give an errno, or -1 and errno.
#define MADE(made, call)                                         \
  do {                                                           \
    errno = 0;                                                   \
    if (((made) = (call)) == NULL) stop(#call, strerror(errno)); \
  } while (0)
#define DONE(call)                                           \
  do {                                                       \
    errno = 0;                                               \
    const int rc = (call);                                   \
    if (rc != 0) stop(#call, strerror(rc > 0 ? rc : errno)); \
  } while (0)

static struct ibv_context* open_aperture(void) {
  struct ibv_device** list;
  struct ibv_context* context = NULL;
  int count = 0;
  MADE(list, ibv_get_device_list(&count));
  for (int i = 0; i < count && context == NULL; ++i) {
    if (strcmp(ibv_get_device_name(list[i]), "aperture0") == 0) {
      MADE(context, ibv_open_device(list[i]));
    }
  }
  if (context == NULL) stop("ibv_get_device_list", "aperture0 is not among them");
  ibv_free_device_list(list);
  return context;
}

static void bring_up(struct ibv_qp* qp, uint32_t peer) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = kAccess};
  DONE(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = peer,
                              .max_dest_rd_atomic = 4,
                              .min_rnr_timer = 1,
                              .ah_attr.port_num = 1};
  DONE(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
  DONE(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                         IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void await_completion(struct ibv_cq* cq, const char* of) {
  struct ibv_wc wc;
  const time_t end = time(NULL) + 20;
  int n;
  while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) {
    if (time(NULL) > end) stop(of, "no completion in 20 s");
  }
  if (n < 0) stop(of, "ibv_poll_cq");
  if (wc.status != IBV_WC_SUCCESS) stop(of, ibv_wc_status_str(wc.status));
}

static void run(struct ibv_qp* qp, struct ibv_cq* cq, enum ibv_wr_opcode opcode, const char* name,
                struct ibv_sge sge, uint64_t remote, uint32_t rkey) {
  struct ibv_send_wr wr = {
      .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = remote;
    wr.wr.atomic.compare_add = 1;
    wr.wr.atomic.rkey = rkey;
  } else {
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
  }
  DONE(ibv_post_send(qp, &wr, &bad));
  await_completion(cq, name);
}

static void exchange(struct ibv_context* context) {
  struct ibv_pd* pd;
  struct ibv_mr* mr;
  struct ibv_comp_channel* channel;
  struct ibv_cq *cq, *rx_cq, *told;
  struct ibv_srq* srq;
  struct ibv_qp *qp, *peer;
  char* bytes;
  void* unused;
  MADE(bytes, calloc(3, kBytes));
  MADE(pd, ibv_alloc_pd(context));
  MADE(mr, ibv_reg_mr(pd, bytes, 3 * kBytes, kAccess));
  MADE(channel, ibv_create_comp_channel(context));
  MADE(cq, ibv_create_cq(context, 16, NULL, NULL, 0));
  MADE(rx_cq, ibv_create_cq(context, 16, NULL, channel, 0));
  struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
  MADE(srq, ibv_create_srq(pd, &srq_attr));
  struct ibv_qp_init_attr attr = {
      .send_cq = cq, .recv_cq = rx_cq, .srq = srq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
  MADE(qp, ibv_create_qp(pd, &attr));
  MADE(peer, ibv_create_qp(pd, &attr));
  bring_up(qp, peer->qp_num);
  bring_up(peer, qp->qp_num);

  const uint64_t at = (uintptr_t)bytes;
  struct ibv_sge sge = {at + 2 * kBytes, kBytes, mr->lkey};
  struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad;
  DONE(ibv_post_srq_recv(srq, &receive, &bad));
  DONE(ibv_req_notify_cq(rx_cq, 0));
  memset(bytes, 'a', kBytes);
  sge.addr = at;
  run(qp, cq, IBV_WR_SEND, "a send", sge, 0, 0);
  DONE(ibv_get_cq_event(channel, &told, &unused));
  ibv_ack_cq_events(rx_cq, 1);
  await_completion(rx_cq, "a receive");
  run(qp, cq, IBV_WR_RDMA_WRITE, "a write", sge, at + kBytes, mr->rkey);
  if (memcmp(bytes, bytes + kBytes, kBytes) != 0 || memcmp(bytes, bytes + 2 * kBytes, kBytes) != 0)
    stop("a write", "other bytes have come");
  memset(bytes + kBytes, 'b', kBytes);
  run(qp, cq, IBV_WR_RDMA_READ, "a read", sge, at + kBytes, mr->rkey);
  if (memcmp(bytes, bytes + kBytes, kBytes) != 0) stop("a read", "other bytes have come");
  sge.length = 8;
  run(qp, cq, IBV_WR_ATOMIC_FETCH_AND_ADD, "an atomic", sge, at + kBytes, mr->rkey);

  DONE(ibv_destroy_qp(qp));
  DONE(ibv_destroy_qp(peer));
  DONE(ibv_destroy_srq(srq));
  DONE(ibv_destroy_cq(cq));
  DONE(ibv_destroy_cq(rx_cq));
  DONE(ibv_destroy_comp_channel(channel));
  DONE(ibv_dereg_mr(mr));
  DONE(ibv_dealloc_pd(pd));
  free(bytes);
}

static void listen_as_an_id(void) {
  struct rdma_event_channel* channel;
  struct rdma_cm_id* id;
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  MADE(channel, rdma_create_event_channel());
  DONE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
  DONE(rdma_bind_addr(id, (struct sockaddr*)&here));
  DONE(rdma_listen(id, 4));
  DONE(rdma_destroy_id(id));
  rdma_destroy_event_channel(channel);
}

int main(void) {
  struct ibv_context* const context = open_aperture();
  exchange(context);
  listen_as_an_id();
  DONE(ibv_close_device(context));
  puts("exchanged");
  return 0;
}
