// Taking the payload of a message at the head of a request ring: see port.hpp.
#include <cassert>

#include "base/iov.hpp"
#include "qp/port.hpp"

namespace aperture::qp {

void Arrival::copy_to(void* to, uint64_t n) const noexcept {
  assert(where != Where::offered && n <= len);
  if (where == Where::flat) {
    std::memcpy(to, bytes, n);
  } else {
    ring::BodyReader(*cells, cells_offset).copy_out(to, n);
  }
}

void Arrival::scatter_to(const iovec* iov, size_t count, uint64_t n) const noexcept {
  assert(where != Where::offered && n <= len);
  if (count == 1) {
    copy_to(iov[0].iov_base, n);
    return;
  }
  if (where == Where::flat) {
    scatter(iov, count, 0, bytes, n);
    return;
  }
  uint64_t at = 0;
  ring::BodyReader(*cells, cells_offset).each_piece(n, [&](const std::byte* piece, size_t size) {
    scatter(iov, count, at, piece, size);
    at += size;
  });
}

}  // namespace aperture::qp
