// Lanes of a peer: the segments they lie in, what travels with Open and Accept, and their end. See
// peer.hpp.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/log.hpp"
#include "nic/peer.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

namespace {

constexpr size_t kMaxSegments = 1024;  // of each side: 16384 lanes each way

protect::SlotArray* slots_of(const link::shm::Segment& segment, link::shm::Side side) noexcept {
  static_assert(sizeof(protect::SlotArray) <= link::shm::Segment::kSlotBytes);
  return static_cast<protect::SlotArray*>(segment.slots_of(side));
}

link::shm::Side other(link::shm::Side side) noexcept {
  return side == link::shm::Side::creator ? link::shm::Side::attacher : link::shm::Side::creator;
}

// Only an eventfd: writing 8 bytes into whatever a peer sends could block or worse.
bool is_eventfd(int fd) noexcept {
  char path[64];
  char target[64] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(path, target, sizeof target - 1);
  return n > 0 && std::strcmp(target, "anon_inode:[eventfd]") == 0;
}

// Says once in this process that one-sided copies are not to be had, and what they would gain.
void explain_not_direct(pid_t pid) noexcept {
  static bool said = false;  // control thread only
  if (said) return;
  said = true;
  char scope[8] = "?";
  const UniqueFd yama(::open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
  const bool has_yama = yama && ::read(yama.get(), scope, sizeof scope - 1) > 0;
  scope[1] = '\0';
  if (has_yama && scope[0] != '0') {
    APERTURE_INFO(
        "the kernel does not let this process copy from or to process %d: Yama's ptrace_scope is "
        "%s. "
        "The owner of the memory copies instead; with APERTURE_CMA=allow in the environment of "
        "both, "
        "large transfers take one copy and no turn of the owner",
        pid, scope);
    return;
  }
  APERTURE_INFO(
      "the kernel does not let this process copy from or to process %d (process_vm_readv: not "
      "permitted: another user, a process that is not dumpable, or a seccomp filter). The owner of "
      "the memory copies instead, which costs large transfers a turn of the owner",
      pid);
}

}  // namespace

struct Peer::LaneKeep {
  std::shared_ptr<Doorbell> doorbell;
  std::shared_ptr<const protect::PeerKeyView> keys;
};

Peer::LaneKey Peer::key_of(bool created_here, uint32_t segment, uint32_t index) noexcept {
  return uint64_t{created_here} << 63 | uint64_t{segment} << 16 | index;
}

// --- segments, keys, doorbells -------------------------------------------------------------------

Result<std::pair<uint32_t, uint32_t>> Peer::reserve_lane() noexcept {
  for (auto& [number, shared] : created_) {
    auto index = shared.segment->reserve_lane();
    if (index) return std::pair(number, index.value());
    if (index.error() != Errc::no_space) return index.error();
  }
  if (created_.size() == kMaxSegments) return Errc::no_space;
  auto segment = link::shm::Segment::create();
  if (!segment) return segment.error();
  const uint32_t number = next_segment_++;
  SharedSegment& shared = created_[number];
  shared.segment = *std::move(segment);
  watch_slots(shared);
  auto index = shared.segment->reserve_lane();
  if (!index) return index.error();
  return std::pair(number, index.value());
}

Result<Peer::SharedSegment*> Peer::attached_segment(uint32_t number, UniqueFd fd) noexcept {
  const auto known = attached_.find(number);
  if (known != attached_.end()) return &known->second;
  if (!fd) return Errc::no_fds;
  if (attached_.size() == kMaxSegments) return Errc::no_space;
  auto segment = link::shm::Segment::attach(std::move(fd));
  if (!segment) return segment.error();
  SharedSegment& shared = attached_[number];
  shared.segment = *std::move(segment);
  watch_slots(shared);
  return &shared;
}

// The peer's accessor slots in this segment, before it is given our keys.
void Peer::watch_slots(SharedSegment& shared) noexcept {
  if (!direct_possible_) return;
  protect::SlotArray* slots = slots_of(*shared.segment, other(shared.segment->side()));
  shared.slots_watched = context_.keys.attach_slots(slots, credentials_.pid).ok();
}

uint64_t Peer::key_bytes_for(const SharedSegment& shared) const noexcept {
  return shared.slots_watched && context_.keys_read_only ? context_.keys.size_bytes() : 0;
}

// True if the kernel lets us copy from and to the peer, under its keys.
bool Peer::learn_keys(uint64_t size_bytes, UniqueFd fd) noexcept {
  if (!direct_possible_ || size_bytes == 0) return false;
  if (keys_ != nullptr) return keys_probed_;
  if (!fd) return false;
  auto view = protect::PeerKeyView::map(std::move(fd), size_bytes);
  if (!view) return false;
  keys_probed_ = view->probe(credentials_.pid).ok();
  if (!keys_probed_) explain_not_direct(credentials_.pid);
  keys_ = std::make_shared<const protect::PeerKeyView>(*std::move(view));
  return keys_probed_;
}

Result<std::shared_ptr<Peer::Doorbell>> Peer::doorbell(uint64_t engine, UniqueFd fd) noexcept {
  if (const auto it = doorbells_.find(engine); it != doorbells_.end()) {
    if (auto known = it->second.lock()) return known;
  }
  auto made = std::make_shared<Doorbell>();
  if (same_user()) {
    if (!fd) return Errc::no_fds;
    if (!is_eventfd(fd.get())) return Errc::protocol;
    // a full counter must not block us; it wakes its owner all the same
    const int flags = ::fcntl(fd.get(), F_GETFL);
    if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) return Errc::protocol;
    made->event = std::move(fd);
  } else {
    made->socket = ParentOnlyFd(move_high(UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0))));
    if (!made->socket) return Errc::no_fds;
    made->ring = wire::encode_ring();
  }
  std::erase_if(doorbells_, [](const auto& entry) { return entry.second.expired(); });
  doorbells_[engine] = made;
  return made;
}

