// One message out and one in: what the ping-pong and the lockstep do alike.
//
// Owned by one side. `in` is where the peer's messages land: by a receive, or by its write.
#pragma once

#include "harness/contents.hpp"
#include "verbbench/messages.hpp"

namespace aperture::bench {

class Exchange {
 public:
  Exchange(Session& session, Link& link, Message message, size_t size_bytes)
      : link_(link),
        message_(message),
        size_(size_bytes),
        out_(size_bytes, Pages::Kind::own),
        in_(size_bytes, Pages::Kind::own),
        out_mr_(session.register_memory(out_.data(), size_bytes, 0)),
        in_mr_(session.register_target(in_.data(), size_bytes)),
        out_piece_(piece_of(out_.data(), size_bytes, out_mr_)),
        in_piece_(piece_of(in_.data(), size_bytes, in_mr_)) {
    send_.sg_list = &out_piece_;
    send_.num_sge = 1;
    send_.opcode = message == Message::send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM;
    send_.send_flags = session.can_inline(size_bytes) ? unsigned{IBV_SEND_INLINE} : 0;
    receive_.sg_list = &in_piece_;
    receive_.num_sge = message == Message::send ? 1 : 0;
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Where the peer shall write to, and where its own `in` is.
  RemoteRegion mine() const noexcept {
    return {reinterpret_cast<uint64_t>(in_.data()), in_mr_->rkey, 0};
  }
  void learn(const RemoteRegion& theirs) noexcept { send_.wr.rdma = {theirs.addr, theirs.rkey}; }
  void tell(Channel& channel) { learn(channel.exchange(mine(), "region")); }

  std::byte* out() const noexcept { return out_.data(); }
  std::byte* in() const noexcept { return in_.data(); }
  size_t size() const noexcept { return size_; }
  ibv_send_wr& wr() noexcept { return send_; }

  void post_receive() { link_.post(receive_); }

  // The sequence number lies in the first and the last eight bytes, and in the immediate data.
  void stamp(uint64_t sequence) {
    stamp_ends(out(), size_, sequence);
    send_.imm_data = static_cast<uint32_t>(sequence);
  }

  void expect_stamp(const ibv_wc& wc, uint64_t sequence) const {
    expect_kind(wc);
    expect_stamped_ends(in(), size_, sequence);
    if (message_ == Message::write_with_imm && wc.imm_data != static_cast<uint32_t>(sequence)) {
      throw Failure("immediate data %u instead of %u", wc.imm_data,
                    static_cast<uint32_t>(sequence));
    }
  }

  void expect_pattern(const ibv_wc& wc, uint64_t seed) const {
    expect_kind(wc);
    bench::expect_pattern(in(), size_, seed);
  }

  const char* text() const noexcept {
    return message_ == Message::send ? "send" : "write with immediate";
  }

 private:
  void expect_kind(const ibv_wc& wc) const {
    const bool send = message_ == Message::send;
    expect_length(wc.byte_len, size_);
    if (wc.opcode != (send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM)) {
      throw Failure("a completion of opcode %d", static_cast<int>(wc.opcode));
    }
    if (!send && (wc.wc_flags & IBV_WC_WITH_IMM) == 0) throw Failure("no immediate data");
  }

  Link& link_;
  const Message message_;
  const size_t size_;
  Pages out_, in_;
  Mr out_mr_, in_mr_;
  ibv_sge out_piece_, in_piece_;
  ibv_send_wr send_{};
  ibv_recv_wr receive_{};
};

}  // namespace aperture::bench
