// One message each way in turn, whatever the API.
//
// `End` is a Task that sends and takes one message at a time: stamp(sequence), send(),
// post_receive(), take_stamped(sequence), take_pattern(seed), settle() (the outgoing buffer is the
// sender's again), out(), in() and size(). Its members are called without virtual dispatch, for
// they are what is measured.
#pragma once

#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "stopwatch/pages.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

template <typename End>
class Turns : public End {
 public:
  using End::End;

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 1; i <= count; i++) {
      this->stamp(i);
      this->send();
      const uint64_t now = ticks();  // while the message travels
      if (i > 1) samples.add(now - last);
      last = now;
      this->post_receive();
      this->take_stamped(i);
    }
    this->settle();
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 1; i <= count; i++) {
      this->take_stamped(i);
      this->stamp(i);
      this->send();
      this->post_receive();
    }
    this->settle();
  }
};

// The next receive is posted while the message travels, and the first one at once.
template <typename End>
class PingPong final : public Turns<End> {
 public:
  template <typename... Args>
  explicit PingPong(Args&&... args) : Turns<End>(std::forward<Args>(args)...) {
    if (this->rank_ == 1) this->post_receive();
  }

  void verify(uint64_t seed, Channel&) override {
    if (this->rank_ == 1) {
      this->take_pattern(seed);
      std::memcpy(this->out(), this->in(), this->size());
      this->send();
      this->post_receive();
    } else {
      fill_pattern(this->out(), this->size(), seed);
      std::memset(this->in(), 0, this->size());
      this->send();
      this->post_receive();
      this->take_pattern(seed);
    }
    this->settle();
  }
};

}  // namespace aperture::bench
