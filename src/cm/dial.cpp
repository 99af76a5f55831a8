// Connecting to a porter, and hearing his answer: see dial.hpp.
#include "cm/dial.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cassert>
#include <cerrno>
#include <utility>

#include "base/log.hpp"
#include "cm/porter.hpp"
#include "cm/tcp.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm {

namespace {

// From that address of ours, whatever the port. An address that cannot be reached from here is
// told at once or later.
Result<ParentOnlyFd> connect_from(const Address& from, const Address& to) noexcept {
  const sa_family_t family = to.is_v4() ? AF_INET : AF_INET6;
  ParentOnlyFd fd(
      move_high(UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))));
  if (!fd) return errc_from_errno(errno);
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // advisory
  // the port is chosen with the destination, so that those of a busy client do not run out
  ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
  Address own = from;
  own.port = 0;
  sockaddr_storage sa;
  socklen_t len = own.to_sockaddr(sa);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&sa), len) != 0) return Errc::unreachable;
  len = to.to_sockaddr(sa);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&sa), len) == 0) return fd;
  if (errno == EINPROGRESS || errno == EINTR) return fd;
  return errno == ECONNREFUSED ? Errc::refused : Errc::unreachable;
}

}  // namespace

Result<std::unique_ptr<Dial>> Dial::begin(nic::ControlThread& control, PortSpace space,
                                          const Address& from, const Address& to,
                                          OnEnd on_end) noexcept {
  assert(from.port != 0 && on_end);
  if (to.port == 0) return Errc::refused;  // nobody has it
  Address porter = to.of_port();
  porter.port = porter_port();
  auto socket = connect_from(from, porter);
  if (!socket) return socket.error();
  const wire::PorterHello hello{static_cast<uint8_t>(space), to.port, Wild(from.port)};
  std::unique_ptr<Dial> dial(new (std::nothrow)
                                 Dial(control, *std::move(socket), hello, std::move(on_end)));
  if (dial == nullptr) return Errc::no_memory;
  auto watch = control.watch(dial->socket_.get(), EPOLLOUT, [raw = dial.get()](uint32_t) {
    raw->is_connected_ ? raw->on_readable() : raw->on_connected();
  });
  if (!watch) return watch.error();
  dial->watch_ = *watch;
  return dial;
}

Dial::~Dial() {
  control_.unwatch(watch_);
}

void Dial::on_connected() noexcept {
  assert(!is_connected_ && watch_ != 0);
  if (const Status s = nic::connect_outcome(socket_.get()); !s) {
    return end(s.error() == Errc::refused ? s : Status(Errc::unreachable));
  }
  end_when_silent(socket_.get());
  if (!nic::send_bytes(socket_.get(), wire::encode(hello_))) return end(Errc::refused);
  is_connected_ = true;
  control_.rewatch(watch_, EPOLLIN);
}

// Who goes without an answer is a porter that ends just now, or somebody who knows no porters.
void Dial::on_readable() noexcept {
  const Status s = nic::receive_bytes(socket_.get(), answer_, got_);
  if (s.ok()) return on_answer();
  if (s.error() != Errc::again) end(Errc::refused);
}

void Dial::on_answer() noexcept {
  assert(got_ == answer_.size());
  const auto answer = wire::decode_porter_answer(answer_);
  if (!answer.ok()) {
    APERTURE_WARN("rdma_cm: what listens at %s speaks another language than a porter of Aperture",
                  nic::remote_address(socket_.get()).print().c_str());
    return end(Errc::protocol);
  }
  switch (answer.value().verdict) {
    case wire::PorterVerdict::taken: return end({});
    case wire::PorterVerdict::busy: return end(Errc::again);
    case wire::PorterVerdict::nobody: break;
  }
  end(Errc::refused);
}

// The last thing done: whoever is told may destroy this.
void Dial::end(Status status) noexcept {
  assert(on_end_);
  control_.unwatch(std::exchange(watch_, 0));
  const OnEnd tell = std::move(on_end_);
  ParentOnlyFd socket = std::move(socket_);
  if (!status) return tell(status.error());
  tell(std::move(socket));
}

}  // namespace aperture::cm
