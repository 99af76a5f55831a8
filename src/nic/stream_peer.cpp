// A TCP connection between two hosts, from its first packet to the end of its lane: see
// stream_peer.hpp.
#include "nic/stream_peer.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdio>
#include <new>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"
#include "base/settings.hpp"
#include "nic/proof.hpp"
#include "nic/silence_watch.hpp"

namespace aperture::nic {

namespace {

constexpr Peer::LaneKey kTheLane = 0;
constexpr size_t kHeadBytes = 8;                     // of every packet
constexpr uint64_t kAnswerWithinNs = 1'000'000'000;  // for the other side to take an answer
constexpr uint64_t kLingerWithinNs = 5'000'000'000;  // for it to take what was published

// How long a host may say nothing while something waits for it: APERTURE_SILENCE_MS.
uint64_t silence_ms() noexcept {
  static constexpr uint64_t kUsual = 5'000;
  static constinit FoundOnce<uint64_t> found;
  return found.get([] {
    const uint64_t said = setting_number("APERTURE_SILENCE_MS");
    return said >= kShortestSilenceMs && said <= kLongestSilenceMs ? said : kUsual;
  });
}

// Whether what travels is to be checked as a whole, where no key does so: APERTURE_CHECKSUMS.
bool wants_checksums() noexcept {
  static constinit FoundOnce<bool> found;
  return found.get([] { return setting_is("APERTURE_CHECKSUMS", "on"); });
}

// Nothing of what processes of one host share is there.
bool has_no_memory(const wire::Open& open) noexcept {
  return open.lane.unchecked() == 0 && open.segment.unchecked() == 0 &&
         open.engine.unchecked() == 0 && open.key_file_bytes.unchecked() == 0;
}
bool has_no_memory(const wire::Accept& accept) noexcept {
  return accept.engine.unchecked() == 0 && accept.key_file_bytes.unchecked() == 0;
}

std::array<std::byte, 16> frame_key(const Secret& key, const wire::Statement& statement,
                                    wire::Who who) noexcept {
  const wire::Proof whole = prove(&key, statement, who);
  std::array<std::byte, 16> part{};
  std::copy_n(whole.begin(), part.size(), part.begin());
  return part;
}

}  // namespace

// Of this process: lanes that were given back, and whose last bytes are on their way.
std::atomic<uint32_t> lingering_lanes{0};
std::atomic<uint64_t> lingering_process{0};  // whose they are

// A process that ends with something unread in a socket takes back what it has sent last, since the
// kernel resets such a connection. So who has just closed its endpoints waits until the other sides
// have heard that, for a second at most. A forked child has its parent's count, and nothing to wait
// for.
[[gnu::destructor]] void await_lingering_lanes() {
  constexpr int kNaps = 1'000;
  constexpr timespec kNap{0, 1'000'000};
  const auto lingers = [] {
    // relaxed: a count that is waited for, and orders nothing
    return lingering_lanes.load(std::memory_order_relaxed) != 0 &&
           lingering_process.load(std::memory_order_relaxed) == process_epoch();
  };
  for (int i = 0; i < kNaps && lingers(); ++i) ::nanosleep(&kNap, nullptr);
}

void note_lingering(bool begins) noexcept {
  // relaxed, both: as above
  lingering_process.store(process_epoch(), std::memory_order_relaxed);
  lingering_lanes.fetch_add(begins ? 1 : ~uint32_t{0}, std::memory_order_relaxed);
}

// The lane may end long after its peer, and on another thread.
class StreamPeer::LaneHost final : public link::tcp::StreamHost {
 public:
  LaneHost(ControlThread& control, std::weak_ptr<Peer> peer) noexcept
      : control_(control), peer_(std::move(peer)) {}

  void on_stream_down(Errc why) noexcept override {
    control_.post([peer = peer_, why] {
      const std::shared_ptr<Peer> still = peer.lock();
      if (still != nullptr) static_cast<StreamPeer&>(*still).on_lane_ended(why);
    });
  }

