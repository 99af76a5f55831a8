// Looking at the sockets of a datagram queue pair: see datagram_end.hpp.
#include "transport/datagram_end.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/invariant.hpp"

namespace aperture::transport {

namespace {
constexpr size_t kReceiveBatch = 16;
constexpr int kDropBatches = 2048;
}  // namespace

size_t DatagramEnd::take(size_t at_most) noexcept {
  const size_t got = link_->receive(sink_, at_most);
  if (got != 0) idle_looks_ = 0;
  return got;
}

size_t DatagramEnd::receive(size_t receives) noexcept {
  if (receives != 0) [[likely]] {
    receive_deadline_ns_ = 0;
    return take(std::min(kReceiveBatch, receives));
  }
  return may_wait() ? 0 : take(kReceiveBatch);
}

size_t DatagramEnd::receive_in_vain() noexcept {
  return take(kReceiveBatch);
}

// There is no receive: whether what has come may wait for one.
bool DatagramEnd::may_wait() noexcept {
  if (receive_deadline_ns_ == 0) {
    if (!link_->anything_arrived()) return true;
    receive_deadline_ns_ = now_ns() + kReceiveTimeoutNs;
  }
  return now_ns() < receive_deadline_ns_;
}

void DatagramEnd::end_waiting() noexcept {
  APERTURE_DEBUG_ASSERT(is_waiting_for_receive());
  if (now_ns() >= receive_deadline_ns_) drop_all();
  stop();
}

void DatagramEnd::stop() noexcept {
  receive_deadline_ns_ = 0;
  if (asleep_) link_->ask_wake(true);
}

// What is there came before the receive that is there now. Bounded: more may come all the time.
void DatagramEnd::drop_all() noexcept {
  APERTURE_DEBUG_ASSERT(!dropping_);  // the sink posts nothing
  dropping_ = true;
  for (int i = 0; i < kDropBatches && link_->anything_arrived(); ++i) {
    link_->receive(sink_, kReceiveBatch);
  }
  dropping_ = false;
}

void DatagramEnd::fall_asleep() noexcept {
  asleep_ = true;
  link_->ask_wake(!is_waiting_for_receive());
}

void DatagramEnd::wake_up() noexcept {
  asleep_ = false;
  link_->ask_wake(false);
}

}  // namespace aperture::transport
