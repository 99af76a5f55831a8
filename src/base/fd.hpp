// Owners of the two kinds of kernel resources that Aperture holds: file descriptors and mappings.
//
// Both move and neither copies. Descriptors are CLOEXEC and moved above the low numbers that
// programs like to reuse (see move_high). Not thread-safe; one owner at a time.
#pragma once

#include <cstddef>
#include <utility>

#include "base/errc.hpp"

namespace aperture {

class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;  // closes; keeps errno

 private:
  int fd_ = -1;
};

// The same open file under a number >= 512 where the limit allows it, CLOEXEC. Shells, daemons and
// tests that close or reuse "their" low descriptors then do not meet ours.
UniqueFd move_high(UniqueFd fd) noexcept;

// A sealed-size anonymous file: memfd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL. It never has a
// name in any file system. Errors: no_fds, no_memory, io.
Result<UniqueFd> make_sealed_memfd(const char* debug_name, size_t size_bytes) noexcept;

// True if the descriptor's file is at least size_bytes long and sealed against shrinking: only then
// may it be mapped when it came from a peer (a truncated file would be SIGBUS).
bool is_sealed_and_at_least(int fd, size_t size_bytes) noexcept;

// Has the pages of [offset, offset + len) allocated, so that touching them cannot raise SIGBUS.
// Errors: no_space or no_memory when memory is full.
Status allocate_pages(int fd, size_t offset, size_t len) noexcept;

class Mapping {
 public:
  enum class Access { read_only, read_write };

  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      base_ = std::exchange(other.base_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  // Maps size bytes of fd from offset 0, shared. The mapping is MADV_DONTFORK: a child of fork()
  // does not have it. Errors: no_memory, invalid.
  static Result<Mapping> map_shared(int fd, size_t size_bytes, Access access) noexcept;
  // Anonymous private memory, zeroed, MADV_DONTFORK as well.
  static Result<Mapping> map_anonymous(size_t size_bytes) noexcept;

  std::byte* data() const noexcept { return static_cast<std::byte*>(base_); }
  size_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return base_ != nullptr; }
  void reset() noexcept;

 private:
  void* base_ = nullptr;
  size_t size_ = 0;
};

// A memory file that only this process can ever write, through this one mapping: whoever is handed
// the descriptor can map it, read-only, and no more (F_SEAL_FUTURE_WRITE). Sparse: allocate_pages()
// before touching. Errors: as make_sealed_memfd, and not_supported before Linux 5.1.
struct PublishedFile {
  UniqueFd fd;
  Mapping mapping;
};
Result<PublishedFile> make_published_memfd(const char* debug_name, size_t size_bytes) noexcept;

}  // namespace aperture
