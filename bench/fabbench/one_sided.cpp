// write_lat, read_lat, write_bw, read_bw and their counterparts with a sleeping target.
//
// A write counts as done when its bytes lie in the target's memory (FI_DELIVERY_COMPLETE), which is
// what an acknowledged write of an RDMA NIC means; write_lat is done when the target's application
// has seen the data of the completion and the bytes themselves.
#include "fabbench/one_sided.hpp"

#include <cstring>

#include "fabbench/messenger.hpp"
#include "harness/contents.hpp"
#include "harness/one_sided.hpp"
#include "harness/ping_pong.hpp"

namespace aperture::bench {

namespace {

class Writes : public FabricTask {
 public:
  Writes(const Setup& setup, Side& side, size_t size_bytes)
      : FabricTask(setup, side),
        size_(size_bytes),
        inject_(session_.can_inject(size_bytes)),
        out_(size_bytes, Pages::Kind::own),
        in_(size_bytes, Pages::Kind::own),
        out_region_(session_.register_local(out_.data(), size_bytes)),
        in_region_(session_.register_remote(in_.data(), size_bytes, side.channel, remote_)) {}

  void verify(uint64_t seed, Channel& channel) override {
    fill_pattern(out_.data(), size_, seed + static_cast<uint64_t>(rank_));
    std::memset(in_.data(), 0, size_);
    // Both have wiped their memory before either writes.
    channel.send_word(0);
    await_word(channel);
    if (rank_ == 0) write(seed);
    take(seed);
    expect_pattern(in_.data(), size_, seed + static_cast<uint64_t>(1 - rank_));
    if (rank_ == 1) write(seed);
    settle();
  }

  std::string note() const override {
    return std::string(inject_ ? "inject" : "write") + " with data, " +
           session_.registration_text();
  }

 protected:
  void write(uint64_t data) {
    if (inject_) {
      session_.post("room to inject", [&] {
        return fi_inject_writedata(session_.ep(), out_.data(), size_, data, session_.peer(),
                                   remote_.base, remote_.key);
      });
      return;
    }
    session_.post("room to write", [&] {
      return fi_writedata(session_.ep(), out_.data(), size_, out_region_.desc, data,
                          session_.peer(), remote_.base, remote_.key, &slot_.context);
    });
    pending_ = true;
  }

  void settle() {
    if (!pending_) return;
    session_.await_tx("the completion of a write");
    pending_ = false;
  }

  void take(uint64_t data) {
    const fi_cq_tagged_entry entry = session_.await_rx("remote CQ data");
    if ((entry.flags & FI_REMOTE_CQ_DATA) == 0) throw Failure("a completion without CQ data");
    if (entry.data != data) throw Failure("CQ data %lu instead of %lu", entry.data, data);
  }

  void stamp(uint64_t sequence) {
    settle();
    store_word(out_.data(), sequence);
    sequence_ = sequence;
  }
  // Four bytes of CQ data are all that was asked for.
  void send() { write(sequence_ & UINT32_MAX); }
  static void post_receive() {}  // a write with data takes none here

  void take_stamped(uint64_t sequence) {
    take(sequence & UINT32_MAX);
    if (load_word(in_.data()) != sequence)
      throw Failure("the completion of write %lu came before it", sequence);
  }

 private:
  const size_t size_;
  const bool inject_;
  bool pending_ = false;
  uint64_t sequence_ = 0;
  Slot slot_{};
  Pages out_, in_;
  RemoteRegion remote_{};
  Region out_region_, in_region_;
};

class Operations : public FabricTask {
 public:
  Operations(const Setup& setup, Side& side, Target target, Verb verb, size_t size_bytes,
             size_t window, Ways ways)
      : FabricTask(setup, side, target),
        read_(verb == Verb::read),
        size_(size_bytes),
        window_(window),
        ways_(ways),
        memory_(size_bytes, Pages::Kind::own),
        slots_(session_, window),
        // Rank 0's memory is the local end, rank 1's the target; regions on both for symmetry.
        local_region_(session_.register_local(memory_.data(), size_bytes)),
        region_(session_.register_remote(memory_.data(), size_bytes, side.channel, remote_)) {}

  std::string note() const override {
    std::string text = target_ == Target::asleep ? "target asleep, " : "target polling, ";
    if (ways_ == Ways::both) text = "both ways, ";
    if (window_ > 1) text += "window " + std::to_string(window_) + ", ";
    if ((session_.info().tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0) {
      text += "delivery complete, ";
    }
    return text + session_.registration_text();
  }

 protected:
  bool fetches() const noexcept { return read_; }
  static void begin_samples() {}
  void check_fetched() const {
    if (read_ && load_word(memory_.data()) == 0) {
      throw Failure("a read completed before its data came");
    }
  }

  void stream(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) post_operation(slots_.take(awaited()));
    slots_.settle(awaited());
  }

  void operate_once() {
    post_operation(0);
    session_.await_tx(awaited());
  }

 private:
  const char* awaited() const noexcept {
    if (target_ == Target::asleep)
      return read_ ? "a read (target asleep)" : "a write (target asleep)";
    return read_ ? "the completion of a read" : "the completion of a write";
  }

  ssize_t try_post(size_t slot) {
    void* context = slots_.context(slot);
    if (read_) {
      return fi_read(session_.ep(), memory_.data(), size_, local_region_.desc, session_.peer(),
                     remote_.base, remote_.key, context);
    }
    return fi_write(session_.ep(), memory_.data(), size_, local_region_.desc, session_.peer(),
                    remote_.base, remote_.key, context);
  }

  void post_operation(size_t slot) {
    session_.post(
        read_ ? "room to read" : "room to write", [&] { return try_post(slot); },
        [this] { window_ > 1 ? slots_.reap() : session_.progress(); });
  }

  const bool read_;

 protected:
  const size_t size_, window_;
  const Ways ways_;
  Pages memory_;

 private:
  Slots slots_;
  RemoteRegion remote_{};
  Region local_region_, region_;
};

}  // namespace

std::unique_ptr<FabricTask> make_write_ping_pong(const Setup& setup, Side& side,
                                                 size_t size_bytes) {
  return std::make_unique<Turns<Writes>>(setup, side, size_bytes);
}

std::unique_ptr<FabricTask> make_one_sided(const Setup& setup, Side& side, Target target, Verb verb,
                                           size_t size_bytes, size_t window, Ways ways) {
  return std::make_unique<OneSided<Operations>>(setup, side, target, verb, size_bytes, window,
                                                ways);
}

}  // namespace aperture::bench
