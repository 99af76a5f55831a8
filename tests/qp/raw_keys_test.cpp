// Raw keys between two queue pairs: every request that names a key carries its second half, who
// shows a wrong one is refused once and changes nothing, and what is unmapped is shown no more.
#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

constexpr auto kAll = Rights::remote_read | Rights::remote_write | Rights::remote_atomic;
constexpr uint64_t kSecret = 0x5ec12e7;

// The owner of a region with a secret executes all that is done to it, so it always polls here; how
// it stands when the operation is posted decides which way that takes.
class RawKey : public OneSided {
 protected:
  RawKey() : memory_(kSize) {
    owner_executes_ = true;
    region_ = raw_region(memory_);
    a().port.raw_keys = &keys_;
    good_ = map(region_.key, kSecret);
  }
  void TearDown() override { expect_all_well(); }
  ~RawKey() override { EXPECT_TRUE(memory_.canaries_intact()); }

  protect::RegionHandle raw_region(Guarded& memory) {
    auto side = std::make_unique<protect::SideRecord>();
    side->segments.push_back({memory.data(), memory.size(), std::nullopt});
    side->secret = kSecret;
    return *pair_.keys->add(Pair::spec_of(b(), memory, kAll), std::move(side));
  }
  uint64_t map(uint64_t key, uint64_t secret, uint8_t flags = wire::kRaw) {
    return keys_.map({key, secret, flags}).value();
  }
  void expect_refused() {
    ASSERT_TRUE(completed(1));
    ASSERT_TRUE(a().tx_cq.error_first());
    const CompletionError e = a().tx_cq.pop_error();
    EXPECT_EQ(e.err, Errc::access_denied);
    EXPECT_EQ(e.vendor, static_cast<uint32_t>(protect::Denial::unknown_key));
    pair_.settle();
    EXPECT_TRUE(a().tx_cq.empty()) << "exactly one completion";
  }
  RemoteRange at(uint64_t handle, uint64_t offset, uint64_t len) {
    return {memory_.address() + offset, len, handle};
  }
  Status rma(WqeKind kind, const iovec& local, const std::vector<RemoteRange>& ranges, bool imm) {
    RmaWr wr = rma_of(local, ranges[0], 1);
    wr.range_count = ranges.size();
    wr.has_imm = imm;
    wr.imm = 0x1122334455667788;
    return a().qp->requester().rma(kind, wr);
  }
  Status write(const std::vector<std::byte>& data, const std::vector<RemoteRange>& ranges,
               bool imm = false) {
    data_ = data;  // until the operation has ended
    return rma(WqeKind::write, iov_of(data_), ranges, imm);
  }
  Status read(Guarded& to, const std::vector<RemoteRange>& ranges) {
    return rma(WqeKind::read, iov_of(to), ranges, false);
  }
  Status add(std::vector<RemoteRange> ranges, std::vector<uint64_t>& operands,
             std::vector<uint64_t>* former) {
    operand_ = {operands.data(), operands.size() * 8};
    AtomicWr wr;
    wr.kind = former != nullptr ? transport::AtomicKind::fetch : transport::AtomicKind::base;
    wr.len = operand_.iov_len;
    wr.operand = &operand_;
    wr.operand_count = 1;
    if (former != nullptr) {
      result_ = {former->data(), former->size() * 8};
      wr.result = &result_;
      wr.result_count = 1;
    }
    wr.ranges = ranges.data();
    wr.range_count = ranges.size();
    wr.context = reinterpret_cast<void*>(1);
    return a().qp->requester().atomic(wr);
  }

  static constexpr size_t kSize = 400000;
  Guarded memory_;
  protect::RegionHandle region_;
  RawKeys keys_;
  uint64_t good_ = 0;
  std::vector<std::byte> data_;
  iovec operand_{}, result_{};
};

INSTANTIATE_TEST_SUITE_P(links, RawKey, kSettings, setting_name);

