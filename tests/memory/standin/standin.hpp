// A STAND-IN, for machines without a device: what libcuda.so.1, libhsa-runtime64.so.1 and
// libze_loader.so.1 of the tests share. It has no device and computes nothing.
//
// Its device memory is a memory file that is mapped twice: without access at the address that the
// application has, so that the CPU, process_vm_readv and any other way in but the driver's calls
// meets a fault, and readable and writable at an address that only Memory knows. An address that is
// freed comes back to the next allocation of that size, as drivers do. Callers are held to the
// rules: what a real driver might forgive is an error here. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "memory/standin/counts.h"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace standin {

enum class Place { device, managed, host, shared };  // shared: another process's

struct Allocation {
  Place place = Place::device;
  int device = 0;
  const void* owner = nullptr;  // what it was made in: a context, a pool
  std::byte* at = nullptr;      // as the application has it
  size_t size = 0;              // as it was asked for
  uint64_t id = 0;              // never used again
  std::byte* behind = nullptr;  // where its bytes can be reached
  int file = -1;                // whose they are
};

// What another process needs to have an allocation of this one.
struct Ticket {
  int process = 0;
  int file = -1;  // a descriptor of that process
  uint64_t size = 0;
};

class Memory {
 public:
  // Null: there is none, or size is 0.
  void* allocate(Place place, size_t size, int device, const void* owner);
  // False: no allocation of these places begins there.
  bool free(const void* at, std::initializer_list<Place> places);
  // Of a device's memory; false: none begins there.
  bool share(const void* at, Ticket* ticket) const;
  // Another process's. Null: it is not to be had, or it is this one's.
  void* open(const Ticket& ticket, int device, const void* owner);
  // The same of a descriptor that is here already, which is taken over if that succeeds.
  void* open(int file, uint64_t size, int device, const void* owner);
  // The live one that has the address.
  std::optional<Allocation> find(const void* at) const;
  // Either side may be memory of ours or the host's. False, and nothing copied: a side is not
  // inside one allocation, or was freed.
  bool copy(void* to, const void* from, size_t n);

 private:
  struct Freed {
    std::byte* at;
    size_t mapped;
  };

  std::byte* place_for(size_t mapped);
  void* add(Place place, size_t size, int device, const void* owner, int file);
  std::byte* reach(const void* at, size_t n) const;

  mutable std::mutex lock_;  // guards what follows
  std::map<const std::byte*, Allocation> live_;
  std::map<const std::byte*, size_t> freed_;  // the place, and what is reserved of it
  uint64_t last_id_ = 0;
};

struct Counters {
  std::atomic<size_t> copies{0}, bytes{0}, allocations{0}, queues{0}, contexts{0}, watches{0},
      marked{0}, calls{0}, shared{0}, loose{0}, at_once{0};
};

// A device's way for copies: one after the other, each at the rate of standin_rate(), which is
// STANDIN_MB_PER_S in the beginning. It is a model of time alone. Without a rate, what is asked for
// is over when somebody waits for it, or has looked once.
class CopyEngine {
 public:
  // n bytes: when they are there, on the clock of is_over(). Never 0.
  uint64_t begin(size_t n);
  static bool is_over(uint64_t when, bool& looked);
  static void wait(uint64_t when);

 private:
  std::mutex lock_;
  uint64_t free_at_ = 0;
};
CopyEngine& copy_engine();

// The one of this library; never destroyed.
Memory& memory();
Counters& counted();

// Asked first by each call that can fail: whether it is the one that has to.
bool fails();

}  // namespace standin
