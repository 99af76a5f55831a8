// Handshakes at a port: see doorway.hpp.
#include "nic/doorway.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cassert>
#include <iterator>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/random.hpp"
#include "nic/host_identity.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

Doorway::Doorway(ControlThread& control, DoorwayHost& host, const Identity& self, DoorwayId id,
                 Kind kind, std::vector<ParentOnlyFd> sockets, const Limits& limits)
    : control_(control), host_(host), self_(self), id_(id), kind_(kind), limits_(limits) {
  for (ParentOnlyFd& socket : sockets) {
    const Address address = local_address(socket.get());
    doors_.push_back({std::move(socket), address, 0});
  }
}

Doorway::~Doorway() {
  for (const Door& door : doors_) control_.unwatch(door.watch);
  control_.cancel_timer(resume_timer_);
  control_.cancel_timer(deadline_timer_);
  for (auto& [ticket, handshake] : handshakes_) end_in_silence(*handshake);
}

Status Doorway::start() noexcept {
  for (Door& door : doors_) {
    if (door.address.port == 0) return Errc::no_memory;  // the kernel has not told where it is
    auto watch =
        control_.watch(door.socket.get(), EPOLLIN, [this, &door](uint32_t) { on_arrivals(door); });
    if (!watch) return watch.error();
    door.watch = watch.value();
  }
  return {};
}

// --- ends ----------------------------------------------------------------------------------------

bool Doorway::is_at(const Address& address) const noexcept {
  return std::any_of(doors_.begin(), doors_.end(), [&](const Door& door) {
    return door.address.port == address.port &&
           (address.is_any_ip() || door.address.ip == address.ip);
  });
}

Status Doorway::add_end(ListeningEnd& end) noexcept {
  assert(is_for(end.end.address));
  const auto other = ends_.find(end.end.address.index);
  if (other != ends_.end() && end.spec.beside == 0) return Errc::addr_in_use;
  return no_throw([&] { ends_.emplace(end.end.address.index, &end); });
}

void Doorway::remove_end(const ListeningEnd& end) noexcept {
  if (std::erase_if(ends_, [&](const auto& entry) { return entry.second == &end; }) == 0) return;
  std::erase_if(handshakes_, [&](auto& entry) {
    if (entry.second->offered_to != end.end.listener) return false;
    end_in_silence(*entry.second);
    return true;
  });
}

// --- handshakes ----------------------------------------------------------------------------------

void Doorway::on_arrivals(const Door& door) noexcept {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto tcp = accept_one(door.socket.get());
    if (tcp) {
      if (is_served(tcp->get())) {
        admit(*std::move(tcp));
      } else {
        close_without_waiting(tcp->get());
      }
      continue;
    }
    if (tcp.error() == Errc::again) return;
    // out of descriptors or memory: a half-open connection is worth least
    make_room_for(kNobody);
    return pause_accepting();
  }
}

// Whether who has connected may say hello.
bool Doorway::is_served(int tcp) const noexcept {
  if (kind_ != Kind::of_queue_pairs) return true;
  const Address from = remote_address(tcp), to = local_address(tcp);
  if (is_within_host(to, from) || serves_other_hosts(to)) return true;
  APERTURE_INFO(
      "%s of another host connected to queue pairs at %s, which serve this host alone there: the "
      "connection is closed; FI_APERTURE_IFACE names an interface where other hosts are served",
      from.print().c_str(), to.print().c_str());
  return false;
}

void Doorway::pause_accepting() noexcept {
  if (resume_timer_ != 0) return;
  for (const Door& door : doors_) control_.rewatch(door.watch, 0);
  resume_timer_ = control_.add_timer(now_ns() + kNoDescriptorPauseNs, [this] {
    resume_timer_ = 0;
    for (const Door& door : doors_) control_.rewatch(door.watch, EPOLLIN);
  });
}

// Ends the oldest handshake of the user who would have most of them with one more of this one's;
// of two who would have as many, of this one.
void Doorway::make_room_for(Holder user) noexcept {
  auto most = by_user_.end();
  const auto would_have = [&](auto of) { return of->second + (of->first == user ? 1 : 0); };
  for (auto of = by_user_.begin(); of != by_user_.end(); ++of) {
    if (most == by_user_.end() || would_have(of) > would_have(most) ||
        (would_have(of) == would_have(most) && of->first == user)) {
      most = of;
    }
  }
  for (const auto& [ticket, handshake] : handshakes_) {
    if (handshake->user.at->first == most->first) return drop(ticket);
  }
}

