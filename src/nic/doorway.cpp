// Handshakes at an endpoint's address: see listener.hpp.
#include "nic/listener.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/random.hpp"

namespace aperture::nic {

namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr uint64_t kPauseNs = 10'000'000;  // without descriptors, accept would fail again at once

}  // namespace

Listener::Listener(ControlThread& control, ListenerHost& host, const Identity& self,
                   const ListenSpec& spec, const LocalEnd& end, ParentOnlyFd socket,
                   const Limits& limits) noexcept
    : control_(control),
      host_(host),
      self_(self),
      spec_(spec),
      end_(end),
      limits_(limits),
      socket_(std::move(socket)) {}

Listener::~Listener() {
  control_.unwatch(watch_);
  control_.cancel_timer(resume_timer_);
  control_.cancel_timer(deadline_timer_);
  for (auto& [ticket, handshake] : handshakes_) {
    control_.unwatch(handshake->tcp_watch);
    close_door(*handshake);
  }
}

Status Listener::start() noexcept {
  backlog = spec_.backlog;
  if (!socket_) return {};
  auto watch = control_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { on_arrivals(); });
  if (!watch) return watch.error();
  watch_ = watch.value();
  return {};
}

void Listener::on_arrivals() noexcept {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto tcp = accept_one(socket_.get());
    if (tcp) {
      admit(*std::move(tcp));
      continue;
    }
    if (tcp.error() == Errc::again) return;
    // out of descriptors or memory: the oldest half-open connection is worth least
    if (!handshakes_.empty()) drop(handshakes_.begin()->first);
    return pause_accepting();
  }
}

void Listener::pause_accepting() noexcept {
  if (resume_timer_ != 0) return;
  control_.rewatch(watch_, 0);
  resume_timer_ = control_.add_timer(now_ns() + kPauseNs, [this] {
    resume_timer_ = 0;
    control_.rewatch(watch_, EPOLLIN);
  });
}

void Listener::admit(ParentOnlyFd tcp) noexcept {
  while (handshakes_.size() >= limits_.handshakes) drop(handshakes_.begin()->first);
  auto handshake = std::make_unique<Handshake>();
  const uint64_t ticket = uint64_t{end_.listener} << 32 | next_ticket_++;
  handshake->ticket = ticket;
  handshake->tcp = std::move(tcp);
  handshake->deadline_ns = now_ns() + limits_.timeout_ns;
  auto watch =
      control_.watch(handshake->tcp.get(), EPOLLIN, [this, ticket](uint32_t) { on_tcp(ticket); });
  if (!watch) return;
  handshake->tcp_watch = watch.value();
  handshakes_.emplace(ticket, std::move(handshake));
  set_timer();
  on_tcp(ticket);  // the hello is often there already
}

void Listener::on_tcp(uint64_t ticket) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  Handshake& h = *it->second;
  if (h.offered) {
    // nothing more is said here: bytes are rubbish, and an end means that it has been given up
    return drop(ticket);
  }
  const Status s = receive_bytes(h.tcp.get(), h.bytes, h.got);
  if (!s && s.error() != Errc::again) return drop(ticket);
  if (!wire::may_become_hello({h.bytes.data(), h.got})) return drop(ticket);
  if (s.ok()) on_hello(h);
}

void Listener::on_hello(Handshake& h) noexcept {
  const auto hello = wire::decode_hello(h.bytes);
  wire::Answer reply;
  if (!hello) {
    if (hello.error() != Errc::not_supported) return drop(h.ticket);
    reply.verdict = wire::Verdict::wrong_version;
    return answer(h, reply);
  }
  h.hello = hello.value();
  if (!names_us(h.hello.destination, h.tcp.get())) {
    reply.verdict = wire::Verdict::wrong_destination;
  } else if (!self_.same_host(h.hello.boot_id, h.hello.net_ns)) {
    reply.verdict = wire::Verdict::other_host;  // the TCP link will go on from here
    APERTURE_INFO(
        "%s on another host, or in another network namespace, wants to connect to %s: "
        "only peers on this host can be reached so far",
        h.hello.source.text().c_str(), end_.address.text().c_str());
  } else {
    reply.verdict = host_.judge(*this, h.hello);
  }
  if (reply.verdict == wire::Verdict::offered && !open_door(h, reply)) {
    reply = {};
    reply.verdict = wire::Verdict::busy;
  }
  answer(h, reply);
}

// The answer that was decided; a handshake without an offer ends with it.
void Listener::answer(Handshake& h, wire::Answer& reply) noexcept {
  reply.boot_id = self_.boot_id;
  reply.net_ns = self_.net_ns;
  reply.incarnation = self_.incarnation;
  const Status sent = send_bytes(h.tcp.get(), wire::encode(reply));
  if (!sent || reply.verdict != wire::Verdict::offered) drop(h.ticket);
}

// True if that is how this endpoint is called: by its own address, or, if it listens on every
// address of the host, by the one that the connection came to.
bool Listener::names_us(const Address& destination, int tcp_fd) const noexcept {
  if (destination.port != end_.address.port) return false;
  if (!end_.address.is_any_ip()) return destination == end_.address;
  return destination == local_address(tcp_fd);
}

