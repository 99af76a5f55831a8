// What the parts of a matching share: the endpoint that it is of, the receives that wait for
// messages, and the messages that wait for receives.
//
// Matcher (matcher.hpp) holds one by value, and the other parts refer to it. Guarded by the
// engine's lock. Whenever a message has been kept or dropped the pressure is weighed: where they
// take more than kPressureBytes the peers are asked to offer what does not lie in cells, so that
// its payload waits in its senders' buffers.
#pragma once

#include "msg/receives.hpp"
#include "msg/unexpected.hpp"

namespace aperture::msg {

struct MatchCore {
  // What matching has to ask of its endpoint.
  class Host {
   public:
    virtual ~Host() = default;
    // Address-table index of the queue pair's peer, kNoSource if it is not in the table.
    virtual uint64_t source_of(qp::Qp& qp) noexcept = 0;
    // What completions say instead: of that peer, and of an index that was found before.
    virtual uint64_t reported_source_of(qp::Qp& qp) noexcept { return source_of(qp); }
    virtual uint64_t reported(uint64_t source) noexcept { return source; }
    // Tells all queue pairs.
    virtual void set_pressure(bool on) noexcept = 0;
    // Of an endpoint that shares receives: that peer's messages may come through it.
    virtual bool hears(const Address& /*remote*/) noexcept { return false; }
    // Of a shared receive context: what comes next completes where that endpoint's receives do.
    virtual void completes_at(qp::Port& /*port*/) noexcept {}
  };

  static constexpr size_t kPressureBytes = 16 * 1024 * 1024;

  MatchCore(qp::Port& its_port, Host& its_host, size_t planned_receives, bool directed_receives,
            bool reports_source, bool is_shared) noexcept
      : port(its_port),
        host(its_host),
        directed(directed_receives),
        report_source(reports_source),
        shared(is_shared),
        receives(its_port, planned_receives, directed_receives),
        early(directed_receives) {}
  MatchCore(const MatchCore&) = delete;
  MatchCore& operator=(const MatchCore&) = delete;

  // ---- who sent it ----

  // As directed receives name it.
  uint64_t source_of(qp::Qp& qp) noexcept { return directed ? host.source_of(qp) : qp::kNoSource; }
  // By which of our keys, for receives that name one.
  uint8_t key_of(const qp::Qp& qp) const noexcept { return directed ? qp.remote().key : 0; }
  // As a message that is kept remembers it.
  uint64_t source_to_keep(qp::Qp& qp) noexcept {
    return directed || report_source ? host.source_of(qp) : qp::kNoSource;
  }
  uint64_t source_to_report(qp::Qp& qp) noexcept {
    return report_source ? host.reported_source_of(qp) : qp::kNoSource;
  }
  uint64_t source_to_report(const Unexpected& u) noexcept {
    return report_source ? host.reported(u.source) : qp::kNoSource;
  }

  // ---- messages and receives that meet ----

  // An offered message has found its receive of one message: the bytes come now.
  void begin(qp::Qp& qp, const qp::Arrival& offer, Receive& r) noexcept;
  // A receive meets a message that was there before. Errors: again.
  Status take(Unexpected& u, const qp::RecvWr& wr) noexcept;
  // The same for one that was claimed and then went with its sender.
  void fail_claim(Unexpected& u, const qp::RecvWr& wr) noexcept;
  // The completion of a look at a message.
  void complete_look(const Unexpected& u, const qp::RecvWr& wr) noexcept;
  // A message that has been taken out of its list is forgotten.
  void drop(Unexpected& u) noexcept;
  // A message ends unreceived, for its sender too.
  void discard(Unexpected& u) noexcept;
  void weigh_pressure() noexcept;

  qp::Port& port;
  Host& host;
  const bool directed;
  const bool report_source;
  const bool shared;  // several endpoints receive here, and `port` is that of whose turn it is
  bool pressure = false;
  Receives receives;
  UnexpectedMessages early;
};

}  // namespace aperture::msg
