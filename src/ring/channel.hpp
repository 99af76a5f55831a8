// A channel: one cell ring and its byte ring in one direction, with the few words the two sides
// tell each other. A lane (link/) is four of them: requests and responses, each way.
//
//   line 0   written by the consumer   consumed, bytes_consumed
//   line 1   written by the consumer   state (hot, asleep...) and the number of its sleep, marked
//                                      rung by the producer; gate
//   line 2   written by the consumer   polls, which grows while the consumer polls; executing. The
//                                      producer reads them only when the consumer seems to be away,
//                                      so the consumer's stores wait for nobody
//   line 3   written by the producer   claim; fences
//
// Words of the consumer are a peer's words to the producer and the other way round. Positions are
// used only through grant(), which ignores nonsense; all others are compared and lead nowhere.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/barrier.hpp"
#include "base/invariant.hpp"
#include "ring/bytes.hpp"
#include "ring/cell.hpp"

namespace aperture::ring {

// What the consumer does about arrivals. Whatever it says with the first bit set is asleep.
inline constexpr uint32_t kAsleep = 1;
enum class ConsumerState : uint64_t {
  hot = 0,                 // it polls: publish and be gone
  asleep = 1,              // ring its doorbell
  rung = 2,                // the doorbell was rung since it fell asleep
  asleep_for_records = 3,  // ring for what is published, not for acknowledgements
};

// A consumer that sleeps numbers its sleeps, above the two bits of its state: all its channels have
// the same number, and whoever has rung it for one of them need not ring it for another. Where it
// says none, each is rung for.
inline constexpr int kStateBits = 2;
inline constexpr uint64_t kUnnumbered = 0;

// Who goes to sleep has to know that its producers either see that, or are seen. A producer that
// promises to pass a full fence between publishing and looking at the state makes that cheap: else
// the sleeper pays for both sides with a heavy barrier.
enum class FencePromise : uint64_t { none = 0, given = 1 };

struct ChannelWords {
  alignas(64) std::atomic<uint64_t> consumed;  // cells executed: the acknowledgement
  std::atomic<uint64_t> bytes_consumed;        // byte-ring position that is free again
  alignas(64) std::atomic<uint64_t> state;     // ConsumerState, and the number of its sleep
  std::atomic<uint64_t> gate;  // number of the permit in force (transport/permit.hpp), 0: none
  alignas(64) std::atomic<uint64_t> polls;
  std::atomic<uint64_t> executing;          // 1 + cell position of the RMA request under way
  alignas(64) std::atomic<uint64_t> claim;  // transport/claim.hpp
  std::atomic<uint64_t> fences;             // FencePromise
};
static_assert(sizeof(ChannelWords) == 256);

class ChannelTx {
 public:
  ChannelTx() noexcept = default;
  ChannelTx(ChannelWords* words, Cell* cell_base, uint32_t log2_cells, std::byte* byte_base,
            uint64_t byte_size) noexcept
      : cells(cell_base, log2_cells), bytes(byte_base, byte_size), words_(words) {}

  // Learns how far the consumer has executed. One cache miss if it has moved on.
  uint64_t refresh() noexcept {
    // SYNC POINT: channel-consumed: responses stored before it are visible, cells are free
    const uint64_t consumed = words_->consumed.load(std::memory_order_acquire);
    if (consumed != seen_) {
      if (consumed > seen_ && consumed <= cells.pos()) seen_ = consumed;
      cells.grant(seen_);
      // SYNC POINT: channel-bytes-consumed: it may be newer than what was acquired above. The
      // consumer has read what lay before it, and its responses stored before it are visible
      bytes.grant(words_->bytes_consumed.load(std::memory_order_acquire));
    }
    APERTURE_DEBUG_ASSERT(seen_ <= cells.pos());
    return seen_;
  }
  uint64_t consumed_seen() const noexcept { return seen_; }

  bool room(uint32_t n_cells) noexcept {
    if (cells.has_room(n_cells)) return true;
    refresh();
    return cells.has_room(n_cells);
  }
  bool reserve_bytes(uint32_t len, uint64_t& pos) noexcept {
    if (bytes.reserve(len, pos)) return true;
    refresh();
    return bytes.reserve(len, pos);
  }

