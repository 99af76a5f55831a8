// Putting hooks into words: see memhooks.hpp.
#include "regcache/memhooks.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <memory>
#include <new>
#include <utility>

#include "base/fork.hpp"
#include "regcache/hook_listeners.hpp"
#include "regcache/hooked_calls.hpp"
#include "regcache/hooked_names.hpp"
#include "regcache/linkage.hpp"

namespace aperture::regcache {

namespace {

// A word that has a hook, and which.
struct Hooked {
  std::atomic<uintptr_t>* at = nullptr;
  uintptr_t hook = 0;
};

// The loader's counts of what it has loaded and unloaded.
struct Loads {
  unsigned long long adds = 0, subs = 0;
  bool operator==(const Loads&) const noexcept = default;
};

// All of it guarded by the loader's lock: read and written in its callbacks alone.
struct State {
  bool are_put = false;
  Hooks which = Hooks::all;  // of those that are put
  bool untold = false;       // hooks have been put where calls may have been made without
  Loads seen;                // when everything had hooks
  Hooked* words = nullptr;
  size_t count = 0;
  size_t room = 0;
  size_t look_next = 0;
  uint64_t passes = 0;            // over all objects
  const char* why_not = nullptr;  // hooks can be put nowhere any more
  uint64_t process = 0;           // process_epoch() of whose all this is
};
constinit State g_state;

// One after the other, by the loader's lock: said once more for who does not see that lock
// (ThreadSanitizer).
constinit std::atomic<uint32_t> g_turn{0};

template <typename Fn>
int call(dl_phdr_info* info, size_t, void* fn) {
  // SYNC POINT: loader-turn: what the turn before has written is there
  const uint32_t turn = g_turn.load(std::memory_order_acquire);
  const bool go_on = (*static_cast<Fn*>(fn))(*info);
  g_turn.store(turn + 1, std::memory_order_release);  // SYNC POINT: loader-turn
  return go_on ? 0 : 1;
}
// Calls fn(info) for each object, until it returns false.
template <typename Fn>
void for_each_object(Fn&& fn) {
  ::dl_iterate_phdr(&call<std::remove_reference_t<Fn>>, &fn);
}
// Calls fn(loads) once, with the loader's lock.
template <typename Fn>
void with_loader(Fn&& fn) {
  for_each_object([&](const dl_phdr_info& info) {
    fn(Loads{info.dlpi_adds, info.dlpi_subs});
    return false;
  });
}

// All that are wanted are where they were put when those of `loads` were all that was loaded.
bool are_put_for(Hooks which, const Loads& loads) noexcept {
  return g_state.are_put && (g_state.which == which || g_state.which == Hooks::all) &&
         loads == g_state.seen;
}

bool has_its_hook(const Hooked& word) noexcept {
  // relaxed: it is looked at and not called
  return word.at->load(std::memory_order_relaxed) == word.hook;
}

// One look at all objects, putting hooks where there are none.
class Pass {
 public:
  Pass(const HookedNames& names, Hooks which) noexcept : names_(names), which_(which) {}

  // With room for so many words, or none: as much as there is.
  void run(Hooked*& words, size_t room) noexcept {
    size_t objects = 0;
    for_each_object([&](const dl_phdr_info& info) {
      if (objects++ == 0) begin({info.dlpi_adds, info.dlpi_subs}, words, room);
      see(LoadedObject(info));
      return true;
    });
    assert(g_state.count <= g_state.room);
  }

  size_t found() const noexcept { return found_; }
  bool are_all_listed() const noexcept { return found_ == listed_; }
  bool is_busy() const noexcept { return is_busy_; }
  // What was called by objects without hooks nobody knows.
  void publish() const noexcept {
    assert(are_all_listed() && !is_busy_);
    with_loader([&](const Loads&) {
      if (number_ != g_state.passes) return;  // a later one knows better
      if (std::exchange(g_state.untold, false) || loads_.subs != g_state.seen.subs) {
        HookListener::tell_all();
      }
      g_state.seen = loads_;
      g_state.are_put = true;
      g_state.which = which_;
    });
  }

 private:
  void begin(const Loads& loads, Hooked*& words, size_t room) noexcept {
    // a child's: a thread of the parent's may have been at it
    if (g_state.process != process_epoch()) {
      g_state = State();
      g_state.process = process_epoch();
    }
    loads_ = loads;
    number_ = ++g_state.passes;
    if (room > g_state.room) {
      std::swap(g_state.words, words);
      g_state.room = room;
    }
    g_state.count = 0;
    g_state.look_next = 0;
    g_state.are_put = false;
  }

  void see(const LoadedObject& object) noexcept {
    object.for_each_word(kHookedNames, [&](const LinkageWord& word) { see(object, word); });
    // It keeps the allocator's functions for its own use, and frees by them the thread-local
    // variables of objects that were loaded later.
    if (which_ != Hooks::all || !names_.hooks_allocator || !object.is_the_loader()) return;
    for (const size_t name : {kNameOfFree, kNameOfRealloc}) {
      object.for_each_sealed_word([&](std::atomic<uintptr_t>& at) {
        const uintptr_t value = at.load(std::memory_order_acquire);
        const uintptr_t behind = function_behind(value);
        if ((behind != 0 ? behind : value) != names_.defined[name]) return;
        see(object, {&at, name, LinkageWord::Kind::data, 0});
      });
    }
  }

