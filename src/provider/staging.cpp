// Standing in for device memory: see staging.hpp.
#include "provider/staging.hpp"

#include <algorithm>
#include <cassert>

namespace aperture::provider {

Staging::~Staging() {
  if (memory_ != nullptr) from_.give(*driver_, memory_, size_);
}

void Staging::add(InDevice device, iovec& piece, uint64_t offset, Way way) {
  assert(device != nullptr && memory_ == nullptr && piece.iov_len != 0);
  pieces_.push_back({std::move(device), static_cast<std::byte*>(piece.iov_base), nullptr,
                     piece.iov_len, offset, &piece, way});
  size_ += piece.iov_len;
}

Status Staging::begin() noexcept {
  assert(!pieces_.empty() && memory_ == nullptr);
  const char* why = nullptr;
  auto driver = memory::driver(pieces_.front().device->kind(), why);
  if (!driver) return driver.error();
  driver_ = *driver;
  memory_ = from_.take(*driver_, size_);
  if (memory_ == nullptr) return Errc::no_memory;
  std::byte* next = memory_;
  for (Piece& piece : pieces_) {
    piece.host = next;
    next += piece.size;
    if (piece.way == Way::out && !piece.device->copy_out(piece.host, piece.at, piece.size)) {
      return Errc::bad_buffer;
    }
    piece.named->iov_base = piece.host;
  }
  assert(next == memory_ + size_);
  return {};
}

bool Staging::bring_back(uint64_t len) const noexcept {
  return std::all_of(pieces_.begin(), pieces_.end(), [len](const Piece& piece) {
    if (piece.way == Way::out || piece.offset >= len) return true;
    const uint64_t n = std::min(piece.size, len - piece.offset);
    return piece.device->copy_in(piece.at, piece.host, n);
  });
}

}  // namespace aperture::provider
