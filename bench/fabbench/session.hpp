// One plain RDM endpoint and its peer, opened through libfabric's public API.
//
// Owned by one thread of one side of a pair. Every call that fails throws Failure with the call's
// name and libfabric's words for the error. Waiting is polling, with a deadline per operation.
// fi_endpoint(3), fi_cq(3), fi_mr(3), fi_av(3) of API 1.17.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "harness/threads.hpp"
#include "stopwatch/epoll.hpp"
#include "stopwatch/pair.hpp"
#include "stopwatch/patience.hpp"

namespace aperture::bench {

template <typename T>
struct FidCloser {
  void operator()(T* fid) const noexcept { fi_close(&fid->fid); }
};
template <typename T>
using Owned = std::unique_ptr<T, FidCloser<T>>;

struct InfoFree {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using InfoPtr = std::unique_ptr<fi_info, InfoFree>;

// The registration modes that are offered to the provider; it answers with those it demands.
enum class Registration { any, basic, scalable };

// How a side waits for messages: it polls, or sleeps in epoll on its queue's descriptor.
enum class Waiting { polling, epoll };

class Domain;

struct Setup {
  std::string provider;
  std::string domain;  // empty: the provider's first
  Registration registration = Registration::any;
  uint64_t caps = FI_MSG;
  fi_threading threading = FI_THREAD_DOMAIN;
  fi_progress progress = FI_PROGRESS_MANUAL;
  bool delivery_complete = false;  // writes complete when the bytes are in the target's memory
  bool cq_data = false;            // messages may carry some
  Waiting waiting = Waiting::polling;
  SharedByThreads<Domain>* shared = nullptr;  // the domain of all threads of a process
};

// What the provider has for that; loads the providers.
InfoPtr find_provider(const Setup& setup);

// A domain, and what it was opened with. Threads may share it under FI_THREAD_SAFE.
class Domain {
 public:
  explicit Domain(const Setup& setup);

  fi_info& info() const noexcept { return *info_; }
  fid_fabric* fabric() const noexcept { return fabric_.get(); }
  fid_domain* get() const noexcept { return domain_.get(); }
  // For a region, where the provider does not choose the keys.
  uint64_t next_key() noexcept { return next_key_.fetch_add(1); }

 private:
  InfoPtr info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  std::atomic<uint64_t> next_key_{1};
};

struct Region {
  Owned<fid_mr> mr;
  void* desc = nullptr;
};

struct RemoteRegion {
  uint64_t base;  // virtual address or 0, as mr_mode has it
  uint64_t key;
};

[[noreturn]] void throw_fabric_error(const char* call, int64_t ret);

inline void check(const char* call, int64_t ret) {
  if (ret < 0) throw_fabric_error(call, ret);
}

class Session {
 public:
  Session(const Setup& setup, Channel& channel);

  fid_ep* ep() const noexcept { return ep_.get(); }
  fi_addr_t peer() const noexcept { return peer_; }
  const fi_info& info() const noexcept { return domain_->info(); }
  bool can_inject(size_t len_bytes) const noexcept {
    return len_bytes <= info().tx_attr->inject_size;
  }
  // "mr_mode VIRT_ADDR|PROV_KEY": what the provider demanded.
  std::string registration_text() const;

  // For buffers that are only used locally: registered when the provider demands FI_MR_LOCAL.
  Region register_local(void* base, size_t len_bytes);
  // For memory that peers read and write; remote_of() is what they have to know of it.
  Region register_target(void* base, size_t len_bytes);
  RemoteRegion remote_of(const Region& region, const void* base) const;
  // The same, and the peer's half is exchanged over the channel.
  Region register_remote(void* base, size_t len_bytes, Channel& channel, RemoteRegion& peers);

  // This endpoint's name, and the address of another one by its name: peers beside the first.
  std::string name() const;
  fi_addr_t insert(const std::string& name);
  // One more endpoint with the same queues, and its name.
  Owned<fid_ep> make_endpoint();
  static std::string name_of(fid_ep* ep);

  // Up to count completions of operations that this side started; calls done(context) for each.
  template <typename Done>
  size_t poll_tx(Done&& done) {
    fi_cq_entry entries[kBatch];
    const ssize_t n = fi_cq_read(tx_.get(), entries, kBatch);
    if (n <= 0) {
      if (n != -FI_EAGAIN) throw_completion_error(tx_.get(), n);
      return 0;
    }
    for (ssize_t i = 0; i < n; i++) done(entries[i].op_context);
    return static_cast<size_t>(n);
  }

  // Completions of receives and of remote writes with data.
  template <typename Done>
  size_t poll_rx(Done&& done, size_t most = kBatch) {
    fi_cq_tagged_entry entries[kBatch];
    const ssize_t n = fi_cq_read(rx_.get(), entries, most);
    if (n <= 0) {
      if (n != -FI_EAGAIN) throw_completion_error(rx_.get(), n);
      return 0;
    }
    for (ssize_t i = 0; i < n; i++) done(entries[i]);
    return static_cast<size_t>(n);
  }

  // Exactly one completion of each kind.
  void await_tx(const char* awaited);
  // 0, or the fi_errno of an error completion.
  int await_tx_or_error(const char* awaited);
  fi_cq_tagged_entry await_rx(const char* awaited);

  // Progresses the provider without taking completions.
  void progress() {
    fi_cq_read(rx_.get(), nullptr, 0);
    fi_cq_read(tx_.get(), nullptr, 0);
  }

  void progress(int calls) {
    for (int i = 0; i < calls; i++) progress();
  }

  // Between two polls of one queue. In a long wait the other queue is polled too: a provider with
  // manual progress may move sends only when the queue of their completions is read.
  void linger(Patience& patience) {
    if (patience.tick()) progress();
  }

  // Between two polls of the queue of receives, when there is nothing else to do.
  void await_more(const char* awaited, Patience& patience) {
    if (!epoll_) {
      linger(patience);
    } else {
      patience.tick();
      sleep(awaited);
    }
  }

  // Repeats post() while it answers -FI_EAGAIN; relieve() gives the provider its time between.
  template <typename Post, typename Relieve>
  void post(const char* call, Post&& post, Relieve&& relieve) {
    ssize_t ret = post();
    if (ret == 0) [[likely]]
      return;
    Patience patience(call);
    while (ret == -FI_EAGAIN) {
      relieve();
      patience.tick();
      ret = post();
    }
    check(call, ret);
  }
  template <typename Post>
  void post(const char* call, Post&& poster) {
    post(call, poster, [this] { progress(); });
  }

  static constexpr size_t kBatch = 16;

 private:
  void open_queues(Waiting waiting);
  // In epoll until the queue of receives may have something, unless it has already.
  void sleep(const char* awaited);
  void meet_peer(Channel& channel);
  Region register_memory(void* base, size_t len_bytes, uint64_t access);
  [[noreturn]] static void throw_completion_error(fid_cq* cq, ssize_t ret);

  std::shared_ptr<Domain> domain_;
  Owned<fid_av> av_;
  Owned<fid_cq> tx_, rx_;
  Owned<fid_ep> ep_;
  std::unique_ptr<Epoll> epoll_;  // Waiting::epoll
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

}  // namespace aperture::bench
