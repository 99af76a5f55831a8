// FI_HMEM: long messages and accesses, of which a driver copies some chunks while others travel.
// docs/adr/0011; fi_mr(3), "FI_MR_HMEM".
//
// Over the stand-in drivers of tests/memory/standin, or real ones: see device_test.cpp. What a
// stand-in's device is told to do slowly is a model of time alone.
#include "doors/device.hpp"

namespace aperture::doors {
namespace {

using test::DeviceKind;

std::vector<uint8_t> bytes_of(size_t n, uint64_t seed) {
  std::vector<uint8_t> bytes(n);
  fill(bytes, seed);
  return bytes;
}

class DeviceChunks : public WithDevices, public testing::TestWithParam<DeviceKind> {
 protected:
  static constexpr size_t kLong = (3 << 20) + 5;
  // Its copies take far longer than all else that a test does.
  static constexpr size_t kSlow = 20, kVerySlow = 2;

  void SetUp() override {
    open(GetParam());
    if (HasFatalFailure()) return;
    p.emplace(hmem(FI_MR_HMEM));
  }
  void TearDown() override {
    p.reset();
    if (devices != nullptr) devices->set_rate(0);
  }
  bool goes_on_by_itself() const { return devices->is_standin() && GetParam() == DeviceKind::cuda; }
  int recv(void* at, size_t len, void* desc, Op& op) {
    return static_cast<int>(fi_recv(p->b.ep(), at, len, desc, FI_ADDR_UNSPEC, &op));
  }
  bool is_done(Node& node, const Op& op) {
    for (const Completion& c : node.done()) {
      if (c.context == &op) return true;
    }
    return false;
  }
  size_t copied() const { return devices->counts().bytes; }

  std::optional<NodePair> p;
};
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceChunks, testing::ValuesIn(test::kDeviceKinds),
                         [](const auto& one) { return std::string(test::name_of(one.param)); });

TEST_P(DeviceChunks, other_operations_go_on_while_a_message_goes_to_its_device) {
  if (!goes_on_by_itself()) GTEST_SKIP() << "no copies that take their time";
  DeviceRegion to(p->b, *devices, kLong);
  Region from(p->a, kLong), little(p->a, 8), there(p->b, 8);
  Op slow, quick, sent;
  ASSERT_EQ(recv(to.at(), kLong, to.desc(), slow), 0);
  devices->set_rate(kVerySlow);
  ASSERT_EQ(p->a.post(fi_send, from.memory().data(), kLong, from.desc(), p->to_b, &sent), 0);
  ASSERT_EQ(p->a.wait(&sent).err, 0);  // all of it is there, or lies in the ring
  ASSERT_EQ(recv(there.memory().data(), 8, there.desc(), quick), 0);
  ASSERT_EQ(p->a.run(fi_send, little.memory().data(), 8, little.desc(), p->to_b), 0);
  ASSERT_TRUE(pump_until([&] { return is_done(p->b, quick); }));
  EXPECT_FALSE(is_done(p->b, slow)) << "which waited for a driver";
  devices->set_rate(0);
  ASSERT_EQ(p->b.wait(&slow).err, 0);
  const auto got = to.get(0, kLong);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), from.memory().data()));
}

TEST_P(DeviceChunks, completions_keep_their_order) {
  DeviceRegion to(p->b, *devices, 2 * kLong);
  Region from(p->a, kLong);
  Op first, second, third;
  ASSERT_EQ(recv(to.at(), kLong, to.desc(), first), 0);
  ASSERT_EQ(recv(to.at(kLong), 8, to.desc(), second), 0);
  ASSERT_EQ(recv(to.at(kLong + 8), kLong - 8, to.desc(), third), 0);
  devices->set_rate(200);
  for (const size_t n : {kLong, size_t{8}, kLong - 8}) {
    ASSERT_EQ(p->a.run(fi_send, from.memory().data(), n, from.desc(), p->to_b), 0);
  }
  for (Op* op : {&first, &second, &third}) {
    const Completion c = p->b.wait_any();
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.context, op);
  }
  const auto got = to.get(kLong + 8, kLong - 8);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), from.memory().data()));
}

