// Memory windows: include/aperture/fi_window.h, docs/man/aperture_fi_window.3.
//
// A bound window is an entry of its own in the process's key table, with a key that is drawn. Bound
// to an endpoint or to one queue pair of it, its peers leave it to this process, and each of them
// that reaches it may invalidate it; so whether it is still bound is a question to the key table,
// never remembered here. Guarded by the engine's lock, but for what the application serialises: two
// calls on the same window.
#pragma once

#include <aperture/fi_window.h>

#include "protect/key_table.hpp"
#include "provider/domain.hpp"

namespace aperture::provider {

struct Region;

struct Window {
  aperture_window handle{};
  Domain* domain = nullptr;
  Region* region = nullptr;     // what it was bound to last, until either knows that it is over
  protect::RegionHandle entry;  // generation 0: not bound since it was invalidated here
  bool of_one = false;          // bound to an endpoint or queue pair: ends without waiting
};

// fi_open_ops of a domain. man 3 fi_domain
int open_domain_ops(fid* fid, const char* name, uint64_t flags, void** ops, void* context) noexcept;

// ep_window.cpp: the slot of that name. Data path.
ssize_t send_inv(fid_ep* ep, const void* buf, size_t len, void* desc, fi_addr_t dest, uint64_t key,
                 void* context) noexcept;

// The windows that peers have invalidated leave their region. Engine lock held.
void drop_ended_windows(Region& region) noexcept;

}  // namespace aperture::provider
