// Two processes, each pinned to a core of its own, that take one measure together, and the
// supervisor that always gets a row out of them.
//
// The caller's process stays the supervisor: it forks both sides, waits with a deadline, ends what
// does not end by itself, and turns a crash, a hang or a reported failure into a failed row. Sides
// die with the supervisor (PR_SET_PDEATHSIG), so nothing outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "stopwatch/row.hpp"

namespace aperture::bench {

// Datagrams between the two sides, beside what is measured. Either side throws Failure when the
// other one has gone.
class Channel {
 public:
  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}

  void send(const void* data, size_t len_bytes);
  size_t receive(void* data, size_t capacity);  // sleeps in read(2)
  // False when nothing has arrived.
  bool try_receive(void* data, size_t capacity, size_t& len_bytes);

  void send_word(uint64_t word) { send(&word, sizeof word); }
  uint64_t receive_word();

  // The other side's `mine`, when both make the same call; `what` it is, if it comes torn.
  template <typename T>
  T exchange(const T& mine, const char* what) {
    send(&mine, sizeof mine);
    T theirs{};
    expect_whole(receive(&theirs, sizeof theirs), sizeof theirs, what);
    return theirs;
  }
  // One more channel between the same two sides, of which the other one takes its end.
  Channel open_another();
  Channel take_another();

  // Throws Failure for a datagram of another length.
  static void expect_whole(size_t len_bytes, size_t expected, const char* what);

 private:
  UniqueFd fd_;
};

// Why a side has failed that was left alone.
inline constexpr char kPeerGone[] = "the other side went away";

class Gate;

struct Side {
  int rank;  // 0: the one that posts and reports; 1 and above: its targets
  Channel& channel;
  Gate* gate = nullptr;  // where other pairs are met, when there are some
  // Of rank 0, when there are more than two: to rank 2 and so on. Theirs lead to rank 0, too.
  std::vector<Channel> others{};
};

// Whether the sides have a core each, run on either of the two, or share the first one.
enum class Cores { two, either, one };

struct PairOptions {
  int cpus[2] = {0, 1};  // -1: not pinned
  Cores cores = Cores::two;
  double timeout_s = 15;
  Format format = Format::text;
};

// Runs body once in each process; rank 0's row is the result.
Row run_pair(const PairOptions& options, const std::function<Row(Side&)>& body,
             Gate* gate = nullptr);

// The same with more than two processes, of which each may run on either CPU if options say so.
Row run_group(const PairOptions& options, unsigned ranks, const std::function<Row(Side&)>& body,
              Gate* gate = nullptr);

}  // namespace aperture::bench
