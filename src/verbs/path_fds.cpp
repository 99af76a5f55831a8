// The descriptors that are event channels: see path_fds.hpp.
#include "verbs/path_fds.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <new>

#include "base/guarded_copy.hpp"
#include "base/no_throw.hpp"
#include "verbs/errors.hpp"
#include "verbs/rdma_cm_channel.hpp"
#include "verbs/rdma_cm_commands.hpp"

namespace aperture::verbs {

std::array<std::atomic<uint8_t>, kMaxMarkedFd> fd_marks;

namespace {

struct Table {
  std::mutex mutex;
  std::map<int, std::shared_ptr<rdma_cm::Channel>> channels;
  pid_t pid = 0;
};

Table& table() noexcept {
  // never destroyed, since descriptors are closed until the very end; and nobody has to allocate it
  alignas(Table) static std::byte place[sizeof(Table)];
  static auto* const the_one = new (place) Table;
  return *the_one;
}

// A child shall know which of its descriptors are its parent's channels: the table is whole when it
// is copied.
[[gnu::constructor(201)]] void hold_table_across_forks() noexcept {
  (void)::pthread_atfork([] { table().mutex.lock(); }, [] { table().mutex.unlock(); },
                         [] { table().mutex.unlock(); });
}

std::atomic<pid_t> owner{0};

void mark(int fd, bool on) noexcept {
  assert(fd >= 0 && fd < kMaxMarkedFd);
  // relaxed: see is_marked()
  fd_marks[static_cast<size_t>(fd)].store(on ? 1 : 0, std::memory_order_relaxed);
}

// Errors: no_memory.
Status enter(int fd, const std::shared_ptr<rdma_cm::Channel>& channel) noexcept {
  const std::lock_guard guard(table().mutex);
  const Status s = no_throw([&] { table().channels[fd] = channel; });
  if (s.ok()) mark(fd, true);
  return s;
}

// Takes it out; the channel if that was its last descriptor.
std::shared_ptr<rdma_cm::Channel> take_out(int fd) noexcept {
  Table& t = table();
  const std::lock_guard guard(t.mutex);
  const auto at = t.channels.find(fd);
  if (at == t.channels.end()) return nullptr;
  std::shared_ptr<rdma_cm::Channel> channel = std::move(at->second);
  t.channels.erase(at);
  mark(fd, false);
  const bool others = std::any_of(t.channels.begin(), t.channels.end(),
                                  [&](const auto& e) { return e.second == channel; });
  return others ? nullptr : channel;
}

}  // namespace

bool owns_channels() noexcept {
  // relaxed: a number; the table behind it has its own mutex
  return owner.load(std::memory_order_relaxed) == ::getpid();
}

void own_channels() noexcept {
  owner.store(::getpid(), std::memory_order_relaxed);  // relaxed: as above
}

int open_channel(int flags) noexcept {
  install_fault_guard();
  UniqueFd fd;
  auto channel = rdma_cm::Channel::open(flags, fd);
  if (!channel || fd.get() >= kMaxMarkedFd) {
    errno = channel ? EMFILE : errno_of(channel.error());
    return -1;
  }
  own_channels();
  forget(fd.get());  // a number whose last owner was closed behind our back
  if (const Status s = enter(fd.get(), *channel); !s) {
    errno = errno_of(s);
    return -1;
  }
  return fd.release();
}

std::shared_ptr<rdma_cm::Channel> channel_behind(int fd) noexcept {
  if (!is_marked(fd)) return nullptr;
  std::shared_ptr<rdma_cm::Channel> channel;
  if (owns_channels()) {
    Table& t = table();
    const std::lock_guard guard(t.mutex);
    const auto at = t.channels.find(fd);
    if (at != t.channels.end()) channel = at->second;
  } else {
    // a child that has opened none yet, or that runs while its parent stands still
    const auto& channels = table().channels;
    const auto at = channels.find(fd);
    if (at != channels.end()) channel = at->second;
  }
  if (channel == nullptr || channel->is_behind(fd)) return channel;
  forget(fd);
  return nullptr;
}

Status copied(int fd, int copy) noexcept {
  if (!owns_channels()) return {};
  if (copy >= kMaxMarkedFd) return Errc::no_fds;
  forget(copy);
  std::shared_ptr<rdma_cm::Channel> channel;
  {
    const std::lock_guard guard(table().mutex);
    const auto at = table().channels.find(fd);
    if (at == table().channels.end()) return {};
    channel = at->second;
  }
  assert(channel != nullptr && copy != fd);
  return enter(copy, channel);
}

void forget(int fd) noexcept {
  if (!is_marked(fd) || !owns_channels()) return;
  auto last = take_out(fd);
  if (last == nullptr) return;
  if (last->is_of_this_process()) return rdma_cm::close(*last);
  static_cast<void>(new (std::nothrow) std::shared_ptr<rdma_cm::Channel>(std::move(last)));
}

void forget_range(unsigned first, unsigned last) noexcept {
  if (!owns_channels()) return;
  const unsigned end = std::min<unsigned>(last, kMaxMarkedFd - 1);
  for (unsigned fd = first; fd <= end; ++fd) forget(static_cast<int>(fd));
}

}  // namespace aperture::verbs
