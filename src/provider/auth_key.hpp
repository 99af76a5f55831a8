// Authorization keys: those of a domain and of its endpoints and regions, and of passive endpoints.
// man 3 fi_domain, fi_endpoint, fi_mr, "auth_key".
//
// Each pair of a domain and a key is a protection domain of its own: regions are registered in that
// of their key, and what comes through an endpoint meets that of its key, so the check which every
// access passes anyway keeps them apart. The keys are held as Secrets from the first use to the end
// of the domain, and are nowhere logged. Any thread; guarded by the mutex in AuthKeys.
#pragma once

#include <rdma/fabric.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/secret.hpp"
#include "protect/key_table.hpp"

namespace aperture::provider {

struct Domain;

inline constexpr size_t kMaxAuthKeyBytes = 1024;
inline constexpr size_t kMaxAuthKeys = 1024;  // different ones in a domain

struct AuthKey {
  std::shared_ptr<const Secret> secret;  // null: none
  protect::DomainId pd = 0;
};

// The authorization keys of a domain. The first is its default, of what is opened without one.
struct AuthKeys {
  std::mutex mutex;
  std::vector<AuthKey> all;
  // SYNC POINT: several-keys (who sees it looks at all of them, under the mutex)
  std::atomic<bool> several{false};
};

// A key as an application gives it, checked and copied; null if its size is 0. `what` names the
// call and the field. Errors: invalid (too long, or NULL), no_memory; each has been logged.
Result<std::shared_ptr<const Secret>> take_auth_key(const char* what, const uint8_t* key,
                                                    size_t size);
// As the domain is opened: its default key, and the protection domain of that.
Status set_default_auth_key(Domain& domain, const fi_info& info);
// That of an endpoint or region of the domain; the default if the size is 0, or the API older than
// authorization keys. Errors: as take_auth_key, and no_space (kMaxAuthKeys).
Result<AuthKey> auth_key_of(Domain& domain, const char* what, const uint8_t* key, size_t size);
Result<protect::DomainId> pd_of_auth_key(Domain& domain, const uint8_t* key, size_t size);
// KeyTable::add for a region of this domain: a requested key that is in use under any of its
// authorization keys is refused (no_key).
Status add_region_of(Domain& domain, const protect::RegionSpec& spec,
                     std::unique_ptr<protect::SideRecord> side, protect::RegionHandle& made);

// In the answer of fi_getinfo and in the info of a connection request: a copy of that key, which
// fi_freeinfo frees. By exception std::bad_alloc.
uint8_t* new_auth_key(const uint8_t* key, size_t size);

}  // namespace aperture::provider
