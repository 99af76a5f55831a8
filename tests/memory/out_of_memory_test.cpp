// Out of memory in the drivers of devices (docs/adr/0006): the Nth allocation fails, for each N,
// and the same call succeeds afterwards. What the stand-ins allocate does not count.
#include "base/each_allocation.hpp"
#include "memory/driver_of.hpp"

extern "C" char __executable_start;  // of the program, as the linker laid it out
extern "C" char etext;

namespace {

bool counts = false;  // a call of ours is under way

bool fails(const void* caller) noexcept {
  const auto* at = static_cast<const char*>(caller);
  return counts && at >= &__executable_start && at < &etext && aperture::nth::is_the_nth();
}

}  // namespace

void* operator new(size_t bytes) {
  void* const at = fails(__builtin_return_address(0)) ? nullptr : std::malloc(bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
void operator delete(void* at) noexcept {
  std::free(at);
}
void operator delete(void* at, size_t) noexcept {
  std::free(at);
}

namespace aperture::memory {
namespace {

using test::DeviceKind;
using test::DeviceMemory;
using test::Devices;

constexpr const char* kMeaning =
    "1: another error than no_memory, 2: no sentence, 3: it does not recover, 4: something is "
    "left, "
    "5: there is no stand-in; a negative number is a signal";

// Makes the call twice if the first is refused for want of memory; 0, or what went wrong.
template <typename Call>
int outcome_of_call(Call call) {
  for (int i = 0; i < 2; ++i) {
    const char* why = nullptr;
    counts = true;
    const Errc error = call(why);
    counts = false;
    if (error == Errc::ok) return 0;
    if (error != Errc::no_memory) return 1;
    if (why == nullptr || std::strstr(why, "memory") == nullptr) return 2;
  }
  return 3;
}

int outcome_with(Devices& devices) {
  const Kind kind = kind_of(devices.kind());
  const standin_counts before = devices.counts();
  Driver* driver = nullptr;
  const int made = outcome_of_call([&](const char*& why) {
    auto answer = memory::driver(kind, why);
    if (answer) driver = *answer;
    return answer.error();
  });
  if (made != 0) return made;
  {
    DeviceMemory memory(devices, 4096);
    std::shared_ptr<const Registration> registration;
    const int added = outcome_of_call([&](const char*& why) {
      auto answer = driver->add(memory.at(), 4096, Driver::kAnyDevice, why);
      if (answer) registration = std::move(*answer);
      return answer.error();
    });
    if (added != 0) return added;
    int value = 1;
    if (!registration->copy_in(memory.at(), &value, sizeof value)) return 3;
    std::byte* const at = memory.at();
    memory.free();
    if (registration->copy_in(at, &value, sizeof value)) return 4;
  }
  const standin_counts after = devices.counts();
  // one for ROCr's reference, for CUDA's primary context, or for each of two drivers
  const bool kept = after.allocations == before.allocations && after.watches == before.watches &&
                    after.contexts - before.contexts <= 2 && after.queues <= 1;
  return kept ? 0 : 4;
}

int outcome_of(uint64_t n) {
  nth::fail_from_now_on(n);
  for (const DeviceKind kind : test::kDeviceKinds) {
    std::string why;
    const std::unique_ptr<Devices> devices = Devices::open(kind, why);
    const int outcome = devices != nullptr ? outcome_with(*devices) : 5;
    if (outcome != 0) return outcome;
  }
  return 0;
}

TEST(OutOfMemory, the_nth_allocation_may_fail_wherever_it_is) {
  // few enough to have them all in turn
  uint64_t* const made = static_cast<uint64_t*>(
      ::mmap(nullptr, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(made, MAP_FAILED);
  ASSERT_EQ(nth::run_in_child(outcome_of, 0, made), 0) << kMeaning;
  EXPECT_GT(*made, 10);
  for (uint64_t n = 1; n <= *made; ++n)
    EXPECT_EQ(nth::run_in_child(outcome_of, n, nullptr), 0) << "number " << n << ": " << kMeaning;
}

}  // namespace
}  // namespace aperture::memory
