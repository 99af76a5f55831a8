// The entry points of first contact, and the end of a peer: see first_contact.hpp.
#include "nic/first_contact.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <new>

#include "base/doorbell.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"
#include "nic/meeting_directory.hpp"

namespace aperture::nic {

namespace {

// The same file, opened anew for reading only: who gets this descriptor cannot write through it.
UniqueFd open_read_only(int fd) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return move_high(UniqueFd(::open(path, O_RDONLY | O_CLOEXEC)));
}

// Half-open connections hold up to two descriptors each: at most a quarter of what we may have.
size_t most_handshakes() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 8, 16, 1024));
}

}  // namespace

Result<Contact*> Contact::instance() noexcept {
  static constinit PerProcess<Contact> the_one;
  return the_one.get([]() -> Result<Contact*> {
    auto created = FirstContact::create();
    if (!created) return created.error();
    return *created;
  });
}

Result<FirstContact*> FirstContact::create() noexcept {
  auto control = ControlThread::instance();
  if (!control) return control.error();
  auto self = Identity::read();
  if (!self) return self.error();
  if (!self->streams_only) self->meeting = MeetingDirectory::by_setting(self->boot_id);
  auto keys = protect::KeyTable::create();
  if (!keys) return keys.error();
  (*control)->run([&] { (*keys)->end_with_this_thread(); });
  UniqueFd read_only =
      open_read_only((*keys)->own_file().fd());  // without it peers go without our keys
  auto* made = new (std::nothrow)
      FirstContact(**control, *std::move(keys), std::move(read_only), self.value());
  if (made == nullptr) return Errc::no_memory;
  return made;
}

FirstContact::FirstContact(ControlThread& control, std::unique_ptr<protect::KeyTable> keys,
                           UniqueFd keys_read_only, const Identity& self) noexcept
    : control_(control),
      keys_(std::move(keys)),
      keys_read_only_(std::move(keys_read_only)),
      self_(self),
      connecting_(control_, self_, connector_limits, listeners_, peers_, lanes_, owners_),
      accepting_({self_, listeners_, peers_, lanes_, connecting_, requests_, owners_}),
      listeners_(control_, accepting_, self_, listener_limits),
      silence_(control_, self_.heavy_barriers),
      peers_({control_, *this, accepting_, connecting_, self_, *keys_, keys_read_only_, shares_,
              silence_},
             listener_limits),
      lanes_(control_, listeners_),
      requests_(listeners_, lanes_) {
  listener_limits.handshakes = most_handshakes();
  keys_->when_sparse([this] { control_.post([this] { give_back_keys(); }); });
}

// --- ends and ports ------------------------------------------------------------------------------

Result<ListenerId> FirstContact::listen(const ListenSpec& spec, Address& bound) noexcept {
  if (control_.life().is_over()) return Errc::not_supported;
  if (spec.events == nullptr) return Errc::invalid;
  if (spec.doorbell_fd < 0 && spec.what != ListenFor::requests) return Errc::invalid;
  Result<ListenerId> id = Errc::no_memory;
  Address where = spec.local;
  if (spec.beside != 0) {
    control_.run([&] { id = listeners_.add_key(spec, where); });
  } else if (spec.local.index != 0 || spec.at_open_port) {
    const bool of_contexts = spec.at_open_port && spec.what != ListenFor::requests;
    if (spec.what != ListenFor::lanes && !of_contexts) return Errc::invalid;
    control_.run([&] { id = listeners_.add_at_port(spec); });
  } else {
    auto socket = listen_tcp(spec.local, where);
    if (!socket) return socket.error();
    control_.run([&] { id = listeners_.add(spec, where, *std::move(socket)); });
  }
  if (id.ok()) bound = where;
  return id;
}

void FirstContact::unlisten(ListenerId id) noexcept {
  control_.run([&] {
    const ListeningEnd* const listener = listeners_.find(id);
    if (listener == nullptr) return;
    connecting_.withdraw_all(id);
    requests_.refuse_all(*listener);
    lanes_.forget_end(id);
    assert(listeners_.find(id) == listener);
    listeners_.remove(id);
  });
}

void FirstContact::set_backlog(ListenerId id, size_t backlog) noexcept {
  control_.run([&] {
    ListeningEnd* const listener = listeners_.find(id);
    if (listener != nullptr) listener->backlog = backlog;
  });
}

Result<PortId> FirstContact::open_port(std::span<const Address> ips, uint16_t& port) noexcept {
  if (control_.life().is_over()) return Errc::not_supported;
  const bool any = std::any_of(ips.begin(), ips.end(), [](const auto& a) { return a.is_any_ip(); });
  if (ips.empty() || any) return Errc::invalid;  // who connects is told apart by where he came to
  uint16_t number = 0;
  auto sockets = listen_tcp_on_all(ips, number);
  if (!sockets) return sockets.error();
  Result<PortId> id = Errc::no_memory;
  control_.run(
      [&] { id = listeners_.open_port(Doorway::Kind::of_queue_pairs, *std::move(sockets)); });
  if (id.ok()) port = number;
  return id;
}

