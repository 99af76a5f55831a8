// See post_fault.hpp.
#include "verbs/post_fault.hpp"

#include <cinttypes>
#include <cstdio>

#include "verbs/errors.hpp"
#include "verbs/receives.hpp"
#include "wire/datagram.hpp"

namespace aperture::verbs {

namespace {

using ib::PostFault;

uint64_t bytes_of(const ib::SendWr& wr) noexcept {
  uint64_t len = 0;
  if (wr.inline_parts != nullptr) {
    for (uint32_t i = 0; i < wr.inline_count; ++i) len += wr.inline_parts[i].len;
  } else {
    for (uint32_t i = 0; i < wr.sge_count; ++i) len += wr.sge[i].length;
  }
  return len;
}

}  // namespace

int refuse_post(const char* call, const DeviceQp& qp, const ib::SendWr& wr,
                PostFault fault) noexcept {
  const ib::QpSpec& spec = qp.queue->spec();
  const auto op = static_cast<unsigned>(wr.op);
  const uint64_t len = bytes_of(wr);
  char why[192] = {};
#define WHY(...) std::snprintf(why, sizeof why, __VA_ARGS__)
  switch (fault) {
    case PostFault::none: break;
    case PostFault::state:
      WHY("the queue pair is in %s; bring it to RTS by ibv_modify_qp() first",
          ib::state_name(qp.queue->state()));
      break;
    case PostFault::operation: WHY("there is no operation %u", op); break;
    case PostFault::of_type:
      WHY("queue pairs of type %d have no operation %u", static_cast<int>(qp.type), op);
      break;
    case PostFault::pieces:
      WHY("%u pieces, and max_send_sge is %u", wr.sge_count, spec.max_send_sge);
      break;
    case PostFault::inline_data: WHY("operation %u takes no inline data", op); break;
    case PostFault::inline_bytes:
      WHY("%" PRIu64 " bytes inline, and max_inline_data is %u", len, spec.max_inline_bytes);
      break;
    case PostFault::route: WHY("a datagram needs an address handle"); break;
    case PostFault::number: WHY("remote_qpn 0x%x has more than 24 bits", wr.remote_qpn); break;
    case PostFault::datagram_bytes:
      WHY("%" PRIu64 " bytes, and a datagram holds %zu (the MTU)", len, size_t{wire::kDatagramMtu});
      break;
    case PostFault::message_bytes:
      WHY("%" PRIu64 " bytes, and max_msg_sz is %" PRIu64, len, ib::kMaxMessageBytes);
      break;
    case PostFault::word_bytes: WHY("%" PRIu64 " bytes for an operation on 8", len); break;
    case PostFault::window: WHY("a bind needs a window"); break;
    case PostFault::placement: WHY("a flush has a placement type, and no bytes of its own"); break;
    case PostFault::full:
      WHY("the send queue is full: max_send_wr is %u; poll the completions of earlier work "
          "requests, of which some must be signaled, first",
          spec.max_send_wr);
      break;
  }
#undef WHY
  return refuse(errno_of(error_of(fault)), "%s: %s (queue pair 0x%x)", call, why,
                qp.ex.qp_base.qp_num);
}

int refuse_receive(const char* call, Status why, const ibv_recv_wr& wr, uint32_t max_wr,
                   uint32_t max_sge) noexcept {
  const int error = errno_of(why);
  if (why.error() == Errc::bad_state)
    return refuse(
        error, "%s: the queue pair is in RESET; bring it to INIT by ibv_modify_qp() first", call);
  if (why.error() == Errc::no_space)
    return refuse(error,
                  "%s: the queue is full: its max_wr is %u; poll the completions of earlier "
                  "receives first",
                  call, max_wr);
  return refuse(error, "%s: %d pieces, and max_sge is %u", call, wr.num_sge, max_sge);
}

}  // namespace aperture::verbs
