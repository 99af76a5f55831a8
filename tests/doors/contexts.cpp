// Hubs: see contexts.hpp.
#include "doors/contexts.hpp"

namespace aperture::doors {

Info Hub::ask(const HubOptions& o) {
  Info hints = make_hints(
      {.api = o.api, .type = o.type, .caps = o.caps, .mode = o.mode, .av_type = FI_AV_TABLE});
  hints->ep_attr->tx_ctx_cnt = o.tx_contexts;
  hints->ep_attr->rx_ctx_cnt = o.rx_contexts;
  hints->tx_attr->size = o.tx_size;
  fi_info* info = nullptr;
  DOOR(fi_getinfo(o.api, "127.0.0.1", nullptr, FI_SOURCE, hints.get(), &info));
  return Info(info);
}

Hub::Hub(const HubOptions& options) : Polled(ask(options), nullptr), options_(options) {
  av_ = another_av();
  fi_cq_attr cq_attr{.format = FI_CQ_FORMAT_TAGGED};
  cq_ = DOOR_MADE(fi_cq_open, domain_, &cq_attr);
}

Fid<fid_av> Hub::another_av() {
  fi_av_attr attr{.type = FI_AV_TABLE,
                  .rx_ctx_bits = options_.rx_ctx_bits,
                  .name = options_.av_name,
                  .flags = options_.av_flags};
  Fid<fid_av> av = DOOR_MADE(fi_av_open, domain_, &attr);
  map_ = attr.map_addr;
  return av;
}

Fid<fid_ep> Hub::open(fid_ep* srx, fid_stx* stx) {
  Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, domain_, info_.get(), this);
  fid_ep* raw = ep.get();
  DOOR(fi_ep_bind(raw, &av_->fid, 0));
  DOOR(fi_ep_bind(raw, &cq_->fid, FI_TRANSMIT | FI_RECV));
  if (srx != nullptr) DOOR(fi_ep_bind(raw, &srx->fid, 0));
  if (stx != nullptr) DOOR(fi_ep_bind(raw, &stx->fid, 0));
  return ep;
}

Fid<fid_ep> Hub::enabled(fid_ep* srx, fid_stx* stx) {
  Fid<fid_ep> ep = open(srx, stx);
  DOOR(fi_enable(ep.get()));
  return ep;
}

fi_addr_t Hub::insert(const std::vector<uint8_t>& name) {
  fi_addr_t addr = FI_ADDR_NOTAVAIL;
  const int inserted = fi_av_insert(av_.get(), name.data(), 1, &addr, 0, nullptr);
  if (inserted != 1) throw DoorError("fi_av_insert", inserted < 0 ? inserted : -FI_EOTHER);
  return addr;
}

void Hub::poll() {
  read(cq_.get(), FI_CQ_FORMAT_TAGGED, (options_.caps & FI_SOURCE) != 0);
}

}  // namespace aperture::doors
