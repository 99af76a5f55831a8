// One-sided copies under the pin protocol: see peer_key_view.hpp and docs/revocation.md.
#include "protect/peer_key_view.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

#include "base/barrier.hpp"
#include "base/fork.hpp"
#include "protect/image_watch.hpp"
#include "protect/thread_probe.hpp"

namespace aperture::protect {

namespace {

// A zeroed iovec (the mark of another close, or of our own) is worth asking again, not for ever.
constexpr int kEmptyCopies = 16;

// This thread, as the owner will look for it. Read once in each thread, and again in a forked
// child.
struct Self {
  uint64_t epoch = 0;
  uint32_t tid = 0;
  uint64_t start_time = 0;
};

const Self& self() noexcept {
  static thread_local Self me;
  if (const uint64_t epoch = process_epoch(); me.epoch != epoch) {
    me.tid = static_cast<uint32_t>(::syscall(SYS_gettid));
    me.start_time = thread_start_time(::getpid(), static_cast<pid_t>(me.tid));
    me.epoch = me.start_time != 0 ? epoch : 0;  // not to be read just now: asked again
  }
  return me;
}

// The slot was another thread's, or nobody's. False: see note_thread().
[[gnu::noinline]] bool take_over(AccessorSlot& slot, const Self& me) noexcept {
  if (me.start_time == 0) return false;
  // SYNC POINT: slot-thread: who finds us here while it looks for the thread before us also finds
  // what that one has copied
  slot.tid.store(me.tid, std::memory_order_release);
  slot.start_time.store(me.start_time, std::memory_order_release);
  return true;
}

// Whose pin the next one in that slot is. False: nobody could tell whether this thread lives, and a
// pin of a number that is used again would hold up the owner for ever. always_inline: it is asked
// before each access.
[[gnu::always_inline]] inline bool note_thread(AccessorSlot& slot) noexcept {
  const Self& me = self();
  // relaxed: our process alone writes them, and the slot was handed to us
  if (slot.tid.load(std::memory_order_relaxed) == me.tid &&
      slot.start_time.load(std::memory_order_relaxed) == me.start_time) [[likely]] {
    return true;
  }
  return take_over(slot, me);
}

// The local side of what is still to be copied.
class LocalCursor {
 public:
  LocalCursor(const iovec* from, size_t count) noexcept : count_(count) {
    std::copy_n(from, count, iov_);
  }
  const iovec* data() const noexcept { return iov_ + at_; }
  size_t count() const noexcept { return count_ - at_; }
  void advance(size_t n) noexcept {
    while (at_ < count_ && n >= iov_[at_].iov_len) n -= iov_[at_++].iov_len;
    if (n == 0) return;
    assert(at_ < count_ && n < iov_[at_].iov_len);
    iov_[at_].iov_base = static_cast<char*>(iov_[at_].iov_base) + n;
    iov_[at_].iov_len -= n;
  }

