// Passive endpoints: see pep.hpp.
#include "provider/pep.hpp"

#include <cassert>
#include <cstring>

#include "provider/addressing.hpp"
#include "provider/connection.hpp"
#include "provider/connreq.hpp"
#include "provider/errors.hpp"
#include "provider/info_copy.hpp"
#include "provider/offer.hpp"
#include "provider/registry.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

constexpr size_t kDefaultBacklog = 1024;
constexpr size_t kMaxBacklog = 65536;

Registry<const fid>& passive_endpoints() {
  static constinit Registry<const fid> all;
  return all;
}

Result<nic::Contact*> contact_of(const char* call) noexcept {
  auto contact = nic::Contact::instance();
  if (!contact) APERTURE_WARN("%s: the control thread could not start", call);
  return contact;
}

int close_pep(fid* fid) noexcept {
  return guarded_close("fi_close(pep)", fid, [&]() -> int {
    auto& pep = object_of<Pep>(fid);
    if (pep.listening) {
      if (auto contact = nic::Contact::instance()) {
        for (const nic::RequestId id : part_with_requests(pep)) (*contact)->keep_request(id);
        (*contact)->unlisten(pep.listener);  // refuses the others; no upcall from here on
        part_with_requests(pep);             // those that came in between
      }
    }
    if (pep.eq != nullptr) {
      pep.eq->forget(fid);
      pep.eq->uses.drop();
    }
    passive_endpoints().remove(fid);
    pep.fabric->uses.drop();
    delete &pep;
    return 0;
  });
}

int bind_pep(fid* fid, struct fid* what, uint64_t flags) noexcept {
  auto& pep = object_of<Pep>(fid);
  return bind_eq("fi_pep_bind", what, flags, 0, pep.fabric, pep.eq);
}

int set_backlog(Pep& pep, const int* value) noexcept {
  if (value == nullptr || *value < 0)
    return refuse(-FI_EINVAL, "fi_control(pep): FI_BACKLOG needs a number that is not negative");
  pep.backlog = std::clamp<size_t>(static_cast<size_t>(*value), 1, kMaxBacklog);
  if (!pep.listening) return 0;
  auto contact = contact_of("fi_control(pep)");
  if (!contact) return fi_code(contact.error());
  (*contact)->set_backlog(pep.listener, pep.backlog);
  return 0;
}

int control_pep(fid* fid, int command, void* arg) noexcept {
  auto& pep = object_of<Pep>(fid);
  if (command == FI_BACKLOG) return set_backlog(pep, static_cast<const int*>(arg));
  return refuse(-FI_ENOSYS, "fi_control(pep): command %d is not offered; FI_BACKLOG is", command);
}

int get_option(fid_t, int level, int name, void* value, size_t* len) noexcept {
  if (value == nullptr || len == nullptr) return -FI_EINVAL;
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE) {
    APERTURE_INFO("fi_getopt(pep): option %d of level %d is not offered", name, level);
    return -FI_ENOPROTOOPT;
  }
  const size_t size = wire::kPrivateBytes;
  const size_t room = *len;
  *len = sizeof size;
  if (room < sizeof size) return -FI_ETOOSMALL;
  std::memcpy(value, &size, sizeof size);
  return 0;
}

int set_name(fid_t fid, void* addr, size_t len) noexcept {
  auto& pep = object_of<Pep>(fid);
  if (pep.listening || pep.spent)
    return refuse(-FI_EOPBADSTATE,
                  "fi_setname: the passive endpoint has its address; set it before fi_listen");
  return take_own_address(addr, len, pep.info->addr_format, pep.local);
}

int get_name(fid_t fid, void* addr, size_t* len) noexcept {
  const auto& pep = object_of<Pep>(fid);
  if (const int rc = check_address_room("fi_getname", addr, len); rc != 0) return rc;
  if (pep.local.port == 0)
    return refuse(-FI_EOPBADSTATE, "fi_getname: the passive endpoint has no port before fi_listen");
  return write_address(pep.local, addr, len);
}

