// Shared addresses in a file: see address_file.hpp.
#include "nic/address_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/clock.hpp"
#include "base/runtime_folder.hpp"

namespace aperture::nic {

namespace {

constexpr uint64_t kMagic = 0x5641'5641'5245'5041;  // "APERAVAV", as the bytes lie
constexpr uint32_t kVersion = 2;
constexpr uint64_t kLockNs = 2'000'000'000;
constexpr int kTries = 100;  // of a file that its last user is removing
constexpr size_t kLongestName = 200;

// Bytes of the file that are locked, and hold nothing: who has it open, and who changes it.
constexpr off_t kUsersByte = 24;
constexpr off_t kChangesByte = 25;

// A lock of the open file, which ends with it: F_WRLCK, F_RDLCK, F_UNLCK.
bool set_lock(int fd, off_t byte, short type) noexcept {
  struct flock wanted {};
  wanted.l_type = type;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = byte;
  wanted.l_len = 1;
  return ::fcntl(fd, F_OFD_SETLK, &wanted) == 0;
}

// Until it says Errc::ok or another error than Errc::again. No queue of waiters, the kernel's or a
// mutex's: whoever stops with the lock in its hands must not hold others for ever.
template <typename Try>
Status try_until(uint64_t deadline_ns, Try&& once) noexcept {
  for (;;) {
    const Status s = once();
    if (s.error() != Errc::again) return s;
    if (now_ns() >= deadline_ns) return Errc::timed_out;
    const timespec pause{0, 200'000};
    ::nanosleep(&pause, nullptr);
  }
}

Status lock_changes(int fd, uint64_t deadline_ns) noexcept {
  return try_until(deadline_ns, [fd]() -> Status {
    if (set_lock(fd, kChangesByte, F_WRLCK)) return {};
    return errno == EAGAIN || errno == EACCES ? Errc::again : Errc::io;
  });
}

// Whether anybody but us has it open.
bool has_users(int fd) noexcept {
  struct flock found {};
  found.l_type = F_WRLCK;
  found.l_whence = SEEK_SET;
  found.l_start = kUsersByte;
  found.l_len = 1;
  return ::fcntl(fd, F_OFD_GETLK, &found) == 0 && found.l_type != F_UNLCK;
}

bool read_all(int fd, void* to, size_t size, off_t at) noexcept {
  return ::pread(fd, to, size, at) == static_cast<ssize_t>(size);
}
bool write_all(int fd, const void* from, size_t size, off_t at) noexcept {
  return ::pwrite(fd, from, size, at) == static_cast<ssize_t>(size);
}

// One file name for each name: letters, digits and "-" stand for themselves, all else as "_" and
// two hexadecimal digits.
std::string file_name(const std::string& name) {
  std::string out = "av-";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain || c == '-') {
      out += c;
    } else {
      constexpr const char* kDigits = "0123456789abcdef";
      out += '_';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

}  // namespace

struct AddressFile::Head {
  uint64_t magic;
  uint32_t version;
  uint32_t count;
  uint64_t generation;
  uint64_t locked;  // always 0
  uint64_t rewritten;
  std::array<uint8_t, 24> zeros;

  bool operator==(const Head&) const = default;
};

struct AddressFile::Entry {
  std::array<uint8_t, 16> ip;
  uint16_t port;
  uint16_t used;
  std::array<uint8_t, 12> zeros;

  // Somebody else wrote it.
  bool makes_sense() const noexcept {
    const Address a = address();
    return used == 1 && port != 0 && !a.is_any_ip();
  }
  Address address() const noexcept {
    Address a;
    a.ip = ip;
    a.port = port;
    return a;
  }
};

// --- opening and closing -------------------------------------------------------------------------

Result<std::unique_ptr<AddressFile>> AddressFile::open(const std::string& name, Access access,
                                                       std::string& why) {
  static_assert(sizeof(Head) == 64 && sizeof(Entry) == 32);
  const std::string file = file_name(name);
  if (name.empty() || file.size() > kLongestName) {
    why = "its name is empty, or too long";
    return Errc::invalid;
  }
  std::string path = runtime_folder(why);
  if (path.empty()) return Errc::access_denied;
  path += '/';
  path += file;
  for (int i = 0; i < kTries; ++i) {
    auto opened = try_open(path, access, why);
    if (opened || opened.error() != Errc::again) return opened;
  }
  return Errc::timed_out;
}

// Errors: also again (its last user removed it meanwhile).
Result<std::unique_ptr<AddressFile>> AddressFile::try_open(const std::string& path, Access access,
                                                           std::string& why) {
  // a reader writes nothing, but needs the lock of those who do
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (access == Access::read_only ? 0 : O_CREAT);
  UniqueFd fd = move_high(UniqueFd(::open(path.c_str(), flags, 0600)));
  if (!fd) {
    const int error = errno;
    why = path + " cannot be opened: " + std::strerror(error);
    if (error == ENOENT) return Errc::no_entry;
    return error == ELOOP ? Errc::access_denied : errc_from_errno(error);
  }
  struct stat st;
  if (::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid() ||
      (st.st_mode & 077) != 0) {
    why = path + " is no file of this user's alone; remove it";
    return Errc::access_denied;
  }
  auto file =
      std::unique_ptr<AddressFile>(new AddressFile(path, access, ParentOnlyFd(std::move(fd))));
  if (const Status s = file->enter(why); !s) {
    file->fd_.reset();  // there is nothing to leave
    return s.error();
  }
  return file;
}

Status AddressFile::enter(std::string& why) noexcept {
  const int fd = fd_.get();
  const auto entering = lock();
  if (!entering) {
    why = "another process does not let go of it";
    return entering.error();
  }
  struct stat st;
  if (::fstat(fd, &st) != 0) return Errc::io;
  if (st.st_nlink == 0) return Errc::again;
  const bool in_use = has_users(fd);
  Head head{};
  if (is_read_only() && !in_use) {
    why = "no process has an address vector of that name open";
    return Errc::no_entry;
  }
  if (!in_use) {
    head.magic = kMagic;
    head.version = kVersion;
    head.generation = 1;
    if (::ftruncate(fd, 0) != 0 || !write_all(fd, &head, sizeof head, 0)) return Errc::io;
  }
  if (const Status s = read_head(head); !s) {
    why = path_ + " holds something else";
    return s;
  }
  return set_lock(fd, kUsersByte, F_RDLCK) ? Status() : Status(Errc::io);
}

AddressFile::~AddressFile() {
  if (!fd_.is_here()) return;
  const int fd = fd_.get();
  // without the lock the next who opens it finds that nobody uses it
  const bool locked = lock_changes(fd, now_ns() + kLockNs).ok();
  set_lock(fd, kUsersByte, F_UNLCK);
  struct stat st;
  const bool named = ::fstat(fd, &st) == 0 && st.st_nlink != 0;
  if (locked && named && !has_users(fd)) ::unlink(path_.c_str());
}

AddressFile::Lock::~Lock() {
  if (file_ == nullptr) return;
  if (file_->fd_) set_lock(file_->fd_.get(), kChangesByte, F_UNLCK);
  file_->changing_.unlock();
}

Result<AddressFile::Lock> AddressFile::lock() noexcept {
  const uint64_t deadline = now_ns() + kLockNs;
  const Status alone = try_until(
      deadline, [this]() -> Status { return changing_.try_lock() ? Errc::ok : Errc::again; });
  if (!alone) return alone.error();
  if (const Status s = lock_changes(fd_.get(), deadline); !s) {
    changing_.unlock();
    return s.error();
  }
  return Lock(this);
}

// --- what is in it -------------------------------------------------------------------------------

Status AddressFile::read_head(Head& head) const noexcept {
  if (!read_all(fd_.get(), &head, sizeof head, 0)) return Errc::protocol;
  if (head.magic != kMagic || head.version != kVersion || head.count > kMostEntries)
    return Errc::protocol;
  return {};
}

Status AddressFile::refresh(Changes& changes) noexcept {
  Head head{}, after{};
  if (const Status s = read_head(head); !s) return s;
  if (head.generation == seen_.generation) return {};
  const bool only_new = head.rewritten <= seen_.generation && head.count >= seen_.count;
  if (const Status s = tell(changes, only_new ? seen_.count : 0, head); !s) return s;
  // a head that was being written may have been half of one, and half of another
  if (read_head(after) && after == head) seen_ = {head.generation, head.count};
  return {};
}

// Entries from `first` on, as they are and as they were known.
Status AddressFile::tell(Changes& changes, uint32_t first, const Head& head) const noexcept {
  std::array<Entry, kAtOnce> some;
  const uint32_t count = std::max(head.count, seen_.count);
  for (; first < count; first += kAtOnce) {
    const uint32_t n = std::min<uint32_t>(count - first, kAtOnce);
    const auto at = static_cast<off_t>(sizeof(Head) + first * sizeof(Entry));
    std::memset(static_cast<void*>(&some), 0, sizeof some);
    if (::pread(fd_.get(), &some, n * sizeof(Entry), at) < 0) return Errc::io;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t index = first + i;
      const bool used = index < head.count && some[i].makes_sense();
      const Address address = some[i].address();
      const Address* const known = changes.known(index);
      if (known != nullptr && used && *known == address) continue;
      if (known != nullptr) changes.on_removed(index);
      if (!used) continue;
      if (const Status s = changes.on_inserted(index, address); !s) return s;
    }
  }
  return {};
}

// --- changing it ---------------------------------------------------------------------------------

// As it was at the last refresh(), with the same lock.
Status AddressFile::head_to_change(Head& head) const noexcept {
  if (const Status s = read_head(head); !s) return s;
  const bool same = head.generation == seen_.generation && head.count == seen_.count;
  return same ? Status() : Status(Errc::protocol);
}

// Last: what was written before counts from here on.
Status AddressFile::commit(Head& head, bool rewrites) noexcept {
  ++head.generation;
  if (rewrites) head.rewritten = head.generation;
  if (!write_all(fd_.get(), &head, sizeof head, 0)) return Errc::io;
  seen_ = {head.generation, head.count};
  return {};
}

Status AddressFile::put(const Lock&, uint64_t first, std::span<const Address> addresses) noexcept {
  assert(!addresses.empty() && addresses.size() <= kAtOnce);
  const uint64_t end = first + addresses.size();
  if (end > kMostEntries) return Errc::no_space;
  Head head{};
  if (const Status s = head_to_change(head); !s) return s;
  std::array<Entry, kAtOnce> entries{};
  for (size_t i = 0; i < addresses.size(); ++i) {
    entries[i].ip = addresses[i].ip;
    entries[i].port = addresses[i].port;
    entries[i].used = 1;
  }
  const auto at = static_cast<off_t>(sizeof(Head) + first * sizeof(Entry));
  if (!write_all(fd_.get(), &entries, addresses.size() * sizeof(Entry), at)) return Errc::io;
  const bool rewrites = first < head.count;
  head.count = std::max(head.count, static_cast<uint32_t>(end));
  return commit(head, rewrites);
}

Status AddressFile::erase(const Lock&, std::span<const uint64_t> indices) noexcept {
  Head head{};
  if (const Status s = head_to_change(head); !s) return s;
  const Entry none{};
  bool all = true;
  for (const uint64_t index : indices) {
    assert(index < head.count);
    const auto at = static_cast<off_t>(sizeof(Head) + index * sizeof(Entry));
    all = write_all(fd_.get(), &none, sizeof none, at) && all;
  }
  const Status s = commit(head, true);
  if (s && all) return s;
  seen_ = {};  // whichever are gone, the next refresh() tells
  return s ? Status(Errc::io) : s;
}

}  // namespace aperture::nic
