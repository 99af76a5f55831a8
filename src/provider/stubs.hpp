// What stands in the slots of ops tables for calls that are not offered, or not now: every slot is
// filled, and every refusal says why.
//
// `NotOffered<"fi_passive_ep: ...", -FI_ENOSYS>{}` converts to a function pointer of any signature
// that returns a number; it logs the sentence and returns the code. No state, any thread.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/log.hpp"

namespace aperture::provider {

// A sentence as a template argument.
template <size_t N>
struct Sentence {
  char text[N] = {};
  constexpr Sentence() noexcept = default;
  constexpr Sentence(const char (&t)[N]) noexcept {  // NOLINT: conversion is the point
    std::copy_n(t, N, text);
  }
};

template <Sentence Why, int Code = -FI_ENOSYS>
struct NotOffered {
  template <typename R, typename... Args>
  using Slot = R (*)(Args...);

  template <typename R, typename... Args>
  static R refuse(Args...) noexcept {
    APERTURE_WARN("%s", Why.text);
    return static_cast<R>(Code);
  }
  template <typename R, typename... Args>
  constexpr operator Slot<R, Args...>() const noexcept {  // NOLINT: conversion is the point
    return &refuse<R, Args...>;
  }
};

// A table of libfabric's, which is its size and then slots, with that refusal in each slot.
template <typename Ops, typename Refusal>
constexpr Ops refusing(Refusal refusal) noexcept {
  constexpr size_t kSlots = (sizeof(Ops) - sizeof(size_t)) / sizeof(void*);
  return [&]<size_t... kSlot>(std::index_sequence<kSlot...>) noexcept {
    return Ops{sizeof(Ops), (static_cast<void>(kSlot), refusal)...};
  }
  (std::make_index_sequence<kSlots>());
}

// Those that open and override tables by their name: no object but a domain has any (window.cpp).
template <Sentence Kind>
int refuse_extension(fid*, const char* name, uint64_t, void**, void*) noexcept {
  return refuse(-FI_ENOSYS, "fi_open_ops(%s): there is no extension \"%s\"", Kind.text,
                name != nullptr ? name : "NULL");
}
template <Sentence Kind>
int refuse_ops(fid*, const char* name, uint64_t, void*, void*) noexcept {
  return refuse(-FI_ENOSYS, "fi_set_ops(%s): \"%s\" cannot be overridden; nothing can", Kind.text,
                name != nullptr ? name : "NULL");
}

// Of an object that has no controls at all.
template <Sentence Kind>
int refuse_control(fid*, int command, void*) noexcept {
  return refuse(-FI_ENOSYS, "fi_control(%s): command %d is not offered, nor any other", Kind.text,
                command);
}

// The calls that every object has; Kind is the object's name in refusals.
template <Sentence Kind, typename Bind, typename Control>
constexpr fi_ops fid_ops(int (*close)(fid*), Bind bind, Control control) noexcept {
  return {
      .size = sizeof(fi_ops),
      .close = close,
      .bind = bind,
      .control = control,
      .ops_open = refuse_extension<Kind>,
      .tostr = NotOffered<"fi_tostr is libfabric's own">{},
      .ops_set = refuse_ops<Kind>,
  };
}

}  // namespace aperture::provider
