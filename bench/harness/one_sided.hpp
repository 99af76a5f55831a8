// Operations of rank 0 on the memory of rank 1, which polls or sleeps, whatever the API.
//
// `Operations` is a Task with memory_, size_ and window_. It has fetches() (the operation brings
// data to rank 0), operate_once(), stream(count) with window_ operations under way,
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
    const bool source = this->fetches() == (this->rank_ == 1);
    std::byte* const memory = this->memory_.data();
    if (source) {
      fill_pattern(memory, this->size_, seed);
    } else {
      std::memset(memory, 0, this->size_);
    }
    if (this->rank_ == 0) {
      channel.receive_word();  // the target's memory is ready
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

  void initiate(uint64_t count, Samples& samples) override {
    if (this->window_ == 1) {
      one_by_one(count, samples);
    } else {
      this->stream(count);
    }
  }

  uint64_t granule() const override { return this->window_; }

 private:
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
