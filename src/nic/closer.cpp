// A queue and a thread for each user: see closer.hpp.
#include "nic/closer.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"

namespace aperture::nic {

namespace {

constexpr size_t kMostWaiting = 64;  // of one user, before no more is taken of him
constexpr size_t kMostThreads = 64;  // of all users: one of them may be many (user namespaces)
constexpr int kMostInSocket = 1024;  // more packets than a sender has room for

struct ToClose {
  UniqueFd fd;
  ParentOnlyFd socket;  // or this

  // May wait.
  void close() noexcept {
    if (!socket) {
      const linger none{1, 0};  // of what is a socket: what it has not sent is dropped
      ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
      return fd.reset();
    }
    // a lane may have it besides, to ring the other side, and must not be the last to close it
    char byte;
    for (int i = 0; i < kMostInSocket; ++i) {
      if (::recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0) break;
    }
    socket.reset();
  }
  void leave_open() noexcept {
    static_cast<void>(fd.release());
    socket.abandon();
  }
};

class Closer {
 public:
  // Without memory or a thread it stays open, and counts.
  void add(ToClose what, uid_t whose) noexcept;
  bool is_behind_with(uid_t whose) noexcept;

 private:
  struct Queue {  // of one user, as long as something of his is not closed
    std::deque<ToClose> waiting;
    size_t unclosed = 0;  // with the one that is being closed
    bool has_thread = false;
  };

  void start(Queue& queue, uid_t whose) noexcept;
  void work(uid_t whose) noexcept;

  std::mutex mutex_;
  std::map<uid_t, Queue> queues_;
  size_t threads_ = 0;  // all of them detached: any may wait for ever
};

void Closer::add(ToClose what, uid_t whose) noexcept {
  const Status queued = no_throw([&] {
    const std::lock_guard guard(mutex_);
    Queue& queue = queues_[whose];
    if (++queue.unclosed == kMostWaiting) {
      APERTURE_WARN(
          "%zu descriptors that came from processes of user %u wait to be closed: no more are "
          "taken "
          "of that user until they are",
          queue.unclosed, whose);
    }
    queue.waiting.push_back(std::move(what));
    if (!queue.has_thread && threads_ < kMostThreads) start(queue, whose);
  });
  if (!queued) what.leave_open();
}

bool Closer::is_behind_with(uid_t whose) noexcept {
  const std::lock_guard guard(mutex_);
  const auto found = queues_.find(whose);
  return found != queues_.end() && found->second.unclosed >= kMostWaiting;
}

// Where it cannot, whoever adds the next tries again.
void Closer::start(Queue& queue, uid_t whose) noexcept {
  assert(!queue.has_thread && !queue.waiting.empty());
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the application's signals are not for it
  try {
    std::thread thread([this, whose] { work(whose); });
    ::pthread_setname_np(thread.native_handle(), "aperture-close");
    thread.detach();
    queue.has_thread = true;
    ++threads_;
  } catch (const std::exception&) {  // system_error or bad_alloc
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// That user's, and then those of users for whom there was no thread.
void Closer::work(uid_t whose) noexcept {
  std::unique_lock lock(mutex_);
  for (auto at = queues_.find(whose); at != queues_.end();) {
    Queue& queue = at->second;
    assert(queue.has_thread && queue.unclosed >= queue.waiting.size());
    while (!queue.waiting.empty()) {
      ToClose next = std::move(queue.waiting.front());
      queue.waiting.pop_front();
      lock.unlock();
      next.close();
      lock.lock();
      --queue.unclosed;
    }
    queue.has_thread = false;
    if (queue.unclosed == 0) queues_.erase(at);
    at = std::find_if(queues_.begin(), queues_.end(), [](const auto& entry) {
      return !entry.second.has_thread && !entry.second.waiting.empty();
    });
    if (at != queues_.end()) at->second.has_thread = true;
  }
  --threads_;
}

constinit PerProcess<Closer> the_closer;

void close_by_thread(ToClose what, uid_t whose) noexcept {
  const Status there = no_throw([&] { the_closer.get().add(std::move(what), whose); });
  if (!there) what.leave_open();
}

}  // namespace

bool closes_at_once(int fd) noexcept {
  if (::fcntl(fd, F_GET_SEALS) >= 0) return true;  // which only files in memory have
  // by names that no file of a file system has: to ask such a file could be to wait for it
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  char name[32] = {};
  const ssize_t n = ::readlink(path, name, sizeof name - 1);
  return n > 0 &&
         (std::strncmp(name, "pipe:[", 6) == 0 || std::strcmp(name, "anon_inode:[eventfd]") == 0);
}

void close_aside(UniqueFd fd, uid_t whose) noexcept {
  close_by_thread({std::move(fd), {}}, whose);
}

void close_aside(ParentOnlyFd socket, uid_t whose) noexcept {
  if (!socket) return;
  ::shutdown(socket.get(), SHUT_RDWR);
  close_by_thread({{}, std::move(socket)}, whose);
}

bool is_behind_with(uid_t whose) noexcept {
  Closer* const closer = the_closer.existing();
  return closer != nullptr && closer->is_behind_with(whose);
}

}  // namespace aperture::nic
