// A function that is kept to be called later, with what it needs, in a place of fixed size.
//
// Unlike a std::function it never allocates, so that handing one over cannot fail, and it may own
// what cannot be copied. Moves; a moved-from one is empty. One owner at a time.
#pragma once

#include <cassert>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace aperture {

template <typename... Args>
class Callback {
 public:
  static constexpr size_t kRoomBytes = 96;

  Callback() noexcept = default;
  template <typename Fn>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): it takes no Callback
  requires(!std::is_same_v<std::remove_cvref_t<Fn>, Callback>) Callback(Fn&& fn)
  noexcept : ops_(&kOps<std::decay_t<Fn>>) {
    using F = std::decay_t<Fn>;
    static_assert(sizeof(F) <= kRoomBytes, "keep what is large elsewhere, and its owner here");
    static_assert(alignof(F) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_constructible_v<F, Fn> &&
                  std::is_nothrow_move_constructible_v<F>);
    new (room_) F(std::forward<Fn>(fn));
  }
  Callback(Callback&& other) noexcept { take(other); }
  Callback& operator=(Callback&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~Callback() { reset(); }

  explicit operator bool() const noexcept { return ops_ != nullptr; }
  void operator()(Args... args) {
    assert(ops_ != nullptr);
    ops_->call(room_, args...);
  }

 private:
  struct Ops {
    void (*call)(void* fn, Args... args);
    void (*move)(void* from, void* to) noexcept;  // and ends the one that was moved from
    void (*end)(void* fn) noexcept;
  };
  template <typename F>
  static constexpr Ops kOps{
      [](void* fn, Args... args) { (*static_cast<F*>(fn))(args...); },
      [](void* from, void* to) noexcept {
        new (to) F(std::move(*static_cast<F*>(from)));
        static_cast<F*>(from)->~F();
      },
      [](void* fn) noexcept { static_cast<F*>(fn)->~F(); },
  };

  void take(Callback& other) noexcept {
    assert(ops_ == nullptr);
    ops_ = std::exchange(other.ops_, nullptr);
    if (ops_ != nullptr) ops_->move(other.room_, room_);
  }
  void reset() noexcept {
    if (ops_ != nullptr) std::exchange(ops_, nullptr)->end(room_);
  }

  const Ops* ops_ = nullptr;
  alignas(std::max_align_t) std::byte room_[kRoomBytes];
};

}  // namespace aperture
