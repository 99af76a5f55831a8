// Queue pairs: ibv_create_qp(3), ibv_create_qp_ex(3), ibv_modify_qp(3), ibv_query_qp(3),
// ibv_post_send(3), ibv_post_recv(3).
//
// A nic::VerbsQp with the faces that libibverbs gives it. The engine lock guards the queue pair
// itself; `attributes` below are what the application has set, for ibv_query_qp, guarded by
// modify_mutex, which is taken outside the engine lock. XRC receive queue pairs may have several
// faces (ibv_open_qp): the queue pair goes with the last.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "nic/verbs_nic.hpp"
#include "verbs/cq.hpp"
#include "verbs/newer.hpp"
#include "verbs/pd.hpp"
#include "verbs/qp_batch.hpp"
#include "verbs/srq.hpp"
#include "verbs/xrc.hpp"

namespace aperture::verbs {

struct DeviceQp;

// What all faces of a queue pair have in common.
struct QpCore final : ib::QpEvents {
  void on_async_event(ib::AsyncEvent event) noexcept override;

  std::vector<DeviceQp*> faces;  // who is told of its events; guarded by the engine lock
  std::mutex modify_mutex;
  ibv_qp_attr attributes{};              // guarded by modify_mutex
  std::unique_ptr<nic::VerbsQp> nic_qp;  // last: destroyed first
};

struct DeviceQp {
  ibv_qp* base() noexcept { return &ex.qp_base; }
  ib::QueuePair& core() noexcept { return *queue; }  // engine lock held
  nic::Engine& engine() noexcept { return context->engine(); }

  NewestQpEx ex{};  // first: object_of(), of either face
  Context* context = nullptr;
  Pd* pd = nullptr;                // null: XRC receive
  Xrcd* xrcd = nullptr;            // XRC receive
  ib::QueuePair* queue = nullptr;  // of the core
  ib::QpType type{};
  bool extended = false;  // made with send_ops_flags: ibv_qp_to_qp_ex() hands its other face out
  ContextUse use_context;
  Use use_pd;
  Use use_send_cq;
  Use use_recv_cq;
  Use use_srq;
  Use use_xrcd;
  uint32_t handed_async = 0;    // guarded by ex.qp_base.mutex
  std::vector<Address> groups;  // multicast: attached to; guarded by shared->modify_mutex

  ibv_qp_init_attr init{};  // as it was made
  Batch batch;              // between wr_start and wr_complete
  std::shared_ptr<QpCore> shared;
};

inline DeviceQp& qp_of(ibv_qp* qp) noexcept {
  return object_of<DeviceQp>(qp);
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) noexcept;
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) noexcept;
int modify(DeviceQp& qp, const ibv_qp_attr& attr, uint32_t mask);
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept;
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept;
// The functions of the extended face; those that were not asked for, or that its type has not, are
// there too and refuse.
void fill_builders(NewestQpEx& ex) noexcept;
// Of a context that is being closed: nobody reaches it any more.
void stop(DeviceQp& qp) noexcept;

}  // namespace aperture::verbs
