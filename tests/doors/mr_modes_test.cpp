// All 512 settings of the nine mr_mode bits: what fi_getinfo answers, and what a domain that was
// opened with the answer then demands: one transfer that obeys, and one that breaks each bit.
// fi_mr(3).
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "doors/demand.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

constexpr int kAllBits = FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
                         FI_MR_PROV_KEY | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT |
                         FI_MR_HMEM;
constexpr int kSettings = 512;
constexpr uint64_t kEverybody = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RMA_EVENT | FI_HMEM;

// The n-th setting: bit i of n stands for the i-th word.
int bits_of_setting(int n) {
  int bits = 0;
  for (size_t i = 0; i < std::size(kMrWords); ++i) {
    if ((n >> i & 1) != 0) bits |= kMrWords[i].bit;
  }
  return bits;
}

// ---- what is answered ---------------------------------------------------------------------------

// Capabilities, and the bits that matter to who asks for them.
struct Caps {
  const char* name;
  uint64_t caps;
  int (*matter)(int demanded);
};

int to_everybody(int demanded) {
  return demanded;
}
int to_a_target(int demanded) {
  return demanded & ~FI_MR_HMEM;
}
int to_a_target_only(int demanded) {
  return demanded & ~(FI_MR_HMEM | FI_MR_LOCAL);
}
// Without remote access regions are there for local buffers, if those have to be registered.
int to_local_buffers(int demanded) {
  constexpr int of_targets = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;
  if ((demanded & FI_MR_LOCAL) == 0) return 0;
  return demanded & ~(of_targets | FI_MR_HMEM);
}

constexpr Caps kCaps[] = {
    {"everything", kEverybody, to_everybody},
    {"targets", FI_MSG | FI_RMA, to_a_target},
    {"targets only", FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE, to_a_target_only},
    {"messages", FI_MSG | FI_TAGGED, to_local_buffers},
    {"initiators", FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE, to_local_buffers},
};

class MrModes : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << "others demand what they demand";
  }
  void ask_about(const Caps& c);
};

// The mr_mode of the answer, or the negative code.
int answer_to(fi_info& hints, int offered) {
  hints.domain_attr->mr_mode = offered;
  fi_info* list = nullptr;
  const int code = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, &hints, &list);
  const Info answer(list);
  if (code != 0) return code;
  const int mode = answer->domain_attr->mr_mode;
  const size_t key_size = answer->domain_attr->mr_key_size;
  EXPECT_EQ(key_size, (mode & FI_MR_RAW) != 0 ? 16u : 8u);
  return mode;
}

void MrModes::ask_about(const Caps& c) {
  const Info hints = make_hints({.caps = c.caps});
  for (int n = 0; n < kSettings; ++n) {
    const int demanded = bits_of_setting(n);
    const Demand demand(demanded);
    const int matter = c.matter(demanded);
    ASSERT_EQ(answer_to(*hints, kAllBits), matter) << mr_words(demanded);
    for (const auto& word : kMrWords) {
      const int expected = (matter & word.bit) != 0 ? -FI_ENODATA : matter;
      ASSERT_EQ(answer_to(*hints, kAllBits & ~word.bit), expected)
          << mr_words(demanded) << " demanded, all but " << word.word << " offered";
    }
  }
}

TEST_F(MrModes, every_setting_is_answered_to_those_who_do_everything) {
  ask_about(kCaps[0]);
}
TEST_F(MrModes, every_setting_is_answered_to_targets) {
  ask_about(kCaps[1]);
  ask_about(kCaps[2]);
}
TEST_F(MrModes, every_setting_is_answered_to_those_who_are_no_targets) {
  ask_about(kCaps[3]);
  ask_about(kCaps[4]);
}

// ---- what is then demanded ----------------------------------------------------------------------

constexpr size_t kLen = 8;
constexpr uint64_t kRequested = 0x5eed;

// A page that can be taken away and put back at the same place.
class Page {
 public:
  Page() : at_(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, kFlags, -1, 0)) {}
  ~Page() { ::munmap(at_, kSize); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  void* data() const { return at_; }
  // reserved, and nothing there: nobody else is given the place meanwhile
  void take_away() { put(PROT_NONE); }
  void put_back() { put(PROT_READ | PROT_WRITE); }
  uint64_t word() const {
    uint64_t out = 0;
    std::memcpy(&out, at_, sizeof out);
    return out;
  }
  static constexpr size_t kSize = 4096;

 private:
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  void put(int protection) {
    ASSERT_EQ(::munmap(at_, kSize), 0);
    if (protection == PROT_NONE) return;
    ASSERT_EQ(::mmap(at_, kSize, protection, kFlags | MAP_FIXED_NOREPLACE, -1, 0), at_);
  }
  void* at_;
};

