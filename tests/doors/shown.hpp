// What the tests of buffered receives share: two nodes that receive in that way, and what they are
// shown. fi_msg(3), "Buffered Receives".
#pragma once

#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {

#if FI_MAJOR_VERSION >= 2
inline constexpr uint64_t kBufferedRecv = 1ull << 51;
inline constexpr uint64_t kVariableMsg = 1ull << 48;
#else
inline constexpr uint64_t kBufferedRecv = FI_BUFFERED_RECV;
inline constexpr uint64_t kVariableMsg = FI_VARIABLE_MSG;
#endif

inline Options buffered_options(size_t limit = 0, size_t min = 0) {
  return {.caps = kUsualCaps | FI_SOURCE,
          .mode = FI_CONTEXT | FI_CONTEXT2 | kBufferedRecv,
          .cq_data_size = 8,
          .buffered_limit = limit,
          .buffered_min = min};
}

// One completion of a message that waits to be claimed or discarded.
struct Sight : Completion {
  fi_recv_context* recv_context() const { return static_cast<fi_recv_context*>(context); }
  bool begins_with(uint64_t seed, size_t bytes) const {
    return !first_difference({static_cast<const uint8_t*>(buf), bytes}, seed);
  }
};

// `to` reads the next completion, which is no send's.
inline Sight next_sight(Node& to) {
  for (;;) {
    const Completion c = to.wait_any();
    if (c.err != 0 || (c.flags & FI_SEND) == 0) return {c};
  }
}

// Claims or discards a message by fi_recvmsg, with `mine` for the context of that.
inline int64_t end_sight(fid_ep* ep, const Sight& sight, uint64_t flags, void* mine,
                         iovec* iov = nullptr) {
  sight.recv_context()->context = mine;
  const fi_msg m{iov, nullptr, iov != nullptr ? size_t{1} : 0, FI_ADDR_UNSPEC, sight.context, 0};
  return post(fi_recvmsg, ep, &m, flags);
}
// The same by fi_trecvmsg.
inline int64_t end_tagged_sight(fid_ep* ep, const Sight& sight, uint64_t flags, void* mine,
                                iovec* iov = nullptr) {
  sight.recv_context()->context = mine;
  const fi_msg_tagged m{
      iov, nullptr, iov != nullptr ? size_t{1} : 0, FI_ADDR_UNSPEC, 0, 0, sight.context, 0};
  return post(fi_trecvmsg, ep, &m, flags);
}

}  // namespace aperture::doors
