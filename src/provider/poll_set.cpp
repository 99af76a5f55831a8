// Poll sets: several CQs and counters progressed and looked at by one call. man 3 fi_poll.

#include <cassert>
#include <memory>
#include <mutex>

#include "provider/cntr.hpp"
#include "provider/cq.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

struct PollSet {
  struct Member {
    struct fid* fid;
    // Of a counter, when fi_poll last looked.
    uint64_t value = 0;
    uint64_t errors = 0;
    uint64_t settings = 0;
  };
  fid_poll fid{};
  Domain* domain = nullptr;
  std::mutex mutex;
  std::vector<Member> members;  // guarded by mutex
};

Uses* uses_of(struct fid* what) noexcept {
  if (what == nullptr) return nullptr;
  if (what->fclass == FI_CLASS_CQ) return &object_of<FabricCq>(what).uses;
  if (what->fclass == FI_CLASS_CNTR) return &object_of<Cntr>(what).uses;
  return nullptr;
}

Domain* domain_of(struct fid* what) noexcept {
  return what->fclass == FI_CLASS_CQ ? object_of<FabricCq>(what).domain
                                     : object_of<Cntr>(what).domain;
}

// Engine lock held.
bool has_news(PollSet::Member& m) noexcept {
  if (m.fid->fclass == FI_CLASS_CQ) return !object_of<FabricCq>(m.fid).core.empty();
  const auto& cntr = object_of<Cntr>(m.fid);
  // "since the last time fi_poll, fi_cntr_set, or fi_cntr_add were called"
  if (m.settings != cntr.settings) {
    m = {m.fid, cntr.set_value, cntr.set_errors, cntr.settings};
  }
  const uint64_t value = cntr.core.value();
  const uint64_t errors = cntr.core.errors();
  const bool news = value != m.value || errors != m.errors;
  m.value = value;
  m.errors = errors;
  return news;
}

// idle: share_core() is due.
int poll_members(PollSet& set, void** context, int count, bool& idle) {
  nic::Engine& engine = *set.domain->engine;
  std::lock_guard guard(set.mutex);
  nic::EngineGuard engine_guard(engine);
  engine.poll();
  Sleeper::keep_asleep(*set.domain);
  int found = 0;
  for (PollSet::Member& m : set.members) {
    if (found == count) break;
    if (has_news(m)) context[found++] = m.fid->context;
  }
  if (found == 0) idle = engine.has_been_idle();
  return found;
}

int poll(fid_poll* fid, void** context, int count) noexcept {
  return guarded("fi_poll", fid, [&]() -> int {
    auto& set = object_of<PollSet>(fid);
    if (count < 0 || (context == nullptr && count != 0))
      return refuse(-FI_EINVAL, "fi_poll: context is NULL or count is negative");
    bool idle = false;
    const int found = poll_members(set, context, count, idle);
    if (idle) set.domain->engine->share_core();
    return found;
  });
}

int check_member(const PollSet& set, const char* call, struct fid* what, uint64_t flags) {
  if (uses_of(what) == nullptr || domain_of(what) != set.domain)
    return refuse(-FI_EINVAL,
                  "%s: only completion queues and counters of the set's domain can be members",
                  call);
  if (flags != 0) return refuse(-FI_EBADFLAGS, "%s: flags must be 0", call);
  return 0;
}

auto find(PollSet& set, const struct fid* what) {
  return std::find_if(set.members.begin(), set.members.end(),
                      [what](const PollSet::Member& m) { return m.fid == what; });
}

int add(fid_poll* fid, struct fid* what, uint64_t flags) noexcept {
  return guarded("fi_poll_add", fid, [&]() -> int {
    auto& set = object_of<PollSet>(fid);
    if (const int rc = check_member(set, "fi_poll_add", what, flags); rc != 0) return rc;
    std::lock_guard guard(set.mutex);
    if (find(set, what) != set.members.end()) return 0;
    PollSet::Member member{what};
    {
      nic::EngineGuard engine_guard(*set.domain->engine);
      (void)has_news(member);  // what a counter has counted so far is no news
    }
    set.members.push_back(member);
    uses_of(what)->add();
    assert(find(set, what) == std::prev(set.members.end()));
    return 0;
  });
}

int del(fid_poll* fid, struct fid* what, uint64_t flags) noexcept {
  return guarded("fi_poll_del", fid, [&]() -> int {
    auto& set = object_of<PollSet>(fid);
    if (const int rc = check_member(set, "fi_poll_del", what, flags); rc != 0) return rc;
    std::lock_guard guard(set.mutex);
    const auto at = find(set, what);
    if (at == set.members.end())
      return refuse(-FI_EINVAL, "fi_poll_del: it is not a member of this poll set");
    assert(uses_of(what)->count() != 0);
    set.members.erase(at);
    uses_of(what)->drop();
    return 0;
  });
}

int close_set(fid* fid) noexcept {
  return guarded_close("fi_close(poll set)", fid, [&]() -> int {
    auto& set = object_of<PollSet>(fid);
    if (!set.members.empty())
      return refuse(-FI_EBUSY,
                    "fi_close(poll set): %zu member(s) are still in it; fi_poll_del them first",
                    set.members.size());
    set.domain->uses.drop();
    delete &set;
    return 0;
  });
}

fi_ops g_poll_set_fid_ops = fid_ops<"poll set">(
    close_set, NotOffered<"fi_bind(poll set): use fi_poll_add">{}, refuse_control<"poll set">);

fi_ops_poll g_poll_ops = {
    .size = sizeof(fi_ops_poll), .poll = poll, .poll_add = add, .poll_del = del};

}  // namespace

const Domain& domain_of_poll_set(const struct fid* set) noexcept {
  return *object_of<const PollSet>(set).domain;
}

int open_poll_set(fid_domain* fid, fi_poll_attr* attr, fid_poll** out) noexcept {
  return guarded("fi_poll_open", fid, [&]() -> int {
    if (fid == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_poll_open: domain or pollset is NULL");
    if (attr != nullptr && attr->flags != 0)
      return refuse(-FI_EBADFLAGS, "fi_poll_open: flags must be 0");
    auto set = std::make_unique<PollSet>();
    set->domain = &object_of<Domain>(fid);
    set->fid.fid = {FI_CLASS_POLL, nullptr, &g_poll_set_fid_ops};
    set->fid.ops = &g_poll_ops;
    set->domain->uses.add();
    *out = &set.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
