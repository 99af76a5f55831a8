// write_lat, read_lat, write_bw, read_bw and their counterparts with a sleeping target.
//
// A write counts as done when its bytes lie in the target's memory (FI_DELIVERY_COMPLETE), which is
// what an acknowledged write of an RDMA NIC means; write_lat is done when the target's application
// has seen the data of the completion and the bytes themselves.
#include "fabbench/one_sided.hpp"

#include <cstring>
#include <vector>

#include "fabbench/messenger.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

class WritePingPong final : public FabricTask {
 public:
  WritePingPong(const Setup& setup, Side& side, size_t size_bytes)
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
    const uint64_t theirs = seed + static_cast<uint64_t>(1 - rank_);
    const size_t at = first_mismatch(in_.data(), size_, theirs);
    if (at != size_) throw Failure("wrong data at byte %zu of %zu", at, size_);
    if (rank_ == 1) write(seed);
    settle();
  }

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 1; i <= count; i++) {
      write_stamped(i);
      const uint64_t now = ticks();  // while the write travels
      if (i > 1) samples.add(now - last);
      last = now;
      take_stamped(i);
    }
    settle();
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 1; i <= count; i++) {
      take_stamped(i);
      write_stamped(i);
    }
    settle();
  }

  std::string note() const override {
    return std::string(inject_ ? "inject" : "write") + " with data, " +
           session_.registration_text();
  }

 private:
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

  // Four bytes of CQ data are all that was asked for.
  void write_stamped(uint64_t sequence) {
    settle();
    std::memcpy(out_.data(), &sequence, sizeof sequence);
    write(sequence & UINT32_MAX);
  }

  void take_stamped(uint64_t sequence) {
    take(sequence & UINT32_MAX);
    uint64_t seen;
    std::memcpy(&seen, in_.data(), sizeof seen);
    if (seen != sequence) throw Failure("the completion of write %lu came before it", sequence);
  }

  const size_t size_;
  const bool inject_;
  bool pending_ = false;
  Slot slot_{};
  Pages out_, in_;
  RemoteRegion remote_{};
  Region out_region_, in_region_;
};

class OneSided final : public FabricTask {
 public:
  OneSided(const Setup& setup, Side& side, Target target, Verb verb, size_t size_bytes,
           size_t window)
      : FabricTask(setup, side, target),
        read_(verb == Verb::read),
        size_(size_bytes),
        window_(window),
        memory_(size_bytes, Pages::Kind::own),
        slots_(window),
        // Rank 0's memory is the local end, rank 1's the target; regions on both for symmetry.
        local_region_(session_.register_local(memory_.data(), size_bytes)),
        region_(session_.register_remote(memory_.data(), size_bytes, side.channel, remote_)) {
    for (size_t i = 0; i < window; i++) free_.push_back(i);
  }

  void greet() override { operate_once(); }

  void verify(uint64_t seed, Channel& channel) override {
    const bool source = read_ == (rank_ == 1);
    if (source) {
      fill_pattern(memory_.data(), size_, seed);
    } else {
      std::memset(memory_.data(), 0, size_);
    }
    if (rank_ == 0) {
      channel.receive_word();  // the target's memory is ready
      operate_once();
      if (!source) expect_pattern(seed);
      channel.send_word(0);  // done: the target may look
      return;
    }
    channel.send_word(0);
    await_word(channel);
    if (!source) expect_pattern(seed);
  }

  void initiate(uint64_t count, Samples& samples) override {
    if (window_ == 1) {
      one_by_one(count, samples);
      return;
    }
    for (uint64_t i = 0; i < count; i++) post_operation(take_slot());
    settle();
  }

  uint64_t granule() const override { return window_; }

  std::string note() const override {
    std::string text = target_ == Target::asleep ? "target asleep, " : "target polling, ";
    if (window_ > 1) text += "window " + std::to_string(window_) + ", ";
    if ((session_.info().tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0) {
      text += "delivery complete, ";
    }
    return text + session_.registration_text();
  }

 private:
  void one_by_one(uint64_t count, Samples& samples) {
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      // A read must bring the target's word back, whatever lay here before.
      if (read_) std::memset(memory_.data(), 0, sizeof(uint64_t));
      post_operation(0);
      session_.await_tx(awaited());
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
      if (read_) {
        uint64_t word;
        std::memcpy(&word, memory_.data(), sizeof word);
        if (word == 0) throw Failure("a read completed before its data came");
      }
    }
  }

  void operate_once() {
    post_operation(0);
    session_.await_tx(awaited());
  }

  const char* awaited() const noexcept {
    if (target_ == Target::asleep)
      return read_ ? "a read (target asleep)" : "a write (target asleep)";
    return read_ ? "the completion of a read" : "the completion of a write";
  }

  void expect_pattern(uint64_t seed) const {
    const size_t at = first_mismatch(memory_.data(), size_, seed);
    if (at != size_) throw Failure("wrong data at byte %zu of %zu", at, size_);
  }

  ssize_t try_post(size_t slot) {
    void* context = &slots_[slot].context;
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
        [this] { window_ > 1 ? reap() : session_.progress(); });
  }

  void reap() {
    session_.poll_tx([this](const void* context) {
      free_.push_back(static_cast<size_t>(static_cast<const Slot*>(context) - slots_.data()));
    });
  }

  size_t take_slot() {
    Patience patience(awaited());
    while (free_.empty()) {
      reap();
      session_.linger(patience);
    }
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void settle() {
    Patience patience(awaited());
    while (free_.size() != window_) {
      reap();
      session_.linger(patience);
    }
  }

  const bool read_;
  const size_t size_, window_;
  Pages memory_;
  std::vector<Slot> slots_;
  RemoteRegion remote_{};
  Region local_region_, region_;
  std::vector<size_t> free_;
};

}  // namespace

std::unique_ptr<FabricTask> make_write_ping_pong(const Setup& setup, Side& side,
                                                 size_t size_bytes) {
  return std::make_unique<WritePingPong>(setup, side, size_bytes);
}

std::unique_ptr<FabricTask> make_one_sided(const Setup& setup, Side& side, Target target, Verb verb,
                                           size_t size_bytes, size_t window) {
  return std::make_unique<OneSided>(setup, side, target, verb, size_bytes, window);
}

}  // namespace aperture::bench
