// Matching: which posted receive an incoming message belongs to. fi_msg(3), fi_tagged(3).
//
// Guarded by the engine's lock. Tagged and untagged receives stand in lists of their own; a message
// goes to the oldest receive that matches, a receive takes the oldest message that matches
// (unexpected.hpp). A ring into here is always drained: unexpected headers are always taken, small
// payload with them; above kPayloadLimit of unexpected payload the peers are asked to offer
// messages only, so payload waits in its senders' buffers.
#pragma once

#include <cstdint>

#include "base/list.hpp"
#include "base/pool.hpp"
#include "msg/buffered.hpp"
#include "msg/probe.hpp"
#include "msg/receive.hpp"
#include "msg/unexpected.hpp"
#include "qp/qp.hpp"

namespace aperture::msg {

// A receive of one buffer.
struct FlatRecv {
  void* buf;
  size_t len;
  uint64_t source;
  uint64_t tag;
  uint64_t ignore;
  void* context;
  uint64_t flags;
  bool tagged;
  bool completion;
};

class Matcher final : public qp::MessageSink {
 public:
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
    // Of a shared receive context: what comes next completes where that endpoint's receives do.
    virtual void completes_at(qp::Port& /*port*/) noexcept {}
  };

  // shared: several endpoints receive here, and `port` is that of whose turn it is.
  Matcher(qp::Port& port, Host& host, size_t planned_receives, bool directed, bool report_source,
          bool shared = false) noexcept;

  // Before anything is posted: messages are shown and then claimed or discarded (buffered.hpp), the
  // untagged ones all, and the tagged ones that a probe with Action::show matches. `rule` outlives
  // this. Errors: no_memory.
  Status show_messages(const BufferedRule& rule) noexcept;

  Status recv(const qp::RecvWr& wr) noexcept;
  // The hot path of posting: one buffer, nothing unexpected in its book. False: nothing was done,
  // take recv().
  bool recv_flat(const FlatRecv& wr) noexcept {
    if (!early_.empty(wr.tagged)) return false;
    Receive* r = receives_.take();
    if (r == nullptr) [[unlikely]]
      return false;
    *static_cast<ListHook*>(r) = {};
    r->tag = wr.tag;
    r->ignore = wr.ignore;
    r->source = wr.source;
    r->len = wr.len;
    r->context = wr.context;
    r->flags = wr.flags;
    r->completion = wr.completion;
    r->tagged = wr.tagged;
    r->plain = wr.completion;
    r->kind = Receive::Kind::single;
    r->iov_count = 1;
    r->iov[0] = {wr.buf, wr.len};
    posted(wr.tagged).push_back(r);
    return true;
  }
  // One buffer (one iovec) that takes message after message until less than least_room bytes are
  // left of it (multi_recv.cpp).
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept;
  Status probe(const Probe& probe) noexcept;
  // Errors: no_entry.
  Status cancel(void* context) noexcept;
  void cancel_all(Errc why) noexcept;
  // The connection is gone: offers of it cannot be had any more, and receives that name its peer
  // alone end with `why`.
  void on_lost(qp::Qp& qp, Errc why) noexcept;
  // The first half of that alone.
  void drop_offers_of(qp::Qp& qp) noexcept;

  // That source is nobody's any more: messages that wait under it are found under `now` from here
  // on, or, where that is kNoSource, only by receives from anybody.
  void forget_source(uint64_t source, uint64_t now) noexcept { early_.rename_source(source, now); }
  // That peer is in the table now, under `source`, or under a lower index than before, which was
  // `before`: its messages and the receives that name it are found there from here on.
  void name_source(const Address& remote, uint64_t before, uint64_t source) noexcept;
  // The endpoint goes: what came to it and was not received is dropped.
  void forget_port(const qp::Port& port) noexcept;
  // A message is here that this receive would take.
  bool would_match(const qp::RecvWr& wr) noexcept { return early_.find(wr) != nullptr; }

  bool on_message(qp::Qp& qp, const qp::Arrival& arrival) noexcept override;
  bool on_line(qp::Qp& qp, wire::SoundHead head, const std::byte* body) noexcept override;
  void on_received(qp::Qp& qp, void* cookie, Errc err) noexcept override;
  uint64_t source_to_report(qp::Qp& qp) noexcept override {
    return report_source_ ? host_.reported_source_of(qp) : qp::kNoSource;
  }

  bool under_pressure() const noexcept { return pressure_; }
  size_t unexpected_payload_bytes() const noexcept { return early_.payload_bytes(); }

  static constexpr size_t kPayloadLimit = 16 * 1024 * 1024;

 private:
  List<Receive>& posted(bool tagged) noexcept { return tagged ? tagged_ : plain_; }
  bool source_matches(uint64_t want, uint64_t source) const noexcept {
    return !directed_ || want == qp::kAnySource || want == source;
  }
  Receive* find_posted(const qp::Arrival& a, qp::Qp& qp) noexcept;
  Status take(Unexpected& u, const qp::RecvWr& wr) noexcept;
  void drop(Unexpected& u) noexcept;
  void weigh_pressure() noexcept;
  void deliver(Receive& r) noexcept;
  void fail(Receive& r, Errc why) noexcept;
  void end_in_error(const Receive& r, qp::CompletionError&& e) noexcept;
  void begin(qp::Qp& qp, const qp::Arrival& offer, Receive& r) noexcept;
  void complete_probe(const Unexpected& u, const qp::RecvWr& wr) noexcept;
  uint64_t source_to_report(const Unexpected& u) noexcept {
    return report_source_ ? host_.reported(u.source) : qp::kNoSource;
  }
  // multi_recv.cpp
  bool on_multi_message(qp::Qp& qp, const qp::Arrival& a, Receive& buffer) noexcept;
  bool prepare_unexpected(const qp::RecvWr& wr, uint64_t least_room) noexcept;
  void take_multi(Unexpected& u, Receive& buffer) noexcept;
  void cut(Receive& buffer, Receive& part) noexcept;
  void end_part(const Receive& part, Errc err) noexcept;
  // buffered.cpp
  Status show_next(const qp::RecvWr& wr) noexcept;
  bool show_arrival(qp::Qp& qp, const qp::Arrival& a, Receive& receive) noexcept;
  bool fetch(Shown& shown) noexcept;
  void begin_to_show(Shown& shown) noexcept;
  void on_fetched(Receive& fetch, Errc err) noexcept;
  void show_in_turn(const Address& from) noexcept;
  void show(Shown& shown) noexcept;
  Status end_shown(Unexpected& u, const Probe& probe) noexcept;

  qp::Port& port_;
  Host& host_;
  const bool directed_;
  const bool report_source_;
  const bool shared_;
  bool pressure_ = false;
  List<Receive> plain_;   // posted
  List<Receive> tagged_;  // posted
  UnexpectedMessages early_;
  List<Receive> receiving_;             // matched with an offer, bytes on their way
  const BufferedRule* rule_ = nullptr;  // null: messages are received as usual
  Receive* any_plain_ = nullptr;        // with a rule: stands for ever among the posted ones
  List<Shown> coming_;                  // bytes on their way, and those behind them
  Pool<Receive> receives_;
};

}  // namespace aperture::msg
