// Limits of the cache-coherence fabric: how long a line takes to the other core, and how many
// 64-byte cells a single-producer ring moves.
//
// Shared memory only; both processes own the cells that they write. The counters are 64-bit and
// start at 0 in fresh pages.
#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "limits/limit.hpp"
#include "limits/ping_pong.hpp"
#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

using Word = std::atomic<uint64_t>;

constexpr size_t kLine = 64;
// Adjacent-line prefetch would couple neighbours: the lines of one measure lie 256 bytes apart.
constexpr size_t kApart = 256;

Word& word_at(const Pages& pages, size_t offset) {
  return *reinterpret_cast<Word*>(pages.data() + offset);
}

// theirs and mine may be the same word.
Row bounce(Side& side, Word& mine, const Word& theirs, double seconds) {
  // SYNC POINT: limit-ping-pong. Nothing but the word itself is passed.
  return ping_pong(
      side, seconds, [&](uint64_t value) { mine.store(value, std::memory_order_release); },
      [&] { return theirs.load(std::memory_order_acquire); });
}

struct Cell {
  std::atomic<uint64_t> sequence;
  uint64_t payload[7];
};
static_assert(sizeof(Cell) == kLine);

constexpr uint64_t kCells = 1024;
constexpr uint64_t kChunk = 1u << 20;  // cells between two looks at the clock

struct Ring {
  Cell* cells;
  Word& consumed;
};

void produce(const Ring& ring, uint64_t from, uint64_t to) {
  uint64_t free_until = ring.consumed.load(std::memory_order_acquire) + kCells;
  for (uint64_t i = from; i < to; i++) {
    while (i >= free_until) {
      // SYNC POINT: limit-ring-credit. The consumer has copied these cells' payload out.
      free_until = ring.consumed.load(std::memory_order_acquire) + kCells;
    }
    Cell& cell = ring.cells[i % kCells];
    for (uint64_t& word : cell.payload) word = i;
    cell.sequence.store(i + 1, std::memory_order_release);  // SYNC POINT: limit-ring-cell
  }
}

uint64_t consume(const Ring& ring, uint64_t from, uint64_t to, uint64_t credit_every) {
  uint64_t sum = 0;
  for (uint64_t i = from; i < to; i++) {
    const Cell& cell = ring.cells[i % kCells];
    // SYNC POINT: limit-ring-cell. The payload of cell i is visible.
    while (cell.sequence.load(std::memory_order_acquire) != i + 1) continue;
    for (const uint64_t word : cell.payload) sum += word;
    if ((i + 1) % credit_every == 0) {
      ring.consumed.store(i + 1, std::memory_order_release);  // SYNC POINT: limit-ring-credit
    }
  }
  return sum;
}

Row stream_cells(Side& side, const Pages& shared, double seconds, uint64_t credit_every) {
  const Ring ring{reinterpret_cast<Cell*>(shared.data() + kApart * 2), word_at(shared, 0)};
  std::vector<double> rates;
  const uint64_t until = now_ns() + static_cast<uint64_t>(seconds * 1e9);
  for (uint64_t at = 0;; at += kChunk) {
    if (side.rank == 0) {
      const bool more = rates.size() < 3 || now_ns() < until;
      side.channel.send_word(more ? 1 : 0);
      if (!more) return rate_row(Unit::millions_per_second, rates);
      const uint64_t start = now_ns();
      produce(ring, at, at + kChunk);
      const uint64_t sum = side.channel.receive_word();
      const uint64_t expected = 7 * (kChunk * at + kChunk * (kChunk - 1) / 2);
      if (sum != expected) throw Failure("the ring delivered other cells than were written");
      const double ns = static_cast<double>(now_ns() - start);
      if (at != 0) rates.push_back(static_cast<double>(kChunk) / ns * 1e3);
    } else {
      if (side.channel.receive_word() == 0) return Row{};
      side.channel.send_word(consume(ring, at, at + kChunk, credit_every));
    }
  }
}

}  // namespace

Row ping_pong_one_line(Side& side, const Pages& shared, size_t, double seconds) {
  return bounce(side, word_at(shared, 0), word_at(shared, 0), seconds);
}

Row ping_pong_two_lines(Side& side, const Pages& shared, size_t, double seconds) {
  const size_t mine = side.rank == 0 ? 0 : kApart;
  return bounce(side, word_at(shared, mine), word_at(shared, kApart - mine), seconds);
}

Row ring_rate(Side& side, const Pages& shared, size_t, double seconds) {
  return stream_cells(side, shared, seconds, kCells / 4);
}

Row ring_rate_credits(Side& side, const Pages& shared, size_t, double seconds) {
  return stream_cells(side, shared, seconds, 1);
}

}  // namespace aperture::bench
