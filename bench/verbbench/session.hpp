// One reliable connection between the two sides, opened through libibverbs.
//
// Owned by one thread of one side of a pair. Every call that fails throws Failure with the call's
// name and the words for its error. Waiting is polling, with a deadline per operation.
// ibv_create_qp(3), ibv_modify_qp(3), ibv_post_send(3), ibv_poll_cq(3).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "harness/threads.hpp"
#include "stopwatch/pair.hpp"
#include "stopwatch/patience.hpp"

namespace aperture::bench {

// How a side waits for messages: it polls, or sleeps in epoll on a completion channel.
enum class Waiting { polling, epoll };

class Device;

struct Setup {
  std::string device = "aperture0";
  uint8_t port = 1;
  int gid_index = 0;  // used on Ethernet
  Waiting waiting = Waiting::polling;
  SharedByThreads<Device>* shared = nullptr;  // the device of all threads of a process
};

template <typename T, int (*destroy)(T*)>
struct VerbsCloser {
  void operator()(T* object) const noexcept { destroy(object); }
};
template <typename T, int (*destroy)(T*)>
using OwnedVerbs = std::unique_ptr<T, VerbsCloser<T, destroy>>;

// An open device and a protection domain of it. Threads may share it.
class Device {
 public:
  explicit Device(const std::string& name);

  ibv_context* context() const noexcept { return context_.get(); }
  ibv_pd* pd() const noexcept { return pd_.get(); }

 private:
  OwnedVerbs<ibv_context, ibv_close_device> context_;
  OwnedVerbs<ibv_pd, ibv_dealloc_pd> pd_;
};

using Mr = OwnedVerbs<ibv_mr, ibv_dereg_mr>;
using Mw = OwnedVerbs<ibv_mw, ibv_dealloc_mw>;

struct RemoteRegion {
  uint64_t addr;
  uint32_t rkey;
  uint32_t padding;
};

[[noreturn]] void throw_errno(const char* call, int error);
[[noreturn]] void throw_completion_error(const ibv_wc& wc);

// Answers of calls that return 0 or an errno, and of those that return a pointer or set errno.
inline void check(const char* call, int error) {
  if (error != 0) throw_errno(call, error);
}
template <typename T>
T* check(const char* call, T* made) {
  if (made == nullptr) throw_errno(call, errno);
  return made;
}

class Session;

// What the other end has to know of a queue pair.
struct LinkEnd {
  uint32_t qpn;
  uint32_t psn;
  uint16_t lid;
  ibv_gid gid;
};

// One end of a reliable connection.
class Link {
 public:
  explicit Link(Session& session);
  Link(Session& session, ibv_cq* rx_cq);
  // The same, and connected to the one that the other side makes at the same time.
  Link(Session& session, Channel& channel);
  Link(Session& session, ibv_cq* rx_cq, Channel& channel);

  LinkEnd end() const;
  void connect(const LinkEnd& theirs);

  ibv_qp* qp() const noexcept { return qp_.get(); }
  void post(ibv_send_wr& wr) {
    ibv_send_wr* bad = nullptr;
    check("ibv_post_send", ibv_post_send(qp_.get(), &wr, &bad));
  }
  void post(ibv_recv_wr& wr) {
    ibv_recv_wr* bad = nullptr;
    check("ibv_post_recv", ibv_post_recv(qp_.get(), &wr, &bad));
  }

 private:
  void meet(Channel& channel);
  void to_init();
  void to_rtr(const LinkEnd& theirs);
  void to_rts();
  ibv_port_attr port() const;

  Session& session_;
  OwnedVerbs<ibv_qp, ibv_destroy_qp> qp_;
};

class Sleeper;

class Session {
 public:
  explicit Session(const Setup& setup);
  ~Session();

  const Setup& setup() const noexcept { return setup_; }
  ibv_pd* pd() const noexcept { return device_->pd(); }
  ibv_context* context() const noexcept { return device_->context(); }
  ibv_cq* tx_cq() const noexcept { return tx_.get(); }
  ibv_cq* rx_cq() const noexcept { return rx_; }
  uint8_t most_reads() const noexcept { return most_reads_; }  // and atomics under way
  bool can_inline(size_t len_bytes) const noexcept { return len_bytes <= kInlineBytes; }

  Mr register_memory(void* base, size_t len_bytes, int access);
  // For memory that the peer reads and writes.
  Mr register_target(void* base, size_t len_bytes);
  // The same, and the peer's half is exchanged over the channel.
  Mr register_remote(void* base, size_t len_bytes, Channel& channel, RemoteRegion& theirs);

  // Up to kBatch completions; calls done(wc) for each.
  template <typename Done>
  size_t poll_tx(Done&& done) {
    return poll(tx_.get(), done);
  }
  template <typename Done>
  size_t poll_rx(Done&& done) {
    return poll(rx_, done);
  }

  // Up to kBatch completions of another queue.
  template <typename Done>
  size_t poll(ibv_cq* cq, Done&& done) {
    ibv_wc some[kBatch];
    const int n = ibv_poll_cq(cq, kBatch, some);
    if (n < 0) throw_errno("ibv_poll_cq", -n);
    for (int i = 0; i < n; i++) done(good(some[i]));
    return static_cast<size_t>(n);
  }

  // Exactly one completion.
  ibv_wc await_tx(const char* awaited) { return good(await(tx_.get(), awaited)); }
  ibv_wc await_rx(const char* awaited) {
    return good(sleeper_ ? sleep(awaited) : await(rx_, awaited));
  }
  // The same, whatever has become of it.
  ibv_wc await_tx_or_error(const char* awaited) { return await(tx_.get(), awaited); }

  // Calls into the device that take no completions.
  void progress(int calls) {
    for (int i = 0; i < calls; i++) ibv_poll_cq(rx_, 0, nullptr);
  }

  // Between two polls of one queue.
  static void linger(Patience& patience) { patience.tick(); }

  static constexpr int kBatch = 16;
  static constexpr uint32_t kInlineBytes = 64;
  static constexpr uint32_t kSendDepth = 256, kReceiveDepth = 512;

 private:
  const ibv_wc& good(const ibv_wc& wc) {
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]]
      give_up(wc);
    return wc;
  }
  // What was flushed is told by its cause, if that lies in the other queue.
  [[noreturn]] void give_up(const ibv_wc& wc);

  // The next message, slept for in epoll.
  ibv_wc sleep(const char* awaited);

  static ibv_wc await(ibv_cq* cq, const char* awaited) {
    Patience patience(awaited);
    ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) patience.tick();
    if (n < 0) throw_errno("ibv_poll_cq", -n);
    return wc;
  }

  const Setup setup_;
  std::shared_ptr<Device> device_;
  OwnedVerbs<ibv_cq, ibv_destroy_cq> tx_, polled_rx_;
  std::unique_ptr<Sleeper> sleeper_;  // Waiting::epoll
  ibv_cq* rx_ = nullptr;              // of one of them
  uint8_t most_reads_ = 1;
};

// One piece of local memory, as a work request names it.
ibv_sge piece_of(const void* base, size_t len_bytes, const Mr& mr);

}  // namespace aperture::bench
