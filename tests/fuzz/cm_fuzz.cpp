// Whatever arrives at a connection manager's port: no decoder reads past the end, at most one of
// them accepts, and what it accepts is written again as the very same bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "wire/cm.hpp"

namespace {

using namespace aperture::wire;  // NOLINT: a program of one file

int understood = 0;

template <typename Message>
void check(std::span<const std::byte> in, aperture::Result<Message> message) {
  if (!message) return;
  ++understood;
  const CmPacket again = encode(*message);
  if (again.size != in.size() || std::memcmp(again.bytes.data(), in.data(), in.size()) != 0) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  understood = 0;
  check(in, decode_req(in));
  check(in, decode_rep(in));
  check(in, decode_rej(in));
  check(in, decode_sidr_req(in));
  check(in, decode_sidr_rep(in));
  if (understood > 1) std::abort();
  if (size < kCmHeadBytes) return 0;
  auto head = decode_cm_head(in.first(kCmHeadBytes));
  if (understood == 1 && !head) std::abort();
  if (head && cm_bytes(*head) > kMaxCmBytes) std::abort();
  return 0;
}
