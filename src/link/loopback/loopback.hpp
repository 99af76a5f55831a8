// Loopback: a lane from an endpoint to itself, or between two endpoints of one process.
//
// The same rings in memory of this process. make_self_lane() joins the outgoing channels to the
// incoming ones of one lane; make_lane_pair() makes two ends, for tests and for endpoints of two
// engines.
#pragma once

#include <memory>
#include <utility>

#include "link/lane.hpp"

namespace aperture::link::loopback {

// Errors: no_memory. doorbell_fd: the engine's own.
Result<std::unique_ptr<Lane>> make_self_lane(const Address& self, uint32_t domain,
                                             int doorbell_fd) noexcept;

using LanePair = std::pair<std::unique_ptr<Lane>, std::unique_ptr<Lane>>;
// Two ends over one anonymous mapping; the doorbells are those of the engine at the other end.
Result<LanePair> make_lane_pair(int doorbell_of_first, int doorbell_of_second) noexcept;

}  // namespace aperture::link::loopback
