// Device memory of one peer that this side copies into and out of by itself, as its driver has
// mapped it here: which lives of regions were met, and what was opened for them.
//
// One lane's, guarded as its OneSided is. What is held here stays memory, whatever its owner does
// with it: whether it may be copied is for the pin to say (peer_key_view.hpp), each time. What
// belongs to lives that are over is let go when the next one is met.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/driver.hpp"
#include "protect/grant.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

class PeerDevices {
 public:
  // What a life of a region was found to be; null: this process cannot have it.
  struct Met {
    RegionRef life;
    std::shared_ptr<const memory::Registration> memory;
  };

  PeerDevices() noexcept = default;
  ~PeerDevices() { forget(); }
  PeerDevices(const PeerDevices&) = delete;
  PeerDevices& operator=(const PeerDevices&) = delete;

  // Null: it was not met so far.
  const Met* find(RegionRef life) const noexcept {
    for (const Met& met : met_) {
      // both: an owner that lies gives one generation to two entries
      if (met.life.generation == life.generation && met.life.index == life.index) return &met;
    }
    return nullptr;
  }
  // Null: there is no memory to note it in.
  const Met* learn(RegionRef life, std::shared_ptr<const memory::Registration> memory) noexcept;
  // Lets go of what is_over(RegionRef) says.
  template <typename IsOver>
  void drop(IsOver&& is_over) noexcept {
    std::erase_if(met_, [&](const Met& met) { return is_over(met.life); });
  }
  void forget() noexcept;

  // Copies at most kDeviceChunkBytes between host memory that may be anything and such memory;
  // `at`: in it. no_local: the host's could not be touched; no_device: the driver did not copy.
  enum class Copied : uint8_t { yes, no_local, no_device };
  Copied copy_in(const memory::Registration& to, std::byte* at, const iovec& from) noexcept;
  Copied copy_out(const iovec& to, const memory::Registration& from, std::byte* at) noexcept;
  // kChunkBytes of host memory that the device's driver has pinned, until the next call here for
  // memory of that driver's. Null: there are none. (There are as many more behind, for the copies
  // above: what is longer than a chunk goes through both in turn, and the driver copies one while
  // the CPU copies the other.)
  std::byte* stand_in(const memory::Registration& device) noexcept;

 private:
  static constexpr size_t kMost = 64;

  static constexpr size_t kStandIns = 2;

  bool names_pinned(const memory::Registration& device, const iovec& host) const noexcept;

  std::vector<Met> met_;
  size_t oldest_ = 0;  // once there are kMost
  // Of each kind. Also for memory of the host's that is not pinned: the application may unmap its
  // own buffer while a driver copies, and then the driver would end the process.
  std::array<std::byte*, memory::kKinds> stand_ins_{};
};

}  // namespace aperture::protect
