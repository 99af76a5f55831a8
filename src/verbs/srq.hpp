// Shared receive queues: ibv_create_srq(3), ibv_create_srq_ex(3), ibv_modify_srq(3).
//
// An ib::ReceiveQueue under the engine lock.
#pragma once

#include <memory>

#include "ib/receive_queue.hpp"
#include "verbs/cq.hpp"
#include "verbs/pd.hpp"
#include "verbs/xrc.hpp"

namespace aperture::verbs {

struct Srq {
  struct Events final : ib::SrqEvents {
    explicit Events(Srq& its_srq) noexcept : srq(its_srq) {}
    void on_limit_reached() noexcept override;
    Srq& srq;
  };

  ibv_srq base{};  // first: object_of()
  Pd* pd = nullptr;
  Events events{*this};
  Xrcd* xrcd = nullptr;  // XRC
  uint32_t number = 0;   // XRC: what requests name it by
  Use use_pd;
  Use use_cq;                 // XRC
  Use use_xrcd;               // XRC
  Uses uses;                  // queue pairs
  uint32_t handed_async = 0;  // guarded by base.mutex
  // guarded by the engine lock; last: it goes before its memory's PD
  std::unique_ptr<ib::ReceiveQueue> queue;
};

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept;
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) noexcept;
int get_srq_num(ibv_srq* srq, uint32_t* number) noexcept;

}  // namespace aperture::verbs
