// What a peer may write into its key file, and change while we read: no content crashes, hangs or
// misleads the accessor. The input is poured over the header, a few buckets and the entries.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "protect/peer_key_view.hpp"

namespace {

using namespace aperture;
using namespace aperture::protect;

constexpr uint32_t kCapacity = 64;
constexpr DomainId kPd = 7;
constexpr size_t kEntries = kKeyHeaderBytes + kBucketsAtStart * 4;
constexpr size_t kBytes = kEntries + kCapacity * sizeof(KeyEntry);

std::byte* file_bytes = nullptr;
const uint8_t* late = nullptr;  // what the peer writes in the middle of our protocol
size_t late_len = 0;
bool change_while_copying = false;

[[noreturn]] void fail() {
  std::abort();
}

// Stands in for process_vm_writev: the remote side may be anywhere, but never longer than what we
// ask.
ssize_t pretend(pid_t, const iovec* local, unsigned long count, const iovec* remote, unsigned long,
                unsigned long) {
  size_t total = 0;
  for (unsigned long i = 0; i < count; ++i) total += local[i].iov_len;
  if (remote->iov_len > kChunkBytes || remote->iov_len != total) fail();
  if (change_while_copying) {
    for (size_t i = 0; i < late_len; ++i) {
      file_bytes[kEntries + i % (kCapacity * sizeof(KeyEntry))] = std::byte{late[i]};
    }
  }
  return static_cast<ssize_t>(total / 2 +
                              total % 2);  // short, so that the chunk is asked for again
}

struct File {
  File() {
    Result<UniqueFd> made = make_sealed_memfd("aperture-fuzz", kBytes);
    if (!made) fail();
    fd = *std::move(made);
    Result<Mapping> mapped = Mapping::map_shared(fd.get(), kBytes, Mapping::Access::read_write);
    if (!mapped) fail();
    mapping = *std::move(mapped);
    file_bytes = mapping.data();
  }
  void reset() {
    std::memset(mapping.data(), 0, kBytes);
    auto* h = reinterpret_cast<KeyHeader*>(mapping.data());
    h->magic = kKeyFileMagic;
    h->layout = kKeyFileLayout;
    h->capacity = kCapacity;
    h->max_buckets = kBucketsAtStart;
    h->entries_offset = kEntries;
    h->size_bytes = kBytes;
    h->bucket_count.store(kBucketsAtStart, std::memory_order_relaxed);
    h->entries_used.store(kCapacity, std::memory_order_relaxed);
  }
  UniqueFd fd;
  Mapping mapping;
};

class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *at_++;
  }
  uint64_t word() {
    uint64_t v = 0;
    for (int i = 0; i < 8; ++i) v = v << 8 | byte();
    return v;
  }
  void pour(std::byte* to, size_t n) {
    n = std::min(n, left_);
    if (n != 0) std::memcpy(to, at_, n);
    at_ += n;
    left_ -= n;
  }
  const uint8_t* rest() const { return at_; }
  size_t left() const { return left_; }

 private:
  const uint8_t* at_;
  size_t left_;
};

void attack(File& file, Input& in) {
  const uint8_t what = in.byte();
  file.reset();
  auto* header = reinterpret_cast<KeyHeader*>(file_bytes);
  if ((what & 1) != 0) in.pour(file_bytes, 64);  // the constant part: map() validates it
  Result<PeerKeyView> view =
      PeerKeyView::map(UniqueFd(::fcntl(file.fd.get(), F_DUPFD_CLOEXEC, 0)), kBytes);
  if (!view) return;
  if ((what & 1) != 0) {  // believed once; now it may say anything
    header->capacity = ~0u;
    header->entries_offset = ~uint64_t{0};
  }
  view->set_copy_calls(&pretend, &pretend);

  const uint64_t key = in.word();
  const uint64_t addr = in.word();
  const size_t len = in.byte() * size_t{257};
  if ((what & 2) != 0) header->version.store(in.byte(), std::memory_order_relaxed);
  if ((what & 4) != 0) {
    const uint64_t counts = in.word();
    header->bucket_count.store(static_cast<uint32_t>(counts), std::memory_order_relaxed);
    header->entries_used.store(static_cast<uint32_t>(counts >> 32), std::memory_order_relaxed);
  }
  // a chain that leads somewhere: the first value of the input's bytes
  auto* buckets = reinterpret_cast<uint32_t*>(file_bytes + kKeyHeaderBytes);
  buckets[bucket_of(hash_key(kPd, key), kBucketsAtStart)] =
      (what & 8) != 0 ? static_cast<uint32_t>(in.word()) : 1u;
  if ((what & 16) != 0) {  // an entry that fits the key, so that the later steps are reached
    auto* e = reinterpret_cast<KeyEntry*>(file_bytes + kEntries);
    in.pour(file_bytes + kEntries, sizeof *e);
    e->key.store(key, std::memory_order_relaxed);
    e->pd.store(kPd, std::memory_order_relaxed);
    if ((what & 32) != 0) {
      e->state_gen.store(state_gen_of(in.byte(), EntryState::valid), std::memory_order_relaxed);
      e->rights.store(kFlagEnabled | kRightsMask, std::memory_order_relaxed);
    }
  } else {
    in.pour(file_bytes + kEntries, kCapacity * sizeof(KeyEntry));
  }
  change_while_copying = (what & 64) != 0;
  late = in.rest();
  late_len = in.left();

  static std::byte local[256 * 257];
  const iovec iov[] = {{local, len / 2}, {local, len - len / 2}};
  static const auto slot = std::make_unique<AccessorSlot>();
  LookupHint hint{addr, key - addr % 3, (what & 128) != 0};
  const DirectAsk ask{kPd, key, addr, iov, 2};
  for (LookupHint* h : {static_cast<LookupHint*>(nullptr), &hint}) {
    const DirectResult r = view->write(::getpid(), *slot, ask, h);
    if (slot->pin.load(std::memory_order_relaxed) != 0) fail();
    if (r.bytes > len) fail();
    if (r.outcome == DirectResult::Outcome::done && r.bytes != len) fail();
    if ((r.outcome == DirectResult::Outcome::denied) != (r.denial != Denial::none)) fail();
    (void)view->would_refuse(kPd, key, addr, len, Rights::remote_read);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static File file;
  Input in(data, size);
  attack(file, in);
  return 0;
}
