// The connection requests that applications hold handles of (fi_info.handle, FI_CLASS_CONNREQ).
//
// A handle is good from its FI_CONNREQ until the request is accepted, rejected, or its passive
// endpoint closed with no endpoint opened for it. What an application hands in is looked up, never
// followed. Guarded by its own mutex; the control thread adds, any thread uses.
#pragma once

#include <rdma/fabric.h>

#include <optional>
#include <vector>

#include "nic/contact.hpp"

namespace aperture::provider {

struct Pep;

struct ConnReq {
  fid handle{};
  Pep* pep = nullptr;  // null once it is closed
  nic::RequestId id = 0;
  Address local;
  Address remote;
  bool taken = false;  // an endpoint is open for it
};

// By exception std::bad_alloc.
fid* add_request(Pep& pep, const nic::ConnectionRequest& request);
// For a new endpoint: nothing if the handle is none, or taken.
std::optional<ConnReq> take_request(const fid* handle);
// The endpoint is closed without having accepted. The request to refuse, or 0 if the passive
// endpoint still has it, or it was rejected: the handle may be another one's by now.
nic::RequestId put_back_request(const fid* handle, nic::RequestId taken);
// Its endpoint has answered: the handle is good no more.
void end_taken(const fid* handle, nic::RequestId taken);
// Rejected or gone: the same. Its request; 0 if it was none of `pep`.
nic::RequestId end_request(const fid* handle, const Pep& pep);
const fid* handle_of(nic::RequestId id);
// The passive endpoint closes: the requests that are taken, to be kept beyond it.
std::vector<nic::RequestId> part_with_requests(const Pep& pep);

}  // namespace aperture::provider
