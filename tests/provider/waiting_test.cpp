// Wait objects and several sleepers in one domain. fi_poll(3), fi_cq(3).
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

using namespace std::chrono_literals;

bool readable(int fd, int timeout_ms) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

TEST(Waiting, getwait_and_getwaitobj_by_kind) {
  for (fi_wait_obj asked : {FI_WAIT_FD, FI_WAIT_UNSPEC, FI_WAIT_POLLFD}) {
    Bench b({}, kApi117, asked);
    auto obj = FI_WAIT_NONE;
    EXPECT_EQ(fi_control(&b.cq->fid, FI_GETWAITOBJ, &obj), 0);
    EXPECT_EQ(obj, asked == FI_WAIT_UNSPEC ? FI_WAIT_FD : asked);
    if (asked == FI_WAIT_POLLFD) {
      pollfd fds[2];
      fi_wait_pollfd list{0, 0, fds};
      EXPECT_EQ(fi_control(&b.cq->fid, FI_GETWAIT, &list), -FI_ETOOSMALL);
      ASSERT_EQ(list.nfds, 1u);
      EXPECT_EQ(list.change_index, 1) << "which is asked for so";
      fi_wait_pollfd nowhere{77, 2, nullptr};
      EXPECT_EQ(fi_control(&b.cq->fid, FI_GETWAIT, &nowhere), -FI_EINVAL);
      EXPECT_EQ(nowhere.nfds, 2u) << "nothing is written";
      EXPECT_EQ(nowhere.change_index, 77);
      list.nfds = 2;
      EXPECT_EQ(fi_control(&b.cq->fid, FI_GETWAIT, &list), 0);
      EXPECT_EQ(list.nfds, 1u);
      EXPECT_GE(fds[0].fd, 0);
    } else {
      int fd = -1;
      EXPECT_EQ(fi_control(&b.cq->fid, FI_GETWAIT, &fd), 0);
      EXPECT_GE(fd, 0);
    }
    EXPECT_EQ(fi_control(&b.cq->fid, FI_GETWAIT, nullptr), -FI_EINVAL);
    EXPECT_EQ(fi_control(&b.cq->fid, FI_QUEUE_WORK, &obj), -FI_ENOSYS);
  }
}

TEST(Waiting, mutex_and_condition_are_refused_not_taken_as_none) {
  Bench b;
  fi_cq_attr attr{};
  attr.wait_obj = FI_WAIT_MUTEX_COND;
  fid_cq* cq = nullptr;
  EXPECT_EQ(fi_cq_open(b.domain.get(), &attr, &cq, nullptr), -FI_ENOSYS);
  attr.wait_obj = FI_WAIT_SET;
  EXPECT_EQ(fi_cq_open(b.domain.get(), &attr, &cq, nullptr), -FI_EINVAL) << "without a set";
  attr.wait_obj = static_cast<fi_wait_obj>(7);
  EXPECT_EQ(fi_cq_open(b.domain.get(), &attr, &cq, nullptr), -FI_EINVAL);
  EXPECT_EQ(cq, nullptr);
}

TEST(Waiting, a_wait_set_over_a_queue_and_a_counter) {
  Bench b;
  fi_wait_attr set_attr{FI_WAIT_FD, 0};
  fid_wait* made = nullptr;
  ASSERT_EQ(fi_wait_open(b.fabric.get(), &set_attr, &made), 0);
  Opened<fid_wait> set(made);
  fi_cntr_attr attr{};
  attr.wait_obj = FI_WAIT_SET;
  attr.wait_set = set.get();
  const Opened<fid_cntr> cntr = opened("counter", fi_cntr_open, b.domain.get(), &attr);
  EXPECT_EQ(fi_close(&set->fid), -FI_EBUSY);
  EXPECT_EQ(fi_wait(set.get(), 20), -FI_ETIMEDOUT);
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    fi_cntr_add(cntr.get(), 1);
  });
  EXPECT_EQ(fi_wait(set.get(), 5000), 0);
  other.join();
  EXPECT_EQ(fi_cntr_read(cntr.get()), 1u);
  EXPECT_EQ(fi_cntr_wait(cntr.get(), 1, 0), -FI_EINVAL) << "wait on the set instead";
}

