// Sixteen threads that map, unmap, move, drop, protect, allocate and fork at random, and use what
// they have: no byte is stale, by what the resources hold and by what the kernel says.
//
// APERTURE_CACHE_SECONDS for each monitor (default 1; ./dev soak: 300), APERTURE_SEED.
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "steps.hpp"

namespace aperture::regcache::test {
namespace {

constexpr size_t kPages = 4;
constexpr size_t kLen = kPages * kPage;

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

class Soak : public Steps {
 protected:
  Soak() : Steps({.check = true}) {}

  // What a thread has, and does with it.
  class Player {
   public:
    Player(Soak& soak, uint64_t seed) : soak_(soak), random_(seed) {
      for (uint8_t*& at : places_) at = map(kLen);
    }
    ~Player() {
      for (uint8_t* const at : places_) ::munmap(at, kLen);
    }
    void play() {
      uint8_t*& at = places_[random_() % kPlaces];
      switch (random_() % 32) {
        case 0:
          ::munmap(at, kLen);
          at = map(kLen);
          break;
        case 1: map(kLen, at, MAP_FIXED); break;
        case 2:  // seldom: for a tenth of a second little is kept
          if (random_() % 16 == 0) ::madvise(at, kLen, MADV_DONTNEED);
          break;
        case 3: at = move(at); break;
        case 4:
          ::munmap(at + kPage, kPage);
          map(kPage, at + kPage, MAP_FIXED_NOREPLACE);
          break;
        case 5:
          ::mprotect(at, kPage, PROT_READ);
          ::mprotect(at, kPage, PROT_READ | PROT_WRITE);
          break;
        case 6: use_a_block(); break;
        case 7:
          if (random_() % 32 == 0) fork_over(at);
          break;
        default: break;
      }
      const size_t first = random_() % kPages;
      use(at + first * kPage, (1 + random_() % (kPages - first)) * kPage);
    }

   private:
    static constexpr size_t kPlaces = 4;

    // It grows where there is room, or moves to where there is some.
    static uint8_t* move(uint8_t* at) {
      void* const moved = ::mremap(at, kLen, 8 * kLen, MREMAP_MAYMOVE);
      if (moved == MAP_FAILED) {  // it is several mappings: none that is watched is joined
        EXPECT_EQ(errno, EFAULT);
        return at;
      }
      auto* const to = static_cast<uint8_t*>(moved);
      ::munmap(to + kLen, 7 * kLen);
      return to;
    }
    void use_a_block() {
      const size_t len = kPage + random_() % (40 * kPage);
      auto* const block = static_cast<uint8_t*>(std::malloc(len));
      use(block, len);
      std::free(block);
    }
    // A child has the pages too, writes to them, and ends.
    static void fork_over(uint8_t* at) {
      const pid_t child = ::fork();
      if (child == 0) {
        std::memset(at, 0xee, kLen);
        ::_exit(0);
      }
      std::memset(at, 0xdd, kLen);  // before or after it
      ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    }
    void use(uint8_t* at, size_t len) {
      for (size_t i = 0; i + sizeof(uint64_t) <= len; i += 512) {
        const uint64_t word = random_();
        std::memcpy(at + i, &word, sizeof word);
      }
      auto use = soak_.cache_->acquire(at, len, Access::read_write);
      ASSERT_TRUE(use) << describe(use.error());
      const std::vector<uint8_t> held = soak_.pages_.read(use->resource(), at, len);
      ASSERT_TRUE(std::equal(held.begin(), held.end(), at, at + len)) << "a stale byte";
      soak_.cache_->release(*use);
      ++soak_.uses_;
    }

    Soak& soak_;
    std::mt19937_64 random_;
    uint8_t* places_[kPlaces];
  };

  std::atomic<uint64_t> uses_{0};
};

TEST_P(Soak, no_byte_is_stale_whatever_sixteen_threads_do) {
  constexpr int kThreads = 16;
  const uint64_t seed = number_of("APERTURE_SEED", std::random_device()());
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(number_of("APERTURE_CACHE_SECONDS", 1));
  SCOPED_TRACE("APERTURE_SEED=" + std::to_string(seed));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Player player(*this, seed + static_cast<uint64_t>(t));
      while (!HasFailure() && std::chrono::steady_clock::now() < end) player.play();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Counts n = cache_->counts();
  EXPECT_EQ(n.caught, 0u) << "stale, and the monitor had not told";
  EXPECT_EQ(n.hits + n.misses, uses_);
  std::printf("%s: %llu uses, %llu hits, %llu dropped as stale\n", monitor_->name(),
              static_cast<unsigned long long>(uses_), static_cast<unsigned long long>(n.hits),
              static_cast<unsigned long long>(n.stale));
}

INSTANTIATE_TEST_SUITE_P(By, Soak, kMonitors, name_of);

}  // namespace
}  // namespace aperture::regcache::test
