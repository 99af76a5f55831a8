// Threads that wait inside ibv_get_cq_event and ibv_get_async_event: woken by peers of another
// context, several at once, and cancelled as threads that wait in a read(2) may be.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

class Waiting : public TwoContexts {};

// A channel with one end on it, and its peer.
struct Line {
  Line(ibv_context* here, ibv_pd* here_pd, ibv_context* there, ibv_pd* there_pd)
      : channel(ibv_create_comp_channel(here)),
        end(std::make_unique<End>(here, here_pd, channel)),
        peer(std::make_unique<End>(there, there_pd)),
        to(here_pd, 8),
        from(there_pd, 8, 'w') {
    connect(end->qp, peer->qp);
  }
  ~Line() {
    end.reset();
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void expect_message() const {
    ASSERT_EQ(end->receive(to.sge(0, 8), 7), 0);
    ASSERT_EQ(ibv_req_notify_cq(end->cq, 0), 0);
  }
  // With O_NONBLOCK, and nothing under way: armed and asleep. What had woken it before may still
  // be handed out as an event, as devices do.
  void rest() const {
    for (int looks = 0; looks < 100; ++looks) {
      ASSERT_EQ(ibv_req_notify_cq(end->cq, 0), 0);
      if (!wait()) return;
    }
    FAIL() << "it is never quiet";
  }
  void send() const { ASSERT_EQ(peer->post(IBV_WR_SEND, from.sge(0, 8)), 0); }
  // Inside ibv_get_cq_event until it is there.
  bool wait() const {
    ibv_cq* cq = nullptr;
    void* its_context = nullptr;
    if (ibv_get_cq_event(channel, &cq, &its_context) != 0) return false;
    ibv_ack_cq_events(cq, 1);
    return cq == end->cq;
  }

  ibv_comp_channel* channel;
  std::unique_ptr<End> end, peer;
  Memory to, from;
};

void fall_asleep() {
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
}

TEST_F(Waiting, threads_are_woken_each_time_a_peer_sends) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  for (int round = 0; round < 20; ++round) {
    line.expect_message();
    bool woken = false;
    std::thread sleeper([&] { woken = line.wait(); });
    if (round % 2 == 0) fall_asleep();  // else: met while it still looks
    line.send();
    sleeper.join();
    ASSERT_TRUE(woken);
    EXPECT_EQ(line.end->completion().wr_id, 7u);
    EXPECT_EQ(line.peer->completion().status, IBV_WC_SUCCESS);
  }
}

TEST_F(Waiting, threads_on_channels_of_one_context_each_get_their_own_event) {
  const Line one(here_.context, here_pd_, there_.context, there_pd_);
  const Line other(here_.context, here_pd_, there_.context, there_pd_);
  one.expect_message();
  other.expect_message();
  std::atomic<int> woken{0};
  std::thread first([&] { woken += one.wait() ? 1 : 100; });
  std::thread second([&] { woken += other.wait() ? 10 : 100; });
  fall_asleep();
  other.send();
  second.join();
  EXPECT_EQ(woken, 10);
  fall_asleep();
  one.send();
  first.join();
  EXPECT_EQ(woken, 11);
}

TEST_F(Waiting, memory_is_served_while_every_thread_waits_or_is_elsewhere) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  line.expect_message();
  std::thread sleeper([&] { EXPECT_TRUE(line.wait()); });
  fall_asleep();
  // an atomic is executed by its target's process: the thread that waits there is woken for it
  Memory counter(here_pd_, 8, 0);
  for (int i = 0; i < 3; ++i) {
    ibv_sge sge = line.from.sge(0, 8);
    ibv_send_wr wr = send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, sge);
    wr.wr.atomic = {counter.at(), 1, 0, counter.mr->rkey};
    ASSERT_EQ(post_wr(line.peer->qp, wr), 0);
    EXPECT_EQ(line.peer->completion().status, IBV_WC_SUCCESS);
    fall_asleep();
  }
  line.send();
  sleeper.join();  // it has executed them; the completions came through another mapping
  EXPECT_EQ(counter.bytes[0], 3);
}

TEST_F(Waiting, a_descriptor_that_does_not_block_answers_at_once_and_becomes_readable) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  ASSERT_EQ(::fcntl(line.channel->fd, F_SETFL, ::fcntl(line.channel->fd, F_GETFL) | O_NONBLOCK), 0);
  line.expect_message();
  line.rest();
  errno = 0;
  EXPECT_FALSE(line.wait());
  EXPECT_EQ(errno, EAGAIN);
  line.send();
  pollfd readable{line.channel->fd, POLLIN, 0};
  ASSERT_EQ(::poll(&readable, 1, 20000), 1);
  EXPECT_TRUE(line.wait());
  EXPECT_EQ(::poll(&readable, 1, 0), 0);
}

