// Opening an endpoint and meeting its peer.
#include "fabbench/session.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kCqSize = 1024;
constexpr uint32_t kApi = FI_VERSION(1, 17);

int offered_mr_mode(Registration registration) noexcept {
  const int basic = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  switch (registration) {
    case Registration::any: return basic | FI_MR_LOCAL | FI_MR_ENDPOINT;
    case Registration::basic: return basic;
    case Registration::scalable: return 0;
  }
  return 0;
}

}  // namespace

InfoPtr find_provider(const Setup& setup) {
  const InfoPtr hints(fi_allocinfo());
  if (!hints) throw Failure("fi_allocinfo: no memory");
  hints->caps = setup.caps;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = offered_mr_mode(setup.registration);
  hints->domain_attr->threading = setup.threading;
  hints->domain_attr->control_progress = setup.progress;
  hints->domain_attr->data_progress = setup.progress;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  if ((setup.caps & FI_RMA) != 0 || setup.cq_data) hints->domain_attr->cq_data_size = 4;
  if (setup.delivery_complete) hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  // fi_freeinfo() frees both names.
  hints->fabric_attr->prov_name = ::strdup(setup.provider.c_str());
  if (!setup.domain.empty()) hints->domain_attr->name = ::strdup(setup.domain.c_str());

  fi_info* found = nullptr;
  const int ret = fi_getinfo(kApi, nullptr, nullptr, 0, hints.get(), &found);
  if (ret != 0) throw_fabric_error("fi_getinfo", ret);
  return InfoPtr(found);
}

void throw_fabric_error(const char* call, int64_t ret) {
  throw Failure("%s: %s (%d)", call, fi_strerror(static_cast<int>(-ret)), static_cast<int>(ret));
}

Domain::Domain(const Setup& setup) : info_(find_provider(setup)) {
  fid_fabric* fabric = nullptr;
  check("fi_fabric", fi_fabric(info_->fabric_attr, &fabric, nullptr));
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  check("fi_domain", fi_domain(fabric, info_.get(), &domain, nullptr));
  domain_.reset(domain);
}

Session::Session(const Setup& setup, Channel& channel)
    : domain_(setup.shared != nullptr ? setup.shared->get(setup)
                                      : std::make_shared<Domain>(setup)) {
  open_queues(setup.waiting);
  ep_ = make_endpoint();
  meet_peer(channel);
}

void Session::open_queues(Waiting waiting) {
  fi_av_attr av_attr{};
  av_attr.type = info().domain_attr->av_type;
  if (av_attr.type == FI_AV_UNSPEC) av_attr.type = FI_AV_MAP;
  fid_av* av = nullptr;
  check("fi_av_open", fi_av_open(domain_->get(), &av_attr, &av, nullptr));
  av_.reset(av);

  fi_cq_attr cq_attr{};
  cq_attr.size = std::max({kCqSize, info().tx_attr->size, info().rx_attr->size});
  cq_attr.wait_obj = FI_WAIT_NONE;
  fid_cq* cq = nullptr;
  cq_attr.format = FI_CQ_FORMAT_CONTEXT;
  check("fi_cq_open", fi_cq_open(domain_->get(), &cq_attr, &cq, nullptr));
  tx_.reset(cq);
  cq_attr.format = FI_CQ_FORMAT_TAGGED;
  if (waiting == Waiting::epoll) cq_attr.wait_obj = FI_WAIT_FD;
  check("fi_cq_open", fi_cq_open(domain_->get(), &cq_attr, &cq, nullptr));
  rx_.reset(cq);
  if (waiting == Waiting::polling) return;
  int fd = -1;
  check("fi_control FI_GETWAIT", fi_control(&cq->fid, FI_GETWAIT, &fd));
  epoll_ = std::make_unique<Epoll>();
  epoll_->add(fd, 0);
}

Owned<fid_ep> Session::make_endpoint() {
  fid_ep* ep = nullptr;
  check("fi_endpoint", fi_endpoint(domain_->get(), &domain_->info(), &ep, nullptr));
  Owned<fid_ep> owned(ep);
  check("fi_ep_bind av", fi_ep_bind(ep, &av_->fid, 0));
  check("fi_ep_bind cq", fi_ep_bind(ep, &tx_->fid, FI_TRANSMIT));
  check("fi_ep_bind cq", fi_ep_bind(ep, &rx_->fid, FI_RECV));
  check("fi_enable", fi_enable(ep));
  return owned;
}

std::string Session::name() const {
  return name_of(ep_.get());
}

std::string Session::name_of(fid_ep* ep) {
  char name[512];
  size_t len = sizeof name;
  check("fi_getname", fi_getname(&ep->fid, name, &len));
  return {name, len};
}

void Session::sleep(const char* awaited) {
  fid* queues[] = {&rx_->fid};
  const int ret = fi_trywait(domain_->fabric(), queues, 1);
  if (ret == -FI_EAGAIN) return;
  check("fi_trywait", ret);
  epoll_->wait(awaited, [](uint64_t) {});
}

