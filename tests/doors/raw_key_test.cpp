// Raw keys (FI_MR_RAW): 16 bytes that are a capability, mapped by the peer before use. man 3 fi_mr,
// "FI_MR_RAW", "fi_mr_raw_attr", "fi_mr_map_raw", "fi_mr_unmap_key".
#include <rdma/fi_atomic.h>

#include <algorithm>

#include "doors/rma_setting.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kRegion = 2;
constexpr uint64_t kSeed = 4321;

uint64_t map_raw(fid_domain* domain, const uint8_t* raw, size_t size = 16) {
  uint8_t copy[16];
  std::memcpy(copy, raw, sizeof copy);
  uint64_t key = 0;
  DOOR(fi_mr_map_raw(domain, 0, copy, size, &key, 0));
  return key;
}

// The initiator is here; the target in the same domain, in another, or in another process.
class RawKey : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << provider_name() << " has no raw keys";
    duo = open_setting(GetParam(), {.caps = kUsualCaps | FI_ATOMIC});
  }
  void TearDown() override {
    for (const uint64_t key : mapped) EXPECT_EQ(fi_mr_unmap_key(domain(), key), 0);
  }
  fid_domain* domain() { return duo.first->node()->domain(); }

  Remote open_region(uint32_t id, size_t size, uint64_t access = kAllAccess) {
    return duo.second->region_open(id, size, access, kSeed);
  }
  // As the initiator names it.
  Remote map(Remote remote) {
    remote.key = map_raw(domain(), remote.raw);
    mapped.push_back(remote.key);
    return remote;
  }
  void unmap(const Remote& remote) {
    EXPECT_EQ(fi_mr_unmap_key(domain(), remote.key), 0);
    std::erase(mapped, remote.key);
  }
  void expect_reach(const Remote& remote) {
    EXPECT_EQ(duo.write(remote.size, 99, remote).err, 0);
    EXPECT_EQ(duo.read(remote.size, remote).err, 0);
    EXPECT_TRUE(duo.first->verify(Duo::kRead, remote.size, 99));
  }
  // Accepted by the call, refused by the owner.
  void expect_refused(const Remote& remote) {
    EXPECT_EQ(duo.write(remote.size, 99, remote).err, FI_EACCES);
    EXPECT_TRUE(duo.first->quiet(2)) << "exactly one completion";
    EXPECT_EQ(duo.read(remote.size, remote).err, FI_EACCES);
    EXPECT_TRUE(duo.first->quiet(2)) << "exactly one completion";
    EXPECT_TRUE(duo.first->untouched(Duo::kRead));
  }
  void expect_not_posted(uint64_t key, uint64_t addr) {
    fid_ep* ep = duo.first->node()->ep();
    const fi_addr_t to = duo.to_second;
    char memory[16] = {};
    uint64_t one = 1, old = 0;
    Op op;
    EXPECT_EQ(post(fi_write, ep, memory, 8, nullptr, to, addr, key, &op), -FI_ENOKEY);
    EXPECT_EQ(post(fi_read, ep, memory, 8, nullptr, to, addr, key, &op), -FI_ENOKEY);
    EXPECT_EQ(post(fi_inject_write, ep, memory, 8, to, addr, key), -FI_ENOKEY);
    EXPECT_EQ(post(fi_atomic, ep, &one, 1, nullptr, to, addr, key, FI_UINT64, FI_SUM, &op),
              -FI_ENOKEY);
    EXPECT_EQ(post(fi_fetch_atomic, ep, &one, 1, nullptr, &old, nullptr, to, addr, key, FI_UINT64,
                   FI_SUM, &op),
              -FI_ENOKEY);
    EXPECT_TRUE(duo.first->quiet(2)) << "no completion";
  }

  static constexpr size_t kSizes[] = {8, 64, 4096, 300000};
  Duo duo;
  std::vector<uint64_t> mapped;
};

TEST_P(RawKey, a_mapped_key_reaches_its_region) {
  for (const size_t size : kSizes) expect_reach(map(open_region(kRegion, size)));
}