 private:
  ControlThread& control_;
  const std::weak_ptr<Peer> peer_;
};

StreamPeer::StreamPeer(const PeerContext& context, ParentOnlyFd tcp, const wire::Id128& incarnation,
                       Holder holder, uint64_t ticket)
    : context_(context),
      incarnation_(incarnation),
      ticket_(ticket),
      role_(ticket != 0 ? Role::acceptor : Role::connector),
      share_(context.shares, holder),
      tcp_(std::move(tcp)),
      here_(local_address(tcp_.get())),
      there_(remote_address(tcp_.get())),
      deadline_(context.control) {
  assert(tcp_);
}

StreamPeer::~StreamPeer() {
  context_.silence.remove(*this);
  context_.control.unwatch(watch_);
}

Status StreamPeer::begin() noexcept {
  assert(stage_ == Stage::asking && watch_ == 0);
  auto watch = context_.control.watch(tcp_.get(), EPOLLIN, [this](uint32_t) { on_events(); });
  if (watch) watch_ = *watch;
  return watch.error();
}

Peer::Name StreamPeer::name() const noexcept {
  Name name;
  std::snprintf(name.text, sizeof name.text, "a connection from %s", there_.print().c_str());
  return name;
}

// A host says of its own ports what it likes. One that connects from an address of this host is a
// process here, whatever it says of its boot, and is treated as such.
bool StreamPeer::speaks_for(const Address& source, PortOwners& owners) noexcept {
  if (!is_within_host(here_, there_)) {
    if (source.ip == there_.ip) return true;
    APERTURE_WARN(
        "%s says that it is %s: refused, since an endpoint has to come from its own address",
        name().c_str(), source.print().c_str());
    return false;
  }
  auto user = owners.of_connection(there_, here_);
  if (user && *user == context_.self.uid && context_.self.uid_is_ours) return true;
  auto owner = owners.of_port(source);
  if (user && owner && *user == *owner) return true;
  APERTURE_WARN("%s says that it is %s, which is not known to belong to its user: refused",
                name().c_str(), source.print().c_str());
  return false;
}

// --- packets -------------------------------------------------------------------------------------

void StreamPeer::on_events() noexcept {
  const std::shared_ptr<Peer> keep = shared_from_this();
  if (stage_ == Stage::ending) {
    if (lingering_ != nullptr) return linger();
    // an answer was sent: bytes are rubbish, and an end means that it has come
    return go_down(Errc::shut_down);
  }
  // twice at most, whatever is there: once it has asked, it is only heard that it withdraws that
  while (stage_ == Stage::asking && take_packet()) {
  }
}

// True: there was one, and there may be another.
bool StreamPeer::take_packet() noexcept {
  const auto up_to = [&](size_t size) {
    return receive_bytes(tcp_.get(), std::span(packet_.bytes).first(size), got_);
  };
  Status s;
  if (got_ < kHeadBytes) s = up_to(kHeadBytes);
  size_t size = 0;
  if (s.ok()) {
    auto said = wire::peer_message_size(std::span(packet_.bytes).first(kHeadBytes));
    if (!said) return go_down(Errc::protocol), false;
    size = *said;
    if (got_ < size) s = up_to(size);
  }
  if (s.error() == Errc::again) return false;
  if (!s) return go_down(Errc::peer_lost), false;
  packet_.size = size;
  got_ = 0;
  auto kind = wire::peer_message(packet_.view());
  if (!kind || !is_expected(*kind) || !dispatch(context_, *kind, packet_)) {
    go_down(Errc::protocol);
    return false;
  }
  // whoever asked and got no lane comes again with another connection
  if (role_ == Role::connector && stage_ == Stage::asking) go_down(Errc::shut_down);
  return stage_ == Stage::asking;
}

bool StreamPeer::is_expected(wire::PeerMessage kind) const noexcept {
  using wire::PeerMessage;
  if (role_ == Role::acceptor) {
    // here nothing crosses that could make another one an honest mistake
    if (asked_) return kind == PeerMessage::withdraw && asked_->is_withdrawn_by(packet_);
    return kind == PeerMessage::open || kind == PeerMessage::connect;
  }
  return asked_ && (kind == PeerMessage::accept || kind == PeerMessage::connected ||
                    kind == PeerMessage::reject || kind == PeerMessage::refuse);
}

bool AskedOfStream::is_withdrawn_by(const Packet& packet) const noexcept {
  const auto withdraw = wire::decode_withdraw(packet.view());
  return withdraw.ok() && withdraw.value().attempt.unchecked() == attempt;
}

// The packet as it was before its proof was put in.
std::span<const std::byte> StreamPeer::proved_beside(const Packet& packet) noexcept {
  const auto view = packet.view();
  std::copy(view.begin(), view.end(), beside_.begin());
  auto kind = wire::peer_message(view);
  const bool asks =
      kind && (*kind == wire::PeerMessage::open || *kind == wire::PeerMessage::connect);
  const auto proof = beside_.begin() + (asks ? wire::kOpenProofAt : wire::kAcceptProofAt);
  std::fill_n(proof, sizeof(wire::Proof), std::byte{0});
  return std::span(beside_).first(view.size());
}

// --- opening -------------------------------------------------------------------------------------

void StreamPeer::make_record(ListenerId listener, const Address& remote) {
  assert(lanes_.empty());
  auto record = std::make_shared<PeerLane>();
  record->peer = this;
  record->listener = listener;
  record->remote = remote;
  lanes_.emplace(kTheLane, std::move(record));
}

void StreamPeer::forget_record() noexcept {
  asked_.reset();
  for (auto& [key, record] : lanes_) record->peer = nullptr;
  lanes_.clear();
}

Status StreamPeer::open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
                        const wire::Answer& offer, uint32_t attempt,
                        const wire::PrivateData* request) noexcept {
  assert(role_ == Role::connector && !asked_);
  if (stage_ != Stage::asking) return Errc::peer_lost;
  Question asks = question(context_.self, end, remote, nonce, offer, attempt);
  wire::Open& open = asks.open;
  open.checksums = wants_checksums();
  const auto encoded = [&] {
    return request != nullptr ? wire::encode(wire::Connect{open, *request}) : wire::encode(open);
  };
  const wire::PeerPacket unproved = encoded();
  open.proof = prove(end.auth_key.get(), asks.statement, wire::Who::connector, unproved.view());
  const Status made = no_throw([&] { make_record(end.listener, remote); });
  if (!made) return made;
  asked_.emplace();
  asked_->attempt = attempt;
  asked_->statement = asks.statement;
  asked_->auth_key = end.auth_key;
  asked_->mover = end.mover;
  asked_->checksums = open.checksums;
  if (Status sent = send_bytes(tcp_.get(), encoded().view()); !sent) {
    forget_record();
    return Errc::peer_lost;
  }
  if (request != nullptr) deadline_.cancel();  // an application decides
  return {};
}

