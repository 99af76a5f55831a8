// Threads of both processes yield one row whatever becomes of them, and a shared queue is believed
// only as far as every thread's messages are all there.
#include "harness/threads.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>

#include "harness/shared_stream.hpp"

namespace aperture::bench {
namespace {

PairOptions unpinned() {
  PairOptions options;
  options.cpus[0] = options.cpus[1] = -1;
  return options;
}

Row ok_row(double value) {
  Row row;
  row.ok = true;
  row.value = value;
  row.note = "fine";
  return row;
}

template <typename Body>
Row row_of(unsigned count, Body&& body) {
  return run_pair(unpinned(), [&](Side& side) { return take_in_threads(side, count, body); });
}

TEST(Threads, row_is_the_sum_of_all_that_each_took_with_its_peer) {
  std::atomic<int> number{0};
  const Row row = row_of(4, [&](Side& side) {
    const auto mine = static_cast<uint64_t>(++number);
    side.channel.send_word(mine);
    const uint64_t theirs = side.channel.receive_word();
    if (side.rank == 1) return Row{};
    side.gate->pass();
    return ok_row(static_cast<double>(theirs));
  });
  ASSERT_TRUE(row.ok) << row.note;
  EXPECT_EQ(row.value, 1 + 2 + 3 + 4);
  EXPECT_NE(row.note.find("4 threads, of 1 to 4 each; fine"), std::string::npos) << row.note;
}

TEST(Threads, one_that_fails_fails_those_that_wait_for_it_with_its_reason) {
  for (const int failing : {0, 1}) {
    std::atomic<int> number{0};
    const Row row = row_of(3, [&](Side& side) {
      const int mine = number++;
      if (side.rank == failing && mine == 1) throw Failure("byte %d is wrong", 7);
      if (side.rank == 1) return Row{};
      side.channel.receive_word();  // never comes: its peer ends
      return ok_row(1);
    });
    EXPECT_FALSE(row.ok);
    EXPECT_NE(row.note.find("byte 7 is wrong"), std::string::npos) << row.note;
  }
}

TEST(Threads, what_they_share_is_made_once_and_goes_with_the_last) {
  SharedByThreads<int> shared;
  std::shared_ptr<int> first = shared.get(5);
  EXPECT_EQ(shared.get(6), first);
  EXPECT_EQ(*first, 5);
  first.reset();
  EXPECT_EQ(*shared.get(6), 6);
}

struct NoSession {
  static void linger(Patience& patience) { patience.tick(); }
};

// The receiver's end of a queue in which the messages lie already.
class Canned : public Task {
 public:
  Canned(Side& side, std::deque<uint64_t> words) : Task(side), words_(std::move(words)) {}
  void progress(int) override {}

 protected:
  static unsigned threads() noexcept { return 2; }
  void send_one(unsigned, uint64_t, bool) {}
  template <typename Credit>
  void poll_credits(Credit&&) {}
  template <typename Look>
  size_t take_some(Look&& look) {
    uint64_t word;
    {
      const std::lock_guard lock(mutex_);
      if (words_.empty()) return 0;
      word = words_.front();
      words_.pop_front();
    }
    look(word);
    return 1;
  }
  void acknowledge(unsigned) noexcept {}

  NoSession session_;

 private:
  std::mutex mutex_;
  std::deque<uint64_t> words_;
};

std::deque<uint64_t> words_of_two(uint64_t each) {
  std::deque<uint64_t> words;
  for (uint64_t i = 0; i < each; i++) {
    words.push_back(i);
    words.push_back((uint64_t{1} << 48) | i);
  }
  return words;
}

std::string what_becomes_of(std::deque<uint64_t> words) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return "no channel";
  Channel here{UniqueFd(ends[0])}, there{UniqueFd(ends[1])};
  Side side{1, here};
  try {
    SharedStream<Canned> stream(side, std::move(words));
    stream.respond(2 * kSpan);
    return there.receive_word() == 0 ? "all there" : "?";
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(SharedStream, all_messages_of_each_thread_have_to_be_there) {
  EXPECT_EQ(what_becomes_of(words_of_two(kSpan)), "all there");
  std::deque<uint64_t> words = words_of_two(kSpan);
  words[6] = words[8];  // one twice, in another's stead
  EXPECT_NE(what_becomes_of(words).find("wrong contents"), std::string::npos);
  words = words_of_two(kSpan);
  words[6] |= uint64_t{1} << 48;  // of the other thread
  EXPECT_NE(what_becomes_of(words).find("wrong contents"), std::string::npos);
  words[6] = uint64_t{7} << 48;  // of none
  EXPECT_NE(what_becomes_of(words).find("no thread"), std::string::npos);
}

}  // namespace
}  // namespace aperture::bench
