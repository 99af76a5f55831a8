// The values behind the bytes of atomic operands: for each type its size, its alignment in C, and
// the way from bytes to a value that can be computed with and back. Constants and pure functions.
//
// Integers wrap. Padding of a long double is written as zeros, so that equal values are equal
// bytes. The small floating-point types are computed in double and rounded once, to nearest even;
// what is too large for float8_e4m3 (which has no infinity) becomes its NaN. (OCP 8-bit Floating
// Point Specification, "Conversion", without saturation.)
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace aperture::transport {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

// Bytes of a long double that hold its value; the rest is padding.
inline constexpr size_t kLongDoubleBytes = LDBL_MANT_DIG == 64 ? 10 : sizeof(long double);

enum class AtomicClass : uint8_t { integer, real, complex };

// Bits is an unsigned type at least as wide as int, so that arithmetic wraps and never overflows.
template <typename T, typename Bits>
struct IntegerValue {
  using Value = T;
  using Wrapping = Bits;
  static constexpr AtomicClass kClass = AtomicClass::integer;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr size_t kAlignment = alignof(T);
  static Value from(const std::byte* raw) noexcept {
    Value v;
    std::memcpy(&v, raw, sizeof v);
    return v;
  }
  static void to(std::byte* raw, Value v) noexcept { std::memcpy(raw, &v, sizeof v); }
};

template <typename T>
struct RealValue {
  using Value = T;
  static constexpr AtomicClass kClass = AtomicClass::real;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr size_t kAlignment = alignof(T);
  static constexpr size_t kUsed =
      std::numeric_limits<T>::digits == LDBL_MANT_DIG ? kLongDoubleBytes : sizeof(T);
  static Value from(const std::byte* raw) noexcept {
    Value v;
    std::memcpy(&v, raw, sizeof v);
    return v;
  }
  static void to(std::byte* raw, Value v) noexcept {
    std::memset(raw, 0, sizeof v);
    std::memcpy(raw, &v, kUsed);
  }
};

template <typename T>
struct ComplexValue {
  using Part = RealValue<T>;
  using Value = std::complex<T>;
  static constexpr AtomicClass kClass = AtomicClass::complex;
  static constexpr size_t kBytes = 2 * sizeof(T);
  static constexpr size_t kAlignment = alignof(T);
  static Value from(const std::byte* raw) noexcept {
    return {Part::from(raw), Part::from(raw + sizeof(T))};
  }
  static void to(std::byte* raw, Value v) noexcept {
    Part::to(raw, v.real());
    Part::to(raw + sizeof(T), v.imag());
  }
};

// A binary floating-point type with few bits: sign, exponent, mantissa. Finite: no infinities, and
// a NaN is all ones.
template <typename Raw, int ExponentBits, int MantissaBits, bool Finite = false>
struct SmallRealValue {
  using Value = double;
  static constexpr AtomicClass kClass = AtomicClass::real;
  static constexpr size_t kBytes = sizeof(Raw);
  static constexpr size_t kAlignment = sizeof(Raw);
  static constexpr int kBias = (1 << (ExponentBits - 1)) - 1;
  static constexpr unsigned kTopExponent = (1u << ExponentBits) - 1;
  static constexpr unsigned kTopMantissa = (1u << MantissaBits) - 1;
  static constexpr unsigned kInfinity = kTopExponent << MantissaBits;
  static constexpr unsigned kNan =
      Finite ? kInfinity | kTopMantissa : kInfinity | 1u << (MantissaBits - 1);
  static constexpr unsigned kLargest = Finite ? kNan - 1 : kInfinity - 1;

  static Value from(const std::byte* raw) noexcept {
    Raw bits;
    std::memcpy(&bits, raw, sizeof bits);
    const unsigned magnitude = bits & (kInfinity | kTopMantissa);
    const unsigned exponent = magnitude >> MantissaBits;
    const unsigned mantissa = magnitude & kTopMantissa;
    double v;
    if (magnitude > kLargest) {
      v = magnitude == kInfinity && !Finite ? std::numeric_limits<double>::infinity()
                                            : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      v = std::ldexp(static_cast<double>(mantissa), 1 - kBias - MantissaBits);
    } else {
      v = std::ldexp(static_cast<double>(mantissa + kTopMantissa + 1),
                     static_cast<int>(exponent) - kBias - MantissaBits);
    }
    return magnitude != bits ? -v : v;
  }
  static void to(std::byte* raw, Value v) noexcept {
    const auto bits = static_cast<Raw>(magnitude_of(std::fabs(v)) |
                                       (std::signbit(v) ? kTopExponent + 1 : 0u) << MantissaBits);
    std::memcpy(raw, &bits, sizeof bits);
  }

 private:
  static unsigned magnitude_of(double v) noexcept {
    if (std::isnan(v)) return kNan;
    const unsigned overflow = Finite ? kNan : kInfinity;
    if (std::isinf(v)) return overflow;
    if (v == 0) return 0;
    // units of the last place: those of the subnormals at least
    const int exponent = std::max(std::ilogb(v), 1 - kBias);
    if (exponent > kBias + 1) return overflow;
    const auto units =
        static_cast<unsigned>(std::nearbyint(std::ldexp(v, MantissaBits - exponent)));
    // A carry out of the mantissa goes into the exponent by itself, as it should.
    const auto biased = static_cast<unsigned>(exponent + kBias - 1);
    const unsigned magnitude = (biased << MantissaBits) + units;
    return magnitude > kLargest ? overflow : magnitude;
  }
};

using Float16Value = SmallRealValue<uint16_t, 5, 10>;
using Bfloat16Value = SmallRealValue<uint16_t, 8, 7>;
using Float8E4m3Value = SmallRealValue<uint8_t, 4, 3, true>;
using Float8E5m2Value = SmallRealValue<uint8_t, 5, 2>;

}  // namespace aperture::transport
