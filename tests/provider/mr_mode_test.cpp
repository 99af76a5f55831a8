// What fi_getinfo answers about registration modes, for every API version: fi_mr(3), fi_getinfo(3)
// "MODE". The modes' behaviour is in tests/doors.
#include <gtest/gtest.h>

#include "base/settings.hpp"
#include "direct.hpp"
#include "doors/demand.hpp"
#include "provider/header_names.hpp"

namespace aperture::provider_tests {
namespace {

using provider::kLocalMr;

constexpr uint32_t kApi14 = FI_VERSION(1, 4), kApi15 = FI_VERSION(1, 5), kApi19 = FI_VERSION(1, 9),
                   kApi110 = FI_VERSION(1, 10), kApi111 = FI_VERSION(1, 11);
constexpr int kBasic = 1, kScalable = 2;
constexpr int kBasicBits = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
constexpr uint64_t kTarget = FI_MSG | FI_RMA | FI_ATOMIC;
constexpr uint64_t kInitiator = FI_RMA | FI_READ | FI_WRITE;

struct Question {
  uint32_t version = kApi117;
  int offered = 0;
  uint64_t caps = kTarget;
  uint64_t mode = 0;
};

Answer put(const Question& q, int demanded) {
  return ask(q.version, [&](fi_info& h) {
    h.caps = q.caps;
    h.mode = q.mode;
    h.domain_attr->mr_mode = q.offered;
    ::setenv("APERTURE_MR_MODE", mr_words(demanded).c_str(), 1);
  });
}

// The mr_mode of the answer, or the negative code.
int answer(const Question& q, int demanded) {
  const Answer a = put(q, demanded);
  return a.code == 0 ? a.info->domain_attr->mr_mode : a.code;
}

// The bits that a setting demands of somebody to whom all of them matter, or the negative code.
int demanded_by(const char* setting) {
  const Answer a = ask(kApi117, [&](fi_info& h) {
    h.caps = kTarget | FI_HMEM;
    for (const auto& w : kMrWords) h.domain_attr->mr_mode |= w.bit;
    ::setenv("APERTURE_MR_MODE", setting, 1);
  });
  return a.code == 0 ? a.info->domain_attr->mr_mode : a.code;
}

TEST(MrModeSetting, the_words_are_those_that_the_table_of_settings_has) {
  const auto is_sound = [](const std::string& value) {
    std::string line = "APERTURE_MR_MODE=" + value;
    char* environment[] = {line.data(), nullptr};
    return faults_of_settings(environment).empty();
  };
  std::vector<std::string> values = {"",         "none",  "verbs",      " verbs , raw ",
                                     "none,raw", "x",     "raw,",       "raw,,local",
                                     "RAW",      "basic", "local_cache"};
  for (const auto& w : kMrWords) values.emplace_back(mr_words(w.bit));
  for (const std::string& value : values) {
    EXPECT_EQ(is_sound(value), demanded_by(value.c_str()) >= 0) << '"' << value << '"';
  }
}

TEST(MrModeSetting, local_cache_demands_fi_mr_local_of_who_offers_it) {
  const auto answered = [](const char* setting, const Question& q) {
    const Answer a = ask(q.version, [&](fi_info& h) {
      h.caps = q.caps;
      h.mode = q.mode;
      h.domain_attr->mr_mode = q.offered;
      ::setenv("APERTURE_MR_MODE", setting, 1);
    });
    return a.code == 0 ? a.info->domain_attr->mr_mode : a.code;
  };
  EXPECT_EQ(answered("local_cache", {.offered = FI_MR_LOCAL}), FI_MR_LOCAL);
  EXPECT_EQ(answered("local_cache", {}), 0);
  EXPECT_EQ(answered("local", {}), -FI_ENODATA);
  EXPECT_EQ(answered("local,local_cache", {}), 0);
  EXPECT_EQ(answered("verbs,local_cache", {.offered = kBasicBits}), kBasicBits);
  EXPECT_EQ(answered("verbs,local_cache", {.offered = kBasicBits | FI_MR_LOCAL}),
            kBasicBits | FI_MR_LOCAL);
  EXPECT_EQ(answered("verbs,local_cache", {.offered = 0}), -FI_ENODATA);
  EXPECT_EQ(answered("local_cache", {.offered = kBasicBits, .caps = kInitiator}), 0);
  EXPECT_EQ(answered("local_cache", {.version = kApi14, .offered = kScalable}), kScalable);
  EXPECT_EQ(answered("local_cache", {.version = kApi14, .offered = kBasic}), kBasic);
}

TEST(MrModeSetting, its_words_are_the_bits) {
  EXPECT_EQ(demanded_by(""), 0);
  EXPECT_EQ(demanded_by("none"), 0);
  EXPECT_EQ(demanded_by("verbs"), kBasicBits | FI_MR_LOCAL);
  EXPECT_EQ(demanded_by(" raw , local "), FI_MR_RAW | FI_MR_LOCAL);
  EXPECT_EQ(demanded_by("verbs,endpoint"), kBasicBits | FI_MR_LOCAL | FI_MR_ENDPOINT);
  int all = 0;
  for (const auto& w : kMrWords) {
    EXPECT_EQ(demanded_by(w.word), w.bit) << w.word;
    all |= w.bit;
  }
  EXPECT_EQ(demanded_by(mr_words(all).c_str()), all);
}

TEST(MrModeSetting, other_words_refuse_the_answer) {
  for (const char* text : {"LOCAL", "FI_MR_LOCAL", "local,", ",local", "local,,raw", "local raw",
                           "none,local", "local,none", "all", "1", ","}) {
    EXPECT_EQ(demanded_by(text), -FI_ENODATA) << text;
  }
}

TEST(MrModeSetting, a_word_that_does_not_exist_refuses_every_answer) {
  const Demand demand(std::string("local,nonsense"));
  EXPECT_EQ(ask(kApi117, {}).code, -FI_ENODATA);
  EXPECT_EQ(ask(kApi14, {}).code, -FI_ENODATA);
  ::setenv("APERTURE_MR_MODE", "local", 1);
  EXPECT_EQ(ask(kApi117, [](fi_info& h) { h.domain_attr->mr_mode = FI_MR_LOCAL; }).code, 0)
      << "it is read at each call";
}

TEST(MrModeAnswer, what_nobody_demands_is_cleared) {
  const int all = kBasicBits | FI_MR_LOCAL | FI_MR_RAW | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT |
                  FI_MR_ENDPOINT | FI_MR_COLLECTIVE;
  for (uint32_t version : {kApi15, kApi111, kApi117, kApi20}) {
    EXPECT_EQ(answer({.version = version, .offered = all}, 0), 0);
    EXPECT_EQ(answer({.version = version, .offered = all, .mode = kLocalMr}, 0), 0);
    EXPECT_EQ(put({.version = version, .offered = all, .mode = kLocalMr}, 0).info->mode, 0u);
  }
}

TEST(MrModeAnswer, bits_of_targets_are_for_targets) {
  const int target_bits = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;
  const int region_bits = FI_MR_ALLOCATED | FI_MR_MMU_NOTIFY | FI_MR_ENDPOINT;
  for (uint64_t caps : {uint64_t{FI_MSG}, uint64_t{FI_TAGGED | FI_SEND}, kInitiator}) {
    EXPECT_EQ(answer({.caps = caps}, target_bits | region_bits), 0) << "there are no regions";
    EXPECT_EQ(answer({.offered = FI_MR_LOCAL, .caps = caps}, target_bits | FI_MR_LOCAL),
              FI_MR_LOCAL);
    EXPECT_EQ(answer({.offered = FI_MR_LOCAL, .caps = caps}, region_bits | FI_MR_LOCAL),
              -FI_ENODATA)
        << "local regions are regions";
  }
  for (uint64_t caps : {uint64_t{FI_RMA | FI_REMOTE_READ}, uint64_t{FI_ATOMIC}}) {
    EXPECT_EQ(answer({.offered = target_bits, .caps = caps}, target_bits), target_bits);
    EXPECT_EQ(answer({.caps = caps}, FI_MR_RAW), -FI_ENODATA);
  }
}

TEST(MrModeAnswer, local_is_for_those_that_have_local_buffers) {
  EXPECT_EQ(answer({.caps = FI_RMA | FI_REMOTE_WRITE}, FI_MR_LOCAL), 0);
  for (uint64_t caps : {uint64_t{FI_MSG | FI_SEND}, uint64_t{FI_MSG | FI_RECV},
                        uint64_t{FI_RMA | FI_READ}, uint64_t{FI_ATOMIC | FI_WRITE}}) {
    EXPECT_EQ(answer({.caps = caps}, FI_MR_LOCAL), -FI_ENODATA);
    EXPECT_EQ(answer({.offered = FI_MR_LOCAL, .caps = caps}, FI_MR_LOCAL), FI_MR_LOCAL);
  }
}

TEST(MrModeAnswer, hmem_goes_with_the_capability) {
  const int both = FI_MR_HMEM | FI_MR_LOCAL;
  EXPECT_EQ(answer({.offered = both}, FI_MR_HMEM), 0);
  EXPECT_EQ(answer({.offered = both, .caps = FI_MSG | FI_HMEM}, FI_MR_HMEM), FI_MR_HMEM);
  EXPECT_EQ(answer({.offered = FI_MR_LOCAL, .caps = FI_MSG | FI_HMEM}, FI_MR_HMEM), -FI_ENODATA);
  EXPECT_EQ(answer({.caps = FI_MSG}, FI_MR_HMEM), 0);
}

TEST(MrModeAnswer, hmem_came_with_1_10) {
  const uint64_t device = FI_MSG | FI_HMEM;
  for (uint32_t version : {kApi15, kApi19}) {
    EXPECT_EQ(answer({.version = version, .offered = FI_MR_HMEM}, 0), -FI_ENODATA);
    EXPECT_EQ(answer({.version = version, .caps = device}, 0), -FI_ENODATA);
  }
  for (uint32_t version : {kApi110, kApi117, kApi20}) {
    EXPECT_EQ(answer({.version = version, .offered = FI_MR_HMEM}, 0), 0);
    const Answer a = put({.version = version, .caps = device}, 0);
    ASSERT_EQ(a.code, 0);
    EXPECT_EQ(a.info->caps & FI_HMEM, uint64_t{FI_HMEM});
  }
  EXPECT_EQ(put({}, 0).info->caps & FI_HMEM, 0u) << "only when it is asked for";
}

TEST(MrModeAnswer, persistent_memory_is_a_property_of_rma) {
  const Answer a = put({.caps = FI_RMA | FI_RMA_PMEM}, 0);
  ASSERT_EQ(a.code, 0);
  EXPECT_EQ(a.info->caps & FI_RMA_PMEM, uint64_t{FI_RMA_PMEM});
  EXPECT_EQ(put({.caps = FI_MSG | FI_RMA_PMEM}, 0).code, -FI_ENODATA);
  EXPECT_EQ(put({}, 0).info->caps & FI_RMA_PMEM, 0u);
}

TEST(MrModeAnswer, bits_that_no_page_knows_are_refused) {
  EXPECT_EQ(answer({.offered = 1 << 12}, 0), -FI_ENODATA);
  EXPECT_EQ(answer({.offered = kBasicBits | 1 << 25}, 0), -FI_ENODATA);
  EXPECT_EQ(answer({.version = kApi15, .offered = ~(kBasic | kScalable)}, 0), 0)
      << "fi_info offers whatever there may be";
  EXPECT_EQ(answer({.version = kApi117, .offered = ~(kBasic | kScalable | FI_MR_LOCAL)}, 0), 0)
      << "and others all but what they cannot do";
  EXPECT_EQ(
      answer({.version = kApi117, .offered = ~(kBasic | kScalable | FI_MR_LOCAL)}, FI_MR_LOCAL),
      -FI_ENODATA);
  EXPECT_EQ(answer({.offered = ~(kBasic | kScalable | 1 << 25)}, 0), -FI_ENODATA);
  EXPECT_EQ(answer({.offered = ~0}, 0), -FI_ENODATA) << "FI_MR_BASIC stands alone";
}

TEST(MrModeAnswer, basic_stands_alone) {
  for (uint32_t version : {kApi14, kApi15, kApi110, kApi111, kApi117, kApi20}) {
    SCOPED_TRACE(FI_MINOR(version));
    EXPECT_EQ(answer({.version = version, .offered = kBasic}, 0), kBasic) << "never cleared";
    EXPECT_EQ(answer({.version = version, .offered = kBasic, .caps = FI_MSG}, 0), kBasic);
    EXPECT_EQ(answer({.version = version, .offered = kScalable}, 0), kScalable);
    EXPECT_EQ(answer({.version = version, .offered = kBasic | kScalable}, 0), -FI_ENODATA);
    for (const auto& w : kMrWords) {
      const bool paired = w.bit == FI_MR_LOCAL && version < kApi111;
      EXPECT_EQ(answer({.version = version, .offered = kBasic | w.bit}, 0),
                paired ? kBasic : -FI_ENODATA)
          << w.word;
      EXPECT_EQ(answer({.version = version, .offered = kScalable | w.bit}, 0), -FI_ENODATA);
    }
    EXPECT_EQ(answer({.version = version, .offered = kBasic | FI_MR_LOCAL | FI_MR_RAW}, 0),
              -FI_ENODATA);
  }
}

TEST(MrModeAnswer, basic_meets_what_it_stands_for) {
  for (uint32_t version : {kApi14, kApi15, kApi117}) {
    EXPECT_EQ(answer({.version = version, .offered = kBasic}, kBasicBits), kBasic);
    EXPECT_EQ(answer({.version = version, .offered = kBasic}, FI_MR_PROV_KEY), kBasic);
    EXPECT_EQ(answer({.version = version, .offered = kScalable}, FI_MR_PROV_KEY), -FI_ENODATA);
    for (int beyond : {FI_MR_RAW, FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT, FI_MR_ENDPOINT}) {
      EXPECT_EQ(answer({.version = version, .offered = kBasic}, beyond), -FI_ENODATA);
    }
    EXPECT_EQ(answer({.version = version, .offered = kBasic, .caps = FI_MSG}, FI_MR_RAW), kBasic);
  }
}

TEST(MrModeAnswer, local_goes_with_basic_where_it_is_offered) {
  EXPECT_EQ(answer({.version = kApi110, .offered = kBasic | FI_MR_LOCAL}, FI_MR_LOCAL),
            kBasic | FI_MR_LOCAL);
  EXPECT_EQ(answer({.version = kApi110, .offered = kBasic}, FI_MR_LOCAL), -FI_ENODATA);
  for (uint32_t version : {kApi14, kApi110, kApi117}) {
    const Answer a = put({.version = version, .offered = kBasic, .mode = kLocalMr}, FI_MR_LOCAL);
    ASSERT_EQ(a.code, 0);
    EXPECT_EQ(a.info->domain_attr->mr_mode, kBasic);
    EXPECT_EQ(a.info->mode, kLocalMr) << "that is how it was satisfied";
  }
}

TEST(MrModeAnswer, the_old_mode_bit_meets_local_where_no_newer_bit_is_set) {
  for (int offered : {0, kScalable, kBasic}) {
    const Answer a = put({.offered = offered, .mode = kLocalMr}, FI_MR_LOCAL);
    ASSERT_EQ(a.code, 0) << offered;
    EXPECT_EQ(a.info->mode, kLocalMr);
    EXPECT_EQ(a.info->domain_attr->mr_mode, offered);
  }
  EXPECT_EQ(answer({.offered = FI_MR_VIRT_ADDR, .mode = kLocalMr}, FI_MR_LOCAL), -FI_ENODATA)
      << "it is ignored beside newer bits";
  const Answer both = put({.offered = FI_MR_LOCAL, .mode = kLocalMr}, FI_MR_LOCAL);
  ASSERT_EQ(both.code, 0);
  EXPECT_EQ(both.info->mode, 0u) << "FI_MR_LOCAL replaces it";
  EXPECT_EQ(both.info->domain_attr->mr_mode, FI_MR_LOCAL);
}

TEST(MrModeAnswer, before_1_5_the_choice_is_ours) {
  EXPECT_EQ(answer({.version = kApi14}, 0), kScalable);
  EXPECT_EQ(answer({.version = kApi14}, FI_MR_VIRT_ADDR), kBasic);
  EXPECT_EQ(answer({.version = kApi14}, FI_MR_RAW), -FI_ENODATA);
  EXPECT_EQ(answer({.version = kApi14}, FI_MR_LOCAL), -FI_ENODATA);
  EXPECT_EQ(answer({.version = kApi14, .mode = kLocalMr}, FI_MR_LOCAL), kScalable);
  EXPECT_EQ(answer({.version = kApi14, .mode = kLocalMr}, kBasicBits | FI_MR_LOCAL), kBasic);
  EXPECT_EQ(answer({.version = kApi15}, FI_MR_VIRT_ADDR), -FI_ENODATA) << "0 means scalable there";
}

// The answer to no hints at all, or to hints without a domain part.
Answer ask_without(uint32_t version, bool hints, int demanded) {
  const Demand demand(demanded);
  const Info blank = blank_hints();
  std::free(blank->domain_attr);
  blank->domain_attr = nullptr;
  fi_info* info = nullptr;
  Answer a;
  a.code = provider().getinfo(version, nullptr, nullptr, 0, hints ? blank.get() : nullptr, &info);
  a.info.reset(info);
  blank->domain_attr = static_cast<fi_domain_attr*>(std::calloc(1, sizeof(fi_domain_attr)));
  return a;
}

TEST(MrModeAnswer, who_does_not_care_is_told_what_is_demanded) {
  const int all =
      kBasicBits | FI_MR_LOCAL | FI_MR_RAW | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT;
  for (bool hints : {false, true}) {
    EXPECT_EQ(ask_without(kApi117, hints, 0).info->domain_attr->mr_mode, 0);
    EXPECT_EQ(ask_without(kApi117, hints, all | FI_MR_HMEM).info->domain_attr->mr_mode, all);
    EXPECT_EQ(ask_without(kApi14, hints, kBasicBits).info->domain_attr->mr_mode, kBasic);
    const auto datagrams = ask_without(kApi14, hints, FI_MR_RAW);  // they have no remote keys
    ASSERT_EQ(datagrams.code, 0);
    EXPECT_EQ(datagrams.info->ep_attr->type, FI_EP_DGRAM);
    EXPECT_EQ(datagrams.info->next, nullptr);
  }
  EXPECT_EQ(ask_without(kApi14, false, FI_MR_LOCAL).info->mode, kLocalMr);
  EXPECT_EQ(ask_without(kApi14, true, FI_MR_LOCAL).code, -FI_ENODATA) << "its mode is stated: 0";
}

TEST(MrModeAnswer, keys_are_16_bytes_where_raw_keys_are_demanded) {
  EXPECT_EQ(put({.offered = FI_MR_RAW}, FI_MR_RAW).info->domain_attr->mr_key_size, 16u);
  EXPECT_EQ(put({.offered = FI_MR_RAW}, 0).info->domain_attr->mr_key_size, 8u);
  EXPECT_EQ(put({.caps = FI_MSG}, FI_MR_RAW).info->domain_attr->mr_key_size, 8u);
}

// ---- descriptors, in versions that libfabric here does not let through --------------------

// What fi_send of 8 bytes answers, with NULL and with what nobody handed out.
struct Sent {
  ssize_t null;
  ssize_t made_up;
};
Sent sent_with(uint32_t version, int demanded) {
  Bench b(offering(demanded), version);
  const fi_addr_t own = b.enable();
  char bytes[8] = {};
  return {fi_send(b.ep.get(), bytes, sizeof bytes, nullptr, own, &b),
          fi_send(b.ep.get(), bytes, sizeof bytes, &bytes, own, &b)};
}

TEST(MrModeDescriptors, are_valid_or_null_from_1_22_on) {
  for (uint32_t version : {kApi15, kApi117, uint32_t{FI_VERSION(1, 21)}}) {
    const Sent s = sent_with(version, 0);
    EXPECT_EQ(s.null, 0) << FI_MINOR(version);
    EXPECT_EQ(s.made_up, 0) << "ignored before";
  }
  for (uint32_t version : {uint32_t{FI_VERSION(1, 22)}, kApi20}) {
    const Sent s = sent_with(version, 0);
    EXPECT_EQ(s.null, 0) << FI_MINOR(version);
    EXPECT_EQ(s.made_up, -FI_EACCES) << FI_MINOR(version);
  }
}

TEST(MrModeDescriptors, are_demanded_by_local_in_every_version) {
  for (uint32_t version : {kApi15, kApi117, kApi20}) {
    const Sent s = sent_with(version, FI_MR_LOCAL);
    EXPECT_EQ(s.null, -FI_EINVAL) << FI_MINOR(version);
    EXPECT_EQ(s.made_up, -FI_EACCES) << FI_MINOR(version);
  }
}

}  // namespace
}  // namespace aperture::provider_tests
