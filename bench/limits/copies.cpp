// Limits of copying: one core alone, two cores through a shared buffer, and the kernel's
// cross-memory attach (CMA, process_vm_writev).
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/clock.hpp"
#include "limits/limit.hpp"
#include "limits/ping_pong.hpp"
#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kPiece = 64 * 1024;
constexpr size_t kPieces = 4;       // slots of the shared buffer: 256 KiB stays in a private L2
constexpr size_t kHeader = 4096;    // the two counters, each on a page's own lines
constexpr size_t kRepetitions = 8;  // at least, per measure
constexpr size_t kLine = 64;

// Repeats step (which returns bytes moved) for about that long; each repetition is one value.
template <typename Step>
Row repeat(double seconds, Step&& step) {
  std::vector<double> values;
  const uint64_t until = now_ns() + static_cast<uint64_t>(seconds * 1e9);
  step();
  while (values.size() < kRepetitions || now_ns() < until) {
    const uint64_t start = now_ns();
    const size_t bytes = step();
    values.push_back(static_cast<double>(bytes) / static_cast<double>(now_ns() - start));
  }
  return rate_row(Unit::gigabytes_per_second, values);
}

size_t rounds_for(size_t size_bytes) {
  return std::max<size_t>(1, (16u << 20) / size_bytes);
}

struct Slots {
  std::atomic<uint64_t>& written;
  std::atomic<uint64_t>& taken;
  std::byte* buffer;
};

Slots slots_in(const Pages& shared) {
  return {*reinterpret_cast<std::atomic<uint64_t>*>(shared.data()),
          *reinterpret_cast<std::atomic<uint64_t>*>(shared.data() + kHeader / 2),
          shared.data() + kHeader};
}

// One message out of (or into) private memory, piece by piece, continuing at piece number `at`.
uint64_t put_pieces(const Slots& s, const std::byte* from, size_t size_bytes, uint64_t at) {
  for (size_t done = 0; done < size_bytes; done += kPiece, at++) {
    // SYNC POINT: limit-piece-taken. The reader has finished with this slot.
    while (at >= s.taken.load(std::memory_order_acquire) + kPieces) continue;
    std::memcpy(s.buffer + at % kPieces * kPiece, from + done, kPiece);
    s.written.store(at + 1, std::memory_order_release);  // SYNC POINT: limit-piece-written
  }
  return at;
}

uint64_t take_pieces(const Slots& s, std::byte* to, size_t size_bytes, uint64_t at) {
  for (size_t done = 0; done < size_bytes; done += kPiece, at++) {
    // SYNC POINT: limit-piece-written. The piece's bytes are visible.
    while (s.written.load(std::memory_order_acquire) <= at) continue;
    std::memcpy(to + done, s.buffer + at % kPieces * kPiece, kPiece);
    s.taken.store(at + 1, std::memory_order_release);  // SYNC POINT: limit-piece-taken
  }
  return at;
}

// What the target of a CMA measure tells the caller about itself.
struct CmaTarget {
  pid_t pid;
  std::byte* base;
};

class CmaWriter {
 public:
  CmaWriter(Side& side, size_t size_bytes)
      : size_bytes_(size_bytes), source_(size_bytes, Pages::Kind::own) {
    CmaTarget target{};
    side.channel.receive(&target, sizeof target);
    pid_ = target.pid;
    remote_ = target.base;
    fill_pattern(source_.data(), size_bytes, 7);
  }

  std::byte* source() const { return source_.data(); }

  void write() const {
    const iovec local{source_.data(), size_bytes_};
    const iovec remote{remote_, size_bytes_};
    const ssize_t n = ::process_vm_writev(pid_, &local, 1, &remote, 1, 0);
    if (n < 0) throw Failure("process_vm_writev: %s", std::strerror(errno));
    if (n != static_cast<ssize_t>(size_bytes_)) throw Failure("process_vm_writev wrote less");
  }

 private:
  size_t size_bytes_;
  Pages source_;
  pid_t pid_ = -1;
  std::byte* remote_ = nullptr;
};

void introduce(Side& side, const Pages& memory) {
  const CmaTarget self{::getpid(), memory.data()};
  side.channel.send(&self, sizeof self);
}

// Asleep until the caller is done: what CMA costs when the target does nothing.
Row be_cma_target(Side& side, size_t size_bytes) {
  const Pages memory(size_bytes, Pages::Kind::own);
  introduce(side, memory);
  side.channel.receive_word();
  if (first_mismatch(memory.data(), size_bytes, 7) != size_bytes) {
    throw Failure("CMA delivered other bytes than were written");
  }
  return Row{};
}

}  // namespace

