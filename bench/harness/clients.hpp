// One server with many clients, each of which has one request under way: the rate of all requests.
//
// Rank 0 holds the clients' ends of all connections in one event loop, as load generators of
// key-value stores do; rank 1 is the server. `Ends` is a Task with clients(), size(), and for each
// connection out(client), the message that it sends next; send(client); and take_some(look), which
// sleeps until something has come and calls look(client, message) for each message.
#pragma once

#include <cstring>
#include <vector>

#include "harness/contents.hpp"
#include "stopwatch/pages.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

inline constexpr size_t kClients = 50;

template <typename Ends>
class Clients final : public Ends {
 public:
  using Ends::Ends;

  // Every client's request and its answer are that pattern.
  void verify(uint64_t seed, Channel&) override {
    if (this->rank_ == 1) {
      serve(this->clients());
      return;
    }
    for (size_t c = 0; c < this->clients(); c++) {
      fill_pattern(this->out(c), this->size(), seed + c);
      this->send(c);
    }
    size_t done = 0;
    while (done < this->clients()) {
      this->take_some([&](size_t client, const std::byte* message) {
        expect_pattern(message, this->size(), seed + client);
        done++;
      });
    }
  }

  void initiate(uint64_t count, Samples&) override {
    uint64_t issued = 0, done = 0;
    for (size_t c = 0; c < this->clients() && issued < count; c++, issued++) ask(c);
    while (done < count) {
      this->take_some([&](size_t client, const std::byte* message) {
        expect_stamped_ends(message, this->size(), sequences_[client]);
        done++;
        if (issued == count) return;
        issued++;
        ask(client);
      });
    }
  }

  void respond(uint64_t count) override { serve(count); }

  uint64_t granule() const override { return this->clients(); }

 private:
  void ask(size_t client) {
    stamp_ends(this->out(client), this->size(), ++sequences_[client]);
    this->send(client);
  }

  // Once the last answer is out, the next requests may come before the server has looked at all
  // that woke it: what it serves too many counts for the next time.
  void serve(uint64_t count) {
    while (served_ < count) {
      this->take_some([&](size_t client, const std::byte* message) {
        std::memcpy(this->out(client), message, this->size());
        this->send(client);
        served_++;
      });
    }
    served_ -= count;
  }

  uint64_t served_ = 0;
  std::vector<uint64_t> sequences_ = std::vector<uint64_t>(kClients);
};

}  // namespace aperture::bench
