// Waiting: wait objects, sleeping on CQs and counters, wait sets, fi_trywait. man 3 fi_poll, fi_cq.
//
// A CQ or counter that can be slept on has one epoll descriptor over two others: its own eventfd,
// which a completion makes readable, and the engine's, which an arrival makes readable while the
// engine is asleep (nic::WakePath). Of the latter kind there are so many at once: those that are
// waited for. Beyond them fi_trywait() says that nobody may wait now. A call that blocks needs
// none, since it waits for both descriptors itself.
//
// Before anyone blocks, try_sleep() puts the engine to sleep and looks once more. Several threads
// may sleep in one domain while another polls: whoever polls puts the engine back to sleep
// (Sleeper::keep_asleep), so that nobody misses the doorbell. Several may even sleep on one object,
// and not only those that have called us: where threads are allowed, whoever reads it ends that
// sleep for all of them, by making the descriptor readable unless the doorbell has done so; the
// next one to go to sleep drains it, and what it arms covers everybody.
#pragma once

#include <rdma/fi_eq.h>

#include <cassert>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "provider/domain.hpp"
#include "provider/entry.hpp"
#include "qp/completion.hpp"

namespace aperture::provider {

const char* wait_name(fi_wait_obj obj) noexcept;
// 0, or the code with which that wait object is refused (a sentence is logged).
int check_wait_obj(const char* call, fi_wait_obj obj, const fid_wait* set) noexcept;
// FI_WAIT_UNSPEC leaves the choice to us: a descriptor.
fi_wait_obj settle_wait_obj(fi_wait_obj obj) noexcept;
bool has_fd(fi_wait_obj obj) noexcept;
// FI_GETWAIT and FI_GETWAITOBJ of an object whose wait object is `obj` over `fd`.
int control_wait(const char* call, fi_wait_obj obj, int fd, int command, void* arg) noexcept;

// A timeout of the API: milliseconds, negative for ever.
class Deadline {
 public:
  explicit Deadline(int timeout_ms) noexcept
      : at_ns_(timeout_ms < 0 ? kNever : now_ns() + uint64_t(timeout_ms) * 1'000'000) {}
  bool passed() const noexcept { return at_ns_ != kNever && now_ns() >= at_ns_; }
  // For poll(2): rounded up, -1 for ever.
  int remaining_ms() const noexcept;

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};
  uint64_t at_ns_;
};

enum class Slept { woken, timed_out, interrupted };
// Until fd is readable; yields once if the object was opened with FI_WAIT_YIELD. A cancellation
// point: neither the caller nor its callers may have anything to clean up (base/cancellable.h).
// second: another one, or -1.
Slept sleep_on(fi_wait_obj obj, int fd, const Deadline& deadline, int second = -1);

// Who is about to wait: a call of ours, or whoever has the descriptor.
enum class Waits { in_call, on_descriptor };

// The sleeping side of one CQ or counter.
class Sleeper : private nic::WakePath {
 public:
  Sleeper() noexcept = default;
  ~Sleeper() override;
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Of a CQ's or counter's descriptor. Opens what `obj` needs; 0 or a negative fi_errno. Lock not
  // held.
  int open(Domain& domain, fi_wait_obj obj, qp::WakeFd& wake_fd);
  int descriptor() const noexcept { return epoll_.get(); }
  // After try_sleep(Waits::in_call). As sleep_on().
  Slept sleep(fi_wait_obj obj, const Deadline& deadline) const;

  // Lock held by the caller for all of these.
  // Puts the engine to sleep on our behalf. False: ready() says there is something, or things keep
  // arriving, or there is no path to the descriptor; look again.
  bool try_sleep(Waits waits, bool (*ready)(const void*), const void* what) noexcept;
  // We are awake and looking: called at the top of each read.
  void wake_up() noexcept {
    if (armed_) [[unlikely]]
      disarm();
  }
  // After a poll: others in this domain may still be asleep.
  static void keep_asleep(Domain& domain) noexcept {
    if (!domain.sleepers.empty()) [[unlikely]]
      put_back_to_sleep(domain);
  }
  // Makes the descriptor readable now. Any thread, no lock.
  void ring() noexcept;