  // After publishing: true if the consumer sleeps and this caller has to ring its doorbell.
  bool must_ring() noexcept {
    light_barrier();  // pairs with the sleeper's barrier, EngineSleep::prepare()
    return (state_word() & kAsleep) != 0;
  }
  // The same after an acknowledgement, without a record.
  bool must_ring_for_acknowledgement() noexcept {
    light_barrier();
    return consumer_state() == ConsumerState::asleep;
  }
  // Before the doorbell is rung. A consumer that has woken up meanwhile is not said to be rung: it
  // polls, and would be taken for away until it sleeps again. The number of the sleep that was
  // marked; kUnnumbered if none was.
  uint64_t note_rung() noexcept {
    uint64_t state = state_word();
    if ((state & kAsleep) == 0) return kUnnumbered;
    const uint64_t rung = state >> kStateBits << kStateBits | uint64_t(ConsumerState::rung);
    // relaxed: the ring, a system call, comes after it
    const bool marked =
        words_->state.compare_exchange_strong(state, rung, std::memory_order_relaxed);
    return marked ? rung >> kStateBits : kUnnumbered;
  }
  // From now on, or no longer. Where it is taken back, a full fence follows before anything is
  // published without one.
  void promise_fences(FencePromise promise) noexcept {
    // SYNC POINT: fence-promise: what was published before it is seen by who relies on it
    words_->fences.store(uint64_t(promise), std::memory_order_release);
  }
  // relaxed: a hint about the other side's mood
  uint64_t consumer_polls() const noexcept { return words_->polls.load(std::memory_order_relaxed); }
  bool consumer_hot() const noexcept { return consumer_state() == ConsumerState::hot; }
  // The same rings before anything was published, with other words beside them: what stands between
  // the two sides tells the producer by those what it has been told by ours.
  ChannelTx with_words(ChannelWords& words) const noexcept {
    APERTURE_DEBUG_ASSERT(cells.pos() == 0 && seen_ == 0);
    ChannelTx other = *this;
    other.words_ = &words;
    return other;
  }
  ChannelWords& words() noexcept { return *words_; }

  CellWriter cells;
  ByteWriter bytes;

 private:
  // relaxed: ordered by the barrier pair; the word carries no data
  uint64_t state_word() const noexcept { return words_->state.load(std::memory_order_relaxed); }
  ConsumerState consumer_state() const noexcept {
    return static_cast<ConsumerState>(state_word() & ((uint64_t{1} << kStateBits) - 1));
  }
  ChannelWords* words_ = nullptr;
  uint64_t seen_ = 0;
};

class ChannelRx {
 public:
  ChannelRx() noexcept = default;
  ChannelRx(ChannelWords* words, const Cell* cell_base, uint32_t log2_cells,
            const std::byte* byte_base, uint64_t byte_size) noexcept
      : cells(cell_base, log2_cells), bytes(byte_base, byte_size), words_(words) {}

  // Acknowledges everything before cells.pos(). Cheap if nothing has moved.
  void publish_consumed() noexcept {
    if (published_ == cells.pos()) return;
    APERTURE_DEBUG_ASSERT(published_ < cells.pos());
    published_ = cells.pos();
    // SYNC POINT: channel-bytes-consumed: a producer that looks between the two stores may
    // overwrite these bytes at once, so they have been read before
    words_->bytes_consumed.store(bytes_pos_, std::memory_order_release);
    // SYNC POINT: channel-consumed: what was executed and answered becomes visible
    words_->consumed.store(published_, std::memory_order_release);
  }
  uint64_t unpublished() const noexcept { return cells.pos() - published_; }
  void free_bytes_before(uint64_t pos) noexcept { bytes_pos_ = pos; }
  // Of the byte ring: the position that was freed last, as the producer has named it.
  uint64_t freed_bytes() const noexcept { return bytes_pos_; }

  // relaxed: the caller passes a barrier before it looks at the cells again
  void set_state(ConsumerState s, uint64_t sleep_number = kUnnumbered) noexcept {
    words_->state.store(sleep_number << kStateBits | uint64_t(s), std::memory_order_relaxed);
  }
  // To be asked after the sleeper's own fence, and before it looks at the cells.
  // SYNC POINT: fence-promise
  bool producer_fences() const noexcept {
    return words_->fences.load(std::memory_order_acquire) == uint64_t(FencePromise::given);
  }
  // relaxed: a hint for the producer
  void count_poll(uint64_t polls) noexcept {
    words_->polls.store(polls, std::memory_order_relaxed);
  }
  ChannelWords& words() noexcept { return *words_; }
  // The same words and bytes before anything was taken, with cells that somebody fills from ours.
  ChannelRx with_cells(const Cell* cell_base, uint32_t log2_cells) const noexcept {
    APERTURE_DEBUG_ASSERT(cells.pos() == 0 && published_ == 0);
    ChannelRx other = *this;
    other.cells = CellReader(cell_base, log2_cells);
    return other;
  }

  CellReader cells;
  ByteReader bytes;

 private:
  ChannelWords* words_ = nullptr;
  uint64_t published_ = 0;
  uint64_t bytes_pos_ = 0;
};

}  // namespace aperture::ring