fi_addr_t Session::insert(const std::string& name) {
  fi_addr_t addr = FI_ADDR_UNSPEC;
  const int inserted = fi_av_insert(av_.get(), name.data(), 1, &addr, 0, nullptr);
  if (inserted != 1) throw Failure("fi_av_insert took %d of 1 address", inserted);
  return addr;
}

void Session::meet_peer(Channel& channel) {
  const std::string mine = name();
  channel.send(mine.data(), mine.size());
  // A name may be a text that holds a process id: the two need not be of one length.
  char theirs[512];
  peer_ = insert({theirs, channel.receive(theirs, sizeof theirs)});
}

std::string Session::registration_text() const {
  static constexpr struct {
    int bit;
    const char* name;
  } kNames[] = {{FI_MR_LOCAL, "LOCAL"},
                {FI_MR_VIRT_ADDR, "VIRT_ADDR"},
                {FI_MR_ALLOCATED, "ALLOCATED"},
                {FI_MR_PROV_KEY, "PROV_KEY"},
                {FI_MR_ENDPOINT, "ENDPOINT"}};
  std::string text;
  for (const auto& entry : kNames) {
    if ((info().domain_attr->mr_mode & entry.bit) == 0) continue;
    text += (text.empty() ? "mr " : "|") + std::string(entry.name);
  }
  return text.empty() ? "mr scalable" : text;
}

Region Session::register_memory(void* base, size_t len_bytes, uint64_t access) {
  fid_mr* mr = nullptr;
  check("fi_mr_reg", fi_mr_reg(domain_->get(), base, len_bytes, access, 0, domain_->next_key(), 0,
                               &mr, nullptr));
  Region region{Owned<fid_mr>(mr), nullptr};
  if ((info().domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    check("fi_mr_bind", fi_mr_bind(mr, &ep_->fid, 0));
    check("fi_mr_enable", fi_mr_enable(mr));
  }
  region.desc = fi_mr_desc(mr);
  return region;
}

Region Session::register_local(void* base, size_t len_bytes) {
  if ((info().domain_attr->mr_mode & FI_MR_LOCAL) == 0) return {};
  const bool rma = (info().caps & FI_RMA) != 0;
  return register_memory(base, len_bytes, FI_SEND | FI_RECV | (rma ? FI_READ | FI_WRITE : 0));
}

Region Session::register_target(void* base, size_t len_bytes) {
  return register_memory(base, len_bytes, FI_REMOTE_READ | FI_REMOTE_WRITE);
}

RemoteRegion Session::remote_of(const Region& region, const void* base) const {
  const bool virtual_addresses = (info().domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  return {virtual_addresses ? reinterpret_cast<uint64_t>(base) : 0, fi_mr_key(region.mr.get())};
}

Region Session::register_remote(void* base, size_t len_bytes, Channel& channel,
                                RemoteRegion& peers) {
  Region region = register_target(base, len_bytes);
  peers = channel.exchange(remote_of(region, base), "region");
  return region;
}

void Session::await_tx(const char* awaited) {
  Patience patience(awaited);
  while (true) {
    fi_cq_entry entry;
    const ssize_t n = fi_cq_read(tx_.get(), &entry, 1);
    if (n == 1) return;
    if (n != -FI_EAGAIN) throw_completion_error(tx_.get(), n);
    linger(patience);
  }
}

int Session::await_tx_or_error(const char* awaited) {
  Patience patience(awaited);
  while (true) {
    fi_cq_entry entry;
    const ssize_t n = fi_cq_read(tx_.get(), &entry, 1);
    if (n == 1) return 0;
    if (n == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      const ssize_t taken = fi_cq_readerr(tx_.get(), &error, 0);
      if (taken != 1) throw_fabric_error("fi_cq_readerr", taken);
      return error.err;
    }
    if (n != -FI_EAGAIN) throw_fabric_error("fi_cq_read", n);
    linger(patience);
  }
}

fi_cq_tagged_entry Session::await_rx(const char* awaited) {
  Patience patience(awaited);
  while (true) {
    fi_cq_tagged_entry entry;
    const ssize_t n = fi_cq_read(rx_.get(), &entry, 1);
    if (n == 1) return entry;
    if (n != -FI_EAGAIN) throw_completion_error(rx_.get(), n);
    await_more(awaited, patience);
  }
}

void Session::throw_completion_error(fid_cq* cq, ssize_t ret) {
  if (ret != -FI_EAVAIL) throw_fabric_error("fi_cq_read", ret);
  fi_cq_err_entry error{};
  const ssize_t n = fi_cq_readerr(cq, &error, 0);
  if (n != 1) throw_fabric_error("fi_cq_readerr", n);
  char detail[256] = {};
  const char* text = fi_cq_strerror(cq, error.prov_errno, error.err_data, detail, sizeof detail);
  throw Failure("error completion: %s (%d), provider: %s", fi_strerror(error.err), error.err,
                text == nullptr ? "" : text);
}

}  // namespace aperture::bench
