// The receiving half of the rendezvous (offer.hpp): messages that a posted buffer waits for.
//
// One entry for each, from begin() until the sink has heard of its end. The receive id that a grant
// names is an entry's index and generation. Guarded by the engine's lock.
#pragma once

#include <vector>

#include "qp/offer.hpp"
#include "qp/replies.hpp"

namespace aperture::qp {

class OfferReceiver {
 public:
  OfferReceiver(QpCore& core, Replies& replies) noexcept : core_(core), replies_(replies) {}

  // Takes the message into `receive`: on_received() of the sink follows, maybe at once. Errors:
  // peer_lost, no_memory.
  Status begin(const Arrival& offer, const Receive& receive) noexcept;
  void drop(uint32_t offer_id) noexcept;
  // The senders do not push: takes a chunk of each by ourselves, if it may be reached.
  void pull_stalled() noexcept;
  // A message could be pulled, so somebody must look at the clock.
  bool could_pull() const noexcept;
  // Every message ends with that.
  void end_all(Errc why) noexcept;

  // Response: a piece of a message.
  void on_data(const wire::SoundHead& head) noexcept;

 private:
  struct Incoming {
    bool used = false;
    uint32_t generation = 0;
    Receive receive;
    uint64_t got = 0;
    uint64_t pulled = 0;
    bool delivery = false;
    uint32_t offer_id = 0;
    uint32_t claim = wire::kNoClaim;
    uint64_t address = 0;        // in the sender
    uint64_t chunk_at = 0;       // of the chunk that we pull, what is left of it begins here
    uint64_t chunk_left = 0;     // bytes; 0: there is none
    uint64_t stalled_since = 0;  // ticks when we first waited for it

    bool can_be_pulled() const noexcept { return used && claim != wire::kNoClaim && address != 0; }
  };
  bool take_chunk_number(Incoming& in, uint64_t& chunk) noexcept;
  void pull_piece(Incoming& in, uint32_t index) noexcept;
  void end(uint32_t index, Errc err) noexcept;

  QpCore& core_;
  Replies& replies_;
  uint32_t next_pull_ = 0;          // whose turn it is
  std::vector<Incoming> incoming_;  // QpCore::incoming of them are used
  uint64_t last_data_ = 0;          // ticks when a piece of any message last came
};

}  // namespace aperture::qp
