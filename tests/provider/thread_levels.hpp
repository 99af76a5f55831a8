// Each threading level, with as many threads as it permits, over each type of endpoint: the tests
// of thread_play.hpp, for one file of each program that plays them. fi_domain(3), "Multi-threading
// Support".
#pragma once

#include <string>
#include <tuple>

#include "provider/thread_play.hpp"

namespace aperture::thread_play {

// The program's: see Place.
Place open_place(fi_threading level, fi_ep_type type);

// Two domains of that level and type.
class Levels : public testing::TestWithParam<std::tuple<fi_threading, fi_ep_type>> {
 protected:
  Opened<fid_domain> open_domain() {
    return opened("fi_domain", fi_domain, place.fabric.get(), place.info.get());
  }
  void play(fid_domain* a, fid_domain* b) { play_pair(place, a, b, level); }

  const fi_threading level = std::get<0>(GetParam());
  const Place place = open_place(level, std::get<1>(GetParam()));
  const Opened<fid_domain> first = open_domain(), second = open_domain();
};
using ThreadsOfDomains = Levels;
class ThreadsOfOneDomain : public Levels {};

inline const auto kInOneDomain =
    testing::Values(FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT, FI_THREAD_COMPLETION);
// Of the last one, a domain is one thread's at a time.
inline const auto kAll = testing::Values(FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT,
                                         FI_THREAD_COMPLETION, FI_THREAD_DOMAIN);
inline const auto kTypes = testing::Values(FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM);

inline std::string name_of(const testing::TestParamInfo<Levels::ParamType>& p) {
  const auto [level, type] = p.param;
  const char* const of = type == FI_EP_RDM ? "rdm" : type == FI_EP_MSG ? "msg" : "dgram";
  switch (level) {
    case FI_THREAD_SAFE: return std::string("safe_") + of;
    case FI_THREAD_FID: return std::string("fid_") + of;
    case FI_THREAD_ENDPOINT: return std::string("endpoint_") + of;
    case FI_THREAD_COMPLETION: return std::string("completion_") + of;
    default: return std::string("domain_") + of;
  }
}
INSTANTIATE_TEST_SUITE_P(levels, ThreadsOfDomains, testing::Combine(kAll, kTypes), name_of);
INSTANTIATE_TEST_SUITE_P(levels, ThreadsOfOneDomain, testing::Combine(kInOneDomain, kTypes),
                         name_of);

TEST_P(ThreadsOfDomains, have_the_level_asked_for) {
  EXPECT_EQ(place.info->domain_attr->threading, level);
}

TEST_P(ThreadsOfDomains, pass_messages_between_the_two) {
  play(first.get(), second.get());
}

TEST_P(ThreadsOfOneDomain, pass_messages) {
  play(first.get(), first.get());
}

}  // namespace aperture::thread_play
