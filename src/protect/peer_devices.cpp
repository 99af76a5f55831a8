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
    if (driver != nullptr)
      driver->give_host(own, kStandIns * kChunkBytes);  // null: in a forked child
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
  if (driver != nullptr) own = static_cast<std::byte*>(driver->take_host(kStandIns * kChunkBytes));
  return own;
}

namespace {

// One of two places that what is long goes through in turn.
struct StandIn {
  std::byte* at = nullptr;
  std::byte* host = nullptr;  // where its bytes belong
  size_t n = 0;               // 0: it is free
  memory::Flight flight;      // over before the places are others' again
};

}  // namespace

PeerDevices::Copied PeerDevices::copy_in(const memory::Registration& to, std::byte* at,
                                         const iovec& from) noexcept {
  assert(from.iov_len <= kDeviceChunkBytes);
  if (from.iov_len == 0) return Copied::yes;
  if (names_pinned(to, from)) {
    return to.copy_in(at, from.iov_base, from.iov_len) ? Copied::yes : Copied::no_device;
  }
  std::byte* const own = stand_in(to);
  if (own == nullptr) return Copied::no_device;
  const auto* const bytes = static_cast<const std::byte*>(from.iov_base);
  if (from.iov_len <= kChunkBytes) {
    if (!guarded_copy(own, bytes, from.iov_len)) return Copied::no_local;
    return to.copy_in(at, own, from.iov_len) ? Copied::yes : Copied::no_device;
  }
  std::array<StandIn, kStandIns> places;
  size_t turn = 0;
  for (size_t done = 0; done < from.iov_len; turn = (turn + 1) % kStandIns) {
    const size_t n = std::min<size_t>(from.iov_len - done, kChunkBytes);
    std::byte* const place = own + turn * kChunkBytes;
    memory::Flight& flight = places[turn].flight;
    if (!flight.finish()) return Copied::no_device;
    if (!guarded_copy(place, bytes + done, n)) return Copied::no_local;
    if (!to.begin_in(flight, at + done, place, n)) return Copied::no_device;
    done += n;
  }
  const bool copied =
      std::all_of(places.begin(), places.end(), [](StandIn& each) { return each.flight.finish(); });
  return copied ? Copied::yes : Copied::no_device;
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
  auto* const bytes = static_cast<std::byte*>(to.iov_base);
  if (to.iov_len <= kChunkBytes) {
    if (!from.copy_out(own, at, to.iov_len)) return Copied::no_device;
    return guarded_copy(bytes, own, to.iov_len) ? Copied::yes : Copied::no_local;
  }
  std::array<StandIn, kStandIns> places;
  size_t begun = 0;
  size_t turn = 0;
  const auto begin = [&](StandIn& place) {
    place.n = std::min<size_t>(to.iov_len - begun, kChunkBytes);
    place.host = bytes + begun;
    if (place.n == 0) return true;
    begun += place.n;
    return from.begin_out(place.flight, place.at, at + (place.host - bytes), place.n);
  };
  for (StandIn& place : places) {
    place.at = own + (&place - places.data()) * static_cast<ptrdiff_t>(kChunkBytes);
    if (!begin(place)) return Copied::no_device;
  }
  for (; places[turn].n != 0; turn = (turn + 1) % kStandIns) {
    StandIn& place = places[turn];
    if (!place.flight.finish()) return Copied::no_device;
    if (!guarded_copy(place.host, place.at, place.n)) return Copied::no_local;
    if (!begin(place)) return Copied::no_device;
  }
  return Copied::yes;
}

}  // namespace aperture::protect
