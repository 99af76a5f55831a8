// Inserting, removing and looking up addresses: the calls of fi_ops_av. man 3 fi_av.
//
// An fi_addr_t is the index in the table for both AV types. With FI_EVENT the work is done at once
// and its result is reported through the event queue.
#include <arpa/inet.h>

#include <array>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "provider/addressing.hpp"
#include "provider/av.hpp"
#include "provider/av_set.hpp"
#include "provider/ep.hpp"
#include "provider/eq.hpp"
#include "provider/errors.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

// One insertion call while it runs: where results and errors go. Addresses for a shared vector are
// collected, and inserted many at once; its lock, which may be waited for, is taken once for all of
// them, and before the engine's.
class Insertion {
 public:
  Insertion(Av& av, fi_addr_t* fi_addr, uint64_t flags, void* context) noexcept
      : av_(av), fi_addr_(fi_addr), context_(context) {
    if ((flags & FI_SYNC_ERR) != 0) errors_ = static_cast<int*>(context);
    gives_ids_ = (flags & FI_AV_USER_ID) != 0;
    gives_keys_ = (flags & kAuthKeyFlag) != 0;
  }

  // Either of both for each address, in order.
  void add(const Address& address) {
    if (!av_.shared) return settle(insert(address));
    collected_[n_collected_++] = address;
    if (n_collected_ == collected_.size()) insert_collected();
  }
  void fail(int err, const std::string& why) {
    insert_collected();
    settle_failed(err, why);
  }
  int finish() {
    insert_collected();
    lock_.reset();  // before the report: whoever reads that may close the vector
    assert(inserted_ <= at_);
    if (!is_async()) return static_cast<int>(inserted_);
    av_.eq->report(FI_AV_COMPLETE, &av_.fid.fid, context_, inserted_);
    return 0;
  }

 private:
  Result<uint64_t> insert(Address address) noexcept {
    nic::EngineGuard guard(*av_.domain->engine);
    AvKeys::Key* key = nullptr;
    if (gives_keys_) {
      key = av_.keys->find(fi_addr_[at_]);
      if (key == nullptr) return Errc::invalid;
      address.key = key->key.number;
    }
    Result<uint64_t> index = av_.table.insert(address, reported());
    if (!index) return index;
    if (key != nullptr) ++key->addresses;
    av_.tell_inserted(*index);
    return index;
  }
  void insert_collected() {
    std::span<const Address> left(collected_.data(), std::exchange(n_collected_, 0));
    while (!left.empty()) {
      Result<SharedAddresses::Inserted> made = insert_shared(left);
      const size_t settled = made ? made->count : 1;
      for (size_t i = 0; i < settled; ++i)
        settle(made ? Result<uint64_t>(made->first + i) : Result<uint64_t>(made.error()));
      left = left.subspan(settled);
    }
  }
  Result<SharedAddresses::Inserted> insert_shared(std::span<const Address> addresses) noexcept {
    if (!lock_ && refused_ == Errc::ok) {
      auto lock = av_.shared->lock();
      refused_ = lock.error();
      if (lock) lock_.emplace(*std::move(lock));
    }
    if (!lock_) return refused_;  // the rest of the call does not wait again
    nic::EngineGuard guard(*av_.domain->engine);
    return av_.shared->insert(*lock_, addresses);
  }

  void settle(Result<uint64_t> index) {
    if (!index) return settle_failed(fi_error(index.error()), describe(index.error()));
    if (fi_addr_ != nullptr) fi_addr_[at_] = *index;
    if (errors_ != nullptr) errors_[at_] = 0;
    ++at_;
    ++inserted_;
  }
  void settle_failed(int err, const std::string& why) {
    assert(err != 0);
    APERTURE_WARN("fi_av_insert: address %zu: %s", at_, why.c_str());
    if (fi_addr_ != nullptr) fi_addr_[at_] = FI_ADDR_NOTAVAIL;
    if (errors_ != nullptr) errors_[at_] = err;
    if (is_async()) av_.eq->report_error(&av_.fid.fid, context_, at_, err, why);
    ++at_;
  }
  // What completions say of the next one, if not its index.
  std::optional<uint64_t> reported() const noexcept {
    if (gives_ids_) return fi_addr_[at_];
    if ((av_.flags & FI_AV_USER_ID) != 0) return FI_ADDR_NOTAVAIL;  // until fi_av_set_user_id
    return std::nullopt;
  }
  bool is_async() const noexcept { return (av_.flags & FI_EVENT) != 0; }

