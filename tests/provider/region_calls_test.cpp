// Calls on memory regions: fi_mr(3).
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <set>

#include "direct.hpp"
#include "provider/header_names.hpp"

namespace aperture::provider_tests {
namespace {

using provider::kRegionsReport;

constexpr int kBasicBits = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

struct Registering : Bench {
  using Bench::Bench;
  int reg(const void* buf, size_t len, uint64_t access, uint64_t key, uint64_t offset = 0,
          uint64_t flags = 0) {
    fid_mr* made = nullptr;
    const int code = fi_mr_reg(domain.get(), buf, len, access, offset, key, flags, &made, nullptr);
    EXPECT_EQ(code == 0, made != nullptr);
    last.reset(made);
    return code;
  }
  Opened<fid_mr> last;
};

TEST(RegionCalls, what_collective_calls_may_use_is_said_from_1_14_on) {
  char c[8];
  for (const uint64_t access : {FI_COLLECTIVE, FI_COLLECTIVE | FI_SEND | FI_RECV}) {
    EXPECT_EQ(Registering({}, FI_VERSION(1, 13)).reg(c, 8, access, 1), -FI_EINVAL);
    EXPECT_EQ(Registering({}, FI_VERSION(1, 14)).reg(c, 8, access, 1), 0);
    EXPECT_EQ(Registering({}, FI_VERSION(2, 0)).reg(c, 8, access, 1), 0);
  }
}

TEST(RegionCalls, bad_arguments_register_nothing) {
  Registering b;
  char c[8];
  EXPECT_EQ(b.reg(c, 8, FI_REMOTE_READ, 1, 16), -FI_EINVAL) << "offset is reserved";
  EXPECT_EQ(b.reg(c, 8, FI_REMOTE_READ | FI_ATOMIC, 1), -FI_EINVAL);
  EXPECT_EQ(b.reg(c, 8, FI_REMOTE_READ, 1, 0, FI_MULTI_RECV), -FI_EBADFLAGS);
  EXPECT_EQ(b.reg(c, 8, FI_REMOTE_READ, FI_KEY_NOTAVAIL), -FI_EKEYREJECTED);
  EXPECT_EQ(b.reg(c, SIZE_MAX, FI_REMOTE_READ, 1), -FI_EINVAL) << "runs past the end of memory";
  EXPECT_EQ(fi_mr_reg(b.domain.get(), c, 8, 0, 0, 1, 0, nullptr, nullptr), -FI_EINVAL);
  iovec many[17] = {{c, 4}, {c + 4, 4}};
  fid_mr* mr = nullptr;
  EXPECT_EQ(fi_mr_regv(b.domain.get(), many, 17, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr), -FI_EINVAL)
      << "mr_iov_limit is 16";
  EXPECT_EQ(fi_mr_regv(b.domain.get(), many, 0, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr), -FI_EINVAL);
  many[1].iov_len = SIZE_MAX;
  EXPECT_EQ(fi_mr_regv(b.domain.get(), many, 2, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr), -FI_EINVAL)
      << "every buffer is checked";
  many[1] = {nullptr, SIZE_MAX - 3};
  EXPECT_EQ(fi_mr_regv(b.domain.get(), many, 2, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr), -FI_EINVAL)
      << "the lengths add up to more than there is";
  EXPECT_EQ(fi_mr_regv(b.domain.get(), nullptr, 1, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr),
            -FI_EINVAL);
  EXPECT_EQ(fi_mr_regattr(b.domain.get(), nullptr, 0, &mr), -FI_EINVAL);
  fi_mr_attr attr{};
  attr.mr_iov = many;
  attr.iov_count = 1;
  attr.auth_key_size = 4;
  EXPECT_EQ(fi_mr_regattr(b.domain.get(), &attr, 0, &mr), -FI_EINVAL);
  EXPECT_EQ(mr, nullptr);
}

TEST(RegionCalls, requested_keys_in_scalable_mode) {
  Registering b;
  char c[8];
  ASSERT_EQ(b.reg(c, 8, FI_REMOTE_READ, 4711), 0);
  EXPECT_EQ(fi_mr_key(b.last.get()), 4711u);
  fid_mr* second = nullptr;
  EXPECT_EQ(fi_mr_reg(b.domain.get(), c, 8, FI_REMOTE_READ, 0, 4711, 0, &second, nullptr),
            -FI_ENOKEY);
  b.last.reset();
  EXPECT_EQ(b.reg(c, 8, FI_REMOTE_READ, 4711), 0) << "free again once closed";
}

TEST(RegionCalls, all_of_memory_can_be_registered_in_scalable_mode) {
  Registering b;
  EXPECT_EQ(b.reg(nullptr, SIZE_MAX, FI_REMOTE_READ | FI_REMOTE_WRITE, 0), 0);
}

TEST(RegionCalls, provider_keys_do_not_repeat_and_ignore_requests) {
  Registering b(offering(kBasicBits));
  char c[8];
  std::set<uint64_t> keys;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(b.reg(c, 8, FI_REMOTE_READ, 4711), 0);
    EXPECT_TRUE(keys.insert(fi_mr_key(b.last.get())).second);
  }
  EXPECT_EQ(keys.count(4711), 0u);
}

TEST(RegionCalls, with_fi_mr_allocated_memory_must_be_there) {
  Registering basic(offering(kBasicBits)), scalable;
  void* page = mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  munmap(static_cast<char*>(page) + 4096, 4096);
  EXPECT_EQ(basic.reg(page, 4096, FI_REMOTE_READ, 0), 0);
  EXPECT_EQ(basic.reg(static_cast<char*>(page) + 100, 3996, FI_REMOTE_READ, 0), 0);
  EXPECT_EQ(basic.reg(static_cast<char*>(page) + 100, 3997, FI_REMOTE_READ, 0), -FI_EFAULT);
  EXPECT_EQ(basic.reg(page, 3 * 4096, FI_REMOTE_READ, 0), -FI_EFAULT) << "a hole in the middle";
  EXPECT_EQ(scalable.reg(page, 3 * 4096, FI_REMOTE_READ, 0), 0) << "need not be backed yet";
  munmap(page, 3 * 4096);
}

// FI_MR_BASIC in what the domain is opened with, whatever fi_getinfo says of it.
TEST(RegionCalls, fi_mr_basic_chooses_keys_and_wants_memory_that_is_there) {
  for (const uint32_t api : {uint32_t{FI_VERSION(1, 4)}, kApi117, kApi20}) {
    Registering b([](fi_info& hints) { hints.domain_attr->mr_mode = provider::kMrModeBasic; }, api);
    EXPECT_EQ(b.info->domain_attr->mr_mode, provider::kMrModeBasic);
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    ASSERT_EQ(b.reg(page, 4096, FI_REMOTE_READ, 4711), 0);
    EXPECT_NE(fi_mr_key(b.last.get()), 4711u) << "the provider chooses";
    uint8_t raw[16];
    uint64_t base = 0;
    size_t size = sizeof raw;
    ASSERT_EQ(fi_mr_raw_attr(b.last.get(), &base, raw, &size, 0), 0);
    EXPECT_EQ(base, reinterpret_cast<uint64_t>(page)) << "peers give addresses";
    b.last.reset();
    munmap(page, 4096);
    EXPECT_EQ(b.reg(page, 4096, FI_REMOTE_READ, 1), -FI_EFAULT) << "it is not mapped";
    Registering scalable({}, api);
    ASSERT_EQ(scalable.reg(page, 4096, FI_REMOTE_READ, 4711), 0);
    EXPECT_EQ(fi_mr_key(scalable.last.get()), 4711u);
  }
}

TEST(RegionCalls, raw_keys_work_with_every_region) {
  Registering b(offering(kBasicBits));
  char c[8];
  ASSERT_EQ(b.reg(c, 8, FI_REMOTE_READ, 0), 0);
  uint8_t raw[16];
  uint64_t base = 0;
  size_t size = 4;
  EXPECT_EQ(fi_mr_raw_attr(b.last.get(), &base, raw, &size, 0), -FI_ETOOSMALL);
  EXPECT_EQ(size, 8u) << "told what is needed";
  ASSERT_EQ(fi_mr_raw_attr(b.last.get(), &base, raw, &size, 0), 0);
  EXPECT_EQ(base, reinterpret_cast<uint64_t>(c));
  uint64_t key = 0;
  EXPECT_EQ(fi_mr_map_raw(b.domain.get(), base, raw, 7, &key, 0), -FI_EINVAL);
  ASSERT_EQ(fi_mr_map_raw(b.domain.get(), base, raw, size, &key, 0), 0);
  EXPECT_EQ(key, fi_mr_key(b.last.get()));
  EXPECT_EQ(fi_mr_unmap_key(b.domain.get(), key), 0);
}

// Sets APERTURE_MR_CLOSE as long as it lives.
struct ClosingRule {
  explicit ClosingRule(const char* word) { ::setenv("APERTURE_MR_CLOSE", word, 1); }
  ~ClosingRule() { ::unsetenv("APERTURE_MR_CLOSE"); }
};

TEST(RegionCalls, what_other_modes_need_works_without_them) {
  Registering b([](fi_info& hints) { hints.caps |= FI_RMA_EVENT; });
  char c[8];
  ASSERT_EQ(b.reg(c, 8, FI_REMOTE_READ, 1), 0);
  EXPECT_EQ(fi_mr_bind(b.last.get(), &b.cntr->fid, FI_REMOTE_WRITE), 0);
  EXPECT_EQ(fi_mr_enable(b.last.get()), 0);
  EXPECT_EQ(fi_mr_refresh(b.last.get(), nullptr, 0, 0), 0);
  {
    const ClosingRule strict("strict");
    EXPECT_EQ(fi_close(&b.last->fid), -FI_EBUSY) << "a counter is bound";
  }
  EXPECT_NE(fi_mr_desc(b.last.get()), nullptr);
  EXPECT_EQ(fi_close(&b.last.release()->fid), 0);
  b.cntr.reset();
}

// A region that is bound to the endpoint of a bench, which answers with that API.
struct BoundToEndpoint : Registering {
  explicit BoundToEndpoint(uint32_t api) : Registering(offering(FI_MR_ENDPOINT), api) {
    enable();
    EXPECT_EQ(reg(bytes, sizeof bytes, FI_REMOTE_READ, 1), 0);
    EXPECT_EQ(fi_mr_bind(last.get(), &ep->fid, 0), 0);
  }
  int close_endpoint() {
    const int code = fi_close(&ep->fid);
    if (code == 0) static_cast<void>(ep.release());
    return code;
  }
  int close_region() {
    const int code = fi_close(&last->fid);
    if (code == 0) static_cast<void>(last.release());
    return code;
  }
  char bytes[8];
};

TEST(RegionCalls, an_endpoint_and_its_regions_are_closed_in_either_order) {
  for (const uint32_t api : {kApi117, uint32_t{FI_VERSION(2, 4)}, uint32_t{FI_VERSION(2, 5)}}) {
    BoundToEndpoint endpoint_first(api), region_first(api);
    EXPECT_EQ(endpoint_first.close_endpoint(), 0) << api;
    EXPECT_EQ(endpoint_first.close_region(), 0) << api;
    EXPECT_EQ(region_first.close_region(), 0) << api;
    EXPECT_EQ(region_first.close_endpoint(), 0) << api;
  }
}

TEST(RegionCalls, strictly_the_api_says_which_of_the_two_is_closed_first) {
  const ClosingRule strict("strict");
  BoundToEndpoint old(FI_VERSION(2, 4));
  EXPECT_EQ(old.close_region(), -FI_EBUSY);
  EXPECT_EQ(old.close_endpoint(), 0);
  EXPECT_EQ(old.close_region(), 0);
  BoundToEndpoint newer(FI_VERSION(2, 5));
  EXPECT_EQ(newer.close_endpoint(), -FI_EBUSY);
  EXPECT_EQ(newer.close_region(), 0);
  EXPECT_EQ(newer.close_endpoint(), 0);
}

// Reads until something but -FI_EAGAIN comes, for at most 5 s.
ssize_t read_eq(fid_eq* eq, uint32_t& event, fi_eq_entry& entry) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  ssize_t n = -FI_EAGAIN;
  while (n == -FI_EAGAIN && std::chrono::steady_clock::now() < until) {
    n = fi_eq_read(eq, &event, &entry, sizeof entry, 0);
  }
  return n;
}

