// The accessor's side: a peer's key file mapped read-only, and one-sided copies under its protocol.
//
// Everything in the file is the peer's word: indices, counts and chains are bounded before use, and
// nothing in it can crash or hang the reader. What it can make us do is to copy into or out of the
// peer's own memory; and, where that is a device's, to ask our driver for whatever handle the peer
// has named. One view per peer process; any thread, a slot and a hint each
// (accessor_slot.hpp). The protocol, its fences and the order of its steps: docs/revocation.md, and
// tests/spin/revocation.pml.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>

#include "base/errc.hpp"
#include "base/fd.hpp"
#include "protect/access_check.hpp"
#include "protect/accessor_slot.hpp"
#include "protect/key_file.hpp"
#include "protect/peer_devices.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

struct DirectResult {
  enum class Outcome : uint8_t {
    done,
    denied,         // see denial; nothing of this chunk is reported as done
    through_ring,   // the file was never at rest, or slot or gate were closed: for its owner
    faulted,        // the kernel met an unmapped page (EFAULT), on our side or on the peer's
    not_permitted,  // EPERM: the kernel does not let us; serve this peer through the ring for ever
    peer_gone,      // ESRCH
  };
  Outcome outcome = Outcome::done;
  Denial denial = Denial::none;
  size_t bytes = 0;         // copied before the outcome was reached
  uint64_t generation = 0;  // of the region that was met; 0: none was
};

// What to do where: the key and range in the peer, and the local side, at most kChunkBytes in all
// (of a device's memory kDeviceChunkBytes).
struct DirectAsk {
  DomainId pd = 0;  // the peer's domain, from the handshake
  uint64_t key = 0;
  uint64_t addr = 0;
  const iovec* local = nullptr;
  size_t local_count = 0;  // at most kMaxLocalSegments
  // The region's generation as an earlier chunk of the same operation met it; 0: this is the first.
  // A region registered anew under the same key is refused.
  uint64_t generation = 0;
  // The lane's gate, in memory that its owner writes, and the number that the owner's permit named;
  // with another number in it nothing is copied. Null: there is none.
  const std::atomic<uint64_t>* gate = nullptr;
  uint64_t gate_number = 0;
  // What of the owner's device memory the lane has met. Null: all of that is for its owner to copy.
  PeerDevices* devices = nullptr;
};

// A piece of a message that its sender has offered: it names bytes of its own, and no key.
struct PullAsk {
  uint64_t addr = 0;  // in the sender
  const iovec* local = nullptr;
  size_t local_count = 0;                       // at most kMaxLocalSegments
  uint64_t len = 0;                             // bytes, as many as the local side has
  const std::atomic<uint64_t>* gate = nullptr;  // as in DirectAsk
  uint64_t gate_number = 0;
};

// The same for an accessor that sees nothing of the owner's regions: what would make it legal, and
// who knows more.
std::string explain_unseen(Denial denial, Rights need = Rights::none,
                           const Wording& door = kNeutralWording);

class PeerKeyView {
 public:
  static constexpr size_t kMaxLocalSegments = 16;

  // Maps the file after checking its seals, its size and its header. Errors: protocol (the peer's
  // file is not what it should be), no_memory.
  static Result<PeerKeyView> map(UniqueFd fd, size_t size_bytes);

  PeerKeyView(PeerKeyView&&) noexcept = default;
  PeerKeyView& operator=(PeerKeyView&&) noexcept = default;

  // Whether the kernel lets us copy from `owner`, and whether that number means, in our pid
  // namespace, the process that made this file. Errors: not_supported.
  Status probe(pid_t owner) const noexcept;
  // Whether that process surely has another program's memory by now (exec).
  bool has_become_another(pid_t owner) const noexcept;

  // One chunk: check, pin, full fence, check again, copy, unpin; over again for what a short copy
  // left. `hint` is the caller's own and may be null.
  DirectResult write(pid_t owner, AccessorSlot& slot, const DirectAsk& ask, LookupHint* hint) const;
  DirectResult read(pid_t owner, AccessorSlot& slot, const DirectAsk& ask, LookupHint* hint) const;

