// The queue of what is posted: see requester.hpp.
#include "qp/requester.hpp"

#include "qp/qp.hpp"

namespace aperture::qp {

// What waits in the ring is executed, and nothing is looked at that only time moves.
void Requester::serve_peer() noexcept {
  core_.one_sided.forget_copied();
  if (core_.lane && core_.lane->request_rx.cells.ready()) core_.qp.poll(1);
}

// Puts as much of the operation into the ring as there is room for. True: it needs the send queue
// no longer (and may be gone).
bool Requester::start(Wqe& wqe) noexcept {
  const bool is_rma = wqe.kind != WqeKind::send;
  if (wqe.fence && core_.under_way() && !(is_rma && wqe.in_ring)) return false;
  if (!is_rma) return sends_.put(wqe);
  return is_atomic(wqe.kind) ? atomics_.put(wqe) : rma_.put(wqe);
}

void Requester::run() noexcept {
  assert(core_.state == QpState::ready);
  while (Wqe* wqe = core_.queue.front()) {
    // out of the list first: start() moves it to another one, or gives it back
    core_.queue.remove(wqe);
    if (!start(*wqe)) {
      core_.queue.push_front(wqe);
      return;
    }
    core_.leave_queue();
  }
}

Status Requester::cancel(void* context) noexcept {
  List<Wqe>& queue = core_.queue;
  for (Wqe* wqe = queue.front(); wqe != nullptr; wqe = queue.after(wqe)) {
    if (wqe->context != context || wqe->in_ring || wqe->done != 0) continue;
    queue.remove(wqe);
    core_.leave_queue();
    wqe->error = Errc::canceled;
    pending_.complete(*wqe);
    return {};
  }
  return Errc::no_entry;
}

void Requester::end_all(Errc why) noexcept {
  APERTURE_DEBUG_ASSERT(core_.state == QpState::dead && why != Errc::ok);
  while (Wqe* wqe = core_.queue.pop_front()) {
    core_.leave_queue();
    if (wqe->error == Errc::ok) wqe->error = why;
    pending_.complete(*wqe);
  }
}

}  // namespace aperture::qp
