// fid_ep: reliable datagram, connected and unreliable endpoints, scalable ones and their contexts,
// and shared receive contexts, which have the receiving calls only. man 3 fi_endpoint.
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
#include "nic/msg_endpoint.hpp"
#include "provider/av.hpp"
#include "provider/cntr.hpp"
#include "provider/connection.hpp"
#include "provider/cq.hpp"
#include "provider/domain.hpp"
#include "provider/eq.hpp"
#include "provider/offer.hpp"
#include "provider/scalable.hpp"

namespace aperture::nic {
class DatagramEndpoint;
}

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

// datagram: reliable (FI_EP_RDM). unreliable: FI_EP_DGRAM.
enum class EpKind : uint8_t { datagram, connected, unreliable, shared_receive, scalable };

struct Region;
struct Stx;
class EpGroups;

struct EpBody {
  EpKind kind = EpKind::datagram;
  EpPart part = EpPart::whole;
  EpBody* context_of = nullptr;  // of a context: its scalable endpoint
  size_t context_number = 0;
  std::unique_ptr<Scalable> scalable;  // of a scalable endpoint
  protect::EndpointId id = protect::new_endpoint_id();
  Domain* domain = nullptr;
  uint64_t tx_caps = 0;
  uint64_t rx_caps = 0;
  uint64_t msg_order = 0;
  size_t tx_size = 0;
  size_t rx_size = 0;
  size_t min_multi_recv = kDefaultMinMultiRecv;  // guarded by the engine's lock
  // FI_BUFFERED_RECV or FI_VARIABLE_MSG, and how: guarded by the engine's lock.
  bool buffered = false;
  msg::BufferedRule buffered_rule;
  int peer_to_peer = FI_HMEM_P2P_ENABLED;  // FI_OPT_FI_HMEM_P2P, kept and told only
  Address local;                           // port 0 until enabled, unless one was given
  AuthKey auth_key;
  std::vector<nic::EndpointOptions::Key> av_keys;  // since it was enabled: av_keys.hpp
  Av* av = nullptr;
  FabricCq* tx_cq = nullptr;
  FabricCq* rx_cq = nullptr;
  Eq* eq = nullptr;
  Cntr* counters[kCounterKinds] = {};
  bool tx_selective = false;
  bool rx_selective = false;
  std::unique_ptr<EpGroups> groups;  // with FI_COLLECTIVE; it outlives `core`
  // From fi_enable on; written with the engine's lock, since address vectors tell it of changes.
  std::unique_ptr<nic::Endpoint> core;
  bool closing = false;  // what fails is told to nobody; guarded by the engine's lock
  EpBody() noexcept;
  ~EpBody();
  std::vector<Ep*> handles;            // from the second on, guarded by the engine's lock
  std::vector<Region*> regions;        // bound to it; guarded by the engine's lock
  bool wants_shared_receive = false;   // ep_attr->rx_ctx_cnt is FI_SHARED_CONTEXT
  bool wants_shared_transmit = false;  // ep_attr->tx_ctx_cnt is
  EpBody* shared = nullptr;            // the shared receive context
  bool in_av_of_shared = false;        // counted in its av_users
  Stx* stx = nullptr;                  // the shared transmit context
  // mr_bind.cpp: whether it may be closed before them, 0 or -FI_EBUSY (lock not held); and nobody
  // reaches them any more (lock held).
  int check_regions() const noexcept;
  void leave_regions() noexcept;
  // Operations of it, or of its contexts, may wait for counters.
  bool triggers() const noexcept { return ((tx_caps | rx_caps) & FI_TRIGGER) != 0; }
  // Operations of it may be kept beyond their call: its domain has had begin_work().
  bool keeps_work() const noexcept { return triggers() || domain->region_rules.hmem; }
  // What op_flags a transmit or receive context of it may have.
  uint64_t tx_op_flags() const noexcept {
    if (kind != EpKind::unreliable) return kTxOpFlags;
    return kUnreliableTxOpFlags & ~((tx_caps & FI_MULTICAST) != 0 ? 0 : FI_MULTICAST);
  }
  uint64_t rx_op_flags() const noexcept {
    return rx_op_flags_of(kind == EpKind::unreliable ? FI_EP_DGRAM : FI_EP_RDM);
  }
  // unreliable:
  size_t prefix_bytes = 0;                     // FI_MSG_PREFIX
  nic::DatagramEndpoint* datagrams = nullptr;  // `core` again
  Uses multicasts;                             // that it has joined
  // connected:
  const struct fid* request = nullptr;  // handle of the FI_CONNREQ that it is to accept
  nic::RequestId request_id = 0;
  Address peer;                            // of the request
  nic::MsgEndpoint* connection = nullptr;  // `core` again
  ConnectionReports reports;
  // shared receive context:
  nic::SharedReceive* shared_core = nullptr;  // `core` again
  Uses uses;            // endpoints bound to it; of a scalable endpoint, its contexts
  size_t av_users = 0;  // enabled ones that have an address vector: all have the one in `av`
  // of operations that wait for counters: the last round in which one found no room; guarded
  // by the engine's lock
  uint64_t work_round = 0;
};

