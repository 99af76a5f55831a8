// What a region has beyond one flat range: several buffers, verified pages, a secret, one endpoint,
// watchers, a file behind it; and that peers leave all of it to the owner.
#include "protect/side_record.hpp"

#include <sys/mman.h>

#include <array>
#include <cstdlib>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

constexpr size_t kPage = 4096;

// Whole pages, any of which can be taken away and given back.
class Pages {
 public:
  explicit Pages(size_t n) : size_(n * kPage) {
    void* made = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (made == MAP_FAILED) std::abort();
    base_ = static_cast<std::byte*>(made);
  }
  ~Pages() { ::munmap(base_, size_); }
  std::byte* page(size_t i) { return base_ + i * kPage; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(base_); }
  void unmap(size_t i) { ::munmap(page(i), kPage); }
  void map(size_t i) { ::mmap(page(i), kPage, PROT_READ | PROT_WRITE, kFlags | MAP_FIXED, -1, 0); }

 private:
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  size_t size_;
  std::byte* base_;
};

struct Counting final : WriteWatcher {
  void on_remote_write() noexcept override { ++count; }
  int count = 0;
};

class Side : public TableTest {
 protected:
  // A region over these buffers, zero-based unless `base` says where it is to begin.
  RegionHandle add_buffers(std::vector<Segment> segments, bool zero_based = true) {
    RegionSpec spec = spec_of(reinterpret_cast<uint64_t>(segments.front().base), 0);
    for (const Segment& s : segments) spec.length += s.length;
    spec.zero_based = zero_based;
    auto side = std::make_unique<SideRecord>();
    side->segments = std::move(segments);
    return add(spec, std::move(side));
  }
  RegionHandle add_with(const std::function<void(SideRecord&)>& edit) {
    auto side = side_over(memory.data(), memory.size());
    edit(*side);
    RegionSpec spec = spec_with({.base = reinterpret_cast<uint64_t>(memory.data()),
                                 .length = memory.size(),
                                 .zero_based = true});
    Result<RegionHandle> made = table->add(spec, std::move(side));
    EXPECT_TRUE(made);
    return made ? *made : RegionHandle{};
  }
  static AccessAsk ask_at(RegionHandle r, uint64_t addr, uint64_t len) {
    return ask_of(r.key, addr, len);
  }
  std::array<std::byte, 256> memory{};
};

TEST_F(Side, buffers_are_addressed_as_one_range_in_their_order) {
  std::vector<std::byte> a(100), b(7), c(1000);
  const RegionHandle r =
      add_buffers({{c.data(), 100, {}}, {a.data(), 0, {}}, {b.data(), 7, {}}, {a.data(), 50, {}}});
  std::vector<std::byte> in(157), out(157);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i + 1);
  {
    const Checked all = table->access().check(ask_at(r, 0, 157));
    ASSERT_TRUE(all);
    EXPECT_EQ(all.grant().size(), 157u);
    EXPECT_TRUE(all.grant().copy_in(in.data(), 157));
    EXPECT_TRUE(all.grant().copy_out(out.data(), 157));
    std::vector<size_t> sizes;
    EXPECT_TRUE(all.grant().each_piece([&](std::byte*, size_t n) {
      sizes.push_back(n);
      return true;
    }));
    EXPECT_EQ(sizes, (std::vector<size_t>{100, 7, 50}));
  }
  EXPECT_EQ(in, out);
  EXPECT_TRUE(std::equal(c.begin(), c.begin() + 100, in.begin()));
  EXPECT_TRUE(std::equal(b.begin(), b.end(), in.begin() + 100));
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 50, in.begin() + 107));
  EXPECT_EQ(a[50], std::byte{0}) << "nothing behind a buffer's end";
  EXPECT_EQ(c[100], std::byte{0});
}

TEST_F(Side, each_offset_finds_its_buffer) {
  std::vector<std::byte> a(10), b(10);
  const RegionHandle r = add_buffers({{a.data(), 10, {}}, {b.data(), 10, {}}});
  for (uint64_t offset = 0; offset <= 20; ++offset) {
    for (uint64_t len = 0; offset + len <= 20; ++len) {
      const Checked c = table->access().check(ask_at(r, offset, len));
      ASSERT_TRUE(c) << offset << " " << len;
      std::vector<std::byte> mark(len, static_cast<std::byte>(offset + 1));
      ASSERT_TRUE(c.grant().copy_in(mark.data(), len));
      for (uint64_t i = offset; i < offset + len; ++i) {
        ASSERT_EQ(i < 10 ? a[i] : b[i - 10], mark[0]);
      }
    }
  }
  for (const uint64_t offset : {uint64_t{0}, uint64_t{9}, uint64_t{10}, uint64_t{20}}) {
    EXPECT_EQ(denial(ask_at(r, offset, 21 - offset)), Denial::out_of_range);
  }
}

