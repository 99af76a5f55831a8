// Work that an engine does between polls, and that has no lane: what is due was noted in the middle
// of a poll or by a call, and is done in the next one.
//
// All with the engine's lock held.
#pragma once

#include "link/pollable.hpp"

namespace aperture::link {

// Self, which derives from it, has is_due() and is_blocked() (what is due has found no room when it
// was last tried), and makes it a friend: looks are asked in each poll, by one virtual call.
template <typename Self>
class Chore : public Pollable {
 public:
  Look look() noexcept final { return self().is_due() ? Look::poll : Look::nothing; }
  void fall_asleep(uint64_t) noexcept final {}
  void wake_up() noexcept final {}
  bool anything_arrived() const noexcept final { return self().is_due() && !self().is_blocked(); }
  bool needs_polling() const noexcept final { return anything_arrived(); }
  bool needs_later_look() const noexcept final { return self().is_due(); }
  bool has_pending() const noexcept final { return true; }  // it is looked at in every poll
  bool needs_wind_up() const noexcept final { return false; }

 private:
  const Self& self() const noexcept { return static_cast<const Self&>(*this); }
};

}  // namespace aperture::link
