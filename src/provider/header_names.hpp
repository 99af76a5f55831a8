// Values of libfabric's API whose names one generation of its headers lacks or marks as deprecated.
//
// The provider is compiled against 1.17 or 2.x and serves applications of both, so what it
// understands must not depend on the headers that it was built with. Values never change in the ABI
// (a bit that was given another meaning is told apart by the API version asked for). Constants.
// man 3 fi_getinfo, fi_endpoint, fi_mr.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aperture::provider {

// Gone from the names in 2.0, still asked for by applications of 1.x.
inline constexpr uint32_t kProviderSpecific = 1u << 31;  // FI_PROV_SPECIFIC: ours, not the core's
inline constexpr uint64_t kPriority = 1ull << 22;        // FI_PRIORITY: a hint, without effect here
inline constexpr int kTypeSockStream =
    4;                                    // FI_EP_SOCK_STREAM; 2.x defines the name as another type
inline constexpr int kTypeSockDgram = 5;  // FI_EP_SOCK_DGRAM

// Of 1.7 to 1.20, and to 1.22: ours are served for the API versions that have them.
inline constexpr uint64_t kVariableMsg = 1ull << 48;   // FI_VARIABLE_MSG, a capability
inline constexpr uint64_t kBufferedRecv = 1ull << 51;  // FI_BUFFERED_RECV, a bit of fi_info's mode

// Deprecated in 2.0: naming them gives a warning for each use.
inline constexpr uint64_t kNoOrder = 0;                 // FI_ORDER_NONE
inline constexpr uint64_t kRegionsReport = 1ull << 59;  // FI_REG_MR, a flag of fi_domain_bind
inline constexpr uint64_t kLocalMr = 1ull << 55;        // FI_LOCAL_MR, a bit of fi_info's mode
inline constexpr int kMrModeUnspec = 0;                 // FI_MR_UNSPEC
inline constexpr int kMrModeBasic = 1 << 0;             // FI_MR_BASIC
inline constexpr int kMrModeScalable = 1 << 1;          // FI_MR_SCALABLE

// Keys of address vectors, 1.20.
inline constexpr uint64_t kAuthKeyFlag = 1ull << 57;  // FI_AUTH_KEY
inline constexpr size_t kAvAuthKey = ~size_t{0};      // FI_AV_AUTH_KEY, of auth_key_size

// Capabilities of receives, 2.0. The last has the bit of FI_VARIABLE_MSG, which is gone by then.
inline constexpr uint64_t kTaggedDirectedRecv = 1ull << 45;  // FI_TAGGED_DIRECTED_RECV
inline constexpr uint64_t kTaggedMultiRecv = 1ull << 46;     // FI_TAGGED_MULTI_RECV
inline constexpr uint64_t kExactDirectedRecv = 1ull << 48;   // FI_EXACT_DIRECTED_RECV

// Options of endpoints that came after 1.17.
inline constexpr int kCudaApiPermitted = 10;       // FI_OPT_CUDA_API_PERMITTED, 1.18
inline constexpr int kSharedMemoryPermitted = 11;  // FI_OPT_SHARED_MEMORY_PERMITTED, 1.21

}  // namespace aperture::provider
