// Each application is served the API that it was written for: 1.0 to 2.x.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>

#include <cstring>

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

constexpr uint32_t kApi14 = FI_VERSION(1, 4);
constexpr uint32_t kApi15 = FI_VERSION(1, 5);
constexpr int kBasic = 1;
constexpr int kScalable = 2;
constexpr int kBasicBits = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

int mr_mode_for(uint32_t version, int offered, uint64_t caps = FI_RMA) {
  const Answer a = ask(version, [&](fi_info& h) {
    h.caps = caps;
    h.domain_attr->mr_mode = offered;
  });
  return a.code == 0 ? a.info->domain_attr->mr_mode : a.code;
}

TEST(Versions, mr_mode_before_1_5_knows_basic_and_scalable) {
  EXPECT_EQ(mr_mode_for(kApi14, kBasic), kBasic);
  EXPECT_EQ(mr_mode_for(kApi14, kScalable), kScalable);
  EXPECT_EQ(mr_mode_for(kApi14, 0), kScalable) << "ours to choose";
  EXPECT_EQ(mr_mode_for(kApi14, FI_MR_VIRT_ADDR), -FI_ENODATA);
}

TEST(Versions, mr_mode_since_1_5_is_what_is_then_enforced) {
  for (uint32_t version : {kApi15, kApi117, kApi20}) {
    EXPECT_EQ(mr_mode_for(version, 0), 0) << "scalable";
    EXPECT_EQ(mr_mode_for(version, kBasicBits), 0) << "nothing is demanded";
    EXPECT_EQ(mr_mode_for(version, FI_MR_LOCAL | FI_MR_RAW | FI_MR_ENDPOINT), 0);
    EXPECT_EQ(mr_mode_for(version, kBasic), kBasic) << "is never cleared";
  }
}

TEST(Versions, auth_keys_are_not_looked_at_before_1_5) {
  const auto with_key = [](fi_info& h) {
    h.domain_attr->auth_key_size = 8;
    h.ep_attr->auth_key_size = 8;
  };
  const Answer old = ask(kApi14, with_key);
  ASSERT_EQ(old.code, 0);
  EXPECT_EQ(old.info->domain_attr->auth_key_size, 0u);
  EXPECT_EQ(old.info->ep_attr->auth_key_size, 0u);
  const Answer since = ask(kApi15, with_key);
  ASSERT_EQ(since.code, 0);
  EXPECT_EQ(since.info->domain_attr->auth_key_size, 8u);
  EXPECT_EQ(since.info->ep_attr->auth_key_size, 8u);
}

// FI_VARIABLE_MSG, nothing, then FI_EXACT_DIRECTED_RECV (what that does: receive_caps_test.cpp).
TEST(Versions, bit_48_is_long_messages_before_1_21_and_exact_sources_since_2_0) {
  const auto with_bit = [](fi_info& h) { h.caps = FI_MSG | 1ull << 48; };
  const Answer old = ask(kApi117, with_bit);
  ASSERT_EQ(old.code, 0);
  EXPECT_NE(old.info->caps & 1ull << 48, 0u);
  EXPECT_EQ(ask(kApi121, with_bit).code, -FI_ENODATA);
  const Answer since = ask(kApi20, with_bit);
  ASSERT_EQ(since.code, 0);
  EXPECT_NE(since.info->caps & 1ull << 48, 0u);
}

TEST(Versions, rescan_is_a_flag_since_2_0) {
  constexpr uint64_t rescan = 1ull << 40;
  EXPECT_EQ(ask(kApi20, {}, rescan).code, 0);
  EXPECT_EQ(ask(kApi117, {}, rescan).code, -FI_EBADFLAGS);
}

TEST(Versions, progress_control_unified_of_2_x_is_echoed) {
  const auto unified = static_cast<fi_progress>(3);
  const Answer a = ask(kApi20, [&](fi_info& h) { h.domain_attr->control_progress = unified; });
  ASSERT_EQ(a.code, 0);
  EXPECT_EQ(a.info->domain_attr->control_progress, unified);
}

