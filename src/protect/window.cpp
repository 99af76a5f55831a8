// Binding, invalidating and closing memory windows: see window.hpp.
#include "protect/window.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/random.hpp"

namespace aperture::protect {

namespace {

constexpr Rights kWindowRights = Rights::remote_read | Rights::remote_write |
                                 Rights::remote_atomic | Rights::flush_global |
                                 Rights::flush_persistent;
constexpr Rights kChanging = Rights::remote_write | Rights::remote_atomic;

}  // namespace

const char* sentence(WindowAnswer answer) noexcept {
  switch (answer) {
    case WindowAnswer::done: return "done";
    case WindowAnswer::waits: return "peers are still at work in what it was bound to";
    case WindowAnswer::in_progress: return "its last bind or unbind is not over";
    case WindowAnswer::wrong_call:
      return "windows of type 1 are bound by their own call, those of type 2 by a work request";
    case WindowAnswer::other_domain: return "window and queue pair are of two protection domains";
    case WindowAnswer::unknown_right: return "a window gives remote rights, and nothing else";
    case WindowAnswer::zero_based: return "a window of type 1 cannot be zero-based";
    case WindowAnswer::no_length: return "a window of type 2 cannot be bound to no bytes";
    case WindowAnswer::already_bound:
      return "a window of type 2 that is bound must be invalidated first";
    case WindowAnswer::other_number: return "the upper 24 bits of the key are not the window's";
    case WindowAnswer::no_region: return "no memory region has that key any more";
    case WindowAnswer::region_domain:
      return "window and memory region are of two protection domains";
    case WindowAnswer::not_bindable: return "the memory region does not allow windows";
    case WindowAnswer::not_writable:
      return "remote write and remote atomic need a memory region with local write";
    case WindowAnswer::out_of_range: return "the range leaves the memory region";
    case WindowAnswer::key_in_force: return "the key is in force already";
    case WindowAnswer::no_room: return "there is no room for another key";
    case WindowAnswer::not_a_window: return "no memory window has this key";
    case WindowAnswer::never_by_key: return "a window of type 1 is not invalidated by its key";
    case WindowAnswer::not_bound: return "the window is not bound";
    case WindowAnswer::other_tag: return "the window is bound under another key";
    case WindowAnswer::other_endpoint: return "the window is bound to another queue pair";
    case WindowAnswer::not_persistent:
      return "the memory region is not registered for persistent flushes";
  }
  return "refused for a reason that this version does not know";
}

Denial denial_of(WindowAnswer answer) noexcept {
  switch (answer) {
    case WindowAnswer::done: return Denial::none;
    case WindowAnswer::other_domain: return Denial::wrong_domain;
    case WindowAnswer::not_bound:
    case WindowAnswer::other_tag: return Denial::closed;
    case WindowAnswer::other_endpoint: return Denial::wrong_endpoint;
    default: return Denial::no_window;
  }
}

Result<std::unique_ptr<Window>> Window::create(KeyTable& table, KeyNumbers& numbers, DomainId pd,
                                               WindowType type) {
  const Result<uint32_t> number = numbers.take();
  if (!number) return number.error();
  const uint32_t key = verbs_key(number.value(), static_cast<uint8_t>(random_u64()));
  std::unique_ptr<Window> made(new (std::nothrow) Window(table, numbers, pd, type, key));
  if (made == nullptr) {
    numbers.give_back(number.value());
    return Errc::no_memory;
  }
  return made;
}

Window::Window(KeyTable& table, KeyNumbers& numbers, DomainId pd, WindowType type,
               uint32_t key) noexcept
    : table_(table), numbers_(numbers), pd_(pd), type_(type), key_(key) {}

Window::~Window() {
  assert(!is_bound() && ending_.entry.generation == 0 && next_.entry.generation == 0);
  numbers_.give_back(number());
}

uint32_t Window::next_key() noexcept {
  key_ = next_tag(key_);
  // only after binds that were announced and never carried out
  if (is_bound() && now_.entry.key == key_) key_ = next_tag(key_);
  return key_;
}

WindowAnswer Window::validate(const WindowBind& bind) const noexcept {
  if (closing_ || ending_.entry.generation != 0) return WindowAnswer::in_progress;
  if (bind.by_work_request == is_type_1()) return WindowAnswer::wrong_call;
  if (bind.pd != pd_) return WindowAnswer::other_domain;
  if (!includes(kWindowRights, bind.rights)) return WindowAnswer::unknown_right;
  if (number_of_key(bind.key) != number()) return WindowAnswer::other_number;
  if (is_type_1()) {
    if (bind.zero_based) return WindowAnswer::zero_based;
    if (bind.length == 0) return WindowAnswer::done;
    if (is_bound() && now_.entry.key == bind.key) return WindowAnswer::key_in_force;
  } else {
    if (bind.length == 0) return WindowAnswer::no_length;
    if (is_bound()) return WindowAnswer::already_bound;
  }
  return validate_region(bind);
}

WindowAnswer Window::validate_region(const WindowBind& bind) const noexcept {
  const BindableRegion* region = bind.region;
  if (region == nullptr || !table_.entries().in_force(region->entry))
    return WindowAnswer::no_region;
  if (region->pd != pd_) return WindowAnswer::region_domain;
  if (!includes(region->rights, Rights::bind_window)) return WindowAnswer::not_bindable;
  const bool changes = (bind.rights & kChanging) != Rights::none;
  if (changes && !includes(region->rights, Rights::local_write)) return WindowAnswer::not_writable;
  // it says what memory lies there, and not what peers may do with it
  const bool persists = includes(bind.rights, Rights::flush_persistent);
  if (persists && !includes(region->rights, Rights::flush_persistent)) {
    return WindowAnswer::not_persistent;
  }
  // what lies before the MR wraps to beyond its end; below, subtract and never add
  const uint64_t offset = bind.addr - region->origin;
  if (offset > region->length || bind.length > region->length - offset) {
    return WindowAnswer::out_of_range;
  }
  return WindowAnswer::done;
}

WindowAnswer Window::bind(const WindowBind& bind) {
  assert(bind.through != 0);
  // whoever waited for the last bind may be gone, and nobody else looks
  if (ending_.entry.generation != 0) poll();
  if (const WindowAnswer answer = validate(bind); answer != WindowAnswer::done) return answer;
  if (bind.length == 0) {  // type 1
    end(now_);
    return poll();
  }
  RegionSpec spec;
  spec.pd = pd_;
  spec.base = bind.region->base + (bind.addr - bind.region->origin);
  spec.length = bind.length;
  spec.rights = bind.rights;
  spec.origin = bind.zero_based ? 0 : bind.addr;
  spec.bound_to = is_type_1() ? 0 : bind.through;
  spec.requested_key = bind.key;
  spec.registered_at = bind.bound_at;
  const bool rebinds = is_bound();
  spec.enabled = !rebinds;
  Binding& to = rebinds ? next_ : now_;
  // before the old binding is touched: this may fail
  const Status made = table_.add(spec, nullptr, to.entry);
  if (!made) {
    return made.error() == Errc::no_key ? WindowAnswer::key_in_force : WindowAnswer::no_room;
  }
  to.through = bind.through;
  to.of_region = bind.region->windows;
  to.of_endpoint = nullptr;
  ++to.of_region->bound;
  if (type_ == WindowType::type_2a && bind.of_endpoint != nullptr) {
    to.of_endpoint = bind.of_endpoint;
    ++to.of_endpoint->bound;
  }
  if (!rebinds) return WindowAnswer::done;
  end(now_);
  return poll();
}

WindowAnswer Window::invalidate(uint32_t key, DomainId pd, EndpointId through) {
  if (is_type_1()) return WindowAnswer::never_by_key;
  if (pd != pd_) return WindowAnswer::other_domain;
  if (!is_bound()) return WindowAnswer::not_bound;
  if (key != now_.entry.key) return WindowAnswer::other_tag;
  if (through != now_.through) return WindowAnswer::other_endpoint;
  end(now_);
  return WindowAnswer::done;
}

WindowAnswer Window::close() {
  closing_ = true;
  return poll();
}

WindowAnswer Window::poll() {
  for (;;) {
    if (ending_.entry.generation != 0) {
      const uint64_t now = now_ns();
      if (now < next_poll_ns_) return WindowAnswer::waits;
      if (!table_.revocation().poll(ending_.entry)) {
        next_poll_ns_ = now + kPollNs;
        return WindowAnswer::waits;
      }
      release(ending_);
    } else if (closing_ && is_bound()) {
      end(now_);
    } else if (closing_ && next_.entry.generation != 0) {
      end(next_);
    } else if (next_.entry.generation != 0) {
      const Status enabled = table_.enable(next_.entry);
      assert(enabled.ok());  // nobody else has its handle
      (void)enabled;
      now_ = std::exchange(next_, {});
    } else {
      return WindowAnswer::done;
    }
  }
}

// A binding that is refused from now on: over at once, or in ending_.
void Window::end(Binding& binding) {
  if (binding.entry.generation == 0) return;
  const Status status = is_type_1() ? table_.revocation().revoke_now(binding.entry)
                                    : table_.revocation().revoke_bound(binding.entry);
  if (status.error() != Errc::busy) {
    release(binding);
    return;
  }
  ending_ = std::exchange(binding, {});
  next_poll_ns_ = 0;
}

void Window::release(Binding& binding) noexcept {
  --binding.of_region->bound;
  if (binding.of_endpoint != nullptr) --binding.of_endpoint->bound;
  binding = {};
}

}  // namespace aperture::protect
