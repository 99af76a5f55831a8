// Writing at random into shared memory: see scribbler.hpp.
#include "hostile/scribbler.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace aperture::hostile {
namespace {

// The layout of link/shm/segment.hpp. Were it another one, the strokes would still land in the
// segment, only less well aimed.
constexpr size_t kPage = 4096;
constexpr size_t kSlotsAt = 1024, kSlotBytes = 64, kSlotCount = 2 * 16;
constexpr size_t kLanesAt = kPage;
constexpr size_t kLaneStrideAt = 16;  // in the header
constexpr size_t kRequestCells = 256, kResponseCells = 128, kCellBytes = 64, kMarkBytes = 4;
constexpr size_t kRequestCellsAt = kPage;
constexpr size_t kResponseCellsAt = kRequestCellsAt + 2 * kRequestCells * kCellBytes;
constexpr size_t kByteRingsAt = kResponseCellsAt + 2 * kResponseCells * kCellBytes;
constexpr size_t kWordBytes = 4 * 256 + 2 * 32 * 8;
// What an attacker does. Each does one of the first five at least.
enum Manner : uint32_t {
  kWords = 1,
  kForged = 2,
  kCells = 4,
  kBytes = 8,
  kSlots = 16,
  kHeader = 32,
  kPokes = 64,
};
constexpr int kHigh = 512;  // of descriptors: base/fd.hpp

// Both sides write all the time: each byte by itself is what a wild writer leaves.
void put(uint8_t* at, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(value >> (8 * i));
    std::atomic_ref(at[i]).store(byte, std::memory_order_relaxed);  // relaxed: a wild writer
  }
}

// A word in one store, as its readers expect it: so that it is nonsense, but whole.
template <typename T>
std::atomic_ref<T> word(uint8_t* at) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(at));
}

}  // namespace

Scribbler::Scribbler(uint64_t seed) : random_(seed), thread_([this] { run(); }) {}

Scribbler::~Scribbler() {
  stop_ = true;
  thread_.join();
  for (const Segment& segment : segments_) munmap(segment.bytes.data(), segment.bytes.size());
}

void Scribbler::run() {
  // one that writes everywhere loses its connection at once; others go on for longer
  const std::array<uint32_t, 8> every{
      255, 255, 255, kWords, kWords | kSlots, kForged, kCells | kBytes, kPokes | kWords};
  manners_ = every[below(every.size())];
  const uint64_t pause_us = uint64_t{1} << below(12);
  const uint64_t most = uint64_t{1} << below(7);
  for (uint64_t burst = 0; !stop_; ++burst) {
    if (burst % 64 == 0) look_for_descriptors();
    if (segments_.empty()) {
      burst = 63;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const uint64_t strokes = 1 + below(most);
    for (uint64_t i = 0; i < strokes; ++i) stroke(segments_[below(segments_.size())]);
    strokes_.fetch_add(strokes, std::memory_order_relaxed);  // relaxed: a count
    if ((manners_ & kPokes) != 0 && !pipes_.empty()) poke(pipes_[below(pipes_.size())]);
    if (below(4096) == 0 && !sockets_.empty()) poke(sockets_[below(sockets_.size())]);
    // the library goes on with what is left, and the peer sees one stroke at a time, too
    if (below(4) != 0) std::this_thread::sleep_for(std::chrono::microseconds(below(pause_us)));
  }
}

// Segments are mapped once more, by us: so we go on with those that the library has left.
void Scribbler::map_segment(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return;
  for (const Segment& known : segments_) {
    if (known.inode == file.st_ino) return;
  }
  const auto size = static_cast<size_t>(file.st_size);
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return;
  Segment segment{{static_cast<uint8_t*>(at), size}, 0, file.st_ino};
  std::memcpy(&segment.lane_stride, segment.bytes.data() + kLaneStrideAt, sizeof(uint64_t));
  if (segment.lane_stride > kByteRingsAt && segment.lane_stride < size)
    segments_.push_back(segment);
}

// The library keeps its descriptors high; what is low is the test's.
void Scribbler::look_for_descriptors() {
  pipes_.clear();
  sockets_.clear();
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    char name[32] = {};
    if (fd < kHigh || readlinkat(dirfd(dir), entry->d_name, name, sizeof name - 1) <= 0) continue;
    int domain = 0;
    socklen_t size = sizeof domain;
    if (std::strncmp(name, "/memfd:aperture-lanes", 21) == 0) {
      map_segment(fd);
    } else if (std::strncmp(name, "pipe:", 5) == 0) {
      pipes_.push_back(fd);
    } else if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX) {
      sockets_.push_back(fd);
    }
  }
  closedir(dir);
}

