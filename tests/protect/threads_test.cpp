// Threads over one mapping, for ThreadSanitizer: searches beside growth, copies beside closing.

#include <atomic>
#include <thread>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

using Threads = TableTest;

// A key that is registered is found at every moment, whatever grows, closes and splits around it.
TEST_F(Threads, present_keys_are_found_while_the_table_grows_and_shrinks) {
  std::vector<uint64_t> stable;
  for (int i = 0; i < 500; ++i) stable.push_back(add().key);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> missed{0};
  std::atomic<uint64_t> looked{0};
  const std::unique_ptr<PeerKeyView> peer = peer_view();
  std::thread own([&] {
    for (size_t i = 0; !done; i = (i + 1) % stable.size(), ++looked) {
      if (!table->access().check(ask_of(stable[i])).ok()) ++missed;
    }
  });
  std::thread remote([&] {
    for (size_t i = 0; !done; i = (i + 7) % stable.size(), ++looked) {
      if (peer->would_refuse(kPd, stable[i], kBase, 8, Rights::remote_write) != Denial::none) {
        ++missed;
      }
    }
  });
  std::vector<RegionHandle> passing;
  for (int i = 0; i < 20000; ++i) {
    passing.push_back(add());
    if (i % 3 == 2) {
      close(passing[static_cast<size_t>(i) / 2]);
      close(passing[static_cast<size_t>(i)]);
      passing[static_cast<size_t>(i) / 2] = add();
      passing[static_cast<size_t>(i)] = add();
    }
  }
  done = true;
  own.join();
  remote.join();
  EXPECT_GT(looked.load(), 0u);
  EXPECT_EQ(missed.load(), 0u);
}

// A closed key is never granted again, and an entry's fields are never mixed between two lives.
TEST_F(Threads, fields_of_two_lives_never_mix) {
  std::atomic<uint64_t> key{0};
  std::atomic<bool> done{false};
  std::thread reader([&] {
    LookupHint hint;
    while (!done) {
      const uint64_t k = key.load();
      // key k names [k, k + k % 1000]: one byte more must never be granted under this key
      const uint64_t len = k % 1000;
      for (LookupHint* h : {&hint, static_cast<LookupHint*>(nullptr)}) {
        EXPECT_FALSE(table->access().check(ask_of(k, k, len + 1), h).ok());
        const Checked c = table->access().check(ask_of(k, k, len), h);
        if (c.ok()) {
          EXPECT_EQ(c.grant().data(), reinterpret_cast<std::byte*>(k));
        }
      }
    }
  });
  for (uint64_t i = 1; i < 20000; ++i) {
    const RegionHandle r =
        add(spec_with({.base = i * 7919, .length = i * 7919 % 1000, .key = i * 7919}));
    key = r.key;
    close(r);
  }
  done = true;
  reader.join();
}

// Stands in for process_vm_writev within one process: reads the remote iovec once, as the kernel
// does at the start of the call, and copies under ThreadSanitizer's eyes.
ssize_t copy_in_process(pid_t, const iovec* local, unsigned long, const iovec* remote,
                        unsigned long, unsigned long) {
  const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(remote);
  const uint64_t base = words[0].load(std::memory_order_relaxed);
  const uint64_t len = words[1].load(std::memory_order_relaxed);
  const size_t n = std::min<size_t>(len, local->iov_len);
  std::memcpy(reinterpret_cast<void*>(base), local->iov_base, n);
  return static_cast<ssize_t>(n);
}

// After revoke() the owner writes the memory as its own: any copy that still lands is a data race.
TEST_F(Threads, no_copy_lands_after_revoke_returned) {
  auto slots = std::make_unique<SlotArray>();
  ASSERT_TRUE(table->accessors().attach(slots.get(), ::getpid()));
  constexpr size_t kBytes = 4096;
  std::vector<char> memory(kBytes);
  std::atomic<uint64_t> key{0};
  std::atomic<bool> done{false};
  std::atomic<uint64_t> landed{0};
  const auto access = [&] {
    const std::unique_ptr<PeerKeyView> peer = peer_view();
    peer->set_copy_calls(&copy_in_process, &copy_in_process);
    AccessorSlot* slot = slots->claim();
    LookupHint hint;
    char mine[kBytes / 2];
    std::memset(mine, 'm', sizeof mine);
    // the two accessors write different halves, so that only the owner is a stranger to each
    const uint64_t at = reinterpret_cast<uint64_t>(memory.data()) +
                        static_cast<uint64_t>(slot - slots->slots) * sizeof mine;
    iovec iov{mine, sizeof mine};
    while (!done) {
      const DirectAsk ask{kPd, key.load(), at, &iov, 1};
      if (peer->write(::getpid(), *slot, ask, &hint).outcome == DirectResult::Outcome::done) {
        ++landed;
      }
    }
  };
  std::thread a(access);
  std::thread b(access);
  for (int i = 0; i < 300; ++i) {
    const RegionHandle r = add(spec_of(reinterpret_cast<uint64_t>(memory.data()), kBytes));
    key = r.key;
    const uint64_t before = landed;
    for (int spin = 0; spin < 200 && landed == before; ++spin) std::this_thread::yield();
    close(r);
    std::memset(memory.data(), 'o', kBytes);
    for (const char c : memory) ASSERT_EQ(c, 'o');
  }
  done = true;
  a.join();
  b.join();
  EXPECT_GT(landed.load(), 50u);
  EXPECT_TRUE(table->accessors().detach(slots.get()));
}

// A slot goes from one engine's thread to another's with no lock between them: were its last pin
// and copies not over for the next holder, they could take that one's pin away.
TEST_F(Threads, slot_comes_to_its_next_holder_with_all_that_the_last_one_did) {
  auto slots = std::make_unique<SlotArray>();
  for (size_t i = 1; i < kSlotsPerPeer; ++i) ASSERT_NE(slots->claim(), nullptr);
  uint64_t in_turn = 0;  // what only the holder of the last slot touches
  const auto hold = [&] {
    for (int round = 0; round < 2000;) {
      AccessorSlot* slot = slots->claim(7);
      if (slot == nullptr) {
        std::this_thread::yield();
        continue;
      }
      ++in_turn;
      SlotArray::give_back(slot);
      ++round;
    }
  };
  std::thread a(hold);
  std::thread b(hold);
  a.join();
  b.join();
  EXPECT_EQ(in_turn, 4000u);
}

TEST_F(Threads, many_threads_register_and_close) {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&, t] {
      std::vector<RegionHandle> mine;
      for (int i = 0; i < 4000; ++i) {
        mine.push_back(add());
        if (i % 2 == 1) {
          const size_t at = static_cast<size_t>(i * 31 + t) % mine.size();
          close(mine[at]);
          mine[at] = mine.back();
          mine.pop_back();
        }
      }
      for (const RegionHandle& r : mine) {
        EXPECT_TRUE(table->access().check(ask_of(r.key)).ok());
        close(r);
      }
    });
  }
  for (std::thread& t : all) t.join();
  EXPECT_EQ(table->entries().regions(), 0u);
}

}  // namespace
}  // namespace aperture::protect
