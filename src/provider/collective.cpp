// Joining groups and collective calls: see collective.hpp. man 3 fi_collective.
#include "provider/collective.hpp"

#include <algorithm>
#include <cassert>
#include <memory>

#include "msg/group_matching.hpp"
#include "provider/atomic_rules.hpp"
#include "provider/av_set.hpp"
#include "provider/device_places.hpp"
#include "provider/ep_described.hpp"
#include "provider/errors.hpp"
#include "provider/multicast.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

using collective::Plan;
using collective::Reduction;

namespace {

constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // of one member's part
constexpr size_t kMostMembers = kMaxEndpoints;
constexpr uint64_t kCollectiveFlags =
    FI_COMPLETION | FI_MORE | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;

}  // namespace

// A group that an endpoint has joined, or is joining.
struct Mc : Joined {
  EpBody* body = nullptr;
  uint64_t collectives = 0;
  collective::Group group;
  std::vector<fi_addr_t> members;  // by rank

  // Hears of the join. The control path may allocate, and an event has the reserve.
  struct Join final : collective::Starter {
    explicit Join(Mc& of) noexcept : mc(of) {}
    void on_over(Errc why, const std::string& sentence) noexcept override {
      if (why == Errc::canceled) return;  // closed
      guarded("fi_join_collective", [&]() -> int {
        Eq& eq = *mc.body->eq;
        struct fid* const what = &mc.fid.fid;
        if (why == Errc::ok) {
          eq.report(FI_JOIN_COMPLETE, what, what->context, 0);
        } else {
          eq.report_error(what, what->context, 0, fi_error(why), sentence);
        }
        return 0;
      });
    }
    Mc& mc;
  } join{*this};
};

namespace {

// One collective operation of the application's. It ends itself.
struct Operation final : collective::Starter {
  EpBody* body = nullptr;
  void* context = nullptr;
  bool wants_entry = true;

  void on_over(Errc why, const std::string& sentence) noexcept override {
    qp::Cq& cq = body->tx_cq->core;
    Cntr* const counter = body->counters[kWriteCounter];  // as fi_atomic counts
    cq.unreserve();
    const qp::Completion entry{.context = context, .flags = FI_COLLECTIVE};
    if (why == Errc::ok) {
      if (wants_entry) cq.push(entry);
      if (counter != nullptr) counter->core.add(1);
    } else {
      qp::CompletionError error;
      error.entry = entry;
      error.err = why;
      static_cast<void>(guarded("a collective operation", [&]() -> int {
        error.sentence = sentence;
        return 0;
      }));
      cq.push_error(std::move(error));
      if (counter != nullptr) counter->core.add_error(1);
    }
    delete this;
  }
};

int close_mc(fid* fid) noexcept {
  return guarded_close("fi_close(mc)", fid, [&]() -> int {
    auto& mc = object_of<Mc>(fid);
    EpBody& body = *mc.body;
    {
      nic::EngineGuard guard(*body.domain->engine);
      if (!body.groups->runner().leave(mc.group))
        return refuse(-FI_EBUSY,
                      "fi_close(mc): messages of its operations are on their way from or into your "
                      "buffers; they end with FI_ECANCELED, close it then");
      std::erase(body.groups->joined, &mc);
    }
    if (body.eq != nullptr) body.eq->forget(fid);
    delete &mc;
    return 0;
  });
}

fi_ops g_collective_fid_ops = fid_ops<"mc">(
    close_mc, NotOffered<"fi_bind(mc): nothing can be bound to a group">{}, refuse_control<"mc">);

}  // namespace

// ---- of an endpoint -----------------------------------------------------------------------------

EpGroups::~EpGroups() {
  if (!begun_) return;
  nic::EngineGuard guard(*body_.domain->engine);
  assert(joined.empty());
  body_.domain->engine->remove_pollable(runner_);
}

Status EpGroups::begin() noexcept {
  nic::EngineGuard guard(*body_.domain->engine);
  const Status s = body_.domain->engine->add_pollable(runner_, *this);
  begun_ = s.ok();
  return s;
}

void EpGroups::close() noexcept {
  assert(joined.empty());
  runner_.abandon();
}

