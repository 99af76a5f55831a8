// An open device: ibv_open_device(3), ibv_close_device(3). It has a software NIC of its own.
//
// What is made under a context counts as a use of it. A context that is closed while it has uses
// lives on, refusing its peers, until the last of them has gone: the kernel takes a closed
// context's objects away, and programs that leave them to it must not crash over them.
//
// Threads: any; `members` guards the lists of what is to be stopped at the end.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "base/fd.hpp"
#include "nic/verbs_nic.hpp"
#include "verbs/api.hpp"
#include "verbs/async.hpp"
#include "verbs/device.hpp"
#include "verbs/entry.hpp"

namespace aperture::verbs {

struct Mr;
struct Qp;

enum class WindowType2 : uint8_t { a, b };

struct Context {
  explicit Context(std::unique_ptr<nic::VerbsNic> its_nic);

  ibv_context* base() noexcept { return &extended.context; }
  nic::Engine& engine() noexcept { return nic->engine(); }
  uint32_t next_handle() noexcept {
    // relaxed: a number alone
    return handles.fetch_add(1, std::memory_order_relaxed);
  }

  verbs_context extended{};  // first: object_of(); its `context` is what the application holds
  std::unique_ptr<nic::VerbsNic> nic;
  UniqueFd command_fd;  // nothing is behind it: some programs set flags on context->cmd_fd
  AsyncQueue async;
  WindowType2 windows;
  Uses uses;
  std::atomic<uint32_t> handles{1};

  std::mutex members_mutex;
  std::unordered_set<Mr*> mrs;  // guarded by members_mutex
  std::unordered_set<Qp*> qps;  // guarded by members_mutex
};

inline Context& context_of(ibv_context* context) noexcept {
  return object_of<Context>(verbs_get_ctx(context));
}

// Fills the tables of functions that libibverbs' inline calls go through.
void fill_operations(verbs_context& extended) noexcept;

}  // namespace aperture::verbs
