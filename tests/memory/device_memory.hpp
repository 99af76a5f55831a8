// Memory of a device as an application has it: through the vendor's library, which is loaded and
// set up as that vendor's programs do. It works over a real driver, and over the stand-ins of
// tests/memory/standin, whose folder LD_LIBRARY_PATH has to name (memory/CMakeLists.txt).
//
// Nothing of Aperture's is used here: any test may include this. Any thread; but CUDA's current
// context is each thread's own, and use_here() sets it in another thread than the one that opened.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "memory/standin/counts.h"

namespace aperture::test {

// In the order of memory::Kind.
enum class DeviceKind { cuda, rocr, ze };
inline constexpr DeviceKind kDeviceKinds[] = {DeviceKind::cuda, DeviceKind::rocr, DeviceKind::ze};

// "cuda", "rocr", "ze"; of the library, "libcuda.so.1" and so on.
const char* name_of(DeviceKind kind);
const char* library_of(DeviceKind kind);

class Devices {
 public:
  // Null: there is no such library, or no device; `why` says what happened. For tests that go
  // through a door, the process has the library loaded from now on, as an application would.
  static std::unique_ptr<Devices> open(DeviceKind kind, std::string& why);
  virtual ~Devices() = default;

  virtual DeviceKind kind() const = 0;
  virtual size_t count() const = 0;
  // The number that memory::Driver::add and libfabric's fi_mr_attr have for it.
  virtual int number_of(size_t device) const { return static_cast<int>(device); }

  // Null: there is none. Managed memory is null where the kind has no such thing.
  virtual void* allocate(size_t size, size_t device = 0) = 0;
  virtual void* allocate_managed(size_t size) = 0;
  virtual void* allocate_host(size_t size) = 0;
  // What any of these returned.
  virtual bool free(void* at) = 0;

  // The vendor's synchronous copies.
  virtual bool write(void* to_device, const void* from, size_t n) = 0;
  virtual bool read(void* to, const void* from_device, size_t n) = 0;

  // CUDA's current context of this thread, which nothing of ours may change; else null.
  virtual void* current() const { return nullptr; }
  virtual void use_here() {}

  // Of a stand-in; a real driver counts nothing and cannot be made to fail.
  bool is_standin() const;
  standin_counts counts() const;
  void fail(size_t nth);
  void set_rate(size_t mb_per_s);

 protected:
  explicit Devices(void* library) : library_(library) {}
  // The function of that name; ends the test program if the library has none.
  template <typename Function>
  Function* call(const char* name) const {
    return reinterpret_cast<Function*>(find(name));
  }

 private:
  void* find(const char* name) const;

  void* const library_;
};

// One allocation of device memory, freed at the end unless that happened before.
class DeviceMemory {
 public:
  DeviceMemory(Devices& devices, size_t size, size_t device = 0)
      : devices_(devices),
        at_(static_cast<std::byte*>(devices.allocate(size, device))),
        size_(size) {}
  ~DeviceMemory() { free(); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* at() const { return at_; }
  size_t size() const { return size_; }
  bool write(size_t offset, const void* from, size_t n) {
    return devices_.write(at_ + offset, from, n);
  }
  bool read(void* to, size_t offset, size_t n) const { return devices_.read(to, at_ + offset, n); }
  bool free() {
    void* const gone = at_;
    at_ = nullptr;
    return gone == nullptr || devices_.free(gone);
  }

 private:
  Devices& devices_;
  std::byte* at_;
  const size_t size_;
};

}  // namespace aperture::test
