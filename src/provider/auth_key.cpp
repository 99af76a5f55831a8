// Authorization keys: see auth_key.hpp.
#include "provider/auth_key.hpp"

#include <cassert>

#include "provider/domain.hpp"
#include "provider/header_names.hpp"
#include "provider/info_memory.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

Result<std::shared_ptr<const Secret>> take_auth_key(const char* what, const uint8_t* key,
                                                    size_t size) {
  if (size == 0) return std::shared_ptr<const Secret>();
  if (size > kMaxAuthKeyBytes)
    return refuse(Errc::invalid, "%s_size is %zu; a key has at most %zu bytes", what, size,
                  kMaxAuthKeyBytes);
  if (key == nullptr)
    return refuse(Errc::invalid,
                  "%s is NULL, but %s_size is %zu; pass the key, or set the size to 0", what, what,
                  size);
  auto secret = Secret::copy_of({key, size});
  if (!secret)
    return refuse(secret.error(), "%s: there is no memory for the key: %s", what,
                  describe(secret.error()));
  return std::shared_ptr<const Secret>(std::make_shared<Secret>(*std::move(secret)));
}

Status set_default_auth_key(Domain& domain, const fi_info& info) {
  AuthKey first;
  first.pd = domain.engine->domain();
  if (domain.api_version >= kApi15 && info.domain_attr != nullptr) {
    const fi_domain_attr& attr = *info.domain_attr;
    if (domain.api_version >= kApi120 && attr.auth_key_size == kAvAuthKey) {
      if (attr.auth_key != nullptr)
        return refuse(Errc::invalid,
                      "fi_domain: domain_attr->auth_key must be NULL with FI_AV_AUTH_KEY; keys are "
                      "inserted into address vectors");
      domain.av_keys = true;
      domain.auth_keys.all.assign(1, first);
      return {};
    }
    auto taken =
        take_auth_key("fi_domain: domain_attr->auth_key", attr.auth_key, attr.auth_key_size);
    if (!taken) return taken.error();
    first.secret = *std::move(taken);
  }
  assert(domain.auth_keys.all.empty() && first.pd != 0);
  domain.auth_keys.all.assign(1, first);
  return {};
}

Result<AuthKey> auth_key_of(Domain& domain, const char* what, const uint8_t* key, size_t size) {
  AuthKeys& keys = domain.auth_keys;
  const std::lock_guard guard(keys.mutex);
  if (size == 0 || domain.api_version < kApi15) return keys.all.front();
  auto taken = take_auth_key(what, key, size);
  if (!taken) return taken.error();
  const AuthKey* known = nullptr;  // all are looked at, wherever it is
  for (const AuthKey& k : keys.all) {
    if (k.secret != nullptr && k.secret->equals((*taken)->bytes())) known = &k;
  }
  if (known != nullptr) return *known;
  if (keys.all.size() == kMaxAuthKeys)
    return refuse(Errc::no_space,
                  "%s: %zu different keys are in use in this domain already; open another domain",
                  what, kMaxAuthKeys);
  assert(!keys.all.empty() && keys.all.size() < kMaxAuthKeys);
  keys.all.push_back({*std::move(taken), protect::new_domain()});
  keys.several.store(true, std::memory_order_release);
  return keys.all.back();
}

Result<protect::DomainId> pd_of_auth_key(Domain& domain, const uint8_t* key, size_t size) {
  auto found = auth_key_of(domain, "fi_mr_regattr: auth_key", key, size);
  if (!found) return found.error();
  return found->pd;
}

Status add_region_of(Domain& domain, const protect::RegionSpec& spec,
                     std::unique_ptr<protect::SideRecord> side, protect::RegionHandle& made) {
  protect::KeyTable& table = domain.engine->keys();
  if (!spec.requested_key) return table.add(spec, std::move(side), made);
  // SYNC POINT: several-keys
  if (!domain.auth_keys.several.load(std::memory_order_acquire)) {
    return table.add(spec, std::move(side), made);
  }
  // held until it is there: nobody takes the same key under another authorization key meanwhile
  const std::lock_guard guard(domain.auth_keys.mutex);
  for (const AuthKey& k : domain.auth_keys.all) {
    if (k.pd != spec.pd && table.is_in_use(k.pd, *spec.requested_key)) return Errc::no_key;
  }
  return table.add(spec, std::move(side), made);
}

uint8_t* new_auth_key(const uint8_t* key, size_t size) {
  if (key == nullptr || size == 0) return nullptr;
  return static_cast<uint8_t*>(new_copy(key, size));
}

}  // namespace aperture::provider
