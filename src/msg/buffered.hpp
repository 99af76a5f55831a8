// Buffered receives, as values: how an endpoint has its messages shown to it, what the application
// is shown, and what is known of a message that is shown. man 3 fi_msg, "Buffered Receives";
// fi_tagged, "Buffered Tagged Receives".
//
// Guarded by the engine's lock, as all of a matching; shown_messages.hpp shows them. A message is
// shown by one completion, whose context is its RecvContext, and stays until it is claimed or
// discarded. What its sender keeps (qp/offer.hpp) is fetched for that: whole if it is short enough,
// else its first bytes, and the rest stays on offer.
#pragma once

#include <array>
#include <cstdint>

#include "base/list.hpp"
#include "msg/receive.hpp"

namespace aperture::msg {

struct Unexpected;

// How an endpoint that receives in this way does so. The door's words; kept by the door, and
// guarded by the engine's lock.
struct BufferedRule {
  uint64_t limit = 0;         // bytes of the longest message that is shown whole
  uint64_t least = 0;         // bytes of a longer one that are shown at least
  uint64_t plain_flags = 0;   // Completion::flags of what is shown, untagged and tagged
  uint64_t tagged_flags = 0;  //
  uint64_t more_flag = 0;     // or-ed in where there is more than is shown
  uint64_t claim_flag = 0;    // or-ed into the completion of a claim
  void* receiver = nullptr;   // RecvContext::receiver of untagged messages
};

// What the application is shown, as struct fi_recv_context lays it out.
struct RecvContext {
  void* receiver;  // tagged: null
  void* context;   // tagged: of the receive that matched it. A claim completes with this.
};

struct Shown : ListHook {
  static constexpr size_t kSmall = 256;

  RecvContext recv_context;
  Unexpected* message;
  Receive fetch;  // of bytes that its sender keeps
  uint64_t have;  // bytes that are here
  bool ready;     // they are all here
  bool visible;   // the application has been told, and may claim or discard it
  bool lost;      // its sender has gone with the rest
  std::array<std::byte, kSmall> small;  // of a message of that many bytes
};

}  // namespace aperture::msg
