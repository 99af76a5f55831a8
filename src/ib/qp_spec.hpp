// What a queue pair is made from, and whom it tells what happens to it. ibv_create_qp_ex(3).
//
// Values and pointers of whoever makes it; what they point to outlives it.
#pragma once

#include <cstdint>

#include "ib/attributes.hpp"
#include "ib/queue_memory.hpp"
#include "protect/key_table.hpp"
#include "protect/wording.hpp"

namespace aperture::ib {

class CompletionQueue;
class ReceiveQueue;
class WindowBook;

class QpEvents {
 public:
  virtual ~QpEvents() = default;
  virtual void on_async_event(AsyncEvent event) noexcept = 0;  // engine lock held
};

struct QpSpec {
  QpType type = QpType::rc;
  uint32_t qpn = 0;  // port << 8 | index
  protect::KeyTable* keys = nullptr;
  protect::DomainId pd = 0;
  WindowBook* windows = nullptr;       // of the context
  CompletionQueue* send_cq = nullptr;  // null: XRC receive
  CompletionQueue* recv_cq = nullptr;  // null: XRC
  ReceiveQueue* srq = nullptr;         // null: receives of its own
  uint32_t xrc_domain = 0;             // XRC receive: whose receive queues its messages may name
  uint32_t max_send_wr = 0;
  uint32_t max_recv_wr = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_recv_sge = 0;
  uint32_t max_inline_bytes = 0;
  bool sq_sig_all = false;
  bool block_self_multicast = false;  // UD: what it sends to a group does not come back to it
  QpEvents* events = nullptr;
  const protect::Wording* wording = &protect::kNeutralWording;  // of the door that asks
  QueueMemory* memory = nullptr;  // of its queues; outlives it; null: the process's own
};

}  // namespace aperture::ib