// What is left out of the rules for a region that is to be refused.
struct Omit {
  bool enable = false;
  bool event_flag = false;
};

// One pair opened with one setting.
class Trial {
 public:
  explicit Trial(int demanded) : mode_(demanded), p_(options(demanded)) {}
  ~Trial();

  int mode() const { return mode_; }
  bool demands(int bit) const { return (mode_ & bit) != 0; }
  Node& a() { return p_.a; }
  Node& b() { return p_.b; }

  // Registers as the mode demands. 0 or the code of the call that refused.
  int add(Node& node, Page& page, uint64_t access, fid_mr** out, Omit omit = {});
  // b's region as a reaches it: key and address by the mode.
  void publish(fid_mr* mr, const Page& page);
  // Writes kLen bytes with that descriptor, key and address: the code of the post, or the error of
  // the completion.
  int64_t write(void* desc, uint64_t key, uint64_t addr);

  Page source;
  Page target;
  fid_mr* source_mr = nullptr;
  fid_mr* target_mr = nullptr;
  void* desc = nullptr;
  uint64_t key = 0;
  uint64_t addr = 0;
  fid_cntr* counter = nullptr;

 private:
  static Options options(int demanded) { return {.caps = kEverybody, .mr_mode = demanded}; }
  int mode_;
  NodePair p_;
  std::vector<fid_mr*> regions_;
  std::vector<fid_cntr*> counters_;
  std::vector<uint64_t> mapped_;
};

// Everything that is bound to regions goes first, then the regions, without a complaint.
Trial::~Trial() {
  for (uint64_t k : mapped_) EXPECT_EQ(fi_mr_unmap_key(a().domain(), k), 0);
  a().close_endpoint();
  b().close_endpoint();
  for (fid_cntr* c : counters_) EXPECT_EQ(fi_close(&c->fid), 0);
  for (fid_mr* mr : regions_) EXPECT_EQ(fi_close(&mr->fid), 0);
}

int Trial::add(Node& node, Page& page, uint64_t access, fid_mr** out, Omit omit) {
  const bool counts = demands(FI_MR_RMA_EVENT) && !omit.event_flag && &node == &b();
  const iovec iov{page.data(), Page::kSize};
  fi_mr_attr attr{.mr_iov = &iov,
                  .iov_count = 1,
                  .access = access,
                  .requested_key = kRequested + regions_.size(),
                  .iface = FI_HMEM_SYSTEM};
  const uint64_t flags = counts ? FI_RMA_EVENT : 0;
  if (const int rc = fi_mr_regattr(node.domain(), &attr, flags, out); rc != 0) return rc;
  regions_.push_back(*out);
  if (omit.enable) return 0;
  if (counts) {
    fi_cntr_attr cntr_attr{};
    if (const int rc = fi_cntr_open(node.domain(), &cntr_attr, &counter, nullptr); rc != 0)
      return rc;
    counters_.push_back(counter);
    if (const int rc = fi_mr_bind(*out, &counter->fid, FI_REMOTE_WRITE); rc != 0) return rc;
  }
  if (demands(FI_MR_ENDPOINT)) {
    if (const int rc = fi_mr_bind(*out, &node.ep()->fid, 0); rc != 0) return rc;
  }
  return counts || demands(FI_MR_ENDPOINT) ? fi_mr_enable(*out) : 0;
}

void Trial::publish(fid_mr* mr, const Page& page) {
  addr = demands(FI_MR_VIRT_ADDR) ? reinterpret_cast<uint64_t>(page.data()) : 0;
  key = fi_mr_key(mr);
  if (!demands(FI_MR_RAW)) return;
  EXPECT_EQ(key, FI_KEY_NOTAVAIL);
  uint64_t base = 0;
  uint8_t raw[16];
  size_t size = sizeof raw;
  ASSERT_EQ(fi_mr_raw_attr(mr, &base, raw, &size, 0), 0);
  EXPECT_EQ(base, addr);
  ASSERT_EQ(fi_mr_map_raw(a().domain(), base, raw, size, &key, 0), 0);
  mapped_.push_back(key);
}

