// The steps of a range that takes several pieces: see remote_access.hpp.
#include "transport/remote_access.hpp"

#include "transport/payload.hpp"

namespace aperture::transport {

namespace {

protect::AccessAsk part_of(const protect::AccessAsk& whole, uint64_t offset, uint64_t n) noexcept {
  protect::AccessAsk part = whole;
  // the sum may wrap for a range that does: it was refused as a whole, and recheck() refuses it too
  part.addr = Wild<uint64_t>(whole.addr.unchecked() + offset);
  part.len = Wild<uint64_t>(n);
  return part;
}

}  // namespace

protect::Denial RemoteAccess::write_piece(const protect::AccessAsk& whole, uint64_t offset,
                                          BytesIn& bytes) noexcept {
  assert(bytes.len <= protect::kChunkBytes);
  if (region_.generation == 0) {
    const protect::Denial denial = check_whole(whole);
    if (denial != protect::Denial::none) return denial;
  }
  const protect::Checked checked = checks_.recheck(part_of(whole, offset, bytes.len), region_);
  if (!checked) return checked.denial();
  return take_payload(bytes, checked.grant()) ? protect::Denial::none : protect::Denial::not_backed;
}

protect::Denial RemoteAccess::read_piece(const protect::AccessAsk& whole, uint64_t offset,
                                         std::byte* to, uint64_t n) noexcept {
  assert(n <= protect::kChunkBytes && region_.generation != 0);
  const protect::Checked checked = checks_.recheck(part_of(whole, offset, n), region_);
  if (!checked) return checked.denial();
  return checked.grant().copy_out(to, n) ? protect::Denial::none : protect::Denial::not_backed;
}

protect::Denial RemoteAccess::put_piece(const protect::AccessAsk& whole, uint64_t offset,
                                        uint64_t n, PieceOut& out) noexcept {
  assert(n <= protect::kChunkBytes && region_.generation != 0);
  const protect::Checked checked = checks_.recheck(part_of(whole, offset, n), region_);
  if (!checked) return checked.denial();
  return put_payload(out, checked.grant(), n) ? protect::Denial::none : protect::Denial::not_backed;
}

}  // namespace aperture::transport
