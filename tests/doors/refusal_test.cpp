// Remote access that must be refused; hostile_N is number N of the project's list of hostile
// inputs, over direct and owner-executed access alike. (Number 14 is in atomic_test.cpp.)
//
// The oracle of each case: exactly one completion, with FI_EACCES; the region, its canaries and the
// initiator's buffer unchanged; afterwards both endpoints exchange messages and a proper write.
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "doors/rma_setting.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kRegion = 2;
constexpr uint64_t kSeed = 1234;

class Refusal : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!on_aperture() && std::string(provider_name()) != "sockets")
      GTEST_SKIP() << provider_name() << " does not check remote access";
    duo = open_setting(GetParam());
  }

  // Tries a write and a read of `len` bytes and expects both to be refused.
  void refused(const char* what, const Remote& remote, uint64_t offset, size_t len) {
    SCOPED_TRACE(what);
    write_refused(remote, offset, len);
    read_refused(remote, offset, len);
  }
  void write_refused(const Remote& remote, uint64_t offset, size_t len) {
    EXPECT_EQ(duo.write(len, 99, remote, offset).err, FI_EACCES) << "write";
    EXPECT_TRUE(duo.first->quiet(2)) << "exactly one completion";
  }
  void read_refused(const Remote& remote, uint64_t offset, size_t len) {
    EXPECT_EQ(duo.read(len, remote, offset).err, FI_EACCES) << "read";
    EXPECT_TRUE(duo.first->quiet(2)) << "exactly one completion";
    EXPECT_TRUE(duo.first->untouched(Duo::kRead))
        << "the refused read wrote into the initiator's buffer";
  }

  // Both endpoints live: a message each way and a proper write.
  void alive() {
    EXPECT_TRUE(duo.first->quiet(20));
    duo.second->progress(true);
    duo.second->receive(50, 100);
    duo.first->send(51, duo.to_second, 100, 7);
    ASSERT_EQ(duo.second->wait(50).err, 0);
    ASSERT_EQ(duo.first->wait(51).err, 0);
    duo.first->receive(52, 100000);
    duo.second->send(53, duo.to_first, 100000, 8);
    ASSERT_EQ(duo.first->wait(52).err, 0);
    ASSERT_EQ(duo.second->wait(53).err, 0);
    ASSERT_TRUE(duo.first->verify(52, 100000, 8));
    for (size_t size : {size_t{8}, size_t{200000}}) {
      const Remote remote = duo.second->region_open(54, size, kAllAccess, 1);
      duo.first->write(55, duo.to_second, size, 9, remote);
      ASSERT_EQ(duo.first->wait(55).err, 0);
      ASSERT_TRUE(duo.second->region_verify(54, 9));
    }
    if (!GetParam().target_polls) duo.second->progress(false);
  }

  bool basic() const { return (GetParam().mr_mode & FI_MR_VIRT_ADDR) != 0; }
  static constexpr size_t kSizes[] = {64, 4096, 300000};
  Duo duo;
};
using RefusalAcrossDomains = Refusal;

TEST_P(Refusal, a_bad_key_is_refused) {
  for (size_t size : kSizes) {
    Remote remote = duo.second->region_open(kRegion, size, kAllAccess, kSeed);
    for (int bit : {0, 1, 7, 8, 15, 24, 31}) {
      Remote bad = remote;
      bad.key ^= 1ull << bit;
      if (!basic() && bit < 20) bad.key ^= 1ull << 30;  // small keys of ours lie close together
      refused("one bit of the key differs", bad, 0, size);
    }
    Remote none = remote;
    none.key = 0;
    refused("key 0", none, 0, size);
    none.key = ~0ull;
    refused("key of all ones", none, 0, size);
    EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
  }
  alive();
}