  Av& av_;
  fi_addr_t* fi_addr_;
  void* context_;
  int* errors_ = nullptr;
  // What fi_addr_ holds until it is overwritten: the user's ids, or authorization keys.
  bool gives_ids_ = false;
  bool gives_keys_ = false;
  size_t at_ = 0;  // the next to be settled
  size_t inserted_ = 0;
  // of a shared vector
  std::array<Address, SharedAddresses::kAtOnce> collected_;  // behind what was settled
  size_t n_collected_ = 0;
  std::optional<SharedAddresses::Lock> lock_;
  Errc refused_ = Errc::ok;  // why there is none
};

// An address is of a key exactly where the domain has keys of address vectors.
int check_keys(const Av& av, uint64_t flags, bool has_fi_addr) {
  const bool with_key = (flags & kAuthKeyFlag) != 0;
  if (with_key != (av.keys != nullptr))
    return refuse(-FI_EINVAL,
                  with_key ? "fi_av_insert: FI_AUTH_KEY, but the domain was opened without "
                             "FI_AV_AUTH_KEY"
                           : "fi_av_insert: the domain was opened with FI_AV_AUTH_KEY, where each "
                             "address has a key: pass FI_AUTH_KEY, and the keys in fi_addr");
  if (with_key && (!has_fi_addr || (flags & FI_AV_USER_ID) != 0))
    return refuse(-FI_EINVAL,
                  "fi_av_insert: FI_AUTH_KEY takes the keys from fi_addr, which must not be NULL "
                  "nor hold user ids (FI_AV_USER_ID is a flag of fi_av_open there)");
  return 0;
}

int check_call(const Av& av, uint64_t flags, const void* context, bool has_fi_addr) {
  if ((av.flags & FI_EVENT) != 0 && av.eq == nullptr)
    return refuse(
        -FI_ENOEQ,
        "fi_av_insert: the AV was opened with FI_EVENT; bind an event queue with fi_av_bind");
  if ((flags & ~(FI_MORE | FI_SYNC_ERR | FI_AV_USER_ID | kAuthKeyFlag)) != 0)
    return refuse(-FI_EBADFLAGS,
                  "fi_av_insert: flags 0x%llx; FI_MORE, FI_SYNC_ERR, FI_AV_USER_ID and FI_AUTH_KEY "
                  "are offered",
                  static_cast<unsigned long long>(flags));
  if (const int rc = check_keys(av, flags, has_fi_addr); rc != 0) return rc;
  if (av.shared && av.shared->is_read_only())
    return refuse(
        -FI_EACCES,
        "fi_av_insert: the shared address vector was opened with FI_READ; those insert that "
        "opened it without");
  if (av.shared && (flags & FI_AV_USER_ID) != 0)
    return refuse(-FI_EINVAL, "fi_av_insert: a shared address vector has no user ids");
  if ((flags & FI_AV_USER_ID) != 0 && ((av.flags & FI_AV_USER_ID) != 0 || !has_fi_addr)) {
    APERTURE_WARN(
        "fi_av_insert: FI_AV_USER_ID takes the ids from fi_addr, which must not be NULL; an AV "
        "that "
        "was opened with that flag takes them from fi_av_set_user_id alone");
    return -FI_EINVAL;
  }
  if ((flags & FI_SYNC_ERR) != 0 && ((av.flags & FI_EVENT) != 0 || context == nullptr)) {
    APERTURE_WARN(
        "fi_av_insert: FI_SYNC_ERR needs an array of int as context and an AV without FI_EVENT");
    return (av.flags & FI_EVENT) != 0 ? -FI_EBADFLAGS : -FI_EINVAL;
  }
  if (!has_fi_addr && av.type == FI_AV_MAP)
    return refuse(
        -FI_EINVAL,
        "fi_av_insert: an AV of type FI_AV_MAP needs an fi_addr array for what it returns");
  return 0;
}

