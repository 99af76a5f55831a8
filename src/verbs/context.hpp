// An open device: ibv_open_device(3), ibv_close_device(3). It has a software NIC of its own.
//
// What is made under a context counts as a use of it. A context that is closed while it has uses
// lives on, refusing its peers, until the last of them has gone, and goes with that one: the kernel
// takes a closed context's objects away, and programs that leave them to it must not crash over
// them.
//
// Threads: any; `members` guards the lists of what is to be stopped at the end.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "base/fd.hpp"
#include "nic/verbs_nic.hpp"
#include "verbs/api.hpp"
#include "verbs/async.hpp"
#include "verbs/device.hpp"
#include "verbs/entry.hpp"
#include "verbs/waiters.hpp"

namespace aperture::verbs {

struct Mr;
struct DeviceQp;

enum class WindowType2 : uint8_t { a, b };

struct Context {
  explicit Context(std::unique_ptr<nic::VerbsNic> its_nic);

  ibv_context* base() noexcept { return &extended.context; }
  nic::Engine& engine() noexcept { return its_engine; }
  uint32_t next_handle() noexcept {
    // relaxed: a number alone
    return handles.fetch_add(1, std::memory_order_relaxed);
  }

  verbs_context extended{};  // first: object_of(); its `context` is what the application holds
  std::unique_ptr<nic::VerbsNic> nic;
  nic::Engine& its_engine;  // the nic's, at hand for each post and poll
  UniqueFd command_fd;      // nothing is behind it: some programs set flags on context->cmd_fd
  AsyncQueue async;
  Waiters waiters;  // guarded by the engine lock
  WindowType2 windows;
  std::atomic<uint32_t> handles{1};
  std::atomic<uint32_t> holders{1};  // its objects, and the application until it closes it

  std::mutex members_mutex;
  std::unordered_set<Mr*> mrs;        // guarded by members_mutex
  std::unordered_set<DeviceQp*> qps;  // guarded by members_mutex
};

inline Context& context_of(ibv_context* context) noexcept {
  return object_of<Context>(verbs_get_ctx(context));
}

// Whose it is: of a context, and of what was made under it.
inline const Life& life_of(ibv_context* context) noexcept {
  return context_of(context).its_engine.life();
}
template <typename Object>
const Life& life_of(Object* object) noexcept {
  return life_of(object->context);
}

// One object of a context, for as long as this lives. The last to go frees a context that is
// closed: no lock of the context may be held then.
class ContextUse {
 public:
  ContextUse() noexcept = default;
  explicit ContextUse(Context& context) noexcept : context_(&context) {
    // relaxed: whoever adds a holder is reached through one
    context.holders.fetch_add(1, std::memory_order_relaxed);
  }
  ContextUse(ContextUse&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
  ContextUse& operator=(ContextUse&& other) noexcept {
    std::swap(context_, other.context_);
    return *this;
  }
  ~ContextUse() {
    if (context_ != nullptr) drop(*context_);
  }

  // How many are left; 0: the context is gone.
  static uint32_t drop(Context& context) noexcept;

 private:
  Context* context_ = nullptr;
};

// Fills the tables of functions that libibverbs' inline calls go through.
void fill_operations(verbs_context& extended) noexcept;

}  // namespace aperture::verbs