TEST_P(RawKey, a_write_and_a_read_show_both_halves) {
  for (const size_t size : {size_t{0}, size_t{8}, size_t{24}, size_t{25}, size_t{256}, size_t{257},
                            size_t{32769}, kSize}) {
    const auto data = pattern(size, static_cast<unsigned>(size));
    ASSERT_TRUE(write(data, {at(good_, 0, size)}));
    expect_success(1, size);
    EXPECT_TRUE(same_bytes(memory_.data(), data.data(), size)) << size;
    Guarded result(size);
    ASSERT_TRUE(read(result, {at(good_, 0, size)}));
    expect_success(1, size);
    EXPECT_TRUE(same_bytes(result.data(), data.data(), size)) << size;
    EXPECT_TRUE(result.canaries_intact());
  }
}

TEST_P(RawKey, immediate_data_lies_behind_the_secret) {
  for (const size_t size : {size_t{0}, size_t{8}, size_t{256}, size_t{1000}}) {
    const auto data = pattern(size, 3);
    ASSERT_TRUE(write(data, {at(good_, 0, size)}, true));
    ASSERT_TRUE(pair_.until([&] { return !a().tx_cq.empty() && !b().rx_cq.empty(); }));
    expect_success(1, size);
    EXPECT_EQ(take(b().rx_cq).imm, 0x1122334455667788u);
    EXPECT_TRUE(same_bytes(memory_.data(), data.data(), size)) << size;
  }
}

TEST_P(RawKey, several_ranges_show_a_key_each) {
  Guarded other(5000);
  const auto plain = pair_.region(b(), other, kAll);
  const uint64_t without_secret = map(plain.key, 0, 0);
  const uint64_t again = map(region_.key, kSecret);
  EXPECT_NE(again, good_);
  for (const size_t half : {size_t{10}, size_t{5000}}) {
    const auto data = pattern(3 * half, 7);
    const std::vector<RemoteRange> ranges = {
        at(good_, 100, half), {other.address(), half, without_secret}, at(again, 10000, half)};
    ASSERT_TRUE(write(data, ranges));
    expect_success(1, 3 * half);
    EXPECT_TRUE(same_bytes(memory_.data() + 100, data.data(), half));
    EXPECT_TRUE(same_bytes(other.data(), data.data() + half, half));
    EXPECT_TRUE(same_bytes(memory_.data() + 10000, data.data() + 2 * half, half));
    Guarded result(3 * half);
    ASSERT_TRUE(read(result, ranges));
    expect_success(1, 3 * half);
    EXPECT_TRUE(same_bytes(result.data(), data.data(), 3 * half));
  }
}

TEST_P(RawKey, atomics_show_it_too) {
  auto* words = reinterpret_cast<uint64_t*>(memory_.data());
  for (const size_t count : {size_t{1}, size_t{32}, size_t{33}, size_t{1000}}) {
    std::fill_n(words, count, 5);
    std::vector<uint64_t> ones(count, 1);
    ASSERT_TRUE(add({at(good_, 0, count * 8)}, ones, nullptr));
    expect_success(1, count * 8);
    std::vector<uint64_t> former(count);
    ASSERT_TRUE(add({at(good_, 0, count * 8)}, ones, &former));
    expect_success(1, count * 8);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(words[i], 7u);
      ASSERT_EQ(former[i], 6u);
    }
  }
  std::vector<uint64_t> two = {1, 2};
  std::vector<uint64_t> former(2);
  ASSERT_TRUE(add({at(good_, 0, 8), at(map(region_.key, kSecret), 64, 8)}, two, &former));
  expect_success(1, 16);
  EXPECT_EQ(words[0], 8u);
  EXPECT_EQ(words[8], 9u);
}