void insert_one(Insertion& insertion, uint32_t format, const void* addr, size_t len) {
  Result<Address> a = Address::from_sockaddr(addr, len);
  if (!a || !format_fits(format, *a)) {
    insertion.fail(FI_EINVAL, "not a sockaddr of the domain's address format");
  } else if (a->port == 0 || a->is_any_ip()) {
    insertion.fail(FI_EINVAL, a->text() + " names no endpoint: it needs an address and a port");
  } else if (wire::is_group(*a)) {
    insertion.fail(FI_EINVAL, a->text() + " is a multicast address; join it with fi_join");
  } else {
    insertion.add(*a);
  }
}

int insert(fid_av* fid, const void* addr, size_t count, fi_addr_t* fi_addr, uint64_t flags,
           void* context) noexcept {
  return guarded("fi_av_insert", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (const int rc = check_call(av, flags, context, fi_addr != nullptr || count == 0); rc != 0)
      return rc;
    if (addr == nullptr && count != 0) return refuse(-FI_EINVAL, "fi_av_insert: addr is NULL");
    Insertion insertion(av, fi_addr, flags, context);
    const uint32_t format = av.domain->addr_format;
    const size_t size = count != 0 ? address_bytes(format, addr) : 0;
    for (size_t i = 0; i < count; ++i) {
      insert_one(insertion, format, static_cast<const char*>(addr) + i * size, size);
    }
    return insertion.finish();
  });
}

int insert_service(fid_av* fid, const char* node, const char* service, fi_addr_t* fi_addr,
                   uint64_t flags, void* context) noexcept {
  return guarded("fi_av_insertsvc", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (const int rc = check_call(av, flags, context, fi_addr != nullptr); rc != 0) return rc;
    const bool is_text = node != nullptr && std::strncmp(node, "fi_sockaddr", 11) == 0;
    if (node == nullptr || (service == nullptr) != is_text)
      return refuse(-FI_EINVAL,
                    "fi_av_insertsvc: node and service are both needed (an FI_ADDR_STR text stands "
                    "alone as node)");
    Insertion insertion(av, fi_addr, flags, context);
    Address address;
    std::string why;
    if (!resolve(node, service, 0, av.domain->addr_format, address, why)) {
      insertion.fail(FI_EADDRNOTAVAIL, why);
    } else {
      sockaddr_storage sa;
      const socklen_t len = address.to_sockaddr(sa);
      insert_one(insertion, av.domain->addr_format, &sa, len);
    }
    return insertion.finish();
  });
}

// Counts the address up as one number of `size` bytes, in network order.
void count_up(unsigned char* bytes, size_t size, size_t by) noexcept {
  for (size_t at = size; at-- > 0 && by != 0;) {
    by += bytes[at];
    bytes[at] = static_cast<unsigned char>(by);
    by >>= 8;
  }
}

// The i-th node after `node`: a numeric address counted up, or a name whose numeric suffix is.
bool nth_node(const std::string& node, size_t i, std::string& out) {
  if (i == 0) {
    out = node;
    return true;
  }
  for (const int family : {AF_INET, AF_INET6}) {
    unsigned char bytes[sizeof(in6_addr)];
    if (::inet_pton(family, node.c_str(), bytes) != 1) continue;
    count_up(bytes, family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr), i);
    char text[INET6_ADDRSTRLEN];
    out = ::inet_ntop(family, bytes, text, sizeof text);
    return true;
  }
  const size_t digits = node.find_last_not_of("0123456789") + 1;
  if (digits >= node.size() || node.size() - digits > 9) return false;
  std::string number = std::to_string(std::stoul(node.substr(digits)) + i);
  const size_t width = node.size() - digits;  // host08 is followed by host09
  if (number.size() < width) number.insert(0, width - number.size(), '0');
  out = node.substr(0, digits) + number;
  return true;
}

