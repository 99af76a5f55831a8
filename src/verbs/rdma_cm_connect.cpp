// CONNECT, ACCEPT, REJECT, DISCONNECT, NOTIFY and INIT_QP_ATTR. rdma_connect(3), rdma_accept(3),
// rdma_reject(3), rdma_disconnect(3), rdma_notify(3).
#include <infiniband/verbs.h>

#include "base/log.hpp"
#include "verbs/errors.hpp"
#include "verbs/rdma_cm_call.hpp"

namespace aperture::verbs::rdma_cm {

namespace {

constexpr uint32_t kRejVendorOption = 35;

int params_from(const char* call, const rdma_ucm_conn_param& from, const rdma_ucm_ece& ece,
                cm::Params& to) noexcept {
  if (from.private_data_len > cm::kMaxPrivateBytes)
    return refuse(
        EINVAL, "%s: %u bytes of private data are more than any message carries; see the man page",
        call, from.private_data_len);
  to.qpn = from.qp_num & wire::kMax24Bits;
  to.qkey = kUdpQkey;
  to.responder_resources = from.responder_resources;
  to.initiator_depth = from.initiator_depth;
  to.flow_control = from.flow_control != 0;
  to.retry_count = from.retry_count;
  to.rnr_retry_count = from.rnr_retry_count;
  to.srq = from.srq != 0;
  to.ece = {ece.vendor_id & wire::kMax24Bits, ece.attr_mod};
  to.data_bytes = from.private_data_len;
  std::copy_n(from.private_data, from.private_data_len, to.data.begin());
  return 0;
}

int explain(const char* call, const AppId& app, Status s) noexcept {
  if (s.error() == Errc::bad_state) {
    APERTURE_WARN(
        "%s: id %u is not in a state for it (%d): one step before it is missing or its connection "
        "has ended",
        call, app.handle, static_cast<int>(app.id->state()));
  } else if (s.error() == Errc::too_big) {
    APERTURE_WARN(
        "%s: more private data than this message carries: 56 bytes to connect, 196 to accept, 148 "
        "to reject; 180 and 136 for RDMA_PS_UDP",
        call);
  }
  return errno_of(s);
}

}  // namespace

int do_connect(const Call& call, const rdma_ucm_connect& command) {
  if (command.conn_param.valid == 0) return EINVAL;
  cm::Params params;
  if (const int e = params_from("rdma_connect", command.conn_param, command.ece, params); e != 0) {
    return e;
  }
  return call.with_id(command.id, [&](AppId& app) {
    app.qpn = params.qpn;
    return explain("rdma_connect", app, app.id->connect(params));
  });
}

int do_accept(const Call& call, const rdma_ucm_accept& command) {
  cm::Params params;
  const bool passive = command.conn_param.valid != 0;
  if (passive) {
    const int e = params_from("rdma_accept", command.conn_param, command.ece, params);
    if (e != 0) return e;
  }
  return call.with_id(command.id, [&](AppId& app) {
    if (!passive) return explain("rdma_get_cm_event", app, app.id->establish());
    // from here on its events have somebody to go to, also those that accepting brings about
    const uint64_t before = app.uid;
    app.uid = command.uid;
    app.qpn = params.qpn;
    const int error = explain("rdma_accept", app, app.id->accept(params));
    if (error != 0) app.uid = before;
    return error;
  });
}

int do_reject(const Call& call, const rdma_ucm_reject& command) {
  const uint32_t reason = command.reason == 0 ? cm::kRejConsumer : command.reason;
  if (reason != cm::kRejConsumer && reason != kRejVendorOption) return EINVAL;
  return call.with_id(command.id, [&](AppId& app) {
    return explain("rdma_reject", app,
                   app.id->reject(reason, {command.private_data, command.private_data_len}));
  });
}

int do_disconnect(const Call& call, const rdma_ucm_disconnect& command) {
  return call.with_id(command.id, [&](AppId& app) {
    return explain("rdma_disconnect", app, app.id->disconnect());
  });
}

int do_notify(const Call& call, const rdma_ucm_notify& command) {
  if (command.event != IBV_EVENT_COMM_EST) return EINVAL;
  return call.with_id(command.id, [&](AppId& app) {
    if (app.id->state() == cm::State::established) return EISCONN;
    return explain("rdma_notify", app, app.id->notify_established());
  });
}

int do_init_qp_attr(const Call& call, const rdma_ucm_init_qp_attr& command) {
  if (command.qp_state > IBV_QPS_ERR) return EINVAL;
  ib_uverbs_qp_attr answer{};
  const int error = call.with_id(
      command.id, [&](AppId& app) { return init_qp_attr(app, command.qp_state, answer); });
  return error != 0 ? error : call.answer(command.response, answer);
}

}  // namespace aperture::verbs::rdma_cm
