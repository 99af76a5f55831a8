// Operations of rank 0 on the memory of rank 1, which polls or sleeps, whatever the API; or of each
// on the other's at once (Ways::both, in a stream).
//
// `Operations` is a Task with memory_, size_, window_ and ways_. It has fetches() (the operation
// brings data to its initiator), operate_once(), stream(count) with window_ operations under way,
// begin_samples() (the memory holds what the next operation has to find) and check_fetched().
#pragma once

#include <cstring>

#include "base/clock.hpp"
#include "harness/contents.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

template <typename Operations>
class OneSided final : public Operations {
 public:
  using Operations::Operations;

  void greet() override { this->operate_once(); }

  void verify(uint64_t seed, Channel& channel) override {
    verify_from(0, seed, channel);
    if (this->ways_ == Ways::both) verify_from(1, seed, channel);
  }

  void initiate(uint64_t count, Samples& samples) override {
    if (this->window_ == 1) {
      one_by_one(count, samples);
      return;
    }
    this->stream(count);
    if (this->ways_ == Ways::both) this->await_word(this->channel_);
  }

  // The same the other way, when both operate.
  void respond(uint64_t count) override {
    if (this->ways_ == Ways::one) return;
    this->stream(count);
    this->channel_.send_word(0);
  }

  uint64_t granule() const override { return this->window_; }

 private:
  void verify_from(int initiator, uint64_t seed, Channel& channel) {
    const bool source = this->fetches() != (this->rank_ == initiator);
    std::byte* const memory = this->memory_.data();
    if (source) {
      fill_pattern(memory, this->size_, seed);
    } else {
      std::memset(memory, 0, this->size_);
    }
    if (this->rank_ == initiator) {
      this->await_word(channel);  // the target's memory is ready
      this->operate_once();
      if (!source) expect_pattern(memory, this->size_, seed);
      channel.send_word(0);  // done: the target may look
      this->begin_samples();
      return;
    }
    channel.send_word(0);
    this->await_word(channel);
    if (!source) expect_pattern(memory, this->size_, seed);
  }

  void one_by_one(uint64_t count, Samples& samples) {
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      // What is fetched must come from there, whatever lay here before.
      if (this->fetches()) store_word(this->memory_.data(), 0);
      this->operate_once();
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
      this->check_fetched();
    }
  }
};

}  // namespace aperture::bench