TEST_P(RawKey, a_value_that_was_not_mapped_is_refused) {
  const Remote remote = open_region(kRegion, 4096);
  uint64_t halves[2];
  std::memcpy(halves, remote.raw, sizeof halves);
  EXPECT_EQ(remote.key, FI_KEY_NOTAVAIL) << "fi_mr_key of the owner";
  for (const uint64_t value :
       {halves[0], halves[1], remote.key, uint64_t{0}, uint64_t{1}, map(remote).key ^ 1}) {
    expect_not_posted(value, remote.base);
  }
  EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
}

TEST_P(RawKey, a_value_that_was_mapped_in_another_domain_is_refused) {
  const Remote remote = open_region(kRegion, 4096);
  Node other({.caps = kUsualCaps | FI_ATOMIC, .mr_mode = FI_MR_RAW});
  const uint64_t elsewhere = map_raw(other.domain(), remote.raw);
  expect_not_posted(elsewhere, remote.base);
  EXPECT_EQ(fi_mr_unmap_key(domain(), elsewhere), -FI_EINVAL) << "it is not mapped here";
  const Remote here = map(remote);
  EXPECT_EQ(fi_mr_unmap_key(other.domain(), here.key), -FI_EINVAL) << "nor that there";
  expect_reach(here);
  EXPECT_EQ(fi_mr_unmap_key(other.domain(), elsewhere), 0);
  expect_reach(here);
}

TEST_P(RawKey, an_unmapped_value_is_refused) {
  const Remote remote = map(open_region(kRegion, 4096));
  const Remote again = map(remote);
  EXPECT_NE(remote.key, again.key);
  expect_reach(remote);
  unmap(remote);
  expect_not_posted(remote.key, remote.base);
  expect_reach(again);
  EXPECT_EQ(fi_mr_unmap_key(domain(), remote.key), -FI_EINVAL);
}

TEST_P(RawKey, a_right_key_with_a_wrong_secret_is_refused_by_the_owner) {
  for (const size_t size : kSizes) {
    const Remote good = open_region(kRegion, size);
    for (const int bit : {0, 63, 64, 100, 127}) {
      Remote wrong = good;
      wrong.raw[bit / 8] = static_cast<uint8_t>(wrong.raw[bit / 8] ^ (1 << bit % 8));
      expect_refused(map(wrong));
    }
    Remote half = good;
    std::fill(half.raw + 8, half.raw + 16, uint8_t{0});
    expect_refused(map(half));
    Remote short_key = good;
    short_key.key = map_raw(domain(), good.raw, 8);  // the first half, as if that were the key
    mapped.push_back(short_key.key);
    expect_refused(short_key);
    EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed));
    expect_reach(map(good));
  }
}

TEST_P(RawKey, a_closed_region_is_refused) {
  const Remote remote = map(open_region(kRegion, 4096));
  duo.second->region_close(kRegion);
  expect_refused(remote);
}

