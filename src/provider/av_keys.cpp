// Authorization keys of address vectors: see av_keys.hpp.
#include "provider/av_keys.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "provider/ep.hpp"
#include "provider/ep_sources.hpp"
#include "provider/errors.hpp"
#include "provider/post.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

// fi_mr_attr::auth_key points to one of these in such a domain: struct fi_mr_auth_key, since 1.20.
struct RegionAuthKey {
  fid_av* av;
  fi_addr_t src_addr;
};

int refuse_handle(const char* call, fi_addr_t handle) {
  return refuse(-FI_EINVAL,
                "%s: %llu is no authorization key of the address vector; pass what "
                "fi_av_insert_auth_key returned",
                call, static_cast<unsigned long long>(handle));
}

// With the lock. Whether an endpoint was enabled with it.
bool is_in_use(const Av& av, uint8_t number) noexcept {
  return std::any_of(av.endpoints.begin(), av.endpoints.end(), [number](const EpBody* body) {
    return body->core != nullptr &&
           std::any_of(body->av_keys.begin(), body->av_keys.end(),
                       [number](const auto& key) { return key.number == number; });
  });
}

}  // namespace

// --- the keys ------------------------------------------------------------------------------------

Result<fi_addr_t> AvKeys::insert(std::shared_ptr<const Secret> secret) noexcept {
  const auto free =
      std::find_if(keys_.begin(), keys_.end(), [](const Key& key) { return key.key.number == 0; });
  if (free == keys_.end()) return Errc::no_space;
  const auto number = static_cast<uint8_t>(free - keys_.begin() + 1);
  assert(secret != nullptr && free->addresses == 0);
  free->key = {number, std::move(secret), protect::new_domain()};
  return handle_of(number);
}

AvKeys::Key* AvKeys::find_number(uint8_t number) noexcept {
  if (number == 0 || number > keys_.size() || keys_[number - 1].key.number == 0) return nullptr;
  return &keys_[number - 1];
}

AvKeys::Key* AvKeys::find(fi_addr_t handle) noexcept {
  const fi_addr_t number = handle ^ kHandles;
  return number <= kMaxAvKeys ? find_number(static_cast<uint8_t>(number)) : nullptr;
}

std::vector<nic::EndpointOptions::Key> AvKeys::all() const {
  std::vector<nic::EndpointOptions::Key> all;
  for (const Key& key : keys_) {
    if (key.key.number != 0) all.push_back(key.key);
  }
  return all;
}

// --- calls of address vectors --------------------------------------------------------------------

int insert_auth_key(fid_av* fid, const void* auth_key, size_t size, fi_addr_t* fi_addr,
                    uint64_t flags) noexcept {
  return guarded("fi_av_insert_auth_key", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (av.keys == nullptr)
      return refuse(-FI_EINVAL,
                    "fi_av_insert_auth_key: the domain was opened without FI_AV_AUTH_KEY; set "
                    "domain_attr->auth_key_size to that");
    if (flags != 0)
      return refuse(-FI_EBADFLAGS, "fi_av_insert_auth_key: flags 0x%llx; they must be 0",
                    static_cast<unsigned long long>(flags));
    if (fi_addr == nullptr || size == 0)
      return refuse(-FI_EINVAL,
                    "fi_av_insert_auth_key: fi_addr is NULL, or the key is empty; a key has 1 to "
                    "%zu bytes",
                    kMaxAuthKeyBytes);
    auto secret = take_auth_key("fi_av_insert_auth_key: auth_key",
                                static_cast<const uint8_t*>(auth_key), size);
    if (!secret) return fi_code(secret.error());
    nic::EngineGuard guard(*av.domain->engine);
    auto handle = av.keys->insert(*std::move(secret));
    if (!handle)
      return refuse(-FI_ENOSPC,
                    "fi_av_insert_auth_key: an address vector has at most %zu keys "
                    "(domain_attr->max_ep_auth_key)",
                    kMaxAvKeys);
    *fi_addr = *handle;
    return 0;
  });
}

int lookup_auth_key(fid_av* fid, fi_addr_t addr, void* auth_key, size_t* size) noexcept {
  return guarded("fi_av_lookup_auth_key", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (size == nullptr || (auth_key == nullptr && *size != 0))
      return refuse(-FI_EINVAL, "fi_av_lookup_auth_key: auth_key or auth_key_size is NULL");
    if (av.keys == nullptr)
      return refuse(-FI_EINVAL,
                    "fi_av_lookup_auth_key: the domain was opened without FI_AV_AUTH_KEY");
    nic::EngineGuard guard(*av.domain->engine);
    const Address* const address = av.table.find(addr);
    const AvKeys::Key* const key =
        address != nullptr ? av.keys->find_number(address->key) : av.keys->find(addr);
    if (key == nullptr)
      return refuse(-FI_EINVAL,
                    "fi_av_lookup_auth_key: %llu is neither a key nor an address of this vector",
                    static_cast<unsigned long long>(addr));
    const auto bytes = key->key.secret->bytes();
    if (auth_key != nullptr) std::memcpy(auth_key, bytes.data(), std::min(bytes.size(), *size));
    *size = bytes.size();
    return 0;
  });
}