int listen(fid_pep* fid) noexcept {
  return guarded("fi_listen", fid, [&]() -> int {
    auto& pep = object_of<Pep>(fid);
    if (pep.listening || pep.spent)
      return refuse(-FI_EOPBADSTATE, "fi_listen: the passive endpoint %s",
                    pep.spent ? "has given its address to an active one" : "listens already");
    if (pep.eq == nullptr)
      return refuse(-FI_ENOEQ, "fi_listen: no event queue is bound; bind one with fi_pep_bind");
    auto contact = contact_of("fi_listen");
    if (!contact) return fi_code(contact.error());
    nic::ListenSpec spec;
    spec.local = pep.local;
    spec.events = &pep.reports;
    spec.what = nic::ListenFor::requests;
    spec.backlog = pep.backlog;
    spec.auth_key = pep.auth_key;
    auto listener = (*contact)->listen(spec, pep.local);
    if (!listener)
      return refuse(fi_code(listener.error()),
                    "fi_listen: cannot listen at %s: %s; choose another address or port",
                    pep.local.print().c_str(), describe(listener.error()));
    assert(pep.local.port != 0);
    pep.listener = *listener;
    pep.listening = true;
    return 0;
  });
}

int reject(fid_pep* fid, fid_t handle, const void* param, size_t len) noexcept {
  return guarded("fi_reject", fid, [&]() -> int {
    auto& pep = object_of<Pep>(fid);
    wire::PrivateData data;
    if (const int rc = take_private("fi_reject", param, len, data); rc != 0) return rc;
    auto contact = contact_of("fi_reject");
    if (!contact) return fi_code(contact.error());
    const nic::RequestId id = end_request(handle, pep);
    if (id == 0)
      return refuse(
          -FI_EINVAL,
          "fi_reject: the handle is no connection request of this passive endpoint, or has been "
          "answered; pass the one of its FI_CONNREQ");
    (*contact)->refuse(id, data);
    return 0;
  });
}

fi_ops g_pep_fid_ops = fid_ops<"pep">(close_pep, bind_pep, control_pep);

fi_ops_ep g_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = NotOffered<"fi_cancel: a passive endpoint has no operations", -FI_ENOENT>{},
    .getopt = get_option,
    .setopt = NotOffered<"fi_setopt: a passive endpoint has no option that can be set",
                         -FI_ENOPROTOOPT>{},
    .tx_ctx = NotOffered<"fi_tx_context: a passive endpoint has no contexts">{},
    .rx_ctx = NotOffered<"fi_rx_context: a passive endpoint has no contexts">{},
    .rx_size_left = NotOffered<"fi_rx_size_left: a passive endpoint has no queues">{},
    .tx_size_left = NotOffered<"fi_tx_size_left: a passive endpoint has no queues">{},
};

fi_ops_cm g_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = set_name,
    .getname = get_name,
    .getpeer = NotOffered<"fi_getpeer: a passive endpoint has no peer", -FI_EOPNOTSUPP>{},
    .connect = NotOffered<"fi_connect: a passive endpoint listens; connect an active one",
                          -FI_EOPNOTSUPP>{},
    .listen = listen,
    .accept = NotOffered<"fi_accept: accept with an endpoint opened with the handle of FI_CONNREQ",
                         -FI_EOPNOTSUPP>{},
    .reject = reject,
    .shutdown =
        NotOffered<"fi_shutdown: a passive endpoint has no connection; close it", -FI_EOPNOTSUPP>{},
    .join =
        NotOffered<"fi_join: a passive endpoint transfers nothing; FI_EP_DGRAM has multicast">{},
};

// "The domain authorization key will be used if auth_key_size is set to 0": a passive endpoint has
// no domain, only the info of one.
int take_keys(Pep& pep, const fi_info& info) {
  if (pep.fabric->api_version < kApi15) return 0;
  if (const fi_domain_attr* attr = info.domain_attr) {
    auto key =
        take_auth_key("fi_passive_ep: domain_attr->auth_key", attr->auth_key, attr->auth_key_size);
    if (!key) return fi_code(key.error());
    pep.domain_key = pep.auth_key = *std::move(key);
  }
  if (const fi_ep_attr* attr = info.ep_attr; attr != nullptr && attr->auth_key_size != 0) {
    auto key =
        take_auth_key("fi_passive_ep: ep_attr->auth_key", attr->auth_key, attr->auth_key_size);
    if (!key) return fi_code(key.error());
    pep.auth_key = *std::move(key);
  }
  return 0;
}

