// The entry points of first contact, its listeners and its watch: see first_contact.hpp.
#include "nic/contact.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <new>

#include "base/clock.hpp"
#include "nic/first_contact.hpp"

namespace aperture::nic {

namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kWatchPendingNs = 1 * kMs;  // somebody waits for a peer
constexpr uint64_t kWatchRecentNs = 4 * kMs;   // somebody did within the last second
constexpr uint64_t kWatchIdleNs = 20 * kMs;
constexpr uint64_t kRecentNs = 1000 * kMs;
constexpr uint64_t kWatchShare = 20;  // the watch takes at most 1/20 of the thread's time
constexpr uint64_t kDetachAgainNs = 5 * kMs;
constexpr uint64_t kLongestConnectNs = 1'000'000'000'000'000;  // a number that a clock can bear

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
  static constinit std::mutex mutex;       // has nothing to destroy: used until the process ends
  static FirstContact* the_one = nullptr;  // guarded by mutex
  if (in_forked_child()) return Errc::not_supported;
  const std::lock_guard guard(mutex);
  if (the_one == nullptr) {
    auto created = FirstContact::create();
    if (!created) return created.error();
    the_one = *created;
  }
  return the_one;
}

Result<FirstContact*> FirstContact::create() noexcept {
  auto control = ControlThread::instance();
  if (!control) return control.error();
  auto self = Identity::read();
  if (!self) return self.error();
  auto keys = protect::KeyTable::create();
  if (!keys) return keys.error();
  UniqueFd read_only = open_read_only((*keys)->fd());  // without it peers go without our keys
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
      peer_context_{control_, *this, self_, *keys_, keys_read_only_} {
  listener_limits.handshakes = most_handshakes();
}

// --- entry points --------------------------------------------------------------------------------

Result<ListenerId> FirstContact::listen(const ListenSpec& spec, Address& bound) noexcept {
  if (in_forked_child()) return Errc::not_supported;
  if (spec.events == nullptr) return Errc::invalid;
  if (spec.doorbell_fd < 0 && spec.what != ListenFor::requests) return Errc::invalid;
  ListenerId id = 0;
  Status status;
  if (spec.local.index != 0) {
    control_.run([&] { status = listen_at_port(spec, id); });
    if (!status) return status.error();
    bound = spec.local;
    return id;
  }
  Address where;
  auto socket = listen_tcp(spec.local, where);
  if (!socket) return socket.error();
  std::vector<ParentOnlyFd> sockets;
  sockets.push_back(*std::move(socket));
  control_.run([&] {
    auto doorway = new_doorway(Doorway::Kind::of_one, std::move(sockets));
    status = doorway.error();
    if (!doorway) return;
    id = next_listener_++;
    status = add_listener(spec, id, where, *std::move(doorway));
  });
  if (!status) return status.error();
  bound = where;
  return id;
}

void FirstContact::unlisten(ListenerId id) noexcept {
  control_.run([&] { remove_listener(id); });
}

void FirstContact::connect(ListenerId id, const Address& remote, uint64_t within_ns) noexcept {
  control_.post([=, this] { begin_connect(id, remote, nullptr, within_ns); });
}

void FirstContact::close_lane(std::unique_ptr<link::Lane> lane) noexcept {
  link::Lane* raw = lane.release();  // in a forked child nothing of it is there to be unmapped
  if (raw == nullptr || in_forked_child()) return;
  control_.post([this, raw] { close_now(std::unique_ptr<link::Lane>(raw)); });
}

FirstContact::Census FirstContact::census() noexcept {
  Census c{};
  control_.run([&] {
    c.listeners = listeners_.size();
    for (const auto& [id, weak] : doorways_) {
      const std::shared_ptr<Doorway> doorway = weak.lock();
      if (doorway == nullptr) continue;
      ++c.doorways;
      c.handshakes += doorway->handshakes();
    }
    c.connectors = connectors_.size();
    c.peers = peers_.size();
    for (const auto& peer : peers_) c.lanes += peer->lane_count();
    c.resting = resting_.size();
    c.requests = held_.size();
  });
  return c;
}

// --- listeners and connectors --------------------------------------------------------------------

Status FirstContact::add_listener(const ListenSpec& spec, ListenerId id, const Address& bound,
                                  std::shared_ptr<Doorway> doorway) noexcept {
  LocalEnd end{id, bound, spec.domain, spec.doorbell_fd, 0, spec.notices, spec.auth_key};
  if (spec.doorbell_fd >= 0) {
    DoorbellNumber& bell = doorbells_[spec.doorbell_fd];
    if (bell.listeners++ == 0) bell.number = next_doorbell_++;
    end.engine = bell.number;
  }
  auto listener = std::make_unique<Listener>();
  listener->spec = spec;
  listener->end = std::move(end);
  listener->doorway = std::move(doorway);
  listener->backlog = spec.backlog;
  const Status added =
      listener->doorway != nullptr ? listener->doorway->add_end(*listener) : Status();
  listeners_.emplace(id, std::move(listener));
  if (!added) remove_listener(id);
  return added;
}

void FirstContact::remove_listener(ListenerId id) noexcept {
  const auto it = listeners_.find(id);
  if (it == listeners_.end()) return;
  while (true) {
    const auto first = connectors_.lower_bound({id, Address{}});
    if (first == connectors_.end() || first->first.first != id) break;
    const std::unique_ptr<Connector> given_up = take_connector(first->first);
    const bool asked = given_up->request() != nullptr && given_up->peer() != nullptr &&
                       given_up->stage() == Connector::Stage::opening;
    if (asked) given_up->peer()->withdraw(given_up->attempt());
  }
  while (it->second->waiting != 0) {  // nobody will answer them
    const auto held = std::find_if(held_.begin(), held_.end(),
                                   [&](const auto& h) { return h.second.listener == id; });
    refuse_now(held->first, {});
  }
  std::erase_if(current_, [&](const auto& entry) { return entry.first.first == id; });
  if (it->second->doorway != nullptr) it->second->doorway->remove_end(*it->second);
  const auto bell = doorbells_.find(it->second->end.doorbell_fd);
  if (bell != doorbells_.end() && --bell->second.listeners == 0) doorbells_.erase(bell);
  listeners_.erase(it);
}

void FirstContact::begin_connect(ListenerId id, const Address& remote,
                                 const wire::PrivateData* request, uint64_t within_ns) noexcept {
  const auto it = listeners_.find(id);
  if (it == listeners_.end()) return;
  Listener& listener = *it->second;
  const Pair pair{id, remote};
  if (connectors_.contains(pair) || current_.contains(pair)) return;
  const Address& local = listener.end.address;
  const bool same_kind = (remote.index != 0) == (local.index != 0);
  if (remote == local || remote.port == 0 || remote.is_any_ip() || !same_kind) {
    const bool nobody_there = request != nullptr && remote.port != 0 && !remote.is_any_ip();
    return listener.events().on_connect_failed(remote,
                                               nobody_there ? Errc::refused : Errc::invalid);
  }
  ConnectorHost& host = *this;
  Connector::Limits limits = connector_limits;
  if (within_ns != 0) limits.timeout_ns = std::min(within_ns, kLongestConnectNs);
  auto connector = std::make_unique<Connector>(control_, host, self_, listener.end, remote,
                                               next_attempt_++, limits, request);
  Connector& started = *connector;
  attempts_.emplace(started.attempt(), &started);
  connectors_.emplace(pair, std::move(connector));
  const Doorway* doorway = listener.doorway.get();
  started.start(doorway != nullptr && doorway->has_ticket(id, remote));
}

Connector* FirstContact::connector_of(uint32_t attempt) noexcept {
  const auto it = attempts_.find(attempt);
  return it == attempts_.end() ? nullptr : it->second;
}

std::unique_ptr<Connector> FirstContact::take_connector(const Pair& pair) noexcept {
  const auto it = connectors_.find(pair);
  if (it == connectors_.end()) return nullptr;
  std::unique_ptr<Connector> taken = std::move(it->second);
  attempts_.erase(taken->attempt());
  connectors_.erase(it);
  return taken;
}

void FirstContact::on_connector_failed(Connector& connector, Errc why) noexcept {
  const Pair pair{connector.end().listener, connector.remote()};
  const std::unique_ptr<Connector> gone = take_connector(pair);
  const auto listener = listeners_.find(pair.first);
  if (listener != listeners_.end()) listener->second->events().on_connect_failed(pair.second, why);
}

// --- lanes ---------------------------------------------------------------------------------------

void FirstContact::lane_up(const std::shared_ptr<PeerLane>& record,
                           std::unique_ptr<link::Lane> lane,
                           const wire::PrivateData* data) noexcept {
  const Pair pair{record->listener, record->remote};
  if (const auto it = current_.find(pair); it != current_.end()) {
    const std::shared_ptr<PeerLane> old = it->second;
    lane_down(*old, old->peer == record->peer ? Errc::shut_down : Errc::peer_lost);
  }
  by_lane_[lane.get()] = record;
  const auto listener = listeners_.find(record->listener);
  if (listener == listeners_.end()) return close_now(std::move(lane));
  current_[pair] = record;
  keep_watch();
  ContactEvents& events = listener->second->events();
  if (data != nullptr) return events.on_connected(record->remote, std::move(lane), *data);
  events.on_lane_up(record->remote, std::move(lane));
}

void FirstContact::lane_down(PeerLane& record, Errc why) noexcept {
  if (record.lane == nullptr || record.down) return;
  record.lane->mark_lost();
  record.down = true;
  forget_current(record);
  const auto listener = listeners_.find(record.listener);
  if (listener != listeners_.end()) listener->second->events().on_lane_down(record.lane, why);
}

void FirstContact::close_now(std::unique_ptr<link::Lane> lane) noexcept {
  const auto it = by_lane_.find(lane.get());
  if (it == by_lane_.end()) return;  // not one of ours: a loopback lane
  const std::shared_ptr<PeerLane> record = it->second;
  by_lane_.erase(it);
  forget_current(*record);
  record->lane = nullptr;
  if (record->peer != nullptr) record->peer->close_here(*record);
}

void FirstContact::forget_current(const PeerLane& record) noexcept {
  const auto it = current_.find({record.listener, record.remote});
  if (it != current_.end() && it->second.get() == &record) current_.erase(it);
}

void FirstContact::on_lane_closed(PeerLane& lane) noexcept {
  lane_down(lane, Errc::shut_down);
}

// --- the watch over peers ------------------------------------------------------------------------

void FirstContact::keep_watch() noexcept {
  if (watch_timer_ != 0) return;
  last_pending_ns_ = now_ns();
  watch_timer_ =
      control_.add_timer(last_pending_ns_ + kWatchPendingNs, [this] { watch_over_pending(); });
}

void FirstContact::watch_over_pending() noexcept {
  watch_timer_ = 0;
  const uint64_t began = now_ns();
  bool pending = false;
  bool lanes = false;
  const auto peers = peers_;  // a peer that is found dead leaves the list
  for (const auto& peer : peers) {
    pending = peer->look_after_pending() || pending;
    lanes = lanes || peer->lane_count() != 0;
  }
  if (!lanes) return;  // the next lane starts it again
  const uint64_t now = now_ns();
  if (pending) last_pending_ns_ = now;
  uint64_t pause = kWatchIdleNs;
  if (now - last_pending_ns_ < kRecentNs) pause = kWatchRecentNs;
  if (pending) pause = kWatchPendingNs;
  pause = std::max(pause, (now - began) * kWatchShare);
  watch_timer_ = control_.add_timer(now + pause, [this] { watch_over_pending(); });
}

void FirstContact::rest(const std::shared_ptr<link::shm::Segment>& segment) noexcept {
  resting_.push_back(segment);
  if (rest_timer_ == 0) rest_timer_ = control_.add_timer(now_ns(), [this] { detach_resting(); });
}

void FirstContact::detach_resting() noexcept {
  using link::shm::Side;
  rest_timer_ = 0;
  std::erase_if(resting_, [&](const auto& segment) {
    const Side theirs = segment->side() == Side::creator ? Side::attacher : Side::creator;
    return keys_->detach_slots(static_cast<protect::SlotArray*>(segment->slots_of(theirs)));
  });
  if (resting_.empty()) return;
  rest_timer_ = control_.add_timer(now_ns() + kDetachAgainNs, [this] { detach_resting(); });
}

}  // namespace aperture::nic
