// Asking the kernel about pages: see oracle.hpp.
#include "regcache/oracle.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cassert>
#include <cinttypes>
#include <cstdio>
#include <new>

#include "base/fd.hpp"
#include "regcache/mappings.hpp"

namespace aperture::regcache {

namespace {

// proc_pid_pagemap(5): bit 63 says that there is a page, the lowest 55 are the number of its frame.
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kFrame = (uint64_t{1} << 55) - 1;

void see_mappings(Oracle::View& view) noexcept {
  Mappings mappings;
  for (MappingSeen seen; mappings.next(seen) && seen.range.begin < view.range.end;) {
    for (size_t i = 0; i < view.pages.size(); ++i) {
      const uint64_t at = view.range.begin + i * page_size();
      if (at < seen.range.begin || at >= seen.range.end) continue;
      view.pages[i].is_mapped = true;
      view.pages[i].is_private = seen.is_private;
      view.pages[i].inode = seen.inode;
    }
  }
}

void see_frames(Oracle::View& view) noexcept {
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap) return;
  for (size_t i = 0; i < view.pages.size(); ++i) {
    uint64_t word = 0;
    const auto at = static_cast<off_t>((view.range.begin / page_size() + i) * sizeof word);
    if (::pread(pagemap.get(), &word, sizeof word, at) != sizeof word) return;
    if ((word & kPresent) != 0) view.pages[i].frame = word & kFrame;
  }
}

const char* kind_of(const Oracle::View::Page& page) noexcept {
  if (!page.is_mapped) return "nothing";
  if (page.inode != 0) return page.is_private ? "a private file mapping" : "shared memory";
  return page.is_private ? "private memory" : "shared memory";
}

}  // namespace

std::unique_ptr<Oracle::View> Oracle::look(const Range& range, bool are_held) noexcept {
  assert(!range.is_empty());
  try {
    auto view = std::make_unique<View>();
    view->range = range;
    view->pages.resize(range.size() / page_size());
    see_mappings(*view);
    if (are_held) see_frames(*view);
    return view;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

namespace {

// Which calls do that; what the monitor is told of is not among them by now.
const char* calls_that_change(const Oracle::View::Page& was,
                              const Oracle::View::Page& is) noexcept {
  if (was.is_mapped && !is.is_mapped) return "munmap or mremap";
  if (was.is_mapped != is.is_mapped || was.is_private != is.is_private || was.inode != is.inode) {
    return "munmap and mmap, mmap with MAP_FIXED, or shmat with SHM_REMAP";
  }
  return "madvise with MADV_DONTNEED or guard pages, UFFDIO_MOVE, mremap, munmap and mmap, or "
         "_Fork "
         "or clone";
}

}  // namespace

std::string Oracle::why_stale(const View& then, const View& now) {
  assert(then.range.begin == now.range.begin && then.pages.size() == now.pages.size());
  for (size_t i = 0; i < then.pages.size(); ++i) {
    const View::Page& was = then.pages[i];
    const View::Page& is = now.pages[i];
    char text[320];
    const char* const calls = calls_that_change(was, is);
    const uint64_t at = then.range.begin + i * page_size();
    if (was.is_mapped != is.is_mapped || was.is_private != is.is_private || was.inode != is.inode) {
      std::snprintf(text, sizeof text, "at 0x%" PRIx64 " there is %s where there was %s, by %s", at,
                    kind_of(is), kind_of(was), calls);
      return text;
    }
    if (was.frame != 0 && is.frame != was.frame) {
      std::snprintf(text, sizeof text,
                    "at 0x%" PRIx64 " there is another page than there was, by %s", at, calls);
      return text;
    }
  }
  return {};
}

}  // namespace aperture::regcache
