// Whatever arrives at first contact: no decoder reads past the end, and whatever one accepts is
// written again as the very same bytes, so nothing in a message goes unlooked at.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "wire/hello.hpp"

namespace {

using namespace aperture::wire;  // NOLINT: a program of one file

void must_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size()) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  if (const auto m = decode_hello(in); m.ok()) must_equal(in, encode(m.value()));
  if (const auto m = decode_answer(in); m.ok()) must_equal(in, encode(m.value()));
  if (!may_become_hello(in) && decode_hello(in).ok()) std::abort();
  int understood = 0;
  const auto check = [&](const auto& message, auto encoder) {
    if (!message.ok()) return;
    ++understood;
    must_equal(in, encoder(message.value()).view());
  };
  const auto plain = [](const auto& m) { return encode(m); };
  check(decode_join(in), encode_join);
  check(decode_joined(in), encode_joined);
  check(decode_open(in), plain);
  check(decode_accept(in), plain);
  check(decode_reject(in), plain);
  check(decode_lane_close(in), plain);
  check(decode_connect(in), plain);
  check(decode_connected(in), plain);
  check(decode_refuse(in), plain);
  check(decode_withdraw(in), plain);
  if (understood > 1 || (understood == 1 && !peer_message(in).ok())) std::abort();
  return 0;
}
