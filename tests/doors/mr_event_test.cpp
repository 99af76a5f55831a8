// Counters bound to regions, and regions that wait to be enabled: fi_mr(3), FI_MR_RMA_EVENT,
// FI_RMA_EVENT, fi_mr_bind and fi_mr_enable.
#include <cstdlib>

#include "doors/mr_target.hpp"

namespace aperture::doors::mr {
namespace {

constexpr uint64_t kEvent = FI_RMA_EVENT;

class RegionEvents : public Regions {
 protected:
  // Region 1, of that many pages from the first, enabled and with counter 0.
  Remote counted(uint64_t pages = 1) {
    const Remote r = registered(1, {{0, pages * kPage}}, kAllAccess, kEvent);
    target->open_counter(0);
    EXPECT_EQ(target->bind_counter(1, 0), 0);
    EXPECT_EQ(target->enable(1), 0);
    return r;
  }
};
INSTANTIATE_TEST_SUITE_P(reach, RegionEvents, every_reach(), reach_name);

TEST_P(RegionEvents, of_each_remote_write_and_atomic_count_once) {
  open(options_of(FI_MR_RMA_EVENT, kEvent), 300);
  const Remote r = counted(300);
  uint64_t n = 0;
  for (const size_t size : {size_t{1}, size_t{8}, size_t{257}, size_t{40000}, 300 * kPage}) {
    ASSERT_EQ(write(r, 0, size), 0);
    EXPECT_TRUE(target->counts_to(0, ++n)) << size;
  }
  ASSERT_EQ(add(r, 8), 0);
  EXPECT_TRUE(target->counts_to(0, ++n));
  ASSERT_EQ(fetch(r, 8, FI_SUM), 0);
  EXPECT_TRUE(target->counts_to(0, ++n));
  ASSERT_EQ(compare(r, 8), 0);
  EXPECT_TRUE(target->counts_to(0, ++n)) << "also one that compares unequal";
  ASSERT_EQ(read(r, 0, 40000), 0);
  ASSERT_EQ(fetch(r, 8, FI_ATOMIC_READ), 0);
  refused(r, 300 * kPage - 4, 8);
  EXPECT_TRUE(target->counts_to(0, n)) << "neither what reads nor what is refused";
}

TEST_P(RegionEvents, of_an_operation_on_several_ranges_count_once) {
  Options options = options_of(FI_MR_RMA_EVENT, kEvent);
  options.remote_counters = true;
  open(options, 64);
  const Remote r = counted(64);
  uint64_t n = 0;
  for (const size_t len : {size_t{8}, size_t{3000}, size_t{100'000}}) {
    std::vector<uint8_t> bytes(2 * len, 1);
    iovec iov{bytes.data(), bytes.size()};
    fi_rma_iov ranges[] = {{r.base, len, r.key}, {r.base + 32 * kPage, len, r.key}};
    Op op;
    fi_msg_rma message{&iov, nullptr, 1, to, ranges, 2, &op, 0};
    ASSERT_EQ(node->run_message(fi_writemsg, &message, FI_COMPLETION), 0);
    EXPECT_TRUE(target->counts_to(0, ++n)) << len;
  }
  uint64_t words[2] = {1, 1};
  fi_ioc ioc{words, 2};
  fi_rma_ioc places[] = {{r.base, 1, r.key}, {r.base + 64, 1, r.key}};
  Op op;
  fi_msg_atomic message{&ioc, nullptr, 1, to, places, 2, FI_UINT64, FI_SUM, &op, 0};
  ASSERT_EQ(node->run_message(fi_atomicmsg, &message, FI_COMPLETION), 0);
  EXPECT_TRUE(target->counts_to(0, ++n));
}

TEST_P(RegionEvents, go_to_every_counter_of_the_region_and_to_no_other) {
  open(options_of(FI_MR_RMA_EVENT, kEvent));
  for (uint32_t i = 0; i < 3; ++i) target->open_counter(i);
  const Remote first = registered(1, {{0, kPage}}, kAllAccess, kEvent);
  ASSERT_EQ(target->bind_counter(1, 0), 0);
  ASSERT_EQ(target->bind_counter(1, 1), 0);
  const Remote second = registered(2, {{kPage, kPage}}, kAllAccess, kEvent);
  ASSERT_EQ(target->bind_counter(2, 1), 0);
  ASSERT_EQ(target->bind_counter(2, 2), 0);
  ASSERT_EQ(target->enable(1), 0);
  ASSERT_EQ(target->enable(2), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(write(first, 0, 8), 0);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(write(second, 0, 8), 0);
  EXPECT_TRUE(target->counts_to(0, 3));
  EXPECT_TRUE(target->counts_to(1, 8)) << "one counter of two regions";
  EXPECT_TRUE(target->counts_to(2, 5));
}

TEST_P(RegionEvents, count_only_through_endpoints_with_the_capability) {
  open(options_of(FI_MR_RMA_EVENT, kEvent));
  const Remote r = counted();
  ASSERT_EQ(write(r, 0, 8), 0);
  EXPECT_TRUE(target->counts_to(0, 1));
  reach(target->open_sibling(progressing(options_of(FI_MR_RMA_EVENT))));
  ASSERT_EQ(write(r, 0, 8), 0) << "the region is reached all the same";
  ASSERT_EQ(add(r, 0), 0);
  EXPECT_TRUE(target->counts_to(0, 1));
}

TEST_P(RegionEvents, a_region_with_the_flag_waits_to_be_enabled) {
  open(options_of(FI_MR_RMA_EVENT, kEvent));
  target->open_counter(0);
  const Remote r = registered(1, {{0, kPage}}, kAllAccess, kEvent);
  refused(r, 0, 8);
  ASSERT_EQ(target->bind_counter(1, 0), 0);
  refused(r, 0, 8);
  ASSERT_EQ(target->enable(1), 0);
  allowed(r, 0, 8);
  EXPECT_EQ(target->bind_counter(1, 0), -FI_EOPBADSTATE) << "no more bindings";
  target->open_counter(1);
  EXPECT_EQ(target->bind_counter(1, 1), -FI_EOPBADSTATE);
  EXPECT_EQ(target->enable(1), 0) << "once more changes nothing";
  EXPECT_EQ(target->count(1), 0u);
}

TEST_P(RegionEvents, a_region_without_the_flag_is_enabled_at_once_and_has_none) {
  open(options_of(FI_MR_RMA_EVENT, kEvent));
  target->open_counter(0);
  allowed(registered(1, {{0, kPage}}), 0, 8);
  EXPECT_EQ(target->bind_counter(1, 0), -FI_EINVAL);
  ASSERT_EQ(write(target->remote(), 0, 8), 0);
  EXPECT_TRUE(target->counts_to(0, 0));
}

TEST_P(RegionEvents, end_with_the_counter) {
  open(options_of(FI_MR_RMA_EVENT, kEvent), 8, kStrictly);
  target->open_counter(0);
  target->open_counter(1);
  const Remote r = registered(1, {{0, kPage}}, kAllAccess, kEvent);
  ASSERT_EQ(target->bind_counter(1, 0), 0);
  ASSERT_EQ(target->bind_counter(1, 1), 0);
  ASSERT_EQ(target->enable(1), 0);
  EXPECT_EQ(target->close(1), -FI_EBUSY) << "two counters are bound";
  EXPECT_EQ(target->close_counter(0), 0) << "a region holds up no counter";
  ASSERT_EQ(write(r, 0, 8), 0);
  EXPECT_TRUE(target->counts_to(1, 1));
  EXPECT_EQ(target->close(1), -FI_EBUSY) << "one is";
  allowed(r, 0, 8);
  EXPECT_EQ(target->close_counter(1), 0);
  ASSERT_EQ(write(r, 0, 8), 0);
  EXPECT_EQ(target->close(1), 0);
  EXPECT_EQ(write(r, 0, 8), FI_EACCES);
  alive();
}

TEST_P(RegionEvents, the_rules_of_verbs_hold_up_a_region_too) {
  open(options_of(FI_MR_RMA_EVENT, kEvent), 8, {{"APERTURE_MR_MODE", "verbs"}});
  counted();
  EXPECT_EQ(target->close(1), -FI_EBUSY);
  EXPECT_EQ(target->close_counter(0), 0);
  EXPECT_EQ(target->close(1), 0);
}

TEST_P(RegionEvents, end_with_the_region_where_that_is_closed_first) {
  open(options_of(FI_MR_RMA_EVENT, kEvent));
  const Remote r = counted();
  ASSERT_EQ(write(r, 0, 8), 0);
  EXPECT_EQ(target->close(1), 0);
  EXPECT_EQ(write(r, 0, 8), FI_EACCES);
  EXPECT_TRUE(target->counts_to(0, 1));
  EXPECT_EQ(target->close_counter(0), 0);
  alive();
}

TEST_P(RegionEvents, without_fi_mr_rma_event_need_no_flag_and_no_enabling) {
  open(options_of(0, kEvent));
  target->open_counter(0);
  const Remote r = registered(1, {{0, kPage}});
  ASSERT_EQ(write(r, 0, 8), 0);
  ASSERT_EQ(target->bind_counter(1, 0), 0);
  ASSERT_EQ(write(r, 0, 8), 0);
  ASSERT_EQ(add(r, 0), 0);
  EXPECT_TRUE(target->counts_to(0, 2)) << "from the binding on";
}

class EventCall : public testing::Test {
 protected:
  Fid<fid_mr> reg() {
    static uint64_t key = 1;
    return registered(node.domain(), memory, sizeof memory, kAllAccess, key++, kEvent);
  }
  Node node{options_of(FI_MR_RMA_EVENT, kEvent)};
  Fid<fid_cntr> counter = open_counter(node.domain());
  uint8_t memory[64] = {};
};

TEST_F(EventCall, a_counter_is_bound_with_fi_remote_write_alone) {
  const Fid<fid_mr> mr = reg();
  for (const uint64_t flags :
       {uint64_t{0}, uint64_t{FI_REMOTE_READ}, uint64_t{FI_WRITE}, uint64_t{FI_SEND},
        uint64_t{FI_REMOTE_WRITE | FI_REMOTE_READ}, uint64_t{1} << 63}) {
    EXPECT_EQ(fi_mr_bind(mr.get(), &counter->fid, flags), -FI_EBADFLAGS) << flags;
  }
  EXPECT_EQ(fi_mr_bind(mr.get(), &counter->fid, FI_REMOTE_WRITE), 0);
  EXPECT_EQ(fi_mr_bind(mr.get(), &counter->fid, FI_REMOTE_WRITE), -FI_EINVAL) << "twice";
  counter.reset();
}

TEST_F(EventCall, what_is_bound_is_of_the_same_domain) {
  const Fid<fid_mr> mr = reg();
  Node other(options_of(FI_MR_RMA_EVENT, kEvent));
  const Fid<fid_cntr> foreign = open_counter(other.domain());
  EXPECT_EQ(fi_mr_bind(mr.get(), &foreign->fid, FI_REMOTE_WRITE), -FI_EDOMAIN);
}

TEST_F(EventCall, only_counters_and_endpoints_are_bound) {
  const Fid<fid_mr> mr = reg(), second = reg();
  EXPECT_EQ(fi_mr_bind(mr.get(), &node.cq()->fid, FI_REMOTE_WRITE), -FI_EINVAL);
  EXPECT_EQ(fi_mr_bind(mr.get(), &node.av()->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_mr_bind(mr.get(), &second->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_mr_bind(mr.get(), nullptr, FI_REMOTE_WRITE), -FI_EINVAL);
}

TEST_F(EventCall, nothing_is_bound_where_nothing_would_be_counted) {
  Node silent(options_of(0));
  uint8_t bytes[64];
  const Fid<fid_mr> mr = registered(silent.domain(), bytes, sizeof bytes, kAllAccess, 1);
  const Fid<fid_cntr> there = open_counter(silent.domain());
  EXPECT_EQ(fi_mr_bind(mr.get(), &there->fid, FI_REMOTE_WRITE), -FI_EINVAL);
  const Node listening(options_of(0, kEvent), silent);
  EXPECT_EQ(fi_mr_bind(mr.get(), &there->fid, FI_REMOTE_WRITE), 0)
      << "an endpoint of the domain has the capability now";
}

TEST_F(EventCall, is_not_offered_while_events_are_switched_off) {
  const Fid<fid_mr> mr = reg();
  ::setenv("APERTURE_RMA_EVENT", "off", 1);
  EXPECT_EQ(fi_mr_bind(mr.get(), &counter->fid, FI_REMOTE_WRITE), -FI_ENOSYS);
  ::unsetenv("APERTURE_RMA_EVENT");
  EXPECT_EQ(fi_mr_bind(mr.get(), &counter->fid, FI_REMOTE_WRITE), 0);
  counter.reset();
}

}  // namespace
}  // namespace aperture::doors::mr
