// The receiving half of a queue pair: the queue that its receives are taken from, its own or a
// shared one, and the completion queue that is told of them.
//
// Of an XRC receive queue pair both are another's: the request at hand names the receive queue, and
// that one knows where its receives complete. Guarded by the engine lock. A part of QueuePair; a
// completion that is lost brings it into the error state.
#pragma once

#include <memory>

#include "ib/cq.hpp"
#include "ib/qp_spec.hpp"
#include "ib/receive_queue.hpp"

namespace aperture::ib {

class ReceiveSide {
 public:
  // By exception std::bad_alloc.
  ReceiveSide(QueuePair& qp, const QpSpec& spec);

  ReceiveQueue* own() const noexcept { return own_.get(); }  // null with an SRQ
  ReceiveQueue& queue() noexcept { return spec_.srq != nullptr ? *spec_.srq : *own_; }
  CompletionQueue* cq() const noexcept { return cq_; }
  // XRC: the completion queue of the receive queue that the request at hand names.
  void complete_at(CompletionQueue& cq) noexcept { cq_ = &cq; }

  // A place for the completion of a receive that was taken from `from`, which is filled for a
  // success. from: null where completions are another's (XRC).
  void fill(Cqe& cqe, ReceiveQueue* from, uint64_t id, uint32_t release, WcOpcode opcode,
            uint64_t len) noexcept {
    cqe.wc.succeed(opcode, len, spec_.qpn);
    cqe.wc.id = id;
    cqe.qp = from != nullptr ? &qp_ : nullptr;
    cqe.released = from != nullptr ? from->released() : nullptr;
    cqe.release = release;
  }
  // A receive is over: say(wc) tells what is not usual about it.
  template <typename Say>
  void complete(const TakenRecv& taken, WcOpcode opcode, uint64_t len, Say&& say) noexcept {
    // of XRC it is its receive queue's, and stays when this goes
    ReceiveQueue* from = spec_.type != QpType::xrc_recv ? &queue() : nullptr;
    Cqe* cqe = cq_->next();
    if (cqe == nullptr) [[unlikely]]
      return on_overrun();
    fill(*cqe, from, taken.id, taken.release, opcode, len);
    say(cqe->wc);
    cq_->push();
  }
  void fail(const TakenRecv& taken, WcStatus status) noexcept {
    complete(taken, WcOpcode::recv, 0, [status](Wc& wc) { wc.status = status; });
  }

 private:
  [[gnu::cold]] void on_overrun() noexcept;

  QueuePair& qp_;
  const QpSpec& spec_;
  const std::unique_ptr<ReceiveQueue> own_;
  CompletionQueue* cq_;
};

}  // namespace aperture::ib
