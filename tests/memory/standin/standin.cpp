// A STAND-IN: the memory behind the vendors' calls, see standin.hpp.
#include "memory/standin/standin.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace standin {

namespace {

std::atomic<size_t> fails_at{0};  // the number of a call; 0: none

size_t whole_pages(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (size + page - 1) / page * page;
}

// `size` bytes of one file, with `access` at `at` and in full at an address of their own, which is
// returned. Null: there are none.
std::byte* map_twice(std::byte* at, size_t size, int access) {
  const int file = ::memfd_create("standin", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* behind = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(size)) == 0)
    behind = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (behind != MAP_FAILED &&
      ::mmap(at, size, access, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    ::munmap(behind, size);
    behind = MAP_FAILED;
  }
  ::close(file);
  return behind == MAP_FAILED ? nullptr : static_cast<std::byte*>(behind);
}

}  // namespace

// A place without access: one that was freed, or a new one.
std::byte* Memory::place_for(size_t mapped) {
  for (auto each = freed_.begin(); each != freed_.end(); ++each) {
    if (each->second != mapped) continue;
    auto* at = const_cast<std::byte*>(each->first);
    freed_.erase(each);
    return at;
  }
  void* at = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

void* Memory::allocate(Place place, size_t size, int device, const void* owner) {
  if (size == 0) return nullptr;
  const std::lock_guard guard(lock_);
  const size_t mapped = whole_pages(size);
  std::byte* at = place_for(mapped);
  if (at == nullptr) return nullptr;
  const int access = place == Place::device ? PROT_NONE : PROT_READ | PROT_WRITE;
  std::byte* behind = map_twice(at, mapped, access);
  if (behind == nullptr) {
    freed_[at] = mapped;
    return nullptr;
  }
  live_[at] = Allocation{place, device, owner, at, size, ++last_id_, behind};
  ++counted().allocations;
  return at;
}

bool Memory::free(const void* at, std::initializer_list<Place> places) {
  const std::lock_guard guard(lock_);
  const auto found = live_.find(static_cast<const std::byte*>(at));
  if (found == live_.end()) return false;
  const Allocation gone = found->second;
  if (std::find(places.begin(), places.end(), gone.place) == places.end()) return false;
  const size_t mapped = whole_pages(gone.size);
  ::munmap(gone.behind, mapped);
  static_cast<void>(
      ::mmap(gone.at, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
  live_.erase(found);
  freed_[gone.at] = mapped;
  --counted().allocations;
  return true;
}

std::optional<Allocation> Memory::find(const void* at) const {
  const std::lock_guard guard(lock_);
  const auto* byte = static_cast<const std::byte*>(at);
  auto above = live_.upper_bound(byte);
  if (above == live_.begin()) return std::nullopt;
  const Allocation& below = (--above)->second;
  if (byte >= below.at + below.size) return std::nullopt;
  return below;
}

// Where those bytes can be reached; null: they are not inside one allocation, or freed.
std::byte* Memory::reach(const void* at, size_t n) const {
  const auto* byte = static_cast<const std::byte*>(at);
  if (const std::optional<Allocation> in = find(at)) {
    const auto offset = static_cast<size_t>(byte - in->at);
    return n <= in->size - offset ? in->behind + offset : nullptr;
  }
  const std::lock_guard guard(lock_);
  const auto next = live_.upper_bound(byte);
  if (next != live_.end() && next->first < byte + n) return nullptr;
  for (const auto& [freed, mapped] : freed_) {
    if (byte < freed + mapped && freed < byte + n) return nullptr;
  }
  return const_cast<std::byte*>(byte);
}

bool Memory::copy(void* to, const void* from, size_t n) {
  std::byte* const into = reach(to, n);
  const std::byte* const out_of = reach(from, n);
  if (into == nullptr || out_of == nullptr) return false;
  std::memcpy(into, out_of, n);
  ++counted().copies;
  counted().bytes += n;
  return true;
}

Memory& memory() {
  static Memory& all = *new Memory();
  return all;
}

Counters& counted() {
  static Counters& all = *new Counters();
  return all;
}

bool fails() {
  const size_t number = ++counted().calls;
  return number == fails_at.load();
}

}  // namespace standin

STANDIN_EXPORT void standin_count(standin_counts* to) {
  const standin::Counters& now = standin::counted();
  *to = {now.copies,   now.bytes,   now.allocations, now.queues,
         now.contexts, now.watches, now.marked,      now.calls};
}

STANDIN_EXPORT void standin_fail(size_t nth) {
  standin::fails_at = nth == 0 ? 0 : standin::counted().calls + nth;
}
