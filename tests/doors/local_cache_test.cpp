// APERTURE_MR_MODE=local_cache: the provider registers local buffers for who does not offer
// FI_MR_LOCAL, and keeps the registrations. fi_mr(3), "MEMORY REGISTRATION CACHE".
//
// Each case is a process of its own, which says as it closes its domains what was registered there.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
constexpr int kRounds = 50;

uint8_t* map(size_t pages, void* where = nullptr, int rights = PROT_READ | PROT_WRITE) {
  const int fixed = where != nullptr ? MAP_FIXED : 0;
  void* const at = ::mmap(where, pages * kPage, rights, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  check(at != MAP_FAILED ? 0 : -errno, "mmap");
  return static_cast<uint8_t*>(at);
}

// A pair of which a sends and b receives into memory that is never the same: it counts for a alone.
struct Play {
  Play() : p({.wait = FI_WAIT_NONE}), landing(map(1)) {}
  // What arrives when `len` bytes from there are sent.
  std::vector<uint8_t> sent(const uint8_t* from, size_t len) {
    Op receive;
    check(fi_recv(p.b.ep(), landing, kPage, nullptr, FI_ADDR_UNSPEC, &receive), "fi_recv");
    check(p.a.run(fi_send, from, len, nullptr, p.to_b), "fi_send");
    check(-p.b.wait(&receive).err, "the receive");
    return {landing, landing + len};
  }
  NodePair p;
  uint8_t* landing;
};

// What one domain has said.
struct Said {
  std::string monitor;
  uint64_t met = 0, made = 0, not_kept = 0, dropped = 0, evicted = 0;
};
std::vector<Said> all_said(const std::string& text) {
  std::vector<Said> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("registrations of local buffers");
    if (at == std::string::npos) continue;
    Said said;
    char monitor[16] = "";
    const int read =
        std::sscanf(line.c_str() + at,
                    "registrations of local buffers, monitor %15[a-z]: %" SCNu64
                    " uses met one, %" SCNu64 " were made (%" SCNu64 " of them not kept), %" SCNu64
                    " dropped since their memory had changed, %" SCNu64 " for want of room",
                    monitor, &said.met, &said.made, &said.not_kept, &said.dropped, &said.evicted);
    EXPECT_EQ(read, 6) << line;
    said.monitor = monitor;
    all.push_back(said);
  }
  return all;
}

class LocalCache : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << "about aperture";
    set("APERTURE_MR_MODE", "local_cache");
  }
  void TearDown() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  // What the sender's domain said: that which was opened first is closed last.
  Said sender_of(const char* role) {
    text = said_by(role, "info");
    const std::vector<Said> all = all_said(text);
    EXPECT_EQ(all.size(), 2u) << text;
    return all.empty() ? Said() : all.back();
  }
  std::string text;

 private:
  std::vector<std::string> set_;
};

class LocalCacheBy : public LocalCache, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    LocalCache::SetUp();
    set("FI_MR_CACHE_MONITOR", GetParam());
    // where the kernel permits none the same calls work all the same
  }
  bool is_there(const Said& said) const { return said.monitor == GetParam(); }
  std::string why_not() const { return "no kernel feature: " + text; }
};
INSTANTIATE_TEST_SUITE_P(Monitors, LocalCacheBy, testing::Values("userfaultfd", "memhooks"),
                         [](const auto& monitor) { return std::string(monitor.param); });

// --- keeping ---

DOOR_ROLE(sends_the_same_buffer) {
  if (!say_to_parent()) return 1;
  Play y;
  uint8_t* const buf = map(1);
  for (int i = 0; i < kRounds; ++i) {
    buf[0] = static_cast<uint8_t>(i);
    if (y.sent(buf, kPage)[0] != i) return 2;
  }
  return control.put(true) ? 0 : 3;
}

TEST_P(LocalCacheBy, a_registration_is_kept_for_the_next_use) {
  const Said said = sender_of("sends_the_same_buffer");
  if (!is_there(said)) GTEST_SKIP() << why_not();
  EXPECT_EQ(said.met + said.made, uint64_t{kRounds});
  EXPECT_GE(said.met, uint64_t{kRounds} / 2) << text;
}

// In the place of memory that was there, with other bytes.
DOOR_ROLE(sends_from_memory_that_is_mapped_anew) {
  if (!say_to_parent()) return 1;
  Play y;
  uint8_t* const buf = map(2);
  for (int i = 0; i < kRounds; ++i) {
    ::munmap(buf, 2 * kPage);
    map(2, buf);
    ::usleep(1000);  // while a monitor is just reading a change nothing is kept
    buf[kPage] = static_cast<uint8_t>(i);
    if (y.sent(buf + kPage, 8)[0] != i) return 2;
  }
  return control.put(true) ? 0 : 3;
}

TEST_P(LocalCacheBy, memory_that_has_changed_is_registered_anew) {
  for (const char* check : {"", "1"}) {
    set("APERTURE_MR_CACHE_CHECK", check);
    const Said said = sender_of("sends_from_memory_that_is_mapped_anew");
    if (!is_there(said)) GTEST_SKIP() << why_not();
    EXPECT_EQ(said.made, uint64_t{kRounds}) << text;
    EXPECT_EQ(said.met, 0u) << text;
    EXPECT_GT(said.dropped, 0u) << text;
    EXPECT_EQ(text.find("was kept although its memory has changed"), std::string::npos) << text;
  }
}