TEST_F(Side, virtual_addresses_go_on_from_the_first_buffer) {
  std::vector<std::byte> a(10), b(10);
  const RegionHandle r = add_buffers({{a.data(), 10, {}}, {b.data(), 10, {}}}, false);
  const auto base = reinterpret_cast<uint64_t>(a.data());
  EXPECT_EQ(place_of(ask_at(r, base + 12, 8)), b.data() + 2);
  EXPECT_EQ(denial(ask_at(r, base + 12, 9)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_at(r, base - 1, 1)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_at(r, reinterpret_cast<uint64_t>(b.data()), 1)), Denial::out_of_range)
      << "the second buffer's own address is not one of the region";
}

TEST_F(Side, a_chunk_of_a_long_range_ends_where_chunks_end) {
  std::vector<std::byte> a(kChunkBytes - 8), b(kChunkBytes);
  const RegionHandle r = add_buffers({{a.data(), a.size(), {}}, {b.data(), b.size(), {}}});
  const Checked c = table->access().check(ask_at(r, 0, a.size() + b.size()));
  ASSERT_TRUE(c);
  EXPECT_EQ(c.grant().size(), kChunkBytes);
  size_t sum = 0;
  c.grant().each_piece([&](std::byte*, size_t n) { return (sum += n) > 0; });
  EXPECT_EQ(sum, kChunkBytes);
}

TEST_F(Side, memory_that_is_not_there_is_seen_and_not_a_signal) {
  Pages p(3);
  p.unmap(1);
  const RegionHandle r = add_buffers({{p.page(0), 3 * kPage, {}}});
  std::array<std::byte, 16> word{};
  {
    const Checked c = table->access().check(ask_at(r, kPage - 8, 16));
    ASSERT_TRUE(c);
    EXPECT_FALSE(c.grant().copy_in(word.data(), 16));
    EXPECT_FALSE(c.grant().copy_out(word.data(), 16));
  }
  std::vector<std::byte> two(8);
  const RegionHandle parts = add_buffers({{two.data(), 8, {}}, {p.page(1), kPage, {}}});
  {
    const Checked c = table->access().check(ask_at(parts, 0, 16));
    ASSERT_TRUE(c);
    EXPECT_FALSE(c.grant().copy_in(word.data(), 16));
    EXPECT_FALSE(c.grant().copy_out(word.data(), 16));
  }
  p.map(1);
  const Checked c = table->access().check(ask_at(parts, 0, 16));
  ASSERT_TRUE(c);
  EXPECT_TRUE(c.grant().copy_in(word.data(), 16));
  EXPECT_TRUE(c.grant().copy_out(word.data(), 16));
}

TEST_F(Side, pages_are_verified_when_asked_and_only_then) {
  Pages p(4);
  p.unmap(1);
  p.unmap(3);
  const std::byte* base = p.page(0) + 100;
  PageMap map(base, 4 * kPage - 100);
  EXPECT_FALSE(map.is_complete());
  EXPECT_TRUE(map.covers(0, kPage - 100)) << "all of the first page";
  EXPECT_FALSE(map.covers(0, kPage - 99)) << "one byte of the second";
  EXPECT_FALSE(map.covers(kPage - 101, 2));
  EXPECT_TRUE(map.covers(2 * kPage - 100, kPage));
  EXPECT_FALSE(map.covers(2 * kPage - 101, kPage)) << "the last byte of the hole";
  EXPECT_FALSE(map.covers(2 * kPage - 100, kPage + 1));
  EXPECT_FALSE(map.covers(0, 4 * kPage - 100));
  EXPECT_TRUE(map.covers(kPage + 100, 0)) << "no bytes, no page";
  p.map(1);
  EXPECT_FALSE(map.covers(kPage, 1)) << "mapped, but nobody said so";
  p.map(3);
  map.verify(p.page(1) + 5, 1);
  EXPECT_TRUE(map.covers(0, 3 * kPage - 100));
  EXPECT_FALSE(map.covers(3 * kPage - 100, 1)) << "only what was named is looked at";
  EXPECT_FALSE(map.is_complete());
  map.verify(p.page(2) + 5, kPage);
  EXPECT_TRUE(map.is_complete());
  EXPECT_TRUE(map.covers(0, 4 * kPage - 100));
  p.unmap(2);
  map.verify(base, 4 * kPage - 100);
  EXPECT_FALSE(map.is_complete());
  EXPECT_FALSE(map.covers(2 * kPage, 1));
  EXPECT_TRUE(PageMap(base, 0).is_complete());
  map.verify(base, 0);
  EXPECT_FALSE(map.is_complete());
}

