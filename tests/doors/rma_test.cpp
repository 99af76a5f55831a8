// FI_RMA through the door: fi_rma(3), fi_mr(3). Writes and reads that are allowed, in scalable and
// in basic mode, over every topology, with CMA allowed and denied, the target polling or not.

#include <algorithm>
#include <cstring>
#include <vector>

#include "doors/rma_setting.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kRegion = 2;

class Rma : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override { duo = open_setting(GetParam()); }
  Duo duo;
};
using RmaAndMessages = Rma;

TEST_P(Rma, write_then_read_back_every_size) {
  for (size_t size : all_sizes()) {
    const Remote remote = duo.second->region_open(kRegion, size + 10, kAllAccess, 3);
    const Completion c = duo.write(size, seed_of(size), remote, 5);
    ASSERT_EQ(c.err, 0) << "write of " << size;
    ASSERT_EQ(c.flags & (FI_RMA | FI_WRITE), FI_RMA | FI_WRITE);
    const Completion back = duo.read(size, remote, 5);
    ASSERT_EQ(back.err, 0) << "read of " << size;
    ASSERT_EQ(back.flags & (FI_RMA | FI_READ), FI_RMA | FI_READ);
    ASSERT_TRUE(duo.first->verify(Duo::kRead, size, seed_of(size))) << size;
  }
  EXPECT_TRUE(duo.first->quiet());
}

TEST_P(Rma, write_fills_the_whole_region_and_nothing_else) {
  for (size_t size : few_sizes()) {
    if (size == 0) continue;
    const Remote remote = duo.second->region_open(kRegion, size, kAllAccess, 3);
    ASSERT_EQ(duo.write(size, seed_of(size), remote).err, 0) << size;
    ASSERT_TRUE(duo.second->region_verify(kRegion, seed_of(size))) << size;
  }
}

TEST_P(Rma, many_outstanding_writes_all_land) {
  constexpr size_t kCount = 200, kPiece = 1000;
  const Remote remote = duo.second->region_open(kRegion, kCount * kPiece, kAllAccess, 3);
  std::vector<uint8_t> whole(kCount * kPiece);
  for (uint32_t i = 0; i < kCount; ++i)
    duo.first->write(100 + i, duo.to_second, kPiece, seed_of(i), remote, i * kPiece);
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(duo.first->wait(100 + i).err, 0) << i;
  ASSERT_EQ(duo.read(kCount * kPiece, remote).err, 0);
  for (uint32_t i = 0; i < kCount; ++i) {
    duo.first->read(100 + i, duo.to_second, kPiece, remote, i * kPiece);
    ASSERT_EQ(duo.first->wait(100 + i).err, 0);
    ASSERT_TRUE(duo.first->verify(100 + i, kPiece, seed_of(i))) << i;
  }
}

