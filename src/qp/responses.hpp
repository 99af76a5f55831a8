// Taking the responses of the peer, each for the part that it belongs to, and learning by them what
// has been executed. Guarded by the engine's lock.
#pragma once

#include "qp/offer_receiver.hpp"
#include "qp/offer_sender.hpp"

namespace aperture::qp {

class Responses {
 public:
  Responses(QpCore& core, Pending& pending, OfferSender& sender, OfferReceiver& receiver) noexcept
      : core_(core), pending_(pending), sender_(sender), receiver_(receiver) {}

  // True: there was one.
  bool poll() noexcept;
  // Retires what the peer has executed, with all that it has said of it.
  void learn_executed() noexcept;
  // Room in the ring, and among the pieces that are remembered.
  bool room_for_piece(uint32_t n_cells) noexcept {
    if (!core_.pieces.has_place()) learn_executed();
    return core_.pieces.has_place() && core_.lane->request_tx.room(n_cells);
  }

 private:
  bool take(const wire::SoundHead& head) noexcept;

  QpCore& core_;
  Pending& pending_;
  OfferSender& sender_;
  OfferReceiver& receiver_;
};

}  // namespace aperture::qp
