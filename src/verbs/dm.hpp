// Device memory: ibv_alloc_dm(3). The device has none of its own, so it is memory of this process
// that only ibv_memcpy_to_dm(), ibv_memcpy_from_dm() and regions of it reach. Any thread.
#pragma once

#include "base/fd.hpp"
#include "verbs/context.hpp"

namespace aperture::verbs {

inline constexpr uint64_t kMaxDmBytes = 64u << 20;  // of one allocation

struct Dm {
  ibv_dm base{};  // first: object_of()
  Mapping memory;
  uint64_t length = 0;  // bytes that were asked for
  ContextUse use_context;
  Uses uses;
};

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr) noexcept;
int free_dm(ibv_dm* dm) noexcept;

}  // namespace aperture::verbs
