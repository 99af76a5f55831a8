// A posted receive, and what a multi-receive buffer has beyond one (multi_receives.hpp).
//
// Guarded by the engine's lock. Where it stands is receives.hpp's, or, of datagrams,
// datagram_receives.hpp's. Invariants of a buffer:
//   - every message gives one entry (unless successes are suppressed), with its own place, which is
//     behind that of the message before it, without a gap;
//   - the last entry of a buffer, success or error, carries the release flag; when that one is a
//     suppressed success, an entry of the release flag alone stands for it. So there is exactly one
//     release, and after it nobody writes to the buffer any more;
//   - a message larger than what is left is truncated: it was matched, and a buffer is used up only
//     when less than its least room is left.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "base/list.hpp"
#include "qp/qp.hpp"

namespace aperture::msg {

// Receives that one queue has at once, at most.
inline constexpr size_t kMostReceives = 1u << 20;

struct alignas(64) Receive : ListHook {  // what a match looks at lies in the first lines
  enum class Kind : uint8_t {
    single,    // one message
    multi,     // a multi-receive buffer, or a message on its way into one
    buffered,  // meets a message that is to be shown, or bytes on their way for that (buffered.hpp)
    standing,  // the same, for every untagged message: it stays posted
  };
  uint64_t tag;
  uint64_t ignore;
  uint64_t source;
  uint64_t len;
  void* context;
  uint64_t flags;
  uint8_t completion;  // as in qp::RecvWr
  bool tagged;
  bool plain;  // one buffer for one message with a completion: the hot path may serve it
  Kind kind;
  uint8_t iov_count;
  iovec iov[qp::kIovLimit];
  // of a message under way
  uint64_t msg_len;
  uint64_t msg_tag;
  uint64_t msg_imm;
  uint64_t msg_source;
  qp::Beside msg_beside;
  // multi: of the buffer, whose iov is what is left of it
  struct {
    uint64_t least_room;
    uint32_t under_way;  // messages whose bytes are still coming
    bool closed;         // takes no more messages; goes with the last one that is under way
    bool has_entry;      // a CQ entry is promised for its release
    Errc why;            // closed before it was full: canceled, ...
    std::byte* begin;    // of the whole buffer
  } buffer;
  Receive* owner;  // multi: of a message on its way, its buffer

  void fill(const qp::RecvWr& wr) noexcept;
  // Meets the message: an Arrival or an Unexpected. What is to be reported as its source.
  template <typename Message>
  void meet(const Message& m, uint64_t reported_source) noexcept {
    msg_len = m.len;
    msg_tag = m.tag;
    msg_imm = m.imm;
    msg_beside = m.beside;
    msg_source = reported_source;
  }

  // ---- of a multi-receive buffer ----

  void make_multi(uint64_t least_room) noexcept;
  // The part that the next message gets: part.msg_* are set, part.iov and len become its place.
  // True: too little is left, so that the buffer is to be taken off the posted ones.
  [[nodiscard]] bool cut(Receive& part, qp::Port& port) noexcept;
  // The bytes of a message are in their place, or will not come. Its entry; with it the release of
  // a closed buffer that waited for this message alone. True: nobody uses the buffer any more.
  [[nodiscard]] bool end_part(const Receive& part, Errc err, qp::Port& port) noexcept;
  // Ends a buffer that the caller has taken off the posted ones: no more messages, and one error as
  // its release once those under way have come. True: nobody uses the buffer any more.
  [[nodiscard]] bool close(Errc why, qp::Port& port) noexcept;

 private:
  void release(qp::Port& port) const noexcept;
};

inline void Receive::fill(const qp::RecvWr& wr) noexcept {
  assert(wr.iov_count <= qp::kIovLimit);
  *static_cast<ListHook*>(this) = {};
  tag = wr.tag;
  ignore = wr.ignore;
  source = wr.source;
  len = wr.len;
  context = wr.context;
  flags = wr.flags;
  completion = wr.completion;
  tagged = wr.tagged;
  kind = Kind::single;
  iov_count = static_cast<uint8_t>(wr.iov_count);
  plain = wr.iov_count == 1 && wr.completion == qp::kEntry;
  if (plain) [[likely]] {
    iov[0] = wr.iov[0];
  } else {
    std::copy_n(wr.iov, wr.iov_count, iov);
  }
}

}  // namespace aperture::msg