  void see(const LoadedObject& object, const LinkageWord& word) noexcept {
    const HookedCall call = kCallsOfNames[word.name];
    if (which_ != Hooks::all && !kernel_is_silent_of(call)) return;
    const uintptr_t defined = names_.defined[word.name];
    const bool is_of_allocator = call == HookedCall::free || call == HookedCall::realloc;
    if (defined == 0 || (is_of_allocator && !names_.hooks_allocator)) return;
    // variables with the addresses of other calls are what patchers of code keep
    const bool is_data = word.kind == LinkageWord::Kind::data;
    if (is_data && !is_of_allocator) return;
    uintptr_t value = word.at->load(std::memory_order_acquire);
    if (function_behind(value) == 0) {
      if (is_data && value != defined) return;
      if (!object.is_relocated(word, value)) {
        // else nobody was found for that name
        is_busy_ = is_busy_ || !object.is_sealed();
        return;
      }
      // to its own code, which would find the function: not bound yet
      const bool is_bound = value == word.own || value == defined || !object.contains(value);
      value = put(object, word, is_bound ? value : defined);
      if (value == 0) return;
    }
    ++found_;
    if (g_state.count == g_state.room) return;
    g_state.words[g_state.count++] = {word.at, value};
    ++listed_;
  }

  // 0: it could not be put.
  uintptr_t put(const LoadedObject& object, const LinkageWord& word, uintptr_t next) noexcept {
    const uintptr_t hook = hook_before(kCallsOfNames[word.name], next);
    if (hook == 0) {
      g_state.why_not =
          "too many libraries hook calls for memory, and write over each other's hooks";
      return 0;
    }
    if (!object.store(*word.at, hook)) {
      g_state.why_not = "the tables of loaded objects cannot be written to";
      return 0;
    }
    g_state.untold = true;
    return hook;
  }

  const HookedNames& names_;
  const Hooks which_;
  size_t found_ = 0, listed_ = 0;
  Loads loads_;
  uint64_t number_ = 0;
  bool is_busy_ = false;
};

// `why`: as put_hooks() has it, once that can never be.
bool all_have_hooks(Hooks which, const char*& why) noexcept {
  bool all = false;
  with_loader([&](const Loads& loads) {
    if (g_state.process != process_epoch()) return;
    why = g_state.why_not;
    all = are_put_for(which, loads) &&
          std::all_of(g_state.words, g_state.words + g_state.count, has_its_hook);
  });
  return all;
}

}  // namespace

Status put_hooks(Hooks which, const char*& why) noexcept {
  const HookedNames& names = hooked_names();
  const char* why_not = which == Hooks::all ? names.why_not : names.why_not_beside_the_kernel;
  if (why_not == nullptr && all_have_hooks(which, why_not)) return {};
  for (size_t room = 0; why_not == nullptr;) {
    std::unique_ptr<Hooked[]> words(room != 0 ? new (std::nothrow) Hooked[room] : nullptr);
    if (room != 0 && words == nullptr) return Errc::no_memory;
    Pass pass(names, which);
    Hooked* list = words.release();
    pass.run(list, room);
    words.reset(list);  // what is not used any more
    if (all_have_hooks(which, why_not)) return {};
    if (why_not != nullptr) break;
    if (pass.is_busy()) return Errc::busy;
    if (pass.are_all_listed()) {
      pass.publish();
      return {};
    }
    room = pass.found() + pass.found() / 2;
  }
  why = why_not;
  return Errc::not_supported;
}

bool hooks_are_whole(Hooks which) noexcept {
  constexpr size_t kWordsPerLook = 2;  // of some hundred: who writes over hooks does so everywhere
  bool are = false;
  with_loader([&](const Loads& loads) {
    are = are_put_for(which, loads);  // so the objects of the list are still there
    for (size_t i = 0; i < std::min(kWordsPerLook, g_state.count) && are; ++i) {
      if (g_state.look_next >= g_state.count) g_state.look_next = 0;
      are = g_state.are_put = has_its_hook(g_state.words[g_state.look_next++]);
    }
  });
  return are;
}

void take_out_hooks() noexcept {
  const HookedNames& names = hooked_names();
  size_t objects = 0;
  const auto take_out = [](const LoadedObject& object, std::atomic<uintptr_t>& word) {
    const uintptr_t behind = function_behind(word.load(std::memory_order_acquire));
    if (behind != 0) object.store(word, behind);
  };
  for_each_object([&](const dl_phdr_info& info) {
    if (objects++ == 0) {
      if (HookListener::any_open()) return false;
      g_state.are_put = false;
      g_state.count = 0;
    }
    const LoadedObject object(info);
    object.for_each_word(kHookedNames,
                         [&](const LinkageWord& word) { take_out(object, *word.at); });
    if (names.hooks_allocator && object.is_the_loader()) {
      object.for_each_sealed_word([&](std::atomic<uintptr_t>& word) { take_out(object, word); });
    }
    return true;
  });
}

}  // namespace aperture::regcache
