// fid_av: address vectors. man 3 fi_av. The table is guarded by the engine's lock.
#pragma once

#include <rdma/fi_domain.h>

#include <vector>

#include "nic/address_table.hpp"
#include "provider/domain.hpp"

namespace aperture::provider {

struct EpBody;

struct Av {
  fid_av fid{};
  Domain* domain = nullptr;
  fi_av_type type = FI_AV_TABLE;
  uint64_t flags = 0;  // of fi_av_attr: FI_EVENT
  Eq* eq = nullptr;
  nic::AddressTable table;
  std::vector<EpBody*> endpoints;  // bound ones, to be told of removals; guarded by the lock
  Uses uses;                       // endpoints
};

// av_insert.cpp
extern fi_ops_av g_av_ops;

}  // namespace aperture::provider
