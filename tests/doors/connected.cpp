// Stations and connections: see connected.hpp.
#include "doors/connected.hpp"

#include <gtest/gtest.h>

#include "doors/demand.hpp"

namespace aperture::doors {

Info Station::ask(const StationOptions& o) {
  Options base{
      .caps = o.caps, .mr_mode = kBasicMr, .threading = o.threading, .progress = o.progress};
  base.mode |= o.mode;
  Info hints = make_hints(base);
  hints->ep_attr->type = FI_EP_MSG;
  set_auth_key(*hints->domain_attr, o.domain_key);
  set_auth_key(*hints->ep_attr, o.ep_key);
  if (o.shared_receive) hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  if (o.shared_transmit) hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
  fi_info* info = nullptr;
  const Demand demand(base.mr_mode);
  DOOR(fi_getinfo(base.api, "127.0.0.1", nullptr, FI_SOURCE, hints.get(), &info));
  return Info(info);
}

Station::Station(const StationOptions& options, Station* host)
    : Polled(ask(options), host), options_(options) {
  fi_eq_attr eq_attr{.wait_obj = FI_WAIT_UNSPEC};
  eq_ = DOOR_MADE(fi_eq_open, fabric_, &eq_attr);
  fi_cq_attr cq_attr{.format = FI_CQ_FORMAT_TAGGED};
  cq_ = DOOR_MADE(fi_cq_open, domain_, &cq_attr);
  if (!options_.counters) return;
  tx_cntr_ = open_counter(domain_);
  rx_cntr_ = open_counter(domain_);
}

Fid<fid_pep> Station::passive(bool listening) {
  Fid<fid_pep> pep = DOOR_MADE(fi_passive_ep, fabric_, info_.get(), this);
  DOOR(fi_pep_bind(pep.get(), &eq_->fid, 0));
  if (listening) DOOR(fi_listen(pep.get()));
  return pep;
}

Fid<fid_ep> Station::open(fi_info* info, fid_ep* shared) {
  Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, domain_, info != nullptr ? info : info_.get(), this);
  fid_ep* raw = ep.get();
  DOOR(fi_ep_bind(raw, &eq_->fid, 0));
  DOOR(fi_ep_bind(raw, &cq_->fid, FI_TRANSMIT | FI_RECV | options_.cq_flags));
  if (tx_cntr_) DOOR(fi_ep_bind(raw, &tx_cntr_->fid, FI_SEND | FI_WRITE | FI_READ));
  if (rx_cntr_) DOOR(fi_ep_bind(raw, &rx_cntr_->fid, FI_RECV));
  if (shared != nullptr) DOOR(fi_ep_bind(raw, &shared->fid, 0));
  return ep;
}

Fid<fid_ep> Station::shared_receive() {
  return DOOR_MADE(fi_srx_context, domain_, info_->rx_attr, this);
}

CmEvent Station::event(int timeout_ms) {
  CmEvent e;
  alignas(fi_eq_cm_entry) uint8_t bytes[sizeof(fi_eq_cm_entry) + 512];
  pump_until(
      [&] {
        e.code = fi_eq_read(eq_.get(), &e.type, bytes, sizeof bytes, 0);
        return e.code != -FI_EAGAIN;
      },
      timeout_ms);
  if (e.code >= static_cast<int64_t>(sizeof(fi_eq_cm_entry))) {
    fi_eq_cm_entry head;
    std::memcpy(static_cast<void*>(&head), bytes, sizeof head);
    e.fid = head.fid;
    e.info.reset(head.info);
    e.data.assign(bytes + sizeof head, bytes + e.code);
  } else if (e.code == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    e.code = fi_eq_readerr(eq_.get(), &error, 0);
    e.fid = error.fid;
    e.err = error.err;
    const auto* data = static_cast<const uint8_t*>(error.err_data);
    if (data != nullptr) e.data.assign(data, data + error.err_data_size);
  }
  return e;
}

CmEvent Station::expect(uint32_t type, const fid* about) {
  CmEvent e = event();
  EXPECT_GT(e.code, 0);
  EXPECT_EQ(e.type, type) << "err " << e.err;
  if (about != nullptr) {
    EXPECT_EQ(e.fid, about);
  }
  return e;
}

CmEvent Station::expect_error(int err, const fid* about) {
  CmEvent e = event();
  EXPECT_GT(e.code, 0);
  EXPECT_EQ(e.err, err) << "event " << e.type;
  if (about != nullptr) {
    EXPECT_EQ(e.fid, about);
  }
  return e;
}

void Station::poll() {
  read(cq_.get(), FI_CQ_FORMAT_TAGGED);
}

Fid<fid_ep> ask_for_connection(Station& from, fid_pep* to, const std::vector<uint8_t>& data) {
  Fid<fid_ep> ep = from.open();
  DOOR(fi_connect(ep.get(), name_of(&to->fid).data(), data.data(), data.size()));
  return ep;
}

Fid<fid_ep> accept_next(Station& at, const fid_pep* pep, fid_ep* shared) {
  const CmEvent request = at.expect(FI_CONNREQ, pep != nullptr ? &pep->fid : nullptr);
  Fid<fid_ep> ep = at.open(request.info.get(), shared);
  DOOR(fi_accept(ep.get(), nullptr, 0));
  return ep;
}

Connected::Connected(Station& from, Station& to)
    : a(from), b(to), pep(to.passive()), at_a(ask_for_connection(from, pep.get())) {
  at_b = accept_next(b, pep.get());
  for (int i = 0; i < 2; ++i) {  // in one station both events come to one queue
    const CmEvent up = (i == 0 ? a : b).expect(FI_CONNECTED);
    EXPECT_TRUE(up.fid == &at_a->fid || up.fid == &at_b->fid);
  }
}

}  // namespace aperture::doors
