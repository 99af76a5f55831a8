// Authorization keys of an address vector, in a domain that was opened with FI_AV_AUTH_KEY: an
// endpoint, and a region, has several there. man 3 fi_av, "fi_av_insert_auth_key"; fi_domain,
// "Default authorization key length"; fi_mr, "auth_key"; fi_msg, "FI_AUTH_KEY".
//
// A key is a protection domain of its own, and has a number, which is Address::key of what is
// inserted with it. The application knows it by an fi_addr_t that no address has. An endpoint takes
// the keys that are there when it is enabled, a region those that are there when it is registered:
// it is in the protection domain of each, under the same key.
//
// Guarded by the engine's lock.
#pragma once

#include <rdma/fi_domain.h>

#include <array>
#include <memory>
#include <vector>

#include "nic/endpoint.hpp"
#include "provider/header_names.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

struct Av;
struct Domain;
struct Ep;
struct EpBody;

class AvKeys {
 public:
  // The fi_addr_t of the key with that number. Above all indices, below what names contexts.
  static constexpr fi_addr_t kHandles = fi_addr_t{1} << 31;
  static constexpr fi_addr_t handle_of(uint8_t number) noexcept { return kHandles | number; }

  struct Key {
    nic::EndpointOptions::Key key;  // its number is 0 where there is none
    size_t addresses = 0;           // that were inserted with it
  };

  // Errors: no_space.
  Result<fi_addr_t> insert(std::shared_ptr<const Secret> secret) noexcept;
  void remove(Key& key) noexcept { key = {}; }
  // By what the application calls it, or by its number; null: it is none.
  Key* find(fi_addr_t handle) noexcept;
  Key* find_number(uint8_t number) noexcept;
  // All there are now. By exception std::bad_alloc.
  std::vector<nic::EndpointOptions::Key> all() const;

 private:
  std::array<Key, kMaxAvKeys> keys_;
};

// The calls of fi_ops_av: av_keys.cpp.
int insert_auth_key(fid_av* av, const void* auth_key, size_t size, fi_addr_t* fi_addr,
                    uint64_t flags) noexcept;
int lookup_auth_key(fid_av* av, fi_addr_t addr, void* auth_key, size_t* size) noexcept;
// fi_av_remove and fi_av_set_user_id with FI_AUTH_KEY. 0 or a negative fi_errno. The latter only
// looks whether there is such a key: errors would name its id with FI_SOURCE_ERR alone, which is
// not offered.
int remove_auth_keys(Av& av, const fi_addr_t* addrs, size_t count);
int check_key_of_id(Av& av, fi_addr_t addr);

// As an endpoint is enabled: its keys, those of its address vector. 0 or a negative fi_errno.
int take_av_keys(EpBody& body);
// fi_mr_regattr: the protection domains of what attr->auth_key names. 0 or a negative fi_errno.
int take_region_keys(Domain& domain, const void* auth_key, size_t size, uint64_t flags,
                     std::vector<protect::DomainId>& domains);
// A receive with FI_AUTH_KEY: `addr` becomes what the core calls its sources. 0 or a negative
// fi_errno.
int take_key_source(const Ep& ep, const char* call, bool tagged, fi_addr_t& addr) noexcept;

}  // namespace aperture::provider