// --- limits ---

DOOR_ROLE(sends_many_buffers) {
  if (!say_to_parent()) return 1;
  Play y;
  constexpr int kBuffers = 8;
  uint8_t* const all = map(2 * kBuffers);
  for (int i = 0; i < kBuffers; ++i) ::mprotect(all + (2 * i + 1) * kPage, kPage, PROT_NONE);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kBuffers; ++i) y.sent(all + 2 * i * kPage, kPage);
  }
  return control.put(true) ? 0 : 3;
}

TEST_P(LocalCacheBy, no_more_are_kept_than_the_limits_allow) {
  const Said all = sender_of("sends_many_buffers");
  if (!is_there(all)) GTEST_SKIP() << why_not();
  EXPECT_EQ(all.evicted, 0u) << "there is room by default: " << text;
  EXPECT_GT(all.met, 0u) << text;
  for (const char* limit : {"FI_MR_CACHE_MAX_COUNT", "FI_MR_CACHE_MAX_SIZE"}) {
    SCOPED_TRACE(limit);
    set(limit, limit == std::string("FI_MR_CACHE_MAX_COUNT") ? "2" : std::to_string(2 * kPage));
    const Said said = sender_of("sends_many_buffers");
    ::unsetenv(limit);
    EXPECT_EQ(said.met, 0u) << "of eight in turn none of two is met again: " << text;
    EXPECT_GT(said.evicted, 0u) << text;
  }
  set("FI_MR_CACHE_MAX_SIZE", std::to_string(kPage - 1));
  EXPECT_EQ(sender_of("sends_many_buffers").not_kept, 16u) << text;
}

TEST_F(LocalCache, switched_off_it_keeps_nothing) {
  const std::pair<const char*, const char*> ways[] = {{"FI_MR_CACHE_MONITOR", "disabled"},
                                                      {"FI_MR_CACHE_MAX_COUNT", "0"},
                                                      {"FI_MR_CACHE_MONITOR", "kdreg2"}};
  for (const auto& [name, value] : ways) {
    SCOPED_TRACE(std::string(name) + "=" + value);
    set(name, value);
    const Said said = sender_of("sends_the_same_buffer");
    ::unsetenv(name);
    EXPECT_EQ(said.monitor, "none");
    EXPECT_EQ(said.met, 0u);
    EXPECT_EQ(said.made, uint64_t{kRounds});
    EXPECT_EQ(said.not_kept, uint64_t{kRounds});
    EXPECT_EQ(text.find("kdreg2: there is no such monitor") != std::string::npos,
              std::string(value) == "kdreg2")
        << text;
  }
}

// --- what cannot be registered ---

DOOR_ROLE(uses_what_is_not_there) {
  if (!say_to_parent()) return 1;
  Play y;
  uint8_t* const constant = map(1, nullptr, PROT_READ);
  uint8_t* const buf = map(2);
  ::munmap(buf + kPage, kPage);
  Op op;
  fid_ep* const ep = y.p.a.ep();
  const int64_t gone = fi_send(ep, buf + kPage - 4, 8, nullptr, y.p.to_b, &op);
  const int64_t into = fi_recv(ep, constant, 8, nullptr, FI_ADDR_UNSPEC, &op);
  const bool quiet = y.p.a.quiet(2) && y.p.b.quiet(2);
  const bool from = y.sent(constant, 8) == std::vector<uint8_t>(8);
  const bool right = gone == -FI_EFAULT && into == -FI_EFAULT && quiet && from;
  return control.put(right) && right ? 0 : 2;
}

TEST_F(LocalCache, what_could_not_be_pinned_is_refused_and_says_so) {
  const std::string said = said_by("uses_what_is_not_there", "warn");
  EXPECT_NE(said.find("fi_send: not all of the 8 bytes"), std::string::npos) << said;
  EXPECT_NE(said.find("fi_recv: not all of the 8 bytes"), std::string::npos) << said;
}

// What was kept for it is not relied on: the copy would be the end of the process.
DOOR_ROLE(receives_into_what_was_writable) {
  if (!say_to_parent()) return 1;
  Play y;
  const uint8_t* const from = map(1);
  for (int i = 0; i < kRounds; ++i) y.sent(from, kPage);
  ::mprotect(y.landing, kPage, PROT_READ);
  Op op;
  const int64_t into = fi_recv(y.p.b.ep(), y.landing, 8, nullptr, FI_ADDR_UNSPEC, &op);
  const bool quiet = y.p.b.quiet(2);
  ::mprotect(y.landing, kPage, PROT_READ | PROT_WRITE);
  const bool right = into == -FI_EFAULT && quiet && y.sent(from, 8) == std::vector<uint8_t>(8);
  return control.put(right) && right ? 0 : 2;
}

TEST_P(LocalCacheBy, memory_whose_rights_were_taken_is_refused_also_if_it_was_kept) {
  const Said said = sender_of("receives_into_what_was_writable");
  if (!is_there(said)) GTEST_SKIP() << why_not();
}

// --- for whom it is ---

TEST_F(LocalCache, who_offers_fi_mr_local_registers_as_before) {
  Options options{.mr_mode = FI_MR_LOCAL};
  NodePair p(options);
  Op op;
  EXPECT_EQ(fi_send(p.a.ep(), "12345678", 8, nullptr, p.to_b, &op), -FI_EINVAL);
}

}  // namespace
}  // namespace aperture::doors
