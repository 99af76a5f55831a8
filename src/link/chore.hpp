// Work that an engine does between polls, and that has no lane: what is due was noted in the middle
// of a poll or by a call, and is done in the next one.
//
// All with the engine's lock held.
#pragma once

#include "link/pollable.hpp"

namespace aperture::link {

class Chore : public Pollable {
 public:
  Look look() noexcept final { return is_due() ? Look::poll : Look::nothing; }
  void fall_asleep() noexcept final {}
  void wake_up() noexcept final {}
  bool anything_arrived() const noexcept final { return is_due() && !is_blocked(); }
  bool needs_polling() const noexcept final { return anything_arrived(); }
  bool needs_later_look() const noexcept final { return is_due(); }
  bool has_pending() const noexcept final { return true; }  // it is looked at in every poll
  bool needs_wind_up() const noexcept final { return false; }

 private:
  virtual bool is_due() const noexcept = 0;
  // What is due has found no room when it was last tried.
  virtual bool is_blocked() const noexcept = 0;
};

}  // namespace aperture::link
