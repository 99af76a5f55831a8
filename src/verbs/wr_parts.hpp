// The parts of a work request that not every operation has, in the core's words: one place for
// ibv_post_send(3), whose struct names them, and ibv_wr_post(3), whose calls do. No state.
#pragma once

#include "verbs/ah.hpp"
#include "verbs/errors.hpp"

namespace aperture::verbs {

inline void fill_remote(ib::SendWr& wr, uint64_t addr, uint32_t rkey) noexcept {
  wr.remote_addr = addr;
  wr.rkey = rkey;
}
inline void fill_atomic(ib::SendWr& wr, uint64_t addr, uint32_t rkey, uint64_t compare_add,
                        uint64_t swap) noexcept {
  fill_remote(wr, addr, rkey);
  wr.compare_add = compare_add;
  wr.swap = swap;
}
// 0, or EINVAL with a sentence.
inline int fill_datagram(const char* call, ib::SendWr& wr, ibv_ah* ah, uint32_t qpn,
                         uint32_t qkey) noexcept {
  if (ah == nullptr) return refuse(EINVAL, "%s: a datagram needs an address handle", call);
  wr.route = &object_of<Ah>(ah).route;
  wr.remote_qpn = qpn;
  wr.remote_qkey = qkey;
  return 0;
}

}  // namespace aperture::verbs
