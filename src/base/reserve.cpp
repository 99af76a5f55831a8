// The blocks that are set aside: see reserve.hpp.
#include "base/reserve.hpp"

#include <cassert>
#include <cstring>
#include <mutex>

#include "base/per_process.hpp"

namespace aperture::reserve {

namespace {

struct Block {
  alignas(std::max_align_t) std::byte bytes[kBlockBytes];
};

constinit ProcessLock mutex;
Block blocks[kBlocks];          // touched only when memory is short
bool taken[kBlocks];            // guarded by mutex
constinit size_t how_many = 0;  // of taken; guarded by mutex
constinit uint64_t whose = 0;   // process_epoch(); guarded by mutex

// A forked child has all blocks: what its parent had in them is not looked at any more.
void begin_anew_in_a_child() noexcept {
  if (whose == process_epoch()) return;
  whose = process_epoch();
  how_many = 0;
  std::memset(taken, 0, sizeof taken);
}

bool is_of_reserve(const void* block) noexcept {
  return block >= &blocks[0] && block < &blocks[0] + kBlocks;
}

}  // namespace

void* take(size_t bytes) noexcept {
  if (void* block = ::operator new(bytes, std::nothrow)) return block;
  if (bytes > kBlockBytes) return nullptr;
  const std::lock_guard guard(mutex);
  begin_anew_in_a_child();
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
  begin_anew_in_a_child();
  const auto i = static_cast<size_t>(static_cast<Block*>(block) - blocks);
  assert(taken[i] && how_many != 0);
  taken[i] = false;
  --how_many;
}

size_t in_use() noexcept {
  const std::lock_guard guard(mutex);
  begin_anew_in_a_child();
  return how_many;
}

}  // namespace aperture::reserve
