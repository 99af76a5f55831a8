// A connection of rdma_cm while memory runs out, or descriptors and the like: ids, addresses, a
// connection of two RC queue pairs, a send, disconnect, destroy. Run under `aperture run`.
//
// Both of its ends are in this process; or, where APERTURE_CALL_BACK is "HERE THERE:PORT",
// addresses of this host and of another, it is made to tests/hosts/call_back.cpp there, which then
// connects to us and sends the word.
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

struct Region {
  Region(const End& of, uint64_t& word) {
    errno = 0;
    mr = rdma_reg_msgs(of.id, &word, sizeof word);
    must("rdma_reg_msgs", mr != nullptr);
  }
  ~Region() {
    if (ibv_dereg_mr(mr) != 0) all_closed = false;
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ibv_mr* mr;
};

sockaddr_in v4_at(const char* ip, uint16_t port = 0) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = ::htons(port);
  if (::inet_pton(AF_INET, ip, &at.sin_addr) != 1) throw Ended{does_not_recover, "no address"};
  return at;
}

// Its port is in `at` then.
void listen(End& end, sockaddr_in& at) {
  errno = 0;
  must("rdma_bind_addr", rdma_bind_addr(end.id, reinterpret_cast<sockaddr*>(&at)) == 0);
  must("rdma_listen", rdma_listen(end.id, 4) == 0);
  at.sin_port = rdma_get_src_port(end.id);
}

void connect(End& client, sockaddr_in to, rdma_conn_param& param) {
  errno = 0;
  must("rdma_resolve_addr",
       rdma_resolve_addr(client.id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000) == 0);
  wait_for(client, RDMA_CM_EVENT_ADDR_RESOLVED);
  must("rdma_resolve_route", rdma_resolve_route(client.id, 1000) == 0);
  wait_for(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
  client.make_qp();
  errno = 0;
  must("rdma_connect", rdma_connect(client.id, &param) == 0);
}

// The request that comes to `listening`, unless what comes to `client` ends the play.
void take_request(End& listening, End& client, End& server) {
  until("RDMA_CM_EVENT_CONNECT_REQUEST", [&] {
    client.told(RDMA_CM_EVENT_CONNECT_RESPONSE);
    return listening.told(RDMA_CM_EVENT_CONNECT_REQUEST, &server.id);
  });
  server.make_qp();
}

void accept(End& server, const Region& region, uint64_t& word) {
  rdma_conn_param param{};
  errno = 0;
  must("rdma_post_recv", rdma_post_recv(server.id, nullptr, &word, sizeof word, region.mr) == 0);
  must("rdma_accept", rdma_accept(server.id, &param) == 0);
}

void send(End& client, uint64_t word) {
  errno = 0;
  must("rdma_post_send", rdma_post_send(client.id, nullptr, &word, sizeof word, nullptr,
                                        IBV_SEND_INLINE | IBV_SEND_SIGNALED) == 0);
}

void disconnect(End& end) {
  errno = 0;
  must("rdma_disconnect", rdma_disconnect(end.id) == 0);
}

void play_on_this_host() {
  sockaddr_in here = v4_at("127.0.0.1");
  End listening;
  listen(listening, here);
  End client;
  rdma_conn_param param{};
  connect(client, here, param);
  End server(listening.channel);
  take_request(listening, client, server);
  uint64_t word = 42, got = 0;
  const Region region(server, got);
  accept(server, region, got);
  wait_for(client, RDMA_CM_EVENT_ESTABLISHED);
  wait_for(server, RDMA_CM_EVENT_ESTABLISHED);
  send(client, word);
  bool sent = false, received = false;
  until("completions", [&] {
    sent = completed(client.id->send_cq) || sent;
    received = completed(server.id->recv_cq) || received;
    return sent && received;
  });
  if (got != word) throw Ended{does_not_recover, "another word has come"};
  disconnect(client);
  wait_for(server, RDMA_CM_EVENT_DISCONNECTED);
  wait_for(client, RDMA_CM_EVENT_DISCONNECTED);
}

void play_between_hosts(const char* said) {
  char own[64], other[64];
  unsigned port = 0;
  if (std::sscanf(said, "%63s %63[^:]:%u", own, other, &port) != 3)
    throw Ended{does_not_recover, "APERTURE_CALL_BACK"};
  sockaddr_in here = v4_at(own);
  End listening;
  listen(listening, here);
  End client;
  rdma_conn_param param{};
  param.private_data = &here.sin_port;  // where it is to connect to
  param.private_data_len = sizeof here.sin_port;
  connect(client, v4_at(other, static_cast<uint16_t>(port)), param);
  wait_for(client, RDMA_CM_EVENT_ESTABLISHED);
  uint64_t word = 42, got = 0;
  send(client, word);
  until("a completion", [&] { return completed(client.id->send_cq); });
  End server(listening.channel);
  take_request(listening, client, server);
  const Region region(server, got);
  accept(server, region, got);
  // who cannot go on there ends the first connection
  const auto other_well = [&] { client.told(RDMA_CM_EVENT_CONNECT_RESPONSE); };
  until("RDMA_CM_EVENT_ESTABLISHED", [&] {
    other_well();
    return server.told(RDMA_CM_EVENT_ESTABLISHED);
  });
  until("a word", [&] {
    other_well();
    return completed(server.id->recv_cq);
  });
  if (got != word) throw Ended{does_not_recover, "another word has come"};
  disconnect(server);
  wait_for(server, RDMA_CM_EVENT_DISCONNECTED);
  disconnect(client);
  wait_for(client, RDMA_CM_EVENT_DISCONNECTED);
}

}  // namespace

void play_connection() {
  const char* const between_hosts = std::getenv("APERTURE_CALL_BACK");
  between_hosts != nullptr ? play_between_hosts(between_hosts) : play_on_this_host();
}

void load_door() {}  // linked, and put in its place by `aperture run`

}  // namespace aperture::nth
