// A ping-pong in lockstep, for counting instructions: fabbench's and verbbench's send_steps.
//
// The sides take turns over the channel, so nobody polls in vain: every message is there before its
// receiver looks. bench/instructions has callgrind count only inside the two functions with C names
// that a program calls from step_send() and step_receive(). Base: the task of its door.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "stopwatch/patience.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

template <typename Base>
class Lockstep : public Base {
 public:
  template <typename Setup>
  Lockstep(const Setup& setup, Side& side) : Base(setup, side), channel_(side.channel) {}

  // Uncounted, and often enough for the endpoints to have found their path. Both sides drive the
  // provider while they wait: with manual progress they may not meet without it.
  void verify(uint64_t seed, Channel&) override {
    for (uint64_t i = 0; i < kMeetings; i++) {
      prepare(seed + i);
      if (this->rank_ == 0) send_uncounted();
      take_uncounted(seed + i);
      if (this->rank_ == 1) send_uncounted();
    }
    // Rank 0 has the last message already; rank 1 drives its own until that is said.
    if (this->rank_ == 0) channel_.send_word(0);
    if (this->rank_ == 1) this->await_word(channel_);
  }

  void initiate(uint64_t count, Samples& samples) override {
    for (uint64_t i = 0; i < count; i++) {
      const uint64_t start = ticks();
      send();
      take();
      samples.add(ticks() - start);
    }
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 0; i < count; i++) {
      take();
      send();
    }
  }

  std::string note() const override {
    char text[96];
    std::snprintf(text, sizeof text, "lockstep, inject, %.2f polls per message",
                  static_cast<double>(polls_) / static_cast<double>(messages_));
    return text;
  }

 protected:
  // The pattern of this seed is what goes out next, and what has to come.
  virtual void prepare(uint64_t seed) = 0;
  virtual void send_uncounted() = 0;
  virtual void take_uncounted(uint64_t seed) = 0;
  virtual void step_send() = 0;
  // One look at the queue; false: nothing there.
  virtual bool step_receive() = 0;

 private:
  static constexpr uint64_t kMeetings = 100;

  void send() {
    step_send();
    channel_.send_word(0);
  }

  // Asleep until the message is there: nothing of it may be done before the counted call.
  void take() {
    channel_.receive_word();
    Patience patience("a message");
    for (polls_++; !step_receive(); polls_++) {
      if (patience.tick()) this->drive(1);
    }
    messages_++;
  }

  Channel& channel_;
  uint64_t polls_ = 0;
  uint64_t messages_ = 0;
};

}  // namespace aperture::bench
