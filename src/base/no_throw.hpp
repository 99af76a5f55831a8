// The door between code that allocates and code that promises not to throw.
//
// docs/adr/0006: a noexcept function that allocates catches bad_alloc and returns no_memory, or
// says that it ends the process. This is how it catches. Nothing is undone here: what fn had
// changed when memory ran out is for its own destructors, or for the caller. Any thread.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include "base/errc.hpp"

namespace aperture {

// What fn returns, which must be a Status, a Result or nothing; or no_memory.
template <typename Fn>
auto no_throw(Fn&& fn) noexcept -> std::conditional_t<std::is_void_v<std::invoke_result_t<Fn>>,
                                                      Status, std::invoke_result_t<Fn>> {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn>>) {
      std::forward<Fn>(fn)();
      return Status();
    } else {
      return std::forward<Fn>(fn)();
    }
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

}  // namespace aperture
