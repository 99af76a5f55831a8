// A measure that several threads of both processes take at once, each with its peer thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stopwatch/failure.hpp"
#include "stopwatch/gate.hpp"
#include "stopwatch/pairs.hpp"

namespace aperture::bench {

// What the threads of a process have in common: the first that asks makes it, and it goes with the
// last that holds it.
template <typename T>
class SharedByThreads {
 public:
  template <typename... Args>
  std::shared_ptr<T> get(Args&&... args) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<T> held = held_.lock();
    if (!held) {
      held = std::make_shared<T>(std::forward<Args>(args)...);
      held_ = held;
    }
    return held;
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<T> held_;  // a process of the bench ends without destroying what its body captured
};

// Calls work(i) in that many threads; what each of them that failed said of it.
template <typename Work>
std::vector<std::string> failures_of(unsigned count, Work&& work) {
  std::vector<std::string> failures(count);
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < count; i++) {
    threads.emplace_back([&, i] {
      try {
        work(i);
      } catch (const std::exception& e) {
        failures[i] = e.what();
      }
    });
  }
  threads.clear();  // joins them
  return failures;
}

// A channel for each thread of this side to its peer thread of the other one.
inline std::vector<Channel> channels_of_threads(Side& side, unsigned count) {
  std::vector<Channel> channels;
  for (unsigned i = 0; i < count; i++) {
    channels.push_back(side.rank == 0 ? side.channel.open_another() : side.channel.take_another());
  }
  return channels;
}

// body(side) is called by each of so many threads, with a channel of its own to its peer thread,
// and yields its row; the sum of them is rank 0's. Throws Failure when one of them has failed.
template <typename Body>
Row take_in_threads(Side& side, unsigned count, Body&& body) {
  std::vector<Channel> channels = channels_of_threads(side, count);
  Gate gate(count);
  std::vector<Row> rows(count);
  const auto failures = failures_of(count, [&](unsigned i) {
    Channel channel = std::move(channels[i]);  // goes when this thread has failed
    Side own{side.rank, channel, &gate};
    try {
      rows[i] = body(own);
      rows[i].ok = true;  // it came to its end: rank 1 has no row of its own
    } catch (...) {
      gate.give_up();
      throw;
    }
  });
  for (size_t i = 0; i < rows.size(); i++) {
    if (!rows[i].ok) rows[i].note = failures[i];
  }
  Row sum = sum_of(rows, "thread");
  if (!sum.ok) throw Failure("%s", sum.note.c_str());
  return sum;
}

// Calls work(i) in that many threads; what failed first is thrown here, for others may have waited
// for it.
template <typename Work>
void in_threads(unsigned count, Work&& work) {
  std::mutex mutex;
  std::string first;
  failures_of(count, [&](unsigned i) {
    try {
      work(i);
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      if (first.empty()) first = e.what();
    }
  });
  if (!first.empty()) throw Failure("%s", first.c_str());
}

}  // namespace aperture::bench