TEST_P(RawKey, a_right_key_with_a_wrong_secret_is_refused_and_changes_nothing) {
  const uint64_t wrong[] = {map(region_.key, kSecret ^ 1),          map(region_.key, 0),
                            map(region_.key, kSecret ^ 1ull << 63), map(region_.key, 0, 0),
                            map(region_.key ^ 1, kSecret),          map(kSecret, region_.key)};
  std::vector<uint64_t> ones(40, 1);
  std::vector<uint64_t> former(40);
  for (const uint64_t handle : wrong) {
    for (const size_t size : {size_t{8}, size_t{300}, size_t{100000}}) {
      ASSERT_TRUE(write(pattern(size, 1), {at(handle, 0, size)}));
      expect_refused();
      ASSERT_TRUE(write(pattern(2 * size, 1), {at(good_, 0, size), at(handle, size, size)}));
      expect_refused();
      Guarded result(size);
      ASSERT_TRUE(read(result, {at(handle, 0, size)}));
      expect_refused();
      EXPECT_TRUE(result.all(0));
    }
    for (const size_t count : {size_t{1}, size_t{40}}) {
      std::vector<uint64_t> operands(count, 1);
      ASSERT_TRUE(add({at(handle, 0, count * 8)}, operands, nullptr));
      expect_refused();
      ASSERT_TRUE(add({at(handle, 0, count * 8)}, operands, &former));
      expect_refused();
    }
    std::vector<uint64_t> two(2, 1);
    ASSERT_TRUE(add({at(good_, 0, 8), at(handle, 8, 8)}, two, nullptr));
    expect_refused();
  }
  EXPECT_TRUE(memory_.all(0));
}

TEST_P(RawKey, a_value_that_is_not_mapped_is_refused_at_the_post) {
  std::vector<uint64_t> one(1, 1);
  const auto data = pattern(8, 1);
  Guarded result(8);
  EXPECT_TRUE(keys_.unmap(good_));
  EXPECT_FALSE(keys_.unmap(good_)) << "once";
  for (const uint64_t value : {good_, region_.key, kSecret, uint64_t{0}, ~uint64_t{0}}) {
    EXPECT_EQ(write(data, {at(value, 0, 8)}).error(), Errc::no_key);
    EXPECT_EQ(read(result, {at(value, 0, 8)}).error(), Errc::no_key);
    EXPECT_EQ(add({at(value, 0, 8)}, one, nullptr).error(), Errc::no_key);
  }
  const uint64_t good = map(region_.key, kSecret);
  EXPECT_EQ(write(data, {at(good, 0, 4), at(good_, 4, 4)}).error(), Errc::no_key);
  pair_.settle();
  EXPECT_TRUE(a().tx_cq.empty());
  EXPECT_TRUE(memory_.all(0));
}

TEST(RawKeys, are_mapped_to_numbers_that_say_nothing) {
  RawKeys keys;
  std::vector<uint64_t> handles;
  for (int i = 0; i < 1000; ++i) handles.push_back(keys.map({1, 2, wire::kRaw}).value());
  EXPECT_EQ(keys.count(), 1000u);
  std::sort(handles.begin(), handles.end());
  for (size_t i = 1; i < handles.size(); ++i) {
    EXPECT_GT(handles[i] - handles[i - 1], 1u << 10) << "by chance once in 2^34 runs";
  }
  EXPECT_EQ(keys.shown(handles[5]).secret, 2u);
  EXPECT_TRUE(keys.unmap(handles[5]));
  EXPECT_FALSE(keys.has(handles[5]));
  EXPECT_EQ(keys.shown(handles[5]).key, ~uint64_t{0});
}

// Posted before there is a connection, unmapped before there is one.
TEST(RawKeys, unmapped_between_post_and_ring_end_in_one_error) {
  for (const LinkKind link : {LinkKind::loopback, LinkKind::shm, LinkKind::direct}) {
    Pair pair(link);
    Guarded memory(1000);
    const auto region = pair.region(*pair.b, memory, kAll);
    RawKeys keys;
    pair.a->port.raw_keys = &keys;
    const uint64_t handle = keys.map({region.key, 0, 0}).value();
    const auto data = pattern(8, 1);
    ASSERT_TRUE(pair.a->write(iov_of(data), {memory.address(), 8, handle}, 1));
    EXPECT_TRUE(keys.unmap(handle));
    pair.attach();
    ASSERT_TRUE(pair.until([&] { return !pair.a->tx_cq.empty(); }));
    EXPECT_EQ(take_end(pair.a->tx_cq), Errc::access_denied);
    pair.settle();
    EXPECT_TRUE(pair.a->tx_cq.empty());
    EXPECT_TRUE(memory.all(0));
    EXPECT_FALSE(pair.a->qp->broken());
  }
}

}  // namespace
}  // namespace aperture::qp::test
