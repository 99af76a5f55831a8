// Making the key file, and giving it memory: see own_key_file.hpp.
#include "protect/own_key_file.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "base/invariant.hpp"
#include "base/random.hpp"

namespace aperture::protect {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBackingStep = 64 * 1024;  // pages are allocated this many bytes at a time

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

  Result<PublishedFile> file = make_published_memfd("aperture-keys", size);
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
    const size_t from = file_.header->entries_offset + size_t{entries_backed_} * sizeof(KeyEntry);
    const size_t len = std::min(kBackingStep, size_bytes() - from);
    if (Status s = give_memory(from, len); !s) return s;
    const auto more = static_cast<uint32_t>(len / sizeof(KeyEntry));
    assert(more != 0);
    entries_backed_ = std::min(file_.capacity, entries_backed_ + more);
  }
  APERTURE_DEBUG_ASSERT(count <= entries_backed_ && entries_backed_ <= file_.capacity);
  return {};
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

}  // namespace aperture::protect
