// What moves lanes with faults: see mover.hpp.
#include "link/faulty/mover.hpp"

#include <sys/timerfd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>

#include "base/clock.hpp"
#include "base/no_throw.hpp"
#include "link/faulty/lane.hpp"

namespace aperture::link::faulty {

Result<std::shared_ptr<Mover>> Mover::make() noexcept {
  ParentOnlyFd timer(
      move_high(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))));
  if (!timer) return errc_from_errno(errno);
  return no_throw([&]() -> Result<std::shared_ptr<Mover>> {
    return std::shared_ptr<Mover>(new Mover(std::move(timer)));
  });
}

Mover::Mover(ParentOnlyFd timer) noexcept : life_(Life::now()), timer_(std::move(timer)) {}

Mover::~Mover() {
  assert(lanes_.empty());
}

Status Mover::add(FaultyLane& lane) noexcept {
  assert(std::find(lanes_.begin(), lanes_.end(), &lane) == lanes_.end());
  return no_throw([&] { lanes_.push_back(&lane); });
}

void Mover::remove(FaultyLane& lane) noexcept {
  const auto gone = std::erase(lanes_, &lane);
  assert(gone == 1);
  static_cast<void>(gone);
}

bool Mover::progress() noexcept {
  if (lanes_.empty() || life_.is_over()) return false;
  const uint64_t now = now_ns();
  bool any = false;
  for (FaultyLane* lane : lanes_) any = lane->move(now) || any;
  return any;
}

// When; 0: nothing waits.
uint64_t Mover::first_to_come_up() const noexcept {
  uint64_t first = 0;
  for (const FaultyLane* lane : lanes_) {
    const uint64_t at = lane->look_again_ns();
    if (at != 0 && (first == 0 || at < first)) first = at;
  }
  return first;
}

void Mover::flush(bool hurry) noexcept {
  if (hurry && !life_.is_over()) set_timer(first_to_come_up());
}

// 0: none; the descriptor is quiet then.
void Mover::set_timer(uint64_t at_ns) noexcept {
  constexpr uint64_t kSecond = 1'000'000'000;
  if (at_ns == 0 && !timer_set_) return;
  timer_set_ = at_ns != 0;
  itimerspec at{};
  at.it_value.tv_sec = static_cast<time_t>(at_ns / kSecond);
  at.it_value.tv_nsec = static_cast<long>(at_ns % kSecond);
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

bool Mover::needs_polling() const noexcept {
  if (life_.is_over()) return false;
  const uint64_t now = now_ns();
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [now](const FaultyLane* lane) { return lane->has_arrived(now); });
}

}  // namespace aperture::link::faulty
