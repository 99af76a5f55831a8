// Reading /proc/self/maps: see mappings.hpp.
#include "regcache/mappings.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"

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

namespace {

// PROCMAP_QUERY of Linux 6.11, which older headers have not got.
struct MapQuery {
  uint64_t size;
  uint64_t flags;  // 0: the mapping that has the address; or kOrNext
  uint64_t address;
  uint64_t begin, end, mapping_flags, page_size, offset, inode;  // the answer
  uint32_t device[2];
  uint32_t name_size, build_id_size;
  uint64_t name_address, build_id_address;
};
constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);
constexpr uint64_t kShared = 8;
constexpr uint64_t kOrNext = 16;  // or, where there is none, the next one

// /proc/self/maps, to be asked for single mappings: less than a microsecond each, however many
// there are. A program that closes all descriptors (closefrom) closes it too, and may have a file
// of its own there by now, so it is asked only while it is the file that was opened.
class MapsFile {
 public:
  enum class Answer : uint8_t { mapping, none, unknown };

  MapsFile() noexcept
      : fd_(move_high(UniqueFd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)))),
        is_there_(::fstat(fd_.get(), &opened_) == 0) {}

  Answer mapping_at(uint64_t addr, uint64_t flags, MappingSeen& seen) const noexcept {
    struct stat now {};
    if (!is_there_ || ::fstat(fd_.get(), &now) != 0 || now.st_ino != opened_.st_ino ||
        now.st_dev != opened_.st_dev) {
      return Answer::unknown;
    }
    MapQuery query{};
    query.size = sizeof query;
    query.flags = flags;
    query.address = addr;
    if (::ioctl(fd_.get(), kMapQuery, &query) != 0) {
      return errno == ENOENT ? Answer::none : Answer::unknown;
    }
    seen = {{query.begin, query.end}, (query.mapping_flags & kShared) == 0, query.inode};
    return Answer::mapping;
  }

 private:
  const ParentOnlyFd fd_;
  struct stat opened_ {};
  const bool is_there_;
};

const MapsFile* maps_file() noexcept {
  static constinit PerProcess<MapsFile> the_one;
  if (const MapsFile* const there = the_one.existing(); there != nullptr) return there;
  const MapsFile* made = nullptr;
  return no_throw([&] { made = &the_one.get(); }) ? made : nullptr;
}

// The mappings of a range, one after the other: those of the list, or as they are asked for.
class Alone {
 public:
  explicit Alone(const Range& range) noexcept : range_(range), at_(range.begin) {}
  // False: nothing more is to be looked at.
  bool take(const MappingSeen& seen) noexcept {
    if (seen.range.end <= at_) return true;
    if (seen.range.begin > at_ || !seen.is_alone()) return false;
    if (at_ == range_.begin) whole_.begin = seen.range.begin;
    at_ = whole_.end = seen.range.end;
    return at_ < range_.end;
  }
  uint64_t at() const noexcept { return at_; }
  Range whole() const noexcept { return at_ >= range_.end ? whole_ : Range{}; }

 private:
  const Range range_;
  Range whole_;
  uint64_t at_;
};

}  // namespace

Range mapped_alone_around(const Range& range) noexcept {
  assert(!range.is_empty());
  MappingSeen seen;
  Alone asked(range);
  for (const MapsFile* const maps = maps_file(); maps != nullptr;) {
    const auto answer = maps->mapping_at(asked.at(), 0, seen);
    if (answer == MapsFile::Answer::unknown) break;
    if (answer == MapsFile::Answer::none || !asked.take(seen)) return asked.whole();
  }
  Alone listed(range);
  for (Mappings mappings; mappings.next(seen) && listed.take(seen);) {
  }
  return listed.whole();
}

Range first_mapped_alone_in(const Range& range) noexcept {
  assert(!range.is_empty());
  MappingSeen seen;
  uint64_t at = range.begin;
  for (const MapsFile* const maps = maps_file(); maps != nullptr && at < range.end;) {
    const auto answer = maps->mapping_at(at, kOrNext, seen);
    if (answer == MapsFile::Answer::unknown) break;
    if (answer == MapsFile::Answer::none || seen.range.begin >= range.end) return {};
    if (seen.is_alone()) return seen.range;
    at = seen.range.end;
  }
  if (at >= range.end) return {};
  for (Mappings mappings; mappings.next(seen) && seen.range.begin < range.end;) {
    if (seen.range.end > at && seen.is_alone()) return seen.range;
  }
  return {};
}

}  // namespace aperture::regcache