int64_t Trial::write(void* with, uint64_t to_key, uint64_t to_addr) {
  Op op;
  const int64_t code = a().post(fi_write, source.data(), kLen, with, p_.to_b, to_addr, to_key, &op);
  return code != 0 ? code : a().wait(&op).err;
}

// Sets up one transfer by all the rules, and runs it.
void obey(Trial& t) {
  if (t.demands(FI_MR_LOCAL)) {
    ASSERT_EQ(t.add(t.a(), t.source, FI_WRITE, &t.source_mr), 0);
    t.desc = fi_mr_desc(t.source_mr);
  }
  // memory that comes after its registration, where that is allowed
  const bool late = t.demands(FI_MR_MMU_NOTIFY) && !t.demands(FI_MR_ALLOCATED);
  if (late) t.target.take_away();
  ASSERT_EQ(t.add(t.b(), t.target, FI_REMOTE_WRITE, &t.target_mr), 0);
  if (late) {
    t.target.put_back();
    ASSERT_EQ(fi_mr_refresh(t.target_mr, nullptr, 0, 0), 0);
  }
  ASSERT_NO_FATAL_FAILURE(t.publish(t.target_mr, t.target));
  if (!t.demands(FI_MR_PROV_KEY) && !t.demands(FI_MR_RAW)) {
    EXPECT_EQ(t.key & ~uint64_t{0xFF}, kRequested & ~uint64_t{0xFF}) << "the key asked for";
  }
  std::memcpy(t.source.data(), "obedient", kLen);
  ASSERT_EQ(t.write(t.desc, t.key, t.addr), 0);
  EXPECT_EQ(t.target.word(), t.source.word());
  if (t.demands(FI_MR_RMA_EVENT)) {
    EXPECT_TRUE(pump_until([&] { return fi_cntr_read(t.counter) == 1; }));
  }
}

// ---- one break for each bit ---------------------------------------------------------------------

void break_local(Trial& t) {
  EXPECT_EQ(t.write(nullptr, t.key, t.addr), -FI_EINVAL);
}

void break_raw(Trial& t) {
  EXPECT_EQ(t.write(t.desc, t.key + 1, t.addr), -FI_ENOKEY) << "never mapped";
  EXPECT_EQ(t.write(t.desc, kRequested, t.addr), -FI_ENOKEY);
}

void break_virt_addr(Trial& t) {
  EXPECT_EQ(t.write(t.desc, t.key, 0), FI_EACCES);
}

void break_allocated(Trial& t) {
  Page page;
  page.take_away();
  fid_mr* mr = nullptr;
  EXPECT_EQ(t.add(t.b(), page, FI_REMOTE_WRITE, &mr), -FI_EFAULT);
  EXPECT_EQ(mr, nullptr);
  page.put_back();
}

// The key that was asked for is nobody's.
void break_prov_key(Trial& t) {
  const int64_t expected = t.demands(FI_MR_RAW) ? -FI_ENOKEY : FI_EACCES;
  for (uint64_t n = 0; n < 4; ++n) EXPECT_EQ(t.write(t.desc, kRequested + n, t.addr), expected);
}

void break_mmu_notify(Trial& t) {
  Page page;
  // only an address within the region can be refreshed
  const iovec beyond{t.target.data(), Page::kSize + 1};
  EXPECT_EQ(fi_mr_refresh(t.target_mr, &beyond, 1, 0), -FI_EINVAL);
  if (t.demands(FI_MR_ALLOCATED)) return;  // so each page was there when it was looked at
  page.take_away();
  fid_mr* mr = nullptr;
  ASSERT_EQ(t.add(t.b(), page, FI_REMOTE_WRITE, &mr), 0);
  page.put_back();
  ASSERT_NO_FATAL_FAILURE(t.publish(mr, page));
  EXPECT_EQ(t.write(t.desc, t.key, t.addr), FI_EACCES) << "nobody was told of the page";
  EXPECT_EQ(page.word(), 0u);
}