std::vector<std::shared_ptr<link::shm::Segment>> Peer::take_watched_segments() noexcept {
  std::vector<std::shared_ptr<link::shm::Segment>> watched;
  for (auto* segments : {&created_, &attached_}) {
    for (auto& [number, shared] : *segments) {
      if (shared.slots_watched) watched.push_back(shared.segment);
      shared.slots_watched = false;
    }
  }
  return watched;
}

// --- opening -------------------------------------------------------------------------------------

Status Peer::open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
                  const wire::Answer& offer, uint32_t attempt,
                  const wire::PrivateData* request) noexcept {
  auto place = reserve_lane();
  if (!place) return place.error();
  const auto [number, index] = place.value();
  SharedSegment& shared = created_.at(number);
  shared.segment->want_notices(index, end.notices);

  wire::Open open;
  open.nonce = offer.nonce;
  open.ticket = Wild<uint64_t>(offer.ticket);
  open.source = end.address;
  open.destination = remote;
  open.lane = Wild<uint32_t>(index);
  open.segment = Wild<uint32_t>(number);
  open.domain = Wild<uint32_t>(end.domain);
  open.engine = Wild<uint64_t>(end.engine);
  const uint64_t key_bytes = key_bytes_for(shared);
  open.key_file_bytes = Wild<uint64_t>(key_bytes);
  open.attempt = Wild<uint32_t>(attempt);
  const wire::Statement statement{{nonce, context_.self.incarnation, end.address},
                                  {offer.nonce, offer.incarnation, remote},
                                  offer.ticket};
  open.proof = prove(end.auth_key.get(), statement, wire::Who::connector);
  const int segment_fd = shared.segment->fd();
  const int keys_fd = context_.keys_read_only.get();
  const wire::PeerPacket packet =
      request != nullptr ? wire::encode(wire::Connect{open, *request}) : wire::encode(open);
  const Status sent = key_bytes != 0 ? send(packet, {segment_fd, end.doorbell_fd, keys_fd})
                      : same_user()  ? send(packet, {segment_fd, end.doorbell_fd})
                                     : send(packet, {segment_fd});
  if (!sent) {
    shared.segment->release_lane(index);
    return sent;
  }
  auto record = std::make_shared<PeerLane>();
  record->peer = this;
  record->segment = number;
  record->index = index;
  record->created_here = true;
  record->attempt = attempt;
  record->listener = end.listener;
  record->remote = remote;
  const LaneKey key = key_of(true, number, index);
  lanes_[key] = std::move(record);
  opening_[attempt] = {key, statement, end.auth_key};
  ever_opened_ = true;
  return {};
}

