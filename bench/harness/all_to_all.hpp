// Writes of each process of a group to each other one, all at once, whatever the API.
//
// `Ends` is a Task with size_, all_ (the side, whose channels lead from rank 0 to all others) and
// ranks(). source() is what it writes from, and slot(rank) where that rank writes to in its memory;
// operate(peer) posts one write to a peer and settle() awaits all of them.
#pragma once

#include <cstring>

#include "harness/contents.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

template <typename Ends>
class AllToAll final : public Ends {
 public:
  using Ends::Ends;

  void verify(uint64_t seed, Channel&) override {
    const auto mine = static_cast<unsigned>(this->rank_);
    fill_pattern(this->source(), this->size_, seed + mine);
    for (unsigned r = 0; r < this->ranks(); r++) std::memset(this->slot(r), 0, this->size_);
    meet();  // all slots are empty
    each_peer([&](unsigned peer) { this->operate(peer); });
    this->settle();
    meet();  // all have written
    each_peer([&](unsigned peer) { expect_pattern(this->slot(peer), this->size_, seed + peer); });
    for (size_t i = 0; i < this->size_; i++) {
      if (this->slot(mine)[i] != std::byte{0}) throw Failure("someone wrote where nobody should");
    }
    meet();  // and looked
  }

  void initiate(uint64_t count, Samples&) override {
    write(count);
    for_others([&](Channel& channel) { this->await_word(channel); });
  }

  void respond(uint64_t count) override {
    write(count);
    this->channel_.send_word(0);
  }

  uint64_t granule() const override { return this->window_ * (this->ranks() - 1); }

 private:
  template <typename Do>
  void each_peer(Do&& act) {
    for (unsigned r = 0; r < this->ranks(); r++) {
      if (r != static_cast<unsigned>(this->rank_)) act(r);
    }
  }
  template <typename Do>
  void for_others(Do&& act) {
    act(this->channel_);
    for (Channel& other : this->all_.others) act(other);
  }

  // Everybody has come here before anybody goes on.
  void meet() {
    if (this->rank_ != 0) {
      this->channel_.send_word(0);
      this->await_word(this->channel_);
      return;
    }
    for_others([&](Channel& channel) { this->await_word(channel); });
    for_others([](Channel& channel) { channel.send_word(0); });
  }

  void write(uint64_t count) {
    for (uint64_t left = count / (this->ranks() - 1); left > 0; left--) {
      each_peer([&](unsigned peer) { this->operate(peer); });
    }
    this->settle();
  }
};

// The `mine` of every rank, by rank, in every rank.
template <typename T>
std::vector<T> gather(Side& side, const T& mine) {
  const size_t ranks = side.rank == 0 ? side.others.size() + 2 : 0;
  if (side.rank != 0) {
    side.channel.send(&mine, sizeof mine);
    std::vector<T> all(side.channel.receive_word());
    for (T& one : all) {
      Channel::expect_whole(side.channel.receive(&one, sizeof one), sizeof one, "card");
    }
    return all;
  }
  std::vector<T> all(ranks);
  all[0] = mine;
  const auto channel = [&](size_t rank) -> Channel& {
    return rank == 1 ? side.channel : side.others[rank - 2];
  };
  for (size_t r = 1; r < ranks; r++) {
    Channel::expect_whole(channel(r).receive(&all[r], sizeof(T)), sizeof(T), "card");
  }
  for (size_t r = 1; r < ranks; r++) {
    channel(r).send_word(ranks);
    for (const T& one : all) channel(r).send(&one, sizeof one);
  }
  return all;
}

}  // namespace aperture::bench
