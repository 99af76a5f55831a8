// The accessor's side: which files are mapped, what hostile content can do (nothing), one-sided
// copies.

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "protect/cma.hpp"
#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

UniqueFd same_file(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

using Outcome = DirectResult::Outcome;

class PeerKeyViewTest : public TableTest {
 protected:
  void SetUp() override {
    TableTest::SetUp();
    view = peer_view();
    ASSERT_TRUE(view);
    std::memset(memory, '.', sizeof memory);
    spec = spec_of(reinterpret_cast<uint64_t>(memory + 64), 128);
  }
  DirectResult write(uint64_t key, uint64_t addr, const void* from, size_t len) {
    const iovec iov{const_cast<void*>(from), len};
    return view->write(::getpid(), slot, DirectAsk{kPd, key, addr, &iov, 1}, &hint);
  }

  std::unique_ptr<PeerKeyView> view;
  std::unique_ptr<AccessorSlot> slot_memory = std::make_unique<AccessorSlot>();
  AccessorSlot& slot = *slot_memory;
  LookupHint hint;
  RegionSpec spec;
  char memory[256];
};

// What is copied by the kernel, and not by a function of the test.
class PeerKeyViewCopy : public PeerKeyViewTest {
 protected:
  void SetUp() override {
    if (!test::cma_works()) GTEST_SKIP() << "process_vm_readv(2) is denied here";
    PeerKeyViewTest::SetUp();
  }
};

TEST_F(PeerKeyViewCopy, write_and_read_land_exactly) {
  const RegionHandle r = add(spec);
  EXPECT_EQ(write(r.key, spec.base + 8, "hello", 5).outcome, Outcome::done);
  EXPECT_EQ(std::memcmp(memory + 64 + 8, "hello", 5), 0);
  for (size_t i = 0; i < sizeof memory; ++i) {
    if (i < 72 || i >= 77) {
      EXPECT_EQ(memory[i], '.');
    }
  }
  char a[2], b[4];
  iovec iov[] = {{a, 2}, {b, 0}, {b, 3}};
  const DirectAsk ask{kPd, r.key, spec.base + 8, iov, 3};
  const DirectResult got = view->read(::getpid(), slot, ask, nullptr);
  EXPECT_EQ(got.outcome, Outcome::done);
  EXPECT_EQ(got.bytes, 5u);
  EXPECT_EQ(std::memcmp(a, "he", 2), 0);
  EXPECT_EQ(std::memcmp(b, "llo", 3), 0);
  EXPECT_EQ(slot.pin.load(), 0u);
}

// Its pin would be believed for as long as any thread has its number.
TEST_F(PeerKeyViewTest, thread_that_cannot_say_when_it_was_started_pins_nothing) {
  view->set_copy_calls([](pid_t, const iovec* local, unsigned long, const iovec*, unsigned long,
                          unsigned long) { return static_cast<ssize_t>(local->iov_len); },
                       nullptr);
  const RegionHandle r = add(spec);
  std::thread([&] {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);  // /proc cannot be opened
    const bool could = PeerKeyView::can_pin();
    const Outcome without = write(r.key, spec.base, "x", 1).outcome;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_FALSE(could);
    EXPECT_EQ(without, Outcome::through_ring);
    EXPECT_EQ(slot.tid.load(), 0u);
    EXPECT_TRUE(PeerKeyView::can_pin());
    EXPECT_EQ(write(r.key, spec.base, "x", 1).outcome, Outcome::done);
    EXPECT_NE(slot.start_time.load(), 0u);
  }).join();
}

