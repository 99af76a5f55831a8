// fid_av_set: ordered subsets of an address vector, from which groups are made. man 3 fi_av_set.
//
// Local objects; calls on one are serialised by the application. A join copies the members.
#pragma once

#include <rdma/fi_collective.h>

#include <vector>

#include "provider/av.hpp"

namespace aperture::provider {

inline constexpr uint64_t kAllCollectives =
    FI_BARRIER_SET | FI_BROADCAST_SET | FI_ALLTOALL_SET | FI_ALLREDUCE_SET | FI_ALLGATHER_SET |
    FI_REDUCE_SCATTER_SET | FI_REDUCE_SET | FI_SCATTER_SET | FI_GATHER_SET;

struct AvSet {
  fid_av_set fid{};
  Av* av = nullptr;
  uint64_t collectives = kAllCollectives;  // that groups of it are for
  std::vector<fi_addr_t> members;

  // What fi_av_set_addr answers: names the set in a join, and nothing else.
  fi_addr_t address() const noexcept { return reinterpret_cast<fi_addr_t>(this); }
};

// fi_ops_av::av_set
int open_av_set(fid_av* av, fi_av_set_attr* attr, fid_av_set** set, void* context) noexcept;

}  // namespace aperture::provider
