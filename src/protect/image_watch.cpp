// Saying which word the kernel is to mark: see image_watch.hpp.
#include "protect/image_watch.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>

namespace aperture::protect {

void ImageWatch::begin(std::atomic<uint32_t>& word) noexcept {
  static_assert(sizeof word == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  assert(head_.list.next == nullptr && word.load() == 0);
  // only a word with the number of the thread is marked
  // SYNC POINT: image-ended (peers find it after the handshake)
  word.store(static_cast<uint32_t>(::syscall(SYS_gettid)), std::memory_order_release);
  entry_.next = &head_.list;
  head_.list.next = &entry_;
  head_.futex_offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&entry_);
  head_.list_op_pending = nullptr;
  [[maybe_unused]] const long set = ::syscall(SYS_set_robust_list, &head_, sizeof head_);
  assert(set == 0);
}

}  // namespace aperture::protect