TEST_F(PeerKeyViewTest, each_denial_is_seen_and_changes_nothing) {
  spec.rights = Rights::remote_write;
  const RegionHandle r = add(spec);
  const auto expect = [&](Denial d, DirectResult result) {
    EXPECT_EQ(result.outcome, Outcome::denied);
    EXPECT_EQ(result.denial, d);
    EXPECT_EQ(result.bytes, 0u);
  };
  expect(Denial::unknown_key, write(r.key + 1, spec.base, "x", 1));
  expect(Denial::unknown_key, write(r.key + 1, spec.base, "x", 0));
  expect(Denial::out_of_range, write(r.key, spec.base - 1, "x", 1));
  expect(Denial::out_of_range, write(r.key, spec.base + 128, "x", 1));
  expect(Denial::out_of_range, write(r.key, ~uint64_t{0}, "xy", 2));
  char byte;
  iovec iov{&byte, 1};
  expect(Denial::missing_right,
         view->read(::getpid(), slot, DirectAsk{kPd, r.key, spec.base, &iov, 1}, &hint));
  expect(Denial::unknown_key,
         view->write(::getpid(), slot, DirectAsk{kOtherPd, r.key, spec.base, &iov, 1}, &hint));
  EXPECT_EQ(view->would_refuse(kPd, r.key, spec.base, 128, Rights::remote_write), Denial::none);
  EXPECT_EQ(view->would_refuse(kPd, r.key, spec.base, 129, Rights::remote_write),
            Denial::out_of_range);
  close(r);
  expect(Denial::closed, write(r.key, spec.base, "x", 1));
  for (const char c : memory) EXPECT_EQ(c, '.');
}

TEST_F(PeerKeyViewTest, zero_length_needs_no_system_call_but_a_good_key) {
  const RegionHandle r = add(spec);
  view->set_copy_calls(nullptr, nullptr);
  EXPECT_EQ(write(r.key, spec.base, "", 0).outcome, Outcome::done);
  EXPECT_EQ(write(r.key ^ 4, spec.base, "", 0).outcome, Outcome::denied);
}

TEST_F(PeerKeyViewTest, more_than_a_chunk_or_too_many_pieces_goes_through_the_ring) {
  const RegionHandle r = add(spec_of(kBase, 1 << 20));
  view->set_copy_calls(nullptr, nullptr);
  std::vector<char> big(kChunkBytes + 1);
  EXPECT_EQ(write(r.key, kBase, big.data(), big.size()).outcome, Outcome::through_ring);
  std::vector<iovec> many(PeerKeyView::kMaxLocalSegments + 1, iovec{big.data(), 1});
  const DirectAsk ask{kPd, r.key, kBase, many.data(), many.size()};
  EXPECT_EQ(view->write(::getpid(), slot, ask, &hint).outcome, Outcome::through_ring);
  const iovec wrapping[] = {{big.data(), ~size_t{0}}, {big.data(), 2}};
  EXPECT_EQ(view->write(::getpid(), slot, DirectAsk{kPd, r.key, kBase, wrapping, 2}, &hint).outcome,
            Outcome::through_ring);
}

// ---- what the kernel may answer ----

int calls = 0;
int error_to_give = 0;

ssize_t failing(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long) {
  ++calls;
  errno = error_to_give;
  return -1;
}
// Copies three bytes a call into our own memory.
ssize_t three_bytes(pid_t, const iovec* local, unsigned long, const iovec* remote, unsigned long,
                    unsigned long) {
  ++calls;
  const size_t n = std::min<size_t>({3, local->iov_len, remote->iov_len});
  std::memcpy(remote->iov_base, local->iov_base, n);
  return static_cast<ssize_t>(n);
}
ssize_t nothing(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long) {
  ++calls;
  return 0;
}

TEST_F(PeerKeyViewTest, each_error_of_the_kernel_has_its_outcome_and_unpins) {
  const RegionHandle r = add(spec);
  view->set_copy_calls(&failing, &failing);
  constexpr std::pair<int, Outcome> kCases[] = {{EFAULT, Outcome::faulted},
                                                {ESRCH, Outcome::peer_gone},
                                                {EPERM, Outcome::not_permitted},
                                                {ENOSYS, Outcome::not_permitted},
                                                {ENOMEM, Outcome::through_ring}};
  for (const auto& [error, outcome] : kCases) {
    error_to_give = error;
    EXPECT_EQ(write(r.key, spec.base, "x", 1).outcome, outcome) << error;
    EXPECT_EQ(slot.pin.load(), 0u);
  }
}

