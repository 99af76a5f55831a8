// What endpoints of librdmacm in tests are made of (rdma_create_ep(3)): an address, by default on
// the loopback interface, and a queue pair of a few requests, each of which completes.
#pragma once

#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstring>

namespace aperture::test {

inline ibv_qp_init_attr queue_attr() {
  ibv_qp_init_attr attr{};
  attr.cap = {4, 4, 1, 1, 16};
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  return attr;
}

// With a queue pair, as soon as it is connected; to be given back by rdma_destroy_ep(). Null: see
// errno.
inline rdma_cm_id* endpoint_at(const char* ip, const char* port, int flags) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = flags;
  rdma_addrinfo* at = nullptr;
  if (rdma_getaddrinfo(ip, port, &hints, &at) != 0) return nullptr;
  ibv_qp_init_attr attr = queue_attr();
  rdma_cm_id* id = nullptr;
  const bool made = rdma_create_ep(&id, at, nullptr, &attr) == 0;
  rdma_freeaddrinfo(at);
  return made ? id : nullptr;
}
inline rdma_cm_id* endpoint(const char* port, int flags) {
  rdma_cm_id* const id = endpoint_at("127.0.0.1", port, flags);
  EXPECT_NE(id, nullptr) << std::strerror(errno);
  return id;
}

}  // namespace aperture::test
