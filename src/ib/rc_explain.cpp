// The sentence for a refusal, at both ends.
#include <cstdio>

#include "base/log.hpp"
#include "ib/rc_qp.hpp"

namespace aperture::ib {

using protect::Denial;
using protect::Rights;
using protect::WindowAnswer;

namespace {

struct Attempt {
  const char* what;
  Rights need;
};

Attempt attempt_of(SendOp op) noexcept {
  switch (op) {
    case SendOp::write:
    case SendOp::write_with_imm: return {"RDMA write", Rights::remote_write};
    case SendOp::read: return {"RDMA read", Rights::remote_read};
    case SendOp::cmp_swap: return {"compare and swap", Rights::remote_atomic};
    case SendOp::fetch_add: return {"fetch and add", Rights::remote_atomic};
    case SendOp::send_with_inv: return {"send with invalidate", Rights::none};
    default: return {"send", Rights::none};
  }
}

}  // namespace

void RcQp::explain_refused(const Wqe& w) const noexcept {
  if (log_level() < LogLevel::warn) return;
  const Attempt attempt = attempt_of(w.op);
  const auto denial = static_cast<Denial>(w.denial);
  char text[320];
  if (denial == Denial::none) {
    std::snprintf(text, sizeof text, "queue pair 0x%x: %s of %llu bytes was refused by %s: %s",
                  spec_.qpn, attempt.what, static_cast<unsigned long long>(w.len),
                  remote_.text().c_str(),
                  w.status == WcStatus::rem_inv_req_err
                      ? "the queue pair there does not take such requests (qp_access_flags, "
                        "max_dest_rd_atomic), or its receive is too short for the message"
                  : w.status == WcStatus::rem_access_err
                      ? "the rkey to invalidate is not that of a window of type 2 that is bound to "
                        "the queue pair there"
                      : "it could not be carried out there; the receive there names an lkey that "
                        "does not cover its buffer");
    APERTURE_WARN("%s", text);
    return;
  }
  const bool invalidates = w.op == SendOp::send_with_inv;  // it names a window, and no memory
  if (invalidates) {
    std::snprintf(text, sizeof text,
                  "queue pair 0x%x: %s of %llu bytes and rkey 0x%x was refused by %s: %s",
                  spec_.qpn, attempt.what, static_cast<unsigned long long>(w.len), w.imm,
                  remote_.text().c_str(), protect::rule(*spec_.wording, denial));
  } else {
    std::snprintf(
        text, sizeof text,
        "queue pair 0x%x: %s of %llu bytes at 0x%llx with rkey 0x%x was refused by %s: %s",
        spec_.qpn, attempt.what, static_cast<unsigned long long>(w.len),
        static_cast<unsigned long long>(w.remote_addr), w.rkey, remote_.text().c_str(),
        protect::rule(*spec_.wording, denial));
  }
  try {
    const protect::AccessAsk ask{lane_->remote_domain,
                                 0,
                                 Wild<uint64_t>(w.rkey),
                                 Wild<uint64_t>(w.remote_addr),
                                 Wild<uint64_t>(w.len),
                                 attempt.need,
                                 0};
    std::string more;
    if (invalidates) {
      more = protect::explain_unseen(denial, attempt.need, *spec_.wording);
    } else if (lane_->to_self) {
      more = "; " + spec_.keys->explain(ask, denial, *spec_.wording);
    } else if (lane_->direct.keys == nullptr) {
      more = protect::explain_unseen(denial, attempt.need, *spec_.wording);
    } else {
      const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
      more = keys->explain(lane_->direct.pid, ask, denial, *spec_.wording);
    }
    APERTURE_WARN("%s%s", text, more.c_str());
  } catch (...) {
    APERTURE_WARN("%s", text);
  }
}

void RcQp::explain_refusing(const protect::AccessAsk& ask, Denial denial) const noexcept {
  if (log_level() < LogLevel::warn) return;
  if (denial == Denial::none) {
    APERTURE_WARN(
        "queue pair 0x%x refused a request of %s that it does not take; set qp_access_flags (and "
        "max_dest_rd_atomic for reads and atomics) with ibv_modify_qp",
        spec_.qpn, remote_.text().c_str());
    return;
  }
  try {
    APERTURE_WARN("queue pair 0x%x, from %s: %s", spec_.qpn, remote_.text().c_str(),
                  spec_.keys->explain(ask, denial, *spec_.wording).c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x, from %s: %s", spec_.qpn, remote_.text().c_str(),
                  protect::rule(*spec_.wording, denial));
  }
}

void RcQp::explain_refused_invalidation(uint32_t rkey, WindowAnswer answer) const noexcept {
  if (log_level() < LogLevel::warn) return;
  try {
    APERTURE_WARN("queue pair 0x%x, a send of %s: %s", spec_.qpn, remote_.text().c_str(),
                  protect::explain_invalidation(rkey, answer, *spec_.wording).c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x: %s", spec_.qpn, protect::sentence(answer));
  }
}

}  // namespace aperture::ib
