// Memory of devices behind a verbs region, as with peer memory: ibv_reg_mr(3) of it, RDMA from and
// to it, sends and receives, and what is refused. Over the stand-in drivers of tests/memory, whose
// device memory no CPU can touch.
#include "memory/device_memory.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr size_t kSize = 1 << 20;

class DeviceRegion : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    std::string why;
    devices_ = Devices::open(GetParam(), why);
    ASSERT_NE(devices_, nullptr) << why;
    ASSERT_NE(device_.context, nullptr);
    pd_ = ibv_alloc_pd(device_.context);
    ASSERT_NE(pd_, nullptr);
    memory_ = std::make_unique<DeviceMemory>(*devices_, kSize);
    ASSERT_NE(memory_->at(), nullptr);
    mr_ = ibv_reg_mr(pd_, memory_->at(), kSize, kEverything);
    ASSERT_NE(mr_, nullptr);
  }
  void TearDown() override {
    if (mr_ != nullptr) {
      EXPECT_EQ(ibv_dereg_mr(mr_), 0);
    }
    memory_.reset();
    if (pd_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    }
  }
  ibv_sge sge(size_t offset, uint32_t length) const { return {at(offset), length, mr_->lkey}; }
  uint64_t at(size_t offset) const { return reinterpret_cast<uint64_t>(memory_->at()) + offset; }
  std::string text(size_t offset, size_t length) const {
    std::string out(length, '?');
    EXPECT_TRUE(memory_->read(out.data(), offset, length));
    return out;
  }
  void put(size_t offset, const std::string& text) const {
    ASSERT_TRUE(memory_->write(offset, text.data(), text.size()));
  }

  Device device_;
  ibv_pd* pd_ = nullptr;
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<DeviceMemory> memory_;
  ibv_mr* mr_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceRegion, testing::ValuesIn(kDeviceKinds),
                         [](const auto& p) { return std::string(name_of(p.param)); });

std::string pattern(size_t n, int seed) {
  std::string out(n, ' ');
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<char>('a' + (i * 7 + i / 255 + seed) % 26);
  return out;
}

TEST_P(DeviceRegion, rdma_goes_from_and_to_it) {
  Memory host(pd_, kSize);
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  int seed = 0;
  for (const uint32_t size : {1u, 8u, 300u, 5000u, 70001u, 600000u}) {
    const std::string text_out = pattern(size, ++seed);
    std::copy(text_out.begin(), text_out.end(), host.bytes.begin());
    ASSERT_EQ(a.run(IBV_WR_RDMA_WRITE, host.sge(0, size), at(3), mr_->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(text(3, size), text_out) << size;
    std::fill(host.bytes.begin(), host.bytes.end(), '.');
    ASSERT_EQ(a.run(IBV_WR_RDMA_READ, host.sge(0, size), at(3), mr_->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(host.text(0, size), text_out) << size;
    std::fill(host.bytes.begin(), host.bytes.end(), '.');
    ASSERT_EQ(a.run(IBV_WR_RDMA_WRITE, sge(3, size), host.at(1), host.mr->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(host.text(1, size), text_out) << size;
    put(3, std::string(size, '.'));
    ASSERT_EQ(a.run(IBV_WR_RDMA_READ, sge(3, size), host.at(1), host.mr->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(text(3, size), text_out) << size;
  }
}

TEST_P(DeviceRegion, messages_go_from_and_to_it) {
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  for (const uint32_t size : {1u, 300u, 5000u, 300000u}) {
    const std::string text_out = pattern(size, 3);
    put(0, text_out);
    put(kSize / 2, std::string(size, '.'));
    ASSERT_EQ(b.receive(sge(kSize / 2, size), 5), 0);
    ASSERT_EQ(a.run(IBV_WR_SEND, sge(0, size)), IBV_WC_SUCCESS);
    const ibv_wc wc = b.completion();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, size);
    EXPECT_EQ(text(kSize / 2, size), text_out) << size;
  }
}

TEST_P(DeviceRegion, an_atomic_on_it_is_refused) {
  Memory host(pd_, 64);
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  put(0, std::string(8, 'x'));
  ibv_sge result = host.sge(0, 8);
  ibv_send_wr wr = send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, result);
  wr.wr.atomic = {at(0), 1, 0, mr_->rkey};
  ASSERT_EQ(post_wr(a.qp, wr), 0);
  EXPECT_EQ(a.completion().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(text(0, 8), std::string(8, 'x'));
}

TEST_P(DeviceRegion, what_was_freed_is_refused) {
  Memory host(pd_, 64);
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  const uint64_t place = at(0);
  ASSERT_TRUE(memory_->free());
  EXPECT_EQ(a.run(IBV_WR_RDMA_WRITE, host.sge(0, 64), place, mr_->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(DeviceRegion, what_the_memory_is_not_for_is_refused) {
  errno = 0;
  EXPECT_EQ(refusal_of(ibv_reg_mr(pd_, memory_->at(), kSize, kEverything | IBV_ACCESS_MW_BIND)),
            EOPNOTSUPP);
  EXPECT_EQ(refusal_of(ibv_reg_mr(pd_, memory_->at(), kSize + (1 << 21), kEverything)), EINVAL)
      << "past its end";
}

}  // namespace
}  // namespace aperture::test
