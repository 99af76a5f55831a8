// fid_av: address vectors. man 3 fi_av. The table is guarded by the engine's lock.
#pragma once

#include <rdma/fi_domain.h>

#include <vector>

#include "nic/address_table.hpp"
#include "provider/av_keys.hpp"
#include "provider/av_ops.hpp"
#include "provider/av_shared.hpp"
#include "provider/domain.hpp"

namespace aperture::provider {

struct EpBody;

struct Av {
  fid_av fid{};
  Domain* domain = nullptr;
  fi_av_type type = FI_AV_TABLE;
  uint64_t flags = 0;  // of fi_av_attr: FI_EVENT, FI_AV_USER_ID, FI_READ
  Eq* eq = nullptr;
  nic::AddressTable table;
  std::unique_ptr<SharedAddresses> shared;  // null: it has no name
  std::unique_ptr<AvKeys> keys;             // null: the domain has no FI_AV_AUTH_KEY
  std::vector<EpBody*> endpoints;  // bound ones, to be told of removals; guarded by the lock
  Uses uses;                       // endpoints

  // The endpoints hear of it. With the lock: av_insert.cpp
  void tell_inserted(uint64_t index) noexcept;
  void tell_removed(uint64_t index) noexcept;  // just before it is
};

// av_insert.cpp
extern AvOps g_av_ops;

}  // namespace aperture::provider
