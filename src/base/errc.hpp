// The one list of errors of the core, and the small Result that carries them.
//
// Each door has one table from Errc to its own numbers; inside, nothing but Errc is passed up. No
// state, any thread.
#pragma once

#include <cassert>
#include <cstdint>
#include <utility>
#include <variant>

namespace aperture {

enum class Errc : uint16_t {
  ok,
  again,      // no room or no progress now: call again after polling
  invalid,    // an argument that can never be right
  bad_flags,  // a flag that this call does not know
  no_memory,
  no_space,       // an address or entry table is full
  too_small,      // the caller's buffer does not hold the answer
  too_big,        // a message above the limit that was reported
  not_supported,  // EOPNOTSUPP: the object was not asked to be able to
  no_sys,         // ENOSYS: this provider does not offer it
  no_data,        // nothing matches the hints
  bad_state,      // EOPBADSTATE: right call, wrong moment
  busy,           // something still refers to the object
  no_entry,       // no such address, interface or operation
  no_message,     // a probe found nothing
  no_key,         // the requested key is in use
  key_rejected,   // the requested key is not one that can be asked for
  access_denied,  // a key, range or right refused by protect/
  bad_buffer,     // a local buffer that is not mapped, or not as the operation needs it
  truncated,      // the message was longer than the receive
  canceled,
  refused,  // nobody listens at the peer's address
  unreachable,
  timed_out,
  peer_lost,      // the peer died or went away with this operation pending
  shut_down,      // our own endpoint was closed with this operation pending
  not_connected,  // the endpoint has no connection yet
  addr_in_use,
  addr_not_avail,
  interrupted,
  no_fds,    // EMFILE
  protocol,  // the peer broke the wire protocol
  io,        // a system call failed in a way that has no better name
};

// A few words for logs: "access denied". Static storage.
const char* describe(Errc e) noexcept;

// The Errc nearest to an errno value.
Errc errc_from_errno(int err) noexcept;

// Success or an Errc, for calls that hand nothing back.
class [[nodiscard]] Status {
 public:
  constexpr Status() noexcept = default;
  constexpr Status(Errc e) noexcept : errc_(e) {}  // NOLINT: conversion is the point
  constexpr bool ok() const noexcept { return errc_ == Errc::ok; }
  constexpr explicit operator bool() const noexcept { return ok(); }
  constexpr Errc error() const noexcept { return errc_; }

 private:
  Errc errc_ = Errc::ok;
};

// A value or an Errc (std::expected needs C++23 with the compilers we target).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}                   // NOLINT
  Result(Errc e) noexcept : state_(std::in_place_index<1>, e) { assert(e != Errc::ok); }  // NOLINT

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  Errc error() const noexcept { return ok() ? Errc::ok : std::get<1>(state_); }

  // Only of one that is ok.
  T& value() & noexcept {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& noexcept {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && noexcept {
    assert(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & noexcept { return value(); }
  T&& operator*() && noexcept { return std::move(*this).value(); }
  T* operator->() noexcept { return &value(); }

 private:
  std::variant<T, Errc> state_;
};

}  // namespace aperture
