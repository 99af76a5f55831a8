// Responses of the rendezvous and of back-pressure: sent at once, or kept in order until there is
// room in the response ring. Guarded by the engine's lock.
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

  QpCore& core_;
  std::vector<Reply> waiting_;  // in order; QpCore::replies_waiting says whether there are any
};

}  // namespace aperture::qp