TEST_P(RawKey, atomics_need_it_too) {
  const Remote good = map(open_region(kRegion, 4096));
  Remote wrong = good;
  wrong.raw[15] ^= 1;
  wrong = map(wrong);
  fid_ep* ep = duo.first->node()->ep();
  Node& node = *duo.first->node();
  uint64_t value = 40, old = 0, cmp = 42;
  Op op;
  const auto fetch = [&](const Remote& r, fi_op what) {
    return post(fi_fetch_atomic, ep, &value, 1, nullptr, &old, nullptr, duo.to_second, r.base,
                r.key, FI_UINT64, what, &op);
  };
  ASSERT_EQ(fetch(good, FI_ATOMIC_WRITE), 0);
  ASSERT_EQ(node.wait(&op).err, 0);
  value = 2;
  ASSERT_EQ(fetch(wrong, FI_SUM), 0);
  EXPECT_EQ(node.wait(&op).err, FI_EACCES);
  ASSERT_EQ(fetch(good, FI_SUM), 0);
  ASSERT_EQ(node.wait(&op).err, 0);
  EXPECT_EQ(old, 40u);
  value = 7;
  ASSERT_EQ(node.run_at(ep, fi_compare_atomic, &value, 1, nullptr, &cmp, nullptr, &old, nullptr,
                        duo.to_second, good.base, good.key, FI_UINT64, FI_CSWAP),
            0);
  EXPECT_EQ(old, 42u);

  // several ranges: each shows its own
  uint64_t two[2] = {1, 1};
  fi_ioc operand{two, 2};
  fi_rma_ioc ranges[2] = {{good.base, 1, good.key}, {good.base + 64, 1, wrong.key}};
  fi_msg_atomic message{&operand, nullptr, 1, duo.to_second, ranges, 2, FI_UINT64, FI_SUM, &op, 0};
  ASSERT_EQ(post(fi_atomicmsg, ep, &message, 0), 0);
  EXPECT_EQ(node.wait(&op).err, FI_EACCES);
  ranges[1] = {good.base + 64, 1, map(good).key};
  ASSERT_EQ(post(fi_atomicmsg, ep, &message, 0), 0);
  EXPECT_EQ(node.wait(&op).err, 0);
  value = 0;
  ASSERT_EQ(fetch(good, FI_ATOMIC_READ), 0);
  ASSERT_EQ(node.wait(&op).err, 0);
  EXPECT_EQ(old, 8u) << "what was refused has changed nothing";
}

TEST_P(RawKey, several_ranges_show_a_key_each) {
  const Remote first = map(open_region(kRegion, 100000));
  const Remote second = map(open_region(kRegion + 1, 100000));
  Remote wrong = second;
  wrong.raw[8] ^= 1;
  wrong = map(wrong);
  fid_ep* ep = duo.first->node()->ep();
  Node& node = *duo.first->node();
  for (const size_t half : {size_t{8}, size_t{100000}}) {
    std::vector<uint8_t> memory(2 * half, 0x77);
    iovec iov{memory.data(), memory.size()};
    fi_rma_iov ranges[2] = {{first.base, half, first.key}, {wrong.base, half, wrong.key}};
    Op op;
    fi_msg_rma message{&iov, nullptr, 1, duo.to_second, ranges, 2, &op, 0};
    ASSERT_EQ(post(fi_writemsg, ep, &message, 0), 0);
    EXPECT_EQ(node.wait(&op).err, FI_EACCES);
    EXPECT_TRUE(duo.second->region_verify(kRegion, kSeed)) << "all ranges, or none";
    EXPECT_TRUE(duo.second->region_verify(kRegion + 1, kSeed));
  }
  std::vector<uint8_t> memory(200, 0x77);
  iovec iov{memory.data(), memory.size()};
  fi_rma_iov ranges[2] = {{first.base, 100, first.key}, {second.base, 100, second.key}};
  Op op;
  fi_msg_rma message{&iov, nullptr, 1, duo.to_second, ranges, 2, &op, 0};
  ASSERT_EQ(post(fi_writemsg, ep, &message, 0), 0);
  EXPECT_EQ(node.wait(&op).err, 0);
  std::vector<uint8_t> back(200);
  iov.iov_base = back.data();
  ASSERT_EQ(post(fi_readmsg, ep, &message, 0), 0);
  EXPECT_EQ(node.wait(&op).err, 0);
  EXPECT_EQ(back, memory);
}

INSTANTIATE_TEST_SUITE_P(
    settings, RawKey,
    testing::Values(Setting{"self", Topology::self, FI_MR_RAW},
                    Setting{"one_domain", Topology::one_domain, FI_MR_RAW},
                    Setting{"two_domains", Topology::two_domains, FI_MR_RAW | FI_MR_VIRT_ADDR},
                    Setting{"processes", Topology::two_processes, FI_MR_RAW},
                    Setting{"processes_verbs_like", Topology::two_processes, FI_MR_RAW | kBasicMr},
                    Setting{"processes_denied", Topology::two_processes, FI_MR_RAW | FI_MR_PROV_KEY,
                            Reach::denied},
                    Setting{"processes_idle", Topology::two_processes, FI_MR_RAW, Reach::direct,
                            false, FI_PROGRESS_AUTO},
                    Setting{"processes_other_user", Topology::two_processes, FI_MR_RAW,
                            Reach::other_user}),
    setting_name);