TEST_F(Side, pages_that_were_not_verified_are_refused) {
  Pages p(3);
  p.unmap(1);
  std::vector<std::byte> before(64);
  std::vector<Segment> segments;
  segments.push_back({before.data(), 64, {}});
  segments.push_back({p.page(0), 3 * kPage, std::nullopt});
  segments.back().pages.emplace(p.page(0), 3 * kPage);
  const RegionHandle r = add_buffers(std::move(segments));
  EXPECT_EQ(denial(ask_at(r, 0, 64 + kPage)), Denial::none);
  EXPECT_EQ(denial(ask_at(r, 0, 64 + kPage + 1)), Denial::not_verified);
  EXPECT_EQ(denial(ask_at(r, 64 + kPage, 1)), Denial::not_verified);
  EXPECT_EQ(denial(ask_at(r, 64 + 2 * kPage, kPage)), Denial::none);
  p.map(1);
  EXPECT_EQ(denial(ask_at(r, 64 + kPage, 1)), Denial::not_verified) << "backed now, not verified";
  table->side(r)->segments[1].pages->verify(p.page(1), kPage);
  EXPECT_EQ(denial(ask_at(r, 0, 64 + 3 * kPage)), Denial::none);
}

TEST_F(Side, one_endpoint_reaches_it_and_no_other) {
  const RegionHandle r = add_with([](SideRecord& s) { s.needs_endpoint = true; });
  AccessAsk ask = ask_at(r, 0, 8);
  const auto through = [&](EndpointId id) {
    ask.through = id;
    return denial(ask);
  };
  EXPECT_EQ(through(0), Denial::wrong_endpoint) << "bound to none: reached by none";
  EXPECT_EQ(through(5), Denial::wrong_endpoint);
  table->side(r)->endpoint = 5;
  EXPECT_EQ(through(5), Denial::none);
  EXPECT_EQ(through(4), Denial::wrong_endpoint);
  EXPECT_EQ(through(0), Denial::wrong_endpoint);
  ask.through = 5;
  const RegionRef ref = granted(ask);
  ask.through = 6;
  EXPECT_EQ(table->access().recheck(ask, ref).denial(), Denial::wrong_endpoint);
  table->side(r)->endpoint = 0;
  EXPECT_EQ(through(5), Denial::wrong_endpoint) << "its endpoint was closed";
  const RegionHandle anybody = add_with([](SideRecord&) {});
  ask = ask_at(anybody, 0, 8);
  EXPECT_EQ(through(0), Denial::none);
  EXPECT_EQ(through(9), Denial::none);
}

TEST_F(Side, half_a_raw_key_is_an_unknown_key_whatever_else_is_wrong) {
  const RegionHandle r = add_with([](SideRecord& s) {
    s.secret = 0x1234;
    s.needs_endpoint = true;
    s.endpoint = 3;
  });
  AccessAsk ask = ask_at(r, 0, 8);
  ask.through = 3;
  EXPECT_EQ(denial(ask), Denial::unknown_key);
  ask.secret = Wild<uint64_t>(0x1235);
  EXPECT_EQ(denial(ask), Denial::unknown_key);
  ask.secret = Wild<uint64_t>(0x1234);
  EXPECT_EQ(denial(ask), Denial::none);
  const RegionRef ref = granted(ask);
  AccessAsk wrong = ask_at(r, memory.size() + 1, 8);
  wrong.need = Rights::remote_atomic;
  EXPECT_EQ(denial(wrong), Denial::unknown_key) << "nothing is told of rights and range";
  EXPECT_EQ(table->access().recheck(wrong, ref).denial(), Denial::unknown_key);
  ask.through = 4;
  EXPECT_EQ(denial(ask), Denial::wrong_endpoint);
  const RegionHandle no_secret = add_with([](SideRecord&) {});
  AccessAsk with = ask_at(no_secret, 0, 8);
  with.secret = Wild<uint64_t>(77);
  EXPECT_EQ(denial(with), Denial::none) << "a region without one asks for none";
}

