// Memory windows of verbs: leave to reach a part of an MR, given and taken away again without
// registering anything (IBTA vol. 1, 10.6.6 and 10.6.7; man 3 ibv_alloc_mw, ibv_bind_mw).
//
// A window has the number of its keys for life, and while it is bound an entry of its own in the
// key table. That entry holds the window's rights and range, never cut down to the MR's: windows
// grant what the MR does not. What the MR must allow (binding at all, local writes beneath remote
// ones) is validated when it is bound.
//
//   type 1    any QP of the PD reaches it; peers may do so directly. Bound again at will:
//             the new key is announced at once and in force when the bind completes, which is after
//             the last access under the old one
//   type 2    entry bound to one QP, which peers leave to the owner, so that invalidating never
//             waits. 2A and 2B differ in what becomes of the QP: see WindowCount
//
// Keys wrap after 256 tags: the 256th bind of type 1, and whatever tag the consumer repeats, have a
// key that was in force before. Between them nothing of the past is granted: the entries' own
// generations never repeat (key_file.hpp).
//
// Threads: everything inside the engine lock of the PD, in which every check of its entries runs
// too. One Window per memory window of the application.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/errc.hpp"
#include "base/number_map.hpp"
#include "protect/key_numbers.hpp"
#include "protect/key_table.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

enum class WindowType : uint8_t { type_1, type_2a, type_2b };

// What came of a bind, an invalidation or a close.
enum class WindowAnswer : uint8_t {
  done,
  waits,  // peers may still be inside what it ends: poll()
  // no, of a bind; what was bound before is untouched
  in_progress,    // the last bind or unbind is not over
  wrong_call,     // type 1 by a work request, type 2 by the call of type 1
  other_domain,   // window and QP are of two PDs
  unknown_right,  // a right that windows cannot give
  zero_based,     // of type 1
  no_length,      // of type 2
  already_bound,  // of type 2
  other_number,   // not a key of this window
  no_region,      // the MR is not there (any more)
  region_domain,  // window and MR are of two PDs
  not_bindable,   // the MR lacks bind_window
  not_writable,   // remote write or atomic over an MR without local_write
  out_of_range,   // leaves the MR
  key_in_force,   // 256 binds later, with the first still in force
  no_room,        // the key table is full, or there is no memory
  // no, of an invalidation
  not_a_window,  // no window has such a key: unknown, or an MR's
  never_by_key,  // of type 1
  not_bound,
  other_tag,       // a key of this window, not the one in force
  other_endpoint,  // bound to another QP
  // no, of a bind
  not_persistent,  // persistent flushes over an MR without them
};
constexpr uint8_t kWindowAnswers = 23;

// The rule that was broken, in a few words. Static storage.
const char* sentence(WindowAnswer answer) noexcept;
// The syndrome of a peer's invalidation that was refused.
Denial denial_of(WindowAnswer answer) noexcept;

// How many windows are bound to an MR, which cannot go or change while there are any; or, of type
// 2A alone, to a QP, which then cannot be destroyed. Owned by the MR or the QP; outlives those
// windows' bindings.
struct WindowCount {
  uint32_t bound = 0;
};

// An MR, as far as windows need to know it. man 3 ibv_reg_mr
struct BindableRegion {
  RegionHandle entry;
  DomainId pd = 0;
  uint64_t base = 0;    // virtual address of the first byte
  uint64_t length = 0;  // bytes
  uint64_t origin = 0;  // the address of that byte for whoever has the key: base, iova or 0
  Rights rights = Rights::none;
  WindowCount* windows = nullptr;
};

struct WindowBind {
  const BindableRegion* region = nullptr;  // may be null with length 0
  uint64_t addr = 0;                       // as the MR's own addresses count
  uint64_t length = 0;                     // bytes; 0 unbinds a window of type 1
  Rights rights = Rights::none;
  bool zero_based = false;
  bool by_work_request = true;         // false: by the call of type 1
  uint32_t key = 0;                    // next_key() when it was posted, or the consumer's
  DomainId pd = 0;                     // the QP's ...
  EndpointId through = 0;              // ... own number, never used again ...
  WindowCount* of_endpoint = nullptr;  // ... and its windows of type 2A
  const void* bound_at = nullptr;      // return address of the posting call, for explain()
};