// --- the calls ---

class RawKeyCall : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << provider_name() << " has no raw keys";
  }
  static Options raw(int mr_mode = FI_MR_RAW) { return {.mr_mode = mr_mode}; }
};

TEST_F(RawKeyCall, mr_key_size_tells_the_size) {
  EXPECT_EQ(get_info(raw())->domain_attr->mr_key_size, 16u);
  EXPECT_EQ(get_info(raw(0))->domain_attr->mr_key_size, 8u);
}

TEST_F(RawKeyCall, raw_attr_gives_key_and_base_or_the_size_that_is_needed) {
  for (const bool is_raw : {true, false}) {
    for (const int addressing : {0, int{FI_MR_VIRT_ADDR}}) {
      Node node(raw((is_raw ? FI_MR_RAW : 0) | addressing));
      Region region(node, 64);
      EXPECT_EQ(fi_mr_key(region.mr()) == FI_KEY_NOTAVAIL, is_raw);
      const size_t needed = is_raw ? 16 : 8;
      uint8_t key[32];
      for (size_t room = 0; room < needed; ++room) {
        uint64_t base = 77;
        size_t size = room;
        std::fill(std::begin(key), std::end(key), uint8_t{0xEE});
        EXPECT_EQ(fi_mr_raw_attr(region.mr(), &base, key, &size, 0), -FI_ETOOSMALL) << room;
        EXPECT_EQ(size, needed);
        EXPECT_EQ(base, 77u) << "outputs on success only";
        EXPECT_EQ(std::count(std::begin(key), std::end(key), uint8_t{0xEE}), 32);
      }
      uint64_t base = 77;
      size_t size = sizeof key;
      ASSERT_EQ(fi_mr_raw_attr(region.mr(), &base, key, &size, 0), 0);
      EXPECT_EQ(size, needed);
      EXPECT_EQ(base, addressing != 0 ? reinterpret_cast<uint64_t>(region.memory().data()) : 0u);
      EXPECT_EQ(key[needed], 0xEE) << "nothing behind it";
      EXPECT_EQ(fi_mr_raw_attr(region.mr(), nullptr, key, &size, 0), 0);
      EXPECT_EQ(fi_mr_raw_attr(region.mr(), &base, key, nullptr, 0), -FI_EINVAL);
      EXPECT_EQ(fi_mr_raw_attr(region.mr(), &base, key, &size, 1), -FI_EBADFLAGS);
    }
  }
}

TEST_F(RawKeyCall, keys_are_not_alike) {
  Node node(raw());
  std::vector<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    Region region(node, 64);
    secrets.emplace_back(reinterpret_cast<const char*>(region.remote().raw) + 8, 8);
  }
  std::sort(secrets.begin(), secrets.end());
  EXPECT_EQ(std::adjacent_find(secrets.begin(), secrets.end()), secrets.end());
  EXPECT_NE(secrets.front(), std::string(8, '\0'));
}

TEST_F(RawKeyCall, mapping_refuses_what_is_no_key) {
  for (const bool is_raw : {true, false}) {
    Node node(raw(is_raw ? FI_MR_RAW : 0));
    uint8_t bytes[32] = {1, 2, 3};
    uint64_t key = 77;
    for (const size_t size : {0, 1, 7, 9, 15, 17, 32}) {
      EXPECT_EQ(fi_mr_map_raw(node.domain(), 0, bytes, size, &key, 0), -FI_EINVAL) << size;
    }
    if (!is_raw) {
      EXPECT_EQ(fi_mr_map_raw(node.domain(), 0, bytes, 16, &key, 0), -FI_EINVAL);
    }
    EXPECT_EQ(fi_mr_map_raw(node.domain(), 0, nullptr, 8, &key, 0), -FI_EINVAL);
    EXPECT_EQ(fi_mr_map_raw(node.domain(), 0, bytes, 8, nullptr, 0), -FI_EINVAL);
    EXPECT_EQ(fi_mr_map_raw(node.domain(), 0, bytes, 8, &key, 1), -FI_EBADFLAGS);
    EXPECT_EQ(key, 77u);
    EXPECT_EQ(fi_mr_unmap_key(node.domain(), 77), -FI_EINVAL);
  }
}