 private:
  iovec iov_[PeerKeyView::kMaxLocalSegments];
  size_t at_ = 0;
  size_t count_;
};

Denial denial_of(Search answer) noexcept {
  switch (answer) {
    case Search::closed: return Denial::closed;
    case Search::revoking: return Denial::revoking;
    case Search::valid: return Denial::none;
    case Search::unknown:
    case Search::unstable: break;
  }
  return Denial::unknown_key;
}

DirectResult::Outcome outcome_of(int err) noexcept {
  switch (err) {
    case EFAULT: return DirectResult::Outcome::faulted;
    case ESRCH: return DirectResult::Outcome::peer_gone;
    case EPERM:
    case ENOSYS: return DirectResult::Outcome::not_permitted;
    default: return DirectResult::Outcome::through_ring;  // ENOMEM: the owner may fare better
  }
}

}  // namespace

Result<PeerKeyView> PeerKeyView::map(UniqueFd fd, size_t size_bytes) {
  if (size_bytes < kKeyHeaderBytes || !is_sealed_and_at_least(fd.get(), size_bytes)) {
    return Errc::protocol;
  }
  Result<Mapping> mapping = Mapping::map_shared(fd.get(), size_bytes, Mapping::Access::read_only);
  if (!mapping) return mapping.error();
  auto* base = mapping->data();
  auto* header = reinterpret_cast<KeyHeader*>(base);
  // each field is read once, here, and believed only as far as it is checked
  const uint32_t capacity = header->capacity;
  const uint32_t max_buckets = header->max_buckets;
  const uint64_t entries_offset = header->entries_offset;
  const uint64_t shares_address = header->shares_address;  // an address there: any will do
  if (header->magic != kKeyFileMagic || header->layout != kKeyFileLayout) return Errc::protocol;
  if (capacity == 0 || max_buckets == 0 || !std::has_single_bit(max_buckets)) {
    return Errc::protocol;
  }
  if (entries_offset % sizeof(KeyEntry) != 0 || entries_offset > size_bytes ||
      entries_offset < kKeyHeaderBytes + uint64_t{max_buckets} * 4 ||
      (size_bytes - entries_offset) / sizeof(KeyEntry) < capacity) {
    return Errc::protocol;
  }
  KeyFile file;
  file.header = header;
  file.buckets = reinterpret_cast<std::atomic<uint32_t>*>(base + kKeyHeaderBytes);
  file.entries = reinterpret_cast<KeyEntry*>(base + entries_offset);
  file.capacity = capacity;
  file.max_buckets = max_buckets;
  file.shares_address = shares_address;
  return PeerKeyView(std::move(*mapping), file);
}

PeerKeyView::PeerKeyView(Mapping mapping, const KeyFile& file) noexcept
    : mapping_(std::move(mapping)),
      file_(file),
      write_call_(&::process_vm_writev),
      read_call_(&::process_vm_readv) {}

// What the owner has in its memory where it made the file.
ssize_t PeerKeyView::read_nonce(pid_t owner, uint64_t& found) const noexcept {
  const iovec local{&found, sizeof found};
  const uint64_t there = file_.header->self_address + offsetof(KeyHeader, nonce);
  const iovec remote{reinterpret_cast<void*>(there), sizeof found};
  return read_call_(owner, &local, 1, &remote, 1, 0);
}

// Anything may come of it: neither the address nor what lies there is believed.
bool PeerKeyView::read_there(pid_t owner, uint64_t from, void* to, size_t n) const noexcept {
  const iovec local{to, n};
  const iovec remote{reinterpret_cast<void*>(from), n};
  return read_call_(owner, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(n);
}

Status PeerKeyView::probe(pid_t owner) const noexcept {
  uint64_t found = 0;
  // the same number in its memory and in its file: it is that process, and we are let in
  if (read_nonce(owner, found) != sizeof found) return Errc::not_supported;
  return found == file_.header->nonce ? Status{} : Status{Errc::not_supported};
}

bool PeerKeyView::has_become_another(pid_t owner) const noexcept {
  uint64_t found = 0;
  const ssize_t n = read_nonce(owner, found);
  return n == sizeof found ? found != file_.header->nonce : n >= 0 || errno == EFAULT;
}

Denial PeerKeyView::would_refuse(DomainId pd, uint64_t key, uint64_t addr, uint64_t len,
                                 Rights need) const noexcept {
  EntryCopy entry;
  const Search answer = search(file_, pd, key, entry);
  if (answer == Search::unstable) return Denial::none;  // nobody knows before the owner is asked
  if (answer != Search::valid) return denial_of(answer);
  if ((entry.rights & kFlagAskOwner) != 0) return Denial::none;
  uint64_t offset = 0;
  return validate_entry(entry, addr, len, need, offset);
}

bool PeerKeyView::asks_owner(DomainId pd, uint64_t key) const noexcept {
  EntryCopy entry;
  const Search answer = search(file_, pd, key, entry);
  return answer == Search::unstable ||
         (answer == Search::valid && (entry.rights & kFlagAskOwner) != 0);
}

bool PeerKeyView::is_in_device(DomainId pd, uint64_t key) const noexcept {
  EntryCopy entry;
  return search(file_, pd, key, entry) == Search::valid &&
         (entry.rights & kFlagsBeside) == kFlagDevice;
}

// Behind the pin and the fence: may a copy begin at all?
[[gnu::always_inline]] inline bool PeerKeyView::is_open(const AccessorSlot& slot,
                                                        const std::atomic<uint64_t>* gate,
                                                        uint64_t gate_number) const noexcept {
  // SYNC POINT: slot-closed, dormant (pairs with the fences of detach() and make_dormant())
  uint32_t gone = slot.closed.load(std::memory_order_acquire);
  // SYNC POINT: image-ended (the kernel's mark, before the addresses are another program's)
  gone |= file_.header->image.load(std::memory_order_acquire) & kImageEnded;
  // SYNC POINT: lane-gate (pairs with the fence in move_gate())
  return gone == 0 && (gate == nullptr || gate->load(std::memory_order_acquire) == gate_number);
}

// Steps A2 to A6. always_inline: what is asked stays in registers.
template <typename Copy>
[[gnu::always_inline]] inline DirectResult PeerKeyView::copy_pinned(AccessorSlot& slot,
                                                                    const Piece& ask,
                                                                    const EntryCopy& entry,
                                                                    uint64_t offset,
                                                                    Copy&& copy) const {
  using Outcome = DirectResult::Outcome;
  const uint64_t generation = generation_of(entry.state_gen);
  // relaxed: the iovec is ours while nothing is pinned, and the release below orders it
  slot.riov_base.store(entry.base + offset, std::memory_order_relaxed);
  slot.riov_len.store(ask.len, std::memory_order_relaxed);
  // SYNC POINT: revocation (FENCE_A; pairs with FENCE_R in Revocation::begin())
  slot.pin.store(generation, std::memory_order_release);
  full_fence();
  // before the second look: a slot that is open again only now belongs to an older look at the
  // entry
  const bool open = is_open(slot, ask.gate, ask.gate_number);
  const uint64_t now = file_.entries[entry.index].state_gen.load(std::memory_order_acquire);
  DirectResult result{Outcome::done, Denial::none, 0, generation};
  if (!open) {
    result.outcome = Outcome::through_ring;
  } else if (now != entry.state_gen) {
    const bool revoking = state_of(now) == EntryState::revoking && generation_of(now) == generation;
    result = {Outcome::denied, revoking ? Denial::revoking : Denial::closed};
  } else {
    std::forward<Copy>(copy)(result);
  }
  // SYNC POINT: revocation (the owner that sees us unpinned may reuse the memory)
  slot.pin.store(0, std::memory_order_release);
  return result;
}

// One system call at most: steps A1 to A6 of docs/revocation.md. `done` with bytes == 0: look
// again. always_inline: what is asked stays in registers.
[[gnu::always_inline]] inline DirectResult PeerKeyView::piece(pid_t owner, AccessorSlot& slot,
                                                              const Piece& ask, CopyCall call,
                                                              LookupHint* hint) const {
  using Outcome = DirectResult::Outcome;
  EntryCopy entry;
  if (hint == nullptr || !copy_near(file_, *hint, ask.pd, ask.key, entry)) {
    const Search answer = search(file_, ask.pd, ask.key, entry);
    if (answer == Search::unstable) return {Outcome::through_ring, Denial::none};
    if (answer != Search::valid) return {Outcome::denied, denial_of(answer)};
    if (hint != nullptr) hint->learn(ask.key, entry.index);
  }
  const uint64_t generation = generation_of(entry.state_gen);
  if (ask.generation != 0 && ask.generation != generation) {
    return {Outcome::denied, Denial::closed};
  }
  if ((entry.rights & kFlagAskOwner) != 0) return {Outcome::through_ring, Denial::none};
  uint64_t offset = 0;
  const Denial denial = validate_entry(entry, ask.addr, ask.len, ask.need, offset);
  if (denial != Denial::none) return {Outcome::denied, denial};
  if (ask.len == 0) return {Outcome::done, Denial::none, 0, generation};

  if ((entry.rights & kFlagDevice) != 0) [[unlikely]]
    return piece_in_device(owner, slot, ask, entry, offset);
  return copy_pinned(slot, ask, entry, offset, [&](DirectResult& result) {
    const ssize_t n = call(owner, ask.local, ask.local_count, slot.remote_iovec(), 1, 0);
    if (n >= 0) {
      result.bytes = std::min(static_cast<uint64_t>(n), ask.len);
    } else {
      result.outcome = outcome_of(errno);
    }
  });
}

// What the driver has mapped of that life of the region; null: nothing, so far as we know now.
const memory::Registration* PeerKeyView::find_device(pid_t owner, const EntryCopy& entry,
                                                     PeerDevices& devices) const {
  const RegionRef life = entry.ref();
  const auto is_over = [this](const RegionRef& ref) {
    const uint64_t now = file_.entries[ref.index].state_gen.load(std::memory_order_acquire);
    return now != state_gen_of(ref.generation, EntryState::valid);
  };
  if (const PeerDevices::Met* met = devices.find(life)) return met->memory.get();
  devices.drop(is_over);
  uint64_t place = 0;
  memory::Share share;
  const uint64_t place_of_place = file_.shares_address + life.index * sizeof place;
  if (!read_there(owner, place_of_place, &place, sizeof place) ||
      !read_there(owner, place, &share, sizeof share)) {
    return nullptr;
  }
  // it is of that life only if that goes on: the owner writes it before, and frees it after
  // SYNC POINT: key-entry
  if (is_over(life)) return nullptr;
  const PeerDevices::Met* met = devices.learn(life, memory::open(share, entry.length, owner));
  return met != nullptr ? met->memory.get() : nullptr;
}

// The same as piece(), but the copy is the driver's: it has no handle that a close could take away,
// so that a close waits for all of it.
[[gnu::noinline]] DirectResult PeerKeyView::piece_in_device(pid_t owner, AccessorSlot& slot,
                                                            const Piece& ask,
                                                            const EntryCopy& entry,
                                                            uint64_t offset) const {
  using Copied = PeerDevices::Copied;
  using Outcome = DirectResult::Outcome;
  assert(offset <= entry.length && ask.len <= entry.length - offset);
  assert(ask.len <= kDeviceChunkBytes);
  const memory::Registration* const device =
      ask.devices != nullptr ? find_device(owner, entry, *ask.devices) : nullptr;
  if (device == nullptr) return {Outcome::through_ring, Denial::none};
  // the length was another one when it was opened: of the same life, so the owner is at fault
  if (!device->covers(offset, ask.len)) return {Outcome::denied, Denial::out_of_range};
  const bool reads = ask.need == Rights::remote_read;
  // SYNC POINT: by-driver (relaxed: before the release store that pins)
  slot.by_driver.store(1, std::memory_order_relaxed);
  const DirectResult done = copy_pinned(slot, ask, entry, offset, [&](DirectResult& result) {
    std::byte* const first = device->begin() + offset;
    for (size_t i = 0; i < ask.local_count && result.outcome == Outcome::done; ++i) {
      const iovec& local = ask.local[i];
      std::byte* const at = first + result.bytes;
      const Copied copied = reads ? ask.devices->copy_out(local, *device, at)
                                  : ask.devices->copy_in(*device, at, local);
      if (copied == Copied::yes) {
        result.bytes += local.iov_len;
      } else {
        result.outcome = copied == Copied::no_local ? Outcome::faulted : Outcome::through_ring;
      }
    }
  });
  slot.by_driver.store(0, std::memory_order_release);  // after the one that unpins
  return done;
}

bool PeerKeyView::can_pin() noexcept {
  return self().start_time != 0;
}

DirectResult PeerKeyView::pull(pid_t owner, AccessorSlot& slot, const PullAsk& ask) const {
  using Outcome = DirectResult::Outcome;
  assert(ask.local_count <= kMaxLocalSegments && ask.len != 0);
  [[maybe_unused]] const bool known = note_thread(slot);
  assert(known);  // can_pin()
  // relaxed: as in piece()
  slot.riov_base.store(ask.addr, std::memory_order_relaxed);
  slot.riov_len.store(ask.len, std::memory_order_relaxed);
  // SYNC POINT: lane-gate (FENCE_A; pairs with the fence in move_gate())
  slot.pin.store(kPullPin, std::memory_order_release);
  full_fence();
  DirectResult result{Outcome::through_ring, Denial::none};
  if (is_open(slot, ask.gate, ask.gate_number)) {
    const ssize_t n = read_call_(owner, ask.local, ask.local_count, slot.remote_iovec(), 1, 0);
    result.outcome = n >= 0 ? Outcome::done : outcome_of(errno);
    if (n >= 0) result.bytes = std::min(static_cast<uint64_t>(n), ask.len);
  }
  // SYNC POINT: lane-gate (the sender that sees us unpinned may have its buffer back)
  slot.pin.store(0, std::memory_order_release);
  return result;
}

DirectResult PeerKeyView::access(pid_t owner, AccessorSlot& slot, const DirectAsk& ask, Rights need,
                                 CopyCall call, LookupHint* hint) const {
  using Outcome = DirectResult::Outcome;
  if (ask.local_count > kMaxLocalSegments) return {Outcome::through_ring, Denial::none};
  uint64_t total = 0;
  for (size_t i = 0; i < ask.local_count; ++i) {
    const uint64_t len = ask.local[i].iov_len;
    if (len > kDeviceChunkBytes - total) return {Outcome::through_ring, Denial::none};
    total += len;
  }
  if (total > kChunkBytes && !is_in_device(ask.pd, ask.key)) [[unlikely]]
    return {Outcome::through_ring, Denial::none};
  if (!note_thread(slot)) return {Outcome::through_ring, Denial::none};
  const Piece whole{ask.pd,   ask.key,         ask.addr,        total,
                    need,     ask.local,       ask.local_count, ask.generation,
                    ask.gate, ask.gate_number, ask.devices};
  DirectResult first = piece(owner, slot, whole, call, hint);
  if (first.generation == 0) first.generation = ask.generation;
  if (first.outcome != Outcome::done || first.bytes == total) [[likely]]
    return first;
  return rest(owner, slot, whole, first, call, hint);
}

// What a short copy has left, in as many more as it takes.
[[gnu::noinline]] DirectResult PeerKeyView::rest(pid_t owner, AccessorSlot& slot,
                                                 const Piece& whole, const DirectResult& first,
                                                 CopyCall call, LookupHint* hint) const {
  using Outcome = DirectResult::Outcome;
  LocalCursor local(whole.local, whole.local_count);
  DirectResult sum = first;
  size_t copied = first.bytes;
  int empty = 0;
  for (;;) {
    assert(sum.bytes < whole.len);
    local.advance(copied);
    if (copied == 0 && ++empty > kEmptyCopies) {
      sum.outcome = Outcome::through_ring;
      return sum;
    }
    const Piece left{whole.pd,   whole.key,         whole.addr + sum.bytes, whole.len - sum.bytes,
                     whole.need, local.data(),      local.count(),          sum.generation,
                     whole.gate, whole.gate_number, whole.devices};
    const DirectResult one = piece(owner, slot, left, call, hint);
    copied = one.bytes;
    sum.outcome = one.outcome;
    sum.denial = one.denial;
    sum.bytes += one.bytes;
    if (one.generation != 0) sum.generation = one.generation;
    if (one.outcome != Outcome::done || sum.bytes == whole.len) return sum;
  }
}

DirectResult PeerKeyView::write(pid_t owner, AccessorSlot& slot, const DirectAsk& ask,
                                LookupHint* hint) const {
  return access(owner, slot, ask, Rights::remote_write, write_call_, hint);
}

DirectResult PeerKeyView::read(pid_t owner, AccessorSlot& slot, const DirectAsk& ask,
                               LookupHint* hint) const {
  return access(owner, slot, ask, Rights::remote_read, read_call_, hint);
}

}  // namespace aperture::protect
