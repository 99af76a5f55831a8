// What moves lanes over streams: see mover.hpp.
#include "link/tcp/mover.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "base/clock.hpp"
#include "base/no_throw.hpp"
#include "base/uninterrupted.hpp"
#include "link/tcp/stream_lane.hpp"

namespace aperture::link::tcp {

namespace {

// A lane stays hot for so many polls after the last arrival: longer than a peer takes to answer.
constexpr uint64_t kHotPolls = 1'000;
// The kernel is asked for the others in each of so many polls, a power of two.
constexpr uint64_t kLookEvery = 16;
// What is published after so long a pause has no company to wait for.
constexpr uint64_t kQuietNs = 5'000;
constexpr size_t kMostEvents = 32;

}  // namespace

Mover::~Mover() {
  assert(lanes_.empty() && dirty_.empty() && landings_.empty());
}

int Mover::fd() const noexcept {
  return epoll_.get();
}

// --- which lanes there are ---

Status Mover::open() noexcept {
  if (epoll_) return {};
  life_ = Life::now();
  quiet_ticks_ = ticks_from_ns(kQuietNs);
  epoll_ = ParentOnlyFd(move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))));
  if (!epoll_) return errc_from_errno(errno);
  return {};
}

Status Mover::add(StreamLane& lane) noexcept {
  assert(!lane.moved_.is && !life_.is_over());
  if (const Status s = open(); !s) return s;
  const Status roomy = no_throw([&] {
    lanes_.reserve(lanes_.size() + 1);
    dirty_.reserve(lanes_.size() + 1);
    landings_.reserve(lanes_.size() + 1);
    unwatched_.reserve(unwatched_.size() + 1);
  });
  if (!roomy) return roomy;
  if (lanes_.empty()) {
    if (const Status s = host_.begin_moving(*this); !s) return s;
  }
  if (const Status s = watch(lane); !s) {
    if (lanes_.empty()) host_.end_moving(*this);
    return s;
  }
  lane.moved_ = {};
  lane.moved_.is = true;
  lane.moved_.index = lanes_.size();
  lanes_.push_back(&lane);
  put_dirty(lane);  // it may have been given something before
  return {};
}

void Mover::remove(StreamLane& lane) noexcept {
  assert(lane.moved_.is && lanes_[lane.moved_.index] == &lane);
  on_down(lane);
  lanes_.back()->moved_.index = lane.moved_.index;
  lanes_[lane.moved_.index] = lanes_.back();
  lanes_.pop_back();
  lane.moved_ = {};
  if (lanes_.empty()) host_.end_moving(*this);
}

void Mover::on_down(StreamLane& lane) noexcept {
  one_ended_ = true;
  take_dirty(lane);
  if (std::exchange(lane.moved_.landing, false)) std::erase(landings_, &lane);
  cool(lane);
  if (std::exchange(lane.moved_.blocked, false)) --blocked_count_;
  if (lane.fd() < 0) {
    std::erase(unwatched_, &lane);
  } else if (!life_.is_over()) {
    // one that is there no more was taken off before
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, lane.fd(), nullptr);
  }
}

// --- the kernel's view of them ---

Status Mover::watch(StreamLane& lane) noexcept {
  if (lane.fd() < 0) {
    unwatched_.push_back(&lane);
    return {};
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &lane;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, lane.fd(), &event) == 0) return {};
  return errc_from_errno(errno);
}

void Mover::await_room(StreamLane& lane, bool blocked) noexcept {
  if (lane.moved_.blocked == blocked) return;
  lane.moved_.blocked = blocked;
  blocked ? ++blocked_count_ : --blocked_count_;
  if (lane.fd() < 0) return;
  epoll_event event{};
  event.events = blocked ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = &lane;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, lane.fd(), &event);
}

// --- sending ---

void Mover::put_dirty(StreamLane& lane) noexcept {
  if (lane.moved_.dirty) return;
  assert(dirty_.size() < dirty_.capacity());
  lane.moved_.dirty = true;
  dirty_.push_back(&lane);
}

void Mover::take_dirty(StreamLane& lane) noexcept {
  if (!lane.moved_.dirty) return;
  lane.moved_.dirty = false;
  const auto at = std::find(dirty_.begin(), dirty_.end(), &lane);
  assert(at != dirty_.end());
  *at = dirty_.back();
  dirty_.pop_back();
}

void Mover::on_published(StreamLane& lane) noexcept {
  if (!lane.moved_.is || lane.down_ || life_.is_over()) return;
  if (lane.moved_.blocked) return;  // it is sent once the stream takes more
  if (!in_poll_ && ticks() - lane.moved_.last_sent_ticks > quiet_ticks_) {
    take_dirty(lane);
    hand_on(lane);
    return;
  }
  put_dirty(lane);
}

// True: anything has gone.
bool Mover::hand_on(StreamLane& lane) noexcept {
  assert(lane.moved_.is && !lane.moved_.dirty);
  const uint64_t taken = lane.taken_;
  const bool sent_all = lane.send();
  const bool any = lane.taken_ != taken;
  if (!lane.down_) on_sent(lane, sent_all, any);
  return any;
}

void Mover::on_sent(StreamLane& lane, bool sent_all, bool any) noexcept {
  assert(!lane.down_);
  if (!sent_all) take_dirty(lane);  // it is sent once the stream takes more
  await_room(lane, !sent_all);
  if (!any) return;
  if (lane.watch != nullptr) lane.watch->on_pending();  // its acknowledgement
  lane.moved_.last_sent_ticks = ticks();
}

