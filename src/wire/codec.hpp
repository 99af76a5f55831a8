// How the fields of a message lie in its bytes: one list of fields serves both directions.
//
// A message has one function `fields(io, message)` that names each field with its place. With a
// Writer it writes them, with a Reader it reads and checks them. Integers are little-endian.
// Values; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "base/invariant.hpp"
#include "base/wild.hpp"

namespace aperture::wire {

template <typename T>
T load(std::span<const std::byte> in, size_t at) noexcept {
  APERTURE_DEBUG_ASSERT(at + sizeof(T) <= in.size());
  T v = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    v = static_cast<T>(v | static_cast<T>(std::to_integer<T>(in[at + i]) << (8 * i)));
  }
  return v;
}

template <typename T>
void store(std::span<std::byte> out, size_t at, T v) noexcept {
  APERTURE_DEBUG_ASSERT(at + sizeof(T) <= out.size());
  for (size_t i = 0; i < sizeof(T); ++i) out[at + i] = static_cast<std::byte>(v >> (8 * i));
}

// A message to be written, or to be filled.
template <typename M, typename Message>
concept Like = std::same_as<std::remove_const_t<M>, Message>;

class Writer {
 public:
  explicit Writer(std::span<std::byte> out) noexcept : out_(out) {}

  template <std::unsigned_integral T>
  void number(size_t at, T v, T = 0) noexcept {
    store<T>(out_, at, v);
  }
  template <std::unsigned_integral T>
  void number(size_t at, Wild<T> v, T = 0) noexcept {
    store<T>(out_, at, v.unchecked());
  }
  // A number of three bytes.
  void low_24(size_t at, Wild<uint32_t> v) noexcept {
    number(at, static_cast<uint16_t>(v.unchecked()));
    number(at + 2, static_cast<uint8_t>(v.unchecked() >> 16));
  }
  // A number whose two bytes lie apart.
  void halves(size_t low, size_t high, uint16_t v, uint16_t) noexcept {
    number(low, static_cast<uint8_t>(v));
    number(high, static_cast<uint8_t>(v >> 8));
  }
  template <typename Enum>
  void one_of(size_t at, Enum v, Enum, Enum) noexcept {
    number(at, static_cast<std::underlying_type_t<Enum>>(v));
  }
  void flag(size_t at, bool v) noexcept { number<uint8_t>(at, v ? 1 : 0); }
  void bit(size_t at, unsigned bit, bool v) noexcept {
    if (v) out_[at] |= std::byte{1} << bit;
  }
  template <typename Byte, size_t N>
  void bytes(size_t at, const std::array<Byte, N>& v) noexcept {
    APERTURE_DEBUG_ASSERT(at + N <= out_.size());
    std::memcpy(out_.data() + at, v.data(), N);
  }
  void address(size_t at, const Address& v) noexcept {
    bytes(at, v.ip);
    number<uint16_t>(at + v.ip.size(), v.port);
  }
  void zeros(size_t, size_t) noexcept {}  // so is what has not been written

 private:
  std::span<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) noexcept : in_(in) {}

  // Whether all that was read is as it must be.
  bool sound() const noexcept { return sound_; }
  void require(bool so) noexcept { sound_ = sound_ && so; }

  template <std::unsigned_integral T>
  void number(size_t at, T& v, T limit = std::numeric_limits<T>::max()) noexcept {
    v = load<T>(in_, at);
    require(v <= limit);
  }
  template <std::unsigned_integral T>
  void number(size_t at, Wild<T>& v, T limit = std::numeric_limits<T>::max()) noexcept {
    T raw = 0;
    number(at, raw, limit);
    v = Wild<T>(raw);
  }
  void low_24(size_t at, Wild<uint32_t>& v) noexcept {
    v = Wild<uint32_t>(load<uint16_t>(in_, at) | uint32_t{load<uint8_t>(in_, at + 2)} << 16);
  }
  void halves(size_t low, size_t high, uint16_t& v, uint16_t limit) noexcept {
    v = static_cast<uint16_t>(load<uint8_t>(in_, low) | load<uint8_t>(in_, high) << 8);
    require(v <= limit);
  }
  template <typename Enum>
  void one_of(size_t at, Enum& v, Enum first, Enum last) noexcept {
    std::underlying_type_t<Enum> raw = 0;
    number(at, raw);
    require(static_cast<Enum>(raw) >= first && static_cast<Enum>(raw) <= last);
    if (sound_) v = static_cast<Enum>(raw);
  }
  void flag(size_t at, bool& v) noexcept {
    uint8_t raw = 0;
    number<uint8_t>(at, raw, 1);
    v = raw != 0;
  }
  void bit(size_t at, unsigned bit, bool& v) noexcept {
    v = (in_[at] & std::byte{1} << bit) != std::byte{0};
  }
  template <typename Byte, size_t N>
  void bytes(size_t at, std::array<Byte, N>& v) noexcept {
    APERTURE_DEBUG_ASSERT(at + N <= in_.size());
    std::memcpy(v.data(), in_.data() + at, N);
  }
  void address(size_t at, Address& v) noexcept {
    bytes(at, v.ip);
    number(at + v.ip.size(), v.port);
  }
  void zeros(size_t from, size_t to) noexcept {
    const auto part = in_.subspan(from, to - from);
    require(std::all_of(part.begin(), part.end(), [](std::byte b) { return b == std::byte{0}; }));
  }

 private:
  std::span<const std::byte> in_;
  bool sound_ = true;
};

// `out` is as long as the message, and zero where nothing is written.
template <typename Message>
void write(const Message& message, std::span<std::byte> out) noexcept {
  Writer to(out);
  fields(to, message);
}

// `in` is as long as the message. Errors: protocol, if a field is not as it must be.
template <typename Message>
Result<Message> read(std::span<const std::byte> in) noexcept {
  Message message;
  Reader from(in);
  fields(from, message);
  if (!from.sound()) return Errc::protocol;
  return message;
}

}  // namespace aperture::wire
