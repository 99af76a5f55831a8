// FI_RMA_EVENT and remote counters, and writes that bring remote CQ data: what the target of
// remote access hears of it, whoever copied the bytes. fi_getinfo(3), fi_endpoint(3) "fi_ep_bind",
// fi_rma(3), fi_cntr(3).

#include "doors/rma_setting.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kRegion = 1;
constexpr size_t kSize = 1 * kMiB;
const size_t kSizes[] = {0, 1, 8, 256, 257, 5000, 40000, kSize};

Options event_options() {
  return {.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_RMA_EVENT,
          .counters = true,
          .remote_counters = true};
}

class RmaEvent : public testing::TestWithParam<Setting> {
 protected:
  void open(Options options) {
    // an idle target is one that nobody progresses
    if (!GetParam().target_polls && GetParam().progress == FI_PROGRESS_UNSPEC)
      options.threading = FI_THREAD_DOMAIN;
    duo = open_setting(GetParam(), options);
    remote = duo.second->region_open(kRegion, kSize, kAllAccess, 7);
  }
  Completion access(Ask what, uint32_t id, size_t size, uint64_t seed = 1, uint64_t flags = 0,
                    uint64_t data = 0, uint64_t offset = 0) {
    duo.first->ask({.ask = what,
                    .id = id,
                    .addr = duo.to_second,
                    .size = size,
                    .seed = seed,
                    .flags = flags,
                    .data = data,
                    .offset = offset,
                    .remote = remote});
    return duo.first->wait(id);
  }
  Duo duo;
  Remote remote;
};
INSTANTIATE_TEST_SUITE_P(settings, RmaEvent, all_settings(), setting_name);

TEST_P(RmaEvent, every_write_and_read_of_a_peer_counts_once) {
  open(event_options());
  uint32_t id = 100;
  uint64_t n = 0;
  for (int round = 0; round < 2; ++round) {
    for (const size_t size : kSizes) {
      ASSERT_EQ(access(Ask::write, id++, size, seed_of(size)).err, 0);
      ASSERT_EQ(access(Ask::read, id, size).err, 0);
      EXPECT_TRUE(duo.first->verify(id++, size, seed_of(size)));
      ++n;
    }
  }
  EXPECT_TRUE(duo.second->counts_to(FI_REMOTE_WRITE, n));
  EXPECT_TRUE(duo.second->counts_to(FI_REMOTE_READ, n));
  if (GetParam().topology != Topology::self) {
    EXPECT_EQ(duo.first->count(FI_REMOTE_WRITE), 0u);
  }
  EXPECT_TRUE(duo.second->quiet()) << "no entry without data";
}

TEST_P(RmaEvent, refused_accesses_do_not_count) {
  open(event_options());
  if (!GetParam().target_polls) duo.second->progress(true);
  EXPECT_EQ(access(Ask::write, 100, 8, 1, 0, 0, kSize - 7).err, FI_EACCES);
  EXPECT_EQ(access(Ask::write, 101, 100000, 1, 0, 0, 1 + kSize - 100000).err, FI_EACCES);
  EXPECT_EQ(access(Ask::read, 102, 8, 1, 0, 0, kSize - 7).err, FI_EACCES);
  EXPECT_EQ(access(Ask::write, 103, 8, 1, FI_COMPLETION | FI_REMOTE_CQ_DATA, 5, kSize).err,
            FI_EACCES);
  ASSERT_EQ(access(Ask::write, 104, 8, 1).err, 0);
  EXPECT_TRUE(duo.second->counts_to(FI_REMOTE_WRITE, 1));
  EXPECT_TRUE(duo.second->counts_to(FI_REMOTE_READ, 0));
  EXPECT_TRUE(duo.second->quiet()) << "no data of what was refused";
}