void break_rma_event(Trial& t) {
  Page page;
  fid_mr* mr = nullptr;
  ASSERT_EQ(t.add(t.b(), page, FI_REMOTE_WRITE, &mr, {.enable = true}), 0);
  ASSERT_NO_FATAL_FAILURE(t.publish(mr, page));
  EXPECT_EQ(t.write(t.desc, t.key, t.addr), FI_EACCES) << "not enabled";
  EXPECT_EQ(page.word(), 0u);
  ASSERT_EQ(t.add(t.b(), page, FI_REMOTE_WRITE, &mr, {.enable = true, .event_flag = true}), 0);
  EXPECT_EQ(fi_mr_bind(mr, &t.counter->fid, FI_REMOTE_WRITE), -FI_EINVAL) << "without the flag";
  EXPECT_EQ(fi_mr_bind(t.target_mr, &t.counter->fid, FI_REMOTE_WRITE), -FI_EOPBADSTATE)
      << "enabled already";
}

void break_endpoint(Trial& t) {
  Page page;
  fid_mr* mr = nullptr;
  ASSERT_EQ(t.add(t.b(), page, FI_REMOTE_WRITE, &mr, {.enable = true, .event_flag = true}), 0);
  EXPECT_EQ(fi_mr_enable(mr), -FI_EOPBADSTATE) << "no endpoint is bound";
  ASSERT_NO_FATAL_FAILURE(t.publish(mr, page));
  EXPECT_EQ(t.write(t.desc, t.key, t.addr), FI_EACCES);
  EXPECT_EQ(page.word(), 0u);
  EXPECT_EQ(fi_mr_bind(mr, &t.b().ep()->fid, FI_REMOTE_WRITE), -FI_EBADFLAGS);
}

void break_hmem(Trial& t) {
  Page page;
  const iovec iov{page.data(), Page::kSize};
  fi_mr_attr attr{.mr_iov = &iov,
                  .iov_count = 1,
                  .access = FI_REMOTE_WRITE,
                  .requested_key = kRequested + 1000,
                  .iface = FI_HMEM_CUDA};
  fid_mr* mr = nullptr;
  EXPECT_EQ(fi_mr_regattr(t.b().domain(), &attr, 0, &mr), -FI_ENOSYS) << "no device memory yet";
  EXPECT_EQ(t.write(page.data(), t.key, t.addr), -FI_EACCES) << "a descriptor is valid or NULL";
}

struct Break {
  int bit;
  void (*run)(Trial& t);
};
constexpr Break kBreaks[] = {
    {FI_MR_LOCAL, break_local},         {FI_MR_RAW, break_raw},
    {FI_MR_VIRT_ADDR, break_virt_addr}, {FI_MR_ALLOCATED, break_allocated},
    {FI_MR_PROV_KEY, break_prov_key},   {FI_MR_MMU_NOTIFY, break_mmu_notify},
    {FI_MR_RMA_EVENT, break_rma_event}, {FI_MR_ENDPOINT, break_endpoint},
    {FI_MR_HMEM, break_hmem},
};

// Runs the settings whose number has that remainder modulo 4.
void run_settings(int remainder) {
  for (int n = remainder; n < kSettings; n += 4) {
    SCOPED_TRACE(mr_words(bits_of_setting(n)));
    Trial t(bits_of_setting(n));
    ASSERT_EQ(t.a().info()->domain_attr->mr_mode, t.mode());
    ASSERT_NO_FATAL_FAILURE(obey(t));
    const uint64_t key = t.key, addr = t.addr, there = t.target.word();
    for (const Break& b : kBreaks) {
      if (!t.demands(b.bit)) continue;
      SCOPED_TRACE(mr_words(b.bit) + " is broken");
      ASSERT_NO_FATAL_FAILURE(b.run(t));
      t.key = key;
      t.addr = addr;
    }
    EXPECT_EQ(t.target.word(), there) << "what was refused has written";
    // what was refused has hurt nobody
    ASSERT_EQ(t.write(t.desc, key, addr), 0);
    if (testing::Test::HasFailure()) return;
  }
}

TEST_F(MrModes, settings_1_mod_4_are_obeyed_and_broken) {
  run_settings(1);
}
TEST_F(MrModes, settings_0_mod_4_are_obeyed_and_broken) {
  run_settings(0);
}
TEST_F(MrModes, settings_2_mod_4_are_obeyed_and_broken) {
  run_settings(2);
}
TEST_F(MrModes, settings_3_mod_4_are_obeyed_and_broken) {
  run_settings(3);
}

}  // namespace
}  // namespace aperture::doors