TEST_F(RawKeyCall, a_domain_waits_for_its_mapped_keys) {
  for (const bool is_raw : {true, false}) {
    Info info = get_info(raw(is_raw ? FI_MR_RAW : 0));
    fid_fabric* fabric = nullptr;
    DOOR(fi_fabric(info->fabric_attr, &fabric, nullptr));
    fid_domain* domain = DOOR_MADE(fi_domain, fabric, info.get()).release();
    const uint8_t bytes[16] = {1, 2, 3};
    const size_t size = is_raw ? 16 : 8;
    const uint64_t first = map_raw(domain, bytes, size);
    const uint64_t second = map_raw(domain, bytes, size);
    EXPECT_EQ(first == second, !is_raw);
    EXPECT_EQ(fi_close(&domain->fid), -FI_EBUSY);
    EXPECT_EQ(fi_mr_unmap_key(domain, first), 0);
    EXPECT_EQ(fi_close(&domain->fid), -FI_EBUSY) << "each is freed by itself";
    EXPECT_EQ(fi_mr_unmap_key(domain, second), 0);
    EXPECT_EQ(fi_mr_unmap_key(domain, second), -FI_EINVAL);
    EXPECT_EQ(fi_close(&domain->fid), 0);
    EXPECT_EQ(fi_close(&fabric->fid), 0);
  }
}

TEST_F(RawKeyCall, without_the_bit_a_key_can_be_used_mapped_or_not) {
  NodePair p(raw(0));
  Region region(p.b, 64);
  uint8_t bytes[16] = {};
  uint64_t base = 0;
  size_t size = sizeof bytes;
  ASSERT_EQ(fi_mr_raw_attr(region.mr(), &base, bytes, &size, 0), 0);
  EXPECT_EQ(size, 8u);
  const uint64_t key = map_raw(p.a.domain(), bytes, 8);
  EXPECT_EQ(key, fi_mr_key(region.mr()));
  Op op;
  const auto write = [&] {
    return p.a.post(fi_write, "12345678", 8, nullptr, p.to_b, base, key, &op);
  };
  ASSERT_EQ(write(), 0);
  EXPECT_EQ(p.a.wait(&op).err, 0);
  EXPECT_EQ(fi_mr_unmap_key(p.a.domain(), key), 0);
  ASSERT_EQ(write(), 0);
  EXPECT_EQ(p.a.wait(&op).err, 0);
}

TEST_F(RawKeyCall, a_domain_with_raw_keys_reaches_regions_of_one_without) {
  Node with(raw());
  Node without(raw(0));
  const fi_addr_t to = with.insert(without.name());
  without.insert(with.name());
  Region region(without, 64);
  uint8_t bytes[16] = {};
  uint64_t base = 0;
  size_t size = sizeof bytes;
  ASSERT_EQ(fi_mr_raw_attr(region.mr(), &base, bytes, &size, 0), 0);
  Op op;
  const auto write = [&](uint64_t key) {
    return with.post(fi_write, "12345678", 8, nullptr, to, base, key, &op);
  };
  EXPECT_EQ(write(fi_mr_key(region.mr())), -FI_ENOKEY);
  const uint64_t key = map_raw(with.domain(), bytes, size);
  ASSERT_EQ(write(key), 0);
  EXPECT_EQ(with.wait(&op).err, 0);
  EXPECT_EQ(fi_mr_unmap_key(with.domain(), key), 0);
}

}  // namespace
}  // namespace aperture::doors