TEST_F(Side, rights_and_range_hold_beside_too) {
  const RegionHandle r = add_with([](SideRecord&) {});
  AccessAsk ask = ask_at(r, 0, 8);
  ask.need = Rights::remote_atomic;
  EXPECT_EQ(denial(ask), Denial::missing_right);
  EXPECT_EQ(denial(ask_at(r, memory.size() - 7, 8)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_at(r, memory.size() - 8, 8)), Denial::none);
}

TEST_F(Side, a_record_given_later_keeps_the_range_and_goes_with_the_region) {
  RegionSpec spec = spec_with(
      {.base = reinterpret_cast<uint64_t>(memory.data()), .length = memory.size(), .key = 9});
  const RegionHandle r = add(spec);
  EXPECT_EQ(table->side(r), nullptr);
  Result<SideRecord*> side = table->add_side(r);
  ASSERT_TRUE(side);
  EXPECT_EQ(table->side(r), *side);
  ASSERT_EQ((*side)->segments.size(), 1u);
  EXPECT_EQ((*side)->segments[0].base, memory.data());
  EXPECT_EQ((*side)->segments[0].length, memory.size());
  Result<SideRecord*> again = table->add_side(r);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, *side) << "one record for each region";
  (*side)->needs_endpoint = true;
  EXPECT_EQ(denial(ask_of(9, spec.base, 8)), Denial::wrong_endpoint) << "it is looked at at once";
  close(r);
  EXPECT_EQ(table->side(r), nullptr);
  EXPECT_EQ(table->add_side(r).error(), Errc::no_entry);
  const RegionHandle next = add(spec);
  EXPECT_EQ(next.index, r.index);
  EXPECT_EQ(table->side(next), nullptr) << "the next life of the entry has none";
  EXPECT_EQ(denial(ask_of(9, spec.base, 8)), Denial::none);
}

TEST_F(Side, watchers_hear_of_each_write_to_that_life_of_the_region) {
  Counting first, second;
  const RegionHandle r = add_with([&](SideRecord& s) { s.watchers = {&first, &second}; });
  const RegionRef ref = granted(ask_at(r, 0, 8));
  table->access().note_write(ref);
  table->access().note_write(ref);
  EXPECT_EQ(first.count, 2);
  EXPECT_EQ(second.count, 2);
  table->access().note_write({});
  table->access().note_write({ref.index, ref.generation + 1});
  table->access().note_write({~0u, 1});
  const RegionHandle plain = add();
  table->access().note_write({plain.index, plain.generation});
  ASSERT_TRUE(table->revocation().begin(r));
  table->access().note_write(ref);
  EXPECT_TRUE(table->revocation().poll(r));
  table->access().note_write(ref);
  EXPECT_EQ(first.count, 2);
}

TEST_F(Side, a_revived_region_is_the_same_and_what_was_under_way_is_refused) {
  Counting watcher;
  const RegionHandle r = add_with([&](SideRecord& s) {
    s.needs_endpoint = true;
    s.endpoint = 5;
    s.watchers = {&watcher};
  });
  AccessAsk ask = ask_at(r, 0, 8);
  ask.through = 5;
  LookupHint hint;
  const RegionRef old = granted(ask, &hint);
  EXPECT_EQ(table->revocation().revive(r).error(), Errc::no_entry) << "it is in force";
  ASSERT_TRUE(table->revocation().begin(r));
  EXPECT_EQ(denial(ask, &hint), Denial::revoking);
  EXPECT_NE(table->side(r), nullptr) << "its pages can be verified meanwhile";
  EXPECT_TRUE(table->revocation().is_quiet(r));
  Result<RegionHandle> next = table->revocation().revive(r);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->key, r.key);
  EXPECT_EQ(next->index, r.index);
  EXPECT_EQ(next->birth, r.birth);
  EXPECT_NE(next->generation, r.generation);
  EXPECT_EQ(table->revocation().revive(r).error(), Errc::no_entry);
  EXPECT_EQ(denial(ask, &hint), Denial::none);
  EXPECT_EQ(table->access().recheck(ask, old).denial(), Denial::closed);
  table->access().note_write(old);
  EXPECT_EQ(watcher.count, 0);
  ask.through = 6;
  EXPECT_EQ(denial(ask), Denial::wrong_endpoint) << "its rules are as they were";
  EXPECT_EQ(table->revocation().begin(r).error(), Errc::no_entry)
      << "the old handle closes nothing";
  close(*next);
  EXPECT_EQ(denial(ask), Denial::closed);
  EXPECT_EQ(table->revocation().revive(*next).error(), Errc::no_entry);
}

