// fid_fabric: see fabric.hpp.
#include "provider/fabric.hpp"

#include <cassert>
#include <cstring>
#include <memory>

#include "provider/info.hpp"
#include "provider/offer.hpp"
#include "provider/pep.hpp"
#include "provider/registry.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

Registry<fid_fabric>& fabrics() {
  static constinit Registry<fid_fabric> all;
  return all;
}

int close_fabric(fid* fid) noexcept {
  return guarded_close("fi_close(fabric)", fid, [&]() -> int {
    auto& fabric = object_of<Fabric>(fid);
    if (const uint32_t n = fabric.uses.count(); n != 0)
      return refuse(
          -FI_EBUSY,
          "fi_close(fabric): %u object(s) opened from it are still open; close them first", n);
    fabrics().remove(&fabric.fid);
    delete &fabric;
    return 0;
  });
}

int open_domain_plain(fid_fabric* fabric, fi_info* info, fid_domain** domain,
                      void* context) noexcept {
  return open_domain(fabric, info, domain, 0, context);
}

fi_ops g_fabric_fid_ops = fid_ops<"fabric">(
    close_fabric, NotOffered<"fi_bind(fabric): nothing can be bound to a fabric">{},
    refuse_control<"fabric">);

fi_ops_fabric g_fabric_ops = {
    .size = sizeof(fi_ops_fabric),
    .domain = open_domain_plain,
    .passive_ep = open_passive,
    .eq_open = open_eq,
    .wait_open = open_wait_set,
    .trywait = try_wait,
    .domain2 = open_domain,
};

// domain2 has flags before context.
static_assert(sizeof(fi_ops_fabric) == 7 * sizeof(void*));

}  // namespace

int open_fabric(fi_fabric_attr* attr, fid_fabric** fabric, void* context) {
  if (attr == nullptr || fabric == nullptr)
    return refuse(-FI_EINVAL, "fi_fabric: attr or fabric is NULL");
  if (attr->name != nullptr && std::strcmp(attr->name, kFabricName) != 0)
    return refuse(-FI_EINVAL,
                  "fi_fabric: \"%s\" is not a fabric of this provider; its only one is \"%s\"",
                  attr->name, kFabricName);
  auto made = std::make_unique<Fabric>();
  made->fid.fid = {FI_CLASS_FABRIC, context, &g_fabric_fid_ops};
  made->fid.ops = &g_fabric_ops;
  made->api_version = attr->api_version;
  made->fid.api_version = attr->api_version;
  assert(!is_open_fabric(&made->fid) && made->uses.count() == 0);
  fabrics().add(&made->fid);
  note_opened();
  *fabric = &made.release()->fid;
  return 0;
}

fid_fabric* first_open_fabric() noexcept {
  return fabrics().first();
}
bool is_open_fabric(const fid_fabric* fabric) noexcept {
  return fabrics().has(fabric);
}

}  // namespace aperture::provider
