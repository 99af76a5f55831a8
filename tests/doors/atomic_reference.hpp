// What each atomic must do to one element, worked out a second time and in another way than the
// provider does: integers through 128-bit numbers, complex numbers by the schoolbook formulas, the
// small floating-point types by looking for the nearest of all their values. Knows libfabric's
// numbers only, no header: those of 2.x are not in the headers of 1.17. No state.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace aperture::doors {

enum RefOp {
  kMin,
  kMax,
  kSum,
  kProd,
  kLor,
  kLand,
  kBor,
  kBand,
  kLxor,
  kBxor,
  kRead,
  kWrite,
  kCswap,
  kCswapNe,
  kCswapLe,
  kCswapLt,
  kCswapGe,
  kCswapGt,
  kMswap,
  kDiff,
  kRefOps
};
enum RefType {
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat,
  kDouble,
  kFloatComplex,
  kDoubleComplex,
  kLongDouble,
  kLongDoubleComplex,
  kInt128,
  kUint128,
  kFloat16,
  kBfloat16,
  kFloat8E4m3,
  kFloat8E5m2,
  kRefTypes
};
enum RefKind { kBase, kFetch, kCompare, kRefKinds };

__extension__ using RefInt = __int128;
__extension__ using RefUint = unsigned __int128;

inline size_t ref_size(int type) {
  static const size_t sizes[kRefTypes] = {
      1,  1,  2, 2, 4, 4, 8, 8, 4, 8, 8, 16, sizeof(long double), 2 * sizeof(long double),
      16, 16, 2, 2, 1, 1};
  return sizes[type];
}
inline size_t ref_alignment(int type) {
  if (type == kFloatComplex) return 4;
  if (type == kDoubleComplex) return 8;
  if (type == kLongDoubleComplex) return 16;
  return ref_size(type);
}
inline bool is_integer(int type) {
  return type <= kUint64 || type == kInt128 || type == kUint128;
}
inline bool is_complex(int type) {
  return type == kFloatComplex || type == kDoubleComplex || type == kLongDoubleComplex;
}
inline bool ref_offered(int kind, int op, int type) {
  const bool compares = op >= kCswap && op <= kMswap;
  if ((kind == kCompare) != compares || (kind == kBase && op == kRead)) return false;
  switch (op) {
    case kBor:
    case kBand:
    case kBxor:
    case kMswap: return is_integer(type);
    case kMin:
    case kMax:
    case kCswapLe:
    case kCswapLt:
    case kCswapGe:
    case kCswapGt: return !is_complex(type);
    default: return true;
  }
}

// ---- small floating-point types, by brute force ------------------------------------------------

