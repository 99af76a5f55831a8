// main() of every door test: runs a role when asked to be a child, else the tests under a watchdog,
// and says with each failure how to see it again.
//
// The watchdog is a thread: a test that takes longer than its limit is named, its children are
// killed, and the program ends with status 124 (a hang is a failure, never a hanging CI).
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {
namespace {

std::string g_program;

void print_reproduction(const std::string& test) {
  std::string line = "reproduce: ";
  for (const char* name :
       {"APERTURE_TEST_PROVIDER", "FI_PROVIDER_PATH", "APERTURE_CMA", "APERTURE_KILLS"})
    if (const char* value = std::getenv(name)) line += std::string(name) + "='" + value + "' ";
  line += "APERTURE_SEED=" + std::to_string(run_seed()) + " " + g_program + " --gtest_filter='" +
          test + "'\n";
  std::fputs(line.c_str(), stderr);
}

class Watchdog : public testing::EmptyTestEventListener {
 public:
  explicit Watchdog(std::chrono::seconds limit) : limit_(limit), thread_([this] { watch(); }) {}
  ~Watchdog() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void OnTestStart(const testing::TestInfo& info) override {
    const std::lock_guard lock(mutex_);
    test_ = std::string(info.test_suite_name()) + "." + info.name();
    deadline_ = std::chrono::steady_clock::now() + limit_;
    running_ = true;
    changed_.notify_all();
  }

  void OnTestEnd(const testing::TestInfo& info) override {
    {
      const std::lock_guard lock(mutex_);
      running_ = false;
      changed_.notify_all();
    }
    if (info.result()->Failed())
      print_reproduction(std::string(info.test_suite_name()) + "." + info.name());
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (!running_) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, deadline_) == std::cv_status::timeout && running_ &&
                 std::chrono::steady_clock::now() >= deadline_) {
        std::fprintf(stderr, "\nwatchdog: %s did not end within %lld s\n", test_.c_str(),
                     static_cast<long long>(limit_.count()));
        print_reproduction(test_);
        kill_children();
        std::fflush(nullptr);
        _exit(124);
      }
    }
  }

  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point deadline_{};
  std::string test_;
  bool running_ = false;
  bool stop_ = false;
  std::thread thread_;
};

int run_tests(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  g_program = argv[0];
  const char* limit = std::getenv("APERTURE_TEST_LIMIT");
  auto* watchdog = new Watchdog(std::chrono::seconds(limit != nullptr ? std::atoi(limit) : 60));
  testing::UnitTest::GetInstance()->listeners().Append(watchdog);
  std::printf("provider %s, seed %llu\n", provider_name(),
              static_cast<unsigned long long>(run_seed()));
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace aperture::doors

int main(int argc, char** argv) {
  if (argc == 3 && std::strncmp(argv[1], "--role=", 7) == 0)
    return aperture::doors::run_role(argv[1] + 7, std::atoi(argv[2]));
  return aperture::doors::run_tests(argc, argv);
}