Mc* EpGroups::find(fi_addr_t coll_addr) noexcept {
  const auto at = std::find_if(joined.begin(), joined.end(),
                               [&](const Mc* mc) { return mc->fid.fi_addr == coll_addr; });
  return at != joined.end() ? *at : nullptr;
}

Status EpGroups::recv(const qp::RecvWr& wr) noexcept {
  qp::RecvWr of_group = wr;
  of_group.flags = msg::kGroupReceive;
  return body_.core->recv_of_group(of_group);
}

void EpGroups::cancel_recv(void* context) noexcept {
  static_cast<void>(body_.core->cancel_of_group(context));
}

int begin_groups(EpBody& body) {
  auto made = std::make_unique<EpGroups>(body);
  if (const Status s = made->begin(); !s) return fi_code(s);
  body.groups = std::move(made);
  return 0;
}

// ---- joining ------------------------------------------------------------------------------------

namespace {

int check_join(const EpBody& body, const fi_collective_addr& addr, uint64_t flags) {
  constexpr uint64_t known = FI_COLLECTIVE | FI_SEND | FI_RECV;
  const uint64_t sides = flags & (FI_SEND | FI_RECV);
  if ((flags & ~known) != 0 || (sides != 0 && sides != (FI_SEND | FI_RECV)))
    return refuse(-FI_EBADFLAGS,
                  "fi_join_collective: flags 0x%llx; members send and receive, so FI_SEND and "
                  "FI_RECV go together, and there are no others",
                  static_cast<unsigned long long>(flags & ~FI_COLLECTIVE));
  if (body.groups == nullptr)
    return refuse(
        -FI_EOPNOTSUPP,
        "fi_join_collective: the endpoint was opened without FI_COLLECTIVE; ask for it in "
        "hints->caps");
  if (!body.core) return refuse(-FI_EOPBADSTATE, "fi_join_collective: the endpoint is not enabled");
  if (body.eq == nullptr)
    return refuse(-FI_ENOEQ,
                  "fi_join_collective: no event queue is bound to the endpoint, where "
                  "FI_JOIN_COMPLETE could be reported; bind one");
  if (addr.set == nullptr || addr.set->fid.fclass != FI_CLASS_AV_SET)
    return refuse(-FI_EINVAL, "fi_join_collective: set is NULL or no address vector set");
  if (addr.coll_addr == FI_ADDR_UNSPEC)  // FI_ADDR_UNAVAIL of the page
    return refuse(-FI_ENOSYS,
                  "fi_join_collective: memberships that the application manages are not offered; "
                  "pass what fi_av_set_addr gives");
  return 0;
}

// The members of the set, as they stand in the address vector now.
int take_members(Mc& mc, const AvSet& set) {
  if (set.av != mc.body->av)
    return refuse(-FI_EINVAL,
                  "fi_join_collective: the set is of another address vector than the endpoint's");
  if (set.members.empty() || set.members.size() > kMostMembers)
    return refuse(-FI_EINVAL, "fi_join_collective: a set of %zu addresses; 1 to %zu are offered",
                  set.members.size(), kMostMembers);
  std::vector<Address> addresses;
  addresses.reserve(set.members.size());
  for (const fi_addr_t member : set.members) {
    const Address* const address = set.av->table.find(member);
    if (address == nullptr)
      return refuse(-FI_EINVAL,
                    "fi_join_collective: address %llu of the set is in the address vector no more",
                    static_cast<unsigned long long>(member));
    addresses.push_back(*address);
  }
  auto members = collective::members_of(addresses, set.members, mc.body->local);
  if (members.error() == Errc::invalid)
    return refuse(-FI_EINVAL,
                  "fi_join_collective: one address is in the set under two fi_addr_t; a member "
                  "has one rank, name it once");
  if (!members)
    return refuse(
        -FI_EINVAL,
        "fi_join_collective: the endpoint's own address (%s) is not in the set; who joins "
        "is a member",
        mc.body->local.print().c_str());
  mc.group.members = *std::move(members);
  mc.members = set.members;
  mc.collectives = set.collectives;
  return 0;
}

}  // namespace

