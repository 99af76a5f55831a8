// fid_fabric: the root of what an application opens. man 3 fi_fabric. Any thread.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "provider/entry.hpp"

namespace aperture::provider {

struct Fabric {
  fid_fabric fid{};
  uint32_t api_version = 0;
  Uses uses;        // domains, event queues and wait sets
  ForkRound round;  // in which it was opened
};

int open_fabric(fi_fabric_attr* attr, fid_fabric** fabric, void* context);

// For fi_getinfo: the fabrics that are open in this process.
fid_fabric* first_open_fabric() noexcept;
bool is_open_fabric(const fid_fabric* fabric) noexcept;

// What its ops open; each in its own file.
int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, uint64_t flags,
                void* context) noexcept;
int open_eq(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context) noexcept;
int open_wait_set(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** set) noexcept;
int try_wait(fid_fabric* fabric, fid** fids, int count) noexcept;

}  // namespace aperture::provider
