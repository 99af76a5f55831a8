// Ids by number, and their events: see rdma_cm_ids.hpp.
#include "verbs/rdma_cm_ids.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"
#include "nic/host_identity.hpp"
#include "nic/verbs_qps.hpp"

namespace aperture::verbs::rdma_cm {

namespace {

// enum rdma_cm_event_type, as librdmacm and the kernel number it.
constexpr uint32_t kEventAddrResolved = 0;
constexpr uint32_t kEventRouteResolved = 2;
constexpr uint32_t kEventConnectRequest = 4;
constexpr uint32_t kEventConnectResponse = 5;
constexpr uint32_t kEventConnectError = 6;
constexpr uint32_t kEventUnreachable = 7;
constexpr uint32_t kEventRejected = 8;
constexpr uint32_t kEventEstablished = 9;
constexpr uint32_t kEventDisconnected = 10;
constexpr uint32_t kEventMulticastJoin = 12;
constexpr uint32_t kEventTimewaitExit = 15;

// How long completions may be left unpolled before the end of their connection is told all the
// same: longer than a scheduler keeps a process from its core, shorter than anybody waits for that.
// They are looked at after that long, after twice as long, and so on.
constexpr uint64_t kHoldNs = 100'000'000;
constexpr uint64_t kFirstLookNs = 250'000;

constinit PerProcess<Ids> the_one;

uint32_t event_of(cm::EventKind kind) noexcept {
  switch (kind) {
    case cm::EventKind::addr_resolved: return kEventAddrResolved;
    case cm::EventKind::route_resolved: return kEventRouteResolved;
    case cm::EventKind::connect_request: return kEventConnectRequest;
    case cm::EventKind::connect_response: return kEventConnectResponse;
    case cm::EventKind::unreachable: return kEventUnreachable;
    case cm::EventKind::rejected: return kEventRejected;
    case cm::EventKind::established: return kEventEstablished;
    case cm::EventKind::disconnected: return kEventDisconnected;
    case cm::EventKind::timewait_exit: return kEventTimewaitExit;
  }
  return kEventConnectError;
}

void fill_connected(const cm::Params& from, rdma_ucm_conn_param& to) noexcept {
  to.qp_num = from.qpn;
  to.responder_resources = from.responder_resources;
  to.initiator_depth = from.initiator_depth;
  to.flow_control = from.flow_control ? 1 : 0;
  to.retry_count = from.retry_count;
  to.rnr_retry_count = from.rnr_retry_count;
  to.srq = from.srq ? 1 : 0;
  to.private_data_len = from.data_bytes;
  std::copy_n(from.data.begin(), from.data_bytes, to.private_data);
}

void fill_datagram(const cm::Id& id, cm::EventKind kind, const cm::Params& from,
                   rdma_ucm_ud_param& to) noexcept {
  to.private_data_len = from.data_bytes;
  std::copy_n(from.data.begin(), from.data_bytes, to.private_data);
  if (kind != cm::EventKind::established) return;
  to.qp_num = from.qpn;
  to.qkey = from.qkey;
  fill_ah(*id.binding().local(), *id.binding().remote(), to.ah_attr);
}

}  // namespace

uint32_t Numbers::take() {
  while (lowest_free_ < taken_.size() && taken_[lowest_free_]) ++lowest_free_;
  if (lowest_free_ == taken_.size()) taken_.push_back(false);
  taken_[lowest_free_] = true;
  return static_cast<uint32_t>(lowest_free_++);
}

void Numbers::give_back(uint32_t number) noexcept {
  assert(number < taken_.size() && taken_[number]);
  taken_[number] = false;
  lowest_free_ = std::min<size_t>(lowest_free_, number);
}

Result<Ids*> Ids::instance() noexcept {
  auto control = nic::ControlThread::instance();
  if (!control) return control.error();
  return no_throw([&]() -> Result<Ids*> {
    nic::host_addresses();  // from here on asking for them cannot fail
    return the_one.get([&]() -> Result<Ids*> { return new Ids(**control); });
  });
}

Ids* Ids::existing() noexcept {
  return the_one.existing();
}

Result<AppId*> Ids::add(std::shared_ptr<Channel> channel, uint16_t port_space, uint64_t uid,
                        std::unique_ptr<cm::Id> id) noexcept {
  return no_throw([&]() -> Result<AppId*> {
    auto app = std::make_unique<AppId>(id_numbers_);
    AppId* const it = app.get();
    it->uid = uid;
    it->port_space = port_space;
    it->channel = std::move(channel);
    it->id = std::move(id);
    it->id->tell([this, it](cm::Event&& event) { on_event(*it, std::move(event)); });
    [[maybe_unused]] const bool is_new = ids_.emplace(it->handle, std::move(app)).second;
    assert(is_new);
    return it;
  });
}

Result<AppId*> Ids::create(std::shared_ptr<Channel> channel, uint16_t port_space,
                           const cm::Service& service, uint64_t uid) noexcept {
  auto id = cm::Id::create(control_, service);
  if (!id) return id.error();
  return add(std::move(channel), port_space, uid, *std::move(id));
}

int Ids::find(const Channel& channel, uint32_t handle, AppId*& found) noexcept {
  const auto at = ids_.find(handle);
  if (at == ids_.end()) return ENOENT;
  if (at->second->channel.get() != &channel) return EINVAL;
  found = at->second.get();
  return 0;
}

void Ids::on_event(AppId& app, cm::Event&& event) noexcept {
  Events events;
  QueuedEvent& queued = events.emplace_back();
  queued.response.event = event_of(event.kind);
  queued.response.status = static_cast<uint32_t>(event.status);
  queued.response.uid = app.uid;
  queued.response.id = app.handle;
  queued.response.ece = {event.params.ece.vendor, event.params.ece.attributes};
  queued.reporter = &app;
  const cm::Id& subject = event.child != nullptr ? *event.child : *app.id;
  if (subject.is_datagram()) {
    fill_datagram(subject, event.kind, event.params, queued.response.param.ud);
  } else {
    fill_connected(event.params, queued.response.param.conn);
  }
  if (event.kind == cm::EventKind::connect_request) {
    auto child = add(app.channel, app.port_space, 0, std::move(event.child));
    if (!child) {  // its id is gone, which has rejected it
      APERTURE_WARN("rdma_listen: a request is rejected: %s", describe(child.error()));
      return;
    }
    queued.response.id = queued.child = (*child)->handle;
    queued.place = std::move(event.place);
  } else if (app.uid == 0) {
    return;  // its request has not been accepted; accepting will fail, and tell
  }
  let_go(app);  // events of an id come in their order
  if (app.id->state() == cm::State::dreq_received) return hold(app, std::move(events));
  const std::lock_guard guard(events_mutex());
  app.channel->push(std::move(events));
}

// A NIC's last completions are there long before its host has dealt with the message that ends a
// connection, and programs destroy the queue pair at that without another look at their queues: the
// completions would be lost with it (libfabric's ofi_rxm). So they are told of in that order.
void Ids::hold(AppId& app, Events&& events) noexcept {
  assert(app.held.empty() && app.held_timer == 0);
  app.held = std::move(events);
  app.held_until_ns = now_ns() + kHoldNs;
  look_at_held(app, kFirstLookNs);
}

void Ids::look_at_held(AppId& app, uint64_t again_after_ns) noexcept {
  const uint64_t now = now_ns();
  if (now >= app.held_until_ns || !nic::VerbsQps::has_untaken(app.qpn)) return let_go(app);
  const uint64_t then = std::min(now + again_after_ns, app.held_until_ns);
  app.held_timer = control_.add_timer(then, [this, &app, again_after_ns] {
    app.held_timer = 0;
    look_at_held(app, 2 * again_after_ns);
  });
}

void Ids::let_go(AppId& app) noexcept {
  control_.cancel_timer(app.held_timer);
  app.held_timer = 0;
  if (app.held.empty()) return;
  const std::lock_guard guard(events_mutex());
  app.channel->push(std::move(app.held));
  assert(app.held.empty());
}

void Ids::write_event(AppId& app, uint32_t event, uint32_t status, uint64_t arg) noexcept {
  Events events;
  QueuedEvent& queued = events.emplace_back();
  queued.response.event = event;
  queued.response.status = status;
  queued.response.uid = app.uid;
  queued.response.id = app.handle;
  std::memcpy(&queued.response.param, &arg, sizeof arg);  // arg32 of newer headers
  queued.reporter = &app;
  const std::lock_guard guard(events_mutex());
  app.channel->push(std::move(events));
}

uint32_t Ids::destroy(AppId& app) noexcept {
  Events unheard;
  uint32_t reported;
  {
    const std::lock_guard guard(events_mutex());
    unheard = app.channel->extract([&](const QueuedEvent& e) { return e.reporter == &app; });
    reported = app.events_reported;
  }
  for (const QueuedEvent& e : unheard) {
    if (e.child == QueuedEvent::kNoChild) continue;
    const auto child = ids_.find(e.child);
    if (child != ids_.end()) destroy(*child->second);
  }
  std::erase_if(members_, [&](const auto& entry) { return entry.second->of == &app; });
  control_.cancel_timer(app.held_timer);
  [[maybe_unused]] const size_t gone = ids_.erase(app.handle);
  assert(gone == 1);
  return reported;
}

uint32_t Ids::migrate(AppId& app, std::shared_ptr<Channel> to) noexcept {
  const std::lock_guard guard(events_mutex());
  if (app.channel != to) {
    auto moved = app.channel->extract([&](const QueuedEvent& e) { return e.reporter == &app; });
    for (QueuedEvent& e : moved) {
      if (const auto child = ids_.find(e.child); child != ids_.end()) child->second->channel = to;
    }
    to->push(std::move(moved));
    to->note_use();
    app.channel = std::move(to);
  }
  return app.events_reported;
}

void Ids::close(const Channel& channel) noexcept {
  for (;;) {
    const auto at = std::find_if(ids_.begin(), ids_.end(), [&](const auto& entry) {
      return entry.second->channel.get() == &channel;
    });
    if (at == ids_.end()) return;
    destroy(*at->second);
  }
}

Result<uint32_t> Ids::join(AppId& app, const Address& group, uint64_t uid, uint32_t qkey) noexcept {
  Membership* it = nullptr;
  const Status s = no_throw([&] {
    auto membership = std::make_unique<Membership>(membership_numbers_);
    it = membership.get();
    it->uid = uid;
    it->of = &app;
    members_.emplace(it->handle, std::move(membership));
  });
  if (!s) return s.error();
  Events events;
  QueuedEvent& queued = events.emplace_back();
  queued.response.event = kEventMulticastJoin;
  queued.response.uid = uid;
  queued.response.id = it->handle;
  queued.reporter = &app;
  queued.membership = it;
  rdma_ucm_ud_param& ud = queued.response.param.ud;
  ud.qp_num = 0xff'ffff;
  ud.qkey = qkey;
  fill_ah(*app.id->binding().local(), group, ud.ah_attr);
  ud.ah_attr.dlid = 0xc000;  // no subnet manager gives it out: the first of all multicast LIDs
  const std::lock_guard guard(events_mutex());
  app.channel->push(std::move(events));
  return it->handle;
}

int Ids::leave(const Channel& channel, uint32_t handle, uint32_t& reported) noexcept {
  const auto at = members_.find(handle);
  if (at == members_.end()) return ENOENT;
  Membership* const gone = at->second.get();
  assert(gone->handle == handle && gone->of != nullptr);
  if (gone->of->channel.get() != &channel) return EINVAL;
  {
    const std::lock_guard guard(events_mutex());
    gone->of->channel->extract([&](const QueuedEvent& e) { return e.membership == gone; });
    reported = gone->events_reported;
  }
  members_.erase(at);
  return 0;
}

}  // namespace aperture::verbs::rdma_cm