struct RefSmall {
  int exponent_bits;
  int mantissa_bits;
  bool finite;
};
inline RefSmall small_of(int type) {
  switch (type) {
    case kFloat16: return {5, 10, false};
    case kBfloat16: return {8, 7, false};
    case kFloat8E4m3: return {4, 3, true};
    default: return {5, 2, false};
  }
}
inline double decode_small(int type, unsigned code) {
  const RefSmall s = small_of(type);
  const int bias = (1 << (s.exponent_bits - 1)) - 1;
  const unsigned m = code & ((1u << s.mantissa_bits) - 1);
  const unsigned e = code >> s.mantissa_bits & ((1u << s.exponent_bits) - 1);
  const double sign = code >> (s.mantissa_bits + s.exponent_bits) != 0 ? -1 : 1;
  const bool top = e == (1u << s.exponent_bits) - 1;
  const double fraction = static_cast<double>(m) / (1 << s.mantissa_bits);
  if (top && s.finite && m == (1u << s.mantissa_bits) - 1) return std::nan("");
  if (top && !s.finite) return m != 0 ? std::nan("") : sign * HUGE_VAL;
  if (e == 0) return sign * fraction * std::pow(2.0, 1 - bias);
  return sign * (1 + fraction) * std::pow(2.0, static_cast<int>(e) - bias);
}
// The values of the codes from 0 to the largest finite one, which grow with the code.
inline const std::vector<double>& small_values(int type, unsigned largest) {
  static std::vector<double> of_type[kRefTypes];
  std::vector<double>& values = of_type[type];
  for (auto code = static_cast<unsigned>(values.size()); code <= largest; ++code)
    values.push_back(decode_small(type, code));
  return values;
}
// The code whose value is nearest; of two, the even one. Beyond the halfway point past the largest
// it is infinity, or NaN where there is none.
inline unsigned encode_small(int type, double v) {
  const RefSmall s = small_of(type);
  const unsigned sign_bit = 1u << (s.exponent_bits + s.mantissa_bits);
  const unsigned infinity = ((1u << s.exponent_bits) - 1) << s.mantissa_bits;
  const unsigned nan = s.finite ? sign_bit - 1 : infinity | 1u << (s.mantissa_bits - 1);
  const unsigned largest = s.finite ? sign_bit - 2 : infinity - 1;
  if (std::isnan(v)) return nan;
  const unsigned sign = std::signbit(v) ? sign_bit : 0;
  const double magnitude = std::fabs(v);
  const std::vector<double>& values = small_values(type, largest);
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  auto best = static_cast<unsigned>(above - values.begin());
  if (best > largest) best = largest;
  if (best > 0) {
    const double up = values[best] - magnitude, down = magnitude - values[best - 1];
    if (down < up || (down == up && best % 2 == 1)) --best;
  }
  const double step = decode_small(type, largest) - decode_small(type, largest - 1);
  const double past = magnitude - decode_small(type, largest);
  const bool over = past > step / 2 || (past == step / 2 && largest % 2 == 1);
  return sign | (over ? (s.finite ? nan : infinity) : best);
}

// ---- one element -------------------------------------------------------------------------------

// cond(compare, old) of the compare operations.
template <typename T>
bool ref_condition(int op, const T& compare, const T& old) {
  switch (op) {
    case kCswapLe: return compare <= old;
    case kCswapLt: return compare < old;
    case kCswapGe: return compare >= old;
    default: return compare > old;
  }
}

template <typename Wide>
void ref_integer(int op, size_t size, const void* old, const void* operand, const void* compare,
                 void* next) {
  const auto widen = [size](const void* from) {
    RefUint bits = 0;
    std::memcpy(&bits, from, size);
    const int unused = static_cast<int>(128 - 8 * size);
    const RefUint high = bits << unused;
    return static_cast<Wide>(static_cast<Wide>(high) >> unused);
  };
  const Wide a = widen(old), b = widen(operand), c = widen(compare);
  const auto ua = static_cast<RefUint>(a), ub = static_cast<RefUint>(b),
             uc = static_cast<RefUint>(c);
  RefUint out = ua;
  switch (op) {
    case kMin: out = b < a ? ub : ua; break;
    case kMax: out = b > a ? ub : ua; break;
    case kSum: out = ua + ub; break;
    case kProd: out = ua * ub; break;
    case kDiff: out = ua - ub; break;
    case kLor: out = a != 0 || b != 0; break;
    case kLand: out = a != 0 && b != 0; break;
    case kLxor: out = (a != 0) != (b != 0); break;
    case kBor: out = ua | ub; break;
    case kBand: out = ua & ub; break;
    case kBxor: out = ua ^ ub; break;
    case kWrite: out = ub; break;
    case kCswap: out = c == a ? ub : ua; break;
    case kCswapNe: out = c != a ? ub : ua; break;
    case kMswap: out = (ub & uc) | (ua & ~uc); break;
    case kRead: break;
    default: out = ref_condition(op, c, a) ? ub : ua;
  }
  std::memcpy(next, &out, size);
}

