// fid_ep: reliable datagram endpoints. man 3 fi_endpoint.
//
// An endpoint is a body (bindings, limits, the core's endpoint) and one or more handles: the one
// that fi_endpoint returned and its aliases, which differ in default operation flags only. Control
// calls are serialised by the application, as the page demands; the data path holds the engine's
// lock. Before fi_enable the slots of the data path hold refusals, so the hot calls need not ask.
#pragma once

#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <memory>
#include <vector>

#include "nic/endpoint.hpp"
#include "provider/av.hpp"
#include "provider/cntr.hpp"
#include "provider/cq.hpp"
#include "provider/domain.hpp"
#include "provider/eq.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

struct Ep;

// Which counter a binding flag means.
enum CounterKind {
  kSendCounter,
  kRecvCounter,
  kReadCounter,
  kWriteCounter,
  kRemoteReadCounter,
  kRemoteWriteCounter,
  kCounterKinds
};

struct EpBody {
  Domain* domain = nullptr;
  uint64_t tx_caps = 0;
  uint64_t rx_caps = 0;
  uint64_t msg_order = 0;
  size_t tx_size = 0;
  size_t rx_size = 0;
  size_t min_multi_recv = kDefaultMinMultiRecv;  // guarded by the engine's lock
  Address local;                                 // port 0 until enabled, unless one was given
  Av* av = nullptr;
  Cq* tx_cq = nullptr;
  Cq* rx_cq = nullptr;
  Eq* eq = nullptr;
  Cntr* counters[kCounterKinds] = {};
  bool tx_selective = false;
  bool rx_selective = false;
  std::unique_ptr<nic::Endpoint> core;  // from fi_enable on
  std::vector<Ep*> handles;
};

// What an operation asks for, from its flags or from the defaults of its handle.
struct TxWish {
  bool completion = true;
  bool inject = false;
  uint8_t delivery = 0;  // as in qp::SendWr
  bool fence = false;
};

struct Ep {
  fid_ep fid{};
  nic::Endpoint* core = nullptr;
  nic::Engine* engine = nullptr;
  TxWish tx;                  // of calls without flags
  bool rx_completion = true;  // of calls without flags
  bool tx_selective = false;
  bool rx_selective = false;
  bool may_send = false;  // by the caps of the endpoint
  bool may_recv = false;
  bool may_read = false;
  bool may_write = false;
  size_t inject_size = 0;
  size_t tx_iov_limit = 0;
  size_t rx_iov_limit = 0;
  size_t rma_iov_limit = 0;
  uint64_t tx_flags = 0;  // op_flags
  uint64_t rx_flags = 0;
  EpBody* body = nullptr;

  // Works out tx, rx_completion and the slots of the data path from the flags and the body's state.
  void settle() noexcept;
  TxWish wish_of(uint64_t flags) const noexcept {
    return {!tx_selective || (flags & FI_COMPLETION) != 0, (flags & FI_INJECT) != 0,
            delivery_of(flags), (flags & FI_FENCE) != 0};
  }
  static uint8_t delivery_of(uint64_t flags) noexcept {
    if ((flags & FI_MATCH_COMPLETE) != 0) return qp::kMatched;
    return (flags & FI_DELIVERY_COMPLETE) != 0 ? qp::kDelivered : 0;
  }
};

// The slots of the data path, by what the endpoint may do now (ep_msg, ep_tagged, ep_rma).
fi_ops_msg* msg_ops(const Ep& ep) noexcept;
fi_ops_tagged* tagged_ops(const EpBody& body) noexcept;
fi_ops_rma* rma_ops(const EpBody& body) noexcept;
const fi_ops_msg& live_msg_ops() noexcept;  // those of an enabled endpoint
extern fi_ops_cm g_ep_cm_ops;               // ep_cm.cpp
extern fi_ops_ep g_ep_ops;                  // ep_options.cpp
extern fi_ops_atomic g_atomic_ops;          // ep_stubs.cpp
extern fi_ops_collective g_collective_ops;

int bind_ep(fid* fid, struct fid* what, uint64_t flags) noexcept;  // ep_bind.cpp
int control_ep(fid* fid, int command, void* arg) noexcept;         // ep_options.cpp
int enable_ep(Ep& ep);                                             // ep.cpp
int alias_ep(Ep& ep, const struct fi_alias* alias);                // ep.cpp

}  // namespace aperture::provider
