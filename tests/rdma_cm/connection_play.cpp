// A connection of rdma_cm while memory runs out, or descriptors and the like: ids, addresses, a
// connection of two RC queue pairs, a send, disconnect, destroy. Run under `aperture run`.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <memory>

#include "doors/nth_play.hpp"

namespace aperture::nth {
namespace {

void must(const char* call, bool ok) {
  if (ok) return;
  if (errno == 0) throw Ended{stays_open, std::string(call) + " does not say why"};
  throw Ended{refused, std::string(call) + ": " + std::strerror(errno)};
}

struct End {
  // of an id that comes with a request, the listening end's channel
  explicit End(rdma_event_channel* others = nullptr) {
    channel = others;
    if (channel != nullptr) return;
    errno = 0;
    own.reset(rdma_create_event_channel());
    channel = own.get();
    must("rdma_create_event_channel", channel != nullptr);
    ::fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    must("rdma_create_id", rdma_create_id(channel, &id, this, RDMA_PS_TCP) == 0);
  }
  ~End() {
    if (id == nullptr) return;
    if (id->qp != nullptr) rdma_destroy_qp(id);
    if (rdma_destroy_id(id) != 0) all_closed = false;
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void make_qp() {
    ibv_qp_init_attr attr{};
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {4, 4, 1, 1, 16};
    errno = 0;
    must("rdma_create_qp", rdma_create_qp(id, nullptr, &attr) == 0);
  }
  // Whether that event has come; another one ends the play.
  bool told(rdma_cm_event_type wanted, rdma_cm_id** child = nullptr) {
    rdma_cm_event* event = nullptr;
    errno = 0;
    if (rdma_get_cm_event(channel, &event) != 0) {
      must("rdma_get_cm_event", errno == EAGAIN);
      return false;
    }
    const auto got = event->event;
    if (got == RDMA_CM_EVENT_CONNECT_REQUEST && child != nullptr) *child = event->id;
    rdma_ack_cm_event(event);
    if (got != wanted) throw Ended{refused, rdma_event_str(got)};
    return true;
  }

  struct Close {
    void operator()(rdma_event_channel* c) const noexcept { rdma_destroy_event_channel(c); }
  };
  std::unique_ptr<rdma_event_channel, Close> own;
  rdma_event_channel* channel = nullptr;
  rdma_cm_id* id = nullptr;
};

void wait_for(End& end, rdma_cm_event_type wanted) {
  until(rdma_event_str(wanted), [&] { return end.told(wanted); });
}

bool completed(ibv_cq* cq) {
  ibv_wc wc{};
  if (ibv_poll_cq(cq, 1, &wc) != 1) return false;
  if (wc.status != IBV_WC_SUCCESS) throw Ended{refused, ibv_wc_status_str(wc.status)};
  return true;
}

}  // namespace

void play_connection() {
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  auto* const any_port = reinterpret_cast<sockaddr*>(&here);
  End listening;
  errno = 0;
  must("rdma_bind_addr", rdma_bind_addr(listening.id, any_port) == 0);
  must("rdma_listen", rdma_listen(listening.id, 4) == 0);
  here.sin_port = rdma_get_src_port(listening.id);
  End client;
  must("rdma_resolve_addr", rdma_resolve_addr(client.id, nullptr, any_port, 1000) == 0);
  wait_for(client, RDMA_CM_EVENT_ADDR_RESOLVED);
  must("rdma_resolve_route", rdma_resolve_route(client.id, 1000) == 0);
  wait_for(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
  client.make_qp();
  rdma_conn_param param{};
  errno = 0;
  must("rdma_connect", rdma_connect(client.id, &param) == 0);
  End server(listening.channel);
  until("RDMA_CM_EVENT_CONNECT_REQUEST", [&] {
    client.told(RDMA_CM_EVENT_CONNECT_RESPONSE);
    return listening.told(RDMA_CM_EVENT_CONNECT_REQUEST, &server.id);
  });
  server.make_qp();
  uint64_t word = 42, got = 0;
  errno = 0;
  struct Region {
    ibv_mr* mr = nullptr;
    ~Region() {
      if (mr != nullptr && ibv_dereg_mr(mr) != 0) all_closed = false;
    }
  } region;
  region.mr = rdma_reg_msgs(server.id, &got, sizeof got);
  must("rdma_reg_msgs", region.mr != nullptr);
  must("rdma_post_recv", rdma_post_recv(server.id, nullptr, &got, sizeof got, region.mr) == 0);
  must("rdma_accept", rdma_accept(server.id, &param) == 0);
  wait_for(client, RDMA_CM_EVENT_ESTABLISHED);
  wait_for(server, RDMA_CM_EVENT_ESTABLISHED);
  errno = 0;
  must("rdma_post_send", rdma_post_send(client.id, nullptr, &word, sizeof word, nullptr,
                                        IBV_SEND_INLINE | IBV_SEND_SIGNALED) == 0);
  bool sent = false, received = false;
  until("completions", [&] {
    sent = completed(client.id->send_cq) || sent;
    received = completed(server.id->recv_cq) || received;
    return sent && received;
  });
  if (got != word) throw Ended{does_not_recover, "another word has come"};
  errno = 0;
  must("rdma_disconnect", rdma_disconnect(client.id) == 0);
  wait_for(server, RDMA_CM_EVENT_DISCONNECTED);
  wait_for(client, RDMA_CM_EVENT_DISCONNECTED);
}

void load_door() {}  // linked, and put in its place by `aperture run`

}  // namespace aperture::nth
