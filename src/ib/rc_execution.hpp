// What the parts that execute a peer's requests share: the access to our memory, answers, refusals.
//
// Everything asked for is a peer's word: only protect/ makes it an access. A refusal is answered if
// the connection is reliable, for which there is room whenever a request is looked at, and the
// queue pair takes nothing more. Guarded by the engine's lock. A part of RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_core.hpp"
#include "transport/remote_access.hpp"

namespace aperture::ib {

// A piece of a message or an operation, which lies inside it.
struct RcPart {
  uint32_t len = 0;
  uint32_t offset = 0;
  uint32_t total = 0;

  bool is_last() const noexcept { return len == total - offset; }
};
template <typename Fields>
bool read_part(const Fields& f, RcPart& out) noexcept {
  return f.total.bounded(kMaxMessageBytes, out.total) && f.offset.bounded(out.total, out.offset) &&
         f.len.bounded(out.total - out.offset, out.len);
}

class RcExecution {
 public:
  explicit RcExecution(RcCore& core) noexcept : q_(core), access_(core.spec().keys->access()) {}

  transport::RemoteAccess& access() noexcept { return access_; }
  const transport::RemoteAccess& access() const noexcept { return access_; }

  protect::AccessAsk ask(Wild<uint32_t> rkey, Wild<uint64_t> addr, uint64_t len,
                         protect::Rights need) const noexcept {
    return {q_.memory_.pd(), 0, Wild<uint64_t>(rkey.unchecked()), addr, Wild<uint64_t>(len), need,
            q_.id_};
  }

  // Answers the request at the head. Room has been seen to.
  template <typename Fields>
  void respond(const wire::RcHead& head, const Fields& f, uint32_t n_cells = 1) noexcept {
    wire::store_rc(q_.lane_->response_tx.cells.body(), head, f);
    q_.lane_.publish_response(n_cells);
  }
  // True: the request is over. ask: what it asked for, to be explained; or null.
  bool refuse(WcStatus status, const protect::AccessAsk* ask, protect::Denial denial) noexcept;
  // imm: a denial, or as the flags say.
  bool refuse(WcStatus status, uint8_t flags, uint32_t imm) noexcept;

 private:
  RcCore& q_;
  transport::RemoteAccess access_;
};

}  // namespace aperture::ib
