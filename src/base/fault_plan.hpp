// The faults that a user asks for (APERTURE_FAULT, `aperture run --fault`), as a program has them:
//
//   seed=7,delay=2ms:10%,rnr=50ms:after:100,retry=0.1%,drop=1%
//
// A list of WORD=VALUE with commas between them, each word once but for delay. WHEN is a share of
// all that it may strike (`5%`, `0.1%`), or `after:N`: once, of the one that follows the first N.
// TIME is a whole number with its unit, us, ms or s, a minute at most.
//
//   seed=N           the same seed draws the same faults
//   delay=TIME:WHEN  a record or a datagram comes later by that time; of a connection nothing
//                    passes it meanwhile
//   rnr=TIME:WHEN    a message finds no receive for that time, a second if it is not said
//   retry=WHEN       no answer to an operation ever comes
//   flush=WHEN       the connection goes into its error state
//   death=WHEN       the peer dies
//   drop=WHEN, duplicate=WHEN, reorder=WHEN   of datagrams
//
// What they do is link/faulty's. A plan is a value; which of n things a fault strikes follows from
// the seed, a number of whoever draws, and n alone, so that neither threads nor time change it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace aperture {

// The n-th thing, from 0.
struct FaultWhen {
  uint64_t of_2_32 = 0;  // share of 2^32
  uint64_t after = 0;    // with is_once: that one alone
  bool is_once = false;

  bool is_ever() const noexcept { return is_once || of_2_32 != 0; }
  // draw: a number for this thing and this fault.
  bool strikes(uint64_t n, uint32_t draw) const noexcept {
    return is_once ? n == after : draw < of_2_32;
  }
};

enum class FaultKind : uint8_t { rnr, retry, flush, death, drop, duplicate, reorder };
inline constexpr size_t kFaultKinds = 7;

// The numbers that one lane, or one datagram link, draws.
class FaultDice {
 public:
  FaultDice(uint64_t seed, uint64_t number) noexcept;
  // Of the n-th thing; salt: one for each fault and what it strikes.
  uint32_t draw(uint32_t salt, uint64_t n) const noexcept;

 private:
  uint64_t key_;
};

struct FaultPlan {
  static constexpr size_t kMostDelays = 4;
  struct Delay {
    uint64_t ns = 0;
    FaultWhen when;
  };

  uint64_t seed = 0;
  bool has_seed = false;  // it was said
  std::array<Delay, kMostDelays> delays;
  size_t delay_count = 0;
  uint64_t rnr_ns = 0;
  std::array<FaultWhen, kFaultKinds> of;

  const FaultWhen& when(FaultKind kind) const noexcept { return of[static_cast<size_t>(kind)]; }
  bool delays_any() const noexcept { return delay_count != 0; }
  // By how much the n-th thing comes later: the longest delay that strikes it. 0: not at all. The
  // delays draw by `salt` and the next ones.
  uint64_t delay_ns(const FaultDice& dice, uint32_t salt, uint64_t n) const noexcept;
  // Anything that befalls a connection; a datagram.
  bool is_of_lanes() const noexcept;
  bool is_of_datagrams() const noexcept;
};

// Empty: `plan` is what the text says. Else what is wrong with it, naming the word; plan is as it
// was. By exception std::bad_alloc.
std::string read_fault_plan(std::string_view text, FaultPlan& plan);

}  // namespace aperture
