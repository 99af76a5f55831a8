// Codecs of the porter's messages: see porter.hpp for the layouts.
#include "wire/porter.hpp"

#include "wire/codec.hpp"

namespace aperture::wire {

// Found by their arguments, so not in a nameless namespace.
static void fields(auto& io, Like<PorterHello> auto& hello) noexcept {
  io.number(10, hello.space, static_cast<uint8_t>(kPortSpaces - 1));
  io.zeros(11, 12);
  io.number(12, hello.port);
  io.number(14, hello.from);
}

static void fields(auto& io, Like<PorterAnswer> auto& answer) noexcept {
  io.one_of(10, answer.verdict, PorterVerdict::taken, PorterVerdict::busy);
  io.zeros(11, 16);
}

static void fields(auto& io, Like<PorterNote> auto& note) noexcept {
  io.zeros(10, 12);
  io.number(12, note.from);
  io.zeros(14, 16);
}

namespace {

template <typename Message>
PorterBytes encode_as(uint64_t magic, const Message& message) noexcept {
  PorterBytes out{};
  store<uint64_t>(out, 0, magic);
  store<uint16_t>(out, 8, kPorterVersion);
  write(message, out);
  return out;
}

template <typename Message>
Result<Message> decode_as(uint64_t magic, std::span<const std::byte> in) noexcept {
  if (in.size() != kPorterBytes || load<uint64_t>(in, 0) != magic) return Errc::protocol;
  if (load<uint16_t>(in, 8) != kPorterVersion) return Errc::not_supported;
  return read<Message>(in);
}

}  // namespace

PorterBytes encode(const PorterHello& hello) noexcept {
  return encode_as(kPorterHelloMagic, hello);
}
PorterBytes encode(const PorterAnswer& answer) noexcept {
  return encode_as(kPorterAnswerMagic, answer);
}
PorterBytes encode(const PorterNote& note) noexcept {
  return encode_as(kPorterNoteMagic, note);
}

Result<PorterHello> decode_porter_hello(std::span<const std::byte> in) noexcept {
  auto hello = decode_as<PorterHello>(kPorterHelloMagic, in);
  if (hello.ok() && (hello->port == 0 || hello->from.unchecked() == 0)) return Errc::protocol;
  return hello;
}
Result<PorterAnswer> decode_porter_answer(std::span<const std::byte> in) noexcept {
  return decode_as<PorterAnswer>(kPorterAnswerMagic, in);
}
Result<PorterNote> decode_porter_note(std::span<const std::byte> in) noexcept {
  auto note = decode_as<PorterNote>(kPorterNoteMagic, in);
  if (note.ok() && note->from.unchecked() == 0) return Errc::protocol;
  return note;
}

}  // namespace aperture::wire