TEST(RegionCalls, asynchronous_registration_reports_to_the_event_queue) {
  Registering b;
  fi_eq_attr attr{};
  const Opened<fid_eq> eq = opened("event queue", fi_eq_open, b.fabric.get(), &attr);
  EXPECT_EQ(fi_domain_bind(b.domain.get(), &b.cq->fid, kRegionsReport), -FI_EINVAL);
  EXPECT_EQ(fi_domain_bind(b.domain.get(), &eq->fid, FI_SEND), -FI_EBADFLAGS);
  ASSERT_EQ(fi_domain_bind(b.domain.get(), &eq->fid, kRegionsReport), 0);
  EXPECT_EQ(fi_close(&eq->fid), -FI_EBUSY);
  char c[8];
  fid_mr* mr = nullptr;
  int context = 0;
  ASSERT_EQ(fi_mr_reg(b.domain.get(), c, 8, FI_REMOTE_READ, 0, 1, 0, &mr, &context), 0);
  uint32_t event = 0;
  fi_eq_entry entry{};
  ASSERT_EQ(read_eq(eq.get(), event, entry), static_cast<ssize_t>(sizeof entry));
  EXPECT_EQ(event, static_cast<uint32_t>(FI_MR_COMPLETE));
  EXPECT_EQ(entry.fid, &mr->fid);
  EXPECT_EQ(entry.context, &context);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  // the domain, which the queue is bound to, goes first
  b.ep.reset();
  b.cntr.reset();
  b.cq.reset();
  b.av.reset();
  b.domain.reset();
}

}  // namespace
}  // namespace aperture::provider_tests