void Doorway::admit(ParentOnlyFd tcp) noexcept {
  const Holder user = host_.holder_of(remote_address(tcp.get()), local_address(tcp.get()));
  while (handshakes_.size() >= limits_.handshakes) make_room_for(user);
  const uint64_t ticket = uint64_t{id_} << 32 | next_ticket_++;
  const Status admitted = no_throw([&] {
    auto made = std::make_unique<Handshake>(by_user_, user);
    Handshake& handshake = *made;
    handshake.ticket = ticket;
    handshake.tcp = std::move(tcp);
    handshake.deadline_ns = now_ns() + limits_.timeout_ns;
    handshakes_.emplace(ticket, std::move(made));
    auto watch =
        control_.watch(handshake.tcp.get(), EPOLLIN, [this, ticket](uint32_t) { on_tcp(ticket); });
    if (watch) handshake.tcp_watch = watch.value();
    return Status(watch.error());
  });
  if (!admitted) return drop(ticket);  // it may try again
  assert(handshakes_.size() <= limits_.handshakes);
  set_timer();
  on_tcp(ticket);  // the hello is often there already
}

void Doorway::on_tcp(uint64_t ticket) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  Handshake& h = *it->second;
  if (h.offered_to != 0) {
    // nothing more is said here: bytes are rubbish, and an end means that it has been given up
    assert(h.tcp);
    return drop(ticket);
  }
  const Status s = receive_bytes(h.tcp.get(), h.bytes, h.got);
  if (!s && s.error() != Errc::again) return drop(ticket);
  const std::span<const std::byte> so_far(h.bytes.data(), h.got);
  if (!wire::may_become_hello(so_far)) return drop(ticket);
  if (s.ok() || wire::is_of_another_version(so_far)) on_hello(h);
}

void Doorway::on_hello(Handshake& h) noexcept {
  wire::Answer reply;
  if (wire::is_of_another_version(h.bytes)) {
    reply.verdict = wire::Verdict::wrong_version;
    return answer(h, reply);
  }
  const auto hello = wire::decode_hello(h.bytes);
  if (!hello) return drop(h.ticket);
  h.hello = hello.value();
  ListenerId end = 0;
  reply.verdict = consider(h, end);
  if (reply.verdict == wire::Verdict::offered) {
    h.offered_to = end;
    if (!self_.same_host(h.hello.boot_id, h.hello.net_ns)) {
      if (!meet(h, reply)) return stay(h, reply);
    } else if (!open_side_door(h, reply)) {
      reply = {};
      reply.verdict = wire::Verdict::busy;
    }
  }
  answer(h, reply);
}

// Whether a hello gets an offer, and from whom: it has to name the address that its connection came
// to, and an end there.
wire::Verdict Doorway::consider(const Handshake& h, ListenerId& end) noexcept {
  const wire::Hello& hello = h.hello;
  const Address& to = hello.destination;
  if (!is_for(to) || !is_for(hello.source)) return wire::Verdict::wrong_destination;
  Address came_to = local_address(h.tcp.get());
  came_to.index = to.index;
  if (to != came_to) return wire::Verdict::wrong_destination;
  ListeningEnd* const here = end_for(hello);
  if (here == nullptr) {
    return kind_ == Kind::of_one ? wire::Verdict::wrong_destination : wire::Verdict::not_yet;
  }
  end = here->end.listener;
  return host_.validate(*here, hello, h.user.at->first);
}

// Of several keys the one that is meant; whoever means none of them is refused when he has to prove
// that he holds it.
ListeningEnd* Doorway::end_for(const wire::Hello& hello) const noexcept {
  const auto [first, last] = ends_.equal_range(hello.destination.index);
  if (first == last) return nullptr;
  const Address& at = first->second->end.address;  // of all of them
  if (!at.is_any_ip() && at.ip != hello.destination.ip) return nullptr;
  for (auto it = first; std::next(first) != last && it != last; ++it) {
    if (tag_of(it->second->end.auth_key.get(), hello.nonce) == hello.key_tag) return it->second;
  }
  return first->second;
}

ListeningEnd* Doorway::end_at(const Address& destination) const noexcept {
  if (destination.is_any_ip() || !is_at(destination) || !is_for(destination)) return nullptr;
  wire::Hello hello;
  hello.destination = destination;
  return end_for(hello);
}