TEST_P(DeviceChunks, a_message_is_sent_while_it_leaves_its_device) {
  DeviceRegion from(p->a, *devices, kLong);
  Region into(p->b, kLong);
  from.put(0, bytes_of(kLong, 7));
  into.memory().data()[0] = 0;
  const uint8_t first = bytes_of(1, 7)[0];
  ASSERT_NE(first, 0);
  Op receive, sent;
  ASSERT_EQ(recv(into.memory().data(), kLong, into.desc(), receive), 0);
  const size_t before = copied();
  devices->set_rate(kVerySlow);
  ASSERT_EQ(p->a.post(fi_send, from.at(), kLong, from.desc(), p->to_b, &sent), 0);
  if (goes_on_by_itself()) {
    EXPECT_LT(copied() - before, kLong / 2) << "the call waited for it";
    ASSERT_TRUE(pump_until([&] { return into.memory().data()[0] == first; }));
    EXPECT_LT(copied() - before, kLong) << "all was copied before";
    EXPECT_GE(devices->counts().at_once, 2u);
  }
  devices->set_rate(0);
  ASSERT_EQ(p->b.wait(&receive).err, 0);
  ASSERT_EQ(p->a.wait(&sent).err, 0);
  EXPECT_FALSE(first_difference(into.memory().span(), 7));
}

TEST_P(DeviceChunks, a_message_goes_to_its_device_while_it_comes) {
  DeviceRegion from(p->a, *devices, kLong), to(p->b, *devices, kLong);
  const auto bytes = bytes_of(kLong, 8);
  ASSERT_NE(bytes[0], 0);
  from.put(0, bytes);
  Op receive, sent;
  ASSERT_EQ(recv(to.at(), kLong, to.desc(), receive), 0);
  devices->set_rate(kSlow);
  ASSERT_EQ(p->a.post(fi_send, from.at(), kLong, from.desc(), p->to_b, &sent), 0);
  if (goes_on_by_itself()) {  // out of a device whose last chunk leaves long after the first
    ASSERT_TRUE(pump_until([&] { return to.get(0, 1)[0] == bytes[0]; }));
    EXPECT_FALSE(is_done(p->a, sent)) << "it was copied when all of it had come";
  }
  devices->set_rate(0);
  ASSERT_EQ(p->b.wait(&receive).err, 0);
  ASSERT_EQ(p->a.wait(&sent).err, 0);
  EXPECT_EQ(to.get(0, kLong), bytes);
}

TEST_P(DeviceChunks, a_read_goes_to_its_device_while_it_comes) {
  DeviceRegion here(p->a, *devices, kLong);
  Region target(p->b, kLong, kAllAccess, 3);
  const size_t before = copied();
  devices->set_rate(kSlow);
  Op read;
  ASSERT_EQ(p->a.post(fi_read, here.at(), kLong, here.desc(), p->to_b, target.remote().base,
                      target.remote().key, &read),
            0);
  ASSERT_EQ(p->a.wait(&read).err, 0);
  if (devices->is_standin()) {
    EXPECT_LE(copied() - before, kLong + 1) << "an odd piece may be copied by two rows that meet";
  }
  const auto got = here.get(0, kLong);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), target.memory().data()));
}

TEST_P(DeviceChunks, a_write_goes_on_as_its_bytes_leave_the_device) {
  DeviceRegion here(p->a, *devices, kLong);
  Region target(p->b, kLong, kAllAccess, 3);
  here.put(0, bytes_of(kLong, 9));
  target.memory().data()[0] = 0;
  const uint8_t first = bytes_of(1, 9)[0];
  ASSERT_NE(first, 0);
  const size_t before = copied();
  Op write;
  devices->set_rate(kVerySlow);
  ASSERT_EQ(p->a.post(fi_write, here.at(), kLong, here.desc(), p->to_b, target.remote().base,
                      target.remote().key, &write),
            0);
  if (goes_on_by_itself()) {
    EXPECT_LT(copied() - before, kLong / 2) << "the call waited for it";
    ASSERT_TRUE(pump_until([&] { return target.memory().data()[0] == first; }));
    EXPECT_LT(copied() - before, kLong) << "all was copied before";
  }
  devices->set_rate(0);
  ASSERT_EQ(p->a.wait(&write).err, 0);
  EXPECT_FALSE(first_difference(target.memory().span(), 9));
}

