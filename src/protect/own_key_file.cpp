// Making the key file, and giving it memory: see own_key_file.hpp.
#include "protect/own_key_file.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/invariant.hpp"
#include "base/log.hpp"
#include "base/random.hpp"

namespace aperture::protect {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBackingStep = 64 * 1024;  // pages are allocated this many bytes at a time
static_assert(kBackingStep == OwnKeyFile::kStepEntries * sizeof(KeyEntry));
constexpr char kName[] = "aperture-keys";

size_t round_up(size_t n, size_t to) noexcept {
  return (n + to - 1) / to * to;
}

}  // namespace

Result<PublishedFile> OwnKeyFile::make(uint32_t max_regions) {
  if (max_regions == 0 || max_regions > kMostRegions) return Errc::invalid;
  // two buckets for each region: most chains then hold one entry
  const uint32_t max_buckets = std::max(kBucketsAtStart, std::bit_ceil(max_regions) * 2);
  const size_t entries_offset = round_up(kKeyHeaderBytes + size_t{max_buckets} * 4, kPage);
  const size_t size = round_up(entries_offset + size_t{max_regions} * sizeof(KeyEntry), kPage);

  Result<PublishedFile> file = make_published_memfd(kName, size);
  if (!file) return file.error();
  if (Status s = allocate_pages(file->fd.get(), 0, kKeyHeaderBytes + kBucketsAtStart * 4); !s) {
    return s.error();
  }
  auto* header = reinterpret_cast<KeyHeader*>(file->mapping.data());
  header->magic = kKeyFileMagic;
  header->layout = kKeyFileLayout;
  header->capacity = max_regions;
  header->max_buckets = max_buckets;
  header->entries_offset = entries_offset;
  header->size_bytes = size;
  header->self_address = reinterpret_cast<uint64_t>(header);
  header->nonce = random_u64();
  header->bucket_count.store(kBucketsAtStart, std::memory_order_release);
  assert(header->max_buckets >= kBucketsAtStart && std::has_single_bit(header->max_buckets));
  assert(entries_offset + size_t{max_regions} * sizeof(KeyEntry) <= size);
  return file;
}

OwnKeyFile::OwnKeyFile(PublishedFile made) noexcept
    : fd_(std::move(made.fd)), mapping_(std::move(made.mapping)) {
  auto* base = mapping_.data();
  file_.header = reinterpret_cast<KeyHeader*>(base);
  file_.buckets = reinterpret_cast<std::atomic<uint32_t>*>(base + kKeyHeaderBytes);
  file_.entries = reinterpret_cast<KeyEntry*>(base + file_.header->entries_offset);
  file_.capacity = file_.header->capacity;
  file_.max_buckets = file_.header->max_buckets;
  assert(file_.header->magic == kKeyFileMagic && file_.header->size_bytes == mapping_.size());
  assert(file_.capacity != 0 && file_.max_buckets >= kBucketsAtStart);
}

Status OwnKeyFile::give_memory(size_t from, size_t len) noexcept {
  assert(len != 0 && from + len <= size_bytes());
  if (Status s = allocate_pages(fd_.get(), from, len); !s) return s;
#ifdef MADV_POPULATE_WRITE
  // one call instead of a fault for each page; where the kernel lacks it, faults will do
  (void)::madvise(mapping_.data() + from, len, MADV_POPULATE_WRITE);
#endif
  return {};
}

Status OwnKeyFile::have_entries(uint32_t count) noexcept {
  if (count > file_.capacity) return Errc::no_space;
  while (count > entries_backed_) {
    assert(entries_backed_ % kStepEntries == 0);
    if (Status s = have_step(entries_backed_ / kStepEntries); !s) return s;
    entries_backed_ = std::min(file_.capacity, entries_backed_ + kStepEntries);
  }
  APERTURE_DEBUG_ASSERT(count <= entries_backed_ && entries_backed_ <= file_.capacity);
  return {};
}

Status OwnKeyFile::have_step(uint32_t step) noexcept {
  const auto [from, len] = place_of(step);
  return give_memory(from, len);
}

bool OwnKeyFile::have_buckets(uint32_t count) noexcept {
  APERTURE_DEBUG_ASSERT(count <= file_.max_buckets);
  while (count > buckets_backed_) {
    const size_t from = kKeyHeaderBytes + size_t{buckets_backed_} * 4;
    const size_t end = kKeyHeaderBytes + size_t{file_.max_buckets} * 4;
    const size_t len = std::min(kBackingStep, end - from);
    if (!give_memory(from, len)) return false;
    buckets_backed_ += static_cast<uint32_t>(len / 4);
  }
  APERTURE_DEBUG_ASSERT(count <= buckets_backed_ && buckets_backed_ <= file_.max_buckets);
  return true;
}

OwnKeyFile::Place OwnKeyFile::place_of(uint32_t step) const noexcept {
  const size_t from = file_.header->entries_offset + step * kBackingStep;
  assert(from < size_bytes());
  return {from, std::min(kBackingStep, size_bytes() - from)};
}

// ---- giving memory back -------------------------------------------------------------------------

Result<PublishedFile> OwnKeyFile::make_another() const noexcept {
  return make_published_memfd(kName, size_bytes());
}

Status OwnKeyFile::move_to(PublishedFile& other, const std::vector<bool>& kept,
                           uint32_t buckets) noexcept {
  assert(other.mapping.size() == size_bytes() && kept.size() == steps());
  const auto pages_of_buckets = static_cast<uint32_t>(round_up(buckets, kPage / 4));
  assert(buckets >= kBucketsAtStart && pages_of_buckets <= file_.max_buckets);
  const auto copy = [&](size_t from, size_t len, size_t have) {
    const Status s = allocate_pages(other.fd.get(), from, have);
    // what changes in the file changes under the lock of the entries, but for the mark of the
    // image's end, which is for peers
    if (s) std::memcpy(other.mapping.data() + from, mapping_.data() + from, len);
    return s;
  };
  const size_t front = kKeyHeaderBytes + size_t{pages_of_buckets} * 4;
  if (Status s = copy(0, kKeyHeaderBytes, front); !s) return s;
  uint32_t end = 0;  // behind the last one that is kept
  for (uint32_t step = 0; step < kept.size(); ++step) {
    if (!kept[step]) continue;
    const auto [from, len] = place_of(step);
    if (Status s = copy(from, len, len); !s) return s;
    end = step + 1;
  }
  // A second mapping of it (a length of 0 says so: the seal allows no other way), and that moves to
  // our addresses: whoever reads finds the one file or the other. Where the kernel knows no such
  // length nothing has changed.
  void* const twin = ::mremap(other.mapping.data(), 0, size_bytes(), MREMAP_MAYMOVE);
  if (twin == MAP_FAILED) return Errc::not_supported;
  if (::mremap(twin, size_bytes(), size_bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, mapping_.data()) ==
      MAP_FAILED) {
    // where the table was there may be nothing now; there was room for one more a moment ago
    APERTURE_WARN("the key table cannot be mapped anew; ending the process");
    std::abort();
  }
  std::swap(fd_, other.fd);
  entries_backed_ = std::min(file_.capacity, end * kStepEntries);
  buckets_backed_ = pages_of_buckets;
  assert(file_.header->magic == kKeyFileMagic && file_.header->size_bytes == size_bytes());
  return {};
}

}  // namespace aperture::protect
