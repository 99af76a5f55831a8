// Out of memory on the control plane (docs/adr/0006): in a process of its own for each N, the Nth
// allocation fails while everything is opened, connected, sent and closed. Nobody crashes or hangs;
// whatever fails says so; and the same process then does all of it without a fault.
//
// A seeded sample of all N runs for kSampleSeconds; APERTURE_ALLOCATIONS=all runs them all, and a
// number that one alone.
#include <execinfo.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "base/reserve.hpp"
#include "nic/datagram_end.hpp"
#include "nic/endpoint.hpp"
#include "nic/first_contact.hpp"

namespace {

constexpr uint64_t kNever = ~uint64_t{0};
std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> fails_at{kNever};

void* allocate(size_t bytes) noexcept {
  // relaxed: a count, and which thread's allocation is the Nth does not matter
  const uint64_t now = allocations.fetch_add(1, std::memory_order_relaxed) + 1;
  if (now == fails_at.load(std::memory_order_relaxed)) return nullptr;
  return std::malloc(bytes != 0 ? bytes : 1);
}

}  // namespace

void* operator new(size_t bytes) {
  void* p = allocate(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new[](size_t bytes) {
  return ::operator new(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}

namespace aperture::nic {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kHangNs = 8000 * kMs;
constexpr unsigned kWatchdogSeconds = 40;
constexpr uint64_t kSampleSeconds = 25;

// What a run ends with, as a process's exit status.
enum Outcome : int { fine = 0, hangs = 10, does_not_recover = 11, keeps_the_reserve = 12 };

// An endpoint with everything around it.
struct Node {
  Errc open() {
    auto made = Engine::create({.threaded = true});
    if (!made) return made.error();
    engine = *std::move(made);
    cq = std::make_unique<qp::Cq>(64);
    EndpointOptions options;
    options.engine = engine.get();
    options.addresses = &addresses;
    options.tx_cq = options.rx_cq = cq.get();
    options.local = Address::v4(0x7f000001, 0);
    auto opened = Endpoint::create(options);
    if (!opened) return opened.error();
    endpoint = *std::move(opened);
    return Errc::ok;
  }
  void poll() {
    const EngineGuard guard(*engine);
    engine->poll();
  }
  // Whether something completed; the errors go to `why`.
  bool completed(Errc& why) {
    const EngineGuard guard(*engine);
    if (cq->empty()) return false;
    if (cq->error_first()) why = Errc::peer_lost;
    return true;
  }

  std::unique_ptr<Engine> engine;
  AddressTable addresses;
  std::unique_ptr<qp::Cq> cq;
  std::unique_ptr<Endpoint> endpoint;
};

bool g_hung = false;

// A message between two endpoints, over a connection that it makes.
Errc send_one() {
  Node a, b;
  if (const Errc e = a.open(); e != Errc::ok) return e;
  if (const Errc e = b.open(); e != Errc::ok) return e;
  const auto index = a.addresses.insert(b.endpoint->address());
  if (!index) return index.error();
  uint64_t word = 42, got = 0;
  const iovec from{&word, sizeof word}, to{&got, sizeof got};
  {
    const EngineGuard guard(*b.engine);
    const qp::RecvWr recv{.iov = &to, .iov_count = 1, .len = sizeof got};
    if (Status s = b.endpoint->recv(recv); !s) return s.error();
  }
  const qp::SendWr send{.iov = &from, .iov_count = 1, .len = sizeof word};
  bool sent = false;
  Errc why = Errc::ok;
  uint64_t completed_at = 0;
  for (const uint64_t until = now_ns() + kHangNs; now_ns() < until;) {
    if (!sent) {
      const EngineGuard guard(*a.engine);
      const Status s = a.endpoint->send(send);
      if (!s && s.error() != Errc::again) return s.error();
      sent = s.ok();
    }
    a.poll();
    b.poll();
    Errc received = Errc::ok;
    if (b.completed(received)) return received == Errc::ok && got == word ? Errc::ok : Errc::io;
    if (completed_at == 0 && a.completed(why)) completed_at = now_ns();
    if (why != Errc::ok) return why;
    // it was with the peer, whose side of the lane was ended before it was read
    if (completed_at != 0 && now_ns() - completed_at > 500 * kMs) return Errc::peer_lost;
  }
  g_hung = true;
  return Errc::timed_out;
}

// A connection that two verbs queue pairs would have; and datagrams between two others.
Errc use_queue_pairs() {
  test::DatagramEnd a, b;
  if (!a.ok || !b.ok) return Errc::no_memory;
  auto connected = a.nic->make_qp(a.rc_spec());
  if (!connected) return connected.error();
  const Address here = Address::v4(0x7f000001, 0);
  if (Status s = a.send(here, here, b.qpn(), "word"); !s) return s.error();
  return b.next(true, 2000).text == "word" ? Errc::ok : Errc::peer_lost;
}

Errc do_everything() noexcept {
  try {
    auto contact = Contact::instance();
    if (!contact) return contact.error();
    static_cast<FirstContact*>(*contact)->connector_limits.timeout_ns = 2000 * kMs;
    if (const Errc e = send_one(); e != Errc::ok) return e;
    return use_queue_pairs();
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;  // of this program's own
  }
}

// In a process of its own: the allocation that fails is the Nth of it.
[[noreturn]] void run_in_child(uint64_t n) {
  ::alarm(kWatchdogSeconds);
  std::set_terminate([] {  // who did not catch
    void* frames[32];
    ::backtrace_symbols_fd(frames, ::backtrace(frames, 32), STDERR_FILENO);
    std::abort();
  });
  allocations = 0;
  fails_at = n;
  do_everything();
  fails_at = kNever;
  if (g_hung) ::_exit(hangs);
  Errc again = Errc::ok;
  for (int tries = 0; tries < 2; ++tries) {  // a connection may be in its last gasps
    if (again = do_everything(); again == Errc::ok) break;
  }
  if (g_hung) ::_exit(hangs);
  if (again != Errc::ok) ::_exit(does_not_recover);
  // the longest-lived block is the timer over a newcomer, 5 s
  for (int ms = 0; ms < 8000 && reserve::in_use() != 0; ++ms) ::usleep(1000);
  ::_exit(reserve::in_use() != 0 ? keeps_the_reserve : fine);
}

int outcome_of(uint64_t n) {
  const pid_t child = ::fork();
  if (child == 0) run_in_child(n);
  int status = -1;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// How many allocations there are when none fails.
uint64_t count_allocations() {
  int fds[2];
  if (::pipe(fds) != 0) return 0;
  if (::fork() == 0) {
    ::alarm(kWatchdogSeconds);
    allocations = 0;
    const Errc e = do_everything();
    if (e != Errc::ok) std::fprintf(stderr, "without a failure: %s\n", describe(e));
    const uint64_t count = e == Errc::ok ? allocations.load() : 0;
    static_cast<void>(!::write(fds[1], &count, sizeof count));
    ::_exit(0);
  }
  ::close(fds[1]);
  uint64_t count = 0;
  if (::read(fds[0], &count, sizeof count) != sizeof count) count = 0;
  ::close(fds[0]);
  ::wait(nullptr);
  return count;
}

TEST(OutOfMemory, the_nth_allocation_may_fail_wherever_it_is) {
  const uint64_t count = count_allocations();
  ASSERT_GT(count, 50u) << "without a failure everything works";
  std::vector<uint64_t> order(count);
  for (uint64_t i = 0; i < count; ++i) order[i] = i + 1;
  const char* all = std::getenv("APERTURE_ALLOCATIONS");
  const bool sample = all == nullptr || std::string(all) != "all";
  if (all != nullptr && sample) order = {std::strtoull(all, nullptr, 10)};
  const unsigned seed = std::random_device{}();
  if (sample) std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  const uint64_t until = sample ? now_ns() + kSampleSeconds * 1000 * kMs : kNever;
  uint64_t tried = 0;
  for (const uint64_t n : order) {
    if (now_ns() > until) break;
    EXPECT_EQ(outcome_of(n), fine)
        << "allocation " << n << " of " << count
        << " fails; a negative number is a signal, 10 a hang, 11 that it does not work afterwards, "
           "12 that blocks of the reserve are not given back";
    ++tried;
  }
  std::printf("seed %u: %llu of %llu allocations failed in turn\n", seed,
              static_cast<unsigned long long>(tried), static_cast<unsigned long long>(count));
}

}  // namespace
}  // namespace aperture::nic