int join_collective(fid_ep* fid, const fi_collective_addr* addr, uint64_t flags, fid_mc** out,
                    void* context) noexcept {
  return guarded("fi_join_collective", fid, [&]() -> int {
    if (addr == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_join_collective: addr or mc is NULL");
    EpBody& body = *object_of<Ep>(fid).body;
    if (const int rc = check_join(body, *addr, flags); rc != 0) return rc;
    const auto& set = object_of<const AvSet>(addr->set);
    auto mc = std::make_unique<Mc>();
    mc->body = &body;
    mc->domain = body.domain;
    mc->fid.fid = {FI_CLASS_MC, context, &g_collective_fid_ops};
    nic::EngineGuard guard(*body.domain->engine);
    if (addr->coll_addr != set.address() && body.groups->find(addr->coll_addr) == nullptr)
      return refuse(-FI_EINVAL,
                    "fi_join_collective: coll_addr is neither the set's (fi_av_set_addr) nor that "
                    "of a group that the endpoint has joined");
    if (const int rc = take_members(*mc, set); rc != 0) return rc;
    mc->fid.fi_addr = body.groups->next_address();
    body.groups->joined.reserve(body.groups->joined.size() + 1);
    body.groups->runner().join(mc->group, mc->join);
    body.groups->joined.push_back(mc.get());
    *out = &mc.release()->fid;
    return 0;
  });
}

// ---- the calls ----------------------------------------------------------------------------------

namespace {

// What is asked of one call.
struct Asked {
  const char* call;
  fi_collective_op coll;
  fi_addr_t coll_addr = 0;
  fi_addr_t root_addr = 0;  // of those that have a root
  const void* buf = nullptr;
  void* desc = nullptr;
  void* result = nullptr;
  void* result_desc = nullptr;
  size_t count = 0;
  int type = FI_VOID;
  int op = FI_NOOP;
  uint64_t flags = 0;
  void* context = nullptr;
};

bool has_root(fi_collective_op coll) noexcept {
  return coll == FI_BROADCAST || coll == FI_REDUCE || coll == FI_SCATTER || coll == FI_GATHER;
}
bool reduces(fi_collective_op coll) noexcept {
  return coll == FI_ALLREDUCE || coll == FI_REDUCE_SCATTER || coll == FI_REDUCE;
}

// 0, or the code with which it is refused, if it is none.
int check_offered(uint32_t api, const char* call, fi_collective_op coll, int op, int type) {
  const auto refused = [&] {
    return refuse(-FI_EOPNOTSUPP,
                  "%s: operation %d on datatype %d is not offered for collective %d; "
                  "fi_query_collective tells which are",
                  call, op, type, static_cast<int>(coll));
  };
  if (coll == FI_BARRIER) return op == FI_NOOP && type == FI_VOID ? 0 : refused();
  if (type < 0 || type >= atomic_types_of(api)) return refused();
  if (!reduces(coll))
    return op == FI_NOOP || op == FI_ATOMIC_READ || op == FI_ATOMIC_WRITE ? 0 : refused();
  const bool combines = op >= FI_MIN && op <= FI_BXOR;
  return combines && is_offered(api, transport::AtomicKind::base, op, type) ? 0 : refused();
}

size_t size_of(int type) noexcept {
  return type == FI_VOID ? 0 : transport::atomic_size(static_cast<transport::AtomicType>(type));
}

// Which of the two buffers are used there, and how many members' parts each has.
struct Use {
  size_t buf = 0;
  size_t result = 0;
};
Use use_of(fi_collective_op coll, bool is_root, size_t members) noexcept {
  switch (coll) {
    case FI_BARRIER: return {};
    case FI_BROADCAST: return {1, 0};
    case FI_ALLTOALL: return {members, members};
    case FI_ALLREDUCE: return {1, 1};
    case FI_ALLGATHER: return {1, members};
    case FI_REDUCE_SCATTER: return {members, 1};
    case FI_REDUCE: return {1, is_root ? size_t{1} : 0};
    case FI_SCATTER: return {is_root ? members : 0, 1};
    case FI_GATHER: return {1, is_root ? members : 0};
  }
  return {};
}

int check_buffers(const Ep& ep, const Asked& a, const Use& use, uint64_t bytes) {
  if (bytes > kMostBytes)
    return refuse(-FI_EMSGSIZE, "%s: %zu elements; at most %llu bytes of each member are offered",
                  a.call, a.count, static_cast<unsigned long long>(kMostBytes));
  if (bytes != 0 &&
      ((use.buf != 0 && a.buf == nullptr) || (use.result != 0 && a.result == nullptr)))
    return refuse(-FI_EINVAL, "%s: a buffer is NULL, and count is %zu", a.call, a.count);
  const bool into_buf = a.coll == FI_BROADCAST;
  ssize_t on_device = refuse_device(ep, a.call, a.buf, use.buf * bytes, a.desc,
                                    into_buf ? kRecvTarget : kSendSource);
  if (on_device == 0) {
    on_device = refuse_device(ep, a.call, a.result, use.result * bytes, a.result_desc, kRecvTarget);
  }
  if (on_device != 0) return static_cast<int>(on_device);
  if (ep.descriptors == DescriptorRule::ignored) return 0;
  if (use.buf != 0) {
    const ssize_t rc = check_buffer(ep, a.call, a.buf, use.buf * bytes, a.desc,
                                    into_buf ? kRecvTarget : kSendSource);
    if (rc != 0) return static_cast<int>(rc);
  }
  if (use.result == 0) return 0;
  return static_cast<int>(
      check_buffer(ep, a.call, a.result, use.result * bytes, a.result_desc, kRecvTarget));
}

Plan plan_of(const Asked& a, collective::Place at, uint32_t root, size_t bytes) {
  const auto* const buf = static_cast<const std::byte*>(a.buf);
  auto* const result = static_cast<std::byte*>(a.result);
  const Reduction how{static_cast<transport::AtomicOp>(a.op),
                      static_cast<transport::AtomicType>(a.type)};
  switch (a.coll) {
    case FI_BARRIER: return collective::plan_barrier(at);
    case FI_BROADCAST:
      return collective::plan_broadcast(at, root, const_cast<std::byte*>(buf), bytes);
    case FI_ALLTOALL: return collective::plan_alltoall(at, buf, result, bytes);
    case FI_ALLREDUCE: return collective::plan_allreduce(at, buf, result, bytes, how);
    case FI_ALLGATHER: return collective::plan_allgather(at, buf, result, bytes);
    case FI_REDUCE_SCATTER: return collective::plan_reduce_scatter(at, buf, result, bytes, how);
    case FI_REDUCE: return collective::plan_reduce(at, root, buf, result, bytes, how);
    case FI_SCATTER: return collective::plan_scatter(at, root, buf, result, bytes);
    case FI_GATHER: return collective::plan_gather(at, root, buf, result, bytes);
  }
  return {};
}

// Lock held.
int find_group(EpBody& body, const Asked& a, Mc*& mc, uint32_t& root) {
  mc = body.groups->find(a.coll_addr);
  if (mc == nullptr)
    return refuse(-FI_EINVAL,
                  "%s: coll_addr is that of no group that the endpoint has joined; pass what "
                  "fi_mc_addr gives",
                  a.call);
  if (!mc->group.is_joined)
    return refuse(-FI_EOPBADSTATE, "%s: the join is not complete; wait for FI_JOIN_COMPLETE",
                  a.call);
  if ((mc->collectives & (FI_BARRIER_SET << a.coll)) == 0)
    return refuse(-FI_EOPNOTSUPP,
                  "%s: the address vector set was opened for other collectives only (its flags)",
                  a.call);
  if (!has_root(a.coll)) return 0;
  const auto at = std::find(mc->members.begin(), mc->members.end(), a.root_addr);
  if (at == mc->members.end())
    return refuse(-FI_EINVAL, "%s: root_addr %llu is no member of the group", a.call,
                  static_cast<unsigned long long>(a.root_addr));
  root = static_cast<uint32_t>(at - mc->members.begin());
  return 0;
}

// Where a call stands: looked up with the lock held, used without it.
struct Standing {
  collective::Place at;
  uint32_t root = 0;
};

// Lock held. 0, or why the operation cannot be begun now.
int look_up(Ep& ep, const Asked& a, nic::PollGuard& guard, Mc*& mc, Standing& found) {
  EpBody& body = *ep.body;
  if (const int rc = find_group(body, a, mc, found.root); rc != 0) return rc;
  found.at = mc->group.members.place();
  qp::Cq& cq = body.tx_cq->core;
  if (cq.has_room()) return 0;
  body.domain->engine->poll();
  Sleeper::keep_asleep(*body.domain);
  if (cq.has_room()) return 0;
  guard.found_nothing();
  return -FI_EAGAIN;
}

// Checking buffers may take the lock, and planning copies what they hold, so neither is done under
// it.
int begin_operation(Ep& ep, const Asked& a) {
  EpBody& body = *ep.body;
  if (body.groups == nullptr)
    return refuse(-FI_EOPNOTSUPP,
                  "%s: the endpoint was opened without FI_COLLECTIVE; ask for it in hints->caps",
                  a.call);
  if ((a.flags & ~kCollectiveFlags) != 0)
    return refuse(-FI_EBADFLAGS, "%s: flags 0x%llx are not offered for this call", a.call,
                  static_cast<unsigned long long>(a.flags & ~kCollectiveFlags));
  const int rc = check_offered(body.domain->api_version, a.call, a.coll, a.op, a.type);
  if (rc != 0) return rc;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(a.count, size_of(a.type), &bytes)) bytes = ~uint64_t{0};
  Mc* mc = nullptr;
  Standing here;
  {
    nic::PollGuard guard(*body.domain->engine);
    if (const int found = look_up(ep, a, guard, mc, here); found != 0) return found;
  }
  const Use use = use_of(a.coll, here.at.rank == here.root, here.at.members);
  if (const int bad = check_buffers(ep, a, use, bytes); bad != 0) return bad;
  Plan plan = plan_of(a, here.at, here.root, bytes);
  auto operation = std::make_unique<Operation>();
  operation->body = &body;
  operation->context = a.context;
  operation->wants_entry = !ep.tx_selective || (a.flags & FI_COMPLETION) != 0;
  nic::PollGuard guard(*body.domain->engine);
  if (const int found = look_up(ep, a, guard, mc, here); found != 0) return found;
  qp::Cq& cq = body.tx_cq->core;
  cq.reserve();
  try {
    body.groups->runner().begin(mc->group, std::move(plan), *operation);
  } catch (...) {
    cq.unreserve();
    throw;
  }
  static_cast<void>(operation.release());  // ends itself
  return 0;
}

ssize_t start(fid_ep* fid, const Asked& asked) noexcept {
  return guarded(asked.call, fid,
                 [&]() -> int { return begin_operation(object_of<Ep>(fid), asked); });
}

ssize_t barrier2(fid_ep* ep, fi_addr_t coll, uint64_t flags, void* context) noexcept {
  return start(ep, {.call = "fi_barrier2",
                    .coll = FI_BARRIER,
                    .coll_addr = coll,
                    .flags = flags,
                    .context = context});
}
ssize_t barrier(fid_ep* ep, fi_addr_t coll, void* context) noexcept {
  const uint64_t flags = object_of<Ep>(ep).tx_flags & FI_COMPLETION;
  return start(ep, {.call = "fi_barrier",
                    .coll = FI_BARRIER,
                    .coll_addr = coll,
                    .flags = flags,
                    .context = context});
}
ssize_t broadcast(fid_ep* ep, void* buf, size_t count, void* desc, fi_addr_t coll, fi_addr_t root,
                  fi_datatype type, uint64_t flags, void* context) noexcept {
  return start(ep, {"fi_broadcast", FI_BROADCAST, coll, root, buf, desc, nullptr, nullptr, count,
                    static_cast<int>(type), FI_NOOP, flags, context});
}
ssize_t alltoall(fid_ep* ep, const void* buf, size_t count, void* desc, void* result,
                 void* result_desc, fi_addr_t coll, fi_datatype type, uint64_t flags,
                 void* context) noexcept {
  return start(ep, {"fi_alltoall", FI_ALLTOALL, coll, 0, buf, desc, result, result_desc, count,
                    static_cast<int>(type), FI_NOOP, flags, context});
}
ssize_t allreduce(fid_ep* ep, const void* buf, size_t count, void* desc, void* result,
                  void* result_desc, fi_addr_t coll, fi_datatype type, fi_op op, uint64_t flags,
                  void* context) noexcept {
  return start(ep, {"fi_allreduce", FI_ALLREDUCE, coll, 0, buf, desc, result, result_desc, count,
                    static_cast<int>(type), static_cast<int>(op), flags, context});
}
ssize_t allgather(fid_ep* ep, const void* buf, size_t count, void* desc, void* result,
                  void* result_desc, fi_addr_t coll, fi_datatype type, uint64_t flags,
                  void* context) noexcept {
  return start(ep, {"fi_allgather", FI_ALLGATHER, coll, 0, buf, desc, result, result_desc, count,
                    static_cast<int>(type), FI_NOOP, flags, context});
}
ssize_t reduce_scatter(fid_ep* ep, const void* buf, size_t count, void* desc, void* result,
                       void* result_desc, fi_addr_t coll, fi_datatype type, fi_op op,
                       uint64_t flags, void* context) noexcept {
  return start(ep, {"fi_reduce_scatter", FI_REDUCE_SCATTER, coll, 0, buf, desc, result, result_desc,
                    count, static_cast<int>(type), static_cast<int>(op), flags, context});
}
ssize_t reduce(fid_ep* ep, const void* buf, size_t count, void* desc, void* result,
               void* result_desc, fi_addr_t coll, fi_addr_t root, fi_datatype type, fi_op op,
               uint64_t flags, void* context) noexcept {
  return start(ep, {"fi_reduce", FI_REDUCE, coll, root, buf, desc, result, result_desc, count,
                    static_cast<int>(type), static_cast<int>(op), flags, context});
}
ssize_t scatter(fid_ep* ep, const void* buf, size_t count, void* desc, void* result,
                void* result_desc, fi_addr_t coll, fi_addr_t root, fi_datatype type, uint64_t flags,
                void* context) noexcept {
  return start(ep, {"fi_scatter", FI_SCATTER, coll, root, buf, desc, result, result_desc, count,
                    static_cast<int>(type), FI_NOOP, flags, context});
}
ssize_t gather(fid_ep* ep, const void* buf, size_t count, void* desc, void* result,
               void* result_desc, fi_addr_t coll, fi_addr_t root, fi_datatype type, uint64_t flags,
               void* context) noexcept {
  return start(ep, {"fi_gather", FI_GATHER, coll, root, buf, desc, result, result_desc, count,
                    static_cast<int>(type), FI_NOOP, flags, context});
}

}  // namespace