uint64_t Scribbler::odd_number() {
  switch (below(6)) {
    case 0: return 0;
    case 1: return ~uint64_t{0} >> below(64);
    case 2: return uint64_t{1} << below(64);
    case 3: return below(64);
    case 4: return below(1024) << 2 | below(4);  // a claim word
    default: return random_();
  }
}

// Makes `size` bytes or less into something else.
void Scribbler::smear(uint8_t* at, size_t size) {
  const size_t place = below(size / 8) * 8;
  switch (below(6)) {
    case 0: word<uint64_t>(at + place).store(odd_number(), std::memory_order_relaxed); break;
    case 1: word<uint32_t>(at + place).store(static_cast<uint32_t>(odd_number())); break;
    case 2: word<uint64_t>(at + place).fetch_add(below(17) - 8); break;
    case 3: word<uint64_t>(at + place).fetch_xor(uint64_t{1} << below(64)); break;
    case 4:
      for (size_t i = 0; i < 64 && place + i + 8 <= size; i += 8) put(at + place + i, random_(), 8);
      break;
    default: put(at + place + below(8), odd_number(), 1); break;
  }
}

// Publishes a cell that nobody has written: a copy of another one with some bytes changed, in the
// place where the next message of the ring is due.
void Scribbler::forge(uint8_t* cells, size_t count) {
  const auto mark = [&](size_t i) { return word<uint32_t>(cells + i * kCellBytes); };
  size_t next = 0;
  while (next + 1 < count && mark(next) == mark(next + 1)) ++next;
  next = (next + 1) % count;
  const uint32_t due = mark((next + count - 1) % count) + (next == 0 ? 1 : 0);
  uint8_t* to = cells + next * kCellBytes;
  const uint8_t* from = cells + below(count) * kCellBytes;
  for (size_t i = kMarkBytes; i < kCellBytes; ++i) put(to + i, from[i], 1);
  const uint64_t changes = below(4);
  for (uint64_t i = 0; i < changes; ++i) put(to + kMarkBytes + below(28), odd_number(), 1);
  if (below(2) == 0) put(to + kMarkBytes, below(26), 1);  // any operation
  if (below(4) == 0) put(to + kMarkBytes + below(44), odd_number(), 8);
  mark(next).store(due, std::memory_order_release);
}

void Scribbler::stroke(const Segment& segment) {
  const size_t lanes = (segment.bytes.size() - kLanesAt) / segment.lane_stride;
  const size_t which = below(8) != 0 ? 0 : below(lanes);
  uint8_t* lane = segment.bytes.data() + kLanesAt + which * segment.lane_stride;
  const size_t side = below(2);
  uint32_t manner = 0;
  do {
    manner = 1u << below(6);
  } while ((manners_ & manner) == 0);
  switch (manner) {
    case kWords: return smear(lane, kWordBytes);
    case kForged:
      if (below(3) != 0) {
        return forge(lane + kRequestCellsAt + side * kRequestCells * kCellBytes, kRequestCells);
      }
      return forge(lane + kResponseCellsAt + side * kResponseCells * kCellBytes, kResponseCells);
    case kCells: return smear(lane + kRequestCellsAt, kByteRingsAt - kRequestCellsAt);
    case kBytes:
      return smear(lane + kByteRingsAt + below(segment.lane_stride - kByteRingsAt - kPage) / 8 * 8,
                   64 * 8);
    case kSlots: {
      // the pin, or all behind the iovec: see scribbler.hpp
      uint8_t* slot = segment.bytes.data() + kSlotsAt + below(kSlotCount) * kSlotBytes;
      if (below(2) == 0) return smear(slot, 8);
      return smear(slot + 24, 40);
    }
    default:
      if (below(64) == 0) smear(segment.bytes.data(), 64);
  }
}

void Scribbler::poke(int fd) {
  char bytes[512];
  for (char& byte : bytes) byte = static_cast<char>(random_());
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return;
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const size_t size = below(sizeof bytes) + 1;
  if (below(4) == 0) {
    (void)!read(fd, bytes, size);
  } else if (send(fd, bytes, size, MSG_NOSIGNAL) < 0 && errno == ENOTSOCK) {
    (void)!write(fd, bytes, size);
  }
  if (below(2) == 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

}  // namespace aperture::hostile
