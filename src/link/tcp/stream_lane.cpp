// A lane over a stream: see stream_lane.hpp.
#include "link/tcp/stream_lane.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <utility>

#include "base/guarded_copy.hpp"
#include "base/log.hpp"
#include "link/tcp/mover.hpp"

namespace aperture::link::tcp {

namespace {

// Taken from one lane before another has its turn.
constexpr size_t kReceiveBytes = 64 * 1024;
// As much as a grant has: a system call costs as much as to copy some of that.
constexpr uint64_t kStreamPieceBytes = 64 * 1024;
// Shorter payload is copied and gathers: to send it alone would cost more.
constexpr size_t kCarriedBytes = 16 * 1024;
// Of a stream that takes nothing any more, what came before is read: more than the rings hold.
constexpr int kLastReceives = 64;

}  // namespace

Result<std::unique_ptr<StreamLane>> StreamLane::make(std::unique_ptr<Stream> stream,
                                                     StreamSpec spec) noexcept {
  assert(stream != nullptr && spec.mover != nullptr);
  auto memory = LaneMemory::make();
  if (!memory) return Errc::no_memory;
  std::unique_ptr<StreamLane> lane(
      new (std::nothrow) StreamLane(std::move(stream), std::move(spec), *std::move(memory)));
  if (lane == nullptr) return Errc::no_memory;
  return lane;
}

StreamLane::StreamLane(std::unique_ptr<Stream> stream, StreamSpec spec, LaneMemory memory) noexcept
    : stream_(std::move(stream)),
      host_(std::move(spec.host)),
      mover_(std::move(spec.mover)),
      memory_(std::move(memory)),
      ends_(memory_),
      out_(ends_, memory_.buffer(LaneMemory::out), spec.trailers.out),
      in_(ends_, memory_.buffer(LaneMemory::in), spec.trailers.in) {
  remote = spec.remote;
  remote_domain = spec.remote_domain;
  request_tx = memory_.requests_tx(LaneMemory::out);
  request_rx = memory_.requests_rx(LaneMemory::in);
  response_tx = memory_.responses_tx(LaneMemory::out);
  response_rx = memory_.responses_rx(LaneMemory::in);
  // whoever fills these channels is this very thread: it is woken by the stream, and no barrier has
  // to reach anybody
  for (ring::ChannelTx& filled : ends_.filled) filled.promise_fences(ring::FencePromise::given);
  set_states(ring::ConsumerState::asleep);
  piece_bytes = kStreamPieceBytes;
  run_bytes = Outgoing::kMostCarried * kStreamPieceBytes;
  carries = !spec.trailers.out.is_there();  // which is made of all of the payload first
}

StreamLane::~StreamLane() = default;

void StreamLane::set_states(ring::ConsumerState state) noexcept {
  for (ring::ChannelRx& drained : ends_.drained) drained.set_state(state);
}

void StreamLane::ring_doorbell() noexcept {
  if (run_ != Run::none) {
    run_ = Run::rung;
  } else if (moved_.is) {
    mover_->on_published(*this);
  }
}

void StreamLane::on_attached() noexcept {
  assert(!moved_.is && !closing_);
  const Status added = mover_->add(*this);
  if (added) return;
  APERTURE_WARN("the connection to %s cannot be waited on: %s", remote.print().c_str(),
                describe(added.error()));
  on_ended(added.error());
}

void StreamLane::on_released() noexcept {
  if (moved_.is) mover_->remove(*this);
  host_ = nullptr;
  assert(!moved_.is && !moved_.dirty && !moved_.hot);
}

// --- for who moves it ---

bool StreamLane::receive() noexcept {
  if (!stage()) return true;
  bool any = false;
  for (size_t budget = kReceiveBytes; budget != 0 && !down_;) {
    if (in_.missing_of_piece() != 0) {
      if (begin_landing()) return true;
      on_parsed(in_.on_received(0));
    } else if (!receive_some(budget)) {
      break;
    }
    any = true;
  }
  return any;
}

// One call of the stream's. True: something came.
bool StreamLane::receive_some(size_t& budget) noexcept {
  assert(!down_ && budget != 0);
  const Incoming::Places places = in_.places(budget);
  const Result<size_t> got = stream_->receive(std::span(places.iov).first(places.count));
  if (!got) {
    if (got.error() == Errc::again) return false;
    on_ended(got.error() == Errc::shut_down && !in_.was_closed() ? Errc::peer_lost : got.error());
    return false;
  }
  const size_t n = got.value();
  assert(n != 0 && n <= places.bytes);
  // less than there was room for: all of it, and to ask again would be in vain
  budget = n < places.bytes ? 0 : budget - n;
  on_parsed(in_.on_received(n));
  return true;
}

void StreamLane::on_parsed(const char* wrong) noexcept {
  if (wrong == nullptr) return;
  APERTURE_WARN("%s sent %s: the connection is closed; check that both sides run the same version",
                remote.print().c_str(), wrong);
  on_ended(Errc::protocol);
}

bool StreamLane::send() noexcept {
  while (!down_) {
    if (!out_.is_under_way() && !out_.gather(*this)) {
      set_states(ring::ConsumerState::asleep);
      return true;
    }
    if (!send_batch()) return false;
  }
  return true;
}

// True: all of it was taken, or the lane is down.
bool StreamLane::send_batch() noexcept {
  while (out_.is_under_way() && !down_) {
    const Result<size_t> taken = stream_->send(out_.pieces());
    if (!taken) {
      if (taken.error() == Errc::again || taken.error() == Errc::bad_buffer) return false;
      read_last();
      return true;
    }
    out_.on_taken(taken.value());
    taken_ += taken.value();
  }
  return true;
}

// The stream takes nothing any more. What came before the end can still be read.
void StreamLane::read_last() noexcept {
  for (int i = 0; i < kLastReceives && !down_; ++i) {
    if (!receive()) break;
  }
  if (!down_) on_ended(Errc::peer_lost);
}

void StreamLane::on_ended(Errc why) noexcept {
  assert(!down_ && why != Errc::ok);
  down_ = true;
  mark_lost();
  if (moved_.is) mover_->on_down(*this);
  if (const auto host = std::exchange(host_, nullptr); host != nullptr) host->on_stream_down(why);
}

// --- pieces by reference ---

void StreamLane::begin_pieces() noexcept {
  assert(run_ == Run::none);
  run_ = Run::begun;
}

Carried StreamLane::carry(ring::ChannelTx& tx, uint64_t position,
                          std::span<const std::byte> payload, bool stays) noexcept {
  assert(carries);
  // what goes through the rings comes before what follows it
  if (out_.holds_payload() && (!stays || !out_.may_add_piece() || out_.has_published(*this))) {
    send_held();
  }
  if (payload.size() < kCarriedBytes || !moved_.is || down_ || moved_.blocked) return Carried::no;
  if (!out_.holds_payload()) {
    if (out_.is_under_way()) return Carried::no;
    out_.gather(*this);
  }
  out_.add_piece_frame(tx, channel_of(tx), position, payload);
  if (run_ != Run::none && stays) return Carried::yes;
  return send_held() ? Carried::yes : Carried::no_source;
}

void StreamLane::end_pieces() noexcept {
  assert(run_ != Run::none);
  if (out_.holds_payload()) send_held();
  if (std::exchange(run_, Run::none) == Run::rung) ring_doorbell();
}

// False: memory was not mapped, so a frame cannot be completed, and nothing can follow it.
bool StreamLane::send_held() noexcept {
  if (down_) return true;
  const uint64_t taken_before = taken_;
  const bool sent_all = send_batch();
  if (!down_ && !out_.copy_payload_left()) {
    APERTURE_WARN("a buffer that is being sent to %s is not mapped: the connection is closed",
                  remote.print().c_str());
    on_ended(Errc::bad_buffer);
    return false;
  }
  if (!down_) mover_->on_sent(*this, sent_all, taken_ != taken_before);
  return true;
}

// False: its payload belongs into the ring.
bool StreamLane::begin_landing() noexcept {
  assert(landing.rx == nullptr && in_.missing_of_piece() != 0);
  if (!moved_.is || stream_->waiting() < in_.missing_of_piece()) return false;
  const bool is_request = in_.channel_of_piece() == wire::FrameChannel::requests;
  landing = in_.publish_landing();
  landing.rx = is_request ? &request_rx : &response_rx;
  mover_->on_landing(*this);
  return true;
}

bool StreamLane::land(std::byte* to) noexcept {
  assert(landing.rx != nullptr);
  if (down_) return false;
  const auto begin = in_.begin_of_landing();
  if (!guarded_copy(to, begin.data(), begin.size())) {
    (void)stage();
    return false;
  }
  const size_t missing = landing.length - begin.size();
  std::array<iovec, 2> places{iovec{to + begin.size(), missing}, in_.place_behind_landing()};
  const Result<size_t> got = stream_->receive(places);
  const size_t n = got ? got.value() : 0;
  if (n < missing) {
    in_.on_landed_in_part(landing.length - missing + n);
    (void)stage();
    return false;
  }
  landing = {};
  on_parsed(in_.on_landed(n - missing));
  return true;
}

bool StreamLane::stage() noexcept {
  if (landing.rx == nullptr) return true;
  const char* wrong = down_ ? nullptr : in_.on_received(0);
  while (!down_ && wrong == nullptr && in_.is_landing()) {
    const Incoming::Places places = in_.places(kReceiveBytes);
    const Result<size_t> got = stream_->receive(std::span(places.iov).first(places.count));
    if (!got) {
      on_ended(got.error() == Errc::again ? Errc::peer_lost : got.error());
      return false;
    }
    wrong = in_.on_received(got.value());
  }
  if (in_.is_landing()) return false;
  landing = {};
  on_parsed(wrong);
  return true;
}

// --- the end ---

bool StreamLane::linger() noexcept {
  assert(!moved_.is);
  // in a forked child stream and memory are its parent's
  if (down_ || mover_->life_.is_over()) return true;
  if (!finished_ && send_rest()) {
    stream_->finish();
    finished_ = true;
  }
  return down_ || await_end();
}

// True: all of it was taken, and that it was all.
bool StreamLane::send_rest() noexcept {
  for (;;) {
    if (!out_.is_under_way() && (closing_ || !out_.gather(*this))) {
      if (closing_) return true;
      out_.gather_close();
      closing_ = true;
    }
    const Result<size_t> taken = stream_->send(out_.pieces());
    if (!taken) {
      down_ = taken.error() != Errc::again;
      return false;
    }
    out_.on_taken(taken.value());
  }
}

// Reads and throws away: a socket that is closed with something unread would take back what was
// sent last.
bool StreamLane::await_end() noexcept {
  const auto buffer = memory_.buffer(LaneMemory::in);
  const iovec place{buffer.data(), buffer.size()};
  for (size_t budget = kReceiveBytes / buffer.size(); budget != 0; --budget) {
    const Result<size_t> got = stream_->receive({&place, 1});
    if (got) continue;
    down_ = got.error() != Errc::again;
    break;
  }
  return down_;
}

short StreamLane::events() const noexcept {
  return finished_ ? POLLIN : POLLIN | POLLOUT;
}

}  // namespace aperture::link::tcp