TEST_F(Side, a_commit_needs_a_persistent_region_and_memory) {
  const int fd = ::memfd_create("persistent", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, 2 * kPage), 0);
  void* mapped = ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* base = static_cast<std::byte*>(mapped);
  const RegionHandle r = add_buffers({{base, 2 * kPage, {}}});
  EXPECT_EQ(table->access().commit(ask_at(r, 0, kPage)), Denial::not_persistent);
  table->side(r)->persistent = true;
  EXPECT_EQ(table->access().commit(ask_at(r, 0, 2 * kPage)), Denial::none);
  EXPECT_EQ(table->access().commit(ask_at(r, 100, 1)), Denial::none);
  EXPECT_EQ(table->access().commit(ask_at(r, 0, 2 * kPage + 1)), Denial::out_of_range);
  ::munmap(base + kPage, kPage);
  EXPECT_EQ(table->access().commit(ask_at(r, 0, kPage)), Denial::none);
  EXPECT_EQ(table->access().commit(ask_at(r, 0, kPage + 1)), Denial::not_backed);
  EXPECT_EQ(table->access().commit(ask_at(r, kPage + 8, 1)), Denial::not_backed);
  close(r);
  EXPECT_EQ(table->access().commit(ask_at(r, 0, 1)), Denial::closed);
  ::munmap(base, kPage);
  EXPECT_EQ(table->access().commit(ask_of(add().key)), Denial::not_persistent)
      << "no record at all";
}

TEST_F(Side, a_commit_by_right_needs_no_record_and_reaches_all_of_its_range) {
  constexpr size_t kPages = 3 * kChunkBytes / kPage;
  Pages pages(kPages);
  const Rights right = Rights::flush_persistent;
  RegionSpec spec = spec_with({.base = pages.address(), .length = kPages * kPage});
  spec.rights = right | Rights::remote_write;
  const RegionHandle r = add(spec);
  const auto ask = [&](uint64_t at, uint64_t len, Rights need) {
    return ask_of(r.key, pages.address() + at, len, need);
  };
  EXPECT_EQ(table->access().commit(ask(0, kPages * kPage, right)), Denial::none);
  EXPECT_EQ(table->access().commit(ask(0, 8, Rights::remote_write)), Denial::not_persistent);
  EXPECT_EQ(table->access().commit(ask(0, 8, right | Rights::flush_global)), Denial::missing_right);
  EXPECT_EQ(table->access().commit(ask(8, kPages * kPage, right)), Denial::out_of_range);
  pages.unmap(kPages - 1);  // beyond the first chunk
  EXPECT_EQ(table->access().commit(ask(0, kPages * kPage, right)), Denial::not_backed);
  EXPECT_EQ(table->access().commit(ask(kPages * kPage, 0, right)), Denial::none);
  close(r);
}

TEST_F(Side, a_widened_ask_is_of_all_that_the_key_reaches) {
  for (const uint64_t origin : {kBase, uint64_t{0}, uint64_t{0x70000}}) {
    const RegionHandle r = add(spec_with({.rights = Rights::flush_global, .origin = origin}));
    AccessAsk ask = ask_of(r.key, 12345, ~uint64_t{0}, Rights::flush_global);
    EXPECT_EQ(table->access().widen(ask), Denial::none);
    EXPECT_EQ(ask.addr.unchecked(), origin);
    EXPECT_EQ(ask.len.unchecked(), kLength);
    EXPECT_EQ(denial(ask), Denial::none);
    ask.need = Rights::flush_persistent;
    EXPECT_EQ(denial(ask), Denial::missing_right);
    close(r);
    EXPECT_EQ(table->access().widen(ask), Denial::closed);
  }
  AccessAsk nothing = ask_of(0x999, 0, 0);
  EXPECT_EQ(table->access().widen(nothing), Denial::unknown_key);
}