class Window {
 public:
  // Errors: no_space (no key number left), no_memory.
  static Result<std::unique_ptr<Window>> create(KeyTable& table, KeyNumbers& numbers, DomainId pd,
                                                WindowType type);
  // Only when it is bound to nothing: after close() and poll().
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  WindowType type() const noexcept { return type_; }
  DomainId pd() const noexcept { return pd_; }
  uint32_t number() const noexcept { return number_of_key(key_); }
  // The key of the last bind that was announced. At first one that is in force nowhere.
  uint32_t key() const noexcept { return key_; }
  bool is_bound() const noexcept { return now_.entry.generation != 0; }

  // Type 1, when a bind is posted: the key that it will put in force.
  uint32_t next_key() noexcept;

  // Carries a bind out. After `waits` the new binding is in force once poll() says done, and until
  // then neither is; that QP alone waits.
  WindowAnswer bind(const WindowBind& bind);
  // Type 2: by its key, for the QP `through` of domain pd or the peer at its other end.
  WindowAnswer invalidate(uint32_t key, DomainId pd, EndpointId through);
  // To deallocate it: ends whatever is bound, by whichever QP; nothing can be bound again.
  WindowAnswer close();
  // Goes on with what waits. Looks at /proc where a peer was slow, so at most every kPollNs.
  WindowAnswer poll();

 private:
  static constexpr uint64_t kPollNs = 20'000;

  // One life of the window. Bound: generation != 0.
  struct Binding {
    RegionHandle entry;
    EndpointId through = 0;
    WindowCount* of_region = nullptr;
    WindowCount* of_endpoint = nullptr;
  };

  Window(KeyTable& table, KeyNumbers& numbers, DomainId pd, WindowType type, uint32_t key) noexcept;
  bool is_type_1() const noexcept { return type_ == WindowType::type_1; }
  WindowAnswer validate(const WindowBind& bind) const noexcept;
  WindowAnswer validate_region(const WindowBind& bind) const noexcept;
  void end(Binding& binding);
  static void release(Binding& binding) noexcept;

  KeyTable& table_;
  KeyNumbers& numbers_;
  const DomainId pd_;
  const WindowType type_;
  bool closing_ = false;
  uint32_t key_;
  uint64_t next_poll_ns_ = 0;
  Binding now_;     // in force
  Binding ending_;  // type 1: refused, but peers may be inside
  Binding next_;    // type 1: in the table, in force when ending_ is over
};

// One sentence on a bind, or an invalidation by its key, that was refused: what was asked, the
// rule, and what would make it legal, in the words of a door. Slow; may allocate.
std::string explain(const Window& window, const WindowBind& bind, WindowAnswer answer,
                    const Wording& door = kNeutralWording);
std::string explain_invalidation(uint32_t key, WindowAnswer answer,
                                 const Wording& door = kNeutralWording);

// The windows of one engine, by the number of their keys: who is meant by an invalidation.
class WindowSet {
 public:
  // Throws bad_alloc.
  void add(Window& window) { by_number_.set(window.number(), window); }
  void remove(const Window& window) noexcept { by_number_.remove(window.number()); }
  Window* find(uint32_t key) const noexcept { return by_number_.find(number_of_key(key)); }
  // By a local invalidate, or by a peer's send with invalidate.
  WindowAnswer invalidate(uint32_t key, DomainId pd, EndpointId through) {
    Window* window = find(key);
    return window == nullptr ? WindowAnswer::not_a_window : window->invalidate(key, pd, through);
  }

 private:
  NumberMap<Window> by_number_;
};

}  // namespace aperture::protect
