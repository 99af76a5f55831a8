// Segments, slots, keys and doorbells of a process pair: see peer_memory.hpp.
#include "nic/peer_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cassert>

#include "base/doorbell.hpp"
#include "base/log.hpp"
#include "protect/key_table.hpp"

namespace aperture::nic {

namespace {

constexpr uint32_t kMaxSegmentNumber = 0x7fffffff;
constexpr size_t kMaxSegments = 1024;  // of each side: 16384 lanes each way

protect::SlotArray* slots_of(const link::shm::Segment& segment, link::shm::Side side) noexcept {
  static_assert(sizeof(protect::SlotArray) <= link::shm::Segment::kSlotBytes);
  return segment.slots_of(side);
}

link::shm::Side other(link::shm::Side side) noexcept {
  return side == link::shm::Side::creator ? link::shm::Side::attacher : link::shm::Side::creator;
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
        "%s. The owner of the memory copies instead; with APERTURE_CMA=allow in the environment of "
        "both, large transfers take one copy and no turn of the owner",
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

struct PeerMemory::Doorbell {  // one of the two
  UniqueFd pipe;               // as we opened it
  link::Ringing ringing;
  ParentOnlyFd socket;  // the channel's once more: Ring is sent to it
  wire::PeerPacket ring;
};

struct PeerMemory::LaneKeep {
  std::shared_ptr<Doorbell> doorbell;
  std::shared_ptr<const protect::PeerKeyView> keys;
};

PeerMemory::PeerMemory(PeerChannel& channel, protect::KeyTable& keys,
                       const UniqueFd& keys_read_only, Shares& shares) noexcept
    : channel_(channel),
      share_(shares, channel.uid()),
      own_keys_(keys),
      keys_read_only_(keys_read_only) {}

// --- segments ------------------------------------------------------------------------------------

const PeerMemory::SharedSegment& PeerMemory::at(const Place& place) const noexcept {
  const auto& segments = place.created_here ? created_ : attached_;
  const auto it = segments.find(place.segment);
  assert(it != segments.end() && it->second.segment != nullptr);
  return it->second;
}

Result<PeerMemory::Place> PeerMemory::reserve() {
  for (auto& [number, shared] : created_) {
    auto index = shared.segment->reserve_lane();
    if (index) return Place{true, number, *index};
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
  return Place{true, number, *index};
}

void PeerMemory::release(const Place& place) noexcept {
  if (place.created_here) at(place).segment->release_lane(place.index);
}

// The peer's segment of that number, which comes with its first lane.
Status PeerMemory::attach(uint32_t number, UniqueFd fd) {
  if (attached_.contains(number)) return {};
  if (!fd) return Errc::no_fds;
  constexpr Holding kSegment{.descriptors = 1, .bytes = link::shm::Segment::kBytes};
  if (attached_.size() == kMaxSegments || !may_hold(kSegment)) return Errc::no_space;
  auto segment = link::shm::Segment::attach(std::move(fd));
  if (!segment) return segment.error();
  SharedSegment& shared = attached_[number];
  shared.segment = *std::move(segment);
  watch_slots(shared);
  return {};
}

// --- what records say of lanes -------------------------------------------------------------------

Result<PeerMemory::Place> PeerMemory::place_of(const wire::Open& open) noexcept {
  if (open.checksums) return Errc::protocol;  // of frames, and memory has none
  Place place;                                // in a segment of the opener's
  if (!open.lane.bounded(link::shm::kLanes - 1, place.index)) return Errc::protocol;
  if (!open.segment.bounded(kMaxSegmentNumber, place.segment)) return Errc::protocol;
  return place;
}

Result<PeerMemory::Place> PeerMemory::place_of(const wire::LaneClose& close) noexcept {
  Place place;
  place.created_here = !close.of_sender;
  if (!close.segment.bounded(kMaxSegmentNumber, place.segment) ||
      !close.lane.bounded(link::shm::kLanes - 1, place.index)) {
    return Errc::protocol;
  }
  return place;
}

void PeerMemory::name(const Place& place, wire::LaneClose& close) noexcept {
  close.segment = Wild<uint32_t>(place.segment);
  close.lane = Wild<uint32_t>(place.index);
  close.of_sender = place.created_here;
}

void PeerMemory::Beside::add(int fd) noexcept {
  assert(count_ < fds_.size() && fd >= 0);
  fds_[count_++] = fd;
}

Status PeerMemory::add_bells(Beside& beside, int doorbell_fd, uint64_t key_bytes) noexcept {
  assert(key_bytes == 0 || channel_.same_user());
  if (!channel_.same_user()) return {};
  Result<UniqueFd> opened = open_doorbell(doorbell_fd);
  if (!opened) return opened.error();
  beside.doorbell_ = *std::move(opened);
  beside.add(beside.doorbell_.get());
  if (key_bytes != 0) beside.add(keys_read_only_.get());
  return {};
}

Result<PeerMemory::Beside> PeerMemory::tell(const Place& place, int doorbell_fd,
                                            wire::Open& open) noexcept {
  assert(place.created_here);
  const uint64_t key_bytes = key_bytes_for(place);
  open.lane = Wild<uint32_t>(place.index);
  open.segment = Wild<uint32_t>(place.segment);
  open.key_file_bytes = Wild<uint64_t>(key_bytes);
  Beside beside;
  beside.add(at(place).segment->fd());
  if (Status s = add_bells(beside, doorbell_fd, key_bytes); !s) return s.error();
  return beside;
}

Result<PeerMemory::Beside> PeerMemory::tell(const Place& place, int doorbell_fd,
                                            wire::Accept& accept) noexcept {
  const uint64_t key_bytes = key_bytes_for(place);
  accept.key_file_bytes = Wild<uint64_t>(key_bytes);
  Beside beside;
  if (Status s = add_bells(beside, doorbell_fd, key_bytes); !s) return s.error();
  return beside;
}

Result<PeerMemory::TheirEnd> PeerMemory::learn(const Place& place, const wire::Open& open,
                                               Packet& packet) {
  if (Status s = attach(place.segment, std::move(packet.fds[0])); !s) return s.error();
  auto bell = doorbell(open.engine.unchecked(), std::move(packet.fds[1]));
  if (!bell) return bell.error();
  const bool direct = learn_keys(open.key_file_bytes.unchecked(), std::move(packet.fds[2]));
  return TheirEnd{*std::move(bell), open.domain.unchecked(), direct};
}

Result<PeerMemory::TheirEnd> PeerMemory::learn(const wire::Accept& accept, Packet& packet) {
  if (accept.checksums) return Errc::protocol;
  auto bell = doorbell(accept.engine.unchecked(), std::move(packet.fds[0]));
  if (!bell) return bell.error();
  const bool direct = learn_keys(accept.key_file_bytes.unchecked(), std::move(packet.fds[1]));
  return TheirEnd{*std::move(bell), accept.domain.unchecked(), direct};
}

// --- keys ----------------------------------------------------------------------------------------

// The peer's accessor slots in this segment, before it is given our keys.
void PeerMemory::watch_slots(SharedSegment& shared) {
  if (!channel_.direct_possible()) return;
  assert(!shared.slots_watched);
  WatchedSegments one(1, shared.segment);
  protect::SlotArray* slots = slots_of(*shared.segment, other(shared.segment->side()));
  shared.slots_watched = own_keys_.accessors().attach(slots, channel_.pid()).ok();
  if (shared.slots_watched) watched_.splice(watched_.end(), one);
  tell_whose(shared);
}

void PeerMemory::tell_whose(const SharedSegment& shared) noexcept {
  if (!shared.slots_watched || keys_ == nullptr) return;
  own_keys_.accessors().know(slots_of(*shared.segment, other(shared.segment->side())), keys_);
}

// What the peer is told of our key file beside a lane there; 0: it is not handed out.
uint64_t PeerMemory::key_bytes_for(const Place& place) const noexcept {
  return at(place).slots_watched && keys_read_only_ ? own_keys_.own_file().size_bytes() : 0;
}

// True if the kernel lets us copy from and to the peer under the keys that it tells of.
bool PeerMemory::learn_keys(uint64_t size_bytes, UniqueFd fd) {
  if (!channel_.direct_possible() || size_bytes == 0) return false;
  if (keys_ != nullptr) return keys_probed_;
  if (!fd) return false;
  auto view = protect::PeerKeyView::map(std::move(fd), size_bytes);
  if (!view) return false;
  const bool probed = view->probe(channel_.pid()).ok();
  keys_ = std::make_shared<const protect::PeerKeyView>(*std::move(view));
  keys_probed_ = probed;
  for (const auto* segments : {&created_, &attached_}) {
    for (const auto& [its_number, shared] : *segments) tell_whose(shared);
  }
  if (!probed) explain_not_direct(channel_.pid());
  return probed;
}

// --- doorbells and lanes -------------------------------------------------------------------------

// By the peer's number for its engine.
Result<std::shared_ptr<PeerMemory::Doorbell>> PeerMemory::doorbell(uint64_t engine, UniqueFd fd) {
  // one socket rings all engines of a stranger: what it calls them must not cost us anything
  if (!channel_.same_user()) engine = 0;
  if (const auto it = doorbells_.find(engine); it != doorbells_.end()) {
    if (auto known = it->second.lock()) return known;
  }
  auto made = std::make_shared<Doorbell>();
  if (channel_.same_user()) {
    if (!fd) return Errc::no_fds;
    Result<UniqueFd> opened = open_doorbell(fd.get());
    if (!opened) return opened.error();
    made->pipe = *std::move(opened);
  } else {
    made->socket = channel_.copy_of_socket();
    if (!made->socket) return Errc::no_fds;
    made->ring = wire::encode_ring();
  }
  std::erase_if(doorbells_, [](const auto& entry) { return entry.second.expired(); });
  doorbells_[engine] = made;
  return made;
}

Result<std::unique_ptr<link::Lane>> PeerMemory::make_lane(const Place& place, const Address& remote,
                                                          TheirEnd theirs) {
  const SharedSegment& shared = at(place);
  link::shm::LanePeer there;
  there.remote = remote;
  there.remote_domain = theirs.domain;
  there.doorbell_fd =
      theirs.doorbell->socket ? theirs.doorbell->socket.get() : theirs.doorbell->pipe.get();
  there.doorbell_message = theirs.doorbell->ring.view();  // empty beside a pipe
  if (theirs.doorbell->pipe)
    there.ringing = &theirs.doorbell->ringing;  // a socket is of all engines
  there.fence_always = channel_.fence_sends();
  const link::shm::Side ours = shared.segment->side();
  there.direct.lane = place.index;
  if (shared.slots_watched) there.direct.watched = slots_of(*shared.segment, other(ours));
  if (theirs.direct) {
    assert(keys_ != nullptr && keys_probed_);
    there.direct.allowed = true;
    there.direct.pid = channel_.pid();
    there.direct.keys = keys_.get();
    there.direct.slots = slots_of(*shared.segment, ours);
  }
  there.keep = std::make_shared<const LaneKeep>(LaneKeep{std::move(theirs.doorbell), keys_});
  return shared.segment->open_lane(place.index, there);
}

}  // namespace aperture::nic