// Nobody asks for the end of an unsignalled send, so its acknowledgement is no reason to wake up.
TEST_F(Waiting, an_acknowledgement_that_nobody_asked_for_leaves_a_descriptor_quiet) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  ASSERT_EQ(::fcntl(line.channel->fd, F_SETFL, ::fcntl(line.channel->fd, F_GETFL) | O_NONBLOCK), 0);
  pollfd readable{line.channel->fd, POLLIN, 0};
  const auto expect_woken = [&] {
    line.send();
    ASSERT_EQ(::poll(&readable, 1, 20000), 1);
    ASSERT_TRUE(line.wait());
    EXPECT_EQ(line.end->completion().wr_id, 7u);
    EXPECT_EQ(line.peer->completion().status, IBV_WC_SUCCESS);
  };
  // the connection is made when somebody sends, and that wakes whoever waits: before it is tested
  line.expect_message();
  expect_woken();
  for (int round = 0; round < 5 && !HasFatalFailure(); ++round) {
    line.expect_message();
    line.rest();
    ASSERT_EQ(line.peer->receive(line.from.sge(0, 8), 9), 0);
    ibv_sge sge = line.to.sge(0, 8);
    ibv_send_wr unsignalled = send_wr(IBV_WR_SEND, sge);
    unsignalled.send_flags = 0;
    ASSERT_EQ(post_wr(line.end->qp, unsignalled), 0);
    EXPECT_EQ(line.peer->completion().wr_id, 9u);  // it has executed it, and acknowledged
    EXPECT_EQ(::poll(&readable, 1, 20), 0) << "round " << round;
    expect_woken();
  }
}

// ibv_get_cq_event(3), "Examples", takes EAGAIN for a failure there. Here it is an atomic that
// wakes the engine, and no completion.
TEST_F(Waiting, a_descriptor_that_has_become_readable_gives_an_event_whatever_it_was_for) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  ASSERT_EQ(::fcntl(line.channel->fd, F_SETFL, ::fcntl(line.channel->fd, F_GETFL) | O_NONBLOCK), 0);
  pollfd readable{line.channel->fd, POLLIN, 0};
  Memory counter(here_pd_, 8, 0);
  for (int round = 0; round < 5; ++round) {
    line.rest();
    ibv_sge sge = line.from.sge(0, 8);
    ibv_send_wr wr = send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, sge);
    wr.wr.atomic = {counter.at(), 1, 0, counter.mr->rkey};
    ASSERT_EQ(post_wr(line.peer->qp, wr), 0);
    if (::poll(&readable, 1, 2000) == 1) {
      EXPECT_TRUE(line.wait()) << "round " << round;
    }
    EXPECT_EQ(line.peer->completion().status, IBV_WC_SUCCESS);
  }
}

// A server's: one thread, and a channel for each of its clients, none of which blocks.
class Server {
 public:
  Server(size_t count, ibv_context* here, ibv_pd* here_pd, ibv_context* there, ibv_pd* there_pd) {
    for (size_t i = 0; i < count; ++i) {
      lines_.push_back(std::make_unique<Line>(here, here_pd, there, there_pd));
      const int fd = lines_.back()->channel->fd;
      EXPECT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
      fds_.push_back({fd, POLLIN, 0});
      lines_.back()->expect_message();
    }
  }
  const Line& line(size_t which) const { return *lines_[which]; }
  // What came on those whose descriptors are readable, by one poll(2) after the other, until that
  // one has a message; events that were for nothing are counted.
  bool serve_until_message(size_t which) {
    for (int polls = 0; polls < 1000; ++polls) {
      if (::poll(fds_.data(), fds_.size(), 20000) <= 0) return false;
      bool got = false;
      for (size_t i = 0; i < fds_.size(); ++i) {
        if ((fds_[i].revents & POLLIN) == 0) continue;
        const int messages = handle(*lines_[i]);
        if (messages == 0) ++in_vain_;
        if (i == which && messages != 0) got = true;
      }
      if (got) return true;
    }
    return false;
  }
  int in_vain() const { return in_vain_; }

 private:
  // As servers written for sockets have it: all events, arm, all completions.
  static int handle(const Line& line) {
    while (line.wait()) {
    }
    EXPECT_EQ(ibv_req_notify_cq(line.end->cq, 0), 0);
    int messages = 0;
    ibv_wc wc{};
    while (ibv_poll_cq(line.end->cq, 1, &wc) > 0) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(line.end->receive(line.to.sge(0, 8), 7), 0);
      ++messages;
    }
    return messages;
  }

  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<pollfd> fds_;
  int in_vain_ = 0;
};

