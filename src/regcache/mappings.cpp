// Reading /proc/self/maps: see mappings.hpp.
#include "regcache/mappings.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

namespace aperture::regcache {

namespace {

bool is_space(char c) noexcept {
  return c == ' ';
}

// 7f00-7f10 rw-p 00000000 00:00 0    [heap]
bool parse(std::string_view line, MappingSeen& seen) noexcept {
  const char* at = line.data();
  const char* const end = line.data() + line.size();
  auto number = std::from_chars(at, end, seen.range.begin, 16);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != '-') return false;
  number = std::from_chars(number.ptr + 1, end, seen.range.end, 16);
  if (number.ec != std::errc() || end - number.ptr < 5) return false;
  seen.is_private = number.ptr[4] == 'p';
  at = number.ptr + 5;
  for (int skipped = 0; skipped < 2; ++skipped) {  // offset and device
    at = std::find_if_not(at, end, is_space);
    at = std::find_if(at, end, is_space);
  }
  at = std::find_if_not(at, end, is_space);
  return std::from_chars(at, end, seen.inode).ec == std::errc();
}

}  // namespace

Mappings::Mappings() noexcept : fd_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}

bool Mappings::fill() noexcept {
  assert(at_ <= filled_ && filled_ <= sizeof text_);
  std::memmove(text_, text_ + at_, filled_ - at_);
  filled_ -= std::exchange(at_, 0);
  if (!fd_ || filled_ == sizeof text_) return false;
  ssize_t n = 0;
  do {
    n = ::read(fd_.get(), text_ + filled_, sizeof text_ - filled_);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return false;
  filled_ += static_cast<size_t>(n);
  return true;
}

bool Mappings::next(MappingSeen& seen) noexcept {
  assert(at_ <= filled_);
  for (;;) {
    const char* const begin = text_ + at_;
    const char* const end = text_ + filled_;
    if (const char* const newline = std::find(begin, end, '\n'); newline != end) {
      at_ = static_cast<size_t>(newline + 1 - text_);
      return parse({begin, static_cast<size_t>(newline - begin)}, seen);
    }
    if (!fill()) return false;
  }
}

Range mapped_alone_around(const Range& range) noexcept {
  Mappings mappings;
  Range whole;
  uint64_t at = range.begin;
  for (MappingSeen seen; mappings.next(seen);) {
    if (seen.range.end <= at) continue;
    if (seen.range.begin > at || !seen.is_alone()) return {};
    if (at == range.begin) whole.begin = seen.range.begin;
    at = whole.end = seen.range.end;
    if (at >= range.end) return whole;
  }
  return {};
}

}  // namespace aperture::regcache
