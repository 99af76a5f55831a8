// The blocks that are set aside: see reserve.hpp.
#include "base/reserve.hpp"

#include <cassert>
#include <mutex>

namespace aperture::reserve {

namespace {

struct Block {
  alignas(std::max_align_t) std::byte bytes[kBlockBytes];
};

constinit std::mutex mutex;     // has nothing to destroy: used until the process ends
Block blocks[kBlocks];          // touched only when memory is short
bool taken[kBlocks];            // guarded by mutex
constinit size_t how_many = 0;  // of taken; guarded by mutex

bool is_of_reserve(const void* block) noexcept {
  return block >= &blocks[0] && block < &blocks[0] + kBlocks;
}

}  // namespace

void* take(size_t bytes) noexcept {
  if (void* block = ::operator new(bytes, std::nothrow)) return block;
  if (bytes > kBlockBytes) return nullptr;
  const std::lock_guard guard(mutex);
  for (size_t i = 0; i < kBlocks; ++i) {
    if (taken[i]) continue;
    taken[i] = true;
    ++how_many;
    assert(how_many <= kBlocks);
    return &blocks[i];
  }
  return nullptr;
}

void give(void* block) noexcept {
  if (!is_of_reserve(block)) return ::operator delete(block);
  const std::lock_guard guard(mutex);
  const auto i = static_cast<size_t>(static_cast<Block*>(block) - blocks);
  assert(taken[i] && how_many != 0);
  taken[i] = false;
  --how_many;
}

size_t in_use() noexcept {
  const std::lock_guard guard(mutex);
  return how_many;
}

}  // namespace aperture::reserve