TEST(Waiting, a_counter_wakes_its_waiter) {
  Bench b({}, kApi117, FI_WAIT_UNSPEC);
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    fi_cntr_add(b.cntr.get(), 3);
  });
  EXPECT_EQ(fi_cntr_wait(b.cntr.get(), 3, 5000), 0);
  other.join();
  EXPECT_EQ(fi_cntr_wait(b.cntr.get(), 4, 10), -FI_ETIMEDOUT);
  std::thread third([&] {
    std::this_thread::sleep_for(20ms);
    fi_cntr_adderr(b.cntr.get(), 1);
  });
  EXPECT_EQ(fi_cntr_wait(b.cntr.get(), 4, 5000), -FI_EAVAIL);
  third.join();
}

// As many as the kernel would let lie above one descriptor, and an application's epoll above those.
TEST(Waiting, each_of_hundreds_of_queues_of_a_domain_can_be_waited_for) {
  constexpr size_t kQueues = 600;
  Bench b({}, kApi117, FI_WAIT_FD);
  Bench sender;
  sender.enable();
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  attr.wait_obj = FI_WAIT_FD;
  std::vector<Opened<fid_cq>> queues;
  std::vector<pollfd> fds;
  const int all = ::epoll_create1(EPOLL_CLOEXEC);
  ASSERT_GE(all, 0);
  for (size_t i = 0; i < kQueues; ++i) {
    queues.push_back(opened("queue", fi_cq_open, b.domain.get(), &attr));
    int fd = -1;
    ASSERT_EQ(fi_control(&queues.back()->fid, FI_GETWAIT, &fd), 0);
    epoll_event event{};
    event.events = EPOLLIN;
    ASSERT_EQ(::epoll_ctl(all, EPOLL_CTL_ADD, fd, &event), 0) << i;
    fds.push_back({fd, POLLIN, 0});
  }
  // the last one gets messages, as the first ones would
  ASSERT_EQ(fi_ep_bind(b.ep.get(), &b.av->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(b.ep.get(), &queues.back()->fid, FI_TRANSMIT | FI_RECV), 0);
  ASSERT_EQ(fi_enable(b.ep.get()), 0);
  char name[64];
  size_t len = sizeof name;
  ASSERT_EQ(fi_getname(&b.ep->fid, name, &len), 0);
  fi_addr_t there = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insert(sender.av.get(), name, 1, &there, 0, nullptr), 1);
  fi_cq_tagged_entry entry;
  for (int round = 0; round < 5; ++round) {
    // of those before it, some are waited for, and no longer when they have been read
    for (size_t i = 0; i < kQueues; i += 7) {
      fid* one[] = {&queues[i]->fid};
      ASSERT_EQ(fi_trywait(b.fabric.get(), one, 1), 0) << i;
      ASSERT_EQ(fi_cq_read(queues[i].get(), &entry, 1), -FI_EAGAIN);
    }
    char in = 0;
    ASSERT_EQ(fi_recv(b.ep.get(), &in, 1, nullptr, FI_ADDR_UNSPEC, &in), 0);
    fid* fids[] = {&queues.back()->fid};
    while (fi_trywait(b.fabric.get(), fids, 1) != 0) {
    }
    ssize_t posted;
    while ((posted = fi_inject(sender.ep.get(), "x", 1, there)) == -FI_EAGAIN) {
      (void)fi_cq_read(sender.cq.get(), &entry, 1);
    }
    ASSERT_EQ(posted, 0);
    epoll_event event{};
    int woken = 0;
    for (int i = 0; i < 1000 && woken == 0; ++i) {  // manual progress, of the sender too
      (void)fi_cq_read(sender.cq.get(), &entry, 1);
      woken = ::epoll_wait(all, &event, 1, 1);
    }
    EXPECT_EQ(woken, 1) << "round " << round;
    EXPECT_EQ(read_cq(queues.back().get(), &entry), 1);
  }
  ::close(all);
}

