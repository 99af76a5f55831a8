// A stream of 8-byte messages by several threads of each process through one queue, whatever the
// API: any thread finds the completions and messages of all.
//
// `Ends` is a Task with session_ and threads(). Its sender has send_one(thread, word, ends_span)
// and poll_credits(credit), which calls credit(thread) for each span of that thread that was
// acknowledged. Its receiver has take_some(look), which calls look(word) for each message that is
// there, returns how many were, and sees to it that receives are posted in time; and
// acknowledge(thread), once for each span. All of them are called by any thread. A span is
// kSpan messages, of which a thread has at most kSpans under way.
#pragma once

#include <atomic>
#include <vector>

#include "harness/threads.hpp"
#include "stopwatch/patience.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

inline constexpr uint64_t kSpan = 32, kSpans = 2;

template <typename Ends>
class SharedStream final : public Ends {
 public:
  template <typename... Args>
  explicit SharedStream(Args&&... args)
      : Ends(std::forward<Args>(args)...), spans_(this->threads()), taken_(this->threads()) {}

  uint64_t granule() const override { return this->threads() * kSpan; }

  void verify(uint64_t, Channel&) override {
    Samples unused(0);
    this->rank_ == 0 ? initiate(granule(), unused) : respond(granule());
  }

  void initiate(uint64_t count, Samples&) override {
    for (auto& span : spans_) span.acknowledged.store(0, std::memory_order_relaxed);  // alone here
    in_threads(this->threads(), [&](unsigned thread) { send(thread, count / this->threads()); });
    this->channel_.receive_word();  // the target has looked at all of them
  }

  void respond(uint64_t count) override {
    // relaxed, both: no thread but this one is there yet
    for (auto& taken : taken_) {
      taken.messages.store(0, std::memory_order_relaxed);
      taken.sum.store(0, std::memory_order_relaxed);
    }
    left_.store(count, std::memory_order_relaxed);
    in_threads(this->threads(), [&](unsigned) { receive(); });
    const uint64_t each = count / this->threads();
    for (const auto& taken : taken_) {
      if (taken.messages.load(std::memory_order_relaxed) != each ||
          taken.sum.load(std::memory_order_relaxed) != each * (each - 1) / 2) {
        throw Failure("of %lu messages of a thread some arrived with wrong contents", each);
      }
    }
    this->channel_.send_word(0);
  }

 private:
  static constexpr unsigned kThreadShift = 48;  // of the word: whose it is, and its number
  struct alignas(64) Spans {
    std::atomic<uint64_t> acknowledged{0};
  };
  struct alignas(64) Taken {
    std::atomic<uint64_t> messages{0}, sum{0};
  };

  void send(unsigned thread, uint64_t count) {
    const auto await_spans = [&](uint64_t least) {
      Patience patience("the acknowledgement of a span");
      // relaxed: counts; what was sent is not touched again
      while (spans_[thread].acknowledged.load(std::memory_order_relaxed) < least) {
        this->poll_credits([&](unsigned of) {
          spans_.at(of).acknowledged.fetch_add(1, std::memory_order_relaxed);
        });
        this->session_.linger(patience);
      }
    };
    for (uint64_t i = 0; i < count; i++) {
      if (i % kSpan == 0 && i / kSpan >= kSpans) await_spans(i / kSpan - kSpans + 1);
      this->send_one(thread, (uint64_t{thread} << kThreadShift) | i, (i + 1) % kSpan == 0);
    }
    await_spans(count / kSpan);
  }

  void receive() {
    Patience patience("a message");
    // relaxed: counts, that the threads' end puts in order
    while (left_.load(std::memory_order_relaxed) != 0) {
      const size_t got = this->take_some([&](uint64_t word) {
        const auto thread = static_cast<unsigned>(word >> kThreadShift);
        if (thread >= taken_.size()) throw Failure("a message of no thread: %lx", word);
        Taken& taken = taken_[thread];
        taken.sum.fetch_add(word & ((uint64_t{1} << kThreadShift) - 1), std::memory_order_relaxed);
        const uint64_t all = taken.messages.fetch_add(1, std::memory_order_relaxed) + 1;
        if (all % kSpan == 0) this->acknowledge(thread);
      });
      if (got != 0) patience = Patience("a message");
      left_.fetch_sub(got, std::memory_order_relaxed);
      this->session_.linger(patience);
    }
  }

  std::vector<Spans> spans_;       // rank 0
  std::vector<Taken> taken_;       // rank 1
  std::atomic<uint64_t> left_{0};  // rank 1
};

}  // namespace aperture::bench
