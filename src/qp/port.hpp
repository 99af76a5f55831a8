// What the queue pairs of one endpoint share: completion queues, counters, the transmit queue, the
// place where messages go, and the protection domain that incoming requests meet.
//
// Guarded by the engine's lock. MessageSink is implemented by msg/ (matching); a queue pair calls
// it for each message, in order.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "base/pool.hpp"
#include "protect/key_table.hpp"
#include "qp/completion.hpp"
#include "qp/raw_keys.hpp"
#include "qp/wqe.hpp"
#include "ring/cell.hpp"
#include "ring/channel.hpp"
#include "transport/permit.hpp"
#include "wire/request.hpp"

namespace aperture::qp {

class Qp;

// What the 8 bytes that come with a message are.
enum class Beside : uint8_t { nothing, imm, invalidated_key, group_key };
constexpr size_t kBesides = 4;
// Without a branch: the flag is the number.
constexpr Beside beside_of(uint8_t flags) noexcept {
  static_assert(wire::kImm >> 1 == static_cast<int>(Beside::imm));
  return static_cast<Beside>((flags & wire::kImm) >> 1);
}

// A message at the head of a request ring, decoded; valid during on_message only.
struct Arrival {
  enum class Where : uint8_t {
    flat,     // one run of bytes: the first cell, or the byte ring
    cells,    // on over several cells
    offered,  // with its sender
  };
  Where where;
  bool tagged;
  Beside beside;
  bool delivery;
  uint64_t tag;
  uint64_t imm;            // what is beside it; 0 if nothing is
  uint64_t len;            // bytes of the message
  const std::byte* bytes;  // where == flat
  // unset where they do not apply: this is made for each message
  const ring::CellReader* cells;  // where == cells: payload at this body offset
  size_t cells_offset;
  // where == offered: the peer's words, for OfferReceiver alone, which bounds them
  uint64_t offer_address;
  uint32_t offer_id;
  uint32_t offer_claim;

  // Copies the first n bytes of the payload (not offered) to flat memory or an iovec.
  void copy_to(void* to, uint64_t n) const noexcept;
  void scatter_to(const iovec* iov, size_t count, uint64_t n) const noexcept;
};

inline Arrival arrival_of_line(wire::SoundHead head, const std::byte* body) noexcept {
  Arrival a;
  a.where = Arrival::Where::flat;
  a.tagged = head.has(wire::kTagged);
  a.beside = beside_of(head.flags());
  a.delivery = false;
  a.tag = head.word().unchecked();  // matched
  a.imm = 0;
  if (a.beside != Beside::nothing) std::memcpy(&a.imm, body + wire::kHeadBytes, sizeof a.imm);
  a.len = head.len();
  a.bytes = body + wire::payload_offset(wire::Op::send, head.flags());
  return a;
}

// The receiving half of an offered message, once msg/ knows where it goes.
struct Receive {
  const iovec* iov = nullptr;  // stays valid until on_received
  size_t iov_count = 0;
  uint64_t want = 0;       // bytes to receive, at most the offered length
  void* cookie = nullptr;  // msg/'s own
  bool preview = false;    // the first `want` bytes, at least one; the message stays on offer
  Told* told = nullptr;    // of its bytes, as they come; null: nobody is
};

class MessageSink {
 public:
  virtual ~MessageSink() = default;
  // False: no room now; the message stays in the ring and is shown again.
  virtual bool on_message(Qp& qp, const Arrival& arrival) noexcept = 0;
  // The same for a message in one cell (wire::read_line), body and all. The hot path of receiving:
  // who has nothing quicker to do describes it and takes it as any other.
  virtual bool on_line(Qp& qp, wire::SoundHead head, const std::byte* body) noexcept {
    return on_message(qp, arrival_of_line(head, body));
  }
  // A Receive that was begun is over; err != ok: the bytes are not (all) there.
  virtual void on_received(Qp& qp, void* cookie, Errc err) noexcept = 0;
  // What Completion::source says of that peer.
  virtual uint64_t source_to_report(Qp&) noexcept { return kNoSource; }
};

// What is posted and not done yet. Of one endpoint, or of several in one domain that share it.
struct TransmitQueue {
  explicit TransmitQueue(size_t planned_wqes, size_t planned_atomics = 0) noexcept
      : wqes(planned_wqes, kMostWqes), atomics(planned_atomics, kMostWqes) {}
  static constexpr size_t kMostWqes = 1u << 20;

