// The sentence for a refusal, at both ends: see rc_explain.hpp.
#include "ib/rc_explain.hpp"

#include <cstdio>
#include <string>

#include "base/log.hpp"
#include "protect/peer_key_view.hpp"

namespace aperture::ib {

using protect::Denial;
using protect::Rights;
using protect::WindowAnswer;

namespace {

struct Attempt {
  const char* what;
  Rights need;
};

Attempt attempt_of(const Wqe& w) noexcept {
  switch (w.op) {
    case SendOp::write:
    case SendOp::write_with_imm: return {"RDMA write", Rights::remote_write};
    case SendOp::read: return {"RDMA read", Rights::remote_read};
    case SendOp::cmp_swap: return {"compare and swap", Rights::remote_atomic};
    case SendOp::fetch_add: return {"fetch and add", Rights::remote_atomic};
    case SendOp::send_with_inv: return {"send with invalidate", Rights::none};
    case SendOp::atomic_write: return {"atomic write", Rights::remote_write};
    case SendOp::flush:
      return {"flush", (w.swap & kFlushPersistent) == 0 ? Rights::flush_global
                       : (w.swap & kFlushGlobal) == 0
                           ? Rights::flush_persistent
                           : Rights::flush_global | Rights::flush_persistent};
    default: return {"send", Rights::none};
  }
}

}  // namespace

void explain_no_place(const QpSpec& spec, const Wqe& w) noexcept {
  APERTURE_WARN(
      "queue pair 0x%x: %s, and max_rd_atomic is 0; set it when modifying "
      "the queue pair to RTS, and max_dest_rd_atomic at the other end",
      spec.qpn, attempt_of(w).what);
}

void explain_too_long(const RcEnd& end, uint64_t len, uint64_t room) noexcept {
  APERTURE_WARN(
      "queue pair 0x%x: a message of %llu bytes from %s does not fit a receive of %llu; post "
      "receives as long as the longest message",
      end.spec.qpn, static_cast<unsigned long long>(len), end.remote.print().c_str(),
      static_cast<unsigned long long>(room));
}

void explain_refused(const RcEnd& end, const transport::LaneEnd& lane, const Wqe& w,
                     std::optional<uint32_t> room) noexcept {
  if (log_level() < LogLevel::warn) return;
  const Attempt attempt = attempt_of(w);
  const uint64_t len = w.op == SendOp::flush ? w.compare_add : w.len;
  const auto denial = static_cast<Denial>(w.denial);
  char text[320];
  if (room) {
    APERTURE_WARN(
        "queue pair 0x%x: %s of %llu bytes was refused by %s: the receive there has room for %u; "
        "post longer receives there, or send less at once",
        end.spec.qpn, attempt.what, static_cast<unsigned long long>(len),
        end.remote.print().c_str(), *room);
    return;
  }
  if (denial == Denial::none) {
    std::snprintf(text, sizeof text, "queue pair 0x%x: %s of %llu bytes was refused by %s: %s",
                  end.spec.qpn, attempt.what, static_cast<unsigned long long>(len),
                  end.remote.print().c_str(),
                  w.status == WcStatus::rem_inv_req_err
                      ? "the queue pair there does not take such requests (qp_access_flags, "
                        "max_dest_rd_atomic)"
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
                  end.spec.qpn, attempt.what, static_cast<unsigned long long>(len), w.imm,
                  end.remote.print().c_str(), protect::rule(*end.spec.wording, denial));
  } else {
    std::snprintf(
        text, sizeof text,
        "queue pair 0x%x: %s of %llu bytes at 0x%llx with rkey 0x%x was refused by %s: %s",
        end.spec.qpn, attempt.what, static_cast<unsigned long long>(len),
        static_cast<unsigned long long>(w.remote_addr), w.rkey, end.remote.print().c_str(),
        protect::rule(*end.spec.wording, denial));
  }
  try {
    const protect::AccessAsk ask{lane->remote_domain,
                                 0,
                                 Wild<uint64_t>(w.rkey),
                                 Wild<uint64_t>(w.remote_addr),
                                 Wild<uint64_t>(len),
                                 attempt.need,
                                 0};
    std::string more;
    if (lane->to_self && !invalidates) {
      more = "; " + protect::explain(end.spec.keys->access(), ask, denial, *end.spec.wording);
    } else if (invalidates || lane->direct.keys == nullptr) {
      more = protect::explain_unseen(denial, attempt.need, *end.spec.wording);
    } else {
      const auto* keys = lane->direct.keys;
      more = keys->explain(lane->direct.pid, ask, denial, *end.spec.wording);
    }
    APERTURE_WARN("%s%s", text, more.c_str());
  } catch (...) {
    APERTURE_WARN("%s", text);
  }
}

void explain_refusing(const RcEnd& end, const protect::AccessAsk& ask, Denial denial) noexcept {
  if (log_level() < LogLevel::warn) return;
  if (denial == Denial::none) {
    APERTURE_WARN(
        "queue pair 0x%x refused a request of %s that it does not take; set qp_access_flags (and "
        "max_dest_rd_atomic for reads and atomics) when modifying the queue pair",
        end.spec.qpn, end.remote.print().c_str());
    return;
  }
  try {
    APERTURE_WARN(
        "queue pair 0x%x, from %s: %s", end.spec.qpn, end.remote.print().c_str(),
        protect::explain(end.spec.keys->access(), ask, denial, *end.spec.wording).c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x, from %s: %s", end.spec.qpn, end.remote.print().c_str(),
                  protect::rule(*end.spec.wording, denial));
  }
}

void explain_refused_invalidation(const RcEnd& end, uint32_t rkey, WindowAnswer answer) noexcept {
  if (log_level() < LogLevel::warn) return;
  try {
    APERTURE_WARN("queue pair 0x%x, a send of %s: %s", end.spec.qpn, end.remote.print().c_str(),
                  protect::explain_invalidation(rkey, answer, *end.spec.wording).c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x: %s", end.spec.qpn, protect::sentence(answer));
  }
}

void explain_failed_window(const QpSpec& spec, const Wqe& w, const protect::Window* window,
                           const protect::WindowBind& bind, WindowAnswer answer) noexcept {
  if (log_level() < LogLevel::warn) return;
  try {
    const std::string why =
        window != nullptr ? protect::explain(*window, bind, answer, *spec.wording)
        : w.op == SendOp::bind_mw
            ? "the memory window of a bind is there no more; deallocate it after its binds have "
              "completed"
            : protect::explain_invalidation(w.imm, answer, *spec.wording);
    APERTURE_WARN("queue pair 0x%x: %s", spec.qpn, why.c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x: %s", spec.qpn, protect::sentence(answer));
  }
}

}  // namespace aperture::ib
