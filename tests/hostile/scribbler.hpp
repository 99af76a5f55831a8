// An attacker's pen: a thread that writes at random into whatever memory this process shares with
// its peers, as the layout in link/shm/segment.hpp has it, and rings and drains what doorbells it
// holds. Everything comes from one seed; what it meets does not, since others are writing too.
//
// It knows no room of src/: it looks for the library's descriptors in this process. What it does
// not write are the remote iovecs of the accessor slots: the kernel takes those for this process's
// own calls, so that writing there is no attack through shared words but process_vm_writev with
// another address, against which a peer that may trace us is not protected.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace aperture::hostile {

class Scribbler {
 public:
  explicit Scribbler(uint64_t seed);
  ~Scribbler();
  Scribbler(const Scribbler&) = delete;
  Scribbler& operator=(const Scribbler&) = delete;

  // How many strokes have landed in memory that is shared with a peer.
  uint64_t strokes() const { return strokes_; }

 private:
  struct Segment {
    std::span<uint8_t> bytes;
    size_t lane_stride;
    ino_t inode;
  };

  void run();
  void look_for_descriptors();
  void map_segment(int fd);
  void stroke(const Segment& segment);
  void forge(uint8_t* cells, size_t count);
  void smear(uint8_t* at, size_t size);
  void poke(int fd);
  uint64_t below(uint64_t n) { return random_() % n; }
  uint64_t odd_number();

  std::mt19937_64 random_;
  uint32_t manners_ = 0;  // bit set of what it does
  std::vector<Segment> segments_;
  std::vector<int> pipes_, sockets_;
  std::atomic<uint64_t> strokes_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace aperture::hostile
