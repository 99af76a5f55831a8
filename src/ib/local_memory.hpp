// The application's own buffers: what the scatter/gather lists of its WRs name, checked by their
// lkeys and copied. IBTA vol. 1, 10.6.3 (local access) and 11.4.1.
//
// Guarded by the engine's lock. Each piece is checked where it is copied; check_all() looks at a
// whole list first, where a bad piece must not change the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ib/work.hpp"
#include "protect/access_check.hpp"
#include "protect/wording.hpp"
#include "transport/payload.hpp"

namespace aperture::ib {

class LocalMemory {
 public:
  LocalMemory(const protect::AccessCheck& checks, const protect::Wording& wording, uint32_t qpn,
              protect::EndpointId id, protect::DomainId pd) noexcept
      : checks_(checks), wording_(wording), qpn_(qpn), id_(id), pd_(pd) {}

  // The domain whose regions are met. Of an XRC receive queue pair, that of the receive queue that
  // the request at hand names.
  protect::DomainId pd() const noexcept { return pd_; }
  void set_pd(protect::DomainId pd) noexcept { pd_ = pd; }

  protect::AccessAsk ask(uint32_t lkey, uint64_t addr, uint64_t len,
                         protect::Rights need) const noexcept {
    return {pd_, 0, Wild<uint64_t>(lkey), Wild<uint64_t>(addr), Wild<uint64_t>(len), need, id_};
  }
  // May that piece be read or written? At most its first chunk is granted.
  protect::Checked check(uint32_t lkey, uint64_t addr, uint64_t len,
                         protect::Rights need) noexcept {
    return checks_.check(ask(lkey, addr, len, need), &hint_);
  }
  // The first n bytes of the list: whether the lkeys cover them. loc_prot_err if not.
  WcStatus check_all(const Sge* sge, uint32_t count, uint64_t n, protect::Rights need) noexcept;

  // Copies [offset, offset + n) of the list to flat memory, and back. loc_prot_err if an lkey does
  // not cover its piece, or the memory is not there.
  WcStatus gather(const Sge* sge, uint32_t count, uint64_t offset, std::byte* to,
                  uint64_t n) noexcept;
  WcStatus scatter(const Sge* sge, uint32_t count, uint64_t offset, const std::byte* from,
                   uint64_t n) noexcept;
  // The same for the payload of pieces (transport/payload.hpp), which are no longer than a grant.
  WcStatus put_piece(const Sge& sge, uint64_t offset, uint64_t n,
                     transport::PieceOut& out) noexcept;
  WcStatus take_piece(const Sge* sge, uint32_t count, uint64_t offset,
                      transport::BytesIn& bytes) noexcept;

  // Says what is wrong with that piece. loc_prot_err.
  WcStatus refuse(uint32_t lkey, uint64_t addr, uint64_t len, protect::Rights need,
                  protect::Denial denial) const noexcept;

 private:
  // One piece, at most a chunk: checks it and copies by copy(grant).
  template <typename Copy>
  WcStatus access(uint32_t lkey, uint64_t addr, uint64_t len, protect::Rights need,
                  Copy&& copy) noexcept;

  const protect::AccessCheck& checks_;
  const protect::Wording& wording_;
  const uint32_t qpn_;
  const protect::EndpointId id_;
  protect::DomainId pd_;
  protect::LookupHint hint_;
};

}  // namespace aperture::ib