// The endpoint that answers a request needs the key that was proved for it.
void give_keys(const Pep& pep, fi_info& info) {
  if (pep.domain_key != nullptr) {
    const auto bytes = pep.domain_key->bytes();
    info.domain_attr->auth_key = new_auth_key(bytes.data(), bytes.size());
    info.domain_attr->auth_key_size = bytes.size();
  }
  if (pep.auth_key != nullptr) {
    const auto bytes = pep.auth_key->bytes();
    info.ep_attr->auth_key = new_auth_key(bytes.data(), bytes.size());
    info.ep_attr->auth_key_size = bytes.size();
  }
}

void* new_sockaddr(const Address& address, size_t& len) {
  sockaddr_storage sa;
  len = address.to_sockaddr(sa);
  return new_copy(&sa, len);
}

}  // namespace

void RequestReports::on_request(const nic::ConnectionRequest& request) noexcept {
  assert(pep_.eq != nullptr && !pep_.spent);  // fi_listen has seen to it
  fid* handle = nullptr;
  const int rc = guarded("FI_CONNREQ", [&]() -> int {
    InfoPtr info = copy_info(*pep_.info);
    info->src_addr = new_sockaddr(request.local, info->src_addrlen);
    info->dest_addr = new_sockaddr(request.remote, info->dest_addrlen);
    give_keys(pep_, *info);
    info->handle = handle = add_request(pep_, request);
    pep_.eq->report_connection(FI_CONNREQ, &pep_.fid.fid, std::move(info), request.data);
    return 0;
  });
  if (rc == 0) return;
  end_request(handle, pep_);
  if (auto contact = nic::Contact::instance()) (*contact)->refuse(request.id, {});
}

void RequestReports::on_request_gone(nic::RequestId id) noexcept {
  guarded("FI_CONNREQ", [&]() -> int {
    const fid* const handle = handle_of(id);
    // once the application has read it, it answers it in its own time, in vain
    if (handle != nullptr && pep_.eq->forget_request(handle)) end_request(handle, pep_);
    return 0;
  });
}

int open_passive(fid_fabric* fid, fi_info* info, fid_pep** out, void* context) noexcept {
  return guarded("fi_passive_ep", fid, [&]() -> int {
    if (fid == nullptr || info == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_passive_ep: fabric, info or pep is NULL");
    if (info->ep_attr != nullptr && info->ep_attr->type != FI_EP_MSG &&
        info->ep_attr->type != FI_EP_UNSPEC) {
      return refuse(-FI_EINVAL,
                    "fi_passive_ep: endpoint type %d has no connections; ask for FI_EP_MSG",
                    static_cast<int>(info->ep_attr->type));
    }
    auto pep = std::make_unique<Pep>();
    pep->info = copy_info(*info);
    pep->info->ep_attr->type = FI_EP_MSG;
    pep->info->fabric_attr->fabric = fid;
    if (pep->info->domain_attr->name == nullptr)
      pep->info->domain_attr->name = new_text(kDomainName);
    if (pep->info->fabric_attr->name == nullptr)
      pep->info->fabric_attr->name = new_text(kFabricName);
    pep->fabric = &object_of<Fabric>(fid);
    if (const int rc = take_keys(*pep, *info); rc != 0) return rc;
    const int taken = take_source("fi_passive_ep", *info, info->addr_format, pep->local);
    if (taken != 0) return taken;
    if (pep->info->addr_format == FI_FORMAT_UNSPEC)
      pep->info->addr_format = pep->local.is_v4() ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
    pep->backlog = kDefaultBacklog;
    pep->fid.fid = {FI_CLASS_PEP, context, &g_pep_fid_ops};
    pep->fid.ops = &g_ops;
    pep->fid.cm = &g_cm_ops;
    passive_endpoints().add(&pep->fid.fid);
    pep->fabric->uses.add();
    *out = &pep.release()->fid;
    return 0;
  });
}

int take_passive(const fid* handle, Address& local) noexcept {
  if (!passive_endpoints().has(handle)) return -FI_ENOENT;
  auto& pep = object_of<Pep>(const_cast<fid*>(handle));
  if (pep.listening || pep.spent)
    return refuse(
        -FI_EOPBADSTATE,
        "fi_endpoint: info->handle is a passive endpoint that %s; only an unused one can give its "
        "address away",
        pep.spent ? "has given its address away" : "listens");
  assert(!pep.listening && !pep.spent);
  local = pep.local;
  pep.spent = true;
  if (pep.eq != nullptr) pep.eq->uses.drop();  // "no longer bound to any fabric resources"
  pep.eq = nullptr;
  return 0;
}

}  // namespace aperture::provider