TEST_P(RmaAndMessages, messages_and_accesses_of_all_sizes_keep_their_bytes) {
  const Remote remote = duo.second->region_open(kRegion, 8 * kMiB, kAllAccess, 3);
  for (uint32_t round = 0; round < 40; ++round) {
    const size_t size = few_sizes()[seed_of(round) % few_sizes().size()];
    const size_t other = few_sizes()[seed_of(round + 1000) % few_sizes().size()];
    duo.second->receive(10, size);
    duo.first->write(11, duo.to_second, other, seed_of(round), remote, round);
    duo.first->send(12, duo.to_second, size, round + 1);
    duo.first->read(13, duo.to_second, other, remote, round);
    ASSERT_EQ(duo.first->wait(11).err, 0);
    ASSERT_EQ(duo.first->wait(12).err, 0);
    ASSERT_EQ(duo.first->wait(13).err, 0);
    ASSERT_EQ(duo.second->wait(10).err, 0);
    ASSERT_TRUE(duo.second->verify(10, size, round + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, Rma, all_settings(), setting_name);
// messages need a target that takes part
INSTANTIATE_TEST_SUITE_P(Settings, RmaAndMessages,
                         all_settings([](const Setting& s) { return s.target_polls; }),
                         setting_name);

class RmaCall : public testing::TestWithParam<int> {
 protected:
  static Options options() { return {.mr_mode = GetParam(), .cq_data_size = 4}; }
  NodePair p{options()};
};

TEST_P(RmaCall, writemsg_gathers_and_scatters) {
  Region region(p.b, 1000, kAllAccess, 3);
  const Remote& r = region.remote();
  std::vector<uint8_t> out(300);
  fill(out, 11);
  const size_t parts = std::min<size_t>(p.a.info()->tx_attr->iov_limit, 3);
  const size_t rma_parts = std::min<size_t>(p.a.info()->tx_attr->rma_iov_limit, 2);
  std::vector<iovec> iov(parts);
  for (size_t i = 0; i < parts; ++i) iov[i] = {&out[i * 100], 100};
  const size_t total = parts * 100, half = rma_parts == 2 ? total / 2 : total;
  fi_rma_iov rma[2] = {{r.base + 10, half, r.key}, {r.base + 500, total - half, r.key}};
  Op op;
  fi_msg_rma m{iov.data(), nullptr, parts, p.to_b, rma, rma_parts, &op, 0};
  ASSERT_EQ(p.a.run_message(fi_writemsg, &m, FI_COMPLETION), 0);
  EXPECT_EQ(std::memcmp(region.memory().data() + 10, out.data(), half), 0);
  EXPECT_EQ(std::memcmp(region.memory().data() + 500, out.data() + half, total - half), 0);
  EXPECT_TRUE(region.memory().intact());
  // and back
  std::vector<uint8_t> in(300);
  for (size_t i = 0; i < parts; ++i) iov[i] = {&in[i * 100], 100};
  ASSERT_EQ(p.a.run_message(fi_readmsg, &m, FI_COMPLETION), 0);
  EXPECT_EQ(std::memcmp(in.data(), out.data(), total), 0);
}

TEST_P(RmaCall, writev_gathers_and_readv_scatters) {
  Region region(p.b, 200, kAllAccess, 3);
  const Remote& r = region.remote();
  uint8_t out[60], in[60] = {};
  fill(out, 4);
  const size_t parts = std::min<size_t>(p.a.info()->tx_attr->iov_limit, 3);
  iovec iov[3] = {{out, 10}, {out + 10, 20}, {out + 30, 30}};
  iovec back[3] = {{in, 30}, {in + 30, 20}, {in + 50, 10}};
  size_t total = 0;
  for (size_t i = 0; i < parts; ++i) total += iov[i].iov_len;
  Op op;
  const uint64_t at = r.base + 7;
  ASSERT_EQ(p.a.run(fi_writev, iov, nullptr, parts, p.to_b, at, r.key), 0);
  EXPECT_EQ(std::memcmp(region.memory().data() + 7, out, total), 0);
  ASSERT_EQ(post([&] {
              return fi_readv(p.a.ep(), back, nullptr, parts == 3 ? 3 : 1, p.to_b, at, r.key, &op);
            }),
            0);
  ASSERT_EQ(p.a.wait(&op).err, 0);
  EXPECT_EQ(std::memcmp(in, out, 10), 0);
}

TEST_P(RmaCall, inject_write_takes_the_buffer_at_once) {
  Region region(p.b, 65536, kAllAccess, 3);
  const Remote& r = region.remote();
  const size_t limit = std::min<size_t>(p.a.info()->tx_attr->inject_size, 65536);
  std::vector<uint8_t> out(limit);
  for (size_t size : {size_t{0}, size_t{1}, size_t{8}, limit / 2, limit}) {
    fill({out.data(), size}, seed_of(size));
    ASSERT_EQ(p.a.post(fi_inject_write, out.data(), size, p.to_b, r.base, r.key), 0);
    std::fill(out.begin(), out.end(), uint8_t{0xEE});
    ASSERT_TRUE(pump_until([&] {
      return !first_difference({region.memory().data(), size}, seed_of(size));
    })) << size;
  }
  EXPECT_TRUE(p.a.quiet()) << "inject writes no completion";
  EXPECT_LT(fi_inject_write(p.a.ep(), out.data(), p.a.info()->tx_attr->inject_size + 1, p.to_b,
                            r.base, r.key),
            0);
  EXPECT_TRUE(region.memory().intact());
}

TEST_P(RmaCall, writedata_tells_the_target) {
  Region region(p.b, 70000, kAllAccess, 3);
  const Remote& r = region.remote();
  std::vector<uint8_t> out(70000);
  for (size_t size : few_sizes()) {
    if (size > out.size()) break;
    fill({out.data(), size}, seed_of(size));
    ASSERT_EQ(
        p.a.run(fi_writedata, out.data(), size, nullptr, 0xC0FFEE00 + size, p.to_b, r.base, r.key),
        0);
    const Completion c = p.b.wait(nullptr);
    ASSERT_EQ(c.err, 0);
    ASSERT_EQ(c.flags & (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA),
              FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
    ASSERT_EQ(c.data, 0xC0FFEE00 + size);
    ASSERT_FALSE(first_difference({region.memory().data(), size}, seed_of(size)))
        << "the notice came before the data";
  }
  ASSERT_EQ(p.a.post(fi_inject_writedata, out.data(), 8, 0x1234, p.to_b, r.base, r.key), 0);
  EXPECT_EQ(p.b.wait(nullptr).data, 0x1234u);
}

TEST_P(RmaCall, delivery_complete_write_is_in_place_when_it_completes) {
  Region region(p.b, 1 * kMiB, kAllAccess, 3);
  const Remote& r = region.remote();
  for (size_t size : {size_t{8}, size_t{5000}, kMiB}) {
    Guarded out(size, seed_of(size));
    iovec iov{out.data(), size};
    fi_rma_iov rma{r.base, size, r.key};
    Op op;
    fi_msg_rma m{&iov, nullptr, 1, p.to_b, &rma, 1, &op, 0};
    ASSERT_EQ(p.a.run_message(fi_writemsg, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE), 0);
    EXPECT_FALSE(first_difference({region.memory().data(), size}, seed_of(size)));
  }
}

TEST_P(RmaCall, regions_may_overlap_and_be_registered_many_times) {
  std::vector<uint8_t> memory(10000);
  std::vector<Fid<fid_mr>> regions;
  for (uint64_t i = 0; i < 300; ++i) {
    regions.push_back(registered(p.b.domain(), &memory[i], 5000, kAllAccess, 70000 + i));
  }
  for (uint64_t i = 0; i < 300; ++i) {
    uint8_t value = static_cast<uint8_t>(i);
    const uint64_t at = p.b.virtual_addresses() ? reinterpret_cast<uint64_t>(&memory[i]) : 0;
    ASSERT_EQ(p.a.run(fi_write, &value, 1, nullptr, p.to_b, at, fi_mr_key(regions[i].get())), 0);
    ASSERT_EQ(memory[i], value);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RmaCall, testing::Values(0, kBasicMr), kByMrMode);

}  // namespace
}  // namespace aperture::doors
