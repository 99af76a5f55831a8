// Having the post, and passing connections on: see porter.hpp.
#include "cm/porter.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/settings.hpp"
#include "cm/ports.hpp"
#include "nic/host_identity.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm {

namespace {

constexpr int kMostWaiting = 4096;  // processes that want the post
constexpr uint64_t kHelloNs = 5'000'000'000;
// The post is tried for again after as long, twice as long each time: who has just taken it does
// not listen yet; who holds the name and means no good costs little.
constexpr uint64_t kSoonNs = 10'000'000;
constexpr uint64_t kLaterNs = 1'000'000'000;  // the most; at once, without descriptors or memory
// The last porter's socket may go after his name. If it does not, it is somebody else's.
constexpr uint64_t kPortNs = 100'000'000;
constexpr int kPortTries = 20;

UniqueFd open_unix() noexcept {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

socklen_t post_name(const Address& at, sockaddr_un& out) noexcept {
  std::memset(&out, 0, sizeof out);
  out.sun_family = AF_UNIX;
  const int n = std::snprintf(out.sun_path + 1, sizeof out.sun_path - 1,
                              "aperture/rdma_cm/porter/%s", at.print().c_str());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
}

}  // namespace

uint16_t porter_port() noexcept {
  const uint64_t said = setting_number("APERTURE_CM_PORT");
  return said >= 1 && said <= 65535 ? static_cast<uint16_t>(said) : kPorterPort;
}

// ---- the post -----------------------------------------------------------------------------------

Porter::~Porter() {
  control_.cancel_timer(again_timer_);
  leave();
}

// Whoever waits for the post has it next: those who come to the door have to come again.
void Porter::leave() noexcept {
  control_.cancel_timer(std::exchange(resume_timer_, 0));
  control_.cancel_timer(std::exchange(deadline_timer_, 0));
  while (!arrivals_.empty()) drop(arrivals_.begin());
  control_.unwatch(std::exchange(door_watch_, 0));
  control_.unwatch(std::exchange(line_watch_, 0));
  door_.reset();  // before the name that says it is free
  post_.reset();
  line_.reset();
  assert(!post_ && !door_ && arrivals_.empty());
}

void Porter::apply() noexcept {
  if (again_timer_ != 0 || line_ || door_) return;
  if (post_) return serve();  // what had the TCP port may be gone
  Status status = take_post();
  if (status.ok()) return serve();
  if (status.error() == Errc::addr_in_use) status = wait_for_post();
  switch (status.error()) {
    case Errc::ok: return;
    case Errc::refused: return apply_again(kSoonNs << std::min(vain_++, 7));
    case Errc::again:
    case Errc::no_fds:
    case Errc::no_memory: return apply_again(kLaterNs);
    default:
      APERTURE_WARN("rdma_cm: other hosts do not reach ids at %s: %s", at_.print().c_str(),
                    describe(status.error()));
  }
}

void Porter::apply_again(uint64_t in_ns) noexcept {
  assert(again_timer_ == 0);
  again_timer_ = control_.add_timer(now_ns() + std::min(in_ns, kLaterNs), [this] {
    again_timer_ = 0;
    apply();
  });
}

// Errors: addr_in_use (somebody is porter), and those of a socket.
Status Porter::take_post() noexcept {
  Descriptor fd(move_high(open_unix()));
  if (!fd) return errc_from_errno(errno);
  sockaddr_un sa;
  const socklen_t len = post_name(at_, sa);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&sa), len) != 0 ||
      ::listen(fd.get(), kMostWaiting) != 0) {
    return errc_from_errno(errno);
  }
  post_ = std::move(fd);
  tries_ = vain_ = 0;
  return {};
}

// Nobody accepts it, and nothing is said over it: it ends with the porter.
Status Porter::wait_for_post() noexcept {
  Descriptor fd(move_high(open_unix()));
  if (!fd) return errc_from_errno(errno);
  sockaddr_un sa;
  const socklen_t len = post_name(at_, sa);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&sa), len) != 0) {
    return errc_from_errno(errno);
  }
  if (!is_root_or_us(fd.get()) && !std::exchange(told_, true)) {
    APERTURE_WARN(
        "rdma_cm: the porter at %s is another user's: other hosts do not reach the ids of this "
        "process while he is, since it takes connections from root's and its own user's alone; "
        "let root's processes listen first, or set APERTURE_CM_PORT on all hosts",
        at_.print().c_str());
  }
  auto watch = control_.watch(fd.get(), EPOLLRDHUP, [this](uint32_t) { on_line_ended(); });
  if (!watch) return watch.error();
  line_ = std::move(fd);
  line_watch_ = *watch;
  line_since_ns_ = now_ns();
  return {};
}

// Who lets go of us at once is tried again as who does not listen.
void Porter::on_line_ended() noexcept {
  assert(line_ && again_timer_ == 0);
  control_.unwatch(std::exchange(line_watch_, 0));
  line_.reset();
  if (now_ns() - line_since_ns_ >= kLaterNs) vain_ = 0;
  if (vain_ == 0) {
    ++vain_;
    return apply();
  }
  apply_again(kSoonNs << std::min(vain_++, 7));
}

