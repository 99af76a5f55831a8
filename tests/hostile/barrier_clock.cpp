// Measuring sleep in membarrier(2): see barrier_clock.hpp.
#include "hostile/barrier_clock.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "base/system_call.hpp"
#include "doors/fixture.hpp"

namespace aperture::hostile {
namespace {

constexpr size_t kBytes = 4096;

// The counter that these processes share; null: there is none.
std::atomic<int64_t>* counter() noexcept {
  static std::atomic<int64_t>* const shared = []() -> std::atomic<int64_t>* {
    const char* const fd = std::getenv(BarrierClock::kVariable);
    if (fd == nullptr) return nullptr;
    void* const page =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, std::atoi(fd), 0);
    return page == MAP_FAILED ? nullptr : static_cast<std::atomic<int64_t>*>(page);
  }();
  return shared;
}

// What this thread has had of processors, and waited for them: the rest of its time it slept.
class ThreadTimes {
 public:
  ThreadTimes() noexcept : fd_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  ~ThreadTimes() { ::close(fd_); }
  int64_t awake_ns() const noexcept {
    char text[96] = {};
    long long ran = 0, waited = 0;
    if (::pread(fd_, text, sizeof text - 1, 0) > 0) std::sscanf(text, "%lld %lld", &ran, &waited);
    return ran + waited;
  }

 private:
  int fd_;
};

}  // namespace

BarrierClock::BarrierClock() : fd_(::memfd_create("barrier-clock", 0)) {
  if (fd_ < 0 || ::ftruncate(fd_, kBytes) != 0) throw std::runtime_error("no barrier clock");
}

BarrierClock::~BarrierClock() {
  ::close(fd_);
}

int64_t slept_in_barriers_ns() noexcept {
  const std::atomic<int64_t>* const shared = counter();
  return shared == nullptr ? 0 : shared->load(std::memory_order_relaxed);
}

}  // namespace aperture::hostile

long aperture::test::on_system_call(const SystemCall& call) noexcept {
  using namespace aperture::hostile;
  constexpr int64_t kShort_ns = 1'000'000;
  if (call.number != SYS_membarrier || counter() == nullptr) return call.pass_on();
  thread_local const ThreadTimes times;
  const int64_t awake_before = times.awake_ns(), began = doors::now_ns();
  const long result = call.pass_on();
  const int error = errno;
  if (const int64_t took = doors::now_ns() - began; took > kShort_ns) {
    const int64_t slept = took - (times.awake_ns() - awake_before);
    if (slept > 0) counter()->fetch_add(slept, std::memory_order_relaxed);
  }
  errno = error;
  return result;
}
