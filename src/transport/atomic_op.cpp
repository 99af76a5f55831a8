// Atomic operations: see atomic_op.hpp.
//
// One function for each operation on each type, found in a table. The element's bytes are read as
// one word, the new value is computed, and a compare-exchange of the words puts it in; integers
// have instructions for most of it.
#include "transport/atomic_op.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <pthread.h>

#include <array>
#include <atomic>
#include <bit>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/clock.hpp"
#include "base/per_process.hpp"
#include "transport/atomic_value.hpp"

namespace aperture::transport {

namespace {

// ---- words --------------------------------------------------------------------------------------

struct Word32 {
  std::byte bytes[32];
};
// Of that many bytes: a power of two.
template <size_t N>
using WordOf =
    std::tuple_element_t<std::countr_zero(N),
                         std::tuple<uint8_t, uint16_t, uint32_t, uint64_t, Uint128, Word32>>;

template <typename Word>
Word load_plain(const std::byte* from) noexcept {
  Word w;
  std::memcpy(&w, from, sizeof w);
  return w;
}
template <typename Word>
std::byte* bytes_of(Word& w) noexcept {
  return reinterpret_cast<std::byte*>(&w);
}
template <typename Word>
const std::byte* bytes_of(const Word& w) noexcept {
  return reinterpret_cast<const std::byte*>(&w);
}

// ---- 16 bytes at once ---------------------------------------------------------------------------

#if defined(__x86_64__)
// cmpxchg16b, and AVX: with it the vendors promise that an aligned load of 16 bytes is atomic.
// Memory that is only read may be mapped read-only, and cmpxchg16b always writes.
bool has_16_bytes() noexcept {
  static constinit FoundOnce<bool> has;
  return has.get([] {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_CMPXCHG16B) != 0 && (c & bit_AVX) != 0;
  });
}
Uint128 load_16(const std::byte* at) noexcept {
  __attribute__((vector_size(16))) long long v;
  asm volatile("movdqa %1, %0" : "=x"(v) : "m"(*reinterpret_cast<const Uint128*>(at)) : "memory");
  Uint128 w;
  std::memcpy(&w, &v, sizeof w);
  return w;
}
bool exchange_16(std::byte* at, Uint128& expected, Uint128 desired) noexcept {
  auto low = static_cast<uint64_t>(expected);
  auto high = static_cast<uint64_t>(expected >> 64);
  bool done;
  asm volatile("lock cmpxchg16b %1"
               : "=@ccz"(done), "+m"(*reinterpret_cast<Uint128*>(at)), "+a"(low), "+d"(high)
               : "b"(static_cast<uint64_t>(desired)), "c"(static_cast<uint64_t>(desired >> 64))
               : "memory");
  expected = Uint128{high} << 64 | low;
  return done;
}
#else
bool has_16_bytes() noexcept {
  return false;
}
Uint128 load_16(const std::byte*) noexcept {
  return 0;
}
bool exchange_16(std::byte*, Uint128&, Uint128) noexcept {
  return false;
}
#endif

// ---- the striped lock ---------------------------------------------------------------------------

// Of the process, not of a domain: an actor of fi_atomic(3) is a domain by its name, and all
// domains here have the same one. Held for one element.
class StripeGuard {
 public:
  explicit StripeGuard(const std::byte* at) noexcept
      : held_(stripes_[(reinterpret_cast<uintptr_t>(at) >> 4) % kStripes].held) {
    // SYNC POINT: atomic-stripe: what the last holder did to the element is visible
    for (unsigned spins = 0; held_.exchange(true, std::memory_order_acquire); ++spins) {
      if (spins < kSpins) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
  }
  // SYNC POINT: atomic-stripe
  ~StripeGuard() { held_.store(false, std::memory_order_release); }
  StripeGuard(const StripeGuard&) = delete;
  StripeGuard& operator=(const StripeGuard&) = delete;

  static void free_all() noexcept {
    // relaxed: a child has one thread
    for (Stripe& stripe : stripes_) stripe.held.store(false, std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kStripes = 64;
  static constexpr unsigned kSpins = 1000;
  struct alignas(64) Stripe {
    std::atomic<bool> held{false};
  };
  static std::array<Stripe, kStripes> stripes_;
  std::atomic<bool>& held_;
};
std::array<StripeGuard::Stripe, StripeGuard::kStripes> StripeGuard::stripes_;

// What a thread of the parent's held would never be given back in a forked child.
[[gnu::constructor]] void free_stripes_in_children() noexcept {
  (void)::pthread_atfork(nullptr, nullptr, StripeGuard::free_all);
}

// ---- one element --------------------------------------------------------------------------------

// Replaces the word at `at` by what step() makes of it, unless that says to leave it. Returns the
// former word. The application's own atomics are the other end of all this: sequentially consistent
// as theirs are by default.
template <typename Word, typename Step>
Word update(std::byte* at, Step&& step) noexcept {
  Word next;
  if constexpr (sizeof(Word) <= 8) {
    auto* word = reinterpret_cast<Word*>(at);
    Word old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (step(old, next) && !__atomic_compare_exchange_n(word, &old, next, false,
                                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return old;
  } else {
    Uint128 old = load_16(at);
    while (step(old, next) && !exchange_16(at, old, next)) {
    }
    return old;
  }
}
template <typename Word, typename Step>
Word update_locked(std::byte* at, Step&& step) noexcept {
  const StripeGuard guard(at);
  Word next;
  const Word old = load_plain<Word>(at);
  if (step(old, next)) std::memcpy(at, &next, sizeof next);
  return old;
}

// ---- what the operations do ---------------------------------------------------------------------

constexpr bool is_bitwise(AtomicOp op) noexcept {
  return op == AtomicOp::bor || op == AtomicOp::band || op == AtomicOp::bxor ||
         op == AtomicOp::mswap;
}
constexpr bool needs_order(AtomicOp op) noexcept {
  return op == AtomicOp::min || op == AtomicOp::max ||
         (op >= AtomicOp::cswap_le && op <= AtomicOp::cswap_gt);
}
constexpr bool has_meaning(AtomicOp op, AtomicClass of) noexcept {
  if (is_bitwise(op)) return of == AtomicClass::integer;
  if (needs_order(op)) return of != AtomicClass::complex;
  return true;
}

template <typename V>
typename V::Value arithmetic(AtomicOp op, typename V::Value a, typename V::Value b) noexcept {
  using T = typename V::Value;
  if constexpr (V::kClass == AtomicClass::integer) {
    using W = typename V::Wrapping;
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): modulo 2^n is what sums and products are here
    const auto x = static_cast<W>(a), y = static_cast<W>(b);
    switch (op) {
      case AtomicOp::sum: return static_cast<T>(x + y);
      case AtomicOp::diff: return static_cast<T>(x - y);
      case AtomicOp::prod: return static_cast<T>(x * y);
      case AtomicOp::bor: return static_cast<T>(x | y);
      case AtomicOp::band: return static_cast<T>(x & y);
      default: return static_cast<T>(x ^ y);
    }
  } else {
    switch (op) {
      case AtomicOp::sum: return a + b;
      case AtomicOp::diff: return a - b;
      default: return a * b;
    }
  }
}

template <AtomicOp op, typename V>
bool logical(typename V::Value a, typename V::Value b) noexcept {
  const typename V::Value zero{};
  const bool x = a != zero, y = b != zero;
  if constexpr (op == AtomicOp::lor) return x || y;
  if constexpr (op == AtomicOp::land) return x && y;
  return x != y;
}

template <AtomicOp op, typename V>
bool swaps(typename V::Value compare, typename V::Value old) noexcept {
  if constexpr (op == AtomicOp::cswap) return compare == old;
  if constexpr (op == AtomicOp::cswap_ne) return compare != old;
  if constexpr (op == AtomicOp::cswap_le) return compare <= old;
  if constexpr (op == AtomicOp::cswap_lt) return compare < old;
  if constexpr (op == AtomicOp::cswap_ge) return compare >= old;
  if constexpr (op == AtomicOp::cswap_gt) return compare > old;
  return false;
}

// The new word of the target, from the old one and the operands. False: it stays as it is.
template <AtomicOp op, typename V, typename Word>
bool step(const Word& old, const Word& operand, const Word& compare, Word& next) noexcept {
  if constexpr (op == AtomicOp::read) {
    return false;
  } else if constexpr (op == AtomicOp::write) {
    next = operand;
    return true;
  } else if constexpr (op == AtomicOp::mswap) {
    next = static_cast<Word>((operand & compare) | (old & static_cast<Word>(~compare)));
    return true;
  } else {
    const auto a = V::from(bytes_of(old));
    const auto b = V::from(bytes_of(operand));
    if constexpr (is_compare(op)) {
      next = operand;
      return swaps<op, V>(V::from(bytes_of(compare)), a);
    } else if constexpr (op == AtomicOp::min || op == AtomicOp::max) {
      next = operand;
      return op == AtomicOp::min ? b < a : b > a;
    } else if constexpr (op == AtomicOp::lor || op == AtomicOp::land || op == AtomicOp::lxor) {
      V::to(bytes_of(next), static_cast<typename V::Value>(logical<op, V>(a, b) ? 1 : 0));
      return true;
    } else {
      V::to(bytes_of(next), arithmetic<V>(op, a, b));
      return true;
    }
  }
}

// The CPU has an instruction for it that hands back the former word, or needs not.
template <AtomicOp op, typename Word>
Word instruction(Word* at, Word operand) noexcept {
  if constexpr (op == AtomicOp::sum) return __atomic_fetch_add(at, operand, __ATOMIC_SEQ_CST);
  if constexpr (op == AtomicOp::diff) return __atomic_fetch_sub(at, operand, __ATOMIC_SEQ_CST);
  if constexpr (op == AtomicOp::bor) return __atomic_fetch_or(at, operand, __ATOMIC_SEQ_CST);
  if constexpr (op == AtomicOp::band) return __atomic_fetch_and(at, operand, __ATOMIC_SEQ_CST);
  if constexpr (op == AtomicOp::bxor) return __atomic_fetch_xor(at, operand, __ATOMIC_SEQ_CST);
  return __atomic_exchange_n(at, operand, __ATOMIC_SEQ_CST);
}
template <AtomicOp op, typename V>
constexpr bool has_instruction() noexcept {
  if (V::kBytes > 8 || V::kAlignment != V::kBytes) return false;
  if (op == AtomicOp::write) return true;
  return V::kClass == AtomicClass::integer &&
         (op == AtomicOp::sum || op == AtomicOp::diff || op == AtomicOp::bor ||
          op == AtomicOp::band || op == AtomicOp::bxor);
}

template <typename V>
bool is_lock_free(const std::byte* at) noexcept {
  // only complex numbers may lie less aligned than they are long
  const bool whole = V::kAlignment == V::kBytes || reinterpret_cast<uintptr_t>(at) % V::kBytes == 0;
  return V::kBytes <= 8 ? whole : V::kBytes == 16 && whole && has_16_bytes();
}

template <AtomicOp op, typename V>
void run(std::byte* target, const std::byte* operand, const std::byte* compare, std::byte* result,
         size_t count) noexcept {
  using Word = WordOf<V::kBytes>;
  constexpr size_t n = V::kBytes;
  for (size_t i = 0; i < count; ++i, target += n) {
    Word old, with{}, against{};
    // once: the bytes may lie in memory that a peer writes to
    if constexpr (op != AtomicOp::read) with = load_plain<Word>(operand + i * n);
    if constexpr (is_compare(op)) against = load_plain<Word>(compare + i * n);
    if constexpr (has_instruction<op, V>()) {
      old = instruction<op>(reinterpret_cast<Word*>(target), with);
    } else {
      const auto one = [&](const Word& was, Word& next) {
        return step<op, V>(was, with, against, next);
      };
      if constexpr (n > 16) {
        old = update_locked<Word>(target, one);
      } else {
        old =
            is_lock_free<V>(target) ? update<Word>(target, one) : update_locked<Word>(target, one);
      }
    }
    if (result != nullptr) std::memcpy(result + i * n, &old, n);
  }
}

// ---- the table ----------------------------------------------------------------------------------

using Run = void (*)(std::byte*, const std::byte*, const std::byte*, std::byte*, size_t) noexcept;

struct TypeRow {
  size_t bytes;
  size_t alignment;
  std::array<Run, kAtomicOps> run;  // null: no such operation on this type

  constexpr AtomicTypeFacts facts() const noexcept {
    static_assert(kAtomicOps <= 32);
    uint32_t ops = 0;
    for (size_t op = 0; op < run.size(); ++op) ops |= uint32_t{run[op] != nullptr} << op;
    return {static_cast<uint8_t>(bytes), static_cast<uint8_t>(alignment), ops};
  }
};

template <typename V, size_t op>
constexpr Run cell_of() noexcept {
  if constexpr (has_meaning(static_cast<AtomicOp>(op), V::kClass)) {
    return run<static_cast<AtomicOp>(op), V>;
  } else {
    return nullptr;
  }
}
template <typename V, size_t... ops>
constexpr TypeRow row_of(std::index_sequence<ops...>) noexcept {
  return {V::kBytes, V::kAlignment, {cell_of<V, ops>()...}};
}
template <typename... Vs>
constexpr std::array<TypeRow, sizeof...(Vs)> rows_of() noexcept {
  return {row_of<Vs>(std::make_index_sequence<kAtomicOps>())...};
}

constexpr auto kTypes =
    rows_of<IntegerValue<int8_t, uint32_t>, IntegerValue<uint8_t, uint32_t>,
            IntegerValue<int16_t, uint32_t>, IntegerValue<uint16_t, uint32_t>,
            IntegerValue<int32_t, uint32_t>, IntegerValue<uint32_t, uint32_t>,
            IntegerValue<int64_t, uint64_t>, IntegerValue<uint64_t, uint64_t>, RealValue<float>,
            RealValue<double>, ComplexValue<float>, ComplexValue<double>, RealValue<long double>,
            ComplexValue<long double>, IntegerValue<Int128, Uint128>,
            IntegerValue<Uint128, Uint128>, Float16Value, Bfloat16Value, Float8E4m3Value,
            Float8E5m2Value>();
static_assert(kTypes.size() == kAtomicTypes);

template <size_t... types>
constexpr std::array<AtomicTypeFacts, kAtomicTypes> facts_of(
    std::index_sequence<types...>) noexcept {
  return {kTypes[types].facts()...};
}

}  // namespace

constexpr std::array<AtomicTypeFacts, kAtomicTypes> kAtomicTypeFacts =
    facts_of(std::make_index_sequence<kAtomicTypes>());

void execute_atomic(AtomicOp op, AtomicType type, std::byte* target, const std::byte* operand,
                    const std::byte* compare, std::byte* result, size_t count) noexcept {
  kTypes[static_cast<size_t>(type)].run[static_cast<size_t>(op)](target, operand, compare, result,
                                                                 count);
}

}  // namespace aperture::transport