int remove_auth_keys(Av& av, const fi_addr_t* addrs, size_t count) {
  if (av.keys == nullptr)
    return refuse(-FI_EINVAL,
                  "fi_av_remove: FI_AUTH_KEY, but the domain was opened without "
                  "FI_AV_AUTH_KEY, so the address vector has no keys");
  nic::EngineGuard guard(*av.domain->engine);
  for (size_t i = 0; i < count; ++i) {
    const AvKeys::Key* const key = av.keys->find(addrs[i]);
    if (key == nullptr) return refuse_handle("fi_av_remove", addrs[i]);
    if (is_in_use(av, key->key.number))
      return refuse(-FI_EBUSY,
                    "fi_av_remove: an endpoint was enabled with that authorization key; close it "
                    "first");
    if (key->addresses != 0)
      return refuse(-FI_EBUSY,
                    "fi_av_remove: %zu address(es) were inserted with that authorization key; "
                    "remove them first",
                    key->addresses);
  }
  for (size_t i = 0; i < count; ++i) {
    AvKeys::Key* const key = av.keys->find(addrs[i]);
    if (key == nullptr) return -FI_EINVAL;  // named twice
    av.keys->remove(*key);
  }
  return 0;
}

int check_key_of_id(Av& av, fi_addr_t addr) {
  nic::EngineGuard guard(*av.domain->engine);
  const bool known = av.keys != nullptr && av.keys->find(addr) != nullptr;
  return known ? 0 : refuse_handle("fi_av_set_user_id", addr);
}

// --- who has which -------------------------------------------------------------------------------

int take_av_keys(EpBody& body) {
  if (!body.domain->av_keys) return 0;
  assert(body.av != nullptr && body.av->keys != nullptr);
  nic::EngineGuard guard(*body.domain->engine);
  body.av_keys = body.av->keys->all();
  if (body.av_keys.empty())
    return refuse(-FI_EINVAL,
                  "fi_enable: the domain was opened with FI_AV_AUTH_KEY, and the address vector "
                  "has no key; insert one with fi_av_insert_auth_key first");
  return 0;
}

int take_region_keys(Domain& domain, const void* auth_key, size_t size, uint64_t flags,
                     std::vector<protect::DomainId>& domains) {
  if (size != sizeof(RegionAuthKey) || auth_key == nullptr)
    return refuse(-FI_EINVAL,
                  "fi_mr_regattr: auth_key_size is %zu; in a domain with FI_AV_AUTH_KEY auth_key "
                  "points to a struct fi_mr_auth_key of %zu bytes",
                  size, sizeof(RegionAuthKey));
  RegionAuthKey wish;
  std::memcpy(&wish, auth_key, sizeof wish);
  if (wish.av == nullptr || wish.av->fid.fclass != FI_CLASS_AV ||
      object_of<Av>(wish.av).domain != &domain)
    return refuse(-FI_EINVAL,
                  "fi_mr_regattr: the av of fi_mr_auth_key is no address vector of this domain");
  const bool one_key = (flags & kAuthKeyFlag) != 0;
  if (one_key && !domain.directed)
    return refuse(-FI_EINVAL,
                  "fi_mr_regattr: FI_AUTH_KEY limits a region to one key in domains that were "
                  "opened with FI_DIRECTED_RECV; ask for it in hints->caps, or leave it out");
  if (!one_key && domain.directed && wish.src_addr != FI_ADDR_UNSPEC)
    return refuse(-FI_EOPNOTSUPP,
                  "fi_mr_regattr: a region is limited to an authorization key here, not to one "
                  "address; pass the key with FI_AUTH_KEY, or FI_ADDR_UNSPEC");
  AvKeys& keys = *object_of<Av>(wish.av).keys;
  nic::EngineGuard guard(*domain.engine);
  if (one_key) {
    const AvKeys::Key* const key = keys.find(wish.src_addr);
    if (key == nullptr) return refuse_handle("fi_mr_regattr", wish.src_addr);
    domains.push_back(key->key.domain);
    return 0;
  }
  for (const auto& key : keys.all()) domains.push_back(key.domain);
  if (domains.empty())
    return refuse(-FI_EINVAL,
                  "fi_mr_regattr: the address vector has no authorization key; insert one with "
                  "fi_av_insert_auth_key first");
  return 0;
}

int take_key_source(const Ep& ep, const char* call, bool tagged, fi_addr_t& addr) noexcept {
  const EpBody& body = *ep.body;
  if (body.av_keys.empty() || source_rule(body, tagged) == SourceRule::none)
    return static_cast<int>(refuse_flags(call, kAuthKeyFlag, 0));
  const fi_addr_t number = addr ^ AvKeys::kHandles;
  const bool has = std::any_of(body.av_keys.begin(), body.av_keys.end(),
                               [number](const auto& key) { return key.number == number; });
  if (!has)
    return refuse(-FI_EINVAL,
                  "%s: %llu is no authorization key with which this endpoint was enabled; pass "
                  "what fi_av_insert_auth_key returned before that",
                  call, static_cast<unsigned long long>(addr));
  addr = qp::sources_by_key(static_cast<uint8_t>(number));
  return 0;
}

}  // namespace aperture::provider
