// Copies into and out of a peer's device memory: see peer_devices.hpp.
#include "protect/peer_devices.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/guarded_copy.hpp"
#include "base/no_throw.hpp"

namespace aperture::protect {

const PeerDevices::Met* PeerDevices::learn(
    RegionRef life, std::shared_ptr<const memory::Registration> memory) noexcept {
  assert(life.generation != 0 && find(life) == nullptr);
  Met met{life, std::move(memory)};
  if (met_.size() == kMost) {
    Met& place = met_[oldest_];
    oldest_ = (oldest_ + 1) % kMost;
    place = std::move(met);
    return &place;
  }
  const Status noted = no_throw([&] { met_.push_back(std::move(met)); });
  return noted ? &met_.back() : nullptr;
}

void PeerDevices::forget() noexcept {
  met_.clear();
  for (size_t kind = 0; kind < stand_ins_.size(); ++kind) {
    std::byte* const own = std::exchange(stand_ins_[kind], nullptr);
    if (own == nullptr) continue;
    memory::Driver* const driver = memory::in_use(static_cast<memory::Kind>(kind));
    if (driver != nullptr) driver->give_host(own, kChunkBytes);  // null: in a forked child
  }
}

bool PeerDevices::names_pinned(const memory::Registration& device,
                               const iovec& host) const noexcept {
  const memory::Driver* const driver = memory::in_use(device.kind());
  return driver != nullptr && driver->has_pinned(host.iov_base, host.iov_len);
}

std::byte* PeerDevices::stand_in(const memory::Registration& device) noexcept {
  const auto kind = static_cast<size_t>(device.kind());
  if (kind >= stand_ins_.size()) return nullptr;  // it has no driver
  std::byte*& own = stand_ins_[kind];
  memory::Driver* const driver = own == nullptr ? memory::in_use(device.kind()) : nullptr;
  if (driver != nullptr) own = static_cast<std::byte*>(driver->take_host(kChunkBytes));
  return own;
}

// Calls copy(host, device, n) for pieces that a stand-in takes, until one says no.
template <typename Copy>
static PeerDevices::Copied each_piece(const iovec& host, std::byte* at, Copy&& copy) noexcept {
  auto* const bytes = static_cast<std::byte*>(host.iov_base);
  for (size_t done = 0; done < host.iov_len;) {
    const size_t n = std::min<size_t>(host.iov_len - done, kChunkBytes);
    const PeerDevices::Copied copied = copy(bytes + done, at + done, n);
    if (copied != PeerDevices::Copied::yes) return copied;
    done += n;
  }
  return PeerDevices::Copied::yes;
}

PeerDevices::Copied PeerDevices::copy_in(const memory::Registration& to, std::byte* at,
                                         const iovec& from) noexcept {
  assert(from.iov_len <= kDeviceChunkBytes);
  if (from.iov_len == 0) return Copied::yes;
  if (names_pinned(to, from)) {
    return to.copy_in(at, from.iov_base, from.iov_len) ? Copied::yes : Copied::no_device;
  }
  std::byte* const own = stand_in(to);
  if (own == nullptr) return Copied::no_device;
  return each_piece(from, at, [&](std::byte* host, std::byte* device, size_t n) {
    if (!guarded_copy(own, host, n)) return Copied::no_local;
    return to.copy_in(device, own, n) ? Copied::yes : Copied::no_device;
  });
}

PeerDevices::Copied PeerDevices::copy_out(const iovec& to, const memory::Registration& from,
                                          std::byte* at) noexcept {
  assert(to.iov_len <= kDeviceChunkBytes);
  if (to.iov_len == 0) return Copied::yes;
  if (names_pinned(from, to)) {
    return from.copy_out(to.iov_base, at, to.iov_len) ? Copied::yes : Copied::no_device;
  }
  std::byte* const own = stand_in(from);
  if (own == nullptr) return Copied::no_device;
  return each_piece(to, at, [&](std::byte* host, std::byte* device, size_t n) {
    if (!from.copy_out(own, device, n)) return Copied::no_device;
    return guarded_copy(host, own, n) ? Copied::yes : Copied::no_local;
  });
}

}  // namespace aperture::protect
