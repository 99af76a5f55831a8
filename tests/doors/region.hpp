// A registered region between canaries, as the tests of remote access need it.
#pragma once

#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {

inline constexpr uint64_t kAllAccess =
    FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SEND | FI_RECV;

// What an initiator has to know to reach a region.
struct Remote {
  uint64_t base = 0;  // the target's virtual address, or 0 when regions are zero-based
  uint64_t key = 0;
  uint64_t size = 0;
  uint8_t raw[16] = {};  // with FI_MR_RAW
};

class Region {
 public:
  // A key of the application's choice is drawn when the domain does not choose keys itself.
  // auth_key: text; empty: the domain's.
  Region(Node& node, size_t size, uint64_t access = kAllAccess, uint64_t seed = 1,
         const char* auth_key = "")
      : memory_(size, seed) {
    // distinct between processes too, so that a key of one is never by chance one of another
    static uint64_t next_key = (static_cast<uint64_t>(getpid()) & 0xFFF) << 20;
    fid_mr* mr = nullptr;
    if (*auth_key == '\0') {
      DOOR(fi_mr_reg(node.domain(), memory_.data(), size, access, 0, next_key++, 0, &mr, nullptr));
    } else {
      std::string text = auth_key;
      const iovec iov{memory_.data(), size};
      fi_mr_attr attr{.mr_iov = &iov,
                      .iov_count = 1,
                      .access = access,
                      .requested_key = next_key++,
                      .auth_key_size = text.size(),
                      .auth_key = reinterpret_cast<uint8_t*>(text.data())};
      DOOR(fi_mr_regattr(node.domain(), &attr, 0, &mr));
    }
    mr_.reset(mr);
    remote_.base = node.virtual_addresses() ? reinterpret_cast<uint64_t>(memory_.data()) : 0;
    remote_.key = fi_mr_key(mr);
    remote_.size = size;
    if ((node.info()->domain_attr->mr_mode & FI_MR_RAW) != 0) {
      size_t raw_size = sizeof remote_.raw;
      DOOR(fi_mr_raw_attr(mr, &remote_.base, remote_.raw, &raw_size, 0));
    }
  }

  Guarded& memory() { return memory_; }
  const Remote& remote() const { return remote_; }
  fid_mr* mr() { return mr_.get(); }
  void* desc() { return fi_mr_desc(mr_.get()); }
  int close() { return fi_close(&mr_.release()->fid); }

 private:
  Guarded memory_;
  Fid<fid_mr> mr_;
  Remote remote_;
};

}  // namespace aperture::doors