TEST_F(PeerKeyViewTest, short_copies_go_on_where_they_ended) {
  const RegionHandle r = add(spec);
  view->set_copy_calls(&three_bytes, nullptr);
  calls = 0;
  iovec iov[] = {{const_cast<char*>("abcd"), 4}, {const_cast<char*>("efghi"), 5}};
  const DirectResult got =
      view->write(::getpid(), slot, DirectAsk{kPd, r.key, spec.base, iov, 2}, &hint);
  EXPECT_EQ(got.outcome, Outcome::done);
  EXPECT_EQ(got.bytes, 9u);
  EXPECT_EQ(calls, 4);  // 3 1 3 2
  EXPECT_EQ(std::memcmp(memory + 64, "abcdefghi.", 10), 0);
}

TEST_F(PeerKeyViewTest, copies_that_stay_empty_give_up_and_take_the_ring) {
  const RegionHandle r = add(spec);
  view->set_copy_calls(&nothing, nullptr);
  calls = 0;
  EXPECT_EQ(write(r.key, spec.base, "x", 1).outcome, Outcome::through_ring);
  EXPECT_LT(calls, 100);
}

TEST_F(PeerKeyViewTest, closed_slot_is_not_used) {
  const RegionHandle r = add(spec);
  slot.closed.store(1);
  view->set_copy_calls(nullptr, nullptr);
  EXPECT_EQ(write(r.key, spec.base, "x", 1).outcome, Outcome::through_ring);
  EXPECT_EQ(slot.pin.load(), 0u);
}

