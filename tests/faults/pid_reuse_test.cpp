// A process dies, and another one gets its number before its peer has noticed: nothing that was
// meant for the first lands in the second, although the same addresses are mapped there.
//
// Numbers can be chosen in a pid namespace of one's own, which takes root. APERTURE_KILLS tenths
// are the rounds (default 10).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <new>

#include "doors/child.hpp"
#include "doors/region.hpp"

namespace aperture::faults {
namespace {

using doors::Child;
using doors::Node;
using doors::Op;
using doors::Region;

constexpr size_t kBytes = size_t{1} << 20;
constexpr size_t kPage = 4096;
constexpr pid_t kNumber = 7777;
constexpr int kWait_ms = 20000;

struct Hello {
  doors::Name name;
  doors::Remote remote;
};

doors::Options options() {
  return {.mr_mode = doors::kBasicMr};
}

// Opens a region and does nothing else until it is killed, so that its peer goes the direct way.
DOOR_ROLE(first_of_the_number) {
  Node node(options());
  Region region(node, kBytes);
  if (!control.put(Hello{node.name(), region.remote()})) return 1;
  for (;;) pause();
}

void choose_next_number() {
  std::ofstream("/proc/sys/kernel/ns_last_pid") << kNumber - 1 << std::flush;
}

// The process that has the number now, with memory where the first one had it. It is forked, since
// a program takes so long to start that the death would have been noticed.
class Second {
 public:
  explicit Second(const doors::Remote& remote) {
    void* shared = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    word_ = new (shared) std::atomic<char>(0);
    choose_next_number();
    pid_ = fork();
    if (pid_ == 0) live(remote);
  }
  ~Second() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(word_, kPage);
  }
  Second(const Second&) = delete;
  Second& operator=(const Second&) = delete;

  pid_t pid() const { return pid_; }
  // Whether it could have memory at those addresses.
  bool has_memory() const { return said() == 'm'; }
  // Whether that is as it was, from now on.
  bool untouched() {
    *word_ = '?';
    return said() == 's';
  }

 private:
  char said() const {
    char word = 0;
    for (const int64_t end = doors::now_ns() + 20'000'000'000; doors::now_ns() < end;) {
      word = *word_;
      if (word != 0 && word != '?') break;
    }
    return word;
  }
  [[noreturn]] void live(const doors::Remote& remote) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    void* wanted = reinterpret_cast<void*>(remote.base / kPage * kPage);
    const size_t size = kBytes + kPage;
    void* at = mmap(wanted, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != wanted) {
      *word_ = 'x';
      for (;;) pause();
    }
    *word_ = 'm';
    while (*word_ != '?') usleep(100);
    const auto* bytes = static_cast<const uint8_t*>(at);
    *word_ = std::all_of(bytes, bytes + size, [](uint8_t byte) { return byte == 0; }) ? 's' : 'd';
    for (;;) pause();
  }

  std::atomic<char>* word_;
  pid_t pid_ = -1;
};

class Survivor {
 public:
  // "" or what went wrong.
  std::string round(uint64_t seed) {
    choose_next_number();
    Child first("first_of_the_number");
    Hello hello;
    if (!first.control().get(&hello, kWait_ms)) return "the first one has ended";
    if (first.pid() != kNumber) return "its number cannot be chosen";
    fi_addr_t to = node_.insert(hello.name);
    const auto write = [&](size_t size, Op* op) {
      return fi_write(node_.ep(), bytes_.data(), size, nullptr, to, hello.remote.base,
                      hello.remote.key, op);
    };
    Op ops[4];
    for (const size_t size : {size_t{64}, kBytes}) {
      if (doors::post([&] { return write(size, &ops[0]); }) != 0 || node_.wait(&ops[0]).err != 0)
        return "cannot write to the first one";
    }
    // half of the time something is under way
    const size_t under_way = seed % 2 == 0 ? 0 : 3;
    size_t posted = 0;
    while (posted < under_way && write(kBytes, &ops[posted]) == 0) ++posted;
    for (uint64_t i = 0; i < seed / 2 % 20; ++i) node_.poll();
    first.kill_now();
    Second second(hello.remote);
    if (second.pid() != kNumber) return "the number cannot be chosen again";
    const bool mapped = second.has_memory();
    // from here on nothing may succeed: the process with that number is another one
    int succeeded = 0;
    for (size_t i = 0; i < 20; ++i) {
      Op op;
      const int64_t code = doors::post([&] { return write(i % 2 == 0 ? kBytes : 64, &op); });
      if (code == 0 && node_.wait(&op).err == 0) ++succeeded;
    }
    for (size_t i = 0; i < posted; ++i) {
      if (node_.wait(&ops[i]).err == -1) return "an operation never ended";
    }
    fi_av_remove(node_.av(), &to, 1, 0);
    if (succeeded != 0) return std::to_string(succeeded) + " writes to nobody have succeeded";
    if (!mapped) return "";  // its addresses were not free there
    ++checked_;
    return second.untouched() ? "" : "bytes landed in the second process";
  }
  int checked() const { return checked_; }

 private:
  Node node_{options()};
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kBytes, 1);
  int checked_ = 0;
};

// The first process of its namespace. Its exit status says how it went.
int survive() {
  const char* kills = std::getenv("APERTURE_KILLS");
  const int rounds = kills != nullptr ? std::max(std::atoi(kills) / 10, 1) : 10;
  Survivor survivor;
  for (int i = 0; i < rounds; ++i) {
    const std::string trouble = survivor.round(doors::seed_of(static_cast<uint64_t>(i)));
    if (trouble.empty()) continue;
    std::fprintf(stderr, "round %d: %s\n", i, trouble.c_str());
    return 1;
  }
  std::printf("%d rounds, in %d of them the memory was there again\n", rounds, survivor.checked());
  std::fflush(stdout);
  return survivor.checked() != 0 ? 0 : 2;
}

constexpr int kNoNamespace = 77;

// Goes on in new namespaces for numbers and mounts, with a /proc that shows them. It is a program
// of its own with one thread: in what is forked where other threads are, nothing can be allocated.
DOOR_ROLE(survivor_in_namespaces) {
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return control.put(kNoNamespace) ? 0 : 5;
  const pid_t first = fork();
  if (first == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", 0, nullptr) != 0 ||
        access("/proc/sys/kernel/ns_last_pid", W_OK) != 0) {
      _exit(kNoNamespace);
    }
    int code = 3;
    try {
      code = survive();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(first, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 4;
  return control.put(code) ? 0 : 5;
}

TEST(PidReuse, reaches_nothing_in_the_process_that_has_the_number_now) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a pid namespace of its own: root";
  doors::run_seed();
  Child survivor("survivor_in_namespaces");
  int code = -1;
  ASSERT_TRUE(survivor.control().get(&code)) << "it has ended";
  if (code == kNoNamespace) GTEST_SKIP() << "no pid namespace in which numbers can be chosen";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace aperture::faults