// T computes; load and store turn bytes into it and back. Swaps move bytes.
template <typename T, typename Load, typename Store>
void ref_real(int op, size_t size, const void* old, const void* operand, const void* compare,
              void* next, Load load, Store store) {
  const T a = load(old), b = load(operand), c = load(compare);
  const auto keep_or_take = [&](bool take) { std::memcpy(next, take ? operand : old, size); };
  switch (op) {
    case kMin: keep_or_take(b < a); break;
    case kMax: keep_or_take(b > a); break;
    case kSum: store(next, a + b); break;
    case kDiff: store(next, a - b); break;
    case kProd: store(next, a * b); break;
    case kLor: store(next, a != 0 || b != 0 ? 1 : 0); break;
    case kLand: store(next, a != 0 && b != 0 ? 1 : 0); break;
    case kLxor: store(next, (a != 0) != (b != 0) ? 1 : 0); break;
    case kWrite: keep_or_take(true); break;
    case kRead: keep_or_take(false); break;
    case kCswap: keep_or_take(c == a); break;
    case kCswapNe: keep_or_take(c != a); break;
    default: keep_or_take(ref_condition(op, c, a));
  }
}

template <typename T>
void ref_complex(int op, const void* old, const void* operand, const void* compare, void* next) {
  T a[2], b[2], c[2], out[2];
  std::memcpy(a, old, sizeof a);
  std::memcpy(b, operand, sizeof b);
  std::memcpy(c, compare, sizeof c);
  const bool x = a[0] != 0 || a[1] != 0, y = b[0] != 0 || b[1] != 0;
  const bool same = c[0] == a[0] && c[1] == a[1];
  const auto swap_if = [&](bool so) { std::memcpy(next, so ? operand : old, sizeof out); };
  out[1] = 0;
  switch (op) {
    case kSum: out[0] = a[0] + b[0], out[1] = a[1] + b[1]; break;
    case kDiff: out[0] = a[0] - b[0], out[1] = a[1] - b[1]; break;
    case kProd: out[0] = a[0] * b[0] - a[1] * b[1], out[1] = a[0] * b[1] + a[1] * b[0]; break;
    case kLor: out[0] = x || y; break;
    case kLand: out[0] = x && y; break;
    case kLxor: out[0] = x != y; break;
    case kCswap: return swap_if(same);
    case kCswapNe: return swap_if(!same);
    default: return swap_if(op == kWrite);
  }
  std::memcpy(next, out, sizeof out);
}

template <typename T>
void ref_plain_real(int op, const void* old, const void* operand, const void* compare, void* next) {
  ref_real<T>(
      op, sizeof(T), old, operand, compare, next,
      [](const void* from) {
        T v;
        std::memcpy(&v, from, sizeof v);
        return v;
      },
      [](void* to, T v) { std::memcpy(to, &v, sizeof v); });
}

// The target's new bytes; `old`, `operand` and `compare` are elements of that type.
inline void ref_step(int op, int type, const void* old, const void* operand, const void* compare,
                     void* next) {
  const size_t size = ref_size(type);
  switch (type) {
    case kInt8:
    case kInt16:
    case kInt32:
    case kInt64:
    case kInt128: return ref_integer<RefInt>(op, size, old, operand, compare, next);
    case kUint8:
    case kUint16:
    case kUint32:
    case kUint64:
    case kUint128: return ref_integer<RefUint>(op, size, old, operand, compare, next);
    case kFloat: return ref_plain_real<float>(op, old, operand, compare, next);
    case kDouble: return ref_plain_real<double>(op, old, operand, compare, next);
    case kLongDouble: return ref_plain_real<long double>(op, old, operand, compare, next);
    case kFloatComplex: return ref_complex<float>(op, old, operand, compare, next);
    case kDoubleComplex: return ref_complex<double>(op, old, operand, compare, next);
    case kLongDoubleComplex: return ref_complex<long double>(op, old, operand, compare, next);
    default:
      return ref_real<double>(
          op, size, old, operand, compare, next,
          [=](const void* from) {
            unsigned code = 0;
            std::memcpy(&code, from, size);
            return decode_small(type, code);
          },
          [=](void* to, double v) {
            const unsigned code = encode_small(type, v);
            std::memcpy(to, &code, size);
          });
  }
}

