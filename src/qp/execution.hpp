// What the parts that execute a peer's requests share: the access to our memory, the refusal of one
// and what it means for the operation under way, and the counts that the application sees.
//
// Everything asked for is a peer's word: only protect/ makes it an access, and what it refuses is
// answered with a nak, for which there must be room before a request is looked at. An operation in
// several requests begins with kFirst; once one is refused, the rest are stepped over. Guarded by
// the engine's lock.
#pragma once

#include <array>

#include "qp/core.hpp"
#include "transport/remote_access.hpp"

namespace aperture::qp {

class Execution {
 public:
  explicit Execution(QpCore& core) noexcept : core_(core), access_(core.port.keys.access()) {}

  transport::RemoteAccess& access() noexcept { return access_; }

  protect::AccessAsk ask(Wild<uint64_t> key, Wild<uint64_t> addr, Wild<uint64_t> len,
                         protect::Rights need, Wild<uint64_t> secret) const noexcept {
    return {core_.domain, core_.number, key, addr, len, need, core_.port.endpoint, secret};
  }

  // --- the operation under way ---

  // A request of it is at the head of the ring.
  void begin_request(const wire::SoundHead& head) noexcept {
    if (head.has(wire::kFirst)) begin_operation();
  }
  void begin_operation() noexcept {
    op_refused_ = false;
    claimed_denial_ = protect::Denial::none;
    noted_count_ = 0;
  }
  bool is_refused() const noexcept { return op_refused_; }
  // Claimed, so its initiator has its own answer, maybe from a moment before: should a piece of
  // this operation still come to us, that piece is refused.
  void refuse_later(protect::Denial denial) noexcept { claimed_denial_ = denial; }
  protect::Denial denial_so_far() const noexcept { return claimed_denial_; }
  // A refused operation is over.
  void forget_refusal() noexcept { op_refused_ = false; }

  // --- answers ---

  // The request stays at the head of the ring until the peer moves; false, as executing it says.
  bool wait_for_peer() noexcept {
    waits_for_peer_ = true;
    return false;
  }
  void clear_wait() noexcept { waits_for_peer_ = false; }
  // The head waits for a claim to end, or for room for its answer.
  bool waits_for_peer() const noexcept { return waits_for_peer_; }

  // Refuses the request at the head, and with it the operation.
  void refuse(const protect::AccessAsk& ask, protect::Denial denial, uint8_t range_at = 0) noexcept;
  void answer_nak(protect::Denial denial, uint8_t range_at = 0) noexcept;

  // --- what the application sees of it ---

  // A remote write or atomic of that many bytes has changed the region. Of one operation on several
  // ranges each region is told once.
  void note_write(protect::RegionRef region, uint64_t len) noexcept;
  void count_write() noexcept { count(core_.port.remote_write_counter); }
  void count_read() noexcept { count(core_.port.remote_read_counter); }

 private:
  static void count(Counter* counter) noexcept {
    if (counter != nullptr) counter->add(1);
  }

  QpCore& core_;
  transport::RemoteAccess access_;
  bool op_refused_ = false;  // a request of the operation under way was refused
  bool waits_for_peer_ = false;
  protect::Denial claimed_denial_ = protect::Denial::none;  // of a check that was claimed
  size_t noted_count_ = 0;  // regions that the operation has changed so far
  std::array<protect::RegionRef, kRmaIovLimit> noted_;
};

}  // namespace aperture::qp
