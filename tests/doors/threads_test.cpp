// Each threading level through libfabric, with as many threads as it permits, and what several
// threads may do with one object. fi_domain(3), "Multi-threading Support".

#include <poll.h>

#include "doors/fixture.hpp"
#include "provider/thread_levels.hpp"

namespace aperture {
namespace doors {
namespace {

Options options_of(fi_threading level, fi_ep_type type = FI_EP_RDM) {
  return {.type = type, .caps = type == FI_EP_DGRAM ? FI_MSG : FI_MSG | FI_RMA, .threading = level};
}

}  // namespace
}  // namespace doors

thread_play::Place thread_play::open_place(fi_threading level, fi_ep_type type) {
  doors::Info info = doors::get_info(doors::options_of(level, type));
  fid_fabric* fabric = nullptr;
  DOOR(fi_fabric(info->fabric_attr, &fabric, nullptr));
  return {Opened<fid_fabric>(fabric), {info.release(), fi_freeinfo}, 1500};
}

namespace doors {
namespace {

TEST(ThreadsOfAll, without_a_wish_the_most_parallel_level_is_given) {
  EXPECT_EQ(get_info(options_of(FI_THREAD_UNSPEC))->domain_attr->threading, FI_THREAD_SAFE);
}

TEST(ThreadsOfAll, a_level_that_is_none_is_refused) {
  EXPECT_THROW(get_info(options_of(no_such_value<fi_threading>(77))), DoorError);
}

// Somebody who reads a queue must not leave another asleep who waits for it.
TEST(ThreadsOfAll, a_sleeper_is_woken_although_others_read_the_same_queue_and_stop) {
  Options options = options_of(FI_THREAD_SAFE);
  options.wait = FI_WAIT_UNSPEC;
  NodePair p(options);
  Op op;
  uint8_t in = 0;
  ASSERT_EQ(p.pass("x").err, 0);  // connected
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(fi_recv(p.b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &op), 0);
    ssize_t slept = 0;
    fi_cq_tagged_entry entry{};
    std::thread sleeper([&] { slept = fi_cq_sread(p.b.cq(), &entry, 1, nullptr, 15000); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::thread reader([&] {
      fi_cq_tagged_entry none{};
      for (int i = 0; i < 10; ++i) EXPECT_EQ(fi_cq_read(p.b.cq(), &none, 1), -FI_EAGAIN);
    });
    reader.join();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const int64_t start = now_ns();
    ASSERT_EQ(fi_inject(p.a.ep(), "y", 1, p.to_b), 0);
    sleeper.join();
    EXPECT_EQ(slept, 1);
    EXPECT_EQ(entry.op_context, &op);
    EXPECT_LT(now_ns() - start, 10'000'000'000) << "it slept through its completion";
  }
}

// One thread has asked whether the descriptor may be waited for, another one waits: it is not left
// behind when the first one reads the queue by itself, and whatever was to wake them wakes nobody.
TEST(ThreadsOfAll, who_waits_for_the_descriptor_is_woken_by_a_read_of_the_thread_that_asked) {
  Options options = options_of(FI_THREAD_SAFE);
  options.wait = FI_WAIT_FD;
  Node node(options);
  int fd = -1;
  ASSERT_EQ(fi_control(&node.cq()->fid, FI_GETWAIT, &fd), 0);
  for (int round = 0; round < 5; ++round) {
    fid* what = &node.cq()->fid;
    ASSERT_EQ(fi_trywait(node.fabric(), &what, 1), 0);
    int woken = -1;
    std::thread waiting([&] {
      pollfd p{fd, POLLIN, 0};
      woken = ::poll(&p, 1, 15000);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fi_cq_tagged_entry none{};
    EXPECT_EQ(fi_cq_read(node.cq(), &none, 1), -FI_EAGAIN);
    waiting.join();
    EXPECT_EQ(woken, 1) << "round " << round;
  }
}

TEST(ThreadsOfAll, all_sleepers_of_a_counter_are_woken) {
  Options options = options_of(FI_THREAD_SAFE);
  options.counters = true;
  Node node(options);
  std::vector<std::thread> waiting;
  std::atomic<int> woken{0};
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back([&] {
      EXPECT_EQ(fi_cntr_wait(node.rx_cntr(), 5, 15000), 0);
      ++woken;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const int64_t start = now_ns();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(woken.load(), 0);
    ASSERT_EQ(fi_cntr_add(node.rx_cntr(), 1), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (std::thread& t : waiting) t.join();
  EXPECT_LT(now_ns() - start, 10'000'000'000);
}

TEST(ThreadsOfAll, an_error_ends_every_wait_on_a_counter) {
  Options options = options_of(FI_THREAD_SAFE);
  options.counters = true;
  Node node(options);
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.emplace_back([&] { EXPECT_EQ(fi_cntr_wait(node.rx_cntr(), 5, 15000), -FI_EAVAIL); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const int64_t start = now_ns();
  ASSERT_EQ(fi_cntr_seterr(node.rx_cntr(), 3), 0);
  for (std::thread& t : waiting) t.join();
  EXPECT_LT(now_ns() - start, 10'000'000'000);
}

}  // namespace
}  // namespace doors
}  // namespace aperture