// Equal as values are: any NaN is like any other, and the padding of a long double means nothing.
inline bool ref_same(int type, const void* a, const void* b) {
  const auto reals = [&](auto zero, size_t parts) {
    for (size_t i = 0; i < parts; ++i) {
      decltype(zero) x, y;
      std::memcpy(&x, static_cast<const char*>(a) + i * sizeof x, sizeof x);
      std::memcpy(&y, static_cast<const char*>(b) + i * sizeof y, sizeof y);
      if (std::isnan(x) && std::isnan(y)) continue;
      if (x != y || std::signbit(x) != std::signbit(y)) return false;
    }
    return true;
  };
  switch (type) {
    case kFloat: return reals(0.0f, 1);
    case kFloatComplex: return reals(0.0f, 2);
    case kDouble: return reals(0.0, 1);
    case kDoubleComplex: return reals(0.0, 2);
    case kLongDouble: return reals(0.0l, 1);
    case kLongDoubleComplex: return reals(0.0l, 2);
    case kFloat16:
    case kBfloat16:
    case kFloat8E4m3:
    case kFloat8E5m2: {
      unsigned x = 0, y = 0;
      std::memcpy(&x, a, ref_size(type));
      std::memcpy(&y, b, ref_size(type));
      return x == y || (std::isnan(decode_small(type, x)) && std::isnan(decode_small(type, y)));
    }
    default: return std::memcmp(a, b, ref_size(type)) == 0;
  }
}

// ---- values worth trying -----------------------------------------------------------------------

inline constexpr unsigned kRefValues = 14;

template <typename T>
T ref_real_value(unsigned i) {
  using Limits = std::numeric_limits<T>;
  const T values[kRefValues] = {0,
                                -T(0),
                                1,
                                -1,
                                T(1.5),
                                T(-2.25),
                                T(3),
                                T(1e3),
                                T(-7e-3),
                                Limits::max(),
                                Limits::denorm_min(),
                                Limits::infinity(),
                                Limits::quiet_NaN(),
                                T(0.1)};
  return values[i % kRefValues];
}

// Writes the i-th value of that type.
inline void ref_value(int type, unsigned i, void* to) {
  const size_t size = ref_size(type);
  const auto put_reals = [&](auto zero) {
    using T = decltype(zero);
    // finite and small in complex ones: products of others are not the same everywhere
    static const unsigned tame[] = {0, 2, 3, 4, 5, 6, 7, 8, 13};
    const bool pair = size == 2 * sizeof(T);
    T v[2] = {pair ? ref_real_value<T>(tame[i % 9]) : ref_real_value<T>(i),
              ref_real_value<T>(tame[(i / 2 + 3) % 9])};
    if (pair && i % 5 == 0) v[0] = v[1] = 0;
    std::memset(to, 0, size);
    for (size_t part = 0; part < size / sizeof(T); ++part) {
      const size_t used = sizeof(T) == sizeof(long double) ? size_t{10} : sizeof(T);
      std::memcpy(static_cast<char*>(to) + part * sizeof(T), &v[part], used);
    }
  };
  switch (type) {
    case kFloat:
    case kFloatComplex: return put_reals(0.0f);
    case kDouble:
    case kDoubleComplex: return put_reals(0.0);
    case kLongDouble:
    case kLongDoubleComplex: return put_reals(0.0l);
    case kFloat16:
    case kBfloat16:
    case kFloat8E4m3:
    case kFloat8E5m2: {
      const unsigned code = encode_small(type, ref_real_value<float>(i));
      return void(std::memcpy(to, &code, size));
    }
    default: break;
  }
  const RefUint top = RefUint{1} << (8 * size - 1);
  const RefUint mixed = RefUint{0x0123456789abcdef} << 60 | 0x33, ones = ~RefUint{0};
  const RefUint values[kRefValues] = {0,   1,        ones,    top,  top - 1, 2,        0x5a,
                                      100, ones - 4, top + 1, 0x7f, mixed,   ones / 3, 0xf0};
  std::memcpy(to, &values[i % kRefValues], size);
}

}  // namespace aperture::doors
