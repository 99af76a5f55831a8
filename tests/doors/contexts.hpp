// A hub: a fabric, a domain, an address vector and a completion queue, in which a test opens
// reliable datagram endpoints that share contexts, or scalable ones, or those of another type.
//
// Owned by the test's thread.
#pragma once

#include "doors/fixture.hpp"

namespace aperture::doors {

struct HubOptions {
  uint64_t caps = FI_MSG | FI_TAGGED;
  size_t tx_contexts = 0;  // ep_attr->tx_ctx_cnt of the hints
  size_t rx_contexts = 0;
  size_t tx_size = 0;
  uint32_t api = FI_VERSION(1, 17);
  int rx_ctx_bits = 0;
  uint64_t av_flags = 0;
  const char* av_name = nullptr;
  uint64_t mode = FI_CONTEXT | FI_CONTEXT2;
  fi_ep_type type = FI_EP_RDM;
};

class Hub : public Polled {
 public:
  explicit Hub(const HubOptions& options = {});
  // fi_getinfo alone; throws when nothing matches.
  static Info ask(const HubOptions& options);

  fid_av* av() { return av_.get(); }
  fid_cq* cq() { return cq_.get(); }
  // What map_addr was after fi_av_open.
  const fi_addr_t* map() const { return static_cast<const fi_addr_t*>(map_); }
  void close_av() { av_.reset(); }
  Fid<fid_av> another_av();

  Fid<fid_ep> shared_receive() { return DOOR_MADE(fi_srx_context, domain_, info_->rx_attr, this); }
  Fid<fid_stx> shared_transmit() {
    return DOOR_MADE(fi_stx_context, domain_, info_->tx_attr, this);
  }
  // Bound to the queue, the address vector and what it shares; not enabled.
  Fid<fid_ep> open(fid_ep* srx, fid_stx* stx = nullptr);
  Fid<fid_ep> enabled(fid_ep* srx, fid_stx* stx = nullptr);
  fi_addr_t insert(const std::vector<uint8_t>& name);

  void poll() override;

 private:
  HubOptions options_;
  void* map_ = nullptr;
  Fid<fid_av> av_;
  Fid<fid_cq> cq_;
};

}  // namespace aperture::doors