Status Listener::open_door(Handshake& h, wire::Answer& reply) noexcept {
  random_bytes(h.nonce.data(), h.nonce.size());
  random_bytes(reply.socket_name.data(), reply.socket_name.size());
  auto door = listen_abstract(reply.socket_name);
  if (!door) return door.error();
  h.door = *std::move(door);
  const uint64_t ticket = h.ticket;
  auto watch = control_.watch(h.door.get(), EPOLLIN, [this, ticket](uint32_t) { on_door(ticket); });
  if (!watch) return watch.error();
  h.door_watch = watch.value();
  h.offered = true;
  reply.nonce = h.nonce;
  reply.ticket = ticket;
  return {};
}

void Listener::on_door(uint64_t ticket) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  Handshake& h = *it->second;
  auto socket = accept_one(h.door.get());
  if (!socket) {
    if (socket.error() != Errc::again) drop(ticket);  // no descriptors: it may try again
    return;
  }
  if (h.knocks.size() == kMaxKnocks) return;  // who does not say Join is no reason to hold more
  auto knock = std::make_unique<Knock>();
  Knock* raw = knock.get();
  knock->socket = *std::move(socket);
  auto watch = control_.watch(knock->socket.get(), EPOLLIN,
                              [this, ticket, raw](uint32_t) { on_knock(ticket, raw); });
  if (!watch) return;
  knock->watch = watch.value();
  h.knocks.push_back(std::move(knock));
}

void Listener::on_knock(uint64_t ticket, Knock* knock) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  Handshake& h = *it->second;
  Packet packet;
  const Status s = receive_packet(knock->socket.get(), packet);
  if (s.error() == Errc::again) return;
  const auto join = s.ok() ? wire::decode_join(packet.view()) : Result<wire::Join>(s.error());
  const auto who = peer_credentials(knock->socket.get());
  const bool welcome = join.ok() && who.ok() && join.value().incarnation == h.hello.incarnation &&
                       wire::equal_in_constant_time(join.value().nonce, h.nonce);
  control_.unwatch(knock->watch);
  ParentOnlyFd socket = std::move(knock->socket);
  std::erase_if(h.knocks, [&](const auto& k) { return k.get() == knock; });
  if (!welcome) return;
  close_door(h);  // the nonce has let its process in; what remains of it is the ticket for Open
  const wire::Hello hello = h.hello;
  host_.on_joined(*this, hello, join.value(), std::move(socket), who.value());
}

void Listener::close_door(Handshake& h) noexcept {
  control_.unwatch(h.door_watch);
  h.door_watch = 0;
  h.door.reset();
  for (auto& knock : h.knocks) control_.unwatch(knock->watch);
  h.knocks.clear();
}

bool Listener::take_ticket(const wire::Open& open, const wire::Id128& incarnation,
                           wire::Statement& statement) noexcept {
  const auto it = handshakes_.find(open.ticket.unchecked());
  if (it == handshakes_.end()) return false;
  Handshake& h = *it->second;
  if (!h.offered || !wire::equal_in_constant_time(open.nonce, h.nonce)) return false;
  if (h.hello.incarnation != incarnation || h.hello.source != open.source ||
      h.hello.destination != open.destination) {
    return false;
  }
  statement = {{h.hello.nonce, incarnation, h.hello.source},
               {h.nonce, self_.incarnation, h.hello.destination},
               h.ticket};
  control_.unwatch(h.tcp_watch);
  close_door(h);
  handshakes_.erase(it);
  return true;
}

bool Listener::has_ticket_from(const Address& source) const noexcept {
  return std::any_of(handshakes_.begin(), handshakes_.end(), [&](const auto& entry) {
    return entry.second->offered && entry.second->hello.source == source;
  });
}

void Listener::drop_tickets_from(const Address& source) noexcept {
  std::vector<uint64_t> tickets;
  for (const auto& [ticket, h] : handshakes_) {
    if (h->offered && h->hello.source == source) tickets.push_back(ticket);
  }
  for (const uint64_t ticket : tickets) drop(ticket);
}

void Listener::drop(uint64_t ticket) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  const std::unique_ptr<Handshake> h = std::move(it->second);
  handshakes_.erase(it);
  control_.unwatch(h->tcp_watch);
  close_door(*h);
  if (h->offered) host_.on_ticket_lost(*this, h->hello);
}

void Listener::set_timer() noexcept {
  if (deadline_timer_ != 0 || handshakes_.empty()) return;
  deadline_timer_ = control_.add_timer(handshakes_.begin()->second->deadline_ns, [this] {
    deadline_timer_ = 0;
    on_timer();
  });
}

void Listener::on_timer() noexcept {
  const uint64_t now = now_ns();
  while (!handshakes_.empty() && handshakes_.begin()->second->deadline_ns <= now) {
    drop(handshakes_.begin()->first);
  }
  set_timer();
}

}  // namespace aperture::nic
