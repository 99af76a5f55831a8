// The calls of an address vector, as far as this provider serves them: those of 1.20 too where the
// headers that it is built with are older. Whoever calls one looks at the table's size first.
#pragma once

#include <rdma/fi_domain.h>

namespace aperture::provider {

#if FI_MAJOR_VERSION < 2 && FI_MINOR_VERSION < 20
struct AvOps : fi_ops_av {
  int (*insert_auth_key)(fid_av*, const void* auth_key, size_t size, fi_addr_t*, uint64_t flags);
  int (*lookup_auth_key)(fid_av*, fi_addr_t, void* auth_key, size_t* size);
  int (*set_user_id)(fid_av*, fi_addr_t, fi_addr_t user_id, uint64_t flags);
};
static_assert(sizeof(AvOps) == sizeof(fi_ops_av) + 3 * sizeof(void*));
#else
using AvOps = fi_ops_av;
#endif

}  // namespace aperture::provider