TEST_P(Refusal, hostile_9_one_byte_outside_is_refused) {  // [9]
  for (size_t size : kSizes) {
    const Remote remote = duo.second->region_open(kRegion, size, kAllAccess, kSeed);
    refused("one byte before the start", remote, ~0ull, 1);
    refused("one byte too long at the start", remote, ~0ull, size);
    refused("the byte after the end", remote, size, 1);
    refused("one byte too long", remote, 0, size + 1);
    refused("the last byte and one more", remote, size - 1, 2);
    refused("shifted by one", remote, 1, size);
    refused("a page further", remote, size + 4096, 8);
    EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
  }
  alive();
}

TEST_P(Refusal, hostile_10_a_range_that_wraps) {  // [10]
  const Remote remote = duo.second->region_open(kRegion, 4096, kAllAccess, kSeed);
  for (uint64_t back : {1ull, 4ull, 4096ull}) {
    Remote wrapped = remote;
    wrapped.base = 0;
    refused("offset + length wraps", wrapped, 0 - back, 8 + back);
  }
  Remote high = remote;
  high.base += 1ull << 63;
  refused("the top bit of the address", high, 0, 8);
  EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
  alive();
}

TEST_P(Refusal, hostile_12_the_wrong_kind_of_address_is_refused) {  // [12]
  const Remote remote = duo.second->region_open(kRegion, 4096, kAllAccess, kSeed);
  Remote mixed = remote;
  mixed.base = basic() ? 0 : 0x7f0000001000ull;
  refused("zero-based and virtual mixed", mixed, 0, 8);
  EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
  alive();
}

TEST_P(Refusal, hostile_8_a_right_that_was_not_given_is_refused) {  // [8]
  for (size_t size : kSizes) {
    Remote remote = duo.second->region_open(kRegion, size, FI_REMOTE_READ, kSeed);
    write_refused(remote, 0, size);
    EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed)) << "a read-only region was written";
    EXPECT_EQ(duo.read(size, remote).err, 0) << "what it does allow";

    remote = duo.second->region_open(kRegion + 1, size, FI_REMOTE_WRITE, kSeed);
    read_refused(remote, 0, size);
    EXPECT_EQ(duo.write(size, 4, remote).err, 0) << "what it does allow";
    EXPECT_TRUE(duo.second->region_verify(kRegion + 1, 4));

    remote =
        duo.second->region_open(kRegion + 2, size, FI_READ | FI_WRITE | FI_SEND | FI_RECV, kSeed);
    refused("a region for local use", remote, 0, size);
    EXPECT_TRUE(duo.second->region_verify(kRegion + 2, kSeed));
  }
  alive();
}

TEST_P(Refusal, hostile_7_the_key_of_another_domain_is_refused) {  // [7]
  for (size_t size : kSizes) {
    const Remote remote = duo.second->region_open_elsewhere(kRegion, size, kAllAccess, kSeed);
    refused("a region of the same process, in another domain", remote, 0, size);
    EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
  }
  alive();
}

TEST_P(RefusalAcrossDomains, hostile_3_a_key_of_the_initiator_is_refused) {  // [3]
  const Remote own = duo.first->region_open(kRegion, 4096, kAllAccess, kSeed);
  refused("the initiator's own key", own, 0, 4096);
  EXPECT_TRUE(duo.first->region_verify(kRegion, kSeed));
  alive();
}

TEST_P(Refusal, hostile_15_a_closed_region_is_refused) {  // [15]
  for (size_t size : kSizes) {
    const Remote closed = duo.second->region_open(kRegion, size, kAllAccess, kSeed);
    ASSERT_EQ(duo.write(size, 5, closed).err, 0) << "while it is open";
    duo.second->region_close(kRegion);
    refused("after close", closed, 0, size);
    EXPECT_TRUE(duo.second->region_verify(kRegion, 5)) << "written after close";
    const Remote again = duo.second->region_open(kRegion + 1, size, kAllAccess, kSeed);
    if (basic()) {
      EXPECT_NE(again.key, closed.key);
    }
    refused("with another region open", closed, 0, size);
    EXPECT_TRUE(duo.second->region_verify(kRegion + 1, kSeed));
  }
  alive();
}

