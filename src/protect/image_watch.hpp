// Tells peers that the addresses in a key file are another program's, or nobody's.
//
// exec(2) keeps the number of the process, and peers that copy by that number would write into the
// new program. But exec first ends every thread except the one that goes on, and where a thread
// ends the kernel marks the robust futexes that it has said it holds (set_robust_list(2)): the
// control thread says so of one word of the key file, which peers read before each copy. The word
// is marked before the new program's memory is there, and likewise when the process is killed.
//
// What remains: a peer that was held up between its look at the word and its copy.
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cstdint>

namespace aperture::protect {

constexpr uint32_t kImageEnded = FUTEX_OWNER_DIED;

class ImageWatch {
 public:
  ImageWatch() noexcept = default;
  ImageWatch(const ImageWatch&) = delete;
  ImageWatch& operator=(const ImageWatch&) = delete;

  // From now on the word is marked when the calling thread ends; both outlive the thread, which
  // holds no robust mutex of the application's. Without such a call nothing marks the word.
  void begin(std::atomic<uint32_t>& word) noexcept;

 private:
  robust_list_head head_{};
  robust_list entry_{};
};

}  // namespace aperture::protect
