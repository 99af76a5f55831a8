// What stands in the slots of ops tables for calls that are not offered, or not now: every slot is
// filled, and every refusal says why.
//
// `NotOffered<"fi_passive_ep: ...", -FI_ENOSYS>{}` converts to a function pointer of any signature
// that returns a number; it logs the sentence and returns the code. No state, any thread.
#pragma once

#include <rdma/fi_errno.h>

#include <cstddef>

#include "base/log.hpp"

namespace aperture::provider {

// A sentence as a template argument.
template <size_t N>
struct Sentence {
  char text[N];
  constexpr Sentence(const char (&t)[N]) noexcept {  // NOLINT: conversion is the point
    for (size_t i = 0; i < N; ++i) text[i] = t[i];
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

}  // namespace aperture::provider