TEST_P(Refusal, hostile_13_zero_bytes_need_a_good_key_too) {  // [13]
  const Remote remote = duo.second->region_open(kRegion, 64, kAllAccess, kSeed);
  EXPECT_EQ(duo.write(0, 5, remote).err, 0);
  EXPECT_EQ(duo.read(0, remote, 64).err, 0) << "zero bytes at the very end are inside";
  if (on_aperture()) {
    Remote bad = remote;
    bad.key ^= 1ull << 30;
    refused("zero bytes with a bad key", bad, 0, 0);
    refused("zero bytes outside", remote, 65, 0);
  }
  EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
  alive();
}

INSTANTIATE_TEST_SUITE_P(Settings, Refusal, all_settings(), setting_name);
// in one domain a key of the initiator is one of the target
INSTANTIATE_TEST_SUITE_P(Settings, RefusalAcrossDomains, all_settings([](const Setting& s) {
                           return s.topology != Topology::self &&
                                  s.topology != Topology::one_domain;
                         }),
                         setting_name);

// Cases that need more than one write and one read; two domains of one process, or a child.
class RefusalCall : public testing::TestWithParam<int> {
 protected:
  static Options options() { return {.mr_mode = GetParam(), .cq_data_size = 4}; }
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << "other providers do not check";
  }
  NodePair p{options()};
};
using ProviderKeys = RefusalCall;

TEST_P(RefusalCall, hostile_11_very_long_lengths_are_refused) {  // [11]
  Region region(p.b, 4096, kAllAccess, kSeed);
  constexpr size_t kRoom = (1ull << 32) + 8192;
  void* room = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  const Remote& r = region.remote();
  for (size_t len : {(1ull << 31), (1ull << 32) - 1, (1ull << 32), (1ull << 32) + 8, (1ull << 63),
                     (1ull << 63) + 8, ~0ull - 7, ~0ull}) {
    for (bool writing : {true, false}) {
      Op op;
      const int64_t posted = post([&] {
        return writing ? fi_write(p.a.ep(), room, len, nullptr, p.to_b, r.base, r.key, &op)
                       : fi_read(p.a.ep(), room, len, nullptr, p.to_b, r.base, r.key, &op);
      });
      if (posted == 0) {
        EXPECT_EQ(p.a.wait(&op).err, FI_EACCES) << len;
      } else {
        EXPECT_EQ(posted, -FI_EMSGSIZE) << len;
        EXPECT_GT(len, p.a.info()->ep_attr->max_msg_size);
      }
      EXPECT_TRUE(p.a.quiet(2));
    }
  }
  EXPECT_FALSE(first_difference(region.memory().span(), kSeed));
  EXPECT_TRUE(region.memory().intact());
  munmap(room, kRoom);
}

TEST_P(RefusalCall, hostile_16_one_bad_part_of_a_list_changes_nothing) {
  const size_t limit = p.a.info()->tx_attr->rma_iov_limit;
  if (limit < 2 && !on_aperture()) GTEST_SKIP() << "one remote part only";
  ASSERT_GE(limit, 2u);
  Region good(p.b, 4096, kAllAccess, kSeed), read_only(p.b, 4096, FI_REMOTE_READ, kSeed);
  std::vector<uint8_t> out(8192, 0xAA);
  iovec iov{out.data(), out.size()};
  const fi_rma_iov part{good.remote().base, 4096, good.remote().key};
  const fi_rma_iov wrong_right{read_only.remote().base, 4096, read_only.remote().key};
  fi_rma_iov outside = part;
  outside.addr += 1;
  for (const fi_rma_iov& bad : {wrong_right, outside}) {
    for (bool last : {true, false}) {
      fi_rma_iov rma[2] = {last ? part : bad, last ? bad : part};
      Op op;
      fi_msg_rma m{&iov, nullptr, 1, p.to_b, rma, 2, &op, 0};
      ASSERT_EQ(p.a.run_message(fi_writemsg, &m, FI_COMPLETION), FI_EACCES);
      EXPECT_TRUE(p.a.quiet());
      EXPECT_FALSE(first_difference(read_only.memory().span(), kSeed));
      EXPECT_FALSE(first_difference(good.memory().span(), kSeed)) << "the good part was written";
    }
  }
}