TEST_F(Side, peers_leave_such_a_region_to_its_owner) {
  const std::unique_ptr<PeerKeyView> made = peer_view();
  ASSERT_TRUE(made);
  const RegionHandle r = add_with([](SideRecord& s) { s.secret = 1; });
  const RegionHandle plain = add();
  EXPECT_TRUE(made->asks_owner(kPd, r.key));
  EXPECT_FALSE(made->asks_owner(kPd, plain.key));
  EXPECT_FALSE(made->asks_owner(kPd, plain.key ^ 1));
  EXPECT_EQ(made->would_refuse(kPd, r.key, memory.size(), 8, Rights::remote_write), Denial::none)
      << "only the owner knows";
  made->set_copy_calls(
      [](pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
         unsigned long) -> ssize_t {
        ADD_FAILURE() << "a peer touched it";
        return -1;
      },
      nullptr);
  const auto slot_memory = std::make_unique<AccessorSlot>();
  AccessorSlot& slot = *slot_memory;
  std::byte byte{};
  const iovec iov{&byte, 1};
  const DirectResult got = made->write(::getpid(), slot, {kPd, r.key, 0, &iov, 1}, nullptr);
  EXPECT_EQ(got.outcome, DirectResult::Outcome::through_ring);
  EXPECT_EQ(got.bytes, 0u);
  EXPECT_EQ(slot.pin.load(), 0u);
}

// What peers map: neither half of a secret, nor anything where nothing is said to be.
TEST_F(Side, hostile_42_no_secret_is_in_the_key_file) {
  make(256);
  std::vector<uint64_t> secrets;
  std::vector<RegionHandle> regions;
  for (int i = 0; i < 100; ++i) {
    secrets.push_back(0x5ec4e70000000000u + static_cast<uint64_t>(i) * 0x0101010101);
    regions.push_back(add_with([&](SideRecord& s) { s.secret = secrets.back(); }));
  }
  for (int i = 0; i < 50; ++i) close(regions[static_cast<size_t>(i)]);
  const Mapping file = *Mapping::map_shared(table->own_file().fd(), table->own_file().size_bytes(),
                                            Mapping::Access::read_only);
  const std::byte* at = file.data();
  for (size_t i = 0; i + sizeof(uint64_t) <= file.size(); ++i) {
    uint64_t word;
    std::memcpy(&word, at + i, sizeof word);
    ASSERT_NE(word >> 40, secrets[0] >> 40) << "a secret at " << i;
  }
  for (size_t i = sizeof(KeyHeader); i < kKeyHeaderBytes; ++i) ASSERT_EQ(at[i], std::byte{0}) << i;
  const auto* header = reinterpret_cast<const KeyHeader*>(at);
  EXPECT_EQ(header->reserved, 0u);
  const auto* entries = reinterpret_cast<const KeyEntry*>(at + header->entries_offset);
  for (const RegionHandle& r : regions) EXPECT_EQ(entries[r.index].bound_qpn.load(), 0u);
  for (const std::byte* b = at + header->entries_offset + 100 * sizeof(KeyEntry);
       b < at + file.size(); ++b) {
    ASSERT_EQ(*b, std::byte{0}) << "an entry that was never used";
  }
}

// The table of records alone: each goes once, with its life or with the table.
TEST(SideTable, has_what_was_put_until_it_is_dropped) {
  SideTable sides(16);
  ASSERT_TRUE(sides.is_made());
  std::byte memory[8];
  EXPECT_EQ(sides.record(3), nullptr);
  sides.put(3, nullptr);
  EXPECT_EQ(sides.record(3), nullptr);
  sides.put(3, side_over(memory, sizeof memory));
  sides.put(15, side_over(memory, sizeof memory));  // the destructor finds it
  ASSERT_NE(sides.record(3), nullptr);
  EXPECT_EQ(sides.record(3)->segments.front().base, memory);
  EXPECT_EQ(sides.record(2), nullptr);
  sides.drop(3);
  EXPECT_EQ(sides.record(3), nullptr);
  sides.drop(3);
  sides.put(3, side_over(memory, sizeof memory));
  EXPECT_NE(sides.record(3), nullptr);
  sides.put_origin(4, 0x1000);
  EXPECT_EQ(sides.origin(4), 0x1000u);
}

}  // namespace
}  // namespace aperture::protect
