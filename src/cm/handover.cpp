// Taking a connection from a porter: see handover.hpp.
#include "cm/handover.hpp"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cassert>
#include <new>
#include <utility>

#include "cm/ports.hpp"
#include "cm/tcp.hpp"
#include "nic/sockets.hpp"
#include "wire/porter.hpp"

namespace aperture::cm {

namespace {

int option_of(int fd, int name) noexcept {
  int value = -1;
  socklen_t len = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, name, &value, &len) == 0 ? value : -1;
}

bool is_tcp(int fd) noexcept {
  return option_of(fd, SO_TYPE) == SOCK_STREAM && option_of(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

}  // namespace

Result<std::unique_ptr<Handover>> Handover::begin(nic::ControlThread& control, ParentOnlyFd porter,
                                                  const Address& local, OnEnd on_end) noexcept {
  assert(on_end);
  if (!is_root_or_us(porter.get())) return Errc::access_denied;
  std::unique_ptr<Handover> made(
      new (std::nothrow) Handover(control, std::move(porter), local, std::move(on_end)));
  if (made == nullptr) return Errc::no_memory;
  auto watch = control.watch(made->porter_.get(), EPOLLIN,
                             [raw = made.get()](uint32_t) { raw->on_readable(); });
  if (!watch) return watch.error();
  made->watch_ = *watch;
  return made;
}

Handover::~Handover() {
  control_.unwatch(watch_);
}

void Handover::on_readable() noexcept {
  auto passed = receive();
  if (!passed && passed.error() == Errc::again) return;
  end(std::move(passed));
}

Result<Handover::Passed> Handover::receive() noexcept {
  nic::Packet packet;
  if (const Status s = nic::receive_packet(porter_.get(), packet, nic::Expect::anything); !s)
    return s.error();
  const auto note = wire::decode_porter_note(packet.view());
  if (!note.ok() || packet.fd_count != 1) return Errc::protocol;
  Passed passed;
  passed.socket = ParentOnlyFd(std::move(packet.fds[0]));
  const int fd = passed.socket.get();
  passed.remote = nic::remote_address(fd);
  // who is on this host has a name here, which says what his port is
  if (!is_tcp(fd) || nic::local_address(fd).ip != local_.ip || passed.remote.is_any_ip() ||
      is_of_this_host(passed.remote)) {
    return Errc::protocol;
  }
  passed.remote.port = note.value().from.unchecked();  // told, and not proved
  end_when_silent(fd);
  return passed;
}

// The last thing done: whoever is told may destroy this.
void Handover::end(Result<Passed> passed) noexcept {
  assert(on_end_);
  control_.unwatch(std::exchange(watch_, 0));
  const OnEnd tell = std::move(on_end_);
  tell(std::move(passed));
}

}  // namespace aperture::cm
