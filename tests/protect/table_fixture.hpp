// A key table with the little that each test of protect/ asks of it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/clock.hpp"
#include "protect/key_table.hpp"
#include "protect/peer_key_view.hpp"

namespace aperture::protect {

constexpr DomainId kPd = 7;
constexpr DomainId kOtherPd = 8;
constexpr uint64_t kBase = 0x100000;
constexpr uint64_t kLength = 4096;
constexpr Rights kReadWrite = Rights::remote_read | Rights::remote_write;

// A region in which only what is named is out of the ordinary.
struct Differing {
  uint64_t base = kBase;
  uint64_t length = kLength;
  Rights rights = kReadWrite;
  DomainId pd = kPd;
  std::optional<uint64_t> key = {};  // requested
  std::optional<uint64_t> origin = {};
  EndpointId bound_to = 0;
  bool zero_based = false;
  bool enabled = true;
};
inline RegionSpec spec_with(const Differing& d) {
  return {d.pd, d.base, d.length, d.rights, d.zero_based, d.origin, d.bound_to, d.enabled, d.key};
}
inline RegionSpec spec_of(uint64_t base = kBase, uint64_t length = kLength,
                          Rights rights = kReadWrite) {
  return spec_with({.base = base, .length = length, .rights = rights});
}

// The same for what is asked.
struct Asking {
  uint64_t key;
  uint64_t addr = kBase;
  uint64_t len = 8;
  Rights need = Rights::remote_write;
  DomainId pd = kPd;
  EndpointId peer = 0;
  EndpointId through = 0;
  uint64_t secret = 0;
};
inline AccessAsk ask_with(const Asking& a) {
  return {a.pd,   a.peer,    Wild<uint64_t>(a.key),   Wild<uint64_t>(a.addr), Wild<uint64_t>(a.len),
          a.need, a.through, Wild<uint64_t>(a.secret)};
}
inline AccessAsk ask_of(uint64_t key, uint64_t addr = kBase, uint64_t len = 8,
                        Rights need = Rights::remote_write) {
  return ask_with({.key = key, .addr = addr, .len = len, .need = need});
}

// A region's side record with one buffer.
inline std::unique_ptr<SideRecord> side_over(std::byte* base, uint64_t length) {
  auto side = std::make_unique<SideRecord>();
  side->segments.push_back({base, length, std::nullopt});
  return side;
}

// A thread whose fate the test decides.
class StagedProbe final : public ThreadProbe {
 public:
  ThreadState look(pid_t, pid_t tid, uint64_t start_time) noexcept override {
    ++looks;
    last_tid = tid;
    last_start = start_time;
    return state;
  }
  bool is_over(pid_t, uint64_t start_time) noexcept override {
    ++process_looks;
    last_start = start_time;
    return process_over;
  }
  ThreadState state = ThreadState::running;
  bool process_over = false;
  int looks = 0, process_looks = 0;
  pid_t last_tid = 0;
  uint64_t last_start = 0;
};

class TableTest : public ::testing::Test {
 protected:
  void SetUp() override { make(KeyTable::kDefaultRegions); }
  void make(uint32_t max_regions) {
    Result<std::unique_ptr<KeyTable>> made = KeyTable::create(max_regions);
    ASSERT_TRUE(made) << describe(made.error());
    table = *std::move(made);
  }
  RegionHandle add(const RegionSpec& spec = spec_of()) {
    Result<RegionHandle> made = table->add(spec);
    EXPECT_TRUE(made) << describe(made.error());
    return made ? *made : RegionHandle{};
  }
  RegionHandle add(const RegionSpec& spec, std::unique_ptr<SideRecord> side) {
    Result<RegionHandle> made = table->add(spec, std::move(side));
    EXPECT_TRUE(made) << describe(made.error());
    return made ? *made : RegionHandle{};
  }
  void close(RegionHandle region) {
    const Status s = table->revocation().revoke(region, now_ns() + 1'000'000'000);
    EXPECT_TRUE(s) << describe(s.error());
  }
  Denial denial(const AccessAsk& ask, LookupHint* hint = nullptr) const {
    return table->access().check(ask, hint).denial();
  }

  // The region of an access that is granted.
  RegionRef granted(const AccessAsk& ask, LookupHint* hint = nullptr) const {
    const Checked checked = table->access().check(ask, hint);
    EXPECT_TRUE(checked) << sentence(checked.denial());
    return checked ? checked.grant().region() : RegionRef{};
  }
  // Where the first of its bytes lies.
  const std::byte* place_of(const AccessAsk& ask) const {
    const Checked checked = table->access().check(ask);
    EXPECT_TRUE(checked) << sentence(checked.denial());
    return checked ? checked.grant().data() : nullptr;
  }
  // What a peer sees of the table.
  std::unique_ptr<PeerKeyView> peer_view() const {
    Result<PeerKeyView> made =
        PeerKeyView::map(UniqueFd(::fcntl(table->own_file().fd(), F_DUPFD_CLOEXEC, 0)),
                         table->own_file().size_bytes());
    EXPECT_TRUE(made) << describe(made.error());
    return made ? std::make_unique<PeerKeyView>(*std::move(made)) : nullptr;
  }

  std::unique_ptr<KeyTable> table;
};

}  // namespace aperture::protect
