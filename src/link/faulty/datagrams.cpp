// Datagrams that are lost, repeated and late: see datagrams.hpp.
#include "link/faulty/datagrams.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/guarded_copy.hpp"
#include "base/no_throw.hpp"

namespace aperture::link::faulty {

namespace {

enum DatagramSalt : uint32_t { kDelay = 1, kFate = kDelay + FaultPlan::kMostDelays };

// One that goes behind the next goes by itself if there is none.
constexpr uint64_t kReorderNs = 10'000'000;
// What found no room tries again after so long.
constexpr uint64_t kRetryNs = 1'000'000;

bool watch(int epoll, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<FaultyDatagrams>> FaultyDatagrams::make(std::unique_ptr<Datagrams> inner,
                                                               const FaultPlan& plan,
                                                               uint64_t number) noexcept {
  assert(inner != nullptr);
  ParentOnlyFd wake(move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))));
  if (!wake) return errc_from_errno(errno);
  auto timer = Timer::make();
  if (!timer) return timer.error();
  if (!watch(wake.get(), inner->wake_fd()) || !watch(wake.get(), timer->fd())) {
    return errc_from_errno(errno);
  }
  std::unique_ptr<FaultyDatagrams> made(new (std::nothrow) FaultyDatagrams(
      std::move(inner), plan, number, std::move(wake), *std::move(timer)));
  if (made == nullptr) return Errc::no_memory;
  const Status roomy = no_throw([&] { made->held_.reserve(kMostHeld); });
  if (!roomy) return roomy.error();
  return made;
}

FaultyDatagrams::FaultyDatagrams(std::unique_ptr<Datagrams> inner, const FaultPlan& plan,
                                 uint64_t number, ParentOnlyFd wake, Timer timer) noexcept
    : life_(Life::now()),
      inner_(std::move(inner)),
      plan_(plan),
      dice_(plan.seed, number),
      wake_(std::move(wake)),
      timer_(std::move(timer)) {
  install_fault_guard();
}

// What is on its way arrives although its sender has gone, as on any network.
FaultyDatagrams::~FaultyDatagrams() {
  if (life_.is_over()) return;
  for (const Held& one : held_) {
    const iovec piece{const_cast<std::byte*>(one.bytes.data()), one.bytes.size()};
    static_cast<void>(inner_->send(one.local, one.to, {&piece, 1}));
  }
}

bool FaultyDatagrams::strikes(FaultKind kind) const noexcept {
  return plan_.when(kind).strikes(sent_, dice_.draw(kFate + static_cast<uint32_t>(kind), sent_));
}

Status FaultyDatagrams::send(const Address& local, const Address& to,
                             std::span<const iovec> pieces) noexcept {
  send_held();
  Status s;
  const uint64_t delay_ns = plan_.delay_ns(dice_, kDelay, sent_);
  if (strikes(FaultKind::drop)) {
    // gone
  } else if (delay_ns != 0 && held_.size() < kMostHeld) {
    s = hold(local, to, pieces, now_ns() + delay_ns, 0);
  } else if (strikes(FaultKind::reorder) && held_.size() < kMostHeld) {
    s = hold(local, to, pieces, now_ns() + kReorderNs, sent_ + 1);
  } else {
    s = inner_->send(local, to, pieces);
    if (s && strikes(FaultKind::duplicate)) static_cast<void>(inner_->send(local, to, pieces));
  }
  if (!s) return s;  // it was not sent, and is drawn for again
  ++sent_;
  send_held();
  return s;
}

Status FaultyDatagrams::hold(const Address& local, const Address& to, std::span<const iovec> pieces,
                             uint64_t due_ns, uint64_t after) noexcept {
  assert(held_.size() < held_.capacity());
  size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  Held one{local, to, {}, due_ns, after};
  const Status roomy = no_throw([&] { one.bytes.resize(bytes); });
  if (!roomy) return inner_->send(local, to, pieces);
  std::byte* at = one.bytes.data();
  for (const iovec& piece : pieces) {
    if (piece.iov_len != 0 && !guarded_copy(at, piece.iov_base, piece.iov_len)) {
      return Errc::bad_buffer;
    }
    at += piece.iov_len;
  }
  held_.push_back(std::move(one));
  set_timer();
  return {};
}

void FaultyDatagrams::send_held() noexcept {
  if (held_.empty() || life_.is_over()) return;
  const uint64_t now = now_ns();
  std::erase_if(held_, [&](Held& one) {
    const bool passed = one.after != 0 && sent_ > one.after;
    if (!passed && now < one.due_ns) return false;
    const iovec piece{one.bytes.data(), one.bytes.size()};
    if (inner_->send(one.local, one.to, {&piece, 1}).error() != Errc::again) return true;
    one.due_ns = now + kRetryNs;
    one.after = 0;
    return false;
  });
  set_timer();
}

void FaultyDatagrams::set_timer() noexcept {
  uint64_t first = 0;
  for (const Held& one : held_) {
    if (first == 0 || one.due_ns < first) first = one.due_ns;
  }
  timer_.set(first);
}

size_t FaultyDatagrams::receive(DatagramSink& sink, size_t at_most) noexcept {
  send_held();
  return inner_->receive(sink, at_most);
}

// Asked by whoever was woken, which may have been for what is held.
bool FaultyDatagrams::anything_arrived() const noexcept {
  const_cast<FaultyDatagrams*>(this)->send_held();
  return inner_->anything_arrived();
}

}  // namespace aperture::link::faulty
