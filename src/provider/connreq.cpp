// Handles of connection requests: see connreq.hpp.
#include "provider/connreq.hpp"

#include <cassert>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/per_process.hpp"

namespace aperture::provider {

namespace {

struct Requests {
  std::mutex mutex;
  std::unordered_map<const fid*, std::unique_ptr<ConnReq>> by_handle;
};

Requests& requests() {
  static constinit PerProcess<Requests> all;
  return all.get();
}

}  // namespace

fid* add_request(Pep& pep, const nic::ConnectionRequest& request) {
  auto made = std::make_unique<ConnReq>();
  made->handle.fclass = FI_CLASS_CONNREQ;
  made->pep = &pep;
  made->id = request.id;
  made->local = request.local;
  made->remote = request.remote;
  fid* const handle = &made->handle;
  std::lock_guard guard(requests().mutex);
  assert(request.id != 0 && !requests().by_handle.contains(handle));
  requests().by_handle.emplace(handle, std::move(made));
  return handle;
}

std::optional<ConnReq> take_request(const fid* handle) {
  std::lock_guard guard(requests().mutex);
  const auto it = requests().by_handle.find(handle);
  if (it == requests().by_handle.end() || it->second->taken) return std::nullopt;
  it->second->taken = true;
  assert(it->second->pep != nullptr && it->second->id != 0);
  return *it->second;
}

nic::RequestId put_back_request(const fid* handle, nic::RequestId taken) {
  std::lock_guard guard(requests().mutex);
  const auto it = requests().by_handle.find(handle);
  if (it == requests().by_handle.end() || it->second->id != taken) return 0;
  assert(it->second->taken);
  it->second->taken = false;
  if (it->second->pep != nullptr) return 0;
  requests().by_handle.erase(it);
  return taken;
}

void end_taken(const fid* handle, nic::RequestId taken) {
  std::lock_guard guard(requests().mutex);
  const auto it = requests().by_handle.find(handle);
  if (it != requests().by_handle.end() && it->second->id == taken) requests().by_handle.erase(it);
}

nic::RequestId end_request(const fid* handle, const Pep& pep) {
  std::lock_guard guard(requests().mutex);
  const auto it = requests().by_handle.find(handle);
  if (it == requests().by_handle.end() || it->second->pep != &pep) return 0;
  const nic::RequestId id = it->second->id;
  requests().by_handle.erase(it);
  return id;
}

const fid* handle_of(nic::RequestId id) {
  std::lock_guard guard(requests().mutex);
  for (const auto& [handle, request] : requests().by_handle) {
    if (request->id == id) return handle;
  }
  return nullptr;
}

std::vector<nic::RequestId> part_with_requests(const Pep& pep) {
  std::vector<nic::RequestId> kept;
  std::lock_guard guard(requests().mutex);
  kept.reserve(requests().by_handle.size());  // before anything is changed
  std::erase_if(requests().by_handle, [&](const auto& entry) {
    ConnReq& request = *entry.second;
    if (request.pep != &pep) return false;
    if (!request.taken) return true;
    request.pep = nullptr;
    kept.push_back(request.id);
    return false;
  });
  return kept;
}

}  // namespace aperture::provider
