// Memory of devices: what the CPU cannot touch, and a driver's calls copy. fi_mr(3), "FI_HMEM" and
// fi_mr_attr's iface.
//
// One interface over the drivers of CUDA, ROCr and Level Zero. None is linked: a driver's library
// is loaded when its memory is first asked for, and what it lacks is said in a sentence. A process
// that has no such memory never comes here but to ask find(), which loads nothing.
//
// Threads: any, in all calls, but a Flight is one thread's at a time. No copy and no question holds
// a lock of ours while the driver works; only who asks for a driver that is being set up, or for
// what another process shares, may wait.
#pragma once

#include <sys/types.h>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/errc.hpp"

namespace aperture::memory {

enum class Kind : uint8_t { cuda, rocr, ze, dma_buf };
inline constexpr size_t kKinds = 3;  // that have a driver: all but dma_buf (dma_buf.hpp)

// "CUDA", "ROCr", "Level Zero", "a dma-buf".
const char* name_of(Kind kind) noexcept;

// What another process of this user needs to copy into and out of the same memory by itself, as
// the driver gives it out. Plain bytes, which it reads from us and believes none of.
struct Share {
  uint64_t kind = 0;                   // a Kind
  std::array<std::byte, 16> device{};  // the driver's name for the device, whatever its number is
  std::array<std::byte, 64> handle{};  // of the allocation, for that driver in another process
  uint64_t id = 0;                     // of the allocation: its handle may be used again
  uint64_t offset = 0;                 // bytes, of the range in its allocation
};
static_assert(sizeof(Share) == 104);

class Registration;

// A copy that goes on by itself, from Registration::begin_in() or begin_out() until it is over. The
// registration and both places outlive it; whoever destroys one that is under way waits for it.
class Flight {
 public:
  enum class State : uint8_t { none, under_way, copied, failed };

  Flight() noexcept = default;
  ~Flight() { finish(); }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  bool is_under_way() const noexcept { return state_ == State::under_way; }
  // Looks whether it is over, and does not wait.
  State look() noexcept;
  // Waits until it is; false: it has failed, and some may have been copied. Of none: true.
  bool finish() noexcept;

 private:
  friend class Registration;
  void note(const Registration& of, void* queue, State state) noexcept {
    assert(state_ != State::under_way);
    of_ = &of;
    queue_ = queue;
    state_ = state;
  }

  const Registration* of_ = nullptr;
  void* queue_ = nullptr;  // the driver's; of one that is under way
  State state_ = State::none;
};

// A range of device memory that somebody uses: the allocation that it was part of when it was
// registered. Once that is freed both copies fail, although the address may be memory again.
class Registration {
 public:
  virtual ~Registration() = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  virtual Kind kind() const noexcept = 0;
  // Its first byte: no address for the CPU.
  std::byte* begin() const noexcept { return const_cast<std::byte*>(at_); }
  // Whether n bytes from that offset on are all of the range's.
  bool covers(uint64_t offset, uint64_t n) const noexcept {
    return offset <= len_ && n <= len_ - offset;
  }
  // False: its driver lets no other process have that memory.
  virtual bool share(Share& /*out*/) const noexcept { return false; }
  // Copies n bytes into and out of it and returns when they are there. `at`: an address of the
  // range, with n bytes of it behind. The other place is host memory. False: the driver refused, or
  // the memory is not what was registered; some of it may have been copied. Of 0 bytes: true.
  [[nodiscard]] bool copy_in(std::byte* at, const void* from, size_t n) const noexcept {
    assert(is_within(at, n));
    return n == 0 || put(at, from, n);
  }
  [[nodiscard]] bool copy_out(void* to, const std::byte* at, size_t n) const noexcept {
    assert(is_within(at, n));
    return n == 0 || get(to, at, n);
  }
  // The same of n > 0 bytes, which go on while the caller does something else, where the driver can
  // do that and the host memory is pinned (Driver::take_host). False: refused, none is under way.
  [[nodiscard]] bool begin_in(Flight& flight, std::byte* at, const void* from,
                              size_t n) const noexcept {
    assert(is_within(at, n) && n != 0);
    void* queue = nullptr;
    const Flight::State state = begin_put(queue, at, from, n);
    flight.note(*this, queue, state);
    return state != Flight::State::failed;
  }
  [[nodiscard]] bool begin_out(Flight& flight, void* to, const std::byte* at,
                               size_t n) const noexcept {
    assert(is_within(at, n) && n != 0);
    void* queue = nullptr;
    const Flight::State state = begin_get(queue, to, at, n);
    flight.note(*this, queue, state);
    return state != Flight::State::failed;
  }

