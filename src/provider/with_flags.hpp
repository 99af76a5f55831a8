// The argument of the calls with flags (fi_sendmsg and its like), made of those of the calls
// without: for tables in which the latter become the former. man 3 fi_msg, fi_tagged, fi_rma,
// fi_atomic. Values that point to the caller's arrays; no state.
#pragma once

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "base/iov.hpp"

namespace aperture::provider {

// `Tag` is empty for fi_msg and one uint64_t for fi_msg_tagged.
template <typename Msg, typename... Tag>
struct BuiltMessage {
  static Msg of(const iovec* iov, void** desc, size_t count, fi_addr_t addr, Tag... tag,
                Tag... ignore, void* context) noexcept {
    Msg m{};
    m.msg_iov = iov;
    m.desc = desc;
    m.iov_count = count;
    m.addr = addr;
    m.context = context;
    if constexpr (sizeof...(Tag) != 0) {
      m.tag = (uint64_t{0} | ... | tag);
      m.ignore = (uint64_t{0} | ... | ignore);
    }
    return m;
  }
};

struct BuiltAccess {
  fi_rma_iov range{};
  fi_msg_rma msg{};

  BuiltAccess(const iovec* iov, void** desc, size_t count, fi_addr_t peer, uint64_t addr,
              uint64_t key, void* context, uint64_t data) noexcept {
    range = {addr, iov != nullptr ? iov_bytes(iov, count) : 0, key};
    msg.msg_iov = iov;
    msg.desc = desc;
    msg.iov_count = count;
    msg.addr = peer;
    msg.rma_iov = &range;
    msg.rma_iov_count = 1;
    msg.context = context;
    msg.data = data;
  }
  BuiltAccess(const BuiltAccess&) = delete;
  BuiltAccess& operator=(const BuiltAccess&) = delete;
};

// What the three kinds of atomics have in common: the message, without the buffers of results.
struct BuiltAtomic {
  fi_rma_ioc range{};
  fi_msg_atomic msg{};

  BuiltAtomic(const fi_ioc* iov, void** desc, size_t count, fi_addr_t peer, uint64_t addr,
              uint64_t key, fi_datatype type, fi_op op, void* context, size_t elements) noexcept {
    range = {addr, elements, key};
    msg.msg_iov = iov;
    msg.desc = desc;
    msg.iov_count = count;
    msg.addr = peer;
    msg.rma_iov = &range;
    msg.rma_iov_count = 1;
    msg.datatype = type;
    msg.op = op;
    msg.context = context;
  }
  BuiltAtomic(const BuiltAtomic&) = delete;
  BuiltAtomic& operator=(const BuiltAtomic&) = delete;

  static size_t elements_of(const fi_ioc* iov, size_t count) noexcept {
    size_t sum = 0;
    for (size_t i = 0; iov != nullptr && i < count; ++i) sum += iov[i].count;
    return sum;
  }
};

// What an endpoint's default flags may say to fi_readmsg and to fi_writemsg.
inline constexpr uint64_t kReadKnown =
    FI_COMPLETION | FI_TRIGGER | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
inline constexpr uint64_t kWriteKnown = kReadKnown | FI_INJECT | FI_COMMIT_COMPLETE;

}  // namespace aperture::provider
