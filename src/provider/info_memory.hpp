// Memory of fi_info structures, which libfabric frees.
//
// Their layout is the loaded library's, and newer ones have longer structures than our headers
// know: each part is calloc'ed with slack behind it, so that fields unknown to us read as zero.
#pragma once

#include <rdma/fabric.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace aperture::provider {

inline constexpr size_t kLayoutSlack = 512;

template <typename T>
T* new_part() {
  void* p = std::calloc(1, sizeof(T) + kLayoutSlack);
  if (p == nullptr) throw std::bad_alloc();
  return static_cast<T*>(p);
}

inline char* new_text(const char* text) {
  char* p = ::strdup(text);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

inline void* new_copy(const void* bytes, size_t len) {
  void* p = std::calloc(1, len + kLayoutSlack);
  if (p == nullptr) throw std::bad_alloc();
  std::memcpy(p, bytes, len);
  return p;
}

// Frees an answer that was not handed out.
struct InfoDeleter {
  void operator()(fi_info* info) const noexcept {
    if (info == nullptr) return;
    std::free(info->src_addr);
    std::free(info->dest_addr);
    std::free(info->tx_attr);
    std::free(info->rx_attr);
    if (info->ep_attr != nullptr) std::free(info->ep_attr->auth_key);
    std::free(info->ep_attr);
    if (info->domain_attr != nullptr) {
      std::free(info->domain_attr->auth_key);
      std::free(info->domain_attr->name);
    }
    std::free(info->domain_attr);
    if (info->fabric_attr != nullptr) {
      std::free(info->fabric_attr->name);
      std::free(info->fabric_attr->prov_name);  // of a copy
    }
    std::free(info->fabric_attr);
    std::free(info);
  }
};
using InfoPtr = std::unique_ptr<fi_info, InfoDeleter>;

}  // namespace aperture::provider
