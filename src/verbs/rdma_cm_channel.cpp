// Event channels: see rdma_cm_channel.hpp.
#include "verbs/rdma_cm_channel.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "base/no_throw.hpp"

namespace aperture::verbs::rdma_cm {

namespace {

constexpr size_t kMaxBytes =
    64;  // more events than that are waiting: one byte less changes nothing

// Not through fstat(), which answers for what we pretend to be.
bool inode_of(int fd, uint64_t& inode) noexcept {
  struct stat st;
  if (::syscall(SYS_fstat, fd, &st) != 0) return false;
  inode = st.st_ino;
  return S_ISSOCK(st.st_mode);
}

}  // namespace

ProcessLock& events_mutex() noexcept {
  static constinit ProcessLock mutex;
  return mutex;
}

Result<std::shared_ptr<Channel>> Channel::open(int flags, UniqueFd& fd) noexcept {
  std::shared_ptr<Channel> channel;
  if (const Status s = no_throw([&] { channel = std::make_shared<Channel>(); }); !s) {
    return s.error();
  }
  auto theirs = channel->make_ends();
  if (!theirs) return theirs.error();
  if ((flags & O_CLOEXEC) == 0) ::fcntl(theirs->get(), F_SETFD, 0);
  if ((flags & O_NONBLOCK) != 0) ::fcntl(theirs->get(), F_SETFL, O_NONBLOCK);
  fd = *std::move(theirs);
  return channel;
}

Result<UniqueFd> Channel::make_ends() noexcept {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return errc_from_errno(errno);
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  ParentOnlyFd copy(move_high(UniqueFd(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 3))));
  if (!copy || !inode_of(theirs.get(), inode_)) return Errc::no_fds;
  unsignal_ = std::move(copy);
  signal_ = ParentOnlyFd(move_high(std::move(ours)));
  bytes_ = 0;
  epoch_ = process_epoch();
  return theirs;
}

bool Channel::is_behind(int fd) const noexcept {
  uint64_t inode = 0;
  return inode_of(fd, inode) && inode == inode_;
}

bool Channel::is_of_this_process() const noexcept {
  return epoch_ == process_epoch();
}

// Where the guard has closed its ends, the application's descriptor becomes one of a pair that this
// process has for itself; who has it in an epoll of before the fork waits there in vain.
bool Channel::adopt(int fd) noexcept {
  // relaxed: written before the fork, if at all
  if (used_.load(std::memory_order_relaxed)) return false;
  if (signal_.is_here()) {
    epoch_ = process_epoch();
    return true;
  }
  const int flags = ::fcntl(fd, F_GETFL);
  const int fd_flags = ::fcntl(fd, F_GETFD);
  const uint64_t former_inode = inode_;
  auto theirs = make_ends();
  if (!theirs || flags < 0 || fd_flags < 0) return false;
  ::fcntl(theirs->get(), F_SETFL, flags & O_NONBLOCK);
  const int close_on_exec = (fd_flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0;
  // not through dup3(), which would take the descriptor for closed
  if (::syscall(SYS_dup3, theirs->get(), fd, close_on_exec) != fd) {
    inode_ = former_inode;
    epoch_ = 0;
    return false;
  }
  assert(is_behind(fd) && is_of_this_process());
  return true;
}

// The application's number may be closed meanwhile, or another file's: not asked after any more.
int Channel::wait() const {
  char byte;
  const ssize_t n = ::recv(unsignal_.get(), &byte, 1, MSG_PEEK);
  return n < 0 ? errno : n == 0 ? EBADF : 0;
}

void Channel::push(Events&& events) noexcept {
  assert(std::all_of(events.begin(), events.end(),
                     [](const QueuedEvent& e) { return e.reporter != nullptr; }));
  events_.splice(events_.end(), events);
  show_count();
}

const rdma_ucm_event_resp* Channel::first() const noexcept {
  return events_.empty() ? nullptr : &events_.front().response;
}

void Channel::pop() noexcept {
  assert(!events_.empty());
  const QueuedEvent& event = events_.front();
  ++event.reporter->events_reported;
  if (event.membership != nullptr) ++event.membership->events_reported;
  events_.pop_front();
  show_count();
}

Events Channel::extract(const std::function<bool(const QueuedEvent&)>& which) noexcept {
  Events out;
  for (auto at = events_.begin(); at != events_.end();) {
    const auto next = std::next(at);
    if (which(*at)) out.splice(out.end(), events_, at);
    at = next;
  }
  show_count();
  return out;
}

void Channel::show_count() noexcept {
  const size_t wanted = std::min(events_.size(), kMaxBytes);
  for (; bytes_ < wanted; ++bytes_) {
    if (::send(signal_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) return;
  }
  char byte;
  for (; bytes_ > wanted; --bytes_) {
    if (::recv(unsignal_.get(), &byte, 1, MSG_DONTWAIT) != 1) return;
  }
}

}  // namespace aperture::verbs::rdma_cm
