// Where an address of code is, in words: of this process, and of others, which come and go and may
// name any address.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "protect/code_place.hpp"
#include "protect/wording.hpp"

namespace {

std::atomic<int> g_threads{0};

}  // namespace

// Each search of debug information has a thread of its own.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*main)(void*), void* arg) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  g_threads.fetch_add(1);
  return real(thread, attributes, main, arg);
}

namespace aperture::protect {
namespace {

// A process of this program, which does nothing.
class Copy {
 public:
  Copy() : pid_(::fork()) {
    if (pid_ == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (pid_ == 0) ::pause();
  }
  ~Copy() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Copy(const Copy&) = delete;
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

// In its caller.
[[gnu::noinline]] uint64_t an_address() {
  return reinterpret_cast<uint64_t>(__builtin_return_address(0));
}

bool has_source(const std::string& said) {
  return said.find(" at code_place_test.cpp:") != std::string::npos;
}
bool is_number(const std::string& said, uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "at 0x%llx", static_cast<unsigned long long>(address));
  return said == text;
}

TEST(CodePlace, is_searched_once_for_all_processes_of_a_program) {
  const uint64_t address = an_address();
  const std::string ours = describe_code(::getpid(), address, kNeutralWording);
  ASSERT_TRUE(has_source(ours)) << ours;
  const int searches = g_threads;
  EXPECT_GT(searches, 0);
  for (int i = 0; i < 30; ++i) {
    const Copy other;
    EXPECT_EQ(describe_code(other.pid(), address, kNeutralWording), ours);
  }
  EXPECT_EQ(g_threads, searches);
}

TEST(CodePlace, outside_of_every_file_is_a_number) {
  uint64_t here = 0;
  const auto address = reinterpret_cast<uint64_t>(&here);
  EXPECT_TRUE(is_number(describe_code(::getpid(), address, kNeutralWording), address));
  EXPECT_TRUE(is_number(describe_code(::getpid(), 1, kNeutralWording), 1));
  const Copy other;
  EXPECT_TRUE(is_number(describe_code(other.pid(), address, kNeutralWording), address));
}

// The last, for it takes all that there is.
TEST(CodePlaces, of_another_process_that_names_one_after_the_other_become_numbers) {
  const uint64_t address = an_address();
  ASSERT_TRUE(has_source(describe_code(::getpid(), address, kNeutralWording)));
  const Copy other;
  bool refused = false;
  uint64_t at = address;
  for (int i = 0; i < 100'000 && !refused; ++i, ++at) {
    refused = is_number(describe_code(other.pid(), at, kNeutralWording), at);
  }
  EXPECT_TRUE(refused) << "a peer can have us search for as long as it likes";
  const int searches = g_threads;
  for (int i = 0; i < 100; ++i) describe_code(other.pid(), ++at, kNeutralWording);
  EXPECT_LT(g_threads - searches, 10);
  EXPECT_NE(describe_code(::getpid(), at + 1, kNeutralWording).find(" ("), std::string::npos)
      << "of ours all are told";
}

}  // namespace
}  // namespace aperture::protect
