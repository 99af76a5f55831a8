// What is wrong with a work request, so that the door can say which of many it is.
// ibv_post_send(3), "RETURN VALUE". Plain values, any thread.
#pragma once

#include <cstdint>

#include "base/errc.hpp"

namespace aperture::ib {

enum class PostFault : uint8_t {
  none,
  state,           // before RTS
  operation,       // no such operation
  of_type,         // queue pairs of this type have not got it
  pieces,          // more than max_send_sge
  inline_data,     // inline, and this operation takes none
  inline_bytes,    // more than max_inline_data
  route,           // a datagram without an address handle
  number,          // a datagram to no queue pair number
  datagram_bytes,  // more than one holds
  message_bytes,   // more than a message may have
  word_bytes,      // of an operation on 8 bytes: other than 8
  window,          // a bind of none
  placement,       // a flush without a placement type, or with bytes of its own
  full,            // more work requests than max_send_wr
};

constexpr Errc error_of(PostFault fault) noexcept {
  switch (fault) {
    case PostFault::none: return Errc::ok;
    case PostFault::state: return Errc::bad_state;
    case PostFault::full: return Errc::no_space;
    default: return Errc::invalid;
  }
}

}  // namespace aperture::ib
