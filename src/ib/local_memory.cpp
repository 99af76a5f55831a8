// Copies from and to the application's buffers: see local_memory.hpp.
#include "ib/local_memory.hpp"

#include <algorithm>
#include <cstring>

#include "base/log.hpp"

namespace aperture::ib {

using protect::Rights;

namespace {

// Calls fn(lkey, address, n, at) for the pieces of [offset, offset + n), each inside one entry and
// no longer than one grant, until it says other than success.
template <typename Fn>
WcStatus each_local(const Sge* sge, uint32_t count, uint64_t offset, uint64_t n, Fn&& fn) noexcept {
  uint64_t at = 0;
  for (uint32_t i = 0; i < count && at < n; ++i) {
    if (offset >= sge[i].length) {
      offset -= sge[i].length;
      continue;
    }
    uint64_t left = std::min<uint64_t>(n - at, sge[i].length - offset);
    uint64_t addr = sge[i].addr + offset;
    offset = 0;
    while (left > 0) {
      const uint64_t part = std::min(left, protect::kChunkBytes);
      if (const WcStatus s = fn(sge[i].lkey, addr, part, at); s != WcStatus::success) return s;
      addr += part;
      at += part;
      left -= part;
    }
  }
  assert(at <= n);
  return WcStatus::success;
}

}  // namespace

template <typename Copy>
inline WcStatus LocalMemory::access(uint32_t lkey, uint64_t addr, uint64_t len, Rights need,
                                    Copy&& copy) noexcept {
  const protect::Checked checked = check(lkey, addr, len, need);
  if (!checked) return refuse(lkey, addr, len, need, checked.denial());
  if (copy(checked.grant())) [[likely]]
    return WcStatus::success;
  return refuse(lkey, addr, len, need, protect::Denial::not_backed);
}

WcStatus LocalMemory::refuse(uint32_t lkey, uint64_t addr, uint64_t len, Rights need,
                             protect::Denial denial) const noexcept {
  assert(denial != protect::Denial::none);
  if (log_level() < LogLevel::warn) return WcStatus::loc_prot_err;
  try {
    APERTURE_WARN("queue pair 0x%x, a buffer of its own: %s", qpn_,
                  protect::explain(checks_, ask(lkey, addr, len, need), denial, wording_).c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x, a buffer of its own: %s", qpn_,
                  protect::rule(wording_, denial));
  }
  return WcStatus::loc_prot_err;
}

WcStatus LocalMemory::gather(const Sge* sge, uint32_t count, uint64_t offset, std::byte* to,
                             uint64_t n) noexcept {
  return each_local(
      sge, count, offset, n,
      [&](uint32_t lkey, uint64_t addr, uint64_t part, uint64_t done) noexcept {
        if (lkey == kNullLkey) [[unlikely]] {
          std::memset(to + done, 0, part);
          return WcStatus::success;
        }
        return access(lkey, addr, part, Rights::local_read,
                      [&](const auto& grant) noexcept { return grant.copy_out(to + done, part); });
      });
}

WcStatus LocalMemory::scatter(const Sge* sge, uint32_t count, uint64_t offset,
                              const std::byte* from, uint64_t n) noexcept {
  const auto write = [&](uint32_t lkey, uint64_t addr, uint64_t part, uint64_t done) noexcept {
    if (lkey == kNullLkey) [[unlikely]]
      return WcStatus::success;
    return access(lkey, addr, part, Rights::local_write,
                  [&](const auto& grant) noexcept { return grant.copy_in(from + done, part); });
  };
  // the usual thing: one piece has it all, and no loop is needed to find that out
  if (count == 1 && offset == 0 && n - 1 < protect::kChunkBytes && n <= sge->length) [[likely]] {
    return write(sge->lkey, sge->addr, n, 0);
  }
  return each_local(sge, count, offset, n, write);
}

WcStatus LocalMemory::put_piece(const Sge& sge, uint64_t offset, uint64_t n,
                                transport::PieceOut& out) noexcept {
  assert(n <= protect::kChunkBytes && offset + n <= sge.length);
  if (sge.lkey == kNullLkey) return gather(&sge, 1, offset, out.at(), n);
  return access(sge.lkey, sge.addr + offset, n, Rights::local_read,
                [&](const auto& grant) noexcept { return transport::put_payload(out, grant, n); });
}

WcStatus LocalMemory::take_piece(const Sge* sge, uint32_t count, uint64_t offset,
                                 transport::BytesIn& bytes) noexcept {
  if (bytes.may_land() && count == 1 && sge->lkey != kNullLkey) [[unlikely]] {
    assert(bytes.len <= protect::kChunkBytes && offset + bytes.len <= sge->length);
    return access(
        sge->lkey, sge->addr + offset, bytes.len, Rights::local_write,
        [&](const auto& grant) noexcept { return transport::take_payload(bytes, grant); });
  }
  if (!bytes.stage()) return WcStatus::loc_prot_err;
  return scatter(sge, count, offset, bytes.from(), bytes.len);
}

WcStatus LocalMemory::check_all(const Sge* sge, uint32_t count, uint64_t n, Rights need) noexcept {
  for (uint32_t i = 0; i < count && n > 0; ++i) {
    const uint64_t part = std::min<uint64_t>(sge[i].length, n);
    n -= part;
    if (part == 0 || sge[i].lkey == kNullLkey) continue;
    const protect::Checked checked = check(sge[i].lkey, sge[i].addr, part, need);
    if (!checked) return refuse(sge[i].lkey, sge[i].addr, part, need, checked.denial());
  }
  return WcStatus::success;
}

}  // namespace aperture::ib