TEST_P(RefusalCall, a_refused_inject_still_gives_one_error) {
  Region region(p.b, 64, kAllAccess, kSeed);
  const uint64_t bad = region.remote().key ^ (1ull << 30);
  ASSERT_EQ(p.a.post(fi_inject_write, "12345678", 8, p.to_b, region.remote().base, bad), 0);
  EXPECT_EQ(p.a.wait_any().err, FI_EACCES);
  EXPECT_TRUE(p.a.quiet());
  EXPECT_FALSE(first_difference(region.memory().span(), kSeed));
}

TEST_P(RefusalCall, a_refused_write_with_data_tells_the_target_nothing) {
  Region region(p.b, 64, FI_REMOTE_READ, kSeed);
  ASSERT_EQ(p.a.run(fi_writedata, "12345678", 8, nullptr, 5, p.to_b, region.remote().base,
                    region.remote().key),
            FI_EACCES);
  EXPECT_TRUE(p.b.quiet()) << "a notice of a write that did not happen";
}

TEST_P(RefusalCall, refusals_between_good_operations_hurt_only_themselves) {
  Region region(p.b, 4096, kAllAccess, kSeed);
  const Remote& r = region.remote();
  constexpr int kCount = 300;
  std::vector<uint8_t> out(kCount);
  std::vector<Op> ops(kCount);
  for (int i = 0; i < kCount; ++i) {
    out[i] = static_cast<uint8_t>(i);
    const bool bad = i % 3 == 1;
    ASSERT_EQ(post([&] {
                return fi_write(p.a.ep(), &out[i], 1, nullptr, p.to_b, r.base + (bad ? 4096 : i),
                                r.key, &ops[i]);
              }),
              0);
  }
  for (int i = 0; i < kCount; ++i)
    ASSERT_EQ(p.a.wait(&ops[i]).err, i % 3 == 1 ? FI_EACCES : 0) << i;
  for (int i = 0; i < kCount; ++i) {
    if (i % 3 == 1) continue;
    ASSERT_EQ(region.memory().data()[i], static_cast<uint8_t>(i));
  }
  EXPECT_TRUE(region.memory().intact());
}

TEST_P(RefusalCall, an_error_counts_in_the_error_counter_once) {
  Options with_counters = options();
  with_counters.counters = true;
  Node a(with_counters);
  const fi_addr_t to_b = a.insert(p.b.name());
  Region region(p.b, 64, FI_REMOTE_READ, kSeed);
  ASSERT_EQ(a.run(fi_write, "1", 1, nullptr, to_b, region.remote().base, region.remote().key),
            FI_EACCES);
  EXPECT_EQ(fi_cntr_readerr(a.tx_cntr()), 1u);
  EXPECT_EQ(fi_cntr_read(a.tx_cntr()), 0u);
}

TEST_P(ProviderKeys, are_not_neighbours) {
  std::vector<uint8_t> memory(4096);
  std::vector<uint64_t> keys;
  for (int i = 0; i < 2000; ++i) {
    keys.push_back(fi_mr_key(registered(p.b.domain(), memory.data(), 4096, kAllAccess, 0).get()));
  }
  std::vector<uint64_t> sorted = keys, deltas;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end()) << "a key came twice";
  for (size_t i = 1; i < keys.size(); ++i) deltas.push_back(keys[i] - keys[i - 1]);
  std::sort(deltas.begin(), deltas.end());
  EXPECT_EQ(std::adjacent_find(deltas.begin(), deltas.end()), deltas.end())
      << "the step between two keys came twice";
}

INSTANTIATE_TEST_SUITE_P(Modes, RefusalCall, testing::Values(0, kBasicMr), kByMrMode);
// in the other mode the application chooses the keys
INSTANTIATE_TEST_SUITE_P(Modes, ProviderKeys, testing::Values(kBasicMr), kByMrMode);

}  // namespace
}  // namespace aperture::doors