// Provokes an error entry and reads it into memory whose every byte is known.
struct ErrorEntry {
  fi_cq_err_entry known;
  fi_addr_t src_addr;
  uint64_t beyond;
};

// A truncated message, of which err says all; a refused write, of which there is a sentence.
enum class Fault { truncated, refused };

ErrorEntry error_entry(uint32_t version, Fault fault, void* data, size_t size) {
  Bench b({}, version);
  const fi_addr_t own = b.enable();
  char in[2];
  if (fault == Fault::truncated) {
    EXPECT_EQ(fi_recv(b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, &b), 0);
    EXPECT_EQ(fi_inject(b.ep.get(), "12345", 5, own), 0);
  } else {
    EXPECT_EQ(fi_write(b.ep.get(), in, sizeof in, nullptr, own, 0, 77, &b), 0);
  }
  fi_cq_tagged_entry entry;
  EXPECT_EQ(read_cq(b.cq.get(), &entry), -FI_EAVAIL);
  ErrorEntry e;
  std::memset(&e, 0xEE, sizeof e);
  e.known.err_data = data;
  e.known.err_data_size = size;
  EXPECT_EQ(fi_cq_readerr(b.cq.get(), &e.known, 0), 1);
  if (fault == Fault::truncated) {
    EXPECT_EQ(e.known.err, FI_ETRUNC);
    EXPECT_EQ(e.known.len, sizeof in);
    EXPECT_EQ(e.known.olen, 3u);
  } else {
    EXPECT_EQ(e.known.err, FI_EACCES);
  }
  EXPECT_EQ(e.beyond, 0xEEEEEEEEEEEEEEEEull);
  // text that the provider lends out is valid until the next read of this queue
  if (e.known.err_data != data && e.known.err_data != nullptr) {
    EXPECT_NE(std::strlen(static_cast<const char*>(e.known.err_data)), 0u);
  }
  return e;
}

TEST(Versions, an_error_entry_ends_where_the_application_thinks) {
  char data[8];
  const auto entry = [&](uint32_t version, size_t size) {
    return error_entry(version, Fault::truncated, data, size);
  };
  EXPECT_EQ(entry(kApi117, sizeof data).src_addr, 0xEEEEEEEEEEEEEEEEull);
  EXPECT_NE(entry(kApi20, sizeof data).src_addr, 0xEEEEEEEEEEEEEEEEull);
  EXPECT_EQ(entry(kApi14, 77).known.err_data_size, 77u) << "not there before 1.5";
}

TEST(Versions, error_text_goes_where_the_version_says) {
  char data[8] = "#######";
  ErrorEntry e = error_entry(kApi117, Fault::refused, data, sizeof data);
  EXPECT_EQ(e.known.err_data, data);
  EXPECT_EQ(e.known.err_data_size, sizeof data) << "cut to fit";
  EXPECT_EQ(data[7], '\0');
  EXPECT_NE(data[0], '#');
  std::strcpy(data, "#######");
  for (const Fault fault : {Fault::refused, Fault::truncated}) {
    EXPECT_NE(error_entry(kApi14, fault, data, sizeof data).known.err_data, data) << "lent out";
    EXPECT_NE(error_entry(kApi117, fault, data, 0).known.err_data, data) << "lent out";
  }
  EXPECT_STREQ(data, "#######");
}

// Programs leave the entry as it lies on the stack, and other providers have nothing to write for
// what is no fault but an answer.
TEST(Versions, an_entry_that_nobody_filled_in_is_written_to_only_where_there_is_a_sentence) {
  char data[8] = "#######";
  const ErrorEntry e = error_entry(kApi117, Fault::truncated, data, sizeof data);
  EXPECT_STREQ(data, "#######");
  EXPECT_EQ(e.known.err_data, nullptr);
  EXPECT_EQ(e.known.err_data_size, 0u);
  auto* const nowhere = reinterpret_cast<void*>(uintptr_t{0xEEEEEEEEEEEEEEEE});
  for (const Fault fault : {Fault::truncated, Fault::refused}) {
    EXPECT_EQ(error_entry(kApi117, fault, nowhere, SIZE_MAX / 3).known.err_data_size, 0u);
  }
}