  size_t size = 1024;
  size_t queued = 0;  // WQEs in send queues, of which there are at most `size`
  Pool<Wqe> wqes;
  Pool<WaitingAtomic> atomics;
};

struct Port {
  // shared: its transmit queue, which outlives it; null: one of its own, with so much planned.
  Port(protect::KeyTable& key_table, size_t planned_wqes, size_t planned_atomics = 0,
       TransmitQueue* shared = nullptr)
      : keys(key_table),
        tx(shared != nullptr ? *shared : own_.emplace(planned_wqes, planned_atomics)) {}
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

 private:
  std::optional<TransmitQueue> own_;

 public:
  protect::KeyTable& keys;
  protect::DomainId domain = 0;
  protect::EndpointId endpoint = 0;  // regions may be bound to it
  bool watches_regions = false;  // FI_RMA_EVENT: counters of regions count what comes through it
  const RawKeys* raw_keys = nullptr;  // ranges are named by handles of it; null: by their keys
  MessageSink* sink = nullptr;
  bool takes_groups = false;  // the sink tells messages of groups from others
  Cq* tx_cq = nullptr;        // null: counters only; then no operation asks for a completion
  Cq* rx_cq = nullptr;        // likewise
  Counter* send_counter = nullptr;
  Counter* recv_counter = nullptr;
  Counter* read_counter = nullptr;
  Counter* write_counter = nullptr;
  Counter* remote_read_counter = nullptr;
  Counter* remote_write_counter = nullptr;
  // Or-ed into Completion::flags by what is beside a message; nothing for nothing.
  std::array<uint64_t, kBesides> beside_flags{};
  uint64_t flag_of(Beside what) const noexcept { return beside_flags[static_cast<size_t>(what)]; }
  void set_imm_flag(uint64_t flag) noexcept { beside_flags[1] = flag; }
  uint64_t imm_flag() const noexcept { return beside_flags[1]; }
  void set_invalidated_flag(uint64_t flag) noexcept { beside_flags[2] = flag; }
  uint64_t release_flag = 0;  // or-ed into the last entry of a multi-receive buffer
  uint64_t remote_write_flags = 0;
  const protect::Wording* wording = &protect::kNeutralWording;  // of the door that opened it
  bool strict_rma_order = false;
  TransmitQueue& tx;

  // Something of both is told in the same completion queue.
  bool shares_queue_with(const Port& other) const noexcept {
    const auto tells_in = [&](const Cq* cq) {
      return cq != nullptr && (cq == other.tx_cq || cq == other.rx_cq);
    };
    return tells_in(tx_cq) || tells_in(rx_cq);
  }

  // Its endpoint is being closed: an operation that ends without having been carried out is told to
  // nobody.
  bool discards = false;

  // A receive ends in error.
  void fail_receive(CompletionError&& e) noexcept {
    if (discards) return;
    if (rx_cq != nullptr) rx_cq->push_error(std::move(e));
    if (recv_counter != nullptr) recv_counter->add_error(1);
  }

  // Direct accesses of peers that we want to be told of: those that are counted here.
  uint16_t told_accesses() const noexcept {
    return static_cast<uint16_t>((remote_read_counter != nullptr ? transport::kTellOfReads : 0) |
                                 (remote_write_counter != nullptr ? transport::kTellOfWrites : 0));
  }

  Counter* counter_of(WqeKind kind) const noexcept {
    return kind == WqeKind::send ? send_counter : returns_data(kind) ? read_counter : write_counter;
  }
};

}  // namespace aperture::qp
