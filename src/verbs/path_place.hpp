// What the hooks of path_*_hooks.cpp share that take a path: carrying a call out at the path's
// place (path_tree.hpp). Any thread; see path_next.hpp for what a hook is.
#pragma once

#include <fcntl.h>

#include "verbs/path_next.hpp"
#include "verbs/path_tree.hpp"

namespace aperture::verbs {

// Calls `call` with the place of a path that may be ours.
template <typename Call>
[[gnu::noinline, gnu::cold]] auto at_its_place(int at, const char* path, Call&& call) {
  const OurPath place(at, path);
  return call(place);
}

// The folder that a path is relative to, of the arguments before it.
constexpr int start_of_path() noexcept {
  return AT_FDCWD;
}
constexpr int start_of_path(int at) noexcept {
  return at;
}

}  // namespace aperture::verbs

#define APERTURE_UNPACK(...) __VA_ARGS__
#define APERTURE_FIRST(first, ...) first
// A function whose arguments before the path, and behind it, are in parentheses, and which is
// carried out at the path's place; `first` answers before. It is relative to the argument before
// it, if there is one.
#define APERTURE_PATH_HOOK(Result, name, before, after, arguments_before, arguments_after, first) \
  APERTURE_HOOK Result name(APERTURE_UNPACK before const char* path APERTURE_UNPACK after) {      \
    if (!may_be_ours(path)) [[likely]]                                                            \
      return next_##name.get()(                                                                   \
          APERTURE_UNPACK arguments_before path APERTURE_UNPACK arguments_after);                 \
    return at_its_place(start_of_path(APERTURE_FIRST arguments_before), path,                     \
                        [&](const OurPath& place) -> Result {                                     \
                          first;                                                                  \
                          return next_##name.get()(APERTURE_UNPACK arguments_before place.get()   \
                                                       APERTURE_UNPACK arguments_after);          \
                        });                                                                       \
  }
