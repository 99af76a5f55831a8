// Scalable endpoints: one address, and transmit and receive contexts that share it. man 3
// fi_endpoint, "SCALABLE ENDPOINTS".
//
// A context is an endpoint of the core like any other, told apart by the index of its address.
// Receive context 0 has none, so it is what the address means to anybody who does not name a
// context; the others can be named where FI_NAMED_RX_CTX was asked for. Nobody comes to a transmit
// context. Control calls are serialised by the application.
#pragma once

#include <rdma/fi_endpoint.h>

#include <memory>
#include <vector>

#include "nic/context_port.hpp"
#include "nic/endpoint.hpp"

namespace aperture::provider {

struct Ep;
struct EpBody;

struct Scalable {
  std::vector<EpBody*> tx, rx;             // contexts that are open, by number; null: it is not
  std::unique_ptr<nic::ContextPort> port;  // from the first fi_enable on, of it or of a context
  bool named = false;                      // FI_NAMED_RX_CTX
};

// Which part of an endpoint a body is.
enum class EpPart : uint8_t { whole, tx_context, rx_context };

// Makes a scalable endpoint of the body: as many contexts as ep_attr says. 0 or a negative
// fi_errno.
int make_scalable(const fi_info& info, EpBody& body);
int enable_scalable(EpBody& body);
// Of a context that is about to be enabled: it gets the address vector and the port of its
// endpoint.
int enter_port(EpBody& context);
void leave_scalable(EpBody& context) noexcept;
// What only a context has.
void set_context_options(const EpBody& context, nic::EndpointOptions& options) noexcept;
// The slots of the data path: nothing is transferred by the endpoint itself.
void settle_scalable(Ep& ep) noexcept;
extern fi_ops_ep g_scalable_ep_ops;

}  // namespace aperture::provider