fi_ops_collective g_collective_ops = {
    .size = sizeof(fi_ops_collective),
    .barrier = barrier,
    .broadcast = broadcast,
    .alltoall = alltoall,
    .allreduce = allreduce,
    .allgather = allgather,
    .reduce_scatter = reduce_scatter,
    .reduce = reduce,
    .scatter = scatter,
    .gather = gather,
    .msg = NotOffered<"fi_collective: no call of the API leads here">{},
    .barrier2 = barrier2,
};

int query_collective(fid_domain* fid, fi_collective_op coll, fi_collective_attr* attr,
                     uint64_t flags) noexcept {
  return guarded("fi_query_collective", fid, [&]() -> int {
    if (attr == nullptr) return refuse(-FI_EINVAL, "fi_query_collective: attr is NULL");
    if (flags != 0)
      return refuse(-FI_EBADFLAGS, "fi_query_collective: flags 0x%llx; there are none",
                    static_cast<unsigned long long>(flags));
    if (coll < FI_BARRIER || coll > FI_GATHER)
      return refuse(-FI_EOPNOTSUPP, "fi_query_collective: collective %d is none of the API's",
                    static_cast<int>(coll));
    if (attr->mode != 0)
      return refuse(-FI_EINVAL, "fi_query_collective: attr->mode is reserved and must be 0");
    const uint32_t api = object_of<Domain>(fid).api_version;
    const int rc = check_offered(api, "fi_query_collective", coll, static_cast<int>(attr->op),
                                 static_cast<int>(attr->datatype));
    if (rc != 0) return rc;
    const size_t size = size_of(static_cast<int>(attr->datatype));
    attr->datatype_attr.size = size;
    attr->datatype_attr.count = size != 0 ? kMostBytes / size : 0;
    attr->max_members = kMostMembers;
    return 0;
  });
}

}  // namespace aperture::provider
