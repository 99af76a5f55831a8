// A posted receive, and what a multi-receive buffer (multi_recv.cpp) has beyond one.
//
// Guarded by the engine's lock. The matcher keeps it in a list while it is posted, and again while
// the bytes of an offered message are on their way; it comes from the matcher's pool.
#pragma once

#include <sys/uio.h>

#include <cstdint>

#include "base/list.hpp"
#include "qp/qp.hpp"

namespace aperture::msg {

struct alignas(64) Receive : ListHook {  // what a match looks at lies in the first lines
  enum class Kind : uint8_t {
    single,    // one message
    multi,     // a multi-receive buffer, or a message on its way into one
    buffered,  // bytes on their way that are to be shown (buffered.hpp)
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

}  // namespace aperture::msg
