// Stations and connections: see connected.hpp.
#include "doors/connected.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "doors/demand.hpp"

namespace aperture::doors {
namespace {

std::list<Station*>& stations() {
  static std::list<Station*> all;
  return all;
}

void drive() {
  for (Station* station : stations()) station->poll();
}

}  // namespace

Info Station::ask(const StationOptions& o) {
  Options base;
  base.caps = o.caps;
  base.threading = o.threading;
  base.mr_mode = kBasicMr;
  Info hints = make_hints(base);
  hints->ep_attr->type = FI_EP_MSG;
  set_auth_key(*hints->domain_attr, o.domain_key);
  set_auth_key(*hints->ep_attr, o.ep_key);
  if (o.shared_receive) hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  fi_info* info = nullptr;
  const Demand demand(base.mr_mode);
  DOOR(fi_getinfo(base.api, "127.0.0.1", nullptr, FI_SOURCE, hints.get(), &info));
  return Info(info);
}

Station::Station(const StationOptions& options, Station* host)
    : options_(options), info_(ask(options)) {
  if (host == nullptr) {
    fid_fabric* fabric = nullptr;
    DOOR(fi_fabric(info_->fabric_attr, &fabric, nullptr));
    own_fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    DOOR(fi_domain(fabric, info_.get(), &domain, nullptr));
    own_domain_.reset(domain);
    fabric_ = fabric;
    domain_ = domain;
  } else {
    fabric_ = host->fabric_;
    domain_ = host->domain_;
  }
  open_queues();
  stations().push_back(this);
}

Station::~Station() {
  stations().remove(this);
}

void Station::open_queues() {
  fi_eq_attr eq_attr{};
  eq_attr.wait_obj = FI_WAIT_UNSPEC;
  fid_eq* eq = nullptr;
  DOOR(fi_eq_open(fabric_, &eq_attr, &eq, nullptr));
  eq_.reset(eq);
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_TAGGED;
  fid_cq* cq = nullptr;
  DOOR(fi_cq_open(domain_, &cq_attr, &cq, nullptr));
  cq_.reset(cq);
  if (!options_.counters) return;
  fi_cntr_attr cntr_attr{};
  fid_cntr* cntr = nullptr;
  DOOR(fi_cntr_open(domain_, &cntr_attr, &cntr, nullptr));
  tx_cntr_.reset(cntr);
  DOOR(fi_cntr_open(domain_, &cntr_attr, &cntr, nullptr));
  rx_cntr_.reset(cntr);
}

Fid<fid_pep> Station::passive(bool listening) {
  fid_pep* raw = nullptr;
  DOOR(fi_passive_ep(fabric_, info_.get(), &raw, this));
  Fid<fid_pep> pep(raw);
  DOOR(fi_pep_bind(raw, &eq_->fid, 0));
  if (listening) DOOR(fi_listen(raw));
  return pep;
}

Fid<fid_ep> Station::open(fi_info* info, fid_ep* shared) {
  fid_ep* raw = nullptr;
  DOOR(fi_endpoint(domain_, info != nullptr ? info : info_.get(), &raw, this));
  Fid<fid_ep> ep(raw);
  DOOR(fi_ep_bind(raw, &eq_->fid, 0));
  DOOR(fi_ep_bind(raw, &cq_->fid, FI_TRANSMIT | FI_RECV | options_.cq_flags));
  if (tx_cntr_) DOOR(fi_ep_bind(raw, &tx_cntr_->fid, FI_SEND | FI_WRITE | FI_READ));
  if (rx_cntr_) DOOR(fi_ep_bind(raw, &rx_cntr_->fid, FI_RECV));
  if (shared != nullptr) DOOR(fi_ep_bind(raw, &shared->fid, 0));
  return ep;
}

Fid<fid_ep> Station::shared_receive() {
  fid_ep* raw = nullptr;
  DOOR(fi_srx_context(domain_, info_->rx_attr, &raw, this));
  return Fid<fid_ep>(raw);
}

CmEvent Station::event(int timeout_ms) {
  CmEvent e;
  alignas(fi_eq_cm_entry) uint8_t bytes[sizeof(fi_eq_cm_entry) + 512];
  drive_until(
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
  for (int i = 0; i < 64; ++i) {
    fi_cq_tagged_entry entry{};
    const ssize_t got = fi_cq_read(cq_.get(), &entry, 1);
    Completion c;
    if (got == 1) {
      c.context = entry.op_context;
      c.flags = entry.flags;
      c.len = entry.len;
      c.buf = entry.buf;
      c.data = entry.data;
      c.tag = entry.tag;
    } else if (got == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      if (fi_cq_readerr(cq_.get(), &error, 0) != 1) return;
      c.err = error.err;
      c.context = error.op_context;
    } else {
      return;
    }
    done_.push_back(c);
  }
}

Completion Station::wait(const void* context, int timeout_ms) {
  Completion found;
  found.err = -1;
  drive_until(
      [&] {
        const auto it = std::find_if(done_.begin(), done_.end(),
                                     [&](const Completion& c) { return c.context == context; });
        if (it == done_.end()) return false;
        found = *it;
        done_.erase(it);
        return true;
      },
      timeout_ms);
  return found;
}

bool drive_until(const std::function<bool()>& condition, int timeout_ms) {
  const int64_t deadline = now_ns() + int64_t{timeout_ms} * 1'000'000;
  for (int spins = 0;; ++spins) {
    drive();
    if (condition()) return true;
    if (now_ns() > deadline) return false;
    if (spins % 16 == 15) sched_yield();
    if (spins > 2000) usleep(50);
  }
}

int64_t post_to(const std::function<int64_t()>& call, int timeout_ms) {
  int64_t result = -FI_EAGAIN;
  drive_until([&] { return (result = call()) != -FI_EAGAIN; }, timeout_ms);
  return result;
}

std::vector<uint8_t> name_of(fid* object) {
  std::vector<uint8_t> bytes(256);
  size_t len = bytes.size();
  DOOR(fi_getname(object, bytes.data(), &len));
  bytes.resize(len);
  return bytes;
}

Fid<fid_ep> ask_for_connection(Station& from, fid_pep* to, const std::vector<uint8_t>& data) {
  Fid<fid_ep> ep = from.open();
  DOOR(fi_connect(ep.get(), name_of(&to->fid).data(), data.data(), data.size()));
  return ep;
}

Connected::Connected(Station& from, Station& to)
    : a(from), b(to), pep(to.passive()), at_a(ask_for_connection(from, pep.get())) {
  const CmEvent request = b.expect(FI_CONNREQ, &pep->fid);
  at_b = b.open(request.info.get());
  DOOR(fi_accept(at_b.get(), nullptr, 0));
  for (int i = 0; i < 2; ++i) {  // in one station both events come to one queue
    const CmEvent up = (i == 0 ? a : b).expect(FI_CONNECTED);
    EXPECT_TRUE(up.fid == &at_a->fid || up.fid == &at_b->fid);
  }
}

}  // namespace aperture::doors
