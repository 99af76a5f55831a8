// A stream of messages from rank 0, whatever the API.
//
// `Ends` is a Task with size_, window_, small_ and memory_. Its sender has fill(seed) and
// send_window() beside initiate(); its receiver has take_some(look), which shows each message that
// is there to look(buffer) before it posts the buffer again, and taken(got, left), which
// acknowledges. Receives are always posted in time.
#pragma once

#include <cstring>

#include "harness/contents.hpp"
#include "stopwatch/patience.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

template <typename Ends>
class Stream final : public Ends {
 public:
  using Ends::Ends;

  uint64_t granule() const override { return this->window_; }

  // One window of messages that all hold the pattern; each is looked at on its own.
  void verify(uint64_t seed, Channel& channel) override {
    if (this->rank_ == 0) {
      this->fill(seed);
      channel.receive_word();  // the target has wiped its buffers
      this->send_window();
      return;
    }
    std::memset(this->memory_.data(), 0, this->memory_.size());
    channel.send_word(0);
    receive(this->window_, [&](const std::byte* at) { expect_pattern(at, this->size_, seed); });
  }

  void respond(uint64_t count) override {
    if (!this->small_) {
      receive(count, [](const std::byte*) {});
      return;
    }
    uint64_t sum = 0;
    receive(count, [&](const std::byte* at) { sum += load_word(at); });
    if (sum != count * (count - 1) / 2) {
      throw Failure("%lu messages arrived with wrong contents", count);
    }
  }

 private:
  template <typename Look>
  void receive(uint64_t count, Look&& look) {
    for (uint64_t left = count; left > 0;) {
      Patience patience("a message");
      size_t got;
      while ((got = this->take_some(look)) == 0) this->session_.linger(patience);
      left -= got;
      this->taken(got, left);
    }
  }
};

// Where the messages of a stream lie: small ones have a buffer each, larger ones share one.
inline std::byte* stream_buffer(const Pages& memory, bool small, size_t slot) noexcept {
  return memory.data() + (small ? slot * kSmall : 0);
}

}  // namespace aperture::bench
