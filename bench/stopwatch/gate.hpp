// Where several parties meet before they are timed, and part when the last has had its time: their
// rates are of one interval, in which all of them ran.
//
// Lives in shared pages that were made before the processes; its words are written by all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "stopwatch/pages.hpp"
#include "stopwatch/pair.hpp"

namespace aperture::bench {

// Why one that waited in vain has failed.
inline constexpr char kNotAllCame[] = "the others did not keep up with it";

// Whether a reason only says that another party or side has failed.
inline bool is_consequence(const char* reason) noexcept {
  return std::strstr(reason, kNotAllCame) != nullptr || std::strstr(reason, kPeerGone) != nullptr;
}

class Gate {
 public:
  explicit Gate(unsigned parties);

  // Sleeps until all parties have come; the time at which the last one did. Throws Failure when one
  // does not come for longer than several operations may take, or was given up.
  uint64_t pass();

  // The caller has had its time; once for each party.
  void leave();
  // The time at which the last party left; 0 while some have not. Throws when one was given up.
  uint64_t closed_ns() const;
  // The same, slept for as long as pass() would.
  uint64_t await_closed() const;

  // A party has failed: no other waits for it.
  void give_up() noexcept;

 private:
  struct Words {
    std::atomic<uint32_t> arrived, left;
    std::atomic<uint64_t> opened_ns, closed_ns;  // 0: not yet; kGivenUp
  };
  static constexpr uint64_t kGivenUp = UINT64_MAX;

  Words& words() const noexcept { return *reinterpret_cast<Words*>(pages_.data()); }
  void count(std::atomic<uint32_t>& come, std::atomic<uint64_t>& at_ns);
  static uint64_t seen(const std::atomic<uint64_t>& at_ns);
  static uint64_t await(const std::atomic<uint64_t>& at_ns);

  const unsigned parties_;
  Pages pages_;
};

}  // namespace aperture::bench