// --- payload that lands ---

void Mover::on_landing(StreamLane& lane) noexcept {
  if (std::exchange(lane.moved_.landing, true)) return;
  assert(landings_.size() < landings_.capacity());
  landings_.push_back(&lane);
}

// Nobody has taken it in this poll.
void Mover::stage_all() noexcept {
  while (!landings_.empty()) {
    StreamLane& lane = *landings_.back();
    landings_.pop_back();
    lane.moved_.landing = false;
    (void)lane.stage();
  }
}

void Mover::flush(bool hurry) noexcept {
  in_poll_ = false;
  is_about_to_sleep_ = hurry;
  if (life_.is_over()) return;
  stage_all();
  // from the back: what is taken out is replaced by what was looked at before
  for (size_t i = dirty_.size(); i-- > 0;) {
    StreamLane& lane = *dirty_[i];
    const bool over = lane.moved_.hot && lane.moved_.last_arrival != polls_;
    if (!hurry && !over && !lane.has_urgent()) {
      lane.wait_for_company();
      continue;
    }
    take_dirty(lane);
    hand_on(lane);
  }
}

// More is coming, and with what it consumes credit grows: none is told for each message.
bool Mover::is_busy(const StreamLane& lane) const noexcept {
  return lane.moved_.hot && polls_ - lane.moved_.last_arrival <= 1;
}

bool Mover::needs_polling() const noexcept {
  return !dirty_.empty() && !life_.is_over();
}

// --- a poll ---

bool Mover::progress() noexcept {
  if (lanes_.empty() || life_.is_over()) return false;
  ++polls_;
  in_poll_ = true;
  one_ended_ = false;
  bool any = false;
  // from the back, as in flush()
  for (size_t i = dirty_.size(); i-- > 0;) {
    StreamLane& lane = *dirty_[i];
    if (is_busy(lane) && !lane.has_urgent()) continue;
    take_dirty(lane);
    if (hand_on(lane)) any = true;
  }
  if (receive_from_hot()) any = true;
  if (is_time_to_look() && receive_from_ready() != 0) any = true;
  if (!unwatched_.empty() && move_unwatched()) any = true;
  if (one_ended_) receive_before_end();
  is_about_to_sleep_ = false;
  return any;
}

// Where a lane waits for its stream or has no place among the hot ones, in each poll; and in the
// first one after a sleep, which one of them may have ended.
bool Mover::is_time_to_look() const noexcept {
  return lanes_.size() != unwatched_.size() &&
         (is_about_to_sleep_ || (polls_ & (kLookEvery - 1)) == 0 || blocked_count_ != 0 ||
          polls_ < crowded_until_);
}

bool Mover::receive_from(StreamLane& lane) noexcept {
  if (!lane.receive()) return false;
  if (!lane.down_) note_arrival(lane);
  return true;
}

bool Mover::receive_from_hot() noexcept {
  bool any = false;
  for (size_t i = hot_count_; i-- > 0;) {
    StreamLane& lane = *hot_[i];
    if (receive_from(lane)) {
      any = true;
    } else if (lane.moved_.hot && polls_ - lane.moved_.last_arrival > kHotPolls) {
      cool(lane);
    }
  }
  return any;
}

// What came over others earlier is there when the end is told (PollList): their queue may be the
// same one. The list of those that are ready goes round.
void Mover::receive_before_end() noexcept {
  for (size_t seen = 0; seen <= lanes_.size();) {
    const size_t ready = receive_from_ready();
    if (ready < kMostEvents) return;
    seen += ready;
  }
}

// So many were ready.
size_t Mover::receive_from_ready() noexcept {
  epoll_event events[kMostEvents];
  // no cancellation point: applications poll where they may be cancelled
  const long n = uninterrupted(SYS_epoll_pwait, epoll_.get(), events, kMostEvents, 0, nullptr, 0);
  const size_t ready = n > 0 ? static_cast<size_t>(n) : 0;
  for (size_t i = 0; i < ready; ++i) {
    auto& lane = *static_cast<StreamLane*>(events[i].data.ptr);
    if ((events[i].events & ~EPOLLOUT) != 0) receive_from(lane);
    if ((events[i].events & EPOLLOUT) != 0 && lane.moved_.blocked) hand_on(lane);
  }
  return ready;
}

bool Mover::move_unwatched() noexcept {
  bool any = false;
  for (size_t i = unwatched_.size(); i-- > 0;) {
    StreamLane& lane = *unwatched_[i];
    if (lane.moved_.blocked && hand_on(lane)) any = true;
    if (!lane.down_ && lane.receive()) any = true;
  }
  return any;
}

void Mover::note_arrival(StreamLane& lane) noexcept {
  lane.moved_.last_arrival = polls_;
  if (lane.moved_.hot || lane.fd() < 0) return;
  if (hot_count_ == kMostHot) {
    crowded_until_ = polls_ + kHotPolls;
    return;
  }
  lane.moved_.hot = true;
  hot_[hot_count_++] = &lane;
}

void Mover::cool(StreamLane& lane) noexcept {
  if (!lane.moved_.hot) return;
  lane.moved_.hot = false;
  const auto end = hot_.begin() + static_cast<ptrdiff_t>(hot_count_);
  const auto at = std::find(hot_.begin(), end, &lane);
  assert(at != end);
  *at = hot_[--hot_count_];
}

}  // namespace aperture::link::tcp
