// Sets of addresses: see av_set.hpp.
#include "provider/av_set.hpp"

#include <algorithm>
#include <cassert>
#include <memory>

#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

bool has(const AvSet& set, fi_addr_t addr) noexcept {
  return std::find(set.members.begin(), set.members.end(), addr) != set.members.end();
}

bool is_inserted(Av& av, fi_addr_t addr) noexcept {
  nic::EngineGuard guard(*av.domain->engine);
  return av.table.find_fresh(addr) != nullptr;
}

int check_pair(const char* call, const fid_av_set* dst, const fid_av_set* src) {
  if (src == nullptr) return refuse(-FI_EINVAL, "%s: src is NULL", call);
  if (object_of<const AvSet>(dst).av == object_of<const AvSet>(src).av) return 0;
  return refuse(-FI_EINVAL, "%s: the two sets are of different address vectors", call);
}

int unite(fid_av_set* dst, const fid_av_set* src) noexcept {
  return guarded("fi_av_set_union", dst, [&]() -> int {
    if (const int rc = check_pair("fi_av_set_union", dst, src); rc != 0) return rc;
    auto& to = object_of<AvSet>(dst);
    const auto from = object_of<const AvSet>(src).members;  // maybe those of dst
    to.members.reserve(to.members.size() + from.size());
    for (const fi_addr_t addr : from) {
      if (!has(to, addr)) to.members.push_back(addr);
    }
    return 0;
  });
}

int intersect(fid_av_set* dst, const fid_av_set* src) noexcept {
  return guarded("fi_av_set_intersect", dst, [&]() -> int {
    if (const int rc = check_pair("fi_av_set_intersect", dst, src); rc != 0) return rc;
    const auto& other = object_of<const AvSet>(src);
    if (dst == src) return 0;
    std::erase_if(object_of<AvSet>(dst).members, [&](fi_addr_t a) { return !has(other, a); });
    return 0;
  });
}

int subtract(fid_av_set* dst, const fid_av_set* src) noexcept {
  return guarded("fi_av_set_diff", dst, [&]() -> int {
    if (const int rc = check_pair("fi_av_set_diff", dst, src); rc != 0) return rc;
    const AvSet other{.members = object_of<const AvSet>(src).members};
    std::erase_if(object_of<AvSet>(dst).members, [&](fi_addr_t a) { return has(other, a); });
    return 0;
  });
}

int insert(fid_av_set* fid, fi_addr_t addr) noexcept {
  return guarded("fi_av_set_insert", fid, [&]() -> int {
    auto& set = object_of<AvSet>(fid);
    if (!is_inserted(*set.av, addr))
      return refuse(-FI_EINVAL,
                    "fi_av_set_insert: address %llu is not in the address vector; insert it there "
                    "first",
                    static_cast<unsigned long long>(addr));
    if (has(set, addr))
      return refuse(-FI_EINVAL, "fi_av_set_insert: address %llu is in the set already",
                    static_cast<unsigned long long>(addr));
    set.members.push_back(addr);
    return 0;
  });
}

int remove(fid_av_set* fid, fi_addr_t addr) noexcept {
  return guarded("fi_av_set_remove", fid, [&]() -> int {
    if (std::erase(object_of<AvSet>(fid).members, addr) != 0) return 0;
    return refuse(-FI_EINVAL, "fi_av_set_remove: address %llu is not in the set",
                  static_cast<unsigned long long>(addr));
  });
}

int address_of(fid_av_set* fid, fi_addr_t* out) noexcept {
  return guarded("fi_av_set_addr", fid, [&]() -> int {
    if (out == nullptr) return refuse(-FI_EINVAL, "fi_av_set_addr: coll_addr is NULL");
    *out = object_of<AvSet>(fid).address();
    return 0;
  });
}

int close_set(fid* fid) noexcept {
  return guarded_close("fi_close(av set)", fid, [&]() -> int {
    auto& set = object_of<AvSet>(fid);
    set.av->uses.drop();
    delete &set;
    return 0;
  });
}

