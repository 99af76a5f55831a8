// verbs_write_lat: a ping-pong of writes whose targets spin on memory, as ib_write_lat does.
#include <atomic>
#include <cstring>

#include "base/clock.hpp"
#include "harness/contents.hpp"
#include "verbbench/one_sided.hpp"

namespace aperture::bench {

namespace {

class Spinning final : public VerbsTask {
 public:
  Spinning(const Setup& setup, Side& side, size_t size_bytes)
      : VerbsTask(setup, side),
        size_(size_bytes),
        out_(size_bytes, Pages::Kind::own),
        in_(size_bytes, Pages::Kind::own),
        out_mr_(session_.register_memory(out_.data(), size_bytes, 0)),
        in_mr_(session_.register_remote(in_.data(), size_bytes, side.channel, theirs_)),
        piece_(piece_of(out_.data(), size_bytes, out_mr_)) {
    wr_.sg_list = &piece_;
    wr_.num_sge = 1;
    wr_.opcode = IBV_WR_RDMA_WRITE;
    wr_.send_flags =
        IBV_SEND_SIGNALED | (session_.can_inline(size_bytes) ? unsigned{IBV_SEND_INLINE} : 0);
    wr_.wr.rdma.remote_addr = theirs_.addr;
    wr_.wr.rdma.rkey = theirs_.rkey;
  }

  void verify(uint64_t seed, Channel& channel) override {
    fill_pattern(out_.data(), size_, seed + static_cast<uint64_t>(rank_));
    std::memset(in_.data(), 0, size_);
    // Both have wiped their memory before either writes.
    channel.send_word(0);
    await_word(channel);
    write();
    channel.send_word(0);
    await_word(channel);
    expect_pattern(in_.data(), size_, seed + static_cast<uint64_t>(1 - rank_));
    std::memset(in_.data(), 0, size_);
    channel.send_word(0);
    await_word(channel);
  }

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      write_stamped(++sequence_);
      spin(sequence_);
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
    }
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 0; i < count; i++) {
      spin(++sequence_);
      write_stamped(sequence_);
    }
  }

  std::string note() const override {
    return "write, each signalled, target spins on its memory and polls for its own writes alone";
  }

 private:
  void write() {
    link_.post(wr_);
    session_.await_tx("the completion of a write");
  }

  void write_stamped(uint64_t sequence) {
    store_word(out_.data() + size_ - sizeof sequence, sequence);
    write();
  }

  void spin(uint64_t sequence) {
    const std::atomic_ref<uint64_t> last(
        *reinterpret_cast<uint64_t*>(in_.data() + size_ - sizeof(uint64_t)));
    Patience patience("a write to be seen in memory");
    // SYNC POINT: bench-spin: pairs with the device's or the kernel's store of the peer's write
    while (last.load(std::memory_order_acquire) != sequence) patience.tick();
  }

  const size_t size_;
  uint64_t sequence_ = 0;  // never the same again: nothing but its own write ends a wait
  Pages out_, in_;
  RemoteRegion theirs_{};
  Mr out_mr_, in_mr_;
  ibv_sge piece_;
  ibv_send_wr wr_{};
};

}  // namespace

std::unique_ptr<VerbsTask> make_spinning(const Setup& setup, Side& side, size_t size_bytes) {
  return std::make_unique<Spinning>(setup, side, size_bytes);
}

}  // namespace aperture::bench