TEST_F(Waiting, of_many_channels_of_one_thread_those_without_events_stay_quiet) {
  constexpr size_t kClients = 8;
  constexpr int kRounds = 50;
  Server server(kClients, here_.context, here_pd_, there_.context, there_pd_);
  const auto expect_message = [&](size_t from) {
    server.line(from).send();
    ASSERT_TRUE(server.serve_until_message(from)) << "of client " << from;
    EXPECT_EQ(server.line(from).peer->completion().status, IBV_WC_SUCCESS);
  };
  // each connection is made by its first message
  for (size_t i = 0; i < kClients; ++i) ASSERT_NO_FATAL_FAILURE(expect_message(i));
  int before = server.in_vain();
  for (int round = 0; round < kRounds; ++round) ASSERT_NO_FATAL_FAILURE(expect_message(3));
  // an acknowledgement of ours may have woken it, now and then; not seven others each time
  EXPECT_LE(server.in_vain() - before, kRounds) << "one client alone";
  before = server.in_vain();
  for (int round = 0; round < kRounds; ++round)
    ASSERT_NO_FATAL_FAILURE(expect_message(static_cast<size_t>(round) % kClients));
  EXPECT_LE(server.in_vain() - before, 2 * kRounds) << "one after the other";
}

TEST_F(Waiting, an_event_that_nobody_fetches_keeps_no_other_from_coming) {
  Server server(2, here_.context, here_pd_, there_.context, there_pd_);
  server.line(0).send();
  pollfd left{server.line(0).channel->fd, POLLIN, 0};
  ASSERT_EQ(::poll(&left, 1, 20000), 1);
  const Line& line = server.line(1);
  pollfd readable{line.channel->fd, POLLIN, 0};
  for (int round = 0; round < 20; ++round) {
    line.send();
    ASSERT_EQ(::poll(&readable, 1, 20000), 1) << "round " << round;
    ASSERT_TRUE(line.wait());
    EXPECT_EQ(line.end->completion().wr_id, 7u);
    EXPECT_EQ(line.peer->completion().status, IBV_WC_SUCCESS);
    line.expect_message();
    ibv_wc none{};
    EXPECT_EQ(ibv_poll_cq(line.end->cq, 1, &none), 0);
    line.wait();  // as it is woken otherwise
  }
  EXPECT_TRUE(server.line(0).wait());
}

// As many as the kernel would let lie above one descriptor, and an application's epoll above those.
TEST_F(Waiting, each_of_hundreds_of_channels_of_a_context_can_be_waited_for) {
  constexpr size_t kChannels = 600;
  std::vector<ibv_comp_channel*> idle;
  const int all = ::epoll_create1(EPOLL_CLOEXEC);
  ASSERT_GE(all, 0);
  const auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return ::epoll_ctl(all, EPOLL_CTL_ADD, fd, &event);
  };
  for (size_t i = 0; i < kChannels; ++i) {
    idle.push_back(ibv_create_comp_channel(here_.context));
    ASSERT_NE(idle.back(), nullptr) << i;
    ASSERT_EQ(watch(idle.back()->fd), 0) << i;
  }
  Server server(70, here_.context, here_pd_, there_.context, there_pd_);
  for (size_t i = 0; i < 70; ++i) ASSERT_EQ(watch(server.line(i).channel->fd), 0) << i;
  for (size_t i = 0; i < 70; i += 3) {
    server.line(i).send();
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(all, &event, 1, 20000), 1) << i;
    ASSERT_TRUE(server.serve_until_message(i)) << i;
    EXPECT_EQ(server.line(i).peer->completion().status, IBV_WC_SUCCESS);
  }
  ::close(all);
  for (ibv_comp_channel* channel : idle) EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

class WaitingThreads : public Waiting, public testing::WithParamInterface<size_t> {};
// more than there are paths from the engine's descriptor to theirs
INSTANTIATE_TEST_SUITE_P(few_and_many, WaitingThreads, testing::Values(3, 40));