// Whether it is asked to the directory that both have. It has to come from its own address, as from
// another host: no port of that network namespace can be asked for its user.
bool Doorway::meet(Handshake& h, wire::Answer& reply) noexcept {
  const wire::Hello& hello = h.hello;
  const Address from = remote_address(h.tcp.get()), to = local_address(h.tcp.get());
  if (!self_.same_kernel(hello.boot_id, hello.net_ns)) return false;
  if (from.ip != hello.source.ip || is_within_host(to, from)) return false;
  const char* why = nullptr;
  if (self_.meeting != nullptr) {
    why = hello.meeting_tag == wire::KeyTag{} ? "it has no directory in APERTURE_SHARE to meet in"
                                              : "its APERTURE_SHARE is another directory than ours";
    if (hello.meeting_tag == self_.meeting->tag(hello.nonce)) {
      reply.verdict = wire::Verdict::meets;
      const Status opened = open_side_door(h, reply);
      h.meets = opened.ok();
      if (h.meets) return true;
      close_side_door(h);
      reply = {};
      why = describe(opened.error());
    }
  }
  explain_not_met(hello.source, why);
  return false;
}

// No memory is shared: the connection goes on as a peer's, and what remains here is the ticket.
void Doorway::stay(Handshake& h, wire::Answer& reply) noexcept {
  reply.verdict = wire::Verdict::stays;
  hand_out_ticket(h, reply);
  const uint64_t ticket = h.ticket;
  answer(h, reply);
  if (!handshakes_.contains(ticket)) return;  // it is gone already
  control_.unwatch(h.tcp_watch);
  h.tcp_watch = 0;
  const std::shared_ptr<Peer> guest =
      host_.on_stays(h.hello, ticket, std::move(h.tcp), h.user.at->first);
  if (guest == nullptr) return drop(ticket);
  h.guest = guest;
}

// The answer that was decided; a handshake without an offer ends with it.
void Doorway::answer(Handshake& h, wire::Answer& reply) noexcept {
  reply.boot_id = self_.boot_id;
  reply.net_ns = self_.net_ns;
  reply.incarnation = self_.incarnation;
  const Status sent = send_bytes(h.tcp.get(), wire::encode(reply));
  const bool offers = reply.verdict == wire::Verdict::offered ||
                      reply.verdict == wire::Verdict::meets ||
                      reply.verdict == wire::Verdict::stays;
  if (!sent || !offers) drop(h.ticket);
}

void Doorway::hand_out_ticket(Handshake& h, wire::Answer& reply) noexcept {
  random_bytes(h.nonce.data(), h.nonce.size());
  reply.nonce = h.nonce;
  reply.ticket = h.ticket;
}

Status Doorway::open_side_door(Handshake& h, wire::Answer& reply) noexcept {
  random_bytes(reply.socket_name.data(), reply.socket_name.size());
  if (Status s = listen_at_side_door(h, reply); !s) return s;
  const uint64_t ticket = h.ticket;
  auto watch = control_.watch(h.side_door.get(), EPOLLIN,
                              [this, ticket](uint32_t) { on_side_door(ticket); });
  if (!watch) return watch.error();
  h.side_door_watch = watch.value();
  hand_out_ticket(h, reply);
  return {};
}

Status Doorway::listen_at_side_door(Handshake& h, const wire::Answer& reply) noexcept {
  assert(!h.side_door);
  if (reply.verdict == wire::Verdict::meets) {
    auto door = self_.meeting->listen(reply.socket_name);
    if (!door) return door.error();
    h.side_door = std::move(door->socket);
    h.side_door_name = std::move(door->name);
    return {};
  }
  auto side_door = listen_abstract(reply.socket_name);
  if (!side_door) return side_door.error();
  h.side_door = *std::move(side_door);
  return {};
}

void Doorway::on_side_door(uint64_t ticket) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  Handshake& h = *it->second;
  auto socket = accept_one(h.side_door.get());
  if (!socket) {
    if (socket.error() != Errc::again) drop(ticket);  // no descriptors: it may try again
    return;
  }
  // who does not say Join is no reason to hold more
  if (h.knocks.size() == kMaxKnocks) return close_stranger(*std::move(socket));
  // without memory it is not let in, and may try again
  static_cast<void>(no_throw([&] {
    h.knocks.reserve(kMaxKnocks);
    auto knock = std::make_unique<Knock>();
    Knock* raw = knock.get();
    knock->socket = *std::move(socket);
    auto watch = control_.watch(knock->socket.get(), EPOLLIN,
                                [this, ticket, raw](uint32_t) { on_knock(ticket, raw); });
    if (!watch) return;
    knock->watch = watch.value();
    h.knocks.push_back(std::move(knock));
  }));
}