// Whatever transfers by itself: an endpoint, or a context of one.
constexpr bool is_endpoint(size_t fclass) noexcept {
  return fclass == FI_CLASS_EP || fclass == FI_CLASS_TX_CTX || fclass == FI_CLASS_RX_CTX;
}

// What an operation asks for, from its flags or from the defaults of its handle.
struct TxWish {
  bool completion = true;
  bool inject = false;
  uint8_t delivery = 0;  // as in qp::SendWr
  bool fence = false;
  bool commit = false;  // FI_COMMIT_COMPLETE, of RMA writes
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
  size_t line_end = 0;    // a message of fewer bytes may go as a line
  bool may_recv = false;
  bool may_read = false;
  bool may_write = false;
  bool may_commit = false;
  bool buffered = false;  // its messages are shown, and claimed or discarded
  bool may_trigger = false;
  size_t inject_size = 0;
  uint64_t max_msg_size = qp::kMaxMessageBytes;
  size_t tx_iov_limit = 0;
  size_t rx_iov_limit = 0;
  size_t rma_iov_limit = 0;
  uint64_t tx_flags = 0;  // op_flags
  uint64_t rx_flags = 0;
  DescriptorRule descriptors = DescriptorRule::ignored;  // the domain's
  protect::DomainId pd = 0;         // whose regions its local buffers may lie in
  protect::EndpointId through = 0;  // as those that are bound to an endpoint know it; 0: shared
  EpBody* body = nullptr;

  // Works out tx, rx_completion and the slots of the data path from the flags and the body's state.
  void settle() noexcept;
  TxWish wish_of(uint64_t flags) const noexcept {
    return {!tx_selective || (flags & FI_COMPLETION) != 0, (flags & FI_INJECT) != 0,
            delivery_of(flags), (flags & FI_FENCE) != 0, (flags & FI_COMMIT_COMPLETE) != 0};
  }
  static uint8_t delivery_of(uint64_t flags) noexcept {
    if ((flags & FI_MATCH_COMPLETE) != 0) return qp::kMatched;
    constexpr uint64_t kAtLeastDelivered = FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE;
    return (flags & kAtLeastDelivered) != 0 ? qp::kDelivered : 0;
  }
};

// The slots of the data path, by what the endpoint may do now (ep_msg, ep_tagged, ep_rma,
// ep_atomic).
fi_ops_msg* msg_ops(const Ep& ep) noexcept;
fi_ops_tagged* tagged_ops(const Ep& ep) noexcept;
fi_ops_rma* rma_ops(const Ep& ep) noexcept;
fi_ops_atomic* atomic_ops(const Ep& ep) noexcept;
const fi_ops_msg& plain_msg_ops() noexcept;  // those of an enabled endpoint
extern fi_ops_cm g_ep_cm_ops;                // ep_cm.cpp
extern fi_ops_cm g_msg_cm_ops;               // ep_connect.cpp
extern fi_ops_cm g_srx_cm_ops;               // srx.cpp
extern fi_ops_ep g_ep_ops;                   // ep_options.cpp
extern fi_ops_collective g_collective_ops;

int bind_ep(fid* fid, struct fid* what, uint64_t flags) noexcept;  // ep_bind.cpp
int control_ep(fid* fid, int command, void* arg) noexcept;         // ep_options.cpp
int enable_ep(Ep& ep);                                             // ep.cpp
int alias_ep(Ep& ep, const struct fi_alias* alias);                // ep.cpp
std::unique_ptr<Ep> new_ep_handle(EpBody& body, void* context);    // ep.cpp
nic::EndpointOptions options_of(const EpBody& body);               // ep.cpp
int set_ep_name(fid_t fid, void* addr, size_t len) noexcept;       // ep_cm.cpp
int get_ep_name(fid_t fid, void* addr, size_t* len) noexcept;      // ep_cm.cpp
int enable_connected(EpBody& body);                                // ep_connect.cpp
int bind_shared_receive(EpBody& body, EpBody& shared);             // srx.cpp
int bind_shared_transmit(EpBody& body, struct fid* stx);           // stx.cpp
// Of an endpoint that is about to be enabled: what it was opened to share is bound. 0 or a negative
// fi_errno.
int check_shared(const EpBody& body);               // ep.cpp
int join_address_vector(EpBody& body);              // srx.cpp
void leave_shared(EpBody& body) noexcept;           // srx.cpp: of a shared receive context
void leave_shared_transmit(EpBody& body) noexcept;  // stx.cpp
// Opening with info->handle: of a connection request, or of a passive endpoint. 0 or a negative
// fi_errno.
int take_handle(EpBody& body, const fi_info& info);  // ep_connect.cpp
void leave_request(EpBody& body) noexcept;           // ep_connect.cpp

}  // namespace aperture::provider
