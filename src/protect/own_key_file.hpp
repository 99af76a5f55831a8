// The key file of this process, as its owner has it: made, sealed, and given memory when needed.
//
// key_file.hpp has the layout. Peers of the same user map the file read-only; the seal by which
// they cannot write it also forbids the kernel to take pages out of it. So memory is given back by
// going on in another file, at the same addresses; peers do not follow, and there must be none.
//
// Entries have memory by steps of kStepEntries. Threads: made by one; size and layout are constant
// from then on. What changes what has memory belongs to whoever holds the lock of the entries
// (key_entries.hpp). Invariants: what has memory is a run from the front, of entries and of buckets
// each, never beyond what the file was made for; of the entries' run, steps may have been left out.
// Whoever writes elsewhere may be killed by SIGBUS. Who reads there finds zeros: an entry that is
// FREE, in no life that ever was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/errc.hpp"
#include "base/fd.hpp"
#include "protect/key_file.hpp"

namespace aperture::protect {

class OwnKeyFile {
 public:
  static constexpr uint32_t kMostRegions = 1u << 24;
  static constexpr uint32_t kStepEntries = 1024;

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

  // The first `count` of them can be touched, but for steps that were left out. Errors: no_space
  // (the file is for fewer), no_memory.
  Status have_entries(uint32_t count) noexcept;
  bool have_buckets(uint32_t count) noexcept;
  // Of a step that was left out. Errors: no_memory.
  Status have_step(uint32_t step) noexcept;
  // In the run of entries, those included that were left out.
  uint32_t steps() const noexcept { return (entries_backed_ + kStepEntries - 1) / kStepEntries; }

  // A file of this size with nothing in it. Errors: as make().
  Result<PublishedFile> make_another() const noexcept;
  // Goes on in the other file: with the header, with the steps of entries that are kept, and with
  // so many buckets, which are all empty. What becomes of the file before is the caller's, who also
  // knows that no peer has it mapped. Errors: no_memory, not_supported (the kernel makes no second
  // mapping of it); nothing has changed then.
  Status move_to(PublishedFile& other, const std::vector<bool>& kept, uint32_t buckets) noexcept;

 private:
  struct Place {
    size_t from;  // bytes into the file
    size_t len;   // bytes
  };
  Place place_of(uint32_t step) const noexcept;
  Status give_memory(size_t from, size_t len) noexcept;

  UniqueFd fd_;
  Mapping mapping_;
  KeyFile file_;                 // the mapping, seen as header, buckets and entries
  uint32_t entries_backed_ = 0;  // of the run, those included that were left out
  uint32_t buckets_backed_ = kBucketsAtStart;
};

}  // namespace aperture::protect
