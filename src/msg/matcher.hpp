// Matching: which posted receive an incoming message belongs to. fi_msg(3), fi_tagged(3).
//
// Guarded by the engine's lock. Two books, tagged and untagged, each with the posted receives and
// the unexpected messages in order; a message goes to the oldest receive that matches, a receive
// takes the oldest message that matches. A ring into here is always drained: unexpected headers are
// always taken (from a pool, counted), small payload with them; above kPayloadLimit of unexpected
// payload the peers are asked to offer messages only, so payload waits in its senders' buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/list.hpp"
#include "base/pool.hpp"
#include "msg/probe.hpp"
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
    // Tells all queue pairs.
    virtual void set_pressure(bool on) noexcept = 0;
    // Of a shared receive context: what comes next completes where that endpoint's receives do.
    virtual void completes_at(qp::Port& /*port*/) noexcept {}
  };

  // shared: several endpoints receive here, and `port` is that of whose turn it is.
  Matcher(qp::Port& port, Host& host, size_t planned_receives, bool directed, bool report_source,
          bool shared = false) noexcept;
  ~Matcher() override;

  Status recv(const qp::RecvWr& wr) noexcept;
  // The hot path of posting: one buffer, nothing unexpected in its book. False: nothing was done,
  // take recv().
  bool recv_flat(const FlatRecv& wr) noexcept {
    Book& b = book(wr.tagged);
    if (!b.unexpected.empty()) return false;
    Recv* r = receives_.take();
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
    r->multi = false;
    r->iov_count = 1;
    r->iov[0] = {wr.buf, wr.len};
    b.posted.push_back(r);
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

  // The endpoint goes: what came to it and was not received is dropped.
  // That source is nobody's any more: messages that wait under it are found under `now` from here
  // on, or, where that is kNoSource, only by receives from anybody.
  void forget_source(uint64_t source, uint64_t now) noexcept;
  void forget_port(const qp::Port& port) noexcept;
  // A message is here that this receive would take.
  bool would_match(const qp::RecvWr& wr) noexcept {
    return find_unexpected(book(wr.tagged), wr) != nullptr;
  }

  bool on_message(qp::Qp& qp, const qp::Arrival& arrival) noexcept override;
  bool on_line(qp::Qp& qp, wire::Head head, const std::byte* body) noexcept override;
  void on_received(qp::Qp& qp, void* cookie, Errc err) noexcept override;
  uint64_t source_to_report(qp::Qp& qp) noexcept override {
    return report_source_ ? host_.source_of(qp) : qp::kNoSource;
  }

  bool under_pressure() const noexcept { return pressure_; }
  size_t unexpected_payload_bytes() const noexcept { return payload_bytes_; }

  static constexpr size_t kPayloadLimit = 16 * 1024 * 1024;

 private:
  // What a multi-receive buffer knows beyond a receive. Its iov is what is left of it.
  struct MultiRecv {
    uint64_t least_room;
    uint32_t under_way;  // messages whose bytes are still coming
    bool closed;         // takes no more messages; goes with the last one that is under way
    bool has_entry;      // a CQ entry is promised for its release
    Errc why;            // closed before it was full: canceled, ...
    std::byte* begin;    // of the whole buffer
  };
  struct alignas(64) Recv : ListHook {  // what a match looks at lies in the first lines
    uint64_t tag;
    uint64_t ignore;
    uint64_t source;
    uint64_t len;
    void* context;
    uint64_t flags;
    bool completion;
    bool tagged;
    bool plain;  // one buffer for one message with a completion: the hot path may serve it
    bool multi;  // a multi-receive buffer, or a message on its way into one
    uint8_t iov_count;
    iovec iov[qp::kIovLimit];
    // of a message under way
    uint64_t msg_len;
    uint64_t msg_tag;
    uint64_t msg_imm;
    uint64_t msg_source;
    qp::Beside msg_beside;
    MultiRecv buffer;  // multi: of the buffer
    Recv* owner;       // multi: of a message on its way, its buffer
  };
  struct BySource;  // tag of the second list
  struct Unexpected : ListHook, BasicListHook<BySource> {
    uint64_t tag;
    uint64_t imm;
    uint64_t len;
    uint64_t source;
    qp::Qp* qp;         // of an offer; nullptr for payload that is here
    qp::Arrival offer;  // of an offer
    qp::Port* port;     // of the endpoint that it came to
    qp::Beside beside;
    bool counted;      // payload counts against kPayloadLimit
    void* claimed_by;  // context of the claim
    bool claimed;
    std::unique_ptr<std::byte[]> payload;
  };
  using SourceList = List<Unexpected, BySource>;
  struct Book {
    List<Recv> posted;
    List<Unexpected> unexpected;
    // The same messages by source, for directed receives: many peers may flood one.
    std::vector<std::unique_ptr<SourceList>> by_source;
  };

  Book& book(bool tagged) noexcept { return tagged ? tagged_ : plain_; }
  static bool tags_match(uint64_t tag, uint64_t want, uint64_t ignore) noexcept {
    return ((tag ^ want) & ~ignore) == 0;
  }
  bool source_matches(uint64_t want, uint64_t source) const noexcept {
    return !directed_ || want == qp::kAnySource || want == source;
  }
  Recv* find_posted(Book& b, const qp::Arrival& a, qp::Qp& qp) noexcept;
  Unexpected* find_unexpected(Book& b, const qp::RecvWr& wr) noexcept;
  bool list_by_source(Book& b, Unexpected& u) noexcept;
  bool list(Book& b, Unexpected& u) noexcept;
  void unlist(Book& b, Unexpected& u) noexcept;
  Unexpected* find_claimed(const qp::RecvWr& wr) noexcept;
  bool keep(Book& b, qp::Qp& qp, const qp::Arrival& a) noexcept;
  void fill(Recv& r, const qp::RecvWr& wr) noexcept;
  Status take(Unexpected& u, const qp::RecvWr& wr) noexcept;
  void forget(Unexpected& u) noexcept;
  void deliver(Recv& r) noexcept;
  void fail(Recv& r, Errc why) noexcept;
  void begin(qp::Qp& qp, const qp::Arrival& offer, Recv& r) noexcept;
  Status probe_claimed(const Probe& probe) noexcept;
  // multi_recv.cpp
  bool on_multi_message(qp::Qp& qp, const qp::Arrival& a, Recv& buffer) noexcept;
  bool prepare_unexpected(Book& b, const qp::RecvWr& wr, uint64_t least_room) noexcept;
  void take_multi(Unexpected& u, Recv& buffer) noexcept;
  void cut(Recv& buffer, Recv& part) noexcept;
  void end_multi_message(const Recv& part, Errc err) noexcept;
  void close_multi(Recv& buffer, Errc why) noexcept;
  void release_multi(Recv& buffer) noexcept;
  void complete_probe(const Unexpected& u, const qp::RecvWr& wr) noexcept;

  qp::Port& port_;
  Host& host_;
  const bool directed_;
  const bool report_source_;
  const bool shared_;
  bool pressure_ = false;
  size_t payload_bytes_ = 0;
  Book plain_;
  Book tagged_;
  List<Unexpected> claimed_;
  List<Recv> receiving_;  // matched with an offer, bytes on their way
  Pool<Recv> receives_;
  Pool<Unexpected> messages_;
};

}  // namespace aperture::msg
