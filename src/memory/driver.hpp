// Memory of devices: what the CPU cannot touch, and a driver's calls copy. fi_mr(3), "FI_HMEM" and
// fi_mr_attr's iface.
//
// One interface over the drivers of CUDA, ROCr and Level Zero. None is linked: a driver's library
// is loaded when its memory is first asked for, and what it lacks is said in a sentence. A process
// that has no such memory never comes here but to ask find(), which loads nothing.
//
// Threads: any, in all calls. No copy and no question holds a lock of ours while the driver works;
// only who asks for a driver that is being set up waits for that.
#pragma once

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

 protected:
  Registration(const std::byte* at, size_t len) noexcept : at_(at), len_(len) {}

 private:
  // The copies, of n > 0 bytes.
  virtual bool put(std::byte* at, const void* from, size_t n) const noexcept = 0;
  virtual bool get(void* to, const std::byte* at, size_t n) const noexcept = 0;
  bool is_within(const std::byte* at, size_t n) const noexcept {
    return at >= at_ && n <= len_ && at - at_ <= static_cast<ptrdiff_t>(len_ - n);
  }

  const std::byte* const at_;
  const size_t len_;
};

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

  // `len` bytes of what another process shares, for as long as this is held, whatever becomes of
  // them there: that its registration goes on is for the caller to see to. Every byte of the share
  // may be anything. Null: they are not to be had.
  virtual std::shared_ptr<const Registration> open(const Share& /*share*/,
                                                   size_t /*len*/) noexcept {
    return nullptr;
  }

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

// `len` > 0 bytes of what another process shares (Driver::open), by the driver that this process
// has in use; null: they are not to be had.
std::shared_ptr<const Registration> open(const Share& share, size_t len) noexcept;

// Which driver's memory the address is, where the CPU must not touch it; null: none's, so far as
// the drivers know that this process has loaded by itself. Loads no library.
Driver* find(const void* at) noexcept;

}  // namespace aperture::memory
