// What atomics do to memory, each on each type, against a second implementation; and that elements
// are atomic with one another and with the owner's own atomics. (man 3 fi_atomic.)
#include "transport/atomic_op.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "doors/atomic_reference.hpp"

namespace aperture::transport {
namespace {

using namespace aperture::doors;

constexpr size_t kElements = 3;

void run(int op, int type, void* target, const void* operand, const void* compare, void* result,
         size_t count) {
  execute_atomic(static_cast<AtomicOp>(op), static_cast<AtomicType>(type),
                 static_cast<std::byte*>(target), static_cast<const std::byte*>(operand),
                 static_cast<const std::byte*>(compare), static_cast<std::byte*>(result), count);
}

bool offered(int kind, int op, int type) {
  return atomic_offered(static_cast<AtomicKind>(kind), static_cast<AtomicOp>(op),
                        static_cast<AtomicType>(type));
}

TEST(AtomicOp, sizes_and_alignments_are_those_of_C) {
  for (int type = 0; type < kRefTypes; ++type) {
    EXPECT_EQ(atomic_size(static_cast<AtomicType>(type)), ref_size(type)) << type;
    EXPECT_EQ(atomic_alignment(static_cast<AtomicType>(type)), ref_alignment(type)) << type;
  }
  EXPECT_EQ(atomic_size(static_cast<AtomicType>(kRefTypes)), 0u);
  EXPECT_EQ(atomic_size(static_cast<AtomicType>(255)), 0u);
}

TEST(AtomicOp, what_is_offered_and_nothing_else) {
  for (int kind = 0; kind < kRefKinds; ++kind) {
    for (int op = 0; op < kRefOps; ++op) {
      for (int type = 0; type < kRefTypes; ++type) {
        EXPECT_EQ(offered(kind, op, type), ref_offered(kind, op, type))
            << kind << " " << op << " " << type;
      }
    }
  }
  for (const int nonsense : {20, 21, 64, 128, 255}) {
    EXPECT_FALSE(offered(0, nonsense, kUint64));
    EXPECT_FALSE(offered(0, kSum, nonsense));
    EXPECT_FALSE(offered(nonsense, kSum, kUint64));
  }
}

// Each pair of interesting values, on an element in the middle of others.
void compare_with_reference(int op, int type) {
  const size_t n = ref_size(type);
  alignas(16) unsigned char target[kElements * 32 + 32], before[sizeof target];
  unsigned char operand[kElements * 32 + 1], against[kElements * 32 + 1],
      result[kElements * 32 + 1], next[32];
  for (unsigned i = 0; i < kRefValues; ++i) {
    for (unsigned j = 0; j < kRefValues; ++j) {
      std::memset(target, 0xee, sizeof target);
      for (unsigned e = 0; e < kElements; ++e) {
        ref_value(type, i + e, target + 16 + e * n);
        ref_value(type, j + 2 * e, operand + 1 + e * n);  // operands need no alignment
        ref_value(type, i + e + j % 3, against + 1 + e * n);
      }
      std::memcpy(before, target, sizeof target);
      run(op, type, target + 16, operand + 1, against + 1, result + 1, kElements);
      for (unsigned e = 0; e < kElements; ++e) {
        ref_step(op, type, before + 16 + e * n, operand + 1 + e * n, against + 1 + e * n, next);
        ASSERT_TRUE(ref_same(type, next, target + 16 + e * n)) << i << " " << j << " " << e;
        ASSERT_EQ(std::memcmp(result + 1 + e * n, before + 16 + e * n, n), 0) << "former value";
      }
      ASSERT_EQ(std::memcmp(before, target, 16), 0) << "before the target";
      ASSERT_EQ(std::memcmp(before + 16 + kElements * n, target + 16 + kElements * n, 16), 0);
    }
  }
}

TEST(AtomicOp, every_operation_on_every_type_does_what_the_page_says) {
  for (int op = 0; op < kRefOps; ++op) {
    for (int type = 0; type < kRefTypes; ++type) {
      if (!ref_offered(kFetch, op, type) && !ref_offered(kCompare, op, type)) continue;
      SCOPED_TRACE("operation " + std::to_string(op) + " on type " + std::to_string(type));
      compare_with_reference(op, type);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(AtomicOp, complex_numbers_need_only_the_alignment_of_their_parts) {
  alignas(32) unsigned char memory[64];
  for (const int type : {kFloatComplex, kDoubleComplex, kLongDoubleComplex}) {
    const size_t part = ref_size(type) / 2;
    unsigned char* at = memory + part;
    unsigned char old[32], operand[32], next[32];
    ref_value(type, 3, at);
    ref_value(type, 4, operand);
    std::memcpy(old, at, ref_size(type));
    ref_step(kProd, type, old, operand, operand, next);
    run(kProd, type, at, operand, nullptr, nullptr, 1);
    EXPECT_TRUE(ref_same(type, at, next)) << type;
  }
}

TEST(AtomicOp, every_code_of_the_small_floating_point_types_survives) {
  for (const int type : {kFloat16, kBfloat16, kFloat8E4m3, kFloat8E5m2}) {
    const unsigned codes = ref_size(type) == 1 ? 256 : 65536;
    const unsigned step = codes == 256 ? 1 : 7;
    for (unsigned code = 0; code < codes; code += step) {
      // x * 1 is x, and is encoded anew
      alignas(2) uint16_t target = static_cast<uint16_t>(code);
      uint16_t one = static_cast<uint16_t>(encode_small(type, 1.0));
      run(kProd, type, &target, &one, nullptr, nullptr, 1);
      const uint16_t expected = static_cast<uint16_t>(code);
      ASSERT_TRUE(ref_same(type, &target, &expected)) << type << " " << code;
    }
  }
}

TEST(AtomicOp, small_floating_point_sums_are_rounded_to_nearest_even) {
  for (const int type : {kFloat8E4m3, kFloat8E5m2}) {
    for (unsigned a = 0; a < 256; ++a) {
      for (unsigned b = 0; b < 256; b += 3) {
        uint8_t target = static_cast<uint8_t>(a), operand = static_cast<uint8_t>(b), next = 0;
        ref_step(kSum, type, &target, &operand, &operand, &next);
        run(kSum, type, &target, &operand, nullptr, nullptr, 1);
        ASSERT_TRUE(ref_same(type, &target, &next)) << type << ": " << a << " + " << b;
      }
    }
  }
}

// ---- concurrency -------------------------------------------------------------------------------

constexpr unsigned kThreads = 3;
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kRounds = 3000;
#else
constexpr unsigned kRounds = 30000;
#endif

template <typename Body>
void in_threads(Body body) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back([=] { body(t); });
  for (std::thread& thread : threads) thread.join();
}

TEST(AtomicOp, sums_of_several_threads_lose_nothing) {
  for (int type = 0; type < kFloat16; ++type) {
    alignas(64) unsigned char target[32] = {};
    unsigned char one[32], expected[32];
    std::memset(one, 0, sizeof one);
    std::memset(expected, 0, sizeof expected);
    ref_value(type, is_integer(type) ? 1 : 2, one);
    in_threads([&](unsigned) {
      for (unsigned i = 0; i < kRounds; ++i) run(kSum, type, target, one, nullptr, nullptr, 1);
    });
    for (unsigned i = 0; i < kThreads * kRounds; ++i) {
      unsigned char next[32];
      ref_step(kSum, type, expected, one, one, next);
      std::memcpy(expected, next, ref_size(type));
    }
    EXPECT_TRUE(ref_same(type, target, expected)) << "type " << type;
  }
}

TEST(AtomicOp, the_owners_own_atomics_are_respected) {
  alignas(64) uint64_t integer = 0;
  alignas(64) double real = 0;
  in_threads([&](unsigned t) {
    const uint64_t one = 1;
    const double real_one = 1;
    for (unsigned i = 0; i < kRounds; ++i) {
      if (t == 0) {
        __atomic_fetch_add(&integer, 1, __ATOMIC_RELAXED);
        uint64_t old_bits, new_bits;
        auto* bits = reinterpret_cast<uint64_t*>(&real);
        old_bits = __atomic_load_n(bits, __ATOMIC_RELAXED);
        do {
          double v;
          std::memcpy(&v, &old_bits, sizeof v);
          v += 1;
          std::memcpy(&new_bits, &v, sizeof v);
        } while (!__atomic_compare_exchange_n(bits, &old_bits, new_bits, false, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
      } else {
        run(kSum, kUint64, &integer, &one, nullptr, nullptr, 1);
        run(kSum, kDouble, &real, &real_one, nullptr, nullptr, 1);
      }
    }
  });
  EXPECT_EQ(integer, uint64_t{kThreads} * kRounds);
  EXPECT_EQ(real, double{kThreads} * kRounds);
}

// A reader never sees half of a wide element.
TEST(AtomicOp, elements_are_never_torn) {
  for (const int type : {kUint64, kUint128, kDoubleComplex, kLongDoubleComplex}) {
    const size_t n = ref_size(type);
    alignas(64) unsigned char target[32] = {};
    in_threads([&](unsigned t) {
      unsigned char mine[32], seen[32];
      for (unsigned i = 0; i < kRounds; ++i) {
        if (t == 0) {
          run(kRead, type, target, nullptr, nullptr, seen, 1);
        } else {
          std::memset(mine, static_cast<int>(i % 100 + t), n);
          run(kWrite, type, target, mine, nullptr, seen, 1);
        }
        for (size_t at = 1; at < n; ++at) ASSERT_EQ(seen[at], seen[0]) << "torn, type " << type;
      }
    });
  }
}

}  // namespace
}  // namespace aperture::transport
