// Messages that are shown where they lie, and then claimed or discarded (buffered.hpp). man 3
// fi_msg, "Buffered Receives"; fi_tagged, "Buffered Tagged Receives".
//
// Guarded by the engine's lock, as all of a matching. Invariants: a shown message is a claimed one
// (unexpected.hpp) under the address of its RecvContext, until it is claimed or discarded; before
// it is visible it stands in `coming_`, with a CQ entry promised; messages of one peer become
// visible in the order in which they came, so one whose bytes are on their way holds up those
// behind it.
#pragma once

#include "msg/core.hpp"
#include "msg/probe.hpp"

namespace aperture::msg {

class ShownMessages {
 public:
  explicit ShownMessages(MatchCore& core) noexcept : core_(core) {}

  // Before anything is posted. `rule` outlives this. Errors: no_memory.
  Status start(const BufferedRule& rule) noexcept;
  // The next message of that tag, here or still to come. There is room in the CQ. Errors: again.
  Status show_next(const qp::RecvWr& wr) noexcept;
  // A message has found such a receive, or the one for all untagged ones. False: no room now.
  bool on_message(qp::Qp& qp, const qp::Arrival& a, Receive& receive) noexcept;
  // Bytes that were fetched are there, or will not come.
  void on_received(Receive& fetch, Errc err) noexcept;
  // Claims or discards. Errors: invalid (it is not visible), again.
  Status end(Unexpected& u, const Probe& probe) noexcept;

 private:
  void begin_to_show(Shown& shown) noexcept;
  bool fetch(Shown& shown) noexcept;
  void lose(Shown& shown, Errc why) noexcept;
  void show_in_turn(const Address& from) noexcept;
  void show(Shown& shown) noexcept;

  MatchCore& core_;
  const BufferedRule* rule_ = nullptr;  // null: messages are received as usual
  List<Shown> coming_;                  // bytes on their way, and those behind them
};

}  // namespace aperture::msg
