// The sending half of the rendezvous (offer.hpp): the table of offered messages, and their pieces.
//
// A WQE is here from put() until end(); in between it may be in the list of those that have bytes
// to push. Ids are slots of the table with a generation, never 0. Guarded by the engine's lock.
#pragma once

#include <vector>

#include "qp/offer.hpp"
#include "qp/pending.hpp"

namespace aperture::qp {

class OfferSender {
 public:
  OfferSender(QpCore& core, Pending& pending) noexcept : core_(core), pending_(pending) {}

  // Offers the message. False: no room now.
  bool put(Wqe& wqe) noexcept;
  // Pushes what was granted, as far as there is room, and as one poll may: whoever receives it can
  // make room as fast as we fill it. True: something moved.
  bool push() noexcept;
  bool has_granted() const noexcept { return !granted_.empty(); }
  // There was room for more than one poll may push, or for more than there is so far.
  bool goes_on() const noexcept { return goes_on_ && has_granted(); }
  // Every offer ends with that, or with what has gone wrong with it.
  void end_all(Errc why) noexcept;

  // Responses.
  void on_grant(const wire::SoundHead& head) noexcept;
  void on_finished(const wire::SoundHead& head) noexcept;

 private:
  bool push_chunks(Wqe& wqe, uint64_t end) noexcept;
  bool is_filled(Wqe& wqe) noexcept;
  bool next_chunk(Wqe& wqe) noexcept;
  void take_claim_word(Wqe& wqe) noexcept;
  void fail(Wqe& wqe, Errc why) noexcept;
  void put_back(Wqe& wqe) noexcept;
  void end(Wqe& wqe, Errc err) noexcept;
  Wqe* find(Wild<uint64_t> id) noexcept;
  uint32_t take_id(Wqe& wqe) noexcept;

  QpCore& core_;
  Pending& pending_;
  std::vector<Wqe*> offers_;  // by message id
  std::vector<uint32_t> free_;
  List<Wqe> granted_;  // offers with bytes to push
  uint32_t generation_ = 0;
  uint32_t claims_used_ = 0;  // bit set of the lane's claims_out
  bool goes_on_ = false;      // with the next poll
};

}  // namespace aperture::qp
