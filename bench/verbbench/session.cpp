// Opening the device by its name, and bringing queue pairs up over the channel.
#include "verbbench/session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "stopwatch/failure.hpp"
#include "verbbench/event_queue.hpp"

namespace aperture::bench {

namespace {

constexpr uint8_t kTimeout = 20;                  // 4.3 s: under callgrind all is slow
constexpr uint8_t kRetries = 7, kRnrRetries = 7;  // receiver-not-ready: without end
constexpr uint8_t kRnrTimer = 1;                  // 10 us
constexpr int kMostReads = 16;                    // reads and atomics under way

OwnedVerbs<ibv_context, ibv_close_device> open_device(const std::string& name) {
  int count = 0;
  // null where the kernel knows no RDMA at all
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = nullptr;
  std::string seen;
  for (int i = 0; list != nullptr && i < count; i++) {
    const std::string one = ibv_get_device_name(list[i]);
    if (one == name) context = ibv_open_device(list[i]);
    seen += (seen.empty() ? "" : ", ") + one;
  }
  if (list != nullptr) ibv_free_device_list(list);
  if (context == nullptr) {
    throw Failure("there is no device '%s'%s%s; aperture0 is there under `aperture run --`",
                  name.c_str(), seen.empty() ? "" : ", only ", seen.c_str());
  }
  return OwnedVerbs<ibv_context, ibv_close_device>(context);
}

}  // namespace

void throw_errno(const char* call, int error) {
  throw Failure("%s: %s (%d)", call, std::strerror(error), error);
}

void throw_completion_error(const ibv_wc& wc) {
  throw Failure("error completion: %s (%d), vendor error %u", ibv_wc_status_str(wc.status),
                static_cast<int>(wc.status), wc.vendor_err);
}

ibv_sge piece_of(const void* base, size_t len_bytes, const Mr& mr) {
  return {reinterpret_cast<uint64_t>(base), static_cast<uint32_t>(len_bytes), mr->lkey};
}

Link::Link(Session& session) : Link(session, session.rx_cq()) {}

Link::Link(Session& session, ibv_cq* rx_cq) : session_(session) {
  ibv_qp_init_attr init{};
  init.send_cq = session.tx_cq();
  init.recv_cq = rx_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {Session::kSendDepth, Session::kReceiveDepth, 1, 1, Session::kInlineBytes};
  qp_.reset(check("ibv_create_qp", ibv_create_qp(session.pd(), &init)));
}

Link::Link(Session& session, Channel& channel) : Link(session) {
  meet(channel);
}

ibv_port_attr Link::port() const {
  ibv_port_attr port{};
  check("ibv_query_port", ibv_query_port(session_.context(), session_.setup().port, &port));
  return port;
}

LinkEnd Link::end() const {
  const Setup& setup = session_.setup();
  LinkEnd mine{qp_->qp_num, 0, port().lid, {}};
  if (ibv_query_gid(session_.context(), setup.port, setup.gid_index, &mine.gid) != 0) {
    throw Failure("ibv_query_gid: there is no GID of index %d", setup.gid_index);
  }
  return mine;
}

Link::Link(Session& session, ibv_cq* rx_cq, Channel& channel) : Link(session, rx_cq) {
  meet(channel);
}

void Link::meet(Channel& channel) {
  connect(channel.exchange(end(), "address"));
  channel.send_word(0);  // ready to receive
  channel.receive_word();
}

void Link::connect(const LinkEnd& theirs) {
  to_init();
  to_rtr(theirs);
  to_rts();
}

void Link::to_init() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = session_.setup().port;
  attr.qp_access_flags =
      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  check("ibv_modify_qp to INIT",
        ibv_modify_qp(qp_.get(), &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

void Link::to_rtr(const LinkEnd& theirs) {
  const ibv_port_attr here = port();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = here.active_mtu;
  attr.dest_qp_num = theirs.qpn;
  attr.rq_psn = theirs.psn;
  attr.max_dest_rd_atomic = session_.most_reads();
  attr.min_rnr_timer = kRnrTimer;
  attr.ah_attr.dlid = theirs.lid;
  attr.ah_attr.port_num = session_.setup().port;
  if (here.link_layer == IBV_LINK_LAYER_ETHERNET) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = theirs.gid;
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(session_.setup().gid_index);
    attr.ah_attr.grh.hop_limit = 1;
  }
  check("ibv_modify_qp to RTR",
        ibv_modify_qp(qp_.get(), &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

void Link::to_rts() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = kTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kRnrRetries;
  attr.max_rd_atomic = session_.most_reads();
  check("ibv_modify_qp to RTS",
        ibv_modify_qp(qp_.get(), &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

// One queue that is slept for.
class Sleeper {
 public:
  explicit Sleeper(ibv_context* context) : queue(context, 2 * Session::kReceiveDepth) {
    epoll.add(queue.fd(), 0);
  }

  EventQueue queue;
  Epoll epoll;
};

Session::~Session() = default;

Device::Device(const std::string& name) : context_(open_device(name)) {
  pd_.reset(check("ibv_alloc_pd", ibv_alloc_pd(context_.get())));
}

Session::Session(const Setup& setup)
    : setup_(setup),
      device_(setup.shared != nullptr ? setup.shared->get(setup.device)
                                      : std::make_shared<Device>(setup.device)) {
  tx_.reset(check("ibv_create_cq", ibv_create_cq(context(), 2 * kSendDepth, nullptr, nullptr, 0)));
  if (setup.waiting == Waiting::epoll) {
    sleeper_ = std::make_unique<Sleeper>(context());
    rx_ = sleeper_->queue.cq();
  } else {
    polled_rx_.reset(
        check("ibv_create_cq", ibv_create_cq(context(), 2 * kReceiveDepth, nullptr, nullptr, 0)));
    rx_ = polled_rx_.get();
  }
  ibv_device_attr device{};
  check("ibv_query_device", ibv_query_device(context(), &device));
  most_reads_ = static_cast<uint8_t>(std::clamp(device.max_qp_rd_atom, 1, kMostReads));
}

ibv_wc Session::sleep(const char* awaited) {
  while (true) {
    ibv_wc wc;
    const int n = ibv_poll_cq(rx_, 1, &wc);
    if (n < 0) throw_errno("ibv_poll_cq", -n);
    if (n == 1) return wc;
    sleeper_->epoll.wait(awaited, [this](uint64_t) { sleeper_->queue.heed(); });
  }
}

void Session::give_up(const ibv_wc& wc) {
  if (wc.status != IBV_WC_WR_FLUSH_ERR) throw_completion_error(wc);
  for (ibv_cq* cq : {tx_.get(), rx_}) {
    ibv_wc other;
    while (ibv_poll_cq(cq, 1, &other) == 1) {
      if (other.status != IBV_WC_SUCCESS && other.status != IBV_WC_WR_FLUSH_ERR) {
        throw_completion_error(other);
      }
    }
  }
  throw_completion_error(wc);
}

Mr Session::register_memory(void* base, size_t len_bytes, int access) {
  return Mr(check("ibv_reg_mr", ibv_reg_mr(pd(), base, len_bytes, access)));
}

Mr Session::register_target(void* base, size_t len_bytes) {
  return register_memory(base, len_bytes,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_ATOMIC);
}

Mr Session::register_remote(void* base, size_t len_bytes, Channel& channel, RemoteRegion& theirs) {
  Mr mr = register_target(base, len_bytes);
  theirs = channel.exchange(RemoteRegion{reinterpret_cast<uint64_t>(base), mr->rkey, 0}, "region");
  return mr;
}

}  // namespace aperture::bench
