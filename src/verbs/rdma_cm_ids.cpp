// Ids by number, and their events: see rdma_cm_ids.hpp.
#include "verbs/rdma_cm_ids.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

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

constinit std::atomic<Ids*> the_one{nullptr};

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
  fill_ah(*id.local(), *id.remote(), to.ah_attr);
}

}  // namespace

uint32_t Numbers::take() noexcept {
  while (lowest_free_ < taken_.size() && taken_[lowest_free_]) ++lowest_free_;
  if (lowest_free_ == taken_.size()) taken_.push_back(false);
  taken_[lowest_free_] = true;
  return static_cast<uint32_t>(lowest_free_++);
}

void Numbers::give_back(uint32_t number) noexcept {
  taken_[number] = false;
  lowest_free_ = std::min<size_t>(lowest_free_, number);
}

Result<Ids*> Ids::instance() noexcept {
  auto control = nic::ControlThread::instance();
  if (!control) return control.error();
  static auto* const made = new Ids(**control);  // lives until the process ends
  // SYNC POINT: rdma-cm-ids: the object is whole before it is found
  the_one.store(made, std::memory_order_release);
  return made;
}

Ids* Ids::existing() noexcept {
  // SYNC POINT: rdma-cm-ids
  return the_one.load(std::memory_order_acquire);
}

AppId& Ids::add(std::shared_ptr<Channel> channel, uint16_t port_space, uint64_t uid,
                std::unique_ptr<cm::Id> id) noexcept {
  auto app = std::make_unique<AppId>();
  AppId& it = *app;
  it.handle = id_numbers_.take();
  it.uid = uid;
  it.port_space = port_space;
  it.channel = std::move(channel);
  it.id = std::move(id);
  it.id->tell([this, &it](cm::Event&& event) { on_event(it, std::move(event)); });
  ids_.emplace(it.handle, std::move(app));
  return it;
}

Result<AppId*> Ids::create(std::shared_ptr<Channel> channel, uint16_t port_space,
                           uint64_t uid) noexcept {
  const bool connected = port_space == RDMA_PS_TCP;
  auto id = cm::Id::create(control_, connected ? cm::PortSpace::tcp : cm::PortSpace::udp);
  if (!id) return id.error();
  return &add(std::move(channel), port_space, uid, *std::move(id));
}

int Ids::find(const Channel& channel, uint32_t handle, AppId*& found) noexcept {
  const auto at = ids_.find(handle);
  if (at == ids_.end()) return ENOENT;
  if (at->second->channel.get() != &channel) return EINVAL;
  found = at->second.get();
  return 0;
}

void Ids::on_event(AppId& app, cm::Event&& event) noexcept {
  QueuedEvent queued;
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
    AppId& child = add(app.channel, app.port_space, 0, std::move(event.child));
    queued.response.id = queued.child = child.handle;
    queued.place = std::move(event.place);
  } else if (app.uid == 0) {
    return;  // its request has not been accepted; accepting will fail, and tell
  }
  const std::lock_guard guard(events_mutex());
  app.channel->push(std::move(queued));
}

uint32_t Ids::destroy(AppId& app) noexcept {
  std::list<QueuedEvent> unheard;
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
  for (const auto& [handle, membership] : app.memberships) {
    members_.erase(handle);
    membership_numbers_.give_back(handle);
  }
  id_numbers_.give_back(app.handle);
  ids_.erase(app.handle);
  return reported;
}

uint32_t Ids::migrate(AppId& app, std::shared_ptr<Channel> to) noexcept {
  const std::lock_guard guard(events_mutex());
  if (app.channel != to) {
    auto moved = app.channel->extract([&](const QueuedEvent& e) { return e.reporter == &app; });
    for (QueuedEvent& e : moved) {
      if (const auto child = ids_.find(e.child); child != ids_.end()) child->second->channel = to;
      to->push(std::move(e));
    }
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

Membership& Ids::join(AppId& app, const Address& group, uint64_t uid, uint32_t qkey) noexcept {
  auto membership = std::make_unique<Membership>();
  Membership& it = *membership;
  it.handle = membership_numbers_.take();
  it.uid = uid;
  it.group = group;
  members_.emplace(it.handle, &app);
  app.memberships.emplace(it.handle, std::move(membership));
  QueuedEvent queued;
  queued.response.event = kEventMulticastJoin;
  queued.response.uid = uid;
  queued.response.id = it.handle;
  queued.reporter = &app;
  queued.membership = &it;
  rdma_ucm_ud_param& ud = queued.response.param.ud;
  ud.qp_num = 0xff'ffff;
  ud.qkey = qkey;
  fill_ah(*app.id->local(), group, ud.ah_attr);
  ud.ah_attr.dlid = 0xc000;  // no subnet manager gives it out: the first of all multicast LIDs
  const std::lock_guard guard(events_mutex());
  app.channel->push(std::move(queued));
  return it;
}

int Ids::leave(const Channel& channel, uint32_t handle, uint32_t& reported) noexcept {
  const auto at = members_.find(handle);
  if (at == members_.end()) return ENOENT;
  AppId& app = *at->second;
  if (app.channel.get() != &channel) return EINVAL;
  const auto membership = app.memberships.find(handle);
  {
    const std::lock_guard guard(events_mutex());
    Reporter* const gone = membership->second.get();
    app.channel->extract([&](const QueuedEvent& e) { return e.membership == gone; });
    reported = gone->events_reported;
  }
  app.memberships.erase(membership);
  members_.erase(at);
  membership_numbers_.give_back(handle);
  return 0;
}

}  // namespace aperture::verbs::rdma_cm
