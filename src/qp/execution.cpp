// Refusals and notes of the executing half: see execution.hpp.
#include "qp/execution.hpp"

#include "base/log.hpp"
#include "protect/wording.hpp"

namespace aperture::qp {

void Execution::answer_nak(protect::Denial denial, uint8_t range_at) noexcept {
  assert(denial != protect::Denial::none && core_.lane->response_tx.cells.has_room(1));
  const auto code = static_cast<uint16_t>(range_at << 8 | static_cast<uint16_t>(denial));
  wire::store(core_.lane->response_tx.cells.body(),
              wire::Head::make(wire::Op::nak, 0, code, core_.lane->request_rx.cells.pos()));
  core_.lane.publish_response(1);
}

void Execution::refuse(const protect::AccessAsk& ask, protect::Denial denial,
                       uint8_t range_at) noexcept {
  op_refused_ = true;
  answer_nak(denial, range_at);
  if (log_level() < LogLevel::warn) return;
  try {
    APERTURE_WARN(
        "from %s: %s", core_.remote.print().c_str(),
        protect::explain(core_.port.keys.access(), ask, denial, *core_.port.wording).c_str());
  } catch (...) {
    APERTURE_WARN("a peer's access was refused: %s", protect::rule(*core_.port.wording, denial));
  }
}

void Execution::note_write(protect::RegionRef region, uint64_t len) noexcept {
  if (!core_.port.watches_regions || len == 0) return;
  for (size_t i = 0; i < noted_count_; ++i) {
    if (noted_[i].generation == region.generation) return;
  }
  assert(noted_count_ <= noted_.size());
  if (noted_count_ < noted_.size()) noted_[noted_count_++] = region;
  core_.port.keys.access().note_write(region);
}

}  // namespace aperture::qp
