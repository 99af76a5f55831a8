// Operations of which more is kept than their work request: those that wait for a counter, which
// are triggered operations (FI_TRIGGER) and deferred work (FI_QUEUE_WORK), and those whose buffers
// lie in a device, for which other memory stands in. man 3 fi_trigger, fi_mr.
//
// A Work is one of them, with copies of all that its work request points to but the payload. One
// that is staged waits for nothing, and is under way from the beginning. One that waits stands in
// the list of its counter until that has come far enough, then in the domain's list of what is due,
// from where it is posted: by the engine's next poll, or at once where the counter was moved by a
// call of the application's. Operations that become due together start in the order of their
// thresholds, and of their submission where these are equal. One that finds no room is tried again
// with each poll, and holds up those of its own endpoint only. Everything is guarded by the
// engine's lock but what has not been added yet.
#pragma once

#include <rdma/fi_trigger.h>

#include <array>
#include <utility>

#include "base/list.hpp"
#include "base/pool.hpp"
#include "link/chore.hpp"
#include "provider/ep.hpp"
#include "provider/staging.hpp"

namespace aperture::provider {

struct AllWork;      // tag of the list of all
struct CopyingWork;  // of those of which a driver copies
struct Work final : ListHook, BasicListHook<AllWork>, BasicListHook<CopyingWork>, qp::Told {
  enum class Kind : uint8_t { send, recv, recv_multi, read, write, atomic, cntr_set, cntr_add };
  enum class State : uint8_t { waiting, due, starting, started };

  Kind kind = Kind::send;
  State state = State::waiting;
  bool over = false;          // it came to its end while it was being started
  bool is_deferred = false;   // FI_QUEUE_WORK: what counts is `completes`
  bool is_staged = false;     // some of its buffers are in a device
  bool wants_entry = false;   // of what is told: FI_COMPLETION
  bool is_returning = false;  // all of it has come, and is on its way to the device
  WorkQueue* queue = nullptr;
  EpBody* body = nullptr;     // null: of a counter
  Cntr* trigger = nullptr;    // null: staged
  Cntr* completes = nullptr;  // may be null
  Cntr* target = nullptr;     // cntr_set, cntr_add
  uint64_t value = 0;         // cntr_set, cntr_add
  uint64_t threshold = 0;
  uint64_t number = 0;                        // of its submission
  const fi_deferred_work* request = nullptr;  // how the application calls it
  void* context = nullptr;                    // the application's

  qp::SendWr send;
  qp::RecvWr recv;
  uint64_t least_room = 0;  // recv_multi
  qp::RmaWr rma;
  qp::AtomicWr atomic;
  std::array<std::array<iovec, qp::kIovLimit>, 3> iovs;
  std::array<qp::RemoteRange, qp::kRmaIovLimit> ranges;
  std::array<std::array<std::byte, qp::kInjectBytes>, 2> injected;
  std::unique_ptr<Staging> staging;  // of what is staged
  void* buf = nullptr;               // and the application's first buffer
  qp::CompletionError outcome;       // of one that is returning; err == ok: it has succeeded

  uint64_t flags() const noexcept;  // of its completion
  bool is_receive() const noexcept { return kind == Kind::recv || kind == Kind::recv_multi; }
  // How many of iovs[which] are used.
  size_t pieces_of(size_t which) const noexcept;
  // It is a Told, and in no completion queue and no counter by itself.
  bool is_told() const noexcept { return is_deferred || is_staged; }
  void on_done(const qp::Completion& entry) noexcept override;
  void on_failed(qp::CompletionError&& error) noexcept override;
  Filled filled() const noexcept override;
  void on_arrived(uint64_t through) noexcept override;

  // It is returning, and its driver has nothing more to copy.
  void end_return() noexcept;

 private:
  void begin_return(uint64_t len) noexcept;
  void succeed(const qp::Completion& entry) noexcept;
  void fail(qp::CompletionError&& error) noexcept;
};

// What becomes of a work request that a call has made: it is kept in `work`.
class Later {
 public:
  explicit Later(Work& work) noexcept : work_(work) {}
  ssize_t send(Ep& ep, const char* call, const qp::SendWr& wr) const noexcept;
  ssize_t recv(Ep& ep, const char* call, const qp::RecvWr& wr) const noexcept;
  ssize_t recv_multi(Ep& ep, const char* call, const qp::RecvWr& wr) const noexcept;
  template <bool kIsWrite>
  ssize_t access(Ep& ep, const char*, const qp::RmaWr& wr) const noexcept {
    return access(ep, kIsWrite ? Work::Kind::write : Work::Kind::read, wr);
  }
  ssize_t atomic(Ep& ep, const char* call, const qp::AtomicWr& wr) const noexcept;

 private:
  ssize_t access(Ep& ep, Work::Kind kind, const qp::RmaWr& wr) const noexcept;
  void keep_iov(size_t which, const iovec*& iov, size_t& count, bool inject) const noexcept;
  void keep_ranges(const qp::RemoteRange*& ranges, size_t count) const noexcept;
  template <typename Wr>
  void belong(Ep& ep, Wr& wr) const noexcept;

  Work& work_;
};

// The operations of one domain that wait, are due, or (those that are told alone) are under way.
class WorkQueue final : private link::Chore<WorkQueue>, private nic::Engine::PollableOwner {
 public:
  // At most so many at once; more are refused with -FI_EAGAIN.
  static constexpr size_t kMostWork = size_t{1} << 16;

  explicit WorkQueue(nic::Engine& engine) noexcept : engine_(engine), works_(0, kMostWork) {}
  ~WorkQueue() override;
  // Lock held for this and all others. Once. Errors: no_memory.
  Status begin() noexcept;

