// What moves the lanes with faults of one engine (link/progress.hpp): in each poll what has come is
// brought up, and a timer wakes the engine where something is held back meanwhile.
//
// Made with the engine where the user has asked for faults, and polled as long as it is there.
// Guarded by the engine's lock; outlives all its lanes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/errc.hpp"
#include "base/fork_guard.hpp"
#include "link/faulty/timer.hpp"
#include "link/progress.hpp"

namespace aperture::link::faulty {

class FaultyLane;

class Mover final : public Progress {
 public:
  // Errors: no_memory, no_fds.
  static Result<std::shared_ptr<Mover>> make() noexcept;
  ~Mover() override;

  // Progress
  bool progress() noexcept override;
  void flush(bool hurry) noexcept override;
  bool needs_polling() const noexcept override;
  int fd() const noexcept override { return timer_.fd(); }

  // Something has come that waits for a time, or for a queue pair.
  bool holds_back() const noexcept { return first_to_come_up() != 0; }

 private:
  friend class FaultyLane;
  explicit Mover(Timer timer) noexcept;
  // Errors: no_memory.
  Status add(FaultyLane& lane) noexcept;
  void remove(FaultyLane& lane) noexcept;
  uint64_t first_to_come_up() const noexcept;

  const Life life_;
  Timer timer_;
  std::vector<FaultyLane*> lanes_;
};

}  // namespace aperture::link::faulty