Result<std::unique_ptr<link::Lane>> StreamPeer::opened(const wire::Accept& accept, Packet& packet,
                                                       std::shared_ptr<PeerLane>& record) noexcept {
  if (!asked_ || accept.attempt.unchecked() != asked_->attempt || !has_no_memory(accept) ||
      (asked_->checksums && !accept.checksums)) {
    return Errc::protocol;
  }
  Asked asked = *std::move(asked_);
  asked_.reset();
  asked.checksums = accept.checksums;
  record = lanes_.at(kTheLane);
  if (!proves(accept.proof, asked.auth_key.get(), asked.statement, wire::Who::acceptor,
              proved_beside(packet))) {
    APERTURE_WARN(
        "%s accepted a connection without proof that it holds the authorization key of %s: the "
        "connection is closed; give both endpoints the same auth_key",
        record->remote.print().c_str(), asked.statement.connector.address.print().c_str());
    return Errc::access_denied;
  }
  return make_lane(asked, accept.domain.unchecked(), asked.auth_key.get(), asked.mover);
}

void StreamPeer::open_rejected(uint32_t attempt) noexcept {
  if (asked_ && asked_->attempt == attempt) forget_record();
}

// The connection is the lane's from here on, if there is one.
Result<std::unique_ptr<link::Lane>> StreamPeer::make_lane(
    const Asked& asked, uint32_t domain, const Secret* key,
    std::shared_ptr<link::tcp::Mover> mover) noexcept {
  assert(stage_ == Stage::asking);
  if (mover == nullptr) return Errc::not_supported;  // an end that takes no lanes
  const std::shared_ptr<PeerLane> record = lanes_.at(kTheLane);
  link::tcp::StreamSpec spec;
  spec.remote = record->remote;
  spec.remote_domain = domain;
  spec.mover = std::move(mover);
  if (key != nullptr) {
    const auto of_connector = frame_key(*key, asked.statement, wire::Who::frames_of_connector);
    const auto of_acceptor = frame_key(*key, asked.statement, wire::Who::frames_of_acceptor);
    const bool ours = role_ == Role::connector;
    spec.trailers.out.key = ours ? of_connector : of_acceptor;
    spec.trailers.in.key = ours ? of_acceptor : of_connector;
  }
  if (key != nullptr || asked.checksums) {
    spec.trailers.out.kind = spec.trailers.in.kind =
        key != nullptr ? wire::FrameTrailer::Kind::tag : wire::FrameTrailer::Kind::checksum;
  }
  const Status hears =
      no_throw([&] { spec.host = std::make_shared<LaneHost>(context_.control, weak_from_this()); });
  if (!hears) return hears.error();
  context_.control.unwatch(watch_);
  watch_ = 0;
  auto stream = link::tcp::make_stream(std::move(tcp_), static_cast<unsigned>(silence_ms()));
  if (!stream) return stream.error();
  auto lane = link::tcp::StreamLane::make(*std::move(stream), std::move(spec));
  if (!lane) return lane.error();
  record->lane = lane->get();
  stage_ = Stage::carrying;
  deadline_.cancel();
  return std::unique_ptr<link::Lane>(*std::move(lane));
}

