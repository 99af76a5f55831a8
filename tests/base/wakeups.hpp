// How often the threads of a process have gone to sleep, which is how often they were woken: the
// voluntary context switches of /proc/PID/task/*/status, proc(5).
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

namespace aperture::test {

class Wakeups {
 public:
  // As it is now. `except`: a thread that is not looked at, such as the one that looks.
  explicit Wakeups(pid_t pid, pid_t except = 0) {
    std::error_code gone;
    const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
      const std::string tid = task.path().filename();
      if (tid != std::to_string(except)) threads_[tid] = read(task.path());
    }
  }

  // Since then, and of which threads: "2: reader 1, writer 1"; "0" of who rests.
  std::string since(const Wakeups& then) const {
    uint64_t sum = 0;
    std::string of_whom;
    for (const auto& [tid, now] : threads_) {
      const auto before = then.threads_.find(tid);
      const uint64_t grown = now.count - (before == then.threads_.end() ? 0 : before->second.count);
      if (grown == 0) continue;
      sum += grown;
      of_whom += (of_whom.empty() ? ": " : ", ") + now.name + " " + std::to_string(grown);
    }
    return std::to_string(sum) + of_whom;
  }

  bool all_asleep() const {
    return std::ranges::all_of(threads_, [](const auto& each) { return each.second.state == 'S'; });
  }

 private:
  struct Thread {
    std::string name;
    char state = '?';
    uint64_t count = 0;
  };

  static Thread read(const std::filesystem::path& task) {
    Thread thread;
    std::ifstream status(task / "status");
    for (std::string word; status >> word;) {
      if (word == "Name:") status >> thread.name;
      if (word == "State:") status >> thread.state;
      if (word == "voluntary_ctxt_switches:") status >> thread.count;
    }
    return thread;
  }

  std::map<std::string, Thread> threads_;
};

// Whether all threads of a process but that one came to sleep, for 5 ms without a break, within
// ten seconds.
inline bool comes_to_rest(pid_t pid, pid_t except) {
  Wakeups before(pid, except);
  for (int i = 0; i < 2000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Wakeups now(pid, except);
    if (now.all_asleep() && now.since(before) == "0") return true;
    before = now;
  }
  return false;
}

}  // namespace aperture::test
