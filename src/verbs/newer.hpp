// What is younger than the <infiniband/verbs.h> that we may be built with, by its number in the ABI
// of libibverbs, so that programs that were built with newer headers are served: atomic writes and
// flushes (rdma-core 44 and 47). ibv_reg_mr(3), ibv_wr_post(3), ibv_query_device_ex(3).
//
// Plain numbers, and the place of two functions behind what every header knows of ibv_qp_ex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "verbs/api.hpp"

namespace aperture::verbs {

// of regions, windows and queue pairs
inline constexpr unsigned kAccessFlushGlobal = 1u << 8;
inline constexpr unsigned kAccessFlushPersistent = 1u << 9;
inline constexpr unsigned kAccessFlushes = kAccessFlushGlobal | kAccessFlushPersistent;

// IBV_WR_... and IBV_WC_...
inline constexpr int kWrFlush = 14;
inline constexpr int kWrAtomicWrite = 15;
inline constexpr int kWcFlush = 8;
inline constexpr int kWcAtomicWrite = 9;

// IBV_QP_EX_WITH_...
inline constexpr uint64_t kWithFlush = 1u << 11;
inline constexpr uint64_t kWithAtomicWrite = 1u << 12;

// of device_cap_flags_ex, as the kernel names them: IB_UVERBS_DEVICE_...
inline constexpr uint64_t kDeviceFlushGlobal = uint64_t{1} << 38;
inline constexpr uint64_t kDeviceFlushPersistent = uint64_t{1} << 39;
inline constexpr uint64_t kDeviceAtomicWrite = uint64_t{1} << 40;

// IBV_ODP_SUPPORT_...
inline constexpr uint32_t kOdpFlush = 1u << 6;
inline constexpr uint32_t kOdpAtomicWrite = 1u << 7;

// ibv_placement_type, and the levels of ibv_selectivity_level
inline constexpr uint8_t kPlaceGlobal = 1;
inline constexpr uint8_t kPlacePersistent = 2;
inline constexpr uint8_t kLevelRange = 0;
inline constexpr uint8_t kLevelMr = 1;

using WrAtomicWrite = void(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, const void* value);
using WrFlush = void(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
                     uint8_t level);

// The extended face as any header lays it out: an older one ends before the last of its functions.
struct NewestQpEx : ibv_qp_ex {
  void* younger[2]{};

  void set(WrAtomicWrite* atomic_write, WrFlush* flush) noexcept {
    auto* const at = reinterpret_cast<std::byte*>(this) + offsetof(ibv_qp_ex, wr_abort) +
                     sizeof(ibv_qp_ex::wr_abort);
    std::memcpy(at, &atomic_write, sizeof atomic_write);
    std::memcpy(at + sizeof atomic_write, &flush, sizeof flush);
  }
};
static_assert(sizeof(NewestQpEx) == sizeof(ibv_qp_ex) + 2 * sizeof(void*));

}  // namespace aperture::verbs
