// The provider without libfabric: loads the module, plays the library's part, closes in order.
//
// One thread per test; nothing is shared between tests but the loaded module.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#include <functional>

#include "provider/opened.hpp"

namespace aperture::provider_tests {

constexpr uint32_t kApi117 = FI_VERSION(1, 17);
constexpr uint32_t kApi121 = FI_VERSION(1, 21);
constexpr uint32_t kApi20 = FI_VERSION(2, 0);

std::string module_path();
// The structure that fi_prov_ini returns; loads the module at the first call.
fi_provider& provider();

// Frees an answer as fi_freeinfo does: every pointer by itself.
struct FreeInfo {
  void operator()(fi_info* info) const noexcept;
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

// Hints with all their parts, in memory as long as the newest library's.
Info blank_hints();

struct Answer {
  int code = 0;
  Info info;
};
// May set APERTURE_MR_MODE too: ask() puts it back.
using Edit = std::function<void(fi_info&)>;
// Offers these mr_mode bits, which the provider is told to demand.
Edit offering(int mr_mode);
Answer ask(uint32_t version, const Edit& edit = {}, uint64_t flags = 0);

// Everything up to an enabled endpoint that has itself in its AV.
struct Bench {
  explicit Bench(const Edit& edit = {}, uint32_t version = kApi117,
                 fi_wait_obj wait = FI_WAIT_NONE);
  fi_addr_t enable();  // the endpoint's own address

  Info info;
  Opened<fid_fabric> fabric;
  Opened<fid_domain> domain;
  Opened<fid_av> av;
  Opened<fid_cq> cq;
  Opened<fid_cntr> cntr;
  Opened<fid_ep> ep;
  int ep_context = 0;
};

// Reads until something but -FI_EAGAIN comes, for at most 5 s.
ssize_t read_cq(fid_cq* cq, void* entry);

}  // namespace aperture::provider_tests
