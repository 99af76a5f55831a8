// Options, controls, cancel: fi_ops_ep and fi_control of endpoints. man 3 fi_endpoint.
#include <cstring>

#include "memory/driver.hpp"
#include "provider/context_attr.hpp"
#include "provider/ep_buffered.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/errors.hpp"
#include "provider/header_names.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

ssize_t cancel(fid_t fid, void* context) noexcept {
  return guarded("fi_cancel", fid, [&]() -> ssize_t {
    auto& ep = object_of<Ep>(fid);
    if (ep.core == nullptr) return -FI_EOPBADSTATE;
    // "posted without a valid context parameter [...] cannot be canceled"
    if (context == nullptr) return fi_code(Errc::no_entry);
    nic::EngineGuard guard(*ep.engine);
    const Status s = ep.core->cancel(context);
    WorkQueue* const work = ep.body->domain->work.get();
    if (s.error() != Errc::no_entry || work == nullptr) return fi_code(s);
    return fi_code(work->cancel(*ep.body, context));
  });
}

// The options that this provider has; those that are of type size_t.
bool option_value(const EpBody& body, int name, size_t& value) noexcept {
  switch (name) {
    case FI_OPT_CM_DATA_SIZE:
      value = body.kind == EpKind::connected ? wire::kPrivateBytes : 0;
      return true;
    case FI_OPT_MIN_MULTI_RECV: value = body.min_multi_recv; return true;
    case FI_OPT_BUFFERED_LIMIT: value = body.buffered_rule.limit; return body.buffered;
    case FI_OPT_BUFFERED_MIN: value = body.buffered_rule.least; return body.buffered;
    case FI_OPT_TX_SIZE: value = body.tx_size; return true;
    case FI_OPT_RX_SIZE: value = body.rx_size; return true;
    default: return false;
  }
}

template <typename T>
int give(const T& found, void* value, size_t* len) noexcept {
  const size_t room = *len;
  *len = sizeof found;
  if (room < sizeof found) return -FI_ETOOSMALL;
  std::memcpy(value, &found, sizeof found);
  return 0;
}

int get_option(fid_t fid, int level, int name, void* value, size_t* len) noexcept {
  const EpBody& body = *object_of<Ep>(fid).body;
  if (value == nullptr || len == nullptr) return -FI_EINVAL;
  if (level == FI_OPT_ENDPOINT) {
    if (size_t found = 0; option_value(body, name, found)) return give(found, value, len);
    if (name == FI_OPT_FI_HMEM_P2P) return give(body.peer_to_peer, value, len);
    if (name == FI_OPT_XPU_TRIGGER)
      return refuse(-FI_EOPNOTSUPP, "fi_getopt: FI_OPT_XPU_TRIGGER: no device triggers operations");
  }
  return refuse(-FI_ENOPROTOOPT, "fi_getopt: option %d of level %d is not offered", name, level);
}

// A value of type T; false, with a sentence: it has another length.
template <typename T>
bool take(const char* option, const void* value, size_t len, T& out) noexcept {
  if (len != sizeof out) {
    APERTURE_WARN("fi_setopt: %s has %zu bytes; optlen is %zu", option, sizeof out, len);
    return false;
  }
  std::memcpy(&out, value, sizeof out);
  return true;
}

// How device memory moves: by copies of its driver's through the host (or, between processes that
// share it, of the driver's alone), so every mode but the one that excludes copies is kept.
int set_peer_to_peer(EpBody& body, const void* value, size_t len) noexcept {
  int mode = 0;
  if (!take("FI_OPT_FI_HMEM_P2P", value, len, mode)) return -FI_EINVAL;
  if (mode == FI_HMEM_P2P_REQUIRED)
    return refuse(-FI_EOPNOTSUPP,
                  "fi_setopt: FI_HMEM_P2P_REQUIRED: device memory is copied by its driver, and no "
                  "transfer does without (APERTURE_DEVICE_SHARE=on saves some of them a copy); "
                  "leave FI_HMEM_P2P_ENABLED");
  if (mode < FI_HMEM_P2P_ENABLED || mode > FI_HMEM_P2P_DISABLED)
    return refuse(-FI_EINVAL, "fi_setopt: FI_OPT_FI_HMEM_P2P %d is none that fi_endpoint(3) knows",
                  mode);
  body.peer_to_peer = mode;
  return 0;
}

int set_shared_memory(const EpBody& body, const void* value, size_t len) noexcept {
  static_assert(sizeof(bool) == sizeof(uint8_t));  // of which any value may have been given
  uint8_t permitted = 0;
  if (!take("FI_OPT_SHARED_MEMORY_PERMITTED", value, len, permitted)) return -FI_EINVAL;
  if (permitted != 0 || body.kind == EpKind::unreliable) return 0;  // datagrams use none
  return refuse(-FI_EOPNOTSUPP,
                "fi_setopt: FI_OPT_SHARED_MEMORY_PERMITTED cannot be false for one endpoint: peers "
                "on one host share memory here; APERTURE_LINK=tcp has a whole process do without");
}