Row copy_alone(Side& side, const Pages&, size_t size_bytes, double seconds) {
  if (side.rank == 1) return Row{};
  const Pages from(size_bytes, Pages::Kind::own), to(size_bytes, Pages::Kind::own);
  fill_pattern(from.data(), size_bytes, 1);
  const size_t rounds = rounds_for(size_bytes);
  Row row = repeat(seconds, [&] {
    for (size_t i = 0; i < rounds; i++) {
      std::memcpy(to.data(), from.data(), size_bytes);
      asm volatile("" : : "r"(to.data()) : "memory");  // the copy is not to be elided
    }
    return rounds * size_bytes;
  });
  if (first_mismatch(to.data(), size_bytes, 1) != size_bytes) throw Failure("memcpy lied");
  return row;
}

Row copy_by_two(Side& side, const Pages& shared, size_t size_bytes, double seconds) {
  const Slots slots = slots_in(shared);
  const Pages memory(size_bytes, Pages::Kind::own);
  const size_t rounds = rounds_for(size_bytes);
  uint64_t at = 0;
  if (side.rank == 1) {
    while (side.channel.receive_word() != 0) {
      for (size_t i = 0; i < rounds; i++) at = take_pieces(slots, memory.data(), size_bytes, at);
      side.channel.send_word(at);
    }
    if (first_mismatch(memory.data(), size_bytes, 3) == size_bytes) return Row{};
    throw Failure("the shared buffer delivered other bytes than were written");
  }
  fill_pattern(memory.data(), size_bytes, 3);
  Row row = repeat(seconds, [&] {
    side.channel.send_word(1);
    for (size_t i = 0; i < rounds; i++) at = put_pieces(slots, memory.data(), size_bytes, at);
    side.channel.receive_word();
    return rounds * size_bytes;
  });
  side.channel.send_word(0);
  return row;
}

Row cma_call(Side& side, const Pages&, size_t size_bytes, double seconds) {
  if (side.rank == 1) return be_cma_target(side, size_bytes);
  const CmaWriter writer(side, size_bytes);
  Samples samples(1u << 20);
  const uint64_t until = ticks() + ticks_from_ns(static_cast<uint64_t>(seconds * 1e9));
  for (uint64_t last = ticks(); last < until;) {
    writer.write();
    const uint64_t now = ticks();
    samples.add(now - last);
    last = now;
  }
  side.channel.send_word(0);
  return latency_row(samples, 1);
}

// Both spin on private memory of their own, which the other one writes: beyond the call, the line
// that it writes is in the target's cache each time, and has to get back there to be seen.
Row cma_seen(Side& side, const Pages&, size_t size_bytes, double seconds) {
  const Pages memory(size_bytes, Pages::Kind::own);
  introduce(side, memory);
  const CmaWriter writer(side, size_bytes);
  const std::atomic_ref<uint64_t> seen(*reinterpret_cast<uint64_t*>(memory.data()));
  // SYNC POINT: limit-cma-seen: pairs with the kernel's store of the peer's write
  return ping_pong(
      side, seconds,
      [&](uint64_t value) {
        std::memcpy(writer.source(), &value, sizeof value);
        writer.write();
      },
      [&] { return seen.load(std::memory_order_acquire); });
}

// Reads of 8 bytes from anywhere in that much memory: the kernel's own misses, and the data's.
Row cma_anywhere(Side& side, const Pages&, size_t size_bytes, double seconds) {
  if (side.rank == 1) {
    const Pages memory(size_bytes, Pages::Kind::own);
    fill_pattern(memory.data(), size_bytes, 7);
    introduce(side, memory);
    side.channel.receive_word();
    return Row{};
  }
  CmaTarget target{};
  side.channel.receive(&target, sizeof target);
  std::vector<uint32_t> order(size_bytes / kLine);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 random(7);
  std::shuffle(order.begin(), order.end(), random);
  uint64_t word = 0;
  const iovec local{&word, sizeof word};
  Samples samples(1u << 20);
  size_t next = 0;
  const uint64_t until = ticks() + ticks_from_ns(static_cast<uint64_t>(seconds * 1e9));
  for (uint64_t last = ticks(); last < until;) {
    const iovec remote{target.base + size_t{order[next]} * kLine, sizeof word};
    const ssize_t n = ::process_vm_readv(target.pid, &local, 1, &remote, 1, 0);
    if (n < 0) throw Failure("process_vm_readv: %s", std::strerror(errno));
    if (n != sizeof word) throw Failure("process_vm_readv read less");
    if (++next == order.size()) next = 0;
    const uint64_t now = ticks();
    samples.add(now - last);
    last = now;
  }
  side.channel.send_word(0);
  return latency_row(samples, 1);
}

Row cma_bandwidth(Side& side, const Pages&, size_t size_bytes, double seconds) {
  if (side.rank == 1) return be_cma_target(side, size_bytes);
  const CmaWriter writer(side, size_bytes);
  const size_t rounds = rounds_for(size_bytes);
  Row row = repeat(seconds, [&] {
    for (size_t i = 0; i < rounds; i++) writer.write();
    return rounds * size_bytes;
  });
  side.channel.send_word(0);
  return row;
}

}  // namespace aperture::bench
