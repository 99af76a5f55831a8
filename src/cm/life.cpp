// Steps, deadlines and events: see life.hpp.
#include "cm/life.hpp"

#include <cassert>

#include "base/clock.hpp"
#include "cm/id.hpp"  // which an event may have

namespace aperture::cm {

bool Life::step(Input input) noexcept {
  const auto next = after(state_, input);
  if (!next) return false;
  assert(deadline_ == 0 || allows(Input::expired));
  if (*next != state_) end_deadline();
  state_ = *next;
  assert(deadline_ == 0 || allows(Input::expired));
  return true;
}

void Life::begin_at(State state) noexcept {
  assert(state_ == State::idle && deadline_ == 0);
  assert(state == State::req_received || state == State::sidr_received);
  state_ = state;
}

void Life::end_deadline() noexcept {
  control_.cancel_timer(deadline_);
  deadline_ = 0;
}

void Life::wait_at_most(uint64_t ns) noexcept {
  assert(allows(Input::expired) && on_expired);
  end_deadline();
  deadline_ = control_.add_timer(now_ns() + ns, [this] { expire(); });
  assert(deadline_ != 0);
}

void Life::expire() noexcept {
  assert(deadline_ != 0);
  deadline_ = 0;
  const State before = state_;
  [[maybe_unused]] const bool stepped = step(Input::expired);
  assert(stepped);
  on_expired(before);
}

void Life::emit(EventKind kind, int status, const Params* params) const noexcept {
  if (!on_event_) return;
  Event event;
  event.kind = kind;
  event.status = status;
  if (params != nullptr) event.params = *params;
  on_event_(std::move(event));
}

void Life::pass_on(Event&& event) const noexcept {
  if (on_event_) on_event_(std::move(event));
}

}  // namespace aperture::cm
