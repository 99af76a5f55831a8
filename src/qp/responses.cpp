// Responses and the parts that they belong to: see responses.hpp.
#include "qp/responses.hpp"

namespace aperture::qp {

using wire::Op;
using wire::SoundHead;

bool Responses::poll() noexcept {
  assert(core_.lane);
  const bool any = core_.lane.take_responses([this](const std::byte* body) -> uint32_t {
    SoundHead head;
    const uint32_t n_cells = wire::read_head(body, head);
    return n_cells != 0 && take(head) ? n_cells : 0;
  });
  if (core_.lane.broken()) core_.busy = true;
  return any;
}

// False: it is no response.
bool Responses::take(const SoundHead& head) noexcept {
  switch (head.op()) {
    case Op::grant: sender_.on_grant(head); return true;
    case Op::finished: sender_.on_finished(head); return true;
    case Op::data: receiver_.on_data(head); return true;
    case Op::nak: pending_.on_nak(head); return true;
    case Op::read_inline:
    case Op::read_data: pending_.on_result(head); return true;
    case Op::pressure: core_.peer_pressure = head.word().unchecked() != 0; return true;
    // a number that is only compared, and flags that only its sender can suffer from
    case Op::permit:
      core_.one_sided.take_permit(head.word().unchecked(), head.code().unchecked());
      return true;
    default: return false;
  }
}

void Responses::learn_executed() noexcept {
  const uint64_t consumed = core_.lane.executed([this] { poll(); });
  assert(consumed <= core_.lane->request_tx.cells.pos());
  if (!core_.lane.broken() && consumed > pending_.done_through()) pending_.retire(consumed);
}

}  // namespace aperture::qp
