// Orders of memory accesses that no stress test meets often enough, and that no page fault can
// stage: one thread is stopped after each of its machine instructions in turn (the trap flag), and
// something else happens there.

#if defined(__x86_64__)

#include <signal.h>
#include <ucontext.h>

#include <bit>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

constexpr greg_t kTrapFlag = 0x100;
// A sanitized build has many more instructions, and none that is of interest here.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kStride = 11, kRounds = 10;
#else
constexpr int kStride = 1, kRounds = 200;
#endif

class Stepper {
 public:
  Stepper() {
    struct sigaction action {};
    action.sa_sigaction = &on_trap;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGTRAP, &action, &old_);
  }
  ~Stepper() { ::sigaction(SIGTRAP, &old_, nullptr); }

  // Runs `code` with `between` in front of its n-th instruction (counted from the call). False: it
  // has not so many.
  template <typename Code>
  bool at(int n, const std::function<void()>& between, Code&& code) {
    return step(n, false, between, code) <= 0;
  }
  // Runs `code` with `between` in front of each of its instructions.
  template <typename Code>
  void at_each(const std::function<void()>& between, Code&& code) {
    (void)step(0, true, between, code);
  }

 private:
  template <typename Code>
  static int step(int n, bool each, const std::function<void()>& between, Code&& code) {
    left_ = n;
    each_ = each;
    between_ = &between;
    set_trap_flag();
    code();
    clear_trap_flag();
    return left_;
  }
  static void set_trap_flag() {
    asm volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
  }
  static void clear_trap_flag() {
    asm volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
  }
  static void on_trap(int, siginfo_t*, void* context) {
    if (each_) return (*between_)();
    if (--left_ > 0) return;
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
    if (left_ == 0) (*between_)();
  }

  static int left_;
  static bool each_;
  static const std::function<void()>* between_;
  struct sigaction old_ {};
};
int Stepper::left_ = 0;
bool Stepper::each_ = false;
const std::function<void()>* Stepper::between_ = nullptr;

class Steps : public TableTest {};

// The region is closed and another one registered under its key, in the same entry.
TEST_F(Steps, a_check_sees_one_life_of_an_entry_wherever_it_is_stopped) {
  Stepper stepper;
  RegionSpec lives[2] = {spec_of(0x10000, 100), spec_of(0x90000, 200)};
  for (RegionSpec& life : lives) {
    life.requested_key = 9;
    life.zero_based = true;
  }
  LookupHint hint;
  int granted[2] = {};
  for (const bool hinted : {false, true}) {
    bool reached = true;
    for (int n = 1; reached && n < 50000; n += kStride) {
      const RegionHandle first = add(lives[0]);
      if (hinted) {
        ASSERT_EQ(this->denial(ask_of(9, 0, 50), &hint), Denial::none);
      }
      RegionHandle second;
      const std::function<void()> reborn = [&] {
        (void)table->revocation().revoke(first, now_ns());
        second = *table->add(lives[1]);
      };
      uint64_t base = 0, generation = 0;
      Denial denial{};
      reached = stepper.at(n, reborn, [&] {
        const Checked c = table->access().check(ask_of(9, 0, 50), hinted ? &hint : nullptr);
        denial = c.denial();
        if (c) base = reinterpret_cast<uint64_t>(c.grant().data());
        if (c) generation = c.grant().region().generation;
      });
      if (denial == Denial::none) {
        const bool is_first = generation == first.generation;
        ASSERT_EQ(generation, is_first ? first.generation : second.generation) << n;
        ASSERT_EQ(base, lives[is_first ? 0 : 1].base) << "fields of two lives, at step " << n;
        ++granted[is_first ? 0 : 1];
      }
      close(reached ? second : first);
    }
    EXPECT_FALSE(reached) << "it has an end";
  }
  EXPECT_GT(granted[0], 10);
  EXPECT_GT(granted[1], 10);
}

// A registration that splits a chain is stopped, and a peer looks for every key of that chain.
TEST_F(Steps, every_key_is_found_wherever_a_split_is_stopped) {
  const Mapping file = *Mapping::map_shared(table->own_file().fd(), table->own_file().size_bytes(),
                                            Mapping::Access::read_only);
  const auto& buckets = reinterpret_cast<const KeyHeader*>(file.data())->bucket_count;
  const std::unique_ptr<PeerKeyView> view = peer_view();
  ASSERT_TRUE(view);
  Stepper stepper;
  RegionSpec spec = spec_of();
  std::vector<uint64_t> keys;
  const auto add_next = [&] {
    spec.requested_key = keys.size();
    keys.push_back(keys.size());
    (void)table->add(spec);
  };
  while (buckets == kBucketsAtStart) add_next();
  int splits = 0, looks = 0, lost = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t count = buckets;
    std::vector<uint64_t> chain;
    for (const uint64_t key : keys) {
      if (bucket_of(hash_key(kPd, key), count) == count - std::bit_floor(count)) {
        chain.push_back(key);
      }
    }
    const std::function<void()> look = [&] {
      for (const uint64_t key : chain) {
        ++looks;
        lost += view->would_refuse(kPd, key, kBase, 8, Rights::remote_write) != Denial::none;
      }
    };
    if (chain.empty()) {
      add_next();
    } else {
      stepper.at_each(look, add_next);
    }
    splits += buckets != count;
    ASSERT_EQ(lost, 0) << "a key that is there was refused";
  }
  EXPECT_GT(splits, 0);
  EXPECT_GT(looks, 100);
}

}  // namespace
}  // namespace aperture::protect

#endif
