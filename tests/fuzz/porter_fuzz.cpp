// Whatever comes to a porter's door, or is said to be of one: no decoder reads past the end, at
// most one of them accepts, and what it accepts is written again as the very same bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "wire/porter.hpp"

namespace {

using namespace aperture::wire;  // NOLINT: a program of one file

template <typename Message>
int check(std::span<const std::byte> in, aperture::Result<Message> message) {
  if (!message) return 0;
  const PorterBytes again = encode(*message);
  if (!std::equal(again.begin(), again.end(), in.begin(), in.end())) std::abort();
  return 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  auto hello = decode_porter_hello(in);
  if (hello && (hello->space >= kPortSpaces || hello->port == 0)) std::abort();
  const int understood = check(in, std::move(hello)) + check(in, decode_porter_answer(in)) +
                         check(in, decode_porter_note(in));
  if (understood > 1) std::abort();
  return 0;
}
