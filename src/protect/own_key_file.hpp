// The key file of this process, as its owner has it: made, sealed, and given memory when needed.
//
// key_file.hpp has the layout. Peers of the same user map the file read-only; the seal by which
// they cannot write it also forbids the kernel to take pages out of it, so that what has memory
// keeps it for those to come.
//
// Threads: made by one; descriptor, size and layout are constant from then on. have_entries() and
// have_buckets() belong to whoever holds the lock of the entries (key_entries.hpp). Invariants:
// what has memory is a run from the front, of entries and of buckets each; it only grows, and never
// beyond what the file was made for. Whoever touches more may be killed by SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/errc.hpp"
#include "base/fd.hpp"
#include "protect/key_file.hpp"

namespace aperture::protect {

class OwnKeyFile {
 public:
  static constexpr uint32_t kMostRegions = 1u << 24;

  // A file for that many regions at once, with its header, and memory for no more than that and the
  // first buckets. Errors: no_fds, no_memory, invalid (0, or above kMostRegions).
  static Result<PublishedFile> make(uint32_t max_regions);
  // Of what make() has made.
  explicit OwnKeyFile(PublishedFile made) noexcept;
  OwnKeyFile(const OwnKeyFile&) = delete;
  OwnKeyFile& operator=(const OwnKeyFile&) = delete;

  // Descriptor and size, to be handed to peers that may map it.
  int fd() const noexcept { return fd_.get(); }
  size_t size_bytes() const noexcept { return mapping_.size(); }
  const KeyFile& layout() const noexcept { return file_; }

  // The first `count` of them can be touched. Errors: no_space (the file is for fewer), no_memory.
  Status have_entries(uint32_t count) noexcept;
  bool have_buckets(uint32_t count) noexcept;

 private:
  Status give_memory(size_t from, size_t len) noexcept;

  UniqueFd fd_;
  Mapping mapping_;
  KeyFile file_;  // the mapping, seen as header, buckets and entries
  uint32_t entries_backed_ = 0;
  uint32_t buckets_backed_ = kBucketsAtStart;
};

}  // namespace aperture::protect