TEST_P(WaitingThreads, that_wait_for_descriptors_of_their_own_each_get_their_messages) {
  const size_t count = GetParam();
  const int rounds = count > 3 ? 10 : 100;
  Server server(count, here_.context, here_pd_, there_.context, there_pd_);
  std::vector<std::thread> threads;
  std::atomic<int> came{0};
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const Line& line = server.line(i);
      pollfd readable{line.channel->fd, POLLIN, 0};
      for (int got = 0; got < rounds;) {
        if (::poll(&readable, 1, 20000) != 1) return;
        while (line.wait()) {
        }
        EXPECT_EQ(ibv_req_notify_cq(line.end->cq, 0), 0);
        ibv_wc wc{};
        while (ibv_poll_cq(line.end->cq, 1, &wc) > 0) {
          EXPECT_EQ(line.end->receive(line.to.sge(0, 8), 7), 0);
          ++got;
          came.fetch_add(1);
        }
      }
    });
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      server.line(i).send();
      ASSERT_EQ(server.line(i).peer->completion().status, IBV_WC_SUCCESS);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(came.load(), static_cast<int>(count) * rounds);
}

// The doorbell of what is not solicited wakes the control thread alone.
TEST_F(Waiting, who_waits_for_solicited_events_sleeps_through_the_others) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  ASSERT_EQ(::fcntl(line.channel->fd, F_SETFL, ::fcntl(line.channel->fd, F_GETFL) | O_NONBLOCK), 0);
  ASSERT_EQ(line.end->receive(line.to.sge(0, 8), 7), 0);
  ASSERT_EQ(line.end->receive(line.to.sge(0, 8), 8), 0);
  ASSERT_EQ(ibv_req_notify_cq(line.end->cq, 1), 0);
  EXPECT_FALSE(line.wait());
  line.send();
  EXPECT_EQ(line.peer->completion().status, IBV_WC_SUCCESS);
  pollfd readable{line.channel->fd, POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 20), 0);
  ibv_sge sge = line.from.sge(0, 8);
  ibv_send_wr solicited = send_wr(IBV_WR_SEND, sge);
  solicited.send_flags |= IBV_SEND_SOLICITED;
  ASSERT_EQ(post_wr(line.peer->qp, solicited), 0);
  ASSERT_EQ(::poll(&readable, 1, 20000), 1);
  EXPECT_TRUE(line.wait());
}

void* wait_for_cq_event(void* line) {
  (void)static_cast<const Line*>(line)->wait();
  return nullptr;
}

void* wait_for_async_event(void* context) {
  ibv_async_event event{};
  (void)ibv_get_async_event(static_cast<ibv_context*>(context), &event);
  return nullptr;
}

