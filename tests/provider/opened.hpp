// Objects of libfabric that are opened by one call and closed with their owner, for programs
// without libfabric itself: it may not be loaded. Knows the headers only; no state.
#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace aperture {

inline void must(int64_t code, const char* what) {
  if (code < 0) throw std::runtime_error(std::string(what) + ": " + std::to_string(code));
}

template <typename Fid>
struct CloseFid {
  void operator()(Fid* fid) const noexcept { fid->fid.ops->close(&fid->fid); }
};
template <typename Fid>
using Opened = std::unique_ptr<Fid, CloseFid<Fid>>;

// By one of the calls that give the object a context; throws when it fails.
template <typename Parent, typename Attr, typename Fid>
Opened<Fid> opened(const char* what, int (*open)(Parent*, Attr*, Fid**, void*), Parent* parent,
                   Attr* attr, void* context = nullptr) {
  Fid* made = nullptr;
  must(open(parent, attr, &made, context), what);
  return Opened<Fid>(made);
}

}  // namespace aperture
