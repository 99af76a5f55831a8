// Connections of FI_EP_MSG endpoints: fi_connect, fi_accept, fi_shutdown, fi_getpeer. man 3 fi_cm.

#include <cassert>

#include "provider/addressing.hpp"
#include "provider/connreq.hpp"
#include "provider/ep.hpp"
#include "provider/errors.hpp"
#include "provider/pep.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

// "The fi_connect and fi_accept calls will also transition an endpoint into the enabled state."
int make_enabled(const char* call, Ep& ep) {
  if (ep.body->core) return 0;
  const int rc = enable_ep(ep);
  return rc == 0 ? 0 : refuse(rc, "%s: the endpoint cannot be enabled, see above", call);
}

int connect(fid_ep* fid, const void* addr, const void* param, size_t len) noexcept {
  return guarded("fi_connect", fid, [&]() -> int {
    auto& ep = object_of<Ep>(fid);
    EpBody& body = *ep.body;
    wire::PrivateData data;
    if (const int rc = take_private("fi_connect", param, len, data); rc != 0) return rc;
    if (body.request != nullptr)
      return refuse(-FI_EOPBADSTATE,
                    "fi_connect: the endpoint was opened to accept a request; call fi_accept");
    const size_t bytes = addr != nullptr ? address_bytes(body.domain->addr_format, addr) : 0;
    Result<Address> to = bytes != 0 ? Address::from_sockaddr(addr, bytes) : Errc::invalid;
    if (!to || to->port == 0 || to->is_any_ip() || to->is_v4() != body.local.is_v4())
      return refuse(
          -FI_EINVAL,
          "fi_connect: addr is no sockaddr of the endpoint's address format with a host and a "
          "port; pass info->dest_addr");
    if (const int rc = make_enabled("fi_connect", ep); rc != 0) return rc;
    if (const Status s = body.connection->connect(*to, data); !s)
      return refuse(fi_code(s),
                    "fi_connect: it may be called once in an endpoint's life; open another one");
    return 0;
  });
}

int accept(fid_ep* fid, const void* param, size_t len) noexcept {
  return guarded("fi_accept", fid, [&]() -> int {
    auto& ep = object_of<Ep>(fid);
    EpBody& body = *ep.body;
    wire::PrivateData data;
    if (const int rc = take_private("fi_accept", param, len, data); rc != 0) return rc;
    if (body.request == nullptr)
      return refuse(
          -FI_EOPBADSTATE,
          "fi_accept: the endpoint was not opened for a connection request; open one with the info "
          "of an FI_CONNREQ");
    if (const int rc = make_enabled("fi_accept", ep); rc != 0) return rc;
    const Status s = body.connection->accept(data);
    if (s.error() == Errc::bad_state)
      return refuse(-FI_EOPBADSTATE, "fi_accept: the endpoint has accepted its request already");
    end_taken(body.request, body.request_id);  // answered, whatever became of it
    body.request_id = 0;
    if (s.error() == Errc::no_entry)
      return refuse(-FI_ECONNABORTED,
                    "fi_accept: nobody waits for the answer any more: %s has withdrawn or died",
                    body.peer.print().c_str());
    if (s.error() == Errc::access_denied)
      return refuse(
          -FI_EACCES,
          "fi_accept: the endpoint has another authorization key than the passive endpoint that %s "
          "asked; open it with the info of the FI_CONNREQ",
          body.peer.print().c_str());
    return s ? 0 : refuse(fi_code(s), "fi_accept: %s", describe(s.error()));
  });
}

int shutdown(fid_ep* fid, uint64_t flags) noexcept {
  return guarded("fi_shutdown", fid, [&]() -> int {
    auto& body = *object_of<Ep>(fid).body;
    if (flags != 0) return refuse(-FI_EBADFLAGS, "fi_shutdown: flags must be 0");
    const Status s =
        body.connection != nullptr ? body.connection->shutdown() : Status(Errc::not_connected);
    return s ? 0 : refuse(fi_code(s), "fi_shutdown: the endpoint is not connected");
  });
}

int get_peer(fid_ep* fid, void* addr, size_t* len) noexcept {
  const auto& body = *object_of<Ep>(fid).body;
  if (const int rc = check_address_room("fi_getpeer", addr, len); rc != 0) return rc;
  if (body.connection == nullptr || body.connection->connection() != nic::Connection::connected)
    return refuse(-FI_ENOTCONN, "fi_getpeer: the endpoint is not connected");
  return write_address(body.connection->peer(), addr, len);
}

}  // namespace

int take_handle(EpBody& body, const fi_info& info) {
  if (const std::optional<ConnReq> request = take_request(info.handle)) {
    assert(body.request == nullptr && request->id != 0);
    body.request = info.handle;
    body.request_id = request->id;
    body.local = request->local;
    body.peer = request->remote;
    return 0;
  }
  const int rc = take_passive(info.handle, body.local);
  if (rc != -FI_ENOENT) return rc;
  return refuse(
      -FI_EINVAL,
      "fi_endpoint: info->handle is no connection request that waits for an answer, and no passive "
      "endpoint; pass the info of an FI_CONNREQ once, or set handle to NULL");
}

void leave_request(EpBody& body) noexcept {
  if (body.request_id == 0) return;
  const nic::RequestId nobodys = put_back_request(body.request, body.request_id);
  if (nobodys == 0) return;
  if (auto contact = nic::Contact::instance()) (*contact)->refuse(nobodys, {});
}

int enable_connected(EpBody& body) {
  if (body.eq == nullptr)
    return refuse(-FI_ENOEQ,
                  "fi_enable: no event queue is bound, and connections report there; bind one");
  assert(body.core == nullptr && body.connection == nullptr && !body.handles.empty());
  body.reports.begin(body.eq, &body.handles.front()->fid.fid);
  nic::MsgEndpoint::Wish wish;
  wish.events = &body.reports;
  wish.request = body.request_id;
  wish.peer = body.peer;
  auto made = nic::MsgEndpoint::create(options_of(body), wish);
  if (!made)
    return refuse(fi_code(made.error()),
                  "fi_enable: cannot have the address %s: %s; choose another address or port",
                  body.local.print().c_str(), describe(made.error()));
  const nic::EngineGuard guard(*body.domain->engine);  // as in enable_unreliable()
  body.connection = made->get();
  body.core = *std::move(made);
  return 0;
}

fi_ops_cm g_msg_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = set_ep_name,
    .getname = get_ep_name,
    .getpeer = get_peer,
    .connect = connect,
    .listen = NotOffered<"fi_listen: only a passive endpoint listens; open one with fi_passive_ep",
                         -FI_EOPNOTSUPP>{},
    .accept = accept,
    .reject =
        NotOffered<"fi_reject: pass the passive endpoint of the FI_CONNREQ", -FI_EOPNOTSUPP>{},
    .shutdown = shutdown,
    .join = NotOffered<"fi_join: a connected endpoint has one peer; FI_EP_DGRAM has multicast">{},
};

}  // namespace aperture::provider
