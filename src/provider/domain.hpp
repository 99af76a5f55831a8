// fid_domain: one progress engine and what belongs to it. man 3 fi_domain.
//
// Control calls come from any thread; what lies beneath the engine is guarded by its lock.
#pragma once

#include <rdma/fi_domain.h>

#include <memory>
#include <vector>

#include "base/spare_blocks.hpp"
#include "nic/engine.hpp"
#include "provider/auth_key.hpp"
#include "provider/entry.hpp"
#include "provider/fabric.hpp"
#include "provider/mr_mode.hpp"
#include "provider/raw_keys.hpp"
#include "provider/staging_memory.hpp"

namespace aperture::provider {

inline constexpr size_t kRegionBytes = 384;  // at least a Region: mr.hpp

struct CallTables;
struct Eq;
class OwnRegistrations;
class Sleeper;
class WorkQueue;

struct Domain {
  fid_domain fid{};
  Fabric* fabric = nullptr;
  std::unique_ptr<nic::Engine> engine;
  std::unique_ptr<OwnRegistrations> own_registrations;  // null: it makes none
  StagingMemory staging;            // host memory in place of a device's; it outlives `work`
  std::unique_ptr<WorkQueue> work;  // once something in it may be kept beyond its call
  CallTables* calls = nullptr;      // fork.hpp
  uint32_t api_version = 0;
  uint32_t addr_format = FI_SOCKADDR_IN;
  fi_av_type av_type = FI_AV_UNSPEC;
  RegionRules region_rules;
  // FI_RMA_EVENT among its capabilities, or those of an endpoint that was opened in it
  bool counts_regions = false;
  bool user_ids = false;  // FI_AV_USER_ID among its capabilities
  bool directed = false;  // FI_DIRECTED_RECV likewise
  bool av_keys = false;   // FI_AV_AUTH_KEY: keys are those of address vectors
  size_t key_bytes = 8;   // mr_key_size that the domain was opened with, at most 8
  AuthKeys auth_keys;
  MappedKeys mapped_keys;
  Uses uses;             // endpoints, AVs, CQs, counters, poll sets, windows
  uint32_t regions = 0;  // open ones; guarded by the engine's lock, as their memory is
  SpareBlocks region_blocks{kRegionBytes};
  Eq* eq = nullptr;            // fi_domain_bind
  bool async_regions = false;  // bound with FI_REG_MR
  // CQs and counters that somebody may be asleep on; guarded by the engine's lock.
  std::vector<Sleeper*> sleepers;
  size_t sleepers_opened = 0;  // capacity kept for them
};

// For fi_getinfo: the domains that are open in this process.
fid_domain* first_open_domain() noexcept;
bool is_open_domain(const fid_domain* domain) noexcept;

// What its ops open; each in its own file.
int open_av(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context) noexcept;
int open_cq(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) noexcept;
int open_cntr(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr, void* context) noexcept;
int open_srx(fid_domain* domain, fi_rx_attr* attr, fid_ep** ep, void* context) noexcept;
int open_scalable_ep(fid_domain* domain, fi_info* info, fid_ep** sep, void* context) noexcept;
int open_stx(fid_domain* domain, fi_tx_attr* attr, fid_stx** stx, void* context) noexcept;
int open_ep(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) noexcept;
int open_poll_set(fid_domain* domain, fi_poll_attr* attr, fid_poll** set) noexcept;
const Domain& domain_of_poll_set(const struct fid* set) noexcept;
extern fi_ops_mr g_region_ops;

}  // namespace aperture::provider
