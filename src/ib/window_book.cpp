// What is named by number: see window_book.hpp.
#include "ib/window_book.hpp"

#include <cassert>
#include <new>

#include "ib/receive_queue.hpp"

namespace aperture::ib {

Status WindowBook::enter_region(uint32_t key, const protect::BindableRegion& region) noexcept {
  assert(regions_.find(protect::number_of_key(key)) == nullptr && region.entry.key == key);
  try {
    regions_.set(protect::number_of_key(key), region);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  return {};
}

const protect::BindableRegion* WindowBook::find_region(uint32_t key) const noexcept {
  const protect::BindableRegion* const region = regions_.find(protect::number_of_key(key));
  return region != nullptr && region->entry.key == key ? region : nullptr;
}

Status WindowBook::enter_srq(uint32_t number, uint32_t xrc_domain, ReceiveQueue& srq) noexcept {
  assert(srqs_.count(number) == 0);
  try {
    srqs_[number] = {xrc_domain, &srq};
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  return {};
}

void WindowBook::forget_waiter(const QueuePair& qp) noexcept {
  for (auto& [number, shared] : srqs_) shared.queue->forget(qp);
}

}  // namespace aperture::ib
