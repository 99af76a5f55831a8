// What moves lanes with faults: see mover.hpp.
#include "link/faulty/mover.hpp"

#include <algorithm>
#include <cassert>
#include <new>

#include "base/clock.hpp"
#include "base/no_throw.hpp"
#include "link/faulty/lane.hpp"

namespace aperture::link::faulty {

Result<std::shared_ptr<Mover>> Mover::make() noexcept {
  auto timer = Timer::make();
  if (!timer) return timer.error();
  return no_throw([&]() -> Result<std::shared_ptr<Mover>> {
    return std::shared_ptr<Mover>(new Mover(*std::move(timer)));
  });
}

Mover::Mover(Timer timer) noexcept : life_(Life::now()), timer_(std::move(timer)) {}

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
  if (hurry && !life_.is_over()) timer_.set(first_to_come_up());
}

bool Mover::needs_polling() const noexcept {
  if (life_.is_over()) return false;
  const uint64_t now = now_ns();
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [now](const FaultyLane* lane) { return lane->has_arrived(now); });
}

}  // namespace aperture::link::faulty
