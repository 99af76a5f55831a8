// Connected endpoints while memory runs out, or descriptors and the like: listen, connect, accept,
// send, close.
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <memory>

#include "doors/nth_play.hpp"

namespace aperture::nth {
namespace {

void must(const char* call, ssize_t rc) {
  if (rc < 0) throw Ended{refused, std::string(call) + ": " + fi_strerror(static_cast<int>(-rc))};
}

template <typename T>
struct Close {
  void operator()(T* object) const noexcept {
    if (fi_close(&object->fid) != 0 && fi_close(&object->fid) != 0) all_closed = false;
  }
};
template <typename T>
using Own = std::unique_ptr<T, Close<T>>;

struct FreeInfo {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

Info get_info() {
  const Info hints(fi_allocinfo());
  hints->fabric_attr->prov_name = ::strdup("aperture");
  hints->caps = FI_MSG;
  hints->ep_attr->type = FI_EP_MSG;
  fi_info* found = nullptr;
  must("fi_getinfo",
       fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, hints.get(), &found));
  return Info(found);
}

template <typename Parent, typename Attr, typename T>
Own<T> made(const char* call, int (*open)(Parent*, Attr*, T**, void*), Parent* parent, Attr* attr) {
  T* object = nullptr;
  must(call, open(parent, attr, &object, nullptr));
  return Own<T>(object);
}

// One end of the connection, and what it stands on.
struct End {
  End(fid_fabric* fabric, fi_info* info) {
    fi_eq_attr eq_attr{};
    eq_attr.wait_obj = FI_WAIT_NONE;
    eq = made("fi_eq_open", fi_eq_open, fabric, &eq_attr);
    domain = made("fi_domain", fi_domain, fabric, info);
    fi_cq_attr cq_attr{};
    cq = made("fi_cq_open", fi_cq_open, domain.get(), &cq_attr);
  }
  void open(fi_info* info) {
    ep = made("fi_endpoint", fi_endpoint, domain.get(), info);
    must("fi_ep_bind", fi_ep_bind(ep.get(), &eq->fid, 0));
    must("fi_ep_bind", fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    must("fi_enable", fi_enable(ep.get()));
  }
  // Whether something has completed; an error ends the play.
  bool completed() {
    fi_cq_entry entry;
    const ssize_t n = fi_cq_read(cq.get(), &entry, 1);
    if (n != -FI_EAGAIN) must("fi_cq_read", n);
    return n == 1;
  }
  // Whether that event has come; another one ends the play.
  bool told(uint32_t wanted, Info* info = nullptr) {
    uint32_t event = 0;
    alignas(fi_eq_cm_entry) char bytes[sizeof(fi_eq_cm_entry) + 512];
    const ssize_t n = fi_eq_read(eq.get(), &event, bytes, sizeof bytes, 0);
    if (n == -FI_EAGAIN) return false;
    must("fi_eq_read", n);
    const auto* entry = reinterpret_cast<const fi_eq_cm_entry*>(bytes);
    if (event == FI_CONNREQ && info != nullptr) info->reset(entry->info);
    if (event != wanted) throw Ended{refused, "event " + std::to_string(event)};
    return true;
  }

  Own<fid_eq> eq;
  Own<fid_domain> domain;
  Own<fid_cq> cq;
  Own<fid_ep> ep;
};

void send_one(End& from, End& to) {
  uint64_t word = 42, got = 0;
  must("fi_recv", fi_recv(to.ep.get(), &got, sizeof got, nullptr, FI_ADDR_UNSPEC, nullptr));
  bool posted = false, sent = false, received = false;
  until("completions", [&] {
    if (!posted) {
      const ssize_t rc = fi_send(from.ep.get(), &word, sizeof word, nullptr, 0, nullptr);
      if (rc != -FI_EAGAIN) must("fi_send", rc);
      posted = rc == 0;
    }
    sent = from.completed() || sent;
    received = to.completed() || received;
    if (!received) {  // the connection may have ended
      from.told(0);
      to.told(0);
    }
    return sent && received;
  });
  if (got != word) throw Ended{does_not_recover, "another word has come"};
}

}  // namespace

void play_connection() {
  const Info info = get_info();
  fid_fabric* opened = nullptr;
  must("fi_fabric", fi_fabric(info->fabric_attr, &opened, nullptr));
  const Own<fid_fabric> fabric(opened);
  End server(fabric.get(), info.get()), client(fabric.get(), info.get());
  const auto pep = made("fi_passive_ep", fi_passive_ep, fabric.get(), info.get());
  must("fi_pep_bind", fi_pep_bind(pep.get(), &server.eq->fid, 0));
  must("fi_listen", fi_listen(pep.get()));
  char address[64];
  size_t size = sizeof address;
  must("fi_getname", fi_getname(&pep->fid, address, &size));
  client.open(info.get());
  must("fi_connect", fi_connect(client.ep.get(), address, nullptr, 0));
  Info request;
  until("FI_CONNREQ", [&] {
    client.told(0);
    return server.told(FI_CONNREQ, &request);
  });
  server.open(request.get());
  must("fi_accept", fi_accept(server.ep.get(), nullptr, 0));
  until("FI_CONNECTED here", [&] {
    server.completed();
    return client.told(FI_CONNECTED);
  });
  until("FI_CONNECTED there", [&] { return server.told(FI_CONNECTED); });
  send_one(client, server);
  must("fi_shutdown", fi_shutdown(client.ep.get(), 0));
  until("FI_SHUTDOWN", [&] { return server.told(FI_SHUTDOWN); });
}

void load_door() {
  fi_info* info = nullptr;
  if (fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, nullptr, &info) == 0) fi_freeinfo(info);
}

}  // namespace aperture::nth
