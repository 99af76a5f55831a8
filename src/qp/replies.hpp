// Responses of the rendezvous and of back-pressure: sent at once, or kept in order until there is
// room in the response ring. Guarded by the engine's lock.
//
// While any is kept the peer's offers wait in their ring (Responder), so there are no more than the
// answers to those that were taken before, and one word of back-pressure.
#pragma once

#include <vector>

#include "qp/core.hpp"

namespace aperture::qp {

class Replies {
 public:
  explicit Replies(QpCore& core) noexcept : core_(core) {}

  void send(const wire::Head& head, const wire::GrantFields& grant = {}) noexcept {
    if (waiting_.empty() && put({head, grant})) return;
    keep({head, grant});
  }
  // Sends what waits, as far as there is room. True: something was.
  bool flush() noexcept;

 private:
  struct Reply {
    wire::Head head;
    wire::GrantFields grant;  // of Op::grant
  };
  bool put(const Reply& reply) noexcept;
  void bound_unasked(bool offers_only) noexcept;
  void keep(const Reply& reply) noexcept;
  // A grant of a preview, one of the message, and its end.
  static constexpr size_t kAnswersToOffer = 3;

  QpCore& core_;
  // In order, those before next_ sent; QpCore::replies_waiting says whether there are any.
  std::vector<Reply> waiting_;
  size_t next_ = 0;
  size_t answers_left_ = 0;  // that may still be kept until none wait
};

}  // namespace aperture::qp