Result<std::unique_ptr<link::Lane>> Peer::opened(const wire::Accept& accept, Packet& packet,
                                                 std::shared_ptr<PeerLane>& record) noexcept {
  const auto it = opening_.find(accept.attempt.unchecked());
  if (it == opening_.end()) return Errc::protocol;
  const Opening opening = std::move(it->second);
  opening_.erase(it);
  record = lanes_.at(opening.key);
  if (!proves(accept.proof, opening.auth_key.get(), opening.statement, wire::Who::acceptor)) {
    APERTURE_WARN(
        "%s accepted a connection without proof that it holds the authorization key of %s: the "
        "connection is closed; give both endpoints the same auth_key",
        record->remote.text().c_str(), opening.statement.connector.address.text().c_str());
    return Errc::access_denied;
  }
  SharedSegment& shared = created_.at(record->segment);
  auto bell = doorbell(accept.engine.unchecked(), std::move(packet.fds[0]));
  if (!bell) return bell.error();
  const bool direct = learn_keys(accept.key_file_bytes.unchecked(), std::move(packet.fds[1]));
  return make_lane(shared, *record, accept.domain.unchecked(), *std::move(bell), direct);
}

void Peer::open_rejected(uint32_t attempt) noexcept {
  const auto it = opening_.find(attempt);
  if (it == opening_.end()) return;
  const std::shared_ptr<PeerLane> record = lanes_.at(it->second.key);
  opening_.erase(it);
  finish(*record);
}

Result<std::unique_ptr<link::Lane>> Peer::accept(const LocalEnd& end, const wire::Open& open,
                                                 const wire::Statement& statement, Packet& packet,
                                                 std::shared_ptr<PeerLane>& record) noexcept {
  auto held = hold(end, open, statement, packet);
  if (!held) return held.error();
  record = *std::move(held);
  auto lane = admit(end, *record, nullptr);
  if (!lane) let_go(*record);
  return lane;
}

void Peer::reject(uint32_t attempt, wire::Why why) noexcept {
  wire::Reject reject;
  reject.attempt = Wild<uint32_t>(attempt);
  reject.why = why;
  if (!send(wire::encode(reject), {})) go_down(Errc::peer_lost);
}

Result<std::unique_ptr<link::Lane>> Peer::make_lane(SharedSegment& shared, PeerLane& record,
                                                    uint32_t domain,
                                                    std::shared_ptr<Doorbell> doorbell,
                                                    bool direct) noexcept {
  link::shm::LanePeer there;
  there.remote = record.remote;
  there.remote_domain = domain;
  there.doorbell_fd = doorbell->socket ? doorbell->socket.get() : doorbell->event.get();
  there.doorbell_message = doorbell->ring.view();  // empty beside an eventfd
  there.fence_sends = fence_sends_;
  if (direct) {
    there.direct.allowed = true;
    there.direct.pid = credentials_.pid;
    there.direct.keys = keys_.get();
    there.direct.slots = slots_of(*shared.segment, shared.segment->side());
  }
  there.keep = std::make_shared<const LaneKeep>(LaneKeep{std::move(doorbell), keys_});
  auto lane = shared.segment->open_lane(record.index, there);
  if (lane) record.lane = lane->get();
  return lane;
}

// --- closing -------------------------------------------------------------------------------------

void Peer::close_here(PeerLane& lane) noexcept {
  lane.lane = nullptr;
  lane.closed_here = true;
  wire::LaneClose close;
  close.segment = Wild<uint32_t>(lane.segment);
  close.lane = Wild<uint32_t>(lane.index);
  close.of_sender = lane.created_here;
  if (!send(wire::encode(close), {})) return go_down(Errc::peer_lost);
  if (lane.closed_there) finish(lane);
}

void Peer::handle_lane_close(const wire::LaneClose& close) noexcept {
  uint32_t number = 0;
  uint32_t index = 0;
  if (!close.segment.bounded(0x7fffffff, number) ||
      !close.lane.bounded(link::shm::kLanes - 1, index)) {
    return go_down(Errc::protocol);
  }
  const auto it = lanes_.find(key_of(!close.of_sender, number, index));
  if (it == lanes_.end()) return go_down(Errc::protocol);
  const std::shared_ptr<PeerLane> lane = it->second;
  const bool unanswered = lane->lane == nullptr && !lane->closed_here;
  if (lane->closed_there || unanswered) return go_down(Errc::protocol);
  lane->closed_there = true;
  if (lane->closed_here) return finish(*lane);
  context_.host.on_lane_closed(*lane);
}

void Peer::finish(PeerLane& lane) noexcept {
  if (lane.created_here) {
    const auto it = created_.find(lane.segment);
    if (it != created_.end()) it->second.segment->release_lane(lane.index);
  }
  lanes_.erase(key_of(lane.created_here, lane.segment, lane.index));
}

std::vector<std::shared_ptr<PeerLane>> Peer::lanes() const {
  std::vector<std::shared_ptr<PeerLane>> all;
  all.reserve(lanes_.size());
  for (const auto& [key, lane] : lanes_) all.push_back(lane);
  return all;
}

}  // namespace aperture::nic
