// What the fuzzers of lanes share: a world that outlives the inputs, the peer's end of a lane, and
// what any peer may write there whichever queue pair is its victim.
//
// One thread plays both sides. The input is a program of small steps: see steps.hpp.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "fuzz/steps.hpp"
#include "link/loopback/loopback.hpp"
#include "link/shm/segment.hpp"
#include "protect/key_table.hpp"
#include "protect/peer_key_view.hpp"
#include "transport/claim.hpp"

namespace aperture::fuzz {

// Memory to be registered, between canaries.
class GuardedMemory {
 public:
  static constexpr size_t kBytes = 8192;

  GuardedMemory() { std::fill(std::begin(all_), std::end(all_), kMark); }
  std::byte* data() noexcept { return all_ + kBytes; }
  uint64_t address() noexcept { return reinterpret_cast<uint64_t>(data()); }
  void check() const {
    for (size_t i = 0; i < kBytes; ++i) {
      require(all_[i] == kMark && all_[2 * kBytes + i] == kMark, "a canary has changed");
    }
  }

 private:
  static constexpr std::byte kMark{0xa5};
  std::byte all_[3 * kBytes];
};

// What outlives an input: the key table with a region of either side, and one segment.
struct LaneWorld {
  static constexpr size_t kRegion = GuardedMemory::kBytes;

  explicit LaneWorld(size_t regions) {
    keys = std::move(protect::KeyTable::create(static_cast<uint32_t>(regions))).value();
    bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    own = protect::new_domain();
    theirs = protect::new_domain();
  }
  // When the regions that are never closed have been added.
  void open_segment() {
    view = std::make_unique<protect::PeerKeyView>(
        std::move(protect::PeerKeyView::map(UniqueFd(::dup(keys->own_file().fd())),
                                            keys->own_file().size_bytes()))
            .value());
    segment = *link::shm::Segment::create();
    attached = *link::shm::Segment::attach(UniqueFd(::dup(segment->fd())));
    auto* slots = segment->slots_of(link::shm::Side::creator);
    require(keys->accessors().attach(slots, ::getpid()).ok(), "no slots");
  }
  static protect::RegionSpec spec_of(protect::DomainId pd, std::byte* at, size_t n, uint64_t key,
                                     protect::Rights rights) {
    protect::RegionSpec spec;
    spec.pd = pd;
    spec.base = reinterpret_cast<uint64_t>(at);
    spec.length = n;
    spec.rights = rights;
    spec.requested_key = key;
    return spec;
  }
  protect::RegionHandle add(const protect::RegionSpec& spec,
                            std::unique_ptr<protect::SideRecord> side = nullptr) {
    const auto made = keys->add(spec, std::move(side));
    require(made.ok(), "no region");
    return made.value();
  }

  std::unique_ptr<protect::KeyTable> keys;
  std::unique_ptr<protect::PeerKeyView> view;
  std::shared_ptr<link::shm::Segment> segment, attached;
  int bell = -1;
  protect::DomainId own = 0, theirs = 0;
  GuardedMemory memory, peer_memory;  // the victim's, and what it may write and read at the peer
};

class LaneGame {
 public:
  LaneGame(const LaneGame&) = delete;
  LaneGame& operator=(const LaneGame&) = delete;

 protected:
  LaneGame(Steps& steps, LaneWorld& world, bool direct)
      : steps_(steps), lane_world_(world), direct_(direct) {}
  ~LaneGame() = default;

  // The victim's end of a new lane.
  std::unique_ptr<link::Lane> connect() {
    LaneWorld& w = lane_world_;
    std::unique_ptr<link::Lane> ours;
    if (direct_) {
      lane_index_ = *w.segment->reserve_lane();
      link::shm::LanePeer them, us;
      them.doorbell_fd = us.doorbell_fd = w.bell;
      them.direct = {true, ::getpid(), w.view.get(), w.segment->slots_of(link::shm::Side::creator)};
      ours = *w.segment->open_lane(lane_index_, them);
      peer_ = *w.attached->open_lane(lane_index_, us);
      require(peer_->prepare_request_bytes() && peer_->prepare_response_bytes(), "no memory");
    } else {
      auto pair = std::move(link::loopback::make_lane_pair(w.bell, w.bell)).value();
      ours = std::move(pair.first);
      peer_ = std::move(pair.second);
    }
    ours->remote_domain = w.theirs;
    return ours;
  }
  // When the victim's end has gone.
  void disconnect() {
    peer_.reset();
    if (direct_) lane_world_.segment->release_lane(lane_index_);
  }

