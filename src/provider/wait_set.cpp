// Wait sets and fi_trywait: see wait.hpp. man 3 fi_poll.
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "provider/cntr.hpp"
#include "provider/cq.hpp"
#include "provider/eq.hpp"
#include "provider/stubs.hpp"
#include "provider/wait.hpp"

namespace aperture::provider {

namespace {

// True: every member has fallen asleep. False: one has something.
bool set_try_sleep(WaitSet& set) {
  std::lock_guard guard(set.mutex);
  for (struct fid* member : set.members) {
    if (try_wait_one(member) != 0) return false;
  }
  return true;
}

// What fi_wait returns if it returns now; 1: it sleeps first.
[[gnu::noinline]] int answer(WaitSet& set, const Deadline& deadline) noexcept {
  return guarded("fi_wait", &set.fid, [&]() -> int {
    if (!set_try_sleep(set)) return 0;
    return deadline.passed() ? -FI_ETIMEDOUT : 1;
  });
}

// A cancellation point while it sleeps.
int wait_on_set(fid_wait* fid, int timeout) {
  auto& set = object_of<WaitSet>(fid);
  const Deadline deadline(timeout);
  for (;;) {
    if (const int rc = answer(set, deadline); rc != 1) return rc;
    if (sleep_on(set.wait_obj, set.epoll.get(), deadline) == Slept::interrupted) return -FI_EAGAIN;
  }
}

int close_set(fid* fid) noexcept {
  return guarded_close("fi_close(wait set)", fid, [&]() -> int {
    auto& set = object_of<WaitSet>(fid);
    if (const uint32_t n = set.uses.count(); n != 0)
      return refuse(-FI_EBUSY,
                    "fi_close(wait set): %u queue(s) or counter(s) use it; close them first", n);
    set.fabric->uses.drop();
    delete &set;
    return 0;
  });
}

int control_set(fid* fid, int command, void* arg) noexcept {
  auto& set = object_of<WaitSet>(fid);
  return control_wait("fi_control(wait set)", set.wait_obj, set.epoll.get(), command, arg);
}

fi_ops g_wait_set_fid_ops = fid_ops<"wait set">(
    close_set, NotOffered<"fi_bind(wait set): name the set in the attributes of a queue instead">{},
    control_set);

fi_ops_wait g_wait_ops = {.size = sizeof(fi_ops_wait), .wait = wait_on_set};

}  // namespace

int open_wait_set(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** out) noexcept {
  return guarded("fi_wait_open", fabric, [&]() -> int {
    if (fabric == nullptr || attr == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_wait_open: fabric, attr or waitset is NULL");
    if (attr->flags != 0) return refuse(-FI_EBADFLAGS, "fi_wait_open: flags must be 0");
    if (attr->wait_obj == FI_WAIT_NONE || attr->wait_obj == FI_WAIT_SET)
      return refuse(
          -FI_EINVAL,
          "fi_wait_open: %s is no wait object for a set; use FI_WAIT_FD or FI_WAIT_UNSPEC",
          wait_name(attr->wait_obj));
    if (const int rc = check_wait_obj("fi_wait_open", attr->wait_obj, nullptr); rc != 0) return rc;
    auto set = std::make_unique<WaitSet>();
    set->wait_obj = settle_wait_obj(attr->wait_obj);
    set->epoll = move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
    if (!set->epoll)
      return refuse(-FI_EMFILE, "fi_wait_open: %s; raise the limit of descriptors (ulimit -n)",
                    std::strerror(errno));
    set->fid.fid = {FI_CLASS_WAIT, nullptr, &g_wait_set_fid_ops};
    set->fid.ops = &g_wait_ops;
    set->fabric = &object_of<Fabric>(fabric);
    set->fabric->uses.add();
    *out = &set.release()->fid;
    return 0;
  });
}

int join_set(fid_wait* fid, struct fid* member, int fd, WaitSet*& joined) {
  auto& set = object_of<WaitSet>(fid);
  if (set.round.is_over()) return refuse(-FI_EOPNOTSUPP, "joining a wait set: %s", kForked);
  std::lock_guard guard(set.mutex);
  set.members.reserve(set.members.size() + 1);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(set.epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    APERTURE_WARN("joining a wait set: %s", std::strerror(errno));
    return errno == ENOMEM ? -FI_ENOMEM : -FI_ENOSPC;
  }
  assert(joined == nullptr);
  set.members.push_back(member);
  set.uses.add();
  joined = &set;
  return 0;
}

void leave_set(WaitSet& set, struct fid* member, int fd) noexcept {
  std::lock_guard guard(set.mutex);
  ::epoll_ctl(set.epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  [[maybe_unused]] const size_t gone = std::erase(set.members, member);
  assert(gone == 1);
  set.uses.drop();
}

int try_wait_one(fid* what) noexcept {
  if (what == nullptr) return -FI_EINVAL;
  switch (what->fclass) {
    case FI_CLASS_CQ: return object_of<FabricCq>(what).try_sleep(Waits::on_descriptor);
    case FI_CLASS_CNTR: return object_of<Cntr>(what).try_wait();
    case FI_CLASS_EQ: return object_of<Eq>(what).empty() ? 0 : -FI_EAGAIN;
    case FI_CLASS_WAIT: return set_try_sleep(object_of<WaitSet>(what)) ? 0 : -FI_EAGAIN;
    default: return -FI_EINVAL;
  }
}

int try_wait(fid_fabric* fabric, fid** fids, int count) noexcept {
  return guarded("fi_trywait", fabric, [&]() -> int {
    if (fids == nullptr || count < 0)
      return refuse(-FI_EINVAL, "fi_trywait: fids is NULL or count is negative");
    for (int i = 0; i < count; ++i) {
      if (is_of_parent(fids[i])) return refuse(-FI_EOPNOTSUPP, "fi_trywait: %s", kForked);
      const int rc = try_wait_one(fids[i]);
      if (rc == -FI_EINVAL) {
        APERTURE_WARN(
            "fi_trywait: entry %d is no event queue, completion queue, counter or wait set that "
            "was opened with a wait object",
            i);
      }
      if (rc != 0) return rc;
    }
    return 0;
  });
}

}  // namespace aperture::provider
