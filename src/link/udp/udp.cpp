// Sending, receiving, waking and joining: see udp.hpp. The calls of the data path go past libc,
// whose wrappers are cancellation points (base/event_fd.hpp).
#include "link/udp/udp.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <new>
#include <utility>
#include <vector>

#include "base/invariant.hpp"
#include "base/uninterrupted.hpp"
#include "wire/datagram.hpp"

namespace aperture::link::udp {

namespace {

constexpr int kPortTries = 64;
constexpr size_t kBatch = 16;
// The socket that had something last is asked directly; every so many looks, all are.
constexpr uint32_t kAllEvery = 4;
constexpr int kReadyAtOnce = 8;

class UdpDatagrams final : public Datagrams {
 public:
  explicit UdpDatagrams(const FdWatcher& watcher);
  Status begin() noexcept;
  Status take_port(std::span<const Address> ips, std::span<const Address> offered) noexcept;

  uint16_t port() const noexcept override { return port_; }
  bool is_own(const Address& address) const noexcept override;
  Status send(const Address& local, const Address& to,
              std::span<const iovec> pieces) noexcept override;
  size_t receive(DatagramSink& sink, size_t at_most) noexcept override;
  bool anything_arrived() const noexcept override;
  uint64_t strangers() const noexcept override { return strangers_; }
  void ask_wake(bool wanted) noexcept override;
  int wake_fd() const noexcept override { return alarm_.get(); }
  Status join(const Address& group, const Address& interface_ip) noexcept override;
  Status leave(const Address& group) noexcept override;

 private:
  Status open_all(std::span<const Address> ips, std::span<const Address> offered) noexcept;
  Status add(Result<UniqueFd> fd, const Socket& like) noexcept;
  Status join_at(const Address& group, const Socket& at) noexcept;
  const Socket* sender_for(const Address& local, const Address& to, bool v4) const noexcept;
  size_t take_from(Socket& socket, DatagramSink& sink, size_t at_most) noexcept;
  size_t take_from_all(DatagramSink& sink, size_t at_most) noexcept;
  bool is_stranger(const Address& from) noexcept;

  // what recvmmsg(2) fills
  struct Slot {
    iovec iov;
    sockaddr_storage from;
    std::array<std::byte, wire::kMaxDatagramBytes> bytes;
  };

  const FdWatcher watcher_;
  WatchedFd epoll_;  // all sockets
  WatchedFd alarm_;  // epoll_, while that is wanted
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Socket>> sockets_;  // our addresses first, then groups
  Socket* last_ = nullptr;                        // had something when it was looked at
  uint32_t looks_ = 0;
  bool asked_ = false;
  uint64_t strangers_ = 0;    // datagrams of other hosts
  Address last_asked_about_;  // by is_stranger(), and what was found
  bool last_was_stranger_ = true;
  std::unique_ptr<std::array<Slot, kBatch>> slots_;
  std::array<mmsghdr, kBatch> messages_{};
};

UdpDatagrams::UdpDatagrams(const FdWatcher& watcher)
    : watcher_(watcher),
      epoll_(move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))), watcher),
      alarm_(move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))), watcher),
      slots_(std::make_unique_for_overwrite<std::array<Slot, kBatch>>()) {
  for (size_t i = 0; i < kBatch; ++i) {
    Slot& slot = (*slots_)[i];
    slot.iov = {slot.bytes.data(), slot.bytes.size()};
    messages_[i].msg_hdr.msg_iov = &slot.iov;
    messages_[i].msg_hdr.msg_iovlen = 1;
    messages_[i].msg_hdr.msg_name = &slot.from;
  }
}

Status UdpDatagrams::begin() noexcept {
  if (epoll_.get() < 0 || alarm_.get() < 0) return Errc::no_fds;
  epoll_event event{};  // not asked yet
  if (::epoll_ctl(alarm_.get(), EPOLL_CTL_ADD, epoll_.get(), &event) != 0) {
    return errc_from_errno(errno);
  }
  return {};
}

Status UdpDatagrams::take_port(std::span<const Address> ips,
                               std::span<const Address> offered) noexcept {
  Status status = Errc::addr_not_avail;
  const bool is_given = !ips.empty() && ips.front().port != 0;
  for (int i = 0; i < (is_given ? 1 : kPortTries); ++i) {
    status = open_all(ips, offered);
    if (status.ok() || status.error() != Errc::addr_in_use) return status;
  }
  return status;
}

// The port of the first, which the kernel chooses if it is 0, is that of the others.
Status UdpDatagrams::open_all(std::span<const Address> ips,
                              std::span<const Address> offered) noexcept {
  sockets_.clear();
  port_ = ips.empty() ? uint16_t{0} : ips.front().port;
  for (Address at : ips) {
    at.port = port_;
    Socket like;
    like.at = at;
    like.interface = interface_of(at);
    like.is_v4 = at.is_v4();
    like.serves_others = std::any_of(offered.begin(), offered.end(),
                                     [&](const Address& o) { return o.ip == at.ip; });
    uint16_t port = 0;
    auto fd = open_at(at, like.interface, like.serves_others, port);
    if (!fd && fd.error() == Errc::addr_not_avail) continue;
    like.at.port = port;
    if (Status s = add(std::move(fd), like); !s) return s;
    port_ = port;
  }
  assert(std::all_of(sockets_.begin(), sockets_.end(),
                     [&](const auto& s) { return s->at.port == port_; }));
  return sockets_.empty() ? Status(Errc::addr_not_avail) : Status();
}

