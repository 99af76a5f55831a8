// A look at the unexpected messages: peek, claim and discard of fi_tagged(3).
#pragma once

#include "qp/work_request.hpp"

namespace aperture::msg {

struct Probe {
  enum class Action {
    peek,           // complete with len, tag, source, imm of the first match, or Errc::no_message
    peek_claim,     // peek, and keep the message for the claim that names the same context
    peek_discard,   // peek, and drop the message
    claim,          // receive the message claimed before under this context into match.iov
    claim_discard,  // drop the message claimed before under this context
    show,           // where messages are shown: the next that matches, here or still to come
  };
  Action action = Action::peek;
  qp::RecvWr match;  // tag, ignore, source, context, flags; the buffer for claim
};

}  // namespace aperture::msg