// ---- atomics: numbers by the API that defines them ----------------------------------------------

int query(Bench& b, int type, int op, uint64_t flags = 0) {
  fi_datatype t;
  fi_op o;
  std::memcpy(&t, &type, sizeof t);  // values that the headers here do not have
  std::memcpy(&o, &op, sizeof o);
  fi_atomic_attr attr{};
  const int rc = fi_query_atomic(b.domain.get(), t, o, &attr, flags);
  return rc == 0 ? static_cast<int>(attr.size) : rc;
}
constexpr int kDiff = 19;  // FI_DIFF of 2.0, FI_ATOMIC_OP_LAST before
constexpr int kFloat16 = 16, kBfloat16 = 17, kFloat8E4m3 = 18, kFloat8E5m2 = 19;

TEST(Versions, atomics_are_those_of_the_api) {
  Bench old({}, FI_VERSION(1, 9)), of_1_17({}, kApi117), of_2_0({}, kApi20);
  for (Bench* b : {&old, &of_1_17, &of_2_0}) {
    EXPECT_EQ(query(*b, FI_LONG_DOUBLE_COMPLEX, FI_SUM), 32);
    EXPECT_EQ(query(*b, FI_UINT64, FI_MSWAP, FI_COMPARE_ATOMIC), 8);
    EXPECT_EQ(query(*b, FI_UINT64, 20), -FI_EOPNOTSUPP);
    EXPECT_EQ(query(*b, 20, FI_SUM), -FI_EOPNOTSUPP);
  }
  EXPECT_EQ(query(old, FI_INT128, FI_SUM), -FI_EOPNOTSUPP) << "FI_DATATYPE_LAST there";
  EXPECT_EQ(query(of_1_17, FI_INT128, FI_SUM), 16);
  EXPECT_EQ(query(of_2_0, FI_UINT128, FI_CSWAP, FI_COMPARE_ATOMIC), 16);
  for (const int type : {kFloat16, kBfloat16, kFloat8E4m3, kFloat8E5m2}) {
    EXPECT_EQ(query(of_1_17, type, FI_SUM), -FI_EOPNOTSUPP);
    EXPECT_EQ(query(of_2_0, type, FI_SUM), type <= kBfloat16 ? 2 : 1);
    EXPECT_EQ(query(of_2_0, type, FI_BOR), -FI_EOPNOTSUPP);
  }
  EXPECT_EQ(query(of_1_17, FI_UINT64, kDiff), -FI_EOPNOTSUPP);
  EXPECT_EQ(query(of_2_0, FI_UINT64, kDiff), 8);
  EXPECT_EQ(query(of_2_0, FI_DOUBLE, kDiff, FI_FETCH_ATOMIC), 8);
  EXPECT_EQ(query(of_2_0, FI_UINT64, kDiff, FI_COMPARE_ATOMIC), -FI_EOPNOTSUPP);
}

TEST(Versions, a_difference_of_2_0_is_taken) {
  Bench b([](fi_info& h) { h.caps = FI_ATOMIC; }, kApi20);
  const fi_addr_t own = b.enable();
  uint64_t word = 100, by = 30, former = 0;
  fid_mr* made = nullptr;
  ASSERT_EQ(fi_mr_reg(b.domain.get(), &word, sizeof word, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0,
                      &made, nullptr),
            0);
  const Opened<fid_mr> region(made);
  fi_op diff;
  std::memcpy(&diff, &kDiff, sizeof diff);
  ASSERT_EQ(fi_fetch_atomic(b.ep.get(), &by, 1, nullptr, &former, nullptr, own, 0, fi_mr_key(made),
                            FI_UINT64, diff, nullptr),
            0);
  fi_cq_tagged_entry entry;
  ASSERT_EQ(read_cq(b.cq.get(), &entry), 1);
  EXPECT_EQ(former, 100u);
  EXPECT_EQ(word, 70u);
}

}  // namespace
}  // namespace aperture::provider_tests