TEST_P(DeviceChunks, a_truncated_message_whose_device_memory_is_gone_is_a_fault) {
  DeviceRegion to(p->b, *devices, 4096);
  Region from(p->a, 8192);
  Op receive;
  ASSERT_EQ(recv(to.at(), 4096, to.desc(), receive), 0);
  ASSERT_TRUE(to.memory().free());
  ASSERT_EQ(p->a.run(fi_send, from.memory().data(), 8192, from.desc(), p->to_b), 0);
  EXPECT_EQ(p->b.wait(&receive).err, FI_EFAULT);
}

TEST_P(DeviceChunks, an_endpoint_that_closes_waits_for_no_more_than_a_chunk) {
  const size_t host_before = devices->counts().allocations;
  {
    DeviceRegion to(p->b, *devices, kLong);
    Region from(p->a, kLong);
    Op receive;
    ASSERT_EQ(recv(to.at(), kLong, to.desc(), receive), 0);
    devices->set_rate(kVerySlow);
    Op sent;
    ASSERT_EQ(p->a.post(fi_send, from.memory().data(), kLong, from.desc(), p->to_b, &sent), 0);
    ASSERT_EQ(p->a.wait(&sent).err, 0);
    if (goes_on_by_itself()) {
      EXPECT_NE(fi_cancel(&p->b.ep()->fid, &receive), 0) << "it is too late for that";
      ASSERT_FALSE(is_done(p->b, receive));
    }
    p->b.close_endpoint();
    if (goes_on_by_itself()) {
      EXPECT_TRUE(p->b.quiet()) << "no completions reported";
    }
    const size_t then = copied();
    pump_for(5);
    EXPECT_EQ(copied(), then) << "it went on after the close";
    EXPECT_EQ(to.close(), 0);
  }
  if (devices->is_standin()) {
    EXPECT_LE(devices->counts().allocations, host_before + 8);
    EXPECT_EQ(devices->counts().loose, 0u);
  }
}

TEST_P(DeviceChunks, whichever_call_of_the_driver_fails_nobody_waits) {
  if (!devices->is_standin()) GTEST_SKIP() << "nothing makes a real one fail";
  const auto bytes = bytes_of(kLong, 9);
  int failures = 0, successes = 0;
  for (size_t nth = 1; nth < 160 && successes < 2; nth += nth < 12 ? 1 : 7) {
    SCOPED_TRACE("call " + std::to_string(nth));
    p.emplace(hmem(FI_MR_HMEM));
    DeviceRegion from(p->a, *devices, kLong), to(p->b, *devices, kLong);
    from.put(0, bytes);
    Op receive, sent;
    ASSERT_EQ(recv(to.at(), kLong, to.desc(), receive), 0);
    devices->fail(nth);
    const int64_t code = p->a.post(fi_send, from.at(), kLong, from.desc(), p->to_b, &sent);
    if (code != 0) {
      devices->fail(0);
      ++failures;
      continue;
    }
    const int of_send = p->a.wait(&sent).err;
    const int of_receive = p->b.wait(&receive).err;
    devices->fail(0);
    EXPECT_TRUE(of_send == 0 || of_send == FI_EFAULT) << of_send;
    if (of_send == FI_EFAULT) {
      EXPECT_NE(of_receive, 0);
    }
    if (of_receive == 0) {
      EXPECT_EQ(to.get(0, kLong), bytes);
    }
    const bool failed = of_send != 0 || of_receive != 0;
    ++(failed ? failures : successes);
    EXPECT_EQ(devices->counts().loose, 0u);
  }
  EXPECT_GT(failures, 5) << "the switch does nothing";
  EXPECT_GT(successes, 0) << "every call fails";
}

}  // namespace
}  // namespace aperture::doors