void expect_cancellable(void* (*run)(void*), void* with) {
  pthread_t thread;
  ASSERT_EQ(::pthread_create(&thread, nullptr, run, with), 0);
  fall_asleep();
  ASSERT_EQ(::pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(::pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

// ThreadSanitizer's poll() leaves a thread that is cancelled in it marked as blocked, and from then
// on the mutexes that its clean-up takes go unseen: reports of races that are none.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSeesCancelledThreads = false;
#else
constexpr bool kSeesCancelledThreads = true;
#endif

TEST_F(Waiting, a_thread_that_is_cancelled_takes_nothing_along) {
  if (!kSeesCancelledThreads) GTEST_SKIP() << "not under ThreadSanitizer";
  Line line(here_.context, here_pd_, there_.context, there_pd_);
  line.expect_message();
  expect_cancellable(wait_for_cq_event, &line);
  expect_cancellable(wait_for_async_event, here_.context);
  std::thread sleeper([&] { EXPECT_TRUE(line.wait()); });
  fall_asleep();
  line.send();
  sleeper.join();
  EXPECT_EQ(line.end->completion().wr_id, 7u);
}

// A cancellation that comes in the middle of posting and polling waits for the next such point.
TEST_F(Waiting, a_thread_that_is_cancelled_while_it_works_ends_between_two_calls) {
  if (!kSeesCancelledThreads) GTEST_SKIP() << "not under ThreadSanitizer";
  Line line(here_.context, here_pd_, there_.context, there_pd_);
  for (int round = 0; round < 20; ++round) {
    pthread_t thread;
    ASSERT_EQ(::pthread_create(
                  &thread, nullptr,
                  [](void* of) -> void* {
                    const Line& its = *static_cast<const Line*>(of);
                    while (true) {
                      EXPECT_EQ(its.end->receive(its.to.sge(0, 8), 7), 0);
                      EXPECT_EQ(ibv_req_notify_cq(its.end->cq, 0), 0);
                      EXPECT_EQ(its.peer->post(IBV_WR_SEND, its.from.sge(0, 8)), 0);
                      EXPECT_EQ(its.peer->completion().status, IBV_WC_SUCCESS);
                      EXPECT_EQ(its.end->completion().wr_id, 7u);
                      EXPECT_TRUE(its.wait());
                      ::pthread_testcancel();
                    }
                  },
                  &line),
              0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + round % 3));
    ASSERT_EQ(::pthread_cancel(thread), 0);
    void* result = nullptr;
    ASSERT_EQ(::pthread_join(thread, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
  }
}

// --- signals: a wait is a read(2) to its program, and after a handler goes on or ends as one ---

std::atomic<int> handled{0};

// SIGUSR1 with a handler, for as long as it lives.
class Handler {
 public:
  explicit Handler(int flags) {
    struct sigaction action {};
    action.sa_handler = [](int) { handled.fetch_add(1); };
    action.sa_flags = flags;
    EXPECT_EQ(::sigaction(SIGUSR1, &action, &before_), 0);
  }
  ~Handler() { ::sigaction(SIGUSR1, &before_, nullptr); }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  struct sigaction before_ {};
};

// A thread in one of the two calls that wait; what the call has ended with.
template <typename Wait>
int errno_after_signals(Wait&& wait, int flags, const std::function<void()>& end_it) {
  const Handler handler(flags);
  std::atomic<int> error{-1};
  std::thread waiter([&] {
    errno = 0;
    error = wait() ? 0 : errno;
  });
  for (int i = 0; i < 3 && error == -1; ++i) {
    fall_asleep();
    const int before = handled;
    EXPECT_EQ(::pthread_kill(waiter.native_handle(), SIGUSR1), 0);
    while (handled == before) std::this_thread::yield();
    fall_asleep();
  }
  if (error == -1) end_it();
  waiter.join();
  return error;
}

TEST_F(Waiting, for_a_completion_event_goes_on_after_signals_as_a_read_does) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  const auto wait = [&] { return line.wait(); };
  const auto send = [&] {
    line.send();
    EXPECT_EQ(line.peer->completion().status, IBV_WC_SUCCESS);
  };
  for (int round = 0; round < 3; ++round) {
    line.expect_message();
    EXPECT_EQ(errno_after_signals(wait, SA_RESTART, send), 0);
    EXPECT_EQ(line.end->completion().wr_id, 7u);
  }
  line.expect_message();
  EXPECT_EQ(errno_after_signals(wait, 0, send), EINTR);
}

TEST_F(Waiting, for_an_asynchronous_event_goes_on_after_signals_as_a_read_does) {
  const Line line(here_.context, here_pd_, there_.context, there_pd_);
  const auto wait = [&] {
    ibv_async_event event{};
    if (ibv_get_async_event(here_.context, &event) != 0) return false;
    EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
    ibv_ack_async_event(&event);
    return true;
  };
  const auto drain = [&] {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_SQD;
    attr.en_sqd_async_notify = 1;
    EXPECT_EQ(ibv_modify_qp(line.end->qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  };
  EXPECT_EQ(errno_after_signals(wait, SA_RESTART, drain), 0);
  EXPECT_EQ(errno_after_signals(wait, 0, drain), EINTR);
}

// A NIC's acknowledgement of a send comes before the message that answers it.
void expect_ends_before_answers(const Line& line, bool with_events) {
  constexpr int kRounds = 3000;
  std::thread peer([&] {
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(line.peer->receive(line.from.sge(0, 8), 1), 0);
      ibv_wc wc;
      do {  // the end of the answer before this one, and the next question
        wc = line.peer->completion();
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      } while (wc.opcode != IBV_WC_RECV);
      ASSERT_EQ(line.peer->post(IBV_WR_SEND, line.from.sge(0, 8)), 0);
    }
  });
  int early = 0;
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(line.end->receive(line.to.sge(0, 8), 7), 0);
    if (with_events) {
      ASSERT_EQ(ibv_req_notify_cq(line.end->cq, 0), 0);
    }
    ASSERT_EQ(line.end->post(IBV_WR_SEND, line.to.sge(0, 8), 8), 0);
    if (with_events) {
      ASSERT_TRUE(line.wait());
    }
    const ibv_wc first = line.end->completion();
    ASSERT_EQ(line.end->completion().status, IBV_WC_SUCCESS);
    early += first.wr_id == 8 ? 0 : 1;
  }
  peer.join();
  EXPECT_EQ(early, 0) << "of " << kRounds;
}

TEST_F(Waiting, a_send_completes_before_its_answer_is_received_by_polling) {
  expect_ends_before_answers(Line(here_.context, here_pd_, there_.context, there_pd_), false);
}

TEST_F(Waiting, a_send_completes_before_its_answer_is_received_with_events) {
  expect_ends_before_answers(Line(here_.context, here_pd_, there_.context, there_pd_), true);
}

}  // namespace
}  // namespace aperture::test
