// fi_join and what it returns. man 3 fi_cm.
//
// An fid_mc is an object of its own, whatever was joined: a multicast group here, where fi_join is
// the call of datagram endpoints, or a collective group (fi_collective(3)), for which fi_join is
// called with FI_COLLECTIVE.
#pragma once

#include <rdma/fi_cm.h>

#include "provider/ep.hpp"

namespace aperture::provider {

// What every fid_mc begins with.
struct Joined {
  fid_mc fid{};
  Domain* domain = nullptr;
};

// fi_join without FI_COLLECTIVE.
int join_multicast(fid_ep* ep, const void* addr, uint64_t flags, fid_mc** mc,
                   void* context) noexcept;

}  // namespace aperture::provider