 private:
  void arm() noexcept;
  void disarm() noexcept;
  static void put_back_to_sleep(Domain& domain) noexcept;
  void on_given_away() noexcept override;

  Domain* domain_ = nullptr;
  qp::WakeFd* wake_fd_ = nullptr;
  UniqueFd epoll_;
  bool has_place_ = false;  // in the domain's sleepers
  bool armed_ = false;      // guarded by the engine's lock
};

// A wait set: one epoll descriptor over those of its members. Guarded by its mutex.
struct WaitSet {
  fid_wait fid{};
  Fabric* fabric = nullptr;
  ForkRound round;  // in which it was opened
  fi_wait_obj wait_obj = FI_WAIT_FD;
  UniqueFd epoll;
  Uses uses;
  std::mutex mutex;
  std::vector<struct fid*> members;  // guarded by mutex
};

int join_set(fid_wait* set, fid* member, int fd, WaitSet*& joined);
void leave_set(WaitSet& set, fid* member, int fd) noexcept;

// 0: it is safe to block on this CQ, counter, event queue or wait set. -FI_EAGAIN: read it first.
int try_wait_one(fid* what) noexcept;

// 0, or the code with which a blocking read of an object with that wait object is refused.
int check_blocking(const char* call, fi_wait_obj obj) noexcept;

// What a CQ and a counter have in common: they belong to a domain, and one can sleep until they
// have something.
template <typename Fid>
struct Waited {
  Fid fid{};
  nic::Engine* engine = nullptr;
  Domain* domain = nullptr;
  Sleeper sleeper;
  fi_wait_obj wait_obj = FI_WAIT_NONE;
  WaitSet* wait_set = nullptr;
  Uses uses;  // endpoints, poll sets, operations that wait for a counter

  // As Sleeper::open, and joins the wait set if that is the wait object.
  int open(Domain& of, fi_wait_obj obj, fid_wait* set, qp::WakeFd& wake_fd) {
    assert(domain == nullptr && of.engine != nullptr);
    domain = &of;
    engine = of.engine.get();
    wait_obj = settle_wait_obj(obj);
    if (const int rc = sleeper.open(of, wait_obj, wake_fd); rc != 0) return rc;
    return wait_obj == FI_WAIT_SET ? join_set(set, &fid.fid, sleeper.descriptor(), wait_set) : 0;
  }
  int check_unused(const char* call) const noexcept {
    const uint32_t n = uses.count();
    if (n == 0) return 0;
    return refuse(-FI_EBUSY,
                  "%s: %u endpoint(s), poll set(s) or queued operation(s) use it; close or cancel "
                  "them first",
                  call, n);
  }
  template <typename Object>
  static void end(Object& object) noexcept {
    assert(object.uses.count() == 0 && object.domain->uses.count() != 0);
    if (object.wait_set != nullptr) {
      leave_set(*object.wait_set, &object.fid.fid, object.sleeper.descriptor());
    }
    Uses& domain_uses = object.domain->uses;
    delete &object;
    domain_uses.drop();
  }
  // 0: safe to block; -FI_EAGAIN: ready(what) says there is something, read first; -FI_EINVAL:
  // opened without a wait object.
  int try_sleep_unless(Waits waits, bool (*ready)(const void*), const void* what) noexcept {
    if (wait_obj == FI_WAIT_NONE) return -FI_EINVAL;
    nic::EngineGuard guard(*engine);
    if (has_fd(wait_obj)) return sleeper.try_sleep(waits, ready, what) ? 0 : -FI_EAGAIN;
    engine->poll();
    Sleeper::keep_asleep(*domain);
    return ready(what) ? -FI_EAGAIN : 0;
  }
  // Looks for a while, then makes ready for sleep_on(). False: look again.
  template <typename Ready, typename TrySleep>
  bool may_sleep(Ready&& ready, TrySleep&& try_sleep) noexcept {
    if (wait_obj == FI_WAIT_YIELD) return true;
    return !nic::look_before_sleep(*engine, ready) && try_sleep() == 0;
  }
};

}  // namespace aperture::provider
