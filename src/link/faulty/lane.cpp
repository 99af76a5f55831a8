// A lane with faults: see lane.hpp.
#include "link/faulty/lane.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "link/faulty/mover.hpp"
#include "link/faulty/setting.hpp"

namespace aperture::link::faulty {

namespace {

// What a draw is for: no two of them share their numbers.
enum Salt : uint32_t {
  kRequestDelay = 1,                                        // and the next ones
  kResponseDelay = kRequestDelay + FaultPlan::kMostDelays,  // and the next ones
  kKind = kResponseDelay + FaultPlan::kMostDelays,          // plus the kind
};
constexpr uint32_t salt_of(FaultKind kind) noexcept {
  return kKind + static_cast<uint32_t>(kind);
}

// What waits for the queue pair, which nobody rings for, is looked at again after so long.
constexpr uint64_t kLookAgainNs = 1'000'000;

constexpr size_t kWordsBytes = 2 * sizeof(ring::ChannelWords);

constexpr size_t cell_bytes(uint32_t log2_cells) noexcept {
  return ring::kCellBytes << log2_cells;
}

uint32_t log2_of(const ring::ChannelTx& tx) noexcept {
  return static_cast<uint32_t>(std::countr_zero(tx.cells.capacity()));
}

const ring::Cell* first_cell(ring::ChannelTx& tx) noexcept {
  assert(tx.cells.pos() == 0);
  return reinterpret_cast<const ring::Cell*>(tx.cells.body() - offsetof(ring::Cell, body));
}

}  // namespace

Result<std::unique_ptr<FaultyLane>> FaultyLane::make(std::unique_ptr<Lane>& inner,
                                                     LaneSpec spec) noexcept {
  assert(inner != nullptr && spec.plan != nullptr && spec.mover != nullptr);
  // both directions of a kind of channel are alike
  const uint32_t requests = log2_of(inner->request_tx);
  const uint32_t responses = log2_of(inner->response_tx);
  auto memory = Mapping::map_anonymous(kWordsBytes + cell_bytes(requests) + cell_bytes(responses));
  if (!memory) return memory.error();
  std::unique_ptr<FaultyLane> made(new (std::nothrow) FaultyLane(
      inner, std::move(spec), *std::move(memory), requests, responses));
  if (made == nullptr) return Errc::no_memory;
  return made;
}

FaultyLane::FaultyLane(std::unique_ptr<Lane>& inner, LaneSpec spec, Mapping memory,
                       uint32_t request_log2, uint32_t response_log2) noexcept
    : inner_(std::move(inner)),
      spec_(std::move(spec)),
      memory_(std::move(memory)),
      request_words_(reinterpret_cast<ring::ChannelWords*>(memory_.data())),
      response_words_(request_words_ + 1),
      dice_(spec_.plan->seed, spec_.number),
      posted_(first_cell(inner_->request_tx), request_log2) {
  auto* const request_cells = reinterpret_cast<ring::Cell*>(memory_.data() + kWordsBytes);
  auto* const response_cells =
      reinterpret_cast<ring::Cell*>(memory_.data() + kWordsBytes + cell_bytes(request_log2));
  requests_.from = inner_->request_rx.cells;
  requests_.to = {request_cells, request_log2};
  responses_.from = inner_->response_rx.cells;
  responses_.to = {response_cells, response_log2};
  request_tx = inner_->request_tx.with_words(*request_words_);
  response_tx = inner_->response_tx.with_words(*response_words_);
  request_rx = inner_->request_rx.with_cells(request_cells, request_log2);
  response_rx = inner_->response_rx.with_cells(response_cells, response_log2);
  direct.watched = inner_->direct.watched;  // it might be inside, whatever it is permitted
  direct.lane = inner_->direct.lane;
  direct.owner_only = true;
  remote = inner_->remote;
  remote_domain = inner_->remote_domain;
  to_self = inner_->to_self;
  fence_always = inner_->fence_always;
  piece_bytes = inner_->piece_bytes;
  if (inner_->watch != nullptr) watch = this;
  rests_.store(true, std::memory_order_relaxed);  // relaxed: before anybody looks; told each time
  inner_->request_tx.promise_fences(ring::FencePromise::given);  // ring_doorbell() keeps it
  set_asleep();
}

FaultyLane::~FaultyLane() {
  assert(!is_moved_);
}

void FaultyLane::set_asleep() noexcept {
  // relaxed: of this thread alone
  for (ring::ChannelWords* words : {request_words_, response_words_}) {
    words->state.store(uint64_t(ring::ConsumerState::asleep), std::memory_order_relaxed);
  }
}

void FaultyLane::on_attached() noexcept {
  assert(!is_moved_);
  if (!spec_.mover->add(*this)) return end(Errc::peer_lost);  // no memory: nobody would move it
  is_moved_ = true;
  inner_->on_attached();
}

void FaultyLane::on_released() noexcept {
  if (!is_moved_) return;
  is_moved_ = false;
  spec_.mover->remove(*this);
  show_inner();
  inner_->on_released();
}

std::unique_ptr<Lane> FaultyLane::take_inner() noexcept {
  assert(!is_moved_);
  return std::move(inner_);
}

// A link that moves its lanes by itself goes by their own ends of the channels.
void FaultyLane::show_inner() noexcept {
  inner_->request_tx.cells = request_tx.cells;
  inner_->request_tx.bytes = request_tx.bytes;
  inner_->response_tx.cells = response_tx.cells;
  inner_->response_tx.bytes = response_tx.bytes;
  inner_->request_rx = request_rx;
  inner_->response_rx = response_rx;
  // relaxed: hints
  inner_->pending.store(pending.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void FaultyLane::wake() noexcept {
  // relaxed: a hint
  inner_->pending.store(pending.load(std::memory_order_relaxed), std::memory_order_relaxed);
  inner_->watch->on_pending();
}

// --- what this side publishes ---

void FaultyLane::ring_doorbell() noexcept {
  set_asleep();
  if (!is_moved_) return;
  show_inner();
  count_operations();
  const bool requests =
      std::exchange(last_rung_requests_, request_tx.cells.pos()) != request_tx.cells.pos();
  const bool responses =
      std::exchange(last_rung_responses_, response_tx.cells.pos()) != response_tx.cells.pos();
  full_fence();  // as promised
  ring::ChannelTx& to_requests = inner_->request_tx;
  ring::ChannelTx& to_responses = inner_->response_tx;
  const bool sleeps =
      (requests && to_requests.must_ring()) || (responses && to_responses.must_ring()) ||
      to_requests.must_ring_for_acknowledgement() || to_responses.must_ring_for_acknowledgement();
  if (!sleeps) return;
  to_requests.note_rung();
  to_responses.note_rung();
  inner_->ring_doorbell();
}

void FaultyLane::count_operations() noexcept {
  while (posted_.pos() != request_tx.cells.pos()) {
    const std::byte* const body = posted_.body();
    if (begins_operation(spec_.language, body)) draw_end(posted_.pos());
    // a peer may write into the ring as well; more than was published there is not
    const uint64_t left = request_tx.cells.pos() - posted_.pos();
    const uint64_t cells = std::clamp<uint64_t>(cells_of(spec_.language, body), 1, left);
    posted_.advance(static_cast<uint32_t>(cells));
  }
}

// The faults that end a lane, of the operation whose first record that is.
void FaultyLane::draw_end(uint64_t pos) noexcept {
  const uint64_t nth = operations_++;
  if (spec_.host == nullptr || ended_ || unanswered_ != kNever) return;
  const auto strikes = [&](FaultKind kind) {
    return spec_.plan->when(kind).strikes(nth, dice_.draw(salt_of(kind), nth));
  };
  const auto say = [&](const char* word, const char* what) {
    tell("fault injected (APERTURE_FAULT, %s): lane %llu, to %s: %s its operation %llu", word,
         static_cast<unsigned long long>(spec_.number), remote.print().c_str(), what,
         static_cast<unsigned long long>(nth));
  };
  if (strikes(FaultKind::death)) {
    say("death", "the peer is taken for dead at");
    end(Errc::peer_lost);
  } else if (strikes(FaultKind::flush)) {
    say("flush", "it goes into the error state at");
    end(Errc::canceled);
  } else if (strikes(FaultKind::retry)) {
    say("retry", "nothing answers");
    unanswered_ = pos;
  }
}

void FaultyLane::end(Errc why) noexcept {
  assert(why != Errc::ok);
  if (std::exchange(ended_, true)) return;
  look_again_ns_ = 0;
  if (spec_.host != nullptr) spec_.host->on_lane_struck(*this, why);
}

// --- what the other side has published ---

bool FaultyLane::has_arrived(uint64_t now_ns) const noexcept {
  if (ended_ || now_ns < hold_until_ns_) return false;
  const auto is_due = [now_ns](const Incoming& channel) {
    return channel.from.ready() && now_ns >= channel.hold_until_ns;
  };
  const auto has_moved = [](ring::ChannelTx& tx, const ring::ChannelWords& words) {
    // SYNC POINT: channel-consumed: only looked at here, acknowledge() acts on it.
    // relaxed: ours
    return tx.words().consumed.load(std::memory_order_acquire) !=
           words.consumed.load(std::memory_order_relaxed);
  };
  return is_due(requests_) || is_due(responses_) ||
         has_moved(inner_->request_tx, *request_words_) ||
         has_moved(inner_->response_tx, *response_words_);
}

FaultyLane::Passed FaultyLane::hold(uint64_t until_ns) noexcept {
  assert(until_ns != 0);
  if (look_again_ns_ == 0 || until_ns < look_again_ns_) look_again_ns_ = until_ns;
  return Passed::held;
}

FaultyLane::Passed FaultyLane::hold(Incoming& channel, uint64_t until_ns) noexcept {
  channel.hold_until_ns = until_ns;
  return hold(until_ns);
}

bool FaultyLane::move(uint64_t now_ns) noexcept {
  look_again_ns_ = 0;
  // what comes up may do so later than in this poll: its payload is to be in the ring by then
  if (ended_ || !inner_->stage()) return false;
  show_inner();
  bool any = acknowledge(inner_->response_tx.words(), *response_words_, kNever);
  // a ring full at most: more may come all the time
  for (uint64_t budget = request_tx.cells.capacity(); budget != 0 && !ended_; --budget) {
    // what the other side had executed before it published a request comes up before it
    const bool is_request = requests_.from.ready();
    if (pass_answers(now_ns, any) == Passed::held || !is_request) break;
    if (pass(requests_, request_rx, kRequestDelay, now_ns) != Passed::one) break;
    any = true;
  }
  return any;
}

// Responses that are there, and `consumed`, which was stored after them.
FaultyLane::Passed FaultyLane::pass_answers(uint64_t now_ns, bool& any) noexcept {
  ring::ChannelWords& words = inner_->request_tx.words();
  // SYNC POINT: channel-consumed: responses stored before it are visible, and come up first
  const uint64_t consumed = words.consumed.load(std::memory_order_acquire);
  for (uint64_t budget = 2 * response_tx.cells.capacity(); budget != 0; --budget) {
    const Passed passed = pass(responses_, response_rx, kResponseDelay, now_ns);
    if (passed == Passed::held) return passed;
    if (passed == Passed::none) break;
    any = true;
  }
  if (consumed != request_words_->consumed.load(std::memory_order_relaxed)) {  // relaxed: ours
    any = acknowledge(words, *request_words_, std::min(consumed, unanswered_)) || any;
  }
  // all before it is acknowledged, as far as it was before: nobody answers that one
  if (unanswered_ != kNever && consumed >= unanswered_) end(Errc::timed_out);
  return ended_ ? Passed::held : Passed::one;
}

// `consumed`, at most so much of it, and the bytes that are free with it.
bool FaultyLane::acknowledge(ring::ChannelWords& from, ring::ChannelWords& to,
                             uint64_t at_most) noexcept {
  // SYNC POINT: channel-consumed
  const uint64_t consumed = std::min(from.consumed.load(std::memory_order_acquire), at_most);
  if (consumed == to.consumed.load(std::memory_order_relaxed)) return false;  // relaxed: ours
  // SYNC POINT: channel-bytes-consumed, as in ChannelRx::publish_consumed()
  to.bytes_consumed.store(from.bytes_consumed.load(std::memory_order_acquire),
                          std::memory_order_release);
  // SYNC POINT: channel-consumed: what was stored before it has come up
  to.consumed.store(consumed, std::memory_order_release);
  return true;
}

// One record, if there is room for it; the one that is read is ours already, and nobody changes it.
bool FaultyLane::bring_up(Incoming& channel, const ring::ChannelRx& reader) noexcept {
  channel.to.grant(reader.cells.pos());
  if (!channel.to.has_room(1)) return false;
  std::memcpy(channel.to.body(), channel.from.body(), ring::kBodyBytes);
  // nonsense is for the queue pair to see
  const uint32_t cells = std::max(cells_of(spec_.language, channel.to.body()), 1u);
  if (!channel.to.has_room(cells)) return false;
  for (uint32_t i = 1; i < cells; ++i) {
    std::memcpy(channel.to.body(i), channel.from.body(i), ring::kBodyBytes);
  }
  if (begins_message(spec_.language, channel.to.body())) ++channel.messages;
  channel.to.publish(cells);
  channel.from.advance(cells);
  ++channel.records;
  channel.is_drawn = channel.has_waited = false;
  return true;
}

// Both channels wait for one that comes later.
FaultyLane::Passed FaultyLane::pass(Incoming& channel, ring::ChannelRx& reader, uint32_t salt,
                                    uint64_t now_ns) noexcept {
  if (!channel.from.ready()) return Passed::none;
  if (now_ns < hold_until_ns_) return hold(hold_until_ns_);
  if (now_ns < channel.hold_until_ns) return hold(channel.hold_until_ns);
  if (!std::exchange(channel.is_drawn, true)) {
    if (const uint64_t ns = spec_.plan->delay_ns(dice_, salt, channel.records); ns != 0) {
      hold_until_ns_ = now_ns + ns;
      return hold(hold_until_ns_);
    }
  }
  if (&channel == &requests_ && !channel.has_waited && draw_rnr()) return await_receive(now_ns);
  return bring_up(channel, reader) ? Passed::one : hold(channel, now_ns + kLookAgainNs);
}

// Whether the next request finds no receive.
bool FaultyLane::draw_rnr() const noexcept {
  const FaultWhen& when = spec_.plan->when(FaultKind::rnr);
  if (!when.is_ever()) return false;
  std::byte body[ring::kBodyBytes];
  std::memcpy(body, requests_.from.body(), sizeof body);
  if (!begins_message(spec_.language, body)) return false;
  return when.strikes(requests_.messages, dice_.draw(salt_of(FaultKind::rnr), requests_.messages));
}

// Its sender is told when all before it is executed, so that its clock runs for this one alone.
FaultyLane::Passed FaultyLane::await_receive(uint64_t now_ns) noexcept {
  if (request_rx.cells.pos() != requests_.to.pos() || !say_not_ready()) {
    return hold(requests_, now_ns + kLookAgainNs);
  }
  requests_.has_waited = true;
  APERTURE_INFO("fault injected (APERTURE_FAULT, rnr): lane %llu, from %s: message %llu waits",
                static_cast<unsigned long long>(spec_.number), remote.print().c_str(),
                static_cast<unsigned long long>(requests_.messages));
  return hold(requests_, now_ns + spec_.plan->rnr_ns);
}

// As the queue pair would. False: there is no room for it.
bool FaultyLane::say_not_ready() noexcept {
  if (!response_tx.room(1)) return false;
  const uint8_t timer = min_rnr_timer != nullptr ? *min_rnr_timer : 0;
  if (!put_not_ready(spec_.language, response_tx.cells.body(), requests_.to.pos(), timer)) {
    return true;  // nobody counts
  }
  response_tx.cells.publish(1);
  ring_doorbell();
  return true;
}

// What is left comes up at once, faults or not.
void FaultyLane::on_lost() noexcept {
  if (ended_) return;
  ended_ = true;
  look_again_ns_ = 0;
  if (!inner_->stage()) return;
  const uint64_t consumed = inner_->request_tx.words().consumed.load(std::memory_order_acquire);
  while (responses_.from.ready() && bring_up(responses_, response_rx)) {
  }
  acknowledge(inner_->request_tx.words(), *request_words_, std::min(consumed, unanswered_));
  while (requests_.from.ready() && bring_up(requests_, request_rx)) {
  }
}

}  // namespace aperture::link::faulty