Status UdpDatagrams::add(Result<UniqueFd> fd, const Socket& like) noexcept {
  if (!fd) return fd.error();
  try {
    auto socket = std::make_unique<Socket>(Socket{WatchedFd(*std::move(fd), watcher_), like.at,
                                                  like.interface, like.is_group, like.is_v4,
                                                  like.serves_others});
    sockets_.push_back(std::move(socket));
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = sockets_.back().get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, sockets_.back()->fd.get(), &event) != 0) {
    const Errc why = errc_from_errno(errno);
    sockets_.pop_back();
    return why;
  }
  return {};
}

bool UdpDatagrams::is_own(const Address& address) const noexcept {
  return std::any_of(sockets_.begin(), sockets_.end(), [&](const auto& socket) {
    return !socket->is_group && socket->at == address;
  });
}

// The one on `local`; or on where it goes to, if that is here; or any of the right family, one of
// loopback last.
const Socket* UdpDatagrams::sender_for(const Address& local, const Address& to,
                                       bool v4) const noexcept {
  const Socket* found = nullptr;
  int best = 0;
  for (const auto& socket : sockets_) {
    if (socket->is_group || socket->is_v4 != v4) continue;
    int fits = socket->interface.is_loopback ? 1 : 2;
    if (socket->at.ip == to.ip) fits = 3;
    if (socket->at.ip == local.ip) fits = 4;
    if (fits <= best) continue;
    best = fits;
    found = socket.get();
  }
  return found;
}