  // Whether this thread can say when it was started, so that its death is noticed whoever has its
  // number then. False while /proc cannot be read: its copies go through the ring.
  static bool can_pin() noexcept;

  // Only where can_pin(). Copies such a piece, or a part of it, under a pin and behind the gate as
  // read() does: nothing of it begins once its sender has moved the gate, and the sender waits for
  // what has begun. Never `denied`; `done` with less than was asked for: go on.
  DirectResult pull(pid_t owner, AccessorSlot& slot, const PullAsk& ask) const;

  // An access to that key is coming: fetches what the hint says it will look at first.
  void foresee(const LookupHint& hint, uint64_t key) const noexcept {
    fetch_near(file_, hint, key);
  }

  // The check alone: is it certain that this would be refused now? (Advice; the copy asks again.)
  Denial would_refuse(DomainId pd, uint64_t key, uint64_t addr, uint64_t len,
                      Rights need) const noexcept;

  // Whether there is device memory of that peer's which we may perhaps copy by our driver.
  bool has_devices() const noexcept {
    // relaxed: it only says whether to look
    return file_.header->has_devices.load(std::memory_order_relaxed) != 0;
  }
  // Whether that region is such memory now. (Advice.)
  bool is_in_device(DomainId pd, uint64_t key) const noexcept;

  // Whether that region, or for now the whole file, is for its owner alone to validate: then the
  // copies say through_ring, and nothing would be refused for certain.
  bool asks_owner(DomainId pd, uint64_t key) const noexcept;

  // The end of a sentence on a refusal: the region that was met, how the range leaves it, and what
  // would make it legal. Slow; may allocate.
  std::string explain(pid_t owner, const AccessAsk& ask, Denial denial,
                      const Wording& door = kNeutralWording) const;

  // process_vm_writev / process_vm_readv, or what a test puts in their place.
  using CopyCall = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                               unsigned long);
  void set_copy_calls(CopyCall write_call, CopyCall read_call) noexcept {
    write_call_ = write_call;
    read_call_ = read_call;
  }

 private:
  // What one system call is to do: a DirectAsk, or what a short copy left of it.
  struct Piece {
    DomainId pd;
    uint64_t key;
    uint64_t addr;
    uint64_t len;
    Rights need;
    const iovec* local;
    size_t local_count;
    uint64_t generation;
    const std::atomic<uint64_t>* gate;
    uint64_t gate_number;
    PeerDevices* devices;
  };

  PeerKeyView(Mapping mapping, const KeyFile& file) noexcept;
  ssize_t read_nonce(pid_t owner, uint64_t& found) const noexcept;
  bool is_open(const AccessorSlot& slot, const std::atomic<uint64_t>* gate,
               uint64_t gate_number) const noexcept;
  DirectResult access(pid_t owner, AccessorSlot& slot, const DirectAsk& ask, Rights need,
                      CopyCall call, LookupHint* hint) const;
  DirectResult piece(pid_t owner, AccessorSlot& slot, const Piece& ask, CopyCall call,
                     LookupHint* hint) const;
  // Under the pin: what copy(DirectResult&) does, once the entry is found to be as it was.
  template <typename Copy>
  DirectResult copy_pinned(AccessorSlot& slot, const Piece& ask, const EntryCopy& entry,
                           uint64_t offset, Copy&& copy) const;
  DirectResult piece_in_device(pid_t owner, AccessorSlot& slot, const Piece& ask,
                               const EntryCopy& entry, uint64_t offset) const;
  const memory::Registration* find_device(pid_t owner, const EntryCopy& entry,
                                          PeerDevices& devices) const;
  bool read_there(pid_t owner, uint64_t from, void* to, size_t n) const noexcept;
  DirectResult rest(pid_t owner, AccessorSlot& slot, const Piece& whole, const DirectResult& first,
                    CopyCall call, LookupHint* hint) const;

  // Where the owner registered it, as far as the file says: a word of the peer's.
  uint64_t entry_place(const EntryCopy& entry) const noexcept {
    // relaxed: it is only shown
    return file_.entries[entry.index].registered_at.load(std::memory_order_relaxed);
  }

  Mapping mapping_;
  KeyFile file_;
  CopyCall write_call_;
  CopyCall read_call_;
};

}  // namespace aperture::protect
