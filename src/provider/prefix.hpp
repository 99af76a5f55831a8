// FI_MSG_PREFIX: space at the beginning of each buffer that is not part of the message. man 3
// fi_getinfo, fi_msg. Data path; no state.
//
// Every send and receive has it, however short; it lies whole in the first piece, and counts in the
// lengths of buffers and completions, but not against any limit. What lies in it is nobody's
// business: neither side reads or writes it.
#pragma once

#include "provider/post.hpp"

namespace aperture::provider {

// Cold: logs why and answers the code.
[[gnu::cold]] ssize_t refuse_prefix(const char* call, size_t count, size_t prefix_bytes) noexcept;

// 0 or the refusal. NULL with a length is left to who measures the pieces.
inline ssize_t check_prefix(const char* call, const iovec* iov, size_t count,
                            size_t prefix_bytes) noexcept {
  if (prefix_bytes == 0) return 0;
  if (iov != nullptr && count != 0 && iov->iov_base != nullptr && iov->iov_len >= prefix_bytes)
    return 0;
  return refuse_prefix(call, count, prefix_bytes);
}

}  // namespace aperture::provider