  Work* take() noexcept;  // null: there are kMostWork, or no memory
  void give(Work* work) noexcept {
    work->staging.reset();
    works_.give(work);
  }
  // It waits for its counter, or is started now if that has come far enough. From a call.
  void add(Work& work) noexcept;
  // One that is staged is posted. Errors: the core's, and then it is its maker's as before.
  Status start_staged(Work& work) noexcept;
  // FI_CANCEL_WORK. Errors: no_entry (it is not queued any more, or never was).
  Status cancel(const fi_deferred_work* request) noexcept;
  // FI_FLUSH_WORK: deferred work that waits for that counter; null: for any.
  void flush(const Cntr* trigger) noexcept;
  // fi_cancel. Errors: no_entry.
  Status cancel(EpBody& body, void* context) noexcept;
  // The endpoint closes: what waits is dropped.
  void forget(const EpBody& body) noexcept;

  // A driver copies for it from now on. `is_returning`: behind all others that are.
  void watch(Work& work) noexcept;
  void begin_return(Work& work) noexcept;
  // Whether another of that endpoint's is returning, before `work` if that is given: it is told of
  // first.
  bool is_any_returning(const EpBody& body, const Work* before = nullptr) const noexcept;

  // For counters: that is due.
  void make_due(Work& work) noexcept;
  // from_call: as in qp::ArrivalListener.
  void run_soon(bool from_call) noexcept;

 private:
  friend struct Work;
  friend class link::Chore<WorkQueue>;

  bool poll(uint64_t polls) noexcept override;
  bool is_due() const noexcept { return !due_.empty() || !copying_.empty(); }
  bool is_blocked() const noexcept { return blocked_ && copying_.empty(); }
  void wind_up(link::Pollable&) noexcept override {}

  void run() noexcept;
  bool go_on_copying() noexcept;
  bool start(Work& work) noexcept;
  Status post(Work& work) noexcept;
  void fail(Work& work, Errc why) noexcept;
  void end(Work& work) noexcept;
  void drop(Work& work) noexcept;
  void take_out(Work& work) noexcept;
  void take_back(Work& work) noexcept;
  template <typename Which>
  size_t take_back_all(Which&& which) noexcept;

  nic::Engine& engine_;
  Pool<Work> works_;
  List<Work, AllWork> all_;
  List<Work> due_;
  List<Work> started_;               // to be told of
  List<Work, CopyingWork> copying_;  // looked at with each poll
  uint64_t numbers_ = 0;
  uint64_t rounds_ = 0;
  bool running_ = false;
  bool blocked_ = false;  // what is due has found no room
  bool begun_ = false;
};

// 0, or the refusal of what is no counter of that domain.
int check_counter(const char* call, const char* what, const fid_cntr* fid,
                  const Domain& domain) noexcept;

// What the context of a call with FI_TRIGGER names. 0 or the refusal.
int check_trigger(const Ep& ep, const char* call, const void* context, Cntr*& cntr,
                  uint64_t& threshold) noexcept;
Work* new_work(Domain& domain, const char* call) noexcept;
void forget_work(Domain& domain, Work& work) noexcept;
// Makes a Work of such a call: `fill` is given the Later that its work request goes to. 0 or a
// negative fi_errno.
template <typename Fill>
[[gnu::cold, gnu::noinline]] ssize_t trigger(Ep& ep, const char* call, void* context,
                                             Fill&& fill) noexcept {
  Cntr* cntr = nullptr;
  uint64_t threshold = 0;
  if (const int rc = check_trigger(ep, call, context, cntr, threshold); rc != 0) return rc;
  Domain& domain = *ep.body->domain;
  Work* const work = new_work(domain, call);
  if (work == nullptr) return -FI_EAGAIN;
  work->trigger = cntr;
  work->threshold = threshold;
  work->context = context;
  if (const ssize_t rc = std::forward<Fill>(fill)(Later(*work)); rc != 0) {
    forget_work(domain, *work);
    return rc;
  }
  nic::EngineGuard guard(*ep.engine);
  domain.work->add(*work);
  return 0;
}

// Keeps an operation of the application's; 0 or the refusal. The endpoint is enabled.
ssize_t send_later(Ep& ep, const char* call, const fi_msg& msg, uint64_t flags,
                   const Later& later) noexcept;  // ep_msg.cpp
ssize_t recv_later(Ep& ep, const char* call, const fi_msg& msg, uint64_t flags,
                   const Later& later) noexcept;
ssize_t send_later(Ep& ep, const char* call, const fi_msg_tagged& msg, uint64_t flags,
                   const Later& later) noexcept;  // ep_tagged.cpp
ssize_t recv_later(Ep& ep, const char* call, const fi_msg_tagged& msg, uint64_t flags,
                   const Later& later) noexcept;
ssize_t access_later(Ep& ep, const char* call, const fi_msg_rma& msg, bool is_write, uint64_t flags,
                     const Later& later) noexcept;  // ep_rma.cpp
struct AtomicBuffers {
  const fi_msg_fetch* fetch = nullptr;
  const fi_msg_compare* compare = nullptr;
};
ssize_t atomic_later(Ep& ep, const char* call, const fi_msg_atomic& msg,
                     const AtomicBuffers& buffers, uint64_t flags,
                     const Later& later) noexcept;  // ep_atomic.cpp

// fi_control of a domain: FI_QUEUE_WORK, FI_CANCEL_WORK, FI_FLUSH_WORK (deferred_work.cpp).
int queue_work(Domain& domain, const fi_deferred_work* work);
int cancel_work(Domain& domain, const fi_deferred_work* work) noexcept;
int flush_work(Domain& domain, const fi_deferred_work* of) noexcept;
// Once in a domain whose endpoints trigger operations. 0 or a negative fi_errno.
int begin_work(Domain& domain);

}  // namespace aperture::provider
