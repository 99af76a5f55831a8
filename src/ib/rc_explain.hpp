// The sentences for refusals between connected queue pairs, at both ends. Logged as warnings by the
// place that first knows the error. No state; the engine's lock is held. Slow; nothing here fails.
#pragma once

#include <optional>

#include "ib/queue_pair.hpp"
#include "transport/lane_end.hpp"

namespace aperture::ib {

// Who speaks.
struct RcEnd {
  const QpSpec& spec;
  const Address& remote;
};

// The WQE of ours was refused at the other end. room: of the receive there that it did not fit, as
// the peer says.
void explain_refused(const RcEnd& end, const transport::LaneEnd& lane, const Wqe& w,
                     std::optional<uint32_t> room) noexcept;
// We refuse a message that does not fit the receive whose turn it is.
void explain_too_long(const RcEnd& end, uint64_t len, uint64_t room) noexcept;
// Our own attributes allow no such request.
void explain_no_place(const QpSpec& spec, const Wqe& w) noexcept;
// We refuse that access; denial none: the queue pair takes no such request, whatever its key.
void explain_refusing(const RcEnd& end, const protect::AccessAsk& ask,
                      protect::Denial denial) noexcept;
// We refuse the invalidation that a send asks for.
void explain_refused_invalidation(const RcEnd& end, uint32_t rkey,
                                  protect::WindowAnswer answer) noexcept;
// A bind or invalidation of our own did not work.
void explain_failed_window(const QpSpec& spec, const Wqe& w, const protect::Window* window,
                           const protect::WindowBind& bind, protect::WindowAnswer answer) noexcept;

}  // namespace aperture::ib
