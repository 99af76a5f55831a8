// Options, controls, cancel: fi_ops_ep and fi_control of endpoints. man 3 fi_endpoint.
#include <cstring>

#include "provider/ep_multi_recv.hpp"
#include "provider/errors.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

ssize_t cancel(fid_t fid, void* context) noexcept {
  return guarded("fi_cancel", [&]() -> ssize_t {
    auto& ep = object_of<Ep>(fid);
    if (ep.core == nullptr) return -FI_EOPBADSTATE;
    nic::EngineGuard guard(*ep.engine);
    return fi_code(ep.core->cancel(context));
  });
}

// The options that this provider has; all are of type size_t.
bool option_value(const EpBody& body, int name, size_t& value) noexcept {
  switch (name) {
    case FI_OPT_CM_DATA_SIZE:
      value = body.kind == EpKind::connected ? wire::kPrivateBytes : 0;
      return true;
    case FI_OPT_MIN_MULTI_RECV: value = body.min_multi_recv; return true;
    case FI_OPT_TX_SIZE: value = body.tx_size; return true;
    case FI_OPT_RX_SIZE: value = body.rx_size; return true;
    default: return false;
  }
}

int get_option(fid_t fid, int level, int name, void* value, size_t* len) noexcept {
  const EpBody& body = *object_of<Ep>(fid).body;
  size_t found = 0;
  if (value == nullptr || len == nullptr) return -FI_EINVAL;
  if (level != FI_OPT_ENDPOINT || !option_value(body, name, found)) {
    APERTURE_INFO("fi_getopt: option %d of level %d is not offered", name, level);
    return -FI_ENOPROTOOPT;
  }
  const size_t room = *len;
  *len = sizeof found;
  if (room < sizeof found) return -FI_ETOOSMALL;
  std::memcpy(value, &found, sizeof found);
  return 0;
}

int set_option(fid_t fid, int level, int name, const void* value, size_t len) noexcept {
  if (value == nullptr) return -FI_EINVAL;
  if (level == FI_OPT_ENDPOINT && name == FI_OPT_MIN_MULTI_RECV) {
    return guarded("fi_setopt",
                   [&] { return set_min_multi_recv(*object_of<Ep>(fid).body, value, len); });
  }
  APERTURE_INFO("fi_setopt: option %d of level %d cannot be set", name, level);
  return -FI_ENOPROTOOPT;
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
  if ((wanted & ~(side == FI_TRANSMIT ? kTxOpFlags : kRxOpFlags)) != 0)
    return refuse(-FI_EBADFLAGS, "fi_control(ep): operation flags 0x%llx are not all offered",
                  static_cast<unsigned long long>(wanted));
  (side == FI_TRANSMIT ? ep.tx_flags : ep.rx_flags) = wanted;
  ep.settle();
  return 0;
}

}  // namespace

int control_ep(fid* fid, int command, void* arg) noexcept {
  return guarded("fi_control(ep)", [&]() -> int {
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
    .tx_ctx = NotOffered<"fi_tx_context: scalable endpoints are not offered">{},
    .rx_ctx = NotOffered<"fi_rx_context: scalable endpoints are not offered">{},
    .rx_size_left =
        NotOffered<"fi_rx_size_left: deprecated and not offered; post until -FI_EAGAIN">{},
    .tx_size_left =
        NotOffered<"fi_tx_size_left: deprecated and not offered; post until -FI_EAGAIN">{},
};

}  // namespace aperture::provider