Result<PortId> FirstContact::open_context_port(const Address& at, Address& bound) noexcept {
  if (control_.life().is_over()) return Errc::not_supported;
  auto socket = listen_tcp(at, bound);
  if (!socket) return socket.error();
  std::vector<ParentOnlyFd> sockets;
  if (const Status s = no_throw([&] { sockets.push_back(*std::move(socket)); }); !s)
    return s.error();
  Result<PortId> id = Errc::no_memory;
  control_.run([&] { id = listeners_.open_port(Doorway::Kind::of_contexts, std::move(sockets)); });
  return id;
}

void FirstContact::close_port(PortId id) noexcept {
  control_.run([&] { listeners_.close_port(id); });
}

// --- connecting and answering --------------------------------------------------------------------

void FirstContact::connect(ListenerId id, const Address& remote, uint64_t within_ns) noexcept {
  control_.post([=, this] { connecting_.begin(id, remote, nullptr, within_ns); });
}

Status FirstContact::request(ListenerId id, const Address& remote,
                             const wire::PrivateData& data) noexcept {
  std::unique_ptr<wire::PrivateData> said(new (std::nothrow) wire::PrivateData(data));
  if (said == nullptr) return Errc::no_memory;
  control_.post(
      [this, id, remote, said = std::move(said)] { connecting_.begin(id, remote, said.get(), 0); });
  return {};
}

Status FirstContact::accept(RequestId request, const ListenSpec& spec,
                            const wire::PrivateData& data, ListenerId& id) noexcept {
  if (control_.life().is_over()) return Errc::not_supported;
  if (spec.events == nullptr || spec.doorbell_fd < 0) return Errc::invalid;
  Result<ListenerId> end = Errc::no_entry;
  control_.run([&] { end = requests_.accept(request, spec, data); });
  if (end.ok()) id = *end;
  return end.error();
}

void FirstContact::refuse(RequestId request, const wire::PrivateData& data) noexcept {
  control_.run([&] { requests_.refuse(request, data); });
}

void FirstContact::keep_request(RequestId request) noexcept {
  control_.run([&] { requests_.keep(request); });
}

void FirstContact::close_lane(std::unique_ptr<link::Lane> lane) noexcept {
  link::Lane* raw = lane.release();  // in a forked child nothing of it is there to be unmapped
  if (raw == nullptr || control_.life().is_over()) return;
  control_.post([this, raw] { lanes_.close(std::unique_ptr<link::Lane>(raw)); });
}

FirstContact::Census FirstContact::census() noexcept {
  Census c{};
  control_.run([&] {
    const auto [ends, doorways, handshakes] = listeners_.count();
    const auto [peers, lanes, resting] = peers_.count();
    c = {ends, handshakes, connecting_.size(), peers, lanes, resting, requests_.size(), doorways};
  });
  return c;
}

// --- what becomes of peers -----------------------------------------------------------------------

void FirstContact::on_lane_closed(PeerLane& lane) noexcept {
  assert(control_.is_current());
  lanes_.down(lane, Errc::shut_down);
}

void FirstContact::on_rung(Peer& peer) noexcept {
  for (const auto& [key, lane] : peer.lanes()) {
    if (lane->lane == nullptr) continue;
    const ListeningEnd* const listener = listeners_.find(lane->listener);
    if (listener != nullptr) ring_doorbell(listener->end.doorbell_fd);
  }
}

void FirstContact::on_peer_down(Peer& peer, Errc why) noexcept {
  assert(control_.is_current() && why != Errc::ok);
  peers_.remove(peer);
  const Errc told = why == Errc::protocol ? Errc::protocol : Errc::peer_lost;
  for (const auto& [key, lane] : peer.lanes()) lanes_.down(*lane, told);
  requests_.peer_down(peer);
  accepting_.peer_down(peer);
  connecting_.peer_down(peer, told);
}

// --- memory of keys that are closed --------------------------------------------------------------

void FirstContact::on_detached() noexcept {
  give_back_keys();
}

// Peers come on this thread, and so find the one file or the other.
void FirstContact::give_back_keys() noexcept {
  if (!keys_->may_give_back()) return;
  auto other = keys_->own_file().make_another();
  if (!other) return;
  UniqueFd read_only = open_read_only(other->fd.get());
  if (!read_only || !keys_->give_back(*other)) return;
  keys_read_only_ = std::move(read_only);
}

}  // namespace aperture::nic
