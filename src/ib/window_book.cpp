// What is named by number: see window_book.hpp.
#include "ib/window_book.hpp"

#include <new>

#include "ib/receive_queue.hpp"

namespace aperture::ib {

Status WindowBook::enter_region(uint32_t key, const protect::BindableRegion& region) noexcept {
  try {
    regions_.set(protect::number_of_key(key), region);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  return {};
}

Status WindowBook::enter_srq(uint32_t number, uint32_t xrc_domain, ReceiveQueue& srq) noexcept {
  try {
    srqs_[number] = {xrc_domain, &srq};
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  return {};
}

void WindowBook::forget_waiter(const Qp& qp) noexcept {
  for (auto& [number, shared] : srqs_) shared.queue->forget(qp);
}

}  // namespace aperture::ib