struct Resolved {
  Address address;
  std::string why_not;  // empty: it has one
};

// Each service of a node, and then of the next.
std::vector<Resolved> resolve_all(const char* node, size_t node_count, unsigned long first_port,
                                  size_t service_count, uint32_t format) {
  std::vector<Resolved> all;
  for (size_t n = 0; n < node_count; ++n) {
    for (size_t s = 0; s < service_count; ++s) {
      Resolved one;
      std::string name;
      std::string why = "the node name has no numeric suffix to count up";
      const std::string port = std::to_string(first_port + s);
      if (!nth_node(node, n, name) ||
          !resolve(name.c_str(), port.c_str(), 0, format, one.address, why))
        one.why_not = why.empty() ? "it has no address" : why;
      all.push_back(std::move(one));
    }
  }
  return all;
}

int insert_symmetric(fid_av* fid, const char* node, size_t node_count, const char* service,
                     size_t service_count, fi_addr_t* fi_addr, uint64_t flags,
                     void* context) noexcept {
  return guarded("fi_av_insertsym", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (const int rc = check_call(av, flags, context, fi_addr != nullptr); rc != 0) return rc;
    if (node == nullptr || service == nullptr || node_count == 0 || service_count == 0)
      return refuse(-FI_EINVAL,
                    "fi_av_insertsym: node, service, nodecnt and svccnt are all needed");
    char* end = nullptr;
    const unsigned long first_port = std::strtoul(service, &end, 10);
    if (end == service || *end != '\0' || first_port > 65535 ||
        service_count - 1 > 65535 - first_port)
      return refuse(-FI_EINVAL, "fi_av_insertsym: ports \"%s\" and %zu more are not port numbers",
                    service, service_count - 1);
    // names first: somebody else's server may be asked, and the lock of a shared vector is not to
    // wait for it
    const std::vector<Resolved> all =
        resolve_all(node, node_count, first_port, service_count, av.domain->addr_format);
    Insertion insertion(av, fi_addr, flags, context);
    for (const Resolved& one : all) {
      if (!one.why_not.empty()) {
        insertion.fail(FI_EADDRNOTAVAIL, one.why_not);
        continue;
      }
      sockaddr_storage sa;
      const socklen_t len = one.address.to_sockaddr(sa);
      insert_one(insertion, av.domain->addr_format, &sa, len);
    }
    return insertion.finish();
  });
}

int remove_shared(Av& av, std::span<const fi_addr_t> addrs) noexcept {
  if (av.shared->is_read_only())
    return refuse(
        -FI_EACCES,
        "fi_av_remove: the shared address vector was opened with FI_READ; those remove that "
        "opened it without");
  auto lock = av.shared->lock();  // may be waited for: before the engine's
  if (!lock) return refuse(fi_code(lock.error()), "fi_av_remove: %s", describe(lock.error()));
  nic::EngineGuard guard(*av.domain->engine);
  const Status s = av.shared->remove(*lock, addrs);
  if (s.error() == Errc::no_entry)
    return refuse(-FI_EINVAL, "fi_av_remove: an address is not in this address vector");
  return s ? 0 : refuse(fi_code(s), "fi_av_remove: %s", describe(s.error()));
}

int remove(fid_av* fid, fi_addr_t* fi_addr, size_t count, uint64_t flags) noexcept {
  return guarded("fi_av_remove", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (fi_addr == nullptr && count != 0)
      return refuse(-FI_EINVAL, "fi_av_remove: fi_addr is NULL");
    if (flags == kAuthKeyFlag) return remove_auth_keys(av, fi_addr, count);
    if (flags != 0)
      return refuse(-FI_EBADFLAGS,
                    "fi_av_remove: flags 0x%llx; FI_AUTH_KEY is offered, for authorization keys",
                    static_cast<unsigned long long>(flags));
    if (av.shared) return remove_shared(av, {fi_addr, count});
    nic::EngineGuard guard(*av.domain->engine);
    for (size_t i = 0; i < count; ++i) {
      if (av.table.find(fi_addr[i]) == nullptr)
        return refuse(-FI_EINVAL,
                      "fi_av_remove: %llu is not in this address vector; nothing was removed",
                      static_cast<unsigned long long>(fi_addr[i]));
    }
    for (size_t i = 0; i < count; ++i) {
      const Address* const address = av.table.find(fi_addr[i]);
      if (address == nullptr) return -FI_EINVAL;  // named twice
      if (av.keys != nullptr) --av.keys->find_number(address->key)->addresses;
      av.tell_removed(fi_addr[i]);
      static_cast<void>(av.table.remove(fi_addr[i]));
    }
    return 0;
  });
}