// --- accepting -----------------------------------------------------------------------------------

Result<std::shared_ptr<PeerLane>> StreamPeer::hold(const LocalEnd& end, const wire::Open& open,
                                                   const wire::Statement& statement,
                                                   Packet& packet) noexcept {
  assert(role_ == Role::acceptor);
  if (asked_ || !has_no_memory(open)) return Errc::protocol;
  const Status made = no_throw([&] { make_record(end.listener, open.source); });
  if (!made) return made.error();
  asked_.emplace();
  asked_->attempt = open.attempt.unchecked();
  asked_->statement = statement;
  asked_->proof = open.proof;
  asked_->domain = open.domain.unchecked();
  asked_->checksums = open.checksums || wants_checksums();
  const auto beside = proved_beside(packet);
  std::copy(beside.begin(), beside.end(), asked_->beside.begin());
  asked_->beside_bytes = beside.size();
  deadline_.cancel();  // an application may decide
  return lanes_.at(kTheLane);
}

Result<std::unique_ptr<link::Lane>> StreamPeer::admit(const LocalEnd& end, PeerLane& record,
                                                      const wire::PrivateData* data) noexcept {
  assert(asked_ && record.lane == nullptr);
  const Asked asked = *std::move(asked_);
  asked_.reset();
  if (!proves(asked.proof, end.auth_key.get(), asked.statement, wire::Who::connector,
              std::span(asked.beside).first(asked.beside_bytes))) {
    return Errc::access_denied;
  }
  if (stage_ != Stage::asking) return Errc::peer_lost;
  const int fd = tcp_.get();  // the lane's, once there is one
  auto lane = make_lane(asked, asked.domain, end.auth_key.get(), end.mover);
  if (!lane) return lane.error();

  wire::Accept accept;
  accept.attempt = Wild<uint32_t>(asked.attempt);
  accept.domain = Wild<uint32_t>(end.domain);
  accept.checksums = asked.checksums;
  const auto encoded = [&] {
    return data != nullptr ? wire::encode(wire::Connected{accept, *data}) : wire::encode(accept);
  };
  const wire::PeerPacket unproved = encoded();
  accept.proof = prove(end.auth_key.get(), asked.statement, wire::Who::acceptor, unproved.view());
  record.listener = end.listener;
  if (Status sent = send_bytes(fd, encoded().view()); !sent) {
    record.lane = nullptr;
    return Errc::peer_lost;
  }
  return lane;
}

void StreamPeer::let_go(PeerLane& record) noexcept {
  assert(record.lane == nullptr && record.peer == this);
  static_cast<void>(record);
  forget_record();
}

// --- answers without a lane ----------------------------------------------------------------------

