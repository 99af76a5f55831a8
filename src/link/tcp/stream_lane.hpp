// A lane over a stream: the rings lie in memory of this process, and what is published in one end's
// is carried to the other's in frames (wire/frame.hpp).
//
// The ring stays the credit: a frame is only made of what the producer could publish, so the other
// side has a place for it, and requests that wait there hold up no response. What the other side
// has consumed comes back in frames of its own. Everything that arrives is checked before it is
// placed; the first frame that no sound peer sends ends the lane.
//
// `state` of an outgoing channel is the link's own: it says asleep while the link has sent all that
// was published, so that whoever publishes next rings, which puts the lane where the mover finds
// it. No word of a channel but `consumed` and `bytes_consumed` travels.
//
// Owned by a queue pair and moved by its engine's mover, with the engine's lock; by the control
// thread before and after.
#pragma once

#include <cstdint>
#include <memory>

#include "link/lane.hpp"
#include "link/tcp/incoming.hpp"
#include "link/tcp/lane_memory.hpp"
#include "link/tcp/outgoing.hpp"
#include "link/tcp/stream.hpp"
#include "wire/frame.hpp"

namespace aperture::link::tcp {

class Mover;

// Who is told that a stream has ended.
class StreamHost {
 public:
  virtual ~StreamHost() = default;
  // Once, on the thread that moves the lane and with its engine's lock: hand over and return.
  // shut_down: the other side has given the lane back, in order; peer_lost; protocol: it sent what
  // no sound peer sends; bad_buffer: memory that was being sent is not mapped. The lane is lost()
  // already.
  virtual void on_stream_down(Errc why) noexcept = 0;
};

struct StreamSpec {
  Address remote;
  uint32_t remote_domain = 0;
  wire::FrameTrailers trailers;      // of all frames
  std::shared_ptr<StreamHost> host;  // null: nobody is told
  std::shared_ptr<Mover> mover;      // of the engine that the lane's queue pair belongs to
};

class StreamLane final : public Lane {
 public:
  // Errors: no_memory.
  static Result<std::unique_ptr<StreamLane>> make(std::unique_ptr<Stream> stream,
                                                  StreamSpec spec) noexcept;
  ~StreamLane() override;
  // Mapped and held by one lane, whatever it carries; most of it is never touched.
  static constexpr size_t kMappedBytes = LaneMemory::kBytes;

  bool prepare_request_bytes() noexcept override { return true; }
  bool prepare_response_bytes() noexcept override { return true; }
  void ring_doorbell() noexcept override;
  void on_attached() noexcept override;
  void on_released() noexcept override;
  Carried carry(ring::ChannelTx& tx, uint64_t position, std::span<const std::byte> payload,
                bool stays) noexcept override;
  void begin_pieces() noexcept override;
  void end_pieces() noexcept override;
  bool land(std::byte* to) noexcept override;
  bool stage() noexcept override;

  // --- for who moves it ---

  // Takes what has come, a bounded part of it. True: anything.
  bool receive() noexcept;
  // Sends what was published, and what was consumed. True: nothing is left that could be sent.
  bool send() noexcept;
  int fd() const noexcept { return stream_->fd(); }

  // --- the end, once it is released: the control thread's ---

  // Sends on what had been published before, then says that this was all. True: that has gone out,
  // and the other side has ended, too, or cannot any more; else to be called again when fd() is
  // ready for `events()` of poll(2).
  bool linger() noexcept;
  short events() const noexcept;

 private:
  friend class Mover;

  // What its mover knows of it, and whoever releases it resets.
  struct Moved {
    bool is = false;       // a mover has it
    size_t index = 0;      // among the lanes of that mover
    bool dirty = false;    // in its list of those that have something to send
    bool blocked = false;  // it waits until the stream takes more
    bool hot = false;      // received from in each poll
    bool landing = false;  // in its list of those with payload that is put into the ring at the end
    uint64_t last_sent_ticks = 0;
    uint64_t last_arrival = 0;  // a count of the mover's polls
  };

  StreamLane(std::unique_ptr<Stream> stream, StreamSpec spec, LaneMemory memory) noexcept;
  bool receive_some(size_t& budget) noexcept;
  void on_parsed(const char* wrong) noexcept;
  bool send_batch() noexcept;
  bool send_held() noexcept;
  bool begin_landing() noexcept;
  wire::FrameChannel channel_of(const ring::ChannelTx& tx) const noexcept {
    return &tx == &request_tx ? wire::FrameChannel::requests : wire::FrameChannel::responses;
  }
  bool send_rest() noexcept;
  bool await_end() noexcept;
  void read_last() noexcept;
  void on_ended(Errc why) noexcept;
  void set_states(ring::ConsumerState state) noexcept;
  // What is not sent at once is published: from now on it rings for what else is.
  void wait_for_company() noexcept { set_states(ring::ConsumerState::asleep_for_records); }
  bool has_urgent() noexcept { return out_.has_urgent(*this); }

  std::unique_ptr<Stream> stream_;
  std::shared_ptr<StreamHost> host_;  // until it is told, or the lane released
  const std::shared_ptr<Mover> mover_;
  LaneMemory memory_;
  LinkEnds ends_;
  Outgoing out_;
  Incoming in_;
  Moved moved_;
  enum class Run : uint8_t { none, begun, rung } run_ = Run::none;  // of pieces
  uint64_t taken_ = 0;     // bytes, by the stream while a mover had it
  bool down_ = false;      // nothing is sent or received any more
  bool closing_ = false;   // the close was put into a frame
  bool finished_ = false;  // and all of it was taken
};

}  // namespace aperture::link::tcp
