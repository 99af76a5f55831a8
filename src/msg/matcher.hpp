// Matching: which posted receive an incoming message belongs to. fi_msg(3), fi_tagged(3).
//
// This is what the rooms above use, and where the queue pairs' messages come in; each part has its
// contract at its head:
//
//   core.hpp              what they share, and how payload that nobody waits for is bounded
//   receives.hpp          receives, from their posting to their end
//   unexpected.hpp        messages that came before their receive
//   multi_receives.hpp    buffers for many messages
//   shown_messages.hpp    messages that are shown, and then claimed or discarded
//
// Guarded by the engine's lock. A message goes to the oldest receive that matches, a receive takes
// the oldest message that matches. A ring into here is drained: unexpected headers are taken, small
// payload with them, until they take as much memory as they may (UnexpectedMessages::kMostBytes).
#pragma once

#include <cstdint>

#include "msg/core.hpp"
#include "msg/multi_receives.hpp"
#include "msg/probe.hpp"
#include "msg/shown_messages.hpp"

namespace aperture::msg {

class Matcher final : public qp::MessageSink {
 public:
  using Host = MatchCore::Host;

  // shared: several endpoints receive here, and `port` is that of whose turn it is.
  Matcher(qp::Port& port, Host& host, size_t planned_receives, bool directed, bool report_source,
          bool shared = false) noexcept;

  // Before anything is posted: messages are shown and then claimed or discarded (buffered.hpp), the
  // untagged ones all, and the tagged ones that a probe with Action::show matches. `rule` outlives
  // this. Errors: no_memory.
  Status show_messages(const BufferedRule& rule) noexcept { return shown_.start(rule); }

  Status recv(const qp::RecvWr& wr) noexcept;
  // The hot path of posting: one buffer, nothing unexpected in its book. False: nothing was done,
  // take recv().
  bool recv_flat(const FlatRecv& wr) noexcept {
    return core_.early.empty(wr.tagged) && core_.receives.post_flat(wr);
  }
  // One buffer (one iovec) that takes message after message until less than least_room bytes are
  // left of it.
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
    return multi_.recv(wr, least_room);
  }
  Status probe(const Probe& probe) noexcept;
  // Errors: no_entry.
  Status cancel(void* context) noexcept { return core_.receives.cancel(context); }
  void cancel_all(Errc why) noexcept { core_.receives.cancel_all(why); }
  // The connection is gone: offers of it cannot be had any more, and receives that name its peer
  // alone end with `why`.
  void on_lost(qp::Qp& qp, Errc why) noexcept;
  // The first half of that alone.
  void drop_offers_of(qp::Qp& qp) noexcept;

  // That source is nobody's any more. Its peer has another, `now`, under which messages that wait
  // and receives that name it are found from here on; or it has none (kNoSource), and its messages
  // are found only by receives from anybody.
  void forget_source(uint64_t source, uint64_t now) noexcept;
  // That peer is in the table now, under `source`, or under a lower index than before, which was
  // `before`: its messages and the receives that name it are found there from here on.
  void name_source(const Address& remote, uint64_t before, uint64_t source) noexcept;
  // The endpoint goes: what came to it and was not received is dropped.
  void forget_port(const qp::Port& port) noexcept;
  // A message is here that this receive would take.
  bool would_match(const qp::RecvWr& wr) noexcept { return core_.early.find(wr) != nullptr; }

  bool on_message(qp::Qp& qp, const qp::Arrival& arrival) noexcept override;
  bool on_line(qp::Qp& qp, wire::SoundHead head, const std::byte* body) noexcept override;
  void on_received(qp::Qp& qp, void* cookie, Errc err) noexcept override;
  uint64_t source_to_report(qp::Qp& qp) noexcept override { return core_.source_to_report(qp); }

  bool under_pressure() const noexcept { return core_.pressure; }
  size_t unexpected_bytes() const noexcept { return core_.early.bytes(); }

 private:
  bool keep(qp::Qp& qp, const qp::Arrival& a) noexcept;

  MatchCore core_;
  MultiReceives multi_{core_};
  ShownMessages shown_{core_};
};

}  // namespace aperture::msg
