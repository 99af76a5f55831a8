// Standing in for device memory: see staging.hpp.
#include "provider/staging.hpp"

#include <algorithm>
#include <cassert>

namespace aperture::provider {

Staging::~Staging() {
  stop();
  if (memory_ != nullptr) from_.give(*driver_, memory_, size_);
}

void Staging::add(InDevice device, iovec& piece, uint64_t offset, Way way) {
  assert(device != nullptr && memory_ == nullptr && piece.iov_len != 0);
  pieces_.push_back({std::move(device), static_cast<std::byte*>(piece.iov_base), nullptr,
                     piece.iov_len, offset, &piece, way});
  size_ += piece.iov_len;
  brings_back_ = brings_back_ || way == Way::back;
}

Status Staging::begin(bool piecewise) noexcept {
  assert(!pieces_.empty() && memory_ == nullptr);
  const char* why = nullptr;
  auto driver = memory::driver(pieces_.front().device->kind(), why);
  if (!driver) return driver.error();
  driver_ = *driver;
  memory_ = from_.take(*driver_, size_);
  if (memory_ == nullptr) return Errc::no_memory;
  if (piecewise && size_ > kAtOnceBytes) way_ = Way::out;
  std::byte* next = memory_;
  for (Piece& piece : pieces_) {
    piece.host = next;
    next += piece.size;
    piece.named->iov_base = piece.host;
    if (piece.way == Way::back || way_ == Way::out) continue;
    if (!piece.device->copy_out(piece.host, piece.at, piece.size)) return Errc::bad_buffer;
  }
  assert(next == memory_ + size_);
  if (way_ == Way::out) go_on();
  return failed_ ? Status(Errc::bad_buffer) : Status();
}

// ---- in chunks ----------------------------------------------------------------------------------

uint64_t Staging::next() noexcept {
  for (; at_ < pieces_.size(); ++at_, done_ = 0) {
    const Piece& piece = pieces_[at_];
    const uint64_t left = piece.size - done_;
    if (piece.way != way_ || left == 0) continue;
    const uint64_t most = std::min(left, kChunkBytes);
    if (way_ == Way::out) return most;
    const uint64_t offset = piece.offset + done_;
    const uint64_t there = arrived_ > offset ? arrived_ - offset : 0;
    // of what is still coming no less than a chunk: each copy costs a driver some microseconds
    return there >= most || all_arrived_ ? std::min(most, there) : 0;
  }
  return 0;
}

bool Staging::begin_chunk(uint64_t n) noexcept {
  assert(under_way_ < chunks_.size() && at_ < pieces_.size());
  const Piece& piece = pieces_[at_];
  assert(n != 0 && n <= piece.size - done_);
  Chunk& chunk = chunks_[(oldest_ + under_way_) % chunks_.size()];
  chunk.offset = piece.offset + done_;
  std::byte* const host = piece.host + done_;
  std::byte* const at = piece.at + done_;
  const bool begun = way_ == Way::out ? piece.device->begin_out(chunk.flight, host, at, n)
                                      : piece.device->begin_in(chunk.flight, at, host, n);
  done_ += n;
  if (chunk.flight.is_under_way()) ++under_way_;
  return begun;
}

void Staging::go_on() noexcept {
  while (under_way_ != 0) {
    const memory::Flight::State state = chunks_[oldest_].flight.look();
    if (state == memory::Flight::State::under_way) break;
    if (state == memory::Flight::State::failed) failed_ = true;
    oldest_ = (oldest_ + 1) % chunks_.size();
    --under_way_;
  }
  while (!failed_ && !stopped_ && under_way_ < chunks_.size()) {
    const uint64_t n = next();
    if (n == 0) return;
    const size_t before = under_way_;
    failed_ = !begin_chunk(n);
    if (under_way_ == before) return;  // by a driver that copies at once: the rest is for later
  }
}

void Staging::note_arrived(uint64_t through, bool is_all) noexcept {
  assert(way_ == Way::back && !all_arrived_);
  arrived_ = std::max(arrived_, through);  // a peer that sends out of order goes back
  all_arrived_ = is_all;
  go_on();
}

qp::Told::Filled Staging::filled() const noexcept {
  qp::Told::Filled now;
  if (way_ != Way::out) return now;
  now.is_late = true;
  now.has_failed = failed_;
  if (failed_) {
    now.bytes = 0;
  } else if (under_way_ != 0) {
    now.bytes = chunks_[oldest_].offset;
  } else if (at_ < pieces_.size() && (done_ < pieces_[at_].size || at_ + 1 < pieces_.size())) {
    const bool in_piece = done_ < pieces_[at_].size;
    now.bytes = in_piece ? pieces_[at_].offset + done_ : pieces_[at_ + 1].offset;
  }
  return now;
}

bool Staging::is_over() const noexcept {
  if (under_way_ != 0) return false;
  if (failed_ || stopped_) return true;
  if (!all_arrived_) return false;
  for (size_t i = at_; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const uint64_t done = i == at_ ? done_ : 0;
    if (piece.way == way_ && done < piece.size && piece.offset + done < arrived_) return false;
  }
  return true;
}

bool Staging::bring_back() noexcept {
  while (!is_over()) {
    go_on();
    while (under_way_ != 0 && !failed_) {
      failed_ = !chunks_[oldest_].flight.finish();
      oldest_ = (oldest_ + 1) % chunks_.size();
      --under_way_;
    }
    if (failed_) stop();
  }
  return !failed_;
}

void Staging::stop() noexcept {
  stopped_ = true;
  for (; under_way_ != 0; --under_way_) {
    if (!chunks_[oldest_].flight.finish()) failed_ = true;
    oldest_ = (oldest_ + 1) % chunks_.size();
  }
}

}  // namespace aperture::provider