int lookup(fid_av* fid, fi_addr_t fi_addr, void* addr, size_t* addrlen) noexcept {
  return guarded("fi_av_lookup", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (addrlen == nullptr || (addr == nullptr && *addrlen != 0))
      return refuse(-FI_EINVAL, "fi_av_lookup: addr or addrlen is NULL");
    sockaddr_storage sa;
    socklen_t len = 0;
    {
      nic::EngineGuard guard(*av.domain->engine);
      av.table.refresh();  // it may have been removed elsewhere
      const Address* found = av.table.find(fi_addr);
      if (found == nullptr)
        return refuse(-FI_EINVAL, "fi_av_lookup: %llu is not in this address vector",
                      static_cast<unsigned long long>(fi_addr));
      len = found->to_sockaddr(sa);
    }
    if (addr != nullptr) std::memcpy(addr, &sa, std::min<size_t>(len, *addrlen));
    *addrlen = len;
    return 0;
  });
}

int set_user_id(fid_av* fid, fi_addr_t fi_addr, fi_addr_t user_id, uint64_t flags) noexcept {
  return guarded("fi_av_set_user_id", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if ((flags & ~kAuthKeyFlag) != 0)
      return refuse(-FI_EBADFLAGS, "fi_av_set_user_id: flags 0x%llx; FI_AUTH_KEY is offered",
                    static_cast<unsigned long long>(flags));
    if ((av.flags & FI_AV_USER_ID) == 0)
      return refuse(-FI_EINVAL,
                    "fi_av_set_user_id: the address vector was opened without FI_AV_USER_ID");
    if (flags != 0) return check_key_of_id(av, fi_addr);
    nic::EngineGuard guard(*av.domain->engine);
    if (!av.table.set_reported(fi_addr, user_id))
      return refuse(-FI_EINVAL, "fi_av_set_user_id: %llu is not in this address vector",
                    static_cast<unsigned long long>(fi_addr));
    return 0;
  });
}

// "fi_sockaddr_in://127.0.0.1:4000", as FI_ADDR_STR has it.
const char* to_text(fid_av* fid, const void* addr, char* buf, size_t* len) noexcept {
  auto& av = object_of<Av>(fid);
  if (addr == nullptr || len == nullptr) return nullptr;
  try {
    Result<Address> a = Address::from_sockaddr(addr, address_bytes(av.domain->addr_format, addr));
    std::string text = "unknown address";
    if (a) text = (a->is_v4() ? "fi_sockaddr_in://" : "fi_sockaddr_in6://") + a->text();
    if (buf != nullptr && *len != 0) std::snprintf(buf, *len, "%s", text.c_str());
    *len = text.size() + 1;
    return buf;
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

void Av::tell_inserted(uint64_t index) noexcept {
  for (EpBody* body : endpoints) {
    if (body->core) body->core->learn(index);
  }
}

void Av::tell_removed(uint64_t index) noexcept {
  for (EpBody* body : endpoints) {
    if (body->core) body->core->forget(index);
  }
}

AvOps g_av_ops = [] {
  AvOps ops{};
  ops.size = sizeof ops;
  ops.insert = insert;
  ops.insertsvc = insert_service;
  ops.insertsym = insert_symmetric;
  ops.remove = remove;
  ops.lookup = lookup;
  ops.straddr = to_text;
  ops.av_set = open_av_set;
  ops.insert_auth_key = insert_auth_key;
  ops.lookup_auth_key = lookup_auth_key;
  ops.set_user_id = set_user_id;
  return ops;
}();

}  // namespace aperture::provider
