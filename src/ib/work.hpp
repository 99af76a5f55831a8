// Work requests: what the verbs door posts. Plain values; the callee copies what it needs: the
// scatter/gather list, and the bytes themselves if they are inline. (ibv_post_send(3).)
#pragma once

#include <cstdint>

#include "ib/words.hpp"
#include "protect/window.hpp"

namespace aperture::ib {

struct Route;

// Laid out as the door has it, which asserts that.
struct Sge {
  uint64_t addr;
  uint32_t length;  // bytes
  uint32_t lkey;
};

struct InlinePart {
  const void* bytes;
  uint64_t len;
};

// A binding of a window (ibv_bind_mw(3), ibv_post_send(3)). Window and region are named by keys,
// and looked up when the WQE has its turn: whatever has been destroyed by then is not found.
struct BindWr {
  uint32_t window_key = 0;  // any key of the window
  uint32_t region_key = 0;  // lkey; 0: none, for an unbind
  uint64_t addr = 0;
  uint64_t len = 0;  // bytes; 0 unbinds (type 1)
  protect::Rights rights = protect::Rights::none;
  bool zero_based = false;
  bool by_work_request = true;  // false: by the verb of type 1 windows
  uint32_t rkey = 0;            // that it shall have
  const void* bound_at = nullptr;
};

struct SendWr {
  uint64_t id = 0;
  SendOp op = SendOp::send;
  uint32_t flags = 0;
  const Sge* sge = nullptr;  // unless inline_parts is set
  uint32_t sge_count = 0;
  const InlinePart* inline_parts = nullptr;  // copied at the post
  uint32_t inline_count = 0;
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint32_t imm = 0;          // network order, as given; or the rkey to invalidate
  uint64_t compare_add = 0;  // or the bytes to flush
  uint64_t swap = 0;         // or how they are: kFlush...
  uint32_t srq_number = 0;   // XRC: of the receive queue over there
  const BindWr* bind = nullptr;
  // UD
  const Route* route = nullptr;
  uint32_t remote_qpn = 0;
  uint32_t remote_qkey = 0;
};

struct RecvWr {
  uint64_t id = 0;
  const Sge* sge = nullptr;
  uint32_t sge_count = 0;
};

}  // namespace aperture::ib
