// Who wants to hear what hooks notice: a listener for each cache. And one change as a hook sees it,
// from before it happens until it has been told.
//
// Listeners are of the process and their memory is never given back, since a hook may look at any
// moment. A call that is none of their business costs a look at each listener's bits; one that is
// waits for nobody and allocates nothing, in a signal handler and while the application's allocator
// holds its locks too. close() alone waits: for the hooks that are just telling this listener.
//
// Threads: any. Fork: a child has its parent's listeners, which tell what nobody hears, and whose
// places it may take.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/errc.hpp"
#include "regcache/cache.hpp"
#include "regcache/watched_pages.hpp"

namespace aperture::regcache {

class HookListener {
 public:
  static constexpr size_t kMost = 64;

  enum class Hears : uint8_t {
    of_pages,           // what becomes of those in pages()
    beside_the_kernel,  // what the kernel tells nobody, wherever that is; pages() is not looked at
  };

  // Errors: no_memory, no_space (kMost are open).
  static Result<HookListener*> open(Cache& cache, Hears hears = Hears::of_pages) noexcept;
  // The cache keeps nothing that is watched any more. Afterwards none of its calls is in progress.
  void close(const Cache& cache) noexcept;
  // Of this process.
  static bool any_open() noexcept;
  // All of this process hear that anything may have changed.
  static void tell_all() noexcept;

  WatchedPages& pages() noexcept { return pages_; }

  constexpr HookListener() noexcept = default;
  HookListener(const HookListener&) = delete;
  HookListener& operator=(const HookListener&) = delete;

 private:
  friend class HookedChange;

  size_t place() const noexcept;
  bool is_open() const noexcept;

  WatchedPages pages_;
  std::atomic<uint32_t> inside_{0};  // hooks that may use cache_
  // Written while nobody is inside.
  Cache* cache_ = nullptr;
  // relaxed, wherever it is used: open_ orders, and another one's life of it matters to nobody
  std::atomic<Hears> hears_{Hears::of_pages};
  uint64_t process_ = 0;  // process_epoch() of whose it is
};

// In a hook, around the call itself. What it touches is told when it is over, also where the call
// has failed: it may have done a part of its work.
class HookedChange {
 public:
  using Of = WatchedPages::Of;
  enum class Told : uint8_t { by_the_kernel, by_nobody };  // to who watches by userfaultfd(2)
  static constexpr Range kAnything{0, ~uint64_t{0}};

  explicit HookedChange(const Range& range, Of of = Of::pages,
                        Told told = Told::by_the_kernel) noexcept
      : range_(range) {
    if (any_listener()) [[unlikely]]
      begin(of, told);
  }
  HookedChange(const void* addr, size_t len, Of of = Of::pages,
               Told told = Told::by_the_kernel) noexcept
      : HookedChange(
            Range{reinterpret_cast<uint64_t>(addr), reinterpret_cast<uint64_t>(addr) + len}, of,
            told) {}
  ~HookedChange() {
    if (told_ != 0) [[unlikely]]
      end();
  }
  HookedChange(const HookedChange&) = delete;
  HookedChange& operator=(const HookedChange&) = delete;

  // Else nothing need be known of a call.
  static bool any_listener() noexcept {
    // relaxed: who watches memory has told those who will change it
    return open_.load(std::memory_order_relaxed) != 0;
  }

 private:
  friend class HookListener;

  void begin(Of of, Told told) noexcept;
  void begin_for(size_t place) noexcept;
  void end() noexcept;

  static std::atomic<uint64_t> open_;  // a bit for each listener

  const Range range_;
  uint64_t told_ = 0;  // a bit for each listener that is to be told
};

}  // namespace aperture::regcache