// The other side hangs up when it has read that, or we do.
void StreamPeer::say(const wire::PeerPacket& packet) noexcept {
  if (stage_ != Stage::asking || !tcp_ || !send_bytes(tcp_.get(), packet.view())) {
    return go_down(Errc::peer_lost);
  }
  ::shutdown(tcp_.get(), SHUT_WR);
  stage_ = Stage::ending;
  deadline_.set(kAnswerWithinNs, [this] { go_down(Errc::shut_down); });
}

// Hanging up says as much.
void StreamPeer::withdraw(uint32_t) noexcept {
  go_down(Errc::shut_down);
}

// --- the end of a lane ---------------------------------------------------------------------------

void StreamPeer::on_lane_ended(Errc why) noexcept {
  assert(context_.control.is_current());
  if (stage_ != Stage::carrying) return;  // its owner has given it back meanwhile
  if (why != Errc::shut_down) return go_down(why);
  const std::shared_ptr<PeerLane> record = lanes_.at(kTheLane);
  record->closed_there = true;
  context_.host.on_lane_closed(*record);
}

void StreamPeer::close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept {
  assert(!record.closed_here && record.peer == this);
  record.lane = nullptr;
  record.closed_here = true;
  if (lane == nullptr || stage_ != Stage::carrying) return go_down(Errc::shut_down);
  context_.silence.remove(*this);
  lingering_.reset(static_cast<link::tcp::StreamLane*>(lane.release()));
  note_lingering(true);
  stage_ = Stage::ending;
  deadline_.set(kLingerWithinNs, [this] { go_down(Errc::timed_out); });
  linger();
}

void StreamPeer::linger() noexcept {
  assert(stage_ == Stage::ending && lingering_ != nullptr);
  if (lingering_->linger()) return go_down(Errc::shut_down);
  const uint32_t events =
      ((lingering_->events() & POLLOUT) != 0 ? uint32_t{EPOLLOUT} : 0) | EPOLLIN;
  if (watch_ != 0) return context_.control.rewatch(watch_, events);
  auto watch = context_.control.watch(lingering_->fd(), events, [this](uint32_t) { on_events(); });
  if (!watch) return go_down(watch.error());
  watch_ = *watch;
}

// --- life ----------------------------------------------------------------------------------------

void StreamPeer::open_within(uint64_t ns) noexcept {
  if (stage_ == Stage::asking) deadline_.set(ns, [this] { go_down(Errc::timed_out); });
}

const link::tcp::StreamLane* StreamPeer::carried() const noexcept {
  const auto record = lanes_.find(kTheLane);
  if (stage_ != Stage::carrying || record == lanes_.end()) return nullptr;
  return static_cast<const link::tcp::StreamLane*>(record->second->lane);
}

void StreamPeer::begin_watch(link::Lane& lane) {
  assert(carried() == &lane);
  context_.silence.add(*this, lane);
}

bool StreamPeer::awaits_answer() const noexcept {
  const link::tcp::StreamLane* const lane = carried();
  // relaxed: a hint, ordered by PendingWatch's barriers where that matters
  return lane != nullptr && (lane->pending.load(std::memory_order_relaxed) != 0 ||
                             link::tcp::awaits_acknowledgement(lane->fd()));
}

void StreamPeer::look_for_silence() noexcept {
  const link::tcp::StreamLane* const lane = carried();
  if (lane == nullptr ||
      !link::tcp::has_fallen_silent(lane->fd(), silence_ms() * kNsPerMs, silence_))
    return;
  APERTURE_INFO("%s: nothing was heard for %u ms: the connection is closed", name().c_str(),
                static_cast<unsigned>(silence_ms()));
  go_down(Errc::peer_lost);
}

void StreamPeer::go_down(Errc why) noexcept {
  if (is_down()) return;
  context_.silence.remove(*this);
  const std::shared_ptr<Peer> keep = shared_from_this();
  if (why == Errc::protocol) {
    APERTURE_WARN("%s broke the wire protocol: it is closed", name().c_str());
  }
  context_.control.unwatch(watch_);
  watch_ = 0;
  deadline_.cancel();
  stage_ = Stage::down;
  if (lingering_ != nullptr) note_lingering(false);
  lingering_.reset();
  tcp_.reset();
  asked_.reset();
  tell_down(context_, why);
}

}  // namespace aperture::nic
