// What the tests of hostile peers share, whichever queue pair is the victim: nonsense in the words
// of a channel, claims of every kind, and a thread that rewrites a message while it is looked at.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "link/lane.hpp"
#include "transport/claim.hpp"

namespace aperture::link::test {

// A message of which no sound peer says how long it is takes a cell, too.
inline void publish(ring::ChannelTx& tx, uint32_t cells) {
  tx.cells.publish(cells == 0 ? 1 : cells);
}

// Nonsense in each word that the victim reads; `look` has it poll, and says what it must see.
template <typename Look>
void scribble_words(ring::ChannelWords& words, Look&& look) {
  for (const uint64_t nonsense : {uint64_t{2}, uint64_t{1} << 40, ~uint64_t{0}}) {
    words.consumed.store(nonsense);
    words.bytes_consumed.store(nonsense);
    words.executing.store(nonsense);
    words.state.store(static_cast<uint32_t>(nonsense));
    words.gate.store(nonsense);
    words.polls.store(nonsense);
    look();
  }
  words.gate.store(0);
}

// A request lies in the victim's ring. Claims that nobody may make hold it up there, and nothing
// else; one that names no request is ignored. expect_alive() has the victim poll.
template <typename ExpectAlive>
void try_claims(Lane& peer, const Lane& victim, ExpectAlive&& expect_alive) {
  std::atomic<uint64_t>& claim = peer.request_tx.words().claim;
  using transport::ClaimState;
  for (const auto state : {ClaimState::ask, ClaimState::taken, ClaimState::none}) {
    claim.store(transport::claim_word(0, state));
    expect_alive();
    EXPECT_TRUE(victim.request_rx.cells.ready());
  }
  claim.store(~uint64_t{0});
  expect_alive();
  EXPECT_FALSE(victim.request_rx.cells.ready());
}

// A thread that rewrites the beginning of a message all the time, with what make(i) answers.
class WildWriter {
 public:
  explicit WildWriter(std::function<std::vector<std::byte>(uint64_t)> make)
      : make_(std::move(make)), thread_([this] { run(); }) {}
  ~WildWriter() {
    stop_ = true;
    thread_.join();
  }
  WildWriter(const WildWriter&) = delete;
  WildWriter& operator=(const WildWriter&) = delete;

  // Returns when it has written there twice.
  void write_at(std::byte* body) {
    place_ = body;
    await_two(flips_);
  }
  // Returns when it writes there no more.
  void let_go() {
    place_ = nullptr;
    await_two(idle_);
  }

 private:
  static void await_two(const std::atomic<uint64_t>& count) {
    for (const uint64_t before = count; count < before + 2;) std::this_thread::yield();
  }
  void run() {
    for (uint64_t i = 0; !stop_; ++i) {
      std::byte* body = place_;
      if (body == nullptr) {
        ++idle_;
        continue;
      }
      const std::vector<std::byte> bytes = make_(i);
      for (size_t at = 0; at < bytes.size(); ++at) {
        // relaxed: a wild writer
        std::atomic_ref(body[at]).store(bytes[at], std::memory_order_relaxed);
      }
      ++flips_;
    }
  }

  const std::function<std::vector<std::byte>(uint64_t)> make_;
  std::atomic<std::byte*> place_{nullptr};
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> flips_{0}, idle_{0};
  std::thread thread_;
};

}  // namespace aperture::link::test
