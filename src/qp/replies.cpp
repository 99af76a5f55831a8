// Responses that may have to wait for room: see replies.hpp.
#include "qp/replies.hpp"

#include <algorithm>
#include <new>

namespace aperture::qp {

bool Replies::put(const Reply& reply) noexcept {
  if (!core_.lane->response_tx.room(1)) return false;
  std::byte* body = core_.lane->response_tx.cells.body();
  if (static_cast<wire::Op>(reply.head.op) == wire::Op::grant) {
    wire::store(body, reply.head, reply.grant);
  } else {
    wire::store(body, reply.head);
  }
  core_.lane.publish_response(1);
  if (static_cast<wire::Op>(reply.head.op) == wire::Op::pressure) {
    bound_unasked(reply.head.word != 0);
  }
  return true;
}

// Told. Before the peer learns of room that it has not known yet it reads what it is told (see
// SendRequester::put_in_bytes), so a ring full is all that was on its way.
void Replies::bound_unasked(bool offers_only) noexcept {
  core_.unasked_bytes = offers_only ? core_.lane->request_rx.bytes.size() : QpCore::kUnbounded;
}

void Replies::keep(const Reply& reply) noexcept {
  assert(core_.lane);
  core_.busy = true;
  if (!core_.replies_waiting) answers_left_ = kAnswersToOffer * core_.offers_in;
  const auto is_of_pressure = [](const Reply& r) {
    return static_cast<wire::Op>(r.head.op) == wire::Op::pressure;
  };
  if (is_of_pressure(reply)) {
    const auto waits = std::find_if(waiting_.begin() + static_cast<std::ptrdiff_t>(next_),
                                    waiting_.end(), is_of_pressure);
    if (waits != waiting_.end()) {  // the last word alone counts
      waits->head = reply.head;
      return;
    }
  } else {
    assert(answers_left_ > 0);  // no offer comes while answers wait
    --answers_left_;
  }
  try {
    waiting_.push_back(reply);
  } catch (const std::bad_alloc&) {
    core_.break_protocol("so much that memory ran out for the answers");
  }
  core_.replies_waiting = !waiting_.empty();
}

bool Replies::flush() noexcept {
  assert(core_.replies_waiting == !waiting_.empty());
  const size_t first = next_;
  while (next_ < waiting_.size() && put(waiting_[next_])) ++next_;
  const bool any = next_ != first;
  if (next_ >= waiting_.size() - next_) {  // no more is moved than was sent
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }
  core_.replies_waiting = !waiting_.empty();
  return any;
}

}  // namespace aperture::qp
