// See direct.hpp.
#include "direct.hpp"

#include <dlfcn.h>

#include <chrono>
#include <stdexcept>

#include "doors/demand.hpp"

namespace aperture::provider_tests {

namespace {

// What a newer library's structures may be longer by.
constexpr size_t kRoom = 512;

template <typename T>
T* part() {
  return static_cast<T*>(std::calloc(1, sizeof(T) + kRoom));
}

}  // namespace

std::string module_path() {
  const char* dir = std::getenv("FI_PROVIDER_PATH");
  if (dir == nullptr) throw std::runtime_error("FI_PROVIDER_PATH is not set: run through ctest");
  return std::string(dir) + "/libaperture-fi.so";
}

fi_provider& provider() {
  static fi_provider* const loaded = [] {
    void* module = ::dlopen(module_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) throw std::runtime_error(::dlerror());
    using Ini = fi_provider* (*)();
    auto ini = reinterpret_cast<Ini>(::dlsym(module, "fi_prov_ini"));
    if (ini == nullptr) throw std::runtime_error("no fi_prov_ini");
    return ini();
  }();
  return *loaded;
}

void FreeInfo::operator()(fi_info* info) const noexcept {
  while (info != nullptr) {
    fi_info* next = info->next;
    std::free(info->src_addr);
    std::free(info->dest_addr);
    std::free(info->tx_attr);
    std::free(info->rx_attr);
    std::free(info->ep_attr->auth_key);
    std::free(info->ep_attr);
    std::free(info->domain_attr->auth_key);
    std::free(info->domain_attr->name);
    std::free(info->domain_attr);
    std::free(info->fabric_attr->name);
    std::free(info->fabric_attr->prov_name);
    std::free(info->fabric_attr);
    std::free(info);
    info = next;
  }
}

Info blank_hints() {
  Info hints(part<fi_info>());
  hints->tx_attr = part<fi_tx_attr>();
  hints->rx_attr = part<fi_rx_attr>();
  hints->ep_attr = part<fi_ep_attr>();
  hints->domain_attr = part<fi_domain_attr>();
  hints->fabric_attr = part<fi_fabric_attr>();
  return hints;
}

Edit offering(int mr_mode) {
  return [mr_mode](fi_info& h) {
    h.domain_attr->mr_mode = mr_mode;
    ::setenv("APERTURE_MR_MODE", mr_words(mr_mode).c_str(), 1);
  };
}

Answer ask(uint32_t version, const Edit& edit, uint64_t flags) {
  const Info hints = blank_hints();
  const Demand as_it_is;  // the edit may set another
  if (edit) edit(*hints);
  fi_info* info = nullptr;
  Answer answer;
  answer.code = provider().getinfo(version, nullptr, nullptr, flags, hints.get(), &info);
  answer.info.reset(info);
  return answer;
}

Bench::Bench(const Edit& edit, uint32_t version, fi_wait_obj wait) {
  Answer answer = ask(version, edit);
  must(answer.code, "getinfo");
  info = std::move(answer.info);
  info->fabric_attr->api_version = version;
  fid_fabric* f = nullptr;
  must(provider().fabric(info->fabric_attr, &f, nullptr), "fabric");
  fabric.reset(f);
  domain = opened("domain", fi_domain, f, info.get());
  fi_av_attr av_attr{};
  av = opened("av", fi_av_open, domain.get(), &av_attr);
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_TAGGED;
  cq_attr.wait_obj = wait;
  cq = opened("cq", fi_cq_open, domain.get(), &cq_attr);
  fi_cntr_attr cntr_attr{};
  cntr_attr.wait_obj = wait;
  cntr = opened("cntr", fi_cntr_open, domain.get(), &cntr_attr);
  ep = opened("ep", fi_endpoint, domain.get(), info.get(), &ep_context);
}

fi_addr_t Bench::enable() {
  must(fi_ep_bind(ep.get(), &av->fid, 0), "bind av");
  must(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV), "bind cq");
  must(fi_ep_bind(ep.get(), &cntr->fid, FI_SEND), "bind cntr");
  must(fi_enable(ep.get()), "enable");
  char name[64];
  size_t len = sizeof name;
  must(fi_getname(&ep->fid, name, &len), "getname");
  fi_addr_t own = FI_ADDR_NOTAVAIL;
  if (fi_av_insert(av.get(), name, 1, &own, 0, nullptr) != 1) throw std::runtime_error("av_insert");
  return own;
}

ssize_t read_cq(fid_cq* cq, void* entry) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (;;) {
    const ssize_t n = fi_cq_read(cq, entry, 1);
    if (n != -FI_EAGAIN || std::chrono::steady_clock::now() > until) return n;
  }
}

}  // namespace aperture::provider_tests
