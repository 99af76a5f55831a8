// Which posted receive a datagram belongs to: the oldest that takes it. fi_msg(3).
//
// The counterpart of matcher.hpp for messages that nobody keeps: a datagram that no receive takes
// is lost. Multi-receive buffers are those of receive.hpp. A receive may begin with a prefix,
// which is left as it is and counted in every length (fi_getinfo(3), FI_MSG_PREFIX). Guarded by the
// engine's lock.
#pragma once

#include <span>

#include "base/list.hpp"
#include "base/pool.hpp"
#include "msg/receive.hpp"

namespace aperture::msg {

struct DatagramMessage {
  std::span<const std::byte> payload;
  qp::Beside beside = qp::Beside::nothing;
  uint64_t imm = 0;
  uint64_t source = qp::kNoSource;    // address-table index of who sent it
  uint64_t reported = qp::kNoSource;  // what completions say of that
  uint64_t flags = 0;                 // or-ed into Completion::flags
};

class DatagramReceives {
 public:
  // directed: receives may name a source. report_source: completions do. prefix_bytes: at the
  // beginning of the first piece of each receive, which has room for it.
  struct Rules {
    bool directed = false;
    bool report_source = false;
    size_t prefix_bytes = 0;
  };
  DatagramReceives(qp::Port& port, size_t planned, const Rules& rules) noexcept;

  // Errors: again.
  Status recv(const qp::RecvWr& wr) noexcept;
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept;
  // Errors: no_entry.
  Status cancel(void* context) noexcept;
  void cancel_all(Errc why) noexcept;
  // Receives that name `before` name `now` from here on.
  void rename_source(uint64_t before, uint64_t now) noexcept;

  // So many datagrams can be taken now at least, as far as sources do not matter: there is a place
  // for each, and an entry in the completion queue.
  size_t room() const noexcept;
  // False: no receive takes it.
  bool take(const DatagramMessage& message) noexcept;

 private:
  Receive* find(uint64_t source) noexcept;
  Status post(const qp::RecvWr& wr, Receive*& made) noexcept;
  void deliver(Receive& r) noexcept;
  void take_multi(const DatagramMessage& message, Receive& buffer) noexcept;
  void fail(Receive& r, Errc why) noexcept;

  qp::Port& port_;
  const Rules rules_;
  List<Receive> posted_;
  size_t count_ = 0;  // of posted_
  Pool<Receive> pool_;
};

}  // namespace aperture::msg
