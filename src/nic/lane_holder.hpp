// A lane on its way from first contact to an engine: a std::function has to be copyable, and a lane
// is not. It goes back to contact if its engine ends without having run what was posted.
#pragma once

#include <memory>
#include <utility>

#include "link/lane.hpp"
#include "nic/contact.hpp"

namespace aperture::nic {

struct LaneHolder {
  LaneHolder(Contact& to, std::unique_ptr<link::Lane> made) noexcept
      : contact(to), lane(std::move(made)) {}
  LaneHolder(const LaneHolder&) = delete;
  LaneHolder& operator=(const LaneHolder&) = delete;
  ~LaneHolder() {
    if (lane != nullptr) contact.close_lane(std::move(lane));
  }
  Contact& contact;
  std::unique_ptr<link::Lane> lane;
};

}  // namespace aperture::nic