// Whether this process has CUDA: it is set up for that, as for a registration.
bool has_cuda() noexcept {
  const char* why = nullptr;
  return memory::in_use(memory::Kind::cuda) != nullptr ||
         static_cast<bool>(memory::driver(memory::Kind::cuda, why));
}

int set_cuda_permitted(const EpBody& body, const void* value, size_t len) noexcept {
  uint8_t permitted = 0;  // as in set_shared_memory()
  if (!take("FI_OPT_CUDA_API_PERMITTED", value, len, permitted)) return -FI_EINVAL;
  if (!has_cuda())
    return refuse(-FI_EINVAL,
                  "fi_setopt: FI_OPT_CUDA_API_PERMITTED: this process has no CUDA library, or no "
                  "device of it; there is nothing to permit");
  if (permitted != 0 || !body.domain->region_rules.hmem) return 0;  // those without make no call
  return refuse(-FI_EOPNOTSUPP,
                "fi_setopt: FI_OPT_CUDA_API_PERMITTED cannot be false with FI_HMEM: CUDA's driver "
                "copies its devices' memory; open the endpoint without FI_HMEM");
}

int set_option(fid_t fid, int level, int name, const void* value, size_t len) noexcept {
  if (value == nullptr) return -FI_EINVAL;
  return guarded("fi_setopt", fid, [&]() -> int {
    EpBody& body = *object_of<Ep>(fid).body;
    if (level == FI_OPT_ENDPOINT) {
      switch (name) {
        case FI_OPT_MIN_MULTI_RECV: return set_min_multi_recv(body, value, len);
        case FI_OPT_BUFFERED_LIMIT: return set_buffered_limit(body, value, len);
        case FI_OPT_BUFFERED_MIN: return set_buffered_min(body, value, len);
        case FI_OPT_FI_HMEM_P2P: return set_peer_to_peer(body, value, len);
        case kSharedMemoryPermitted: return set_shared_memory(body, value, len);
        case kCudaApiPermitted: return set_cuda_permitted(body, value, len);
        default: break;
      }
    }
    return refuse(-FI_ENOPROTOOPT, "fi_setopt: option %d of level %d cannot be set", name, level);
  });
}

int get_flags(const Ep& ep, uint64_t* flags) noexcept {
  if (flags == nullptr) return -FI_EINVAL;
  const uint64_t side = *flags & (FI_TRANSMIT | FI_RECV);
  if (side != FI_TRANSMIT && side != FI_RECV)
    return refuse(-FI_EINVAL, "fi_control(ep): FI_GETOPSFLAG needs one of FI_TRANSMIT and FI_RECV");
  *flags = side == FI_TRANSMIT ? ep.tx_flags : ep.rx_flags;
  return 0;
}

int set_flags(Ep& ep, const uint64_t* flags) noexcept {
  if (flags == nullptr) return -FI_EINVAL;
  const uint64_t side = *flags & (FI_TRANSMIT | FI_RECV);
  const uint64_t wanted = *flags & ~side;
  if (side != FI_TRANSMIT && side != FI_RECV)
    return refuse(-FI_EINVAL, "fi_control(ep): FI_SETOPSFLAG needs one of FI_TRANSMIT and FI_RECV");
  const int rc = check_op_flags("fi_control(FI_SETOPSFLAG)", *ep.body, side, wanted);
  if (rc != 0) return rc;
  (side == FI_TRANSMIT ? ep.tx_flags : ep.rx_flags) = wanted;
  ep.settle();
  return 0;
}

}  // namespace

int control_ep(fid* fid, int command, void* arg) noexcept {
  return guarded("fi_control(ep)", fid, [&]() -> int {
    auto& ep = object_of<Ep>(fid);
    switch (command) {
      case FI_ENABLE: return enable_ep(ep);
      case FI_ALIAS: return alias_ep(ep, static_cast<const struct fi_alias*>(arg));
      case FI_GETOPSFLAG: return get_flags(ep, static_cast<uint64_t*>(arg));
      case FI_SETOPSFLAG: return set_flags(ep, static_cast<const uint64_t*>(arg));
      default: return refuse(-FI_ENOSYS, "fi_control(ep): command %d is not offered", command);
    }
  });
}

fi_ops_ep g_ep_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = cancel,
    .getopt = get_option,
    .setopt = set_option,
    .tx_ctx = NotOffered<"fi_tx_context: only a scalable endpoint has contexts; open one with "
                         "fi_scalable_ep">{},
    .rx_ctx = NotOffered<"fi_rx_context: only a scalable endpoint has contexts; open one with "
                         "fi_scalable_ep">{},
    .rx_size_left =
        NotOffered<"fi_rx_size_left: deprecated and not offered; post until -FI_EAGAIN">{},
    .tx_size_left =
        NotOffered<"fi_tx_size_left: deprecated and not offered; post until -FI_EAGAIN">{},
};

}  // namespace aperture::provider