 protected:
  Registration(const std::byte* at, size_t len) noexcept : at_(at), len_(len) {}

 private:
  // The copies, of n > 0 bytes.
  virtual bool put(std::byte* at, const void* from, size_t n) const noexcept = 0;
  virtual bool get(void* to, const std::byte* at, size_t n) const noexcept = 0;
  // Begun: `queue` is whatever settle() knows it by. A driver that copies at once is over with it.
  virtual Flight::State begin_put(void*& /*queue*/, std::byte* at, const void* from,
                                  size_t n) const noexcept {
    return put(at, from, n) ? Flight::State::copied : Flight::State::failed;
  }
  virtual Flight::State begin_get(void*& /*queue*/, void* to, const std::byte* at,
                                  size_t n) const noexcept {
    return get(to, at, n) ? Flight::State::copied : Flight::State::failed;
  }
  // Whether it is over, which ends it; with `wait`, once it is.
  virtual Flight::State settle(void* /*queue*/, bool /*wait*/) const noexcept {
    return Flight::State::failed;
  }
  friend class Flight;

  bool is_within(const std::byte* at, size_t n) const noexcept {
    return at >= at_ && n <= len_ && at - at_ <= static_cast<ptrdiff_t>(len_ - n);
  }

  const std::byte* const at_;
  const size_t len_;
};

inline Flight::State Flight::look() noexcept {
  if (state_ == State::under_way) state_ = of_->settle(queue_, false);
  return state_;
}

inline bool Flight::finish() noexcept {
  if (state_ == State::under_way) state_ = of_->settle(queue_, true);
  assert(state_ != State::under_way);
  return state_ != State::failed;
}

class Driver {
 public:
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  virtual Kind kind() const noexcept = 0;
  // Of len > 0 bytes, which may be managed memory that the CPU can touch as well. `device`: its
  // number, as the application gives it; kAnyDevice: whichever has it. Errors, with `why` in static
  // storage: invalid (no memory of this driver's, more than one allocation, or of another device),
  // not_supported (the driver has it at the host, where the CPU copies it), no_memory, io (the
  // driver said no, or this is a forked child).
  static constexpr int kAnyDevice = -1;
  virtual Result<std::shared_ptr<const Registration>> add(void* at, size_t len, int device,
                                                          const char*& why) noexcept = 0;
  // Whether the memory at that address is this driver's, and the CPU must not touch it. Costs one
  // look-up of the driver's.
  virtual bool has(const void* at) const noexcept = 0;

  // `len` bytes of what another process, `owner`, shares, for as long as this is held, whatever
  // becomes of them there: that its registration goes on is for the caller to see to. Every byte of
  // the share may be anything. Null: they are not to be had.
  virtual std::shared_ptr<const Registration> open(const Share& share, size_t len,
                                                   pid_t owner) noexcept = 0;

  // Whether n > 0 bytes there are host memory that the driver has pinned, so that a copy may name
  // them: they stay, whatever the application does.
  virtual bool has_pinned(const void* /*at*/, size_t /*n*/) const noexcept { return false; }
  // Host memory that the device copies to and from at its full speed. Null: there is none left. To
  // be given back with the same size.
  virtual void* take_host(size_t n) noexcept = 0;
  virtual void give_host(void* at, size_t n) noexcept = 0;

 protected:
  Driver() noexcept = default;
};

// The driver of that kind, whose library is loaded and set up at the first call. It stays loaded.
// In a forked child it is refused: no driver survives a fork. Errors, with `why` (static storage):
// not_supported (no such library, no device, or one that is too old), no_memory.
Result<Driver*> driver(Kind kind, const char*& why) noexcept;

// The driver of that kind, if this process has loaded and set up its library by itself; else null.
// Loads no library.
Driver* in_use(Kind kind) noexcept;

// `len` > 0 bytes of what the process `owner` shares (Driver::open), by the driver that this
// process has in use; null: they are not to be had.
std::shared_ptr<const Registration> open(const Share& share, size_t len, pid_t owner) noexcept;

// Which driver's memory the address is, where the CPU must not touch it; null: none's, so far as
// the drivers know that this process has loaded by itself. Loads no library.
Driver* find(const void* at) noexcept;

}  // namespace aperture::memory