void Porter::serve() noexcept {
  assert(post_ && !door_ && again_timer_ == 0);
  Address bound;
  auto door = nic::listen_tcp(at_, bound);
  if (!door && door.error() == Errc::addr_in_use && ++tries_ < kPortTries) {
    return apply_again(kPortNs);
  }
  if (!door && (door.error() == Errc::no_fds || door.error() == Errc::no_memory)) {
    return apply_again(kLaterNs);
  }
  if (!door) {
    APERTURE_WARN(
        "rdma_cm: other hosts do not reach ids at this address: TCP port %s cannot be had: %s; set "
        "APERTURE_CM_PORT, the same on all hosts, to one that is free",
        at_.print().c_str(), describe(door.error()));
    return;
  }
  auto watch = control_.watch(door->get(), EPOLLIN, [this](uint32_t) { on_arrivals(); });
  if (!watch) return apply_again(kLaterNs);
  door_ = *std::move(door);
  door_watch_ = *watch;
  APERTURE_DEBUG("rdma_cm: porter for other hosts at %s", at_.print().c_str());
}

// ---- the door -----------------------------------------------------------------------------------

void Porter::on_arrivals() noexcept {
  for (int i = 0; i < nic::kAcceptsAtOnce; ++i) {
    auto socket = nic::accept_one(door_.get());
    if (socket) {
      admit(*std::move(socket));
      continue;
    }
    if (socket.error() == Errc::again) return;
    if (!arrivals_.empty()) drop(arrivals_.begin());
    return pause();
  }
}

void Porter::pause() noexcept {
  if (resume_timer_ != 0) return;
  control_.rewatch(door_watch_, 0);
  resume_timer_ = control_.add_timer(now_ns() + nic::kNoDescriptorPauseNs, [this] {
    resume_timer_ = 0;
    control_.rewatch(door_watch_, EPOLLIN);
  });
}

void Porter::admit(Descriptor socket) noexcept {
  while (arrivals_.size() >= kMostArrivals) drop(arrivals_.begin());
  const Status kept = no_throw([&] {
    arrivals_.push_back({});
    arrivals_.back().socket = std::move(socket);
  });
  if (!kept) return;  // who connects is turned away, as beyond the number
  const auto at = std::prev(arrivals_.end());
  at->deadline_ns = now_ns() + kHelloNs;
  auto watch = control_.watch(at->socket.get(), EPOLLIN, [this, at](uint32_t) { on_readable(at); });
  if (!watch) return drop(at);
  at->watch = *watch;
  assert(arrivals_.size() <= kMostArrivals);
  set_timer();
}

void Porter::drop(Arrivals::iterator at) noexcept {
  assert(!arrivals_.empty());
  control_.unwatch(at->watch);
  arrivals_.erase(at);
}

void Porter::on_readable(Arrivals::iterator at) noexcept {
  const Status s = nic::receive_bytes(at->socket.get(), at->hello, at->got);
  if (s.error() == Errc::again) return;
  if (s.ok()) {
    assert(at->got == at->hello.size());
    const auto hello = wire::decode_porter_hello(at->hello);
    if (hello.ok()) deliver(*at, hello.value());
  }
  drop(at);
}

// To who listens there, if anybody does. The answer that it is taken is his.
void Porter::deliver(const Arrival& arrival, const wire::PorterHello& hello) noexcept {
  Address to = at_;
  to.port = hello.port;
  auto id = connect_to_name({static_cast<PortSpace>(hello.space), to});
  Status status = id.error();
  if (id) {
    const wire::PorterBytes note = wire::encode(wire::PorterNote{hello.from});
    const int fd = arrival.socket.get();
    status = nic::send_packet(id->get(), note, {&fd, 1});
  }
  if (status.ok()) return;
  wire::PorterAnswer answer;
  answer.verdict = status.error() == Errc::refused || status.error() == Errc::peer_lost
                       ? wire::PorterVerdict::nobody
                       : wire::PorterVerdict::busy;
  // a stranger who does not hear it is told by the end of the connection
  [[maybe_unused]] const Status said = nic::send_bytes(arrival.socket.get(), wire::encode(answer));
}

void Porter::set_timer() noexcept {
  if (deadline_timer_ != 0 || arrivals_.empty()) return;
  deadline_timer_ = control_.add_timer(arrivals_.front().deadline_ns, [this] { on_deadline(); });
}

void Porter::on_deadline() noexcept {
  deadline_timer_ = 0;
  const uint64_t now = now_ns();
  while (!arrivals_.empty() && arrivals_.front().deadline_ns <= now) drop(arrivals_.begin());
  set_timer();
}

// ---- those of this process ----------------------------------------------------------------------

Result<std::shared_ptr<Porters>> Porters::open(nic::ControlThread& control) noexcept {
  // the control thread's own, until the process ends; in a forked child begun anew
  alignas(std::weak_ptr<Porters>) static std::byte place[sizeof(std::weak_ptr<Porters>)];
  static auto& now = *new (place) std::weak_ptr<Porters>;
  std::shared_ptr<Porters> porters = now.lock();
  if (porters == nullptr || &porters->control_ != &control) {
    const Status made = no_throw([&] {
      porters.reset(new Porters(control));
      for (Address at : nic::host_addresses()) {
        if (!nic::serves_other_hosts(at)) continue;
        at.port = porter_port();
        porters->all_.push_back(std::make_unique<Porter>(control, at));
      }
      now = porters;
    });
    if (!made) return made.error();
  }
  for (const auto& porter : porters->all_) porter->apply();
  return porters;
}

}  // namespace aperture::cm
