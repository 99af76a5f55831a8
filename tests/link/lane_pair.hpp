// Two ends of a lane in one process, over each kind of link, for the tests of the rooms above. On
// the direct link each side may reach the other by CMA (the other is this very process), with a
// real key view and real accessor slots. A lane over a stream, and one with faults, has to be
// moved: whoever polls a side calls before_poll() and after_poll().
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "link/faulty/lane.hpp"
#include "link/faulty/mover.hpp"
#include "link/loopback/loopback.hpp"
#include "link/shm/segment.hpp"
#include "link/simulated_stream.hpp"
#include "protect/key_table.hpp"
#include "protect/peer_key_view.hpp"

namespace aperture::link::test {

// delayed and delayed_stream: shm and stream with faults on top that reorder nothing and lose
// nothing (link/faulty), at both ends.
enum class LinkKind { loopback, shm, direct, stream, delayed, delayed_stream };
inline const char* name_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::loopback: return "loopback";
    case LinkKind::shm: return "shm";
    case LinkKind::direct: return "direct";
    case LinkKind::stream: return "stream";
    case LinkKind::delayed: return "delayed";
    case LinkKind::delayed_stream: return "delayed_stream";
  }
  return "unknown";
}

// For suites that run over each of them.
inline const auto kEachLink =
    testing::Values(LinkKind::loopback, LinkKind::shm, LinkKind::direct, LinkKind::stream);
// Those whose words and bytes either side can write at any time.
inline const auto kEachShared =
    testing::Values(LinkKind::loopback, LinkKind::shm, LinkKind::direct);
inline std::string link_name(const testing::TestParamInfo<LinkKind>& info) {
  return name_of(info.param);
}