// fi_trywait(3): "if there is work to do" it says so, and the application polls; so it does here.
TEST(Waiting, beyond_so_many_queues_nobody_is_told_that_he_may_wait_for_more_at_once) {
  constexpr size_t kAtOnce = 32;
  Bench b;
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  attr.wait_obj = FI_WAIT_FD;
  std::vector<Opened<fid_cq>> queues;
  for (size_t i = 0; i <= kAtOnce; ++i)
    queues.push_back(opened("queue", fi_cq_open, b.domain.get(), &attr));
  const auto try_wait = [&](size_t i) {
    fid* one[] = {&queues[i]->fid};
    return fi_trywait(b.fabric.get(), one, 1);
  };
  // the last one has the place of the first: who sleeps there without having said so looks again
  int first = -1;
  ASSERT_EQ(fi_control(&queues[0]->fid, FI_GETWAIT, &first), 0);
  EXPECT_TRUE(readable(first, 0));
  for (size_t i = 0; i < kAtOnce; ++i) EXPECT_EQ(try_wait(i), 0) << i;
  EXPECT_FALSE(readable(first, 0));
  EXPECT_EQ(try_wait(kAtOnce), -FI_EAGAIN);
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_read(queues[5].get(), &entry, 1), -FI_EAGAIN) << "it waits no longer";
  EXPECT_EQ(try_wait(kAtOnce), 0);
  EXPECT_EQ(try_wait(5), -FI_EAGAIN);
  queues[7].reset();
  EXPECT_EQ(try_wait(5), 0);
  // a call that blocks needs none
  EXPECT_EQ(fi_cq_sread(queues[kAtOnce].get(), &entry, 1, nullptr, 20), -FI_EAGAIN);
  EXPECT_EQ(try_wait(kAtOnce), 0);
  queues.push_back(opened("queue", fi_cq_open, b.domain.get(), &attr));
  EXPECT_EQ(fi_cq_sread(queues.back().get(), &entry, 1, nullptr, 20), -FI_EAGAIN);
}

// A is polled for a while and then no more, while somebody sleeps natively on B of the same domain:
// the sleeper still hears of what comes for B.
TEST(Waiting, a_sleeper_is_not_forgotten_when_another_thread_stops_polling) {
  Bench b({}, kApi117, FI_WAIT_FD);
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  const Opened<fid_cq> idle = opened("queue", fi_cq_open, b.domain.get(), &attr);
  Bench sender;
  sender.enable();
  b.enable();
  char name[64];
  size_t len = sizeof name;
  ASSERT_EQ(fi_getname(&b.ep->fid, name, &len), 0);
  fi_addr_t there = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insert(sender.av.get(), name, 1, &there, 0, nullptr), 1);
  int fd = -1;
  ASSERT_EQ(fi_control(&b.cq->fid, FI_GETWAIT, &fd), 0);
  for (int round = 0; round < 20; ++round) {
    char in = 0;
    ASSERT_EQ(fi_recv(b.ep.get(), &in, 1, nullptr, FI_ADDR_UNSPEC, &in), 0);
    fid* fids[] = {&b.cq->fid};
    while (fi_trywait(b.fabric.get(), fids, 1) != 0) {
    }
    fi_cq_tagged_entry entry;
    for (int i = 0; i < 10; ++i) {  // wakes the engine, and then stops
      EXPECT_EQ(fi_cq_read(idle.get(), &entry, 1), -FI_EAGAIN);
    }
    ssize_t posted;
    while ((posted = fi_inject(sender.ep.get(), "x", 1, there)) == -FI_EAGAIN) {
      (void)fi_cq_read(sender.cq.get(), &entry, 1);
    }
    ASSERT_EQ(posted, 0);
    for (int i = 0; i < 1000 && !readable(fd, 0);
         ++i) {  // manual progress: the sender is progressed
      (void)fi_cq_read(sender.cq.get(), &entry, 1);
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(readable(fd, 0)) << "round " << round;
    EXPECT_EQ(read_cq(b.cq.get(), &entry), 1);
    EXPECT_EQ(in, 'x');
  }
}

// With a queue that can be asked to wait for so many, and a receive for each byte of `in`.
fi_addr_t enable_with_threshold(Bench& b, std::span<char> in) {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  attr.wait_obj = FI_WAIT_UNSPEC;
  attr.wait_cond = FI_CQ_COND_THRESHOLD;
  b.cq = opened("queue", fi_cq_open, b.domain.get(), &attr);
  const fi_addr_t own = b.enable();
  for (char& c : in) {
    EXPECT_EQ(fi_recv(b.ep.get(), &c, 1, nullptr, FI_ADDR_UNSPEC, &c), 0);
  }
  return own;
}

