// Two processes: one-sided copies with canaries, and closing while the accessor works, is stopped
// at a random moment, or is killed. APERTURE_SEED repeats a run, APERTURE_ROUNDS lengthens it
// (soak).
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include "base/random.hpp"
#include "protect/cma.hpp"
#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

using Outcome = DirectResult::Outcome;

constexpr size_t kCanary = 64 * 1024;
constexpr size_t kInside = 1 << 20;
constexpr int kAccessors = 2;

// What becomes of the accessor; denied: this host lets no child copy into its parent.
enum class Start { waits, runs, denied, failed };

// What owner and accessor share beside the key file.
struct Shared {
  SlotArray slots;
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> base;
  std::atomic<uint64_t> copies;
  std::atomic<uint64_t> denied;
  std::atomic<Start> start;
};

class Stress {
 public:
  Stress() : memory_(kCanary + kInside + kCanary) {
    // Yama's scope 1 lets only descendants be traced: let the child in
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    void* page =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (page) Shared{};
    table_ = *KeyTable::create(4096);
    if (const char* seed = std::getenv("APERTURE_SEED")) seed_ = std::strtoull(seed, nullptr, 0);
    std::printf("seed %llu (APERTURE_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
  }
  ~Stress() {
    end_child();
    ::munmap(shared_, sizeof(Shared));
  }

  uint64_t random(uint64_t below) {
    seed_ ^= seed_ << 13;
    seed_ ^= seed_ >> 7;
    seed_ ^= seed_ << 17;
    return seed_ % below;
  }
  Start start_child() {
    std::memset(static_cast<void*>(shared_), 0, sizeof(Shared));
    const pid_t owner = ::getpid();
    child_ = ::fork();
    if (child_ == 0) accessor_main(owner);
    while (shared_->start.load() == Start::waits) ::usleep(100);
    EXPECT_TRUE(table_->accessors().attach(&shared_->slots, child_));
    return shared_->start.load();
  }
  void end_child() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    // before it is reaped: its number is still its own
    while (!table_->accessors().detach(&shared_->slots)) ::usleep(100);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

  std::vector<char> memory_;
  std::unique_ptr<KeyTable> table_;
  Shared* shared_ = nullptr;
  pid_t child_ = 0;
  uint64_t seed_ = random_u64() | 1;

 private:
  [[noreturn]] void accessor_main(pid_t owner) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!test::cma_works(owner, memory_.data())) end(Start::denied);
    Result<PeerKeyView> view =
        PeerKeyView::map(UniqueFd(::fcntl(table_->own_file().fd(), F_DUPFD_CLOEXEC, 0)),
                         table_->own_file().size_bytes());
    if (!view || !view->probe(owner)) end(Start::failed);
    std::vector<std::thread> threads;
    for (int t = 0; t < kAccessors; ++t) {
      threads.emplace_back([&, t] { write_for_ever(*view, owner, static_cast<uint64_t>(t)); });
    }
    shared_->start = Start::runs;
    for (std::thread& t : threads) t.join();
    ::_exit(0);
  }
  [[noreturn]] void end(Start why) {
    shared_->start = why;
    ::_exit(0);
  }
  void write_for_ever(const PeerKeyView& view, pid_t owner, uint64_t seed) {
    AccessorSlot* slot = shared_->slots.claim();
    LookupHint hint;
    std::vector<unsigned char> from(kChunkBytes);
    for (uint64_t i = seed;; i = i * 6364136223846793005u + 1442695040888963407u) {
      const size_t len = static_cast<size_t>(i >> 33) % kChunkBytes + 1;
      const uint64_t at = (i >> 13) % (kInside - len + 1);
      // values that change from copy to copy: whatever lands late is seen
      std::memset(from.data(), static_cast<int>(i >> 24) | 1, len);
      iovec iov{from.data(), len};
      const DirectAsk ask{kPd, shared_->key.load(), shared_->base.load() + at, &iov, 1};
      const DirectResult r = view.write(owner, *slot, ask, &hint);
      if (r.outcome == Outcome::done) ++shared_->copies;
      if (r.outcome == Outcome::denied) ++shared_->denied;
    }
  }
};

void report(const char* what, std::vector<uint64_t> ns) {
  if (ns.empty()) return;
  std::sort(ns.begin(), ns.end());
  std::printf("revoke, accessor %s: p50 %.1f us, p99 %.1f us, max %.1f us (%zu)\n", what,
              static_cast<double>(ns[ns.size() / 2]) / 1e3,
              static_cast<double>(ns[ns.size() * 99 / 100]) / 1e3,
              static_cast<double>(ns.back()) / 1e3, ns.size());
}

int rounds() {
  const char* text = std::getenv("APERTURE_ROUNDS");
  return text != nullptr ? std::atoi(text) : 150;
}

TEST(Processes, nothing_lands_after_revoke_whether_the_accessor_runs_stops_or_dies) {
  Stress s;
  const Start start = s.start_child();
  if (start == Start::denied) GTEST_SKIP() << "process_vm_writev(2) into a parent is denied here";
  ASSERT_EQ(start, Start::runs);
  std::vector<uint64_t> took[3];
  char* inside = s.memory_.data() + kCanary;
  for (int round = 0; round < rounds(); ++round) {
    std::memset(s.memory_.data(), 'C', s.memory_.size());
    Result<RegionHandle> r =
        s.table_->add(spec_of(reinterpret_cast<uint64_t>(inside), kInside, Rights::remote_write));
    ASSERT_TRUE(r);
    const uint64_t before = s.shared_->copies;
    s.shared_->base = reinterpret_cast<uint64_t>(inside);
    s.shared_->key = r->key;
    for (int i = 0; i < 2000 && s.shared_->copies == before; ++i) ::usleep(100);
    EXPECT_GT(s.shared_->copies.load(), before);
    const uint64_t until = now_ns() + s.random(300'000);
    while (now_ns() < until) cpu_relax();

    const uint64_t fate = s.random(3);  // 0 runs on, 1 stopped, 2 killed
    if (fate == 1) ::kill(s.child_, SIGSTOP);
    if (fate == 2) ::kill(s.child_, SIGKILL);
    const uint64_t t0 = now_ns();
    const Status closed = s.table_->revocation().revoke(*r, t0 + 10'000'000'000);
    took[fate].push_back(now_ns() - t0);
    ASSERT_TRUE(closed) << describe(closed.error()) << " in round " << round;

    const std::vector<char> snapshot(s.memory_);
    if (fate == 1) ::kill(s.child_, SIGCONT);
    ::usleep(static_cast<useconds_t>(500 + s.random(1500)));
    ASSERT_EQ(std::memcmp(snapshot.data(), s.memory_.data(), snapshot.size()), 0)
        << "a copy landed after revoke in round " << round << ", fate " << fate;
    for (size_t i = 0; i < kCanary; ++i) {
      ASSERT_EQ(s.memory_[i], 'C');
      ASSERT_EQ(s.memory_[kCanary + kInside + i], 'C');
    }
    if (fate == 2) {
      s.end_child();
      ASSERT_EQ(s.start_child(), Start::runs);
    }
  }
  report("running", took[0]);
  report("stopped", took[1]);
  report("killed", took[2]);
  // the accessor goes on with the last key, now revoked: it is refused as soon as it is scheduled
  for (int i = 0; i < 100'000 && s.shared_->denied == 0; ++i) ::usleep(100);
  EXPECT_GT(s.shared_->denied.load(), 0u);
}

}  // namespace
}  // namespace aperture::protect