Status UdpDatagrams::send(const Address& local, const Address& to,
                          std::span<const iovec> pieces) noexcept {
  assert(pieces.size() <= kMostPieces);
  Address target = to;
  const Socket* from = nullptr;
  if (wire::is_group(to)) {
    target.port = wire::kGroupPort;
    if (!to.is_v4() && !local.is_v4()) from = sender_for(local, to, false);
    if (from == nullptr || from->interface.is_loopback) {
      const Address here = Address::v4(INADDR_LOOPBACK, 0);
      target = wire::group_on_ipv4(target);
      from = sender_for(from == nullptr ? local : here, target, true);
    }
  } else {
    from = sender_for(local, to, to.is_v4());
  }
  if (from == nullptr) return {};  // no way there
  sockaddr_storage addr;
  msghdr message{};
  message.msg_name = &addr;
  message.msg_namelen = target.to_sockaddr(addr);
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  if (uninterrupted(SYS_sendmsg, from->fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
    return {};
  }
  switch (errno) {
    case EAGAIN: return Errc::again;
    case EFAULT: return Errc::bad_buffer;
    default: return {};
  }
}

size_t UdpDatagrams::receive(DatagramSink& sink, size_t at_most) noexcept {
  APERTURE_DEBUG_ASSERT(last_ == nullptr ||
                        std::any_of(sockets_.begin(), sockets_.end(),
                                    [&](const auto& s) { return s.get() == last_; }));
  const bool all = last_ == nullptr || ++looks_ % kAllEvery == 0;
  return all ? take_from_all(sink, at_most) : take_from(*last_, sink, at_most);
}

size_t UdpDatagrams::take_from_all(DatagramSink& sink, size_t at_most) noexcept {
  std::array<epoll_event, kReadyAtOnce> ready;
  const long n =
      uninterrupted(SYS_epoll_pwait, epoll_.get(), ready.data(), kReadyAtOnce, 0, nullptr, 0);
  size_t got = 0;
  for (long i = 0; i < n && got < at_most; ++i) {
    auto* socket = static_cast<Socket*>(ready[static_cast<size_t>(i)].data.ptr);
    got += take_from(*socket, sink, at_most - got);
    last_ = socket;
  }
  return got;
}

size_t UdpDatagrams::take_from(Socket& socket, DatagramSink& sink, size_t at_most) noexcept {
  const size_t wanted = std::min(at_most, kBatch);
  for (size_t i = 0; i < wanted; ++i) {
    messages_[i].msg_hdr.msg_namelen = sizeof(sockaddr_storage);
    messages_[i].msg_hdr.msg_flags = 0;
  }
  const long n =
      uninterrupted(SYS_recvmmsg, socket.fd.get(), messages_.data(), wanted, MSG_DONTWAIT, nullptr);
  if (n <= 0) return 0;
  const size_t got = static_cast<size_t>(n);
  Datagram datagram;
  datagram.to = socket.at;
  datagram.to_group = socket.is_group;
  for (size_t i = 0; i < got; ++i) {
    const mmsghdr& message = messages_[i];
    const auto from = Address::from_sockaddr(message.msg_hdr.msg_name, message.msg_hdr.msg_namelen);
    const bool whole = (message.msg_hdr.msg_flags & MSG_TRUNC) == 0;
    datagram.from = from ? from.value() : Address{};
    if (datagram.from.ip != socket.at.ip && !socket.serves_others && is_stranger(datagram.from))
        [[unlikely]] {
      ++strangers_;
      continue;
    }
    datagram.bytes = {(*slots_)[i].bytes.data(), whole ? message.msg_len : 0};
    sink.on_datagram(datagram);
  }
  return got;
}

// Our own addresses are those of the host, as they were when this was opened.
bool UdpDatagrams::is_stranger(const Address& from) noexcept {
  for (const auto& socket : sockets_) {
    if (!socket->is_group && socket->at.ip == from.ip) return false;
  }
  if (last_asked_about_.ip != from.ip) {  // else asked about already: a flood costs no more
    last_asked_about_ = from;
    last_was_stranger_ = !is_of_this_host(from);
  }
  return last_was_stranger_;
}

bool UdpDatagrams::anything_arrived() const noexcept {
  epoll_event ready;
  return uninterrupted(SYS_epoll_pwait, epoll_.get(), &ready, 1, 0, nullptr, 0) > 0;
}

void UdpDatagrams::ask_wake(bool wanted) noexcept {
  if (asked_ == wanted) return;
  asked_ = wanted;
  epoll_event event{};
  if (wanted) event.events = EPOLLIN;
  ::epoll_ctl(alarm_.get(), EPOLL_CTL_MOD, epoll_.get(), &event);
}

Status UdpDatagrams::join(const Address& group, const Address& interface_ip) noexcept {
  if (!wire::is_group(group)) return Errc::invalid;
  const auto is_it = [&](const auto& s) { return s->is_group && s->at.ip == group.ip; };
  if (std::any_of(sockets_.begin(), sockets_.end(), is_it)) return {};
  const Interface wished = interface_ip.is_any_ip() ? Interface{} : interface_of(interface_ip);
  if (!interface_ip.is_any_ip() && wished.index == 0) return Errc::addr_not_avail;
  const size_t own = sockets_.size();
  Status status = Errc::addr_not_avail;
  bool any = false;
  for (size_t i = 0; i < own; ++i) {
    const Socket& at = *sockets_[i];
    if (at.is_group || (wished.index != 0 && at.interface.index != wished.index)) continue;
    const bool seen = std::any_of(
        sockets_.begin(), sockets_.begin() + static_cast<ptrdiff_t>(i), [&](const auto& s) {
          return !s->is_group && s->is_v4 == at.is_v4 && s->interface.index == at.interface.index;
        });
    if (seen || (!at.is_v4 && (group.is_v4() || at.interface.is_loopback))) continue;
    const Status s = join_at(group, at);
    any = any || s.ok();
    if (!s) status = s;
  }
  return any ? Status() : status;
}

Status UdpDatagrams::join_at(const Address& group, const Socket& at) noexcept {
  Address place = at.is_v4 ? wire::group_on_ipv4(group) : group;
  place.port = wire::kGroupPort;
  Socket like;
  like.at = group;
  like.at.port = wire::kGroupPort;
  like.interface = at.interface;
  like.is_group = true;
  like.is_v4 = at.is_v4;
  like.serves_others = std::any_of(sockets_.begin(), sockets_.end(), [&](const auto& s) {
    return s->serves_others && s->is_v4 == at.is_v4 && s->interface.index == at.interface.index;
  });
  return add(open_group(place, at.interface, like.serves_others), like);
}

Status UdpDatagrams::leave(const Address& group) noexcept {
  const size_t left =
      std::erase_if(sockets_, [&](const auto& s) { return s->is_group && s->at.ip == group.ip; });
  last_ = nullptr;
  return left != 0 ? Status() : Status(Errc::invalid);
}

}  // namespace

WatchedFd::WatchedFd(UniqueFd fd, const FdWatcher& watcher) noexcept
    : fd_(std::move(fd)), watcher_(watcher) {
  if (fd_ && watcher_.opened != nullptr) round_ = watcher_.opened(fd_.get());
}

WatchedFd::~WatchedFd() {
  if (!fd_ || watcher_.may_close == nullptr || watcher_.may_close(fd_.get(), round_)) return;
  static_cast<void>(fd_.release());
}

Result<std::unique_ptr<Datagrams>> open(std::span<const Address> ips,
                                        std::span<const Address> offered,
                                        const FdWatcher& watcher) noexcept {
  try {
    auto made = std::make_unique<UdpDatagrams>(watcher);
    if (Status s = made->begin(); !s) return s.error();
    if (Status s = made->take_port(ips, offered); !s) return s.error();
    return std::unique_ptr<Datagrams>(std::move(made));
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

}  // namespace aperture::link::udp