fi_ops g_av_set_fid_ops =
    fid_ops<"av set">(close_set, NotOffered<"fi_bind(av set): nothing can be bound to it">{},
                      refuse_control<"av set">);

fi_ops_av_set g_set_ops = {
    .size = sizeof(fi_ops_av_set),
    .set_union = unite,
    .intersect = intersect,
    .diff = subtract,
    .insert = insert,
    .remove = remove,
    .addr = address_of,
};

int check_attr(const Av& av, const fi_av_set_attr& attr) {
  if ((attr.flags & ~(kAllCollectives | FI_UNIVERSE)) != 0)
    return refuse(-FI_EBADFLAGS, "fi_av_set: flags 0x%llx are none that fi_av_set(3) knows",
                  static_cast<unsigned long long>(attr.flags & ~(kAllCollectives | FI_UNIVERSE)));
  if (attr.comm_key_size != 0)
    return refuse(-FI_ENOSYS,
                  "fi_av_set: communication keys are not offered: no fabric manager sets up groups "
                  "here; leave comm_key_size 0 and name the members");
  const bool has_range = attr.start_addr != FI_ADDR_NOTAVAIL || attr.end_addr != FI_ADDR_NOTAVAIL;
  if (!has_range) return 0;
  if (av.type == FI_AV_MAP)
    return refuse(-FI_EINVAL,
                  "fi_av_set: a range of addresses needs an FI_AV_TABLE; set start_addr and "
                  "end_addr to FI_ADDR_NOTAVAIL and insert them one by one");
  if (attr.start_addr > attr.end_addr || attr.stride == 0)
    return refuse(-FI_EINVAL,
                  "fi_av_set: start_addr %llu, end_addr %llu, stride %llu; the start is not behind "
                  "the end, and the stride is at least 1",
                  static_cast<unsigned long long>(attr.start_addr),
                  static_cast<unsigned long long>(attr.end_addr),
                  static_cast<unsigned long long>(attr.stride));
  if (attr.count != 0 && (attr.end_addr - attr.start_addr) / attr.stride >= attr.count)
    return refuse(-FI_EINVAL, "fi_av_set: the range has more addresses than count (%zu)",
                  attr.count);
  return 0;
}

// Valid addresses in the range, by the stride.
void fill(AvSet& set, fi_addr_t first, fi_addr_t last, uint64_t stride) {
  nic::AddressTable& table = set.av->table;
  nic::EngineGuard guard(*set.av->domain->engine);
  table.refresh();
  set.members.reserve(table.count());
  for (fi_addr_t addr = first; addr <= last && addr < table.size(); addr += stride) {
    if (table.find(addr) != nullptr) set.members.push_back(addr);
    if (addr + stride < addr) break;
  }
}

}  // namespace

int open_av_set(fid_av* fid, fi_av_set_attr* attr, fid_av_set** out, void* context) noexcept {
  return guarded("fi_av_set", fid, [&]() -> int {
    if (fid == nullptr || attr == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_av_set: av, attr or set is NULL");
    auto& av = object_of<Av>(fid);
    if (const int rc = check_attr(av, *attr); rc != 0) return rc;
    auto set = std::make_unique<AvSet>();
    set->av = &av;
    if ((attr->flags & kAllCollectives) != 0) set->collectives = attr->flags & kAllCollectives;
    if ((attr->flags & FI_UNIVERSE) != 0) {
      fill(*set, 0, FI_ADDR_NOTAVAIL, 1);
    } else if (attr->start_addr != FI_ADDR_NOTAVAIL) {
      fill(*set, attr->start_addr, attr->end_addr, attr->stride);
    } else {
      set->members.reserve(std::min(attr->count, kMaxEndpoints));
    }
    set->fid.fid = {FI_CLASS_AV_SET, context, &g_av_set_fid_ops};
    set->fid.ops = &g_set_ops;
    av.uses.add();
    *out = &set.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
