// Where an id stands in the table of its life (state.hpp), how long it may stay there, and who is
// told what becomes of it. IBTA volume 1, 12.9.
//
// The control thread's own. Whoever holds it sets what is called before anything begins. Events are
// told from within; whoever is told must not destroy this in there. Invariants: but for its
// beginning the state changes by the table alone; a deadline is of one stay in one state that can
// expire, and goes with it.
#pragma once

#include <functional>

#include "cm/event.hpp"
#include "cm/state.hpp"
#include "nic/control_thread.hpp"

namespace aperture::cm {

class Life {
 public:
  using OnEvent = std::function<void(Event&&)>;

  explicit Life(nic::ControlThread& control) noexcept : control_(control) {}
  ~Life() { control_.cancel_timer(deadline_); }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  State state() const noexcept { return state_; }
  bool allows(Input input) const noexcept { return after(state_, input).has_value(); }
  // False: it is not legal here, and nothing has changed.
  bool step(Input input) noexcept;
  // Of an id that a peer has asked for: req_received or sidr_received.
  void begin_at(State state) noexcept;
  // This state expires in so long, unless it is left before; instead of what it had before.
  void wait_at_most(uint64_t ns) noexcept;

  void tell(OnEvent on_event) noexcept { on_event_ = std::move(on_event); }
  void emit(EventKind kind, int status = 0, const Params* params = nullptr) const noexcept;
  // An event that somebody else has made.
  void pass_on(Event&& event) const noexcept;

  std::function<void(State before)> on_expired;  // the table has been asked: see state()

 private:
  void expire() noexcept;
  void end_deadline() noexcept;

  nic::ControlThread& control_;
  State state_ = State::idle;
  nic::ControlThread::TimerId deadline_ = 0;  // 0: there is none
  OnEvent on_event_;
};

}  // namespace aperture::cm
