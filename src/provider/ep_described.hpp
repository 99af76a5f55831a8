// Calls that look at the descriptors of local buffers: fi_mr(3), "FI_MR_LOCAL" and "FI_MR_HMEM".
//
// In a domain whose rule is to ignore descriptors, endpoints have the plain tables of calls and
// nobody pays. In any other the slots hold these: they check each descriptor, then call the plain
// one. Inject calls, FI_INJECT and empty buffers need no descriptor, so none is looked at. Data
// path; no state.
#pragma once

#include "protect/descriptor.hpp"
#include "provider/post.hpp"

namespace aperture::provider {

// The tables, for endpoints that are enabled. Atomics have both kinds in ep_atomic.cpp.
fi_ops_msg described_msg_ops() noexcept;
fi_ops_tagged described_tagged_ops() noexcept;
fi_ops_rma described_rma_ops() noexcept;

// The plain tables.
const fi_ops_tagged& plain_tagged_ops() noexcept;  // ep_tagged.cpp
const fi_ops_rma& plain_rma_ops() noexcept;        // ep_rma.cpp

// What the buffers of a call are used for, as the registration has to allow it.
inline constexpr protect::Rights kSendSource = protect::Rights::send;
inline constexpr protect::Rights kRecvTarget = protect::Rights::recv;
inline constexpr protect::Rights kReadResult = protect::Rights::local_write;  // FI_READ
inline constexpr protect::Rights kWriteSource = protect::Rights::local_read;  // FI_WRITE

// A buffer without a descriptor where that is not enough: 0, since the provider has a registration
// of it (own_registrations.hpp), or the refusal.
[[gnu::cold]] ssize_t without_descriptor(const Ep& ep, const char* call, const void* buf,
                                         size_t len, protect::Rights need) noexcept;
// What the descriptor is, in whichever of the domain's protection domains its region is.
// `ask` is then of that one.
protect::LocalAnswer look_at_descriptor(const Ep& ep, protect::LocalAsk& ask) noexcept;
// Where the quick look did not suffice: 0 or the refusal.
[[gnu::cold]] ssize_t validate_descriptor(const Ep& ep, const char* call, protect::LocalAsk ask,
                                          protect::LocalAnswer answer) noexcept;

// One buffer and its descriptor; 0 or the refusal.
inline ssize_t check_buffer(const Ep& ep, const char* call, const void* buf, size_t len, void* desc,
                            protect::Rights need) noexcept {
  if (len == 0 || buf == nullptr) return 0;  // the call takes no bytes there, or refuses it
  if (desc == nullptr) [[likely]] {
    if (ep.descriptors == DescriptorRule::valid_or_null) [[likely]]
      return 0;
    return without_descriptor(ep, call, buf, len, need);
  }
  const protect::LocalAsk ask{ep.pd, desc, reinterpret_cast<uint64_t>(buf), len, need, ep.through};
  const protect::LocalAnswer answer =
      protect::check_local(ep.engine->keys().own_file().layout(), ask);
  if (answer.denial == protect::Denial::none && answer.beside.generation == 0) [[likely]]
    return 0;
  return validate_descriptor(ep, call, ask, answer);
}

// Several; no array of descriptors is as good as one of NULLs. Arguments that the call itself
// refuses (too many pieces, no array) are left to it.
inline ssize_t check_pieces(const Ep& ep, const char* call, const iovec* iov, void** desc,
                            size_t count, size_t limit, protect::Rights need) noexcept {
  if (iov == nullptr || count > limit) return 0;
  for (size_t i = 0; i < count; ++i) {
    if (const ssize_t rc = check_buffer(ep, call, iov[i].iov_base, iov[i].iov_len,
                                        desc != nullptr ? desc[i] : nullptr, need);
        rc != 0)
      return rc;
  }
  return 0;
}

}  // namespace aperture::provider