class LanePair {
 public:
  explicit LanePair(LinkKind kind) : kind_(kind) {
    keys = std::move(protect::KeyTable::create(1024)).value();
    bell_a_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bell_b_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  // The queue pairs have handed their slots back: before the segment goes.
  ~LanePair() {
    drop(Of::a);
    drop(Of::b);
    if (segment_a_ == nullptr || kind_ != LinkKind::direct) return;
    EXPECT_TRUE(keys->accessors().detach(slots(*segment_a_, shm::Side::creator)));
    EXPECT_TRUE(keys->accessors().detach(slots(*segment_a_, shm::Side::attacher)));
  }
  LanePair(const LanePair&) = delete;
  LanePair& operator=(const LanePair&) = delete;

  // A new lane, in the same segment where there is one.
  void make(protect::DomainId domain_a, protect::DomainId domain_b) {
    drop(Of::a);
    drop(Of::b);
    if (is_stream()) {
      make_streams();
    } else if (kind_ == LinkKind::loopback) {
      auto pair = loopback::make_lane_pair(bell_a_.get(), bell_b_.get());
      ASSERT_TRUE(pair.ok());
      lane_a = std::move(pair->first);
      lane_b = std::move(pair->second);
    } else {
      make_shm();
    }
    lane_a->remote_domain = domain_b;
    lane_b->remote_domain = domain_a;
    if (is_delayed()) {
      add_faults(lane_a, Of::a);
      add_faults(lane_b, Of::b);
    }
  }
  // Those that the next lanes have, each side's; tiny delays, if nothing is said.
  void set_faults(const std::string& plan) { ASSERT_EQ(read_fault_plan(plan, plan_), ""); }
  faulty::Language language = faulty::Language::request;

  // Lanes over streams: what was published arrives. Of a side that is a bare lane, whatever lies in
  // its rings was published.
  enum class Of { a, b };
  void before_poll(Of side) {
    if (is_stream()) {
      if (!apart_) move(side == Of::a ? Of::b : Of::a);
      moving(side).mover->progress();
    }
    if (is_delayed()) faults(side).mover->progress();
  }
  void after_poll(Of side) {
    if (!is_stream()) return;
    moving(side).mover->flush(true);
    if (!apart_) move(side == Of::a ? Of::b : Of::a);
  }
  void move() {
    if (!is_stream() && !is_delayed()) return;
    // what b sends at once, a has to be asked for once more
    for (int idle = 0; idle < 2; ++idle) {
      const bool any_of_a = move(Of::a);
      if (move(Of::b) || any_of_a) idle = -1;
      if (is_delayed() && (faults_a_.mover->holds_back() || faults_b_.mover->holds_back())) {
        idle = -1;
      }
    }
  }
  // Why a fault has ended the lane of a side; ok: none has.
  Errc struck(Of side) { return faults(side).struck; }
  // One that was given back.
  void linger(Lane& lane) {
    if (kind_ == LinkKind::stream) static_cast<tcp::StreamLane&>(lane).linger();
    if (kind_ != LinkKind::delayed_stream) return;
    if (auto inner = lane.take_inner()) lingering_.push_back(std::move(inner));
    for (auto& one : lingering_) static_cast<tcp::StreamLane&>(*one).linger();
  }
  // Each side is another thread's from now on.
  void set_apart() { apart_ = true; }
  // The bare lane of a side is no more, as when its process has ended.
  void drop(Of side) {
    if (bare(side) != nullptr && moved_bare(side) == bare(side).get()) bare(side)->on_released();
    moved_bare(side) = nullptr;
    bare(side).reset();
  }

  LinkKind kind() const { return kind_; }
  int bell_a() const { return bell_a_.get(); }
  int bell_b() const { return bell_b_.get(); }

  std::unique_ptr<protect::KeyTable> keys;
  std::unique_ptr<Lane> lane_a, lane_b;  // until they are attached

 private:
  static protect::SlotArray* slots(shm::Segment& segment, shm::Side side) {
    return segment.slots_of(side);
  }

  MovingSide& moving(Of side) { return side == Of::a ? moving_a_ : moving_b_; }
  std::unique_ptr<Lane>& bare(Of side) { return side == Of::a ? lane_a : lane_b; }
  Lane*& moved_bare(Of side) { return side == Of::a ? moved_bare_a_ : moved_bare_b_; }
  bool move(Of side) {
    if (bare(side) != nullptr) {
      if (moved_bare(side) != bare(side).get()) bare(side)->on_attached();
      moved_bare(side) = bare(side).get();
      bare(side)->ring_doorbell();
    }
    const bool any = moving(side).poll();
    return (is_delayed() && faults(side).mover->progress()) || any;
  }

  bool is_stream() const { return kind_ == LinkKind::stream || kind_ == LinkKind::delayed_stream; }
  bool is_delayed() const {
    return kind_ == LinkKind::delayed || kind_ == LinkKind::delayed_stream;
  }
  // What injects the faults of one side, and is told of those that end a lane.
  struct Faults final : faulty::LaneHost {
    std::shared_ptr<faulty::Mover> mover = *faulty::Mover::make();
    Errc struck = Errc::ok;
    void on_lane_struck(Lane&, Errc why) noexcept override { struck = why; }
  };
  Faults& faults(Of side) { return side == Of::a ? faults_a_ : faults_b_; }
  void add_faults(std::unique_ptr<Lane>& lane, Of side) {
    faults(side).struck = Errc::ok;
    if (!plan_.is_of_lanes()) set_faults("seed=7,delay=20us:5%,delay=200us:0.5%");
    lane = *faulty::FaultyLane::make(
        lane, {&plan_, next_number_++, language, &faults(side), faults(side).mover});
  }

  void make_streams() {
    const auto there = std::make_shared<Pipe>(), back = std::make_shared<Pipe>();
    lane_a = moving_a_.lane_over(std::make_unique<SimulatedStream>(there, back));
    lane_b = moving_b_.lane_over(std::make_unique<SimulatedStream>(back, there));
  }

  void make_segment() {
    segment_a_ = *shm::Segment::create();
    segment_b_ = *shm::Segment::attach(UniqueFd(::dup(segment_a_->fd())));
    if (kind_ != LinkKind::direct) return;
    view_ = std::make_unique<protect::PeerKeyView>(
        std::move(protect::PeerKeyView::map(UniqueFd(::dup(keys->own_file().fd())),
                                            keys->own_file().size_bytes()))
            .value());
    for (const auto side : {shm::Side::creator, shm::Side::attacher}) {
      ASSERT_TRUE(keys->accessors().attach(slots(*segment_a_, side), ::getpid()));
    }
  }

  void make_shm() {
    if (segment_a_ == nullptr) make_segment();
    shm::LanePeer to_b, to_a;
    to_b.doorbell_fd = bell_b_.get();
    to_a.doorbell_fd = bell_a_.get();
    const uint32_t index = *segment_a_->reserve_lane();
    if (kind_ == LinkKind::direct) {
      auto* const creators = slots(*segment_a_, shm::Side::creator);
      auto* const attachers = slots(*segment_a_, shm::Side::attacher);
      auto* const mapped = slots(*segment_b_, shm::Side::attacher);
      to_b.direct = {true, ::getpid(), view_.get(), creators, attachers, index};
      to_a.direct = {true, ::getpid(), view_.get(), mapped, creators, index};
    }
    lane_a = *segment_a_->open_lane(index, to_b);
    lane_b = *segment_b_->open_lane(index, to_a);
  }

  const LinkKind kind_;
  MovingSide moving_a_, moving_b_;
  Faults faults_a_, faults_b_;
  FaultPlan plan_;
  std::vector<std::unique_ptr<Lane>> lingering_;
  uint64_t next_number_ = 1;
  Lane* moved_bare_a_ = nullptr;  // by their movers, since nobody else has them
  Lane* moved_bare_b_ = nullptr;
  bool apart_ = false;
  UniqueFd bell_a_, bell_b_;
  std::shared_ptr<shm::Segment> segment_a_, segment_b_;
  std::unique_ptr<protect::PeerKeyView> view_;
};

}  // namespace aperture::link::test