  // A number as a peer would choose it. known(which, small) is one of four that the family of the
  // queue pair knows: which is 3, 4, 6 or 7.
  template <typename Known>
  uint64_t choose(Known&& known) {
    const uint8_t how = steps_.take<uint8_t>();
    const uint64_t small = steps_.take<uint8_t>();
    switch (how % 12) {
      case 0: return steps_.take<uint64_t>();
      case 1: return small;
      case 2: return peer_->request_tx.cells.pos() - small;
      case 5: return lane_world_.memory.address() + small;
      case 8: return ~uint64_t{0} - small;
      case 9: return small << 12;
      case 10:
        return transport::claim_word(peer_->request_tx.cells.pos() - small / 4,
                                     static_cast<transport::ClaimState>(small % 4));
      case 11: return uint64_t{1} << (small % 64);
      default: return known(how % 12, small);
    }
  }

  // Any word of the four channels and, where `words` is 8 and not 6, the claims of offers.
  template <typename Value>
  void scribble_word(unsigned words, Value&& value) {
    ring::ChannelWords* channels[4] = {&peer_->request_tx.words(), &peer_->request_rx.words(),
                                       &peer_->response_tx.words(), &peer_->response_rx.words()};
    const uint8_t which = steps_.take<uint8_t>();
    ring::ChannelWords& w = *channels[which % 4];
    const uint64_t v = value();
    switch (which / 4 % words) {
      case 0: w.consumed.store(v); break;
      case 1: w.bytes_consumed.store(v); break;
      case 2: w.executing.store(v); break;
      case 3: w.state.store(static_cast<uint32_t>(v)); break;
      case 4:
        w.polls.store(v);
        w.gate.store(v >> 5);
        break;
      case 5: w.claim.store(v); break;
      case 6:
        if (peer_->claims_in != nullptr) peer_->claims_in[v % link::Lane::kClaims].store(v >> 5);
        break;
      case 7:
        if (peer_->claims_out != nullptr) peer_->claims_out[v % link::Lane::kClaims].store(v >> 5);
        break;
    }
  }

  void scribble_bytes() {
    ring::ChannelTx& tx = steps_.take<uint8_t>() % 2 == 0 ? peer_->request_tx : peer_->response_tx;
    const uint64_t at = steps_.take<uint16_t>() % (tx.bytes.size() - 64);
    std::memset(tx.bytes.at(at), steps_.take<uint8_t>(), 64);
  }

  // What the victim said, as a peer can see it: cells_at(body) looks at one cell and says how many
  // its message takes.
  template <typename CellsAt>
  static void look(ring::ChannelRx& rx, CellsAt&& cells_at) {
    for (int n = 0; n < 64 && rx.cells.ready(); ++n) rx.cells.advance(cells_at(rx.cells.body()));
  }

  void acknowledge() {
    peer_->request_rx.publish_consumed();
    peer_->response_rx.publish_consumed();
  }

  // A nonsensical message takes a cell, too.
  static void publish(ring::ChannelTx& tx, uint32_t cells) {
    tx.cells.publish(cells == 0 ? 1 : cells);
  }

  Steps& steps_;
  LaneWorld& lane_world_;
  const bool direct_;
  std::unique_ptr<link::Lane> peer_;  // the fuzzer's end
  uint32_t lane_index_ = 0;
  uint64_t polls_ = 0;
};

// One input: its first byte says how the game is set up, the others are its steps.
template <typename Game>
int play(const uint8_t* data, size_t size) {
  if (size > 8192) return 0;
  Steps steps(data, size);
  const auto how = steps.take<uint8_t>();
  Game game(steps, how);
  for (int budget = 0; steps.more() && budget < 2000; ++budget) {
    game.step(steps.take<uint8_t>() % 12);
  }
  return 0;
}

}  // namespace aperture::fuzz
