// What moves the lanes over streams of one engine (link/progress.hpp).
//
// A poll reads the few lanes on which something has come of late (hot) without asking, and asks the
// kernel for the others, by one epoll, now and then, or each time if there are many. What is
// published goes out at once when the lane has been quiet for a few microseconds, else at the end
// of the poll or with the next one, so that small messages gather. Lanes that are idle cost
// nothing.
//
// Guarded by the engine's lock; made by whoever makes the engine, and outlives all its lanes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/fork_guard.hpp"
#include "link/progress.hpp"

namespace aperture::link::tcp {

class StreamLane;

class MoverHost {
 public:
  virtual ~MoverHost() = default;
  // The first lane has come, or the last one has gone: to be polled from now on, or no longer.
  // Errors: no_memory, no_fds, io.
  virtual Status begin_moving(Progress& mover) noexcept = 0;
  virtual void end_moving(Progress& mover) noexcept = 0;
};

class Mover final : public Progress {
 public:
  // No descriptor is opened before there is a lane.
  explicit Mover(MoverHost& host) noexcept : host_(host) {}
  ~Mover() override;

  // Progress
  bool progress() noexcept override;
  void flush(bool hurry) noexcept override;
  bool needs_polling() const noexcept override;
  int fd() const noexcept override;

 private:
  friend class StreamLane;
  // Errors: those of begin_moving().
  Status add(StreamLane& lane) noexcept;
  // In a forked child as well, where nothing of the parent's is touched.
  void remove(StreamLane& lane) noexcept;
  // It has published something, and what it had published before was all sent.
  void on_published(StreamLane& lane) noexcept;

  // Something of it was sent on the spot, without the mover.
  void on_sent(StreamLane& lane, bool sent_all, bool any) noexcept;
  // It has payload that is to be in its ring when the poll is over.
  void on_landing(StreamLane& lane) noexcept;

  // It is down: nothing of it moves any more, although it is still there.
  void on_down(StreamLane& lane) noexcept;

  Status open() noexcept;
  Status watch(StreamLane& lane) noexcept;
  void await_room(StreamLane& lane, bool blocked) noexcept;
  bool hand_on(StreamLane& lane) noexcept;
  bool receive_from(StreamLane& lane) noexcept;
  bool receive_from_hot() noexcept;
  size_t receive_from_ready() noexcept;
  void receive_before_end() noexcept;
  bool move_unwatched() noexcept;
  bool is_time_to_look() const noexcept;
  bool is_busy(const StreamLane& lane) const noexcept;
  void note_arrival(StreamLane& lane) noexcept;
  void cool(StreamLane& lane) noexcept;
  void put_dirty(StreamLane& lane) noexcept;
  void take_dirty(StreamLane& lane) noexcept;
  void stage_all() noexcept;

  static constexpr size_t kMostHot = 8;

  MoverHost& host_;
  Life life_;
  ParentOnlyFd epoll_;
  std::vector<StreamLane*> lanes_;
  std::vector<StreamLane*> dirty_;      // as much room as there are lanes
  std::vector<StreamLane*> landings_;   // likewise
  std::vector<StreamLane*> unwatched_;  // whose stream has no descriptor: looked at in each poll
  std::array<StreamLane*, kMostHot> hot_{};
  size_t hot_count_ = 0;
  size_t blocked_count_ = 0;
  uint64_t polls_ = 0;
  uint64_t crowded_until_ = 0;      // a count of polls: more lanes are hot than the list holds
  uint64_t quiet_ticks_ = 0;        // since a lane's last send, for the next to go at once
  bool one_ended_ = false;          // in this poll
  bool in_poll_ = false;            // from progress() to flush()
  bool is_about_to_sleep_ = false;  // its engine, when it was last asked to flush
};

}  // namespace aperture::link::tcp
