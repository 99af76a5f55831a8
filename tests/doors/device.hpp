// Memory of a device at the libfabric door: an allocation that is registered with its iface.
#pragma once

#include <gtest/gtest.h>

#include "doors/region.hpp"
#include "memory/device_memory.hpp"

namespace aperture::doors {

inline fi_hmem_iface iface_of(test::DeviceKind kind) {
  switch (kind) {
    case test::DeviceKind::cuda: return FI_HMEM_CUDA;
    case test::DeviceKind::rocr: return FI_HMEM_ROCR;
    case test::DeviceKind::ze: break;
  }
  return FI_HMEM_ZE;
}

inline fi_mr_attr device_attr(test::DeviceKind kind, int device, const iovec* iov, size_t count) {
  static uint64_t next_key = 0xd0000 + ((static_cast<uint64_t>(getpid()) & 0xFFF) << 20);
  fi_mr_attr attr{.mr_iov = iov,
                  .iov_count = count,
                  .access = kAllAccess,
                  .requested_key = next_key++,
                  .iface = iface_of(kind)};
  if (kind == test::DeviceKind::ze) {
    attr.device.ze = device;
  } else {
    attr.device.cuda = device;
  }
  return attr;
}

inline Options hmem(int mr_mode, uint64_t caps = kUsualCaps | FI_ATOMIC) {
  return {.caps = caps | FI_HMEM, .mr_mode = mr_mode};
}

// The driver of the machine, or the stand-in; the process has it, as an application would.
class WithDevices {
 protected:
  void open(test::DeviceKind kind) {
    std::string why;
    devices = test::Devices::open(kind, why);
    ASSERT_NE(devices, nullptr) << why;
  }
  std::unique_ptr<test::Devices> devices;
};

class DeviceRegion {
 public:
  DeviceRegion(Node& node, test::Devices& devices, size_t size) : memory_(devices, size) {
    if (memory_.at() == nullptr) throw DoorError("device memory", -FI_ENOMEM);
    std::vector<uint8_t> zeros(size, 0);
    memory_.write(0, zeros.data(), size);
    const iovec iov{memory_.at(), size};
    const fi_mr_attr attr = device_attr(devices.kind(), devices.number_of(0), &iov, 1);
    fid_mr* mr = nullptr;
    DOOR(fi_mr_regattr(node.domain(), &attr, 0, &mr));
    mr_.reset(mr);
    remote_.base = node.virtual_addresses() ? reinterpret_cast<uint64_t>(memory_.at()) : 0;
    remote_.key = fi_mr_key(mr);
    remote_.size = size;
  }

  test::DeviceMemory& memory() { return memory_; }
  std::byte* at(size_t offset = 0) { return memory_.at() + offset; }
  void* desc() { return fi_mr_desc(mr_.get()); }
  fid_mr* mr() { return mr_.get(); }
  const Remote& remote() const { return remote_; }
  int close() { return fi_close(&mr_.release()->fid); }

  void put(size_t offset, const std::vector<uint8_t>& bytes) {
    ASSERT_TRUE(memory_.write(offset, bytes.data(), bytes.size()));
  }
  std::vector<uint8_t> get(size_t offset, size_t n) const {
    std::vector<uint8_t> bytes(n);
    EXPECT_TRUE(memory_.read(bytes.data(), offset, n));
    return bytes;
  }

 private:
  test::DeviceMemory memory_;
  Fid<fid_mr> mr_;
  Remote remote_;
};

}  // namespace aperture::doors
