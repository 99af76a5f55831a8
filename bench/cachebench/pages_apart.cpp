// Mapping pages, and writing to them.
#include "cachebench/pages_apart.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

constexpr uintptr_t kFirstArea = uintptr_t{0x2000} << 32;
constexpr uintptr_t kAreaBytes = uintptr_t{1} << 28;

void map(std::byte* where, size_t len) {
  void* const got = ::mmap(where, len, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (got != where) throw Failure("no memory could be mapped there: %s", std::strerror(errno));
}

}  // namespace

PagesApart::PagesApart(unsigned area, size_t count, Layout layout)
    : base_(reinterpret_cast<std::byte*>(kFirstArea + area * kAreaBytes)),  // NOLINT
      count_(count),
      layout_(layout) {
  if (::sysconf(_SC_PAGESIZE) != kPage) throw Failure("pages are not of 4 KiB here");
  if (layout == Layout::one_mapping) map(base_, 2 * count * kPage);
  for (size_t i = 0; i < count; i++) {
    if (layout == Layout::own_mappings) map(at(i), kPage);
    *at(i) = std::byte{1};
  }
}

PagesApart::~PagesApart() {
  if (layout_ == Layout::one_mapping) {
    ::munmap(base_, 2 * count_ * kPage);
    return;
  }
  while (unmapped_ < count_) unmap_next();
}

}  // namespace aperture::bench
