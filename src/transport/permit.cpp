// Moving the gate of a lane: see permit.hpp.
#include "transport/permit.hpp"

#include "base/clock.hpp"
#include "base/log.hpp"

namespace aperture::transport {

namespace {

// A copy of one chunk takes microseconds; a stopped or dead accessor is recognised. Longer than
// that takes only one that the kernel holds in the middle of its copy.
constexpr uint64_t kLongestWaitNs = 1'000'000'000;

}  // namespace

void Gate::move_to(LaneEnd& lane, protect::KeyTable& keys, uint64_t number) noexcept {
  const link::DirectPath& direct = lane->direct;
  const Status s = keys.set_gate(lane->request_rx.words().gate, number, direct.watched, direct.lane,
                                 now_ns() + kLongestWaitNs);
  if (!s) {
    APERTURE_WARN(
        "%s is still in the middle of a direct copy that began before its queue pair was closed to "
        "it: the kernel holds it there (a frozen process, or a page fault that is not answered)",
        lane->remote.print().c_str());
  }
}

}  // namespace aperture::transport
