// Values of the 1.x API whose names the headers of 2.x lack, give another value, or mark as
// deprecated: these tests ask with them whatever headers they are built against. Constants.
// fi_getinfo(3), fi_endpoint(3), fi_mr(3) of 1.17.
#pragma once

#include <rdma/fi_endpoint.h>

namespace aperture::doors {

inline constexpr int kMrUnspec = 0;               // FI_MR_UNSPEC
inline constexpr int kMrBasic = 1 << 0;           // FI_MR_BASIC
inline constexpr int kMrScalable = 1 << 1;        // FI_MR_SCALABLE
inline constexpr uint64_t kLocalMr = 1ull << 55;  // FI_LOCAL_MR, a mode bit
inline constexpr int kSockStream = 4;             // FI_EP_SOCK_STREAM; 2.x defines the name as 0
inline constexpr int kSockDgram = 5;              // FI_EP_SOCK_DGRAM

}  // namespace aperture::doors