TEST(Waiting, a_threshold_waits_for_so_many) {
  Bench b({}, kApi117, FI_WAIT_NONE);
  char in[4];
  const fi_addr_t own = enable_with_threshold(b, in);
  fi_cq_tagged_entry entries[4];
  ASSERT_EQ(fi_inject(b.ep.get(), "1", 1, own), 0);
  const auto three = reinterpret_cast<const void*>(uintptr_t{3});
  EXPECT_EQ(fi_cq_sread(b.cq.get(), entries, 4, three, 50), 1) << "the one there is, at the end";
  for (const char* text : {"2", "3", "4"}) ASSERT_EQ(fi_inject(b.ep.get(), text, 1, own), 0);
  EXPECT_EQ(fi_cq_sread(b.cq.get(), entries, 4, three, 5000), 3);
}

// "or an error or timeout occurs"
TEST(Waiting, a_threshold_is_not_waited_for_beyond_an_error) {
  Bench b({}, kApi117, FI_WAIT_NONE);
  char in[2];
  const fi_addr_t own = enable_with_threshold(b, in);
  ASSERT_EQ(fi_inject(b.ep.get(), "1", 1, own), 0);
  ASSERT_EQ(fi_inject(b.ep.get(), "too long", 8, own), 0);
  const auto four = reinterpret_cast<const void*>(uintptr_t{4});
  fi_cq_tagged_entry entries[4];
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(fi_cq_sread(b.cq.get(), entries, 4, four, 20000), 1);
  EXPECT_EQ(fi_cq_sread(b.cq.get(), entries, 4, four, 20000), -FI_EAVAIL);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 15s);
  fi_cq_err_entry error{};
  EXPECT_EQ(fi_cq_readerr(b.cq.get(), &error, 0), 1);
  EXPECT_EQ(fi_cq_sread(b.cq.get(), entries, 4, four, 10), -FI_EAGAIN) << "the error is gone";
}

TEST(Waiting, a_signal_just_as_the_sleep_begins_is_not_lost) {
  Bench b({}, kApi117, FI_WAIT_FD);
  b.enable();
  constexpr int kRounds = 1000;
  std::atomic<int> begun{0}, ended{0};
  std::thread sleeper([&] {
    for (int i = 1; i <= kRounds; ++i) {
      fi_cq_tagged_entry entry;
      begun = i;
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(fi_cq_sread(b.cq.get(), &entry, 1, nullptr, 20000), -FI_EAGAIN);
      const bool late = std::chrono::steady_clock::now() - start > 15s;
      EXPECT_FALSE(late) << "round " << i;
      ended = late ? kRounds + 1 : i;
      if (late) return;
    }
  });
  for (int i = 1; i <= kRounds && ended <= kRounds; ++i) {
    while (begun < i && ended <= kRounds) std::this_thread::yield();
    const auto at = std::chrono::steady_clock::now() + std::chrono::nanoseconds(i % 100 * 500);
    while (std::chrono::steady_clock::now() < at) {
    }
    ASSERT_EQ(fi_cq_signal(b.cq.get()), 0);
    while (ended < i) std::this_thread::yield();
  }
  sleeper.join();
}

// fi_trywait is to say that a counter has changed, also one that was set back in between.
TEST(Waiting, a_counter_that_was_set_back_has_changed) {
  Bench b({}, kApi117, FI_WAIT_FD);
  fid* const one[] = {&b.cntr->fid};
  const auto count = [&] {
    ASSERT_EQ(fi_cntr_add(b.cntr.get(), 1), 0);
    EXPECT_EQ(fi_trywait(b.fabric.get(), const_cast<fid**>(one), 1), -FI_EAGAIN);
  };
  count();
  EXPECT_EQ(fi_cntr_read(b.cntr.get()), 1u);
  EXPECT_EQ(fi_trywait(b.fabric.get(), const_cast<fid**>(one), 1), 0);
  ASSERT_EQ(fi_cntr_set(b.cntr.get(), 0), 0);
  count();
  EXPECT_EQ(fi_cntr_read(b.cntr.get()), 1u);
  EXPECT_EQ(fi_trywait(b.fabric.get(), const_cast<fid**>(one), 1), 0);
}

// Each open made room for all that had ever been open.
TEST(Waiting, queues_that_come_and_go_leave_nothing_behind) {
  Bench b({}, kApi117, FI_WAIT_FD);
  fi_cq_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  for (int i = 0; i < 300; ++i) {
    const Opened<fid_cq> cq = opened("queue", fi_cq_open, b.domain.get(), &attr);
    fid* one[] = {&cq->fid};
    ASSERT_EQ(fi_trywait(b.fabric.get(), one, 1), 0) << i;
  }
}

}  // namespace
}  // namespace aperture::provider_tests