TEST_P(RmaEvent, data_of_writes_arrives_once_and_after_the_bytes) {
  for (const bool with_events : {true, false}) {
    Options options = event_options();
    if (!with_events) {
      options.caps &= ~uint64_t{FI_RMA_EVENT};
      options.remote_counters = false;
    }
    options.caps |= FI_SOURCE;
    open(options);
    uint32_t id = 100;
    for (const size_t size : kSizes) {
      const Completion c = access(Ask::write, id++, size, seed_of(size),
                                  FI_COMPLETION | FI_REMOTE_CQ_DATA, 0xABCD000000000000 + size);
      ASSERT_EQ(c.err, 0) << size << ": " << (GetParam().target_polls ? "" : "an idle target");
    }
    for (const size_t size : kSizes) {
      const Reply r = duo.second->wait_any();
      ASSERT_EQ(r.completion.err, 0);
      EXPECT_EQ(r.completion.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
      EXPECT_EQ(r.completion.data, 0xABCD000000000000 + size);
      EXPECT_EQ(r.completion.source, duo.to_first);
    }
    EXPECT_TRUE(duo.second->region_verify(kRegion, seed_of(kSize)));
    if (with_events) {
      EXPECT_TRUE(duo.second->counts_to(FI_REMOTE_WRITE, std::size(kSizes)));
    }
    duo = Duo{};
  }
}

TEST(RmaEventCalls, counters_of_remote_access_need_the_capability) {
  Options options = event_options();
  options.caps &= ~uint64_t{FI_RMA_EVENT};
  EXPECT_THROW(Node{options}, DoorError);
  options.remote_counters = false;
  EXPECT_NO_THROW(Node{options});
}

// Programs bind one counter for all that the receiving side may count, whatever it was opened for.
TEST(RmaEventCalls, a_counter_of_receives_may_name_remote_access_and_does_not_count_it) {
  Options options = event_options();
  options.caps &= ~uint64_t{FI_RMA_EVENT};
  options.counters = options.remote_counters = options.enable = false;
  Node node(options);
  const Fid<fid_cntr> both = open_counter(node.domain());
  EXPECT_EQ(fi_ep_bind(node.ep(), &both->fid, FI_REMOTE_READ | FI_REMOTE_WRITE), -FI_EINVAL);
  ASSERT_EQ(fi_ep_bind(node.ep(), &both->fid, FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE), 0);
  ASSERT_EQ(fi_enable(node.ep()), 0);
  const fi_addr_t self = node.insert(node.name());
  Region region(node, 100);
  uint8_t buf[8] = {};
  ASSERT_EQ(node.run(fi_write, buf, 8, nullptr, self, region.remote().base, region.remote().key),
            0);
  EXPECT_EQ(fi_cntr_read(both.get()), 0u);
  Op received;
  ASSERT_EQ(fi_recv(node.ep(), buf, 8, nullptr, FI_ADDR_UNSPEC, &received), 0);
  uint8_t out[8] = {};
  ASSERT_EQ(node.run(fi_send, out, 8, nullptr, self), 0);
  EXPECT_EQ(node.wait(&received).err, 0);
  EXPECT_EQ(fi_cntr_read(both.get()), 1u);
  node.close_endpoint();
}

TEST(RmaEventCalls, the_capability_is_for_targets) {
  Options options{.caps = FI_MSG | FI_RMA_EVENT};
  EXPECT_THROW(get_info(options), DoorError);
  options.caps = FI_RMA | FI_WRITE | FI_RMA_EVENT;
  EXPECT_THROW(get_info(options), DoorError);
  options.caps = FI_RMA | FI_REMOTE_WRITE | FI_RMA_EVENT;
  EXPECT_NE(get_info(options)->caps & FI_RMA_EVENT, 0u);
  EXPECT_NE(get_info(options)->rx_attr->caps & FI_RMA_EVENT, 0u);
  EXPECT_EQ(get_info(options)->tx_attr->caps & FI_RMA_EVENT, 0u);
  options.caps = FI_MSG | FI_RMA;
  EXPECT_EQ(get_info(options)->caps & FI_RMA_EVENT, 0u) << "it is not free";
}

TEST(RmaEventCalls, one_counter_may_count_everything_and_no_kind_has_two) {
  Options options = event_options();
  options.counters = options.remote_counters = options.enable = false;
  Node node(options);
  const Fid<fid_cntr> all = open_counter(node.domain()), other = open_counter(node.domain());
  constexpr uint64_t kAll =
      FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  EXPECT_EQ(fi_ep_bind(node.ep(), &all->fid, kAll | FI_MULTI_RECV), -FI_EBADFLAGS);
  ASSERT_EQ(fi_ep_bind(node.ep(), &all->fid, kAll), 0);
  EXPECT_EQ(fi_ep_bind(node.ep(), &other->fid, FI_REMOTE_WRITE), -FI_EINVAL);
  EXPECT_EQ(fi_close(&all->fid), -FI_EBUSY);
  ASSERT_EQ(fi_enable(node.ep()), 0);
  const fi_addr_t self = node.insert(node.name());
  Region region(node, 100);
  uint8_t buf[8] = {};
  ASSERT_EQ(node.run(fi_write, buf, 8, nullptr, self, region.remote().base, region.remote().key),
            0);
  EXPECT_TRUE(pump_until([&] { return fi_cntr_read(all.get()) == 2; }, 2000)) << "both ends of it";
  node.close_endpoint();
}

TEST(RmaEventCalls, waiting_on_a_remote_counter_sees_the_bytes) {
  Options options = event_options();
  options.remote_counters = true;
  NodePair p(options);
  Region region(p.b, 4096, kAllAccess, 3);
  std::vector<uint8_t> out(4096);
  for (uint64_t i = 1; i <= 20; ++i) {
    fill(out, seed_of(i));
    ASSERT_EQ(p.a.post(fi_write, out.data(), out.size(), nullptr, p.to_b, region.remote().base,
                       region.remote().key, nullptr),
              0);
    ASSERT_EQ(fi_cntr_wait(p.b.remote_write_cntr(), i, 10000), 0);
    EXPECT_FALSE(first_difference(region.memory().span(), seed_of(i)));
    ASSERT_TRUE(pump_until([&] { return p.a.take(nullptr).has_value(); }));
  }
}

}  // namespace
}  // namespace aperture::doors
