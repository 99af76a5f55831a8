// A STAND-IN: the memory behind the vendors' calls, see standin.hpp.
#include "memory/standin/standin.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace standin {

namespace {

std::atomic<size_t> fails_at{0};  // the number of a call; 0: none

size_t whole_pages(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (size + page - 1) / page * page;
}

int make_file(size_t size) {
  const int file = ::memfd_create("standin", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(size)) == 0) return file;
  ::close(file);
  return -1;
}

// `size` bytes of the file, with `access` at `at` and in full at an address of their own, which is
// returned. Null: there are none.
std::byte* map_twice(std::byte* at, size_t size, int access, int file) {
  void* const behind = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (behind == MAP_FAILED) return nullptr;
  if (::mmap(at, size, access, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED)
    return static_cast<std::byte*>(behind);
  ::munmap(behind, size);
  return nullptr;
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
  // what is as long as a block of a driver's begins where one may
  constexpr size_t kBlock = size_t{2} << 20;
  const size_t more = mapped >= kBlock ? kBlock : 0;
  void* at = ::mmap(nullptr, mapped + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const all = static_cast<std::byte*>(at);
  const size_t before =
      more == 0 ? 0 : (kBlock - reinterpret_cast<uintptr_t>(all) % kBlock) % kBlock;
  if (before != 0) ::munmap(all, before);
  if (more != before) ::munmap(all + before + mapped, more - before);
  return all + before;
}

// Under the lock. Takes the file, whatever comes of it.
void* Memory::add(Place place, size_t size, int device, const void* owner, int file) {
  const size_t mapped = whole_pages(size);
  std::byte* at = file >= 0 ? place_for(mapped) : nullptr;
  const bool is_hidden = place == Place::device || place == Place::shared;
  const int access = is_hidden ? PROT_NONE : PROT_READ | PROT_WRITE;
  std::byte* behind = at != nullptr ? map_twice(at, mapped, access, file) : nullptr;
  if (behind != nullptr) {
    live_[at] = Allocation{place, device, owner, at, size, ++last_id_, behind, file};
    return at;
  }
  if (at != nullptr) freed_[at] = mapped;
  if (file >= 0) ::close(file);
  return nullptr;
}

void* Memory::allocate(Place place, size_t size, int device, const void* owner) {
  if (size == 0) return nullptr;
  const std::lock_guard guard(lock_);
  void* const at = add(place, size, device, owner, make_file(whole_pages(size)));
  if (at != nullptr) ++counted().allocations;
  return at;
}

bool Memory::share(const void* at, Ticket* ticket) const {
  const std::optional<Allocation> found = find(at);
  if (!found || found->at != at || found->place != Place::device) return false;
  *ticket = {::getpid(), found->file, found->size};
  return true;
}

void* Memory::open(const Ticket& ticket, int device, const void* owner) {
  if (ticket.process == ::getpid() || ticket.size == 0) return nullptr;
  const std::string name =
      "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.file);
  const int file = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const at = open(file, ticket.size, device, owner);
  if (at == nullptr) ::close(file);
  return at;
}

void* Memory::open(int file, uint64_t size, int device, const void* owner) {
  struct stat is {};
  if (size == 0 || ::fstat(file, &is) != 0 || !S_ISREG(is.st_mode) ||
      is.st_size < static_cast<off_t>(size))
    return nullptr;
  const int own = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  const std::lock_guard guard(lock_);
  void* const at = add(Place::shared, size, device, owner, own);
  if (at == nullptr) return nullptr;
  ::close(file);
  ++counted().shared;
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
  ::close(gone.file);
  live_.erase(found);
  freed_[gone.at] = mapped;
  --(gone.place == Place::shared ? counted().shared : counted().allocations);
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

namespace {

// 0: no model
std::atomic<uint64_t>& bytes_per_us() {
  static const char* const text = std::getenv("STANDIN_MB_PER_S");
  static std::atomic<uint64_t> rate{text != nullptr ? std::strtoull(text, nullptr, 0) : 0};
  return rate;
}

uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

uint64_t CopyEngine::begin(size_t n) {
  constexpr uint64_t kEachNs = 5000;  // what a copy takes however short it is
  if (bytes_per_us() == 0) return 1;
  const std::lock_guard guard(lock_);
  free_at_ = std::max(free_at_, now_ns()) + n * 1000 / bytes_per_us();
  return free_at_ + kEachNs;
}

bool CopyEngine::is_over(uint64_t when, bool& looked) {
  const bool before = std::exchange(looked, true);
  return bytes_per_us() == 0 ? before : now_ns() >= when;
}

void CopyEngine::wait(uint64_t when) {
  while (bytes_per_us() != 0 && now_ns() < when) {
  }
}

CopyEngine& copy_engine() {
  static CopyEngine& one = *new CopyEngine();
  return one;
}

bool fails() {
  const size_t number = ++counted().calls;
  return number == fails_at.load();
}

}  // namespace standin

STANDIN_EXPORT void standin_count(standin_counts* to) {
  const standin::Counters& now = standin::counted();
  *to = {now.copies, now.bytes, now.allocations, now.queues, now.contexts, now.watches,
         now.marked, now.calls, now.shared,      now.loose,  now.at_once};
}

STANDIN_EXPORT void standin_rate(size_t mb_per_s) {
  standin::bytes_per_us() = mb_per_s;
}

STANDIN_EXPORT void standin_fail(size_t nth) {
  standin::fails_at = nth == 0 ? 0 : standin::counted().calls + nth;
}