void Doorway::on_knock(uint64_t ticket, Knock* knock) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  Handshake& h = *it->second;
  Packet packet;
  const Status s = receive_packet(knock->socket.get(), packet);
  if (s.error() == Errc::again) return;
  const auto join = s.ok() ? wire::decode_join(packet.view()) : Result<wire::Join>(s.error());
  const auto who = peer_credentials(knock->socket.get());
  const bool welcome = join.ok() && who.ok() && join.value().incarnation == h.hello.incarnation &&
                       !self_.is_passed_for(join.value().incarnation, who.value().pid) &&
                       wire::equal_in_constant_time(join.value().nonce, h.nonce);
  control_.unwatch(knock->watch);
  ParentOnlyFd socket = std::move(knock->socket);
  std::erase_if(h.knocks, [&](const auto& k) { return k.get() == knock; });
  if (!welcome) return close_stranger(std::move(socket));
  // the nonce has let its process in; what remains of it is the ticket for Open
  close_side_door(h);
  const wire::Hello hello = h.hello;
  host_.on_joined(hello, join.value(), std::move(socket), who.value());
}

void Doorway::close_side_door(Handshake& h) noexcept {
  control_.unwatch(h.side_door_watch);
  h.side_door_watch = 0;
  close_listening(std::move(h.side_door));
  h.side_door_name.reset();
  for (auto& knock : h.knocks) {
    control_.unwatch(knock->watch);
    close_stranger(std::move(knock->socket));
  }
  h.knocks.clear();
}

Doorway::UsedTicket Doorway::take_ticket(const wire::Open& open,
                                         const wire::Id128& incarnation) noexcept {
  const auto it = handshakes_.find(open.ticket.unchecked());
  if (it == handshakes_.end()) return {};
  Handshake& h = *it->second;
  if (h.offered_to == 0 || !wire::equal_in_constant_time(open.nonce, h.nonce)) return {};
  if (h.hello.incarnation != incarnation || h.hello.source != open.source ||
      h.hello.destination != open.destination) {
    return {};
  }
  UsedTicket used;
  used.end = h.offered_to;
  used.statement = {{h.hello.nonce, incarnation, h.hello.source},
                    {h.nonce, self_.incarnation, h.hello.destination},
                    h.ticket};
  used.is_from_its_source = h.meets;
  end_in_silence(h);
  handshakes_.erase(it);
  set_timer();
  return used;
}

bool Doorway::has_ticket(ListenerId to, const Address& source) const noexcept {
  return std::any_of(handshakes_.begin(), handshakes_.end(), [&](const auto& entry) {
    return entry.second->offered_to == to && entry.second->hello.source == source;
  });
}

void Doorway::end_in_silence(Handshake& h) noexcept {
  control_.unwatch(h.tcp_watch);
  close_side_door(h);
}

void Doorway::drop(uint64_t ticket) noexcept {
  const auto it = handshakes_.find(ticket);
  if (it == handshakes_.end()) return;
  const std::unique_ptr<Handshake> h = std::move(it->second);
  handshakes_.erase(it);
  set_timer();
  end_in_silence(*h);
  if (const auto guest = h->guest.lock()) guest->go_down(Errc::timed_out);
  if (h->offered_to != 0) host_.on_ticket_lost(h->offered_to, h->hello);
}

void Doorway::set_timer() noexcept {
  if (handshakes_.empty()) {
    control_.cancel_timer(deadline_timer_);
    deadline_timer_ = 0;
    return;
  }
  if (deadline_timer_ != 0) return;
  deadline_timer_ = control_.add_timer(handshakes_.begin()->second->deadline_ns, [this] {
    deadline_timer_ = 0;
    on_timer();
  });
}

void Doorway::on_timer() noexcept {
  const uint64_t now = now_ns();
  while (!handshakes_.empty() && handshakes_.begin()->second->deadline_ns <= now) {
    drop(handshakes_.begin()->first);
  }
  set_timer();
}

}  // namespace aperture::nic