TEST_F(PeerKeyViewCopy, unmapped_range_is_faulted) {
  char* pages = static_cast<char*>(
      ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ::munmap(pages + 4096, 4096);
  const RegionHandle r = add(spec_of(reinterpret_cast<uint64_t>(pages), 8192));
  char from[64] = {};
  const DirectResult got = write(r.key, reinterpret_cast<uint64_t>(pages) + 4096 - 32, from, 64);
  EXPECT_EQ(got.outcome, Outcome::faulted);
  EXPECT_EQ(got.bytes, 32u);
  ::munmap(pages, 4096);
}

TEST_F(PeerKeyViewCopy, probe_knows_the_maker_of_the_file) {
  EXPECT_TRUE(view->probe(::getpid()));
  EXPECT_FALSE(view->probe(1 << 30));
  Result<std::unique_ptr<KeyTable>> other = KeyTable::create(16);
  ASSERT_TRUE(other);
  error_to_give = EPERM;
  view->set_copy_calls(&failing, &failing);
  EXPECT_FALSE(view->probe(::getpid()));
  // a process that has something else at that address
  view->set_copy_calls(nullptr,
                       [](pid_t, const iovec* local, unsigned long, const iovec*, unsigned long,
                          unsigned long) -> ssize_t {
                         std::memset(local->iov_base, 0x5a, local->iov_len);
                         return static_cast<ssize_t>(local->iov_len);
                       });
  EXPECT_FALSE(view->probe(::getpid()));
}

TEST_F(PeerKeyViewTest, each_direction_needs_its_own_right) {
  spec.rights = Rights::remote_read;
  const RegionHandle r = add(spec);
  const DirectResult got = write(r.key, spec.base, "x", 1);
  EXPECT_EQ(got.outcome, Outcome::denied);
  EXPECT_EQ(got.denial, Denial::missing_right);
  EXPECT_EQ(memory[64], '.');
}

TEST_F(PeerKeyViewCopy, the_next_chunk_is_of_the_same_life) {
  spec.requested_key = 9;
  const RegionHandle r = add(spec);
  const uint64_t first = write(9, spec.base, "x", 1).generation;
  EXPECT_EQ(first, r.generation);
  close(r);
  add(spec);  // the same key again, over the same memory
  iovec iov{const_cast<char*>("y"), 1};
  DirectAsk ask{kPd, 9, spec.base, &iov, 1};
  ask.generation = first;
  const DirectResult got = view->write(::getpid(), slot, ask, &hint);
  EXPECT_EQ(got.outcome, Outcome::denied);
  EXPECT_EQ(got.denial, Denial::closed);
  EXPECT_EQ(memory[64], 'x');
}

// ---- hostile files ----

// A file that a peer made by hand: sealed as it must be, its content ours to spoil.
struct HandMade {
  static constexpr uint32_t kCapacity = 64;
  static constexpr size_t kEntries = kKeyHeaderBytes + kBucketsAtStart * 4;
  static constexpr size_t kBytes = kEntries + kCapacity * sizeof(KeyEntry);

  HandMade() {
    fd = *make_sealed_memfd("aperture-test", kBytes);
    mapping = *Mapping::map_shared(fd.get(), kBytes, Mapping::Access::read_write);
    header = reinterpret_cast<KeyHeader*>(mapping.data());
    header->magic = kKeyFileMagic;
    header->layout = kKeyFileLayout;
    header->capacity = kCapacity;
    header->max_buckets = kBucketsAtStart;
    header->entries_offset = kEntries;
    header->size_bytes = kBytes;
    header->bucket_count.store(kBucketsAtStart);
  }
  std::atomic<uint32_t>& bucket(uint32_t i) {
    return reinterpret_cast<std::atomic<uint32_t>*>(mapping.data() + kKeyHeaderBytes)[i];
  }
  KeyEntry& entry(uint32_t i) { return reinterpret_cast<KeyEntry*>(mapping.data() + kEntries)[i]; }
  Result<PeerKeyView> view(size_t size = kBytes) {
    return PeerKeyView::map(same_file(fd.get()), size);
  }
  // What comes of writing a byte under key 5.
  static Outcome write(const PeerKeyView& view, LookupHint* hint) {
    const auto slot = std::make_unique<AccessorSlot>();
    char byte = 'x';
    const iovec iov{&byte, 1};
    return view.write(::getpid(), *slot, DirectAsk{kPd, 5, 0, &iov, 1}, hint).outcome;
  }

  UniqueFd fd;
  Mapping mapping;
  KeyHeader* header;
};

TEST(HostileKeyFile, untouched_hand_made_file_is_mapped) {
  HandMade file;
  EXPECT_TRUE(file.view());
}

TEST(HostileKeyFile, wrong_header_is_refused) {
  const auto refused = [](auto spoil) {
    HandMade file;
    spoil(*file.header);
    EXPECT_EQ(file.view().error(), Errc::protocol);
  };
  refused([](KeyHeader& h) { h.magic ^= 1; });
  refused([](KeyHeader& h) { h.layout = kKeyFileLayout - 1; });
  refused([](KeyHeader& h) { h.layout = kKeyFileLayout + 1; });
  refused([](KeyHeader& h) { h.capacity = 0; });
  refused([](KeyHeader& h) { h.capacity = HandMade::kCapacity + 1; });
  refused([](KeyHeader& h) { h.capacity = ~0u; });
  refused([](KeyHeader& h) { h.max_buckets = 0; });
  refused([](KeyHeader& h) { h.max_buckets = 1000; });
  refused([](KeyHeader& h) { h.max_buckets = 1u << 31; });
  refused([](KeyHeader& h) { h.entries_offset = ~uint64_t{63}; });
  refused([](KeyHeader& h) { h.entries_offset = HandMade::kBytes + 64; });
  refused([](KeyHeader& h) { h.entries_offset += 8; });
  refused([](KeyHeader& h) { h.entries_offset = 0; });
}

// 39
TEST(HostileKeyFile, hostile_39_unsealed_short_or_strange_file_is_refused) {
  HandMade file;
  EXPECT_EQ(file.view(HandMade::kBytes + 1).error(), Errc::protocol);
  EXPECT_EQ(file.view(0).error(), Errc::protocol);
  EXPECT_EQ(file.view(kKeyHeaderBytes).error(), Errc::protocol);
  UniqueFd open_file(::memfd_create("aperture-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open_file.get(), HandMade::kBytes), 0);
  EXPECT_EQ(PeerKeyView::map(std::move(open_file), HandMade::kBytes).error(), Errc::protocol);
  EXPECT_EQ(PeerKeyView::map(UniqueFd(), HandMade::kBytes).error(), Errc::protocol);
}

// 38: whatever the content, an answer comes, soon, and it is not a grant
TEST(HostileKeyFile, hostile_38_cycles_wild_indices_and_counts_end_in_the_ring) {
  HandMade file;
  Result<PeerKeyView> view = file.view();
  ASSERT_TRUE(view);
  view->set_copy_calls(nullptr, nullptr);  // a crash if it ever got that far
  const auto ask = [&] { return HandMade::write(*view, nullptr); };
  EXPECT_EQ(ask(), Outcome::denied);
  const uint32_t b = bucket_of(hash_key(kPd, 5), kBucketsAtStart);
  for (const uint32_t wild : {HandMade::kCapacity + 1, 1u << 31, ~0u}) {
    file.bucket(b).store(wild);
    EXPECT_EQ(ask(), Outcome::through_ring);
  }
  file.bucket(b).store(1);
  file.entry(0).next.store(2);
  file.entry(1).next.store(1);
  EXPECT_EQ(ask(), Outcome::through_ring);
  file.entry(1).next.store(2);
  EXPECT_EQ(ask(), Outcome::through_ring);
  file.entry(1).next.store(0);
  EXPECT_EQ(ask(), Outcome::denied);
  file.header->version.store(1);
  EXPECT_EQ(ask(), Outcome::through_ring);
  file.header->version.store(2);
  for (const uint32_t wild : {0u, kBucketsAtStart + 1, ~0u}) {
    file.header->bucket_count.store(wild);
    EXPECT_EQ(ask(), Outcome::through_ring);
  }
}

TEST(HostileKeyFile, hint_with_a_wild_index_reads_nothing) {
  HandMade file;
  Result<PeerKeyView> view = file.view();
  ASSERT_TRUE(view);
  for (const uint32_t used : {0u, HandMade::kCapacity, ~0u}) {  // as the file says
    file.header->entries_used.store(used);
    // some of them so far away that nothing else can be mapped there
    for (LookupHint hint :
         {LookupHint{~0u, 5, false}, LookupHint{~0u - 1, 5, false}, LookupHint{1u << 31, 5, false},
          LookupHint{~uint64_t{0}, 5, false}, LookupHint{HandMade::kCapacity, 4, true},
          LookupHint{3, 9, true}, LookupHint{0, ~uint64_t{0} / 2, true}}) {
      EXPECT_EQ(HandMade::write(*view, &hint), Outcome::denied);
    }
  }
}

// ---- device memory, as a peer's file names it ----

// Entry 0 is a life of key 5, in a device, with 4096 bytes from address 0 on.
struct HandMadeDevice : HandMade {
  explicit HandMadeDevice(uint32_t more_flags = 0) {
    header->has_devices.store(1);
    header->shares_address = 0x1000;
    header->entries_used.store(1);
    bucket(bucket_of(hash_key(kPd, 5), kBucketsAtStart)).store(1);
    KeyEntry& e = entry(0);
    e.key.store(5);
    e.pd.store(kPd);
    e.length.store(4096);
    e.rights.store(static_cast<uint32_t>(Rights::remote_write) | kFlagEnabled | kFlagDevice |
                   more_flags);
    e.state_gen.store(state_gen_of(1, EntryState::valid));
  }
  static inline int reads = 0;
  static inline std::function<ssize_t(const iovec& to, uint64_t from)> answer;
  static ssize_t read_there(pid_t, const iovec* local, unsigned long, const iovec* remote,
                            unsigned long, unsigned long) {
    ++reads;
    return answer(*local, reinterpret_cast<uint64_t>(remote->iov_base));
  }
  Outcome write_by(const PeerKeyView& view, PeerDevices* devices, uint64_t addr = 0) {
    const auto slot = std::make_unique<AccessorSlot>();
    char byte = 'x';
    const iovec iov{&byte, 1};
    DirectAsk ask{kPd, 5, addr, &iov, 1};
    ask.devices = devices;
    const Outcome outcome = view.write(::getpid(), *slot, ask, nullptr).outcome;
    EXPECT_EQ(slot->pin.load(), 0u);
    return outcome;
  }
};

TEST(HostileKeyFile, device_memory_is_left_to_its_owner_where_no_driver_is_at_hand) {
  HandMadeDevice file;
  Result<PeerKeyView> view = file.view();
  ASSERT_TRUE(view);
  EXPECT_TRUE(view->has_devices());
  EXPECT_TRUE(view->is_in_device(kPd, 5));
  EXPECT_FALSE(view->is_in_device(kPd, 6));
  view->set_copy_calls(nullptr, nullptr);
  EXPECT_EQ(file.write_by(*view, nullptr), Outcome::through_ring);
  PeerDevices devices;
  EXPECT_EQ(file.write_by(*view, &devices, 4096), Outcome::denied);
  EXPECT_EQ(view->would_refuse(kPd, 5, 4096, 1, Rights::remote_write), Denial::out_of_range);
  EXPECT_EQ(view->would_refuse(kPd, 5, 4095, 1, Rights::remote_write), Denial::none);
  EXPECT_FALSE(view->asks_owner(kPd, 5));
  HandMadeDevice watched(kFlagAskOwner);
  view = watched.view();
  ASSERT_TRUE(view);
  view->set_copy_calls(nullptr, nullptr);
  EXPECT_EQ(watched.write_by(*view, &devices), Outcome::through_ring);
  EXPECT_FALSE(view->is_in_device(kPd, 5));
  EXPECT_TRUE(view->asks_owner(kPd, 5));
}

// 38: wherever it points and whatever lies there
TEST(HostileKeyFile, hostile_38_wild_shares_end_in_the_ring_and_are_looked_at_once) {
  HandMadeDevice file;
  Result<PeerKeyView> view = file.view();
  ASSERT_TRUE(view);
  view->set_copy_calls(nullptr, &HandMadeDevice::read_there);
  const char* text = std::getenv("APERTURE_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device()();
  SCOPED_TRACE("APERTURE_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100; ++i) {
    PeerDevices devices;
    HandMadeDevice::answer = [&](const iovec& to, uint64_t) {
      auto* bytes = static_cast<uint8_t*>(to.iov_base);
      for (size_t at = 0; at < to.iov_len; ++at) bytes[at] = static_cast<uint8_t>(random());
      if (to.iov_len >= sizeof(uint64_t) && i % 2 == 0) std::memset(bytes, 0, 8);  // kind: CUDA
      return static_cast<ssize_t>(to.iov_len);
    };
    HandMadeDevice::reads = 0;
    for (int again = 0; again < 3; ++again)
      EXPECT_EQ(file.write_by(*view, &devices), Outcome::through_ring);
    EXPECT_EQ(HandMadeDevice::reads, 2);
  }
  // what cannot be read, or in part only, is asked for again
  for (const ssize_t short_of : {ssize_t{-1}, ssize_t{0}, ssize_t{7}}) {
    PeerDevices devices;
    HandMadeDevice::answer = [&](const iovec&, uint64_t) { return short_of; };
    HandMadeDevice::reads = 0;
    EXPECT_EQ(file.write_by(*view, &devices), Outcome::through_ring);
    EXPECT_EQ(file.write_by(*view, &devices), Outcome::through_ring);
    EXPECT_EQ(HandMadeDevice::reads, 2);
  }
}

// What was read may be of the next life: nothing is learnt of it.
TEST(HostileKeyFile, a_share_of_a_life_that_ended_meanwhile_is_not_used) {
  HandMadeDevice file;
  Result<PeerKeyView> view = file.view();
  ASSERT_TRUE(view);
  view->set_copy_calls(nullptr, &HandMadeDevice::read_there);
  PeerDevices devices;
  HandMadeDevice::answer = [&](const iovec& to, uint64_t) {
    std::memset(to.iov_base, 0, to.iov_len);
    file.entry(0).state_gen.store(state_gen_of(1, EntryState::revoking));
    return static_cast<ssize_t>(to.iov_len);
  };
  EXPECT_EQ(file.write_by(*view, &devices), Outcome::through_ring);
  EXPECT_EQ(devices.find({0, 1}), nullptr);
}

// What was opened of an owner's memory, with 4096 bytes; copies nothing.
class Opened final : public memory::Registration {
 public:
  Opened() noexcept : Registration(reinterpret_cast<const std::byte*>(0x10000), 4096) {}
  memory::Kind kind() const noexcept override { return memory::Kind::cuda; }

 private:
  bool put(std::byte*, const void*, size_t) const noexcept override { return false; }
  bool get(void*, const std::byte*, size_t) const noexcept override { return false; }
};

// 38: an owner that makes its region longer without another life, or gives one life to two entries
TEST(HostileKeyFile, hostile_38_what_was_opened_of_a_device_ends_where_it_did) {
  HandMadeDevice file;
  Result<PeerKeyView> view = file.view();
  ASSERT_TRUE(view);
  view->set_copy_calls(nullptr, nullptr);
  PeerDevices devices;
  ASSERT_NE(devices.learn({0, 1}, std::make_shared<Opened>()), nullptr);
  file.entry(0).length.store(uint64_t{1} << 40);
  for (const uint64_t addr : {uint64_t{4096}, uint64_t{1} << 30, (uint64_t{1} << 40) - 1})
    EXPECT_EQ(file.write_by(*view, &devices, addr), Outcome::denied) << addr;
  EXPECT_EQ(file.write_by(*view, &devices, 4095), Outcome::through_ring) << "no driver, but right";
}

TEST(PeerDevicesTest, what_was_met_is_of_one_entry) {
  PeerDevices devices;
  ASSERT_NE(devices.learn({3, 1}, nullptr), nullptr);
  EXPECT_NE(devices.find({3, 1}), nullptr);
  EXPECT_EQ(devices.find({4, 1}), nullptr);
  EXPECT_EQ(devices.find({3, 2}), nullptr);
}

TEST(PeerDevicesTest, lives_that_are_over_are_let_go_and_the_oldest_makes_room) {
  PeerDevices devices;
  for (uint32_t i = 1; i <= 200; ++i) {
    ASSERT_NE(devices.learn({i, i}, nullptr), nullptr);
    EXPECT_NE(devices.find({i, i}), nullptr);
    EXPECT_EQ(devices.find({i, i})->life.index, i);
  }
  EXPECT_EQ(devices.find({1, 1}), nullptr);
  EXPECT_NE(devices.find({137, 137}), nullptr) << "of the last 64";
  devices.drop([](const RegionRef& life) { return life.generation != 190; });
  EXPECT_EQ(devices.find({200, 200}), nullptr);
  EXPECT_NE(devices.find({190, 190}), nullptr);
  devices.forget();
  EXPECT_EQ(devices.find({190, 190}), nullptr);
}

}  // namespace
}  // namespace aperture::protect
