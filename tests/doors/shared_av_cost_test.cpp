// What a shared address vector costs whoever has no part in it: one that waits for the file's lock
// holds up no other call, and what strangers send is not answered with a system call each. The
// functions that wait, read and write stand before the C library's, and count or fail.
#include <dlfcn.h>
#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "doors/shared_av.hpp"

namespace aperture::doors {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> reads{0};      // of files at a place
thread_local int failing_write = 0;  // the one of so many; 0: none

// A thread that is made to wait in its naps until another one has looked after it.
class Nap {
 public:
  // From a nap of the thread that is watched.
  void sleep() {
    std::unique_lock guard(mutex_);
    ++naps_;
    changed_.notify_all();
    const bool looked = changed_.wait_for(guard, std::chrono::seconds(10), [&] { return over_; });
    alone_ = alone_ || !looked;
    over_ = true;
  }
  void wait_for_it() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return naps_ != 0; });
  }
  void wake() {
    const std::lock_guard guard(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  // Nobody looked after it in time.
  bool was_alone() {
    const std::lock_guard guard(mutex_);
    return alone_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t naps_ = 0;
  bool over_ = false;
  bool alone_ = false;
};

thread_local Nap* nap = nullptr;           // of this thread; null: as the C library has it
thread_local uint64_t* counted = nullptr;  // naps of this thread, each of 20 ms at least

// Another process in the middle of a change, as far as its lock says.
class Changing {
 public:
  explicit Changing(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    whole.l_start = kChangesByte;
    whole.l_len = 1;
    EXPECT_EQ(::fcntl(fd_, F_OFD_SETLK, &whole), 0);
  }
  ~Changing() { end(); }
  void end() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

TEST_F(SharedAv, who_waits_for_its_lock_lets_the_others_in_the_domain_work) {
  for (const bool removes : {false, true}) {
    SCOPED_TRACE(removes ? "fi_av_remove" : "fi_av_insert");
    Opened here;
    fi_addr_t self = here.hub.insert(here.name());
    Changing other(file());
    Nap asleep;
    std::thread waiting([&] {
      nap = &asleep;
      const auto name = here.name();
      fi_addr_t addr = self;
      EXPECT_EQ(removes ? fi_av_remove(here.hub.av(), &addr, 1, 0) + 1
                        : fi_av_insert(here.hub.av(), name.data(), 1, &addr, 0, nullptr),
                1);
      nap = nullptr;
    });
    asleep.wait_for_it();
    EXPECT_EQ(here.look_up(self), here.name());
    uint64_t word = 0;
    EXPECT_EQ(fi_send(here.ep.get(), &word, 8, nullptr, self, nullptr), 0);
    other.end();
    asleep.wake();
    waiting.join();
    EXPECT_FALSE(asleep.was_alone()) << "they waited with it";
  }
}

TEST_F(SharedAv, one_call_waits_for_its_lock_once_whatever_it_is_to_insert) {
  constexpr size_t kMany = 3;
  Opened here;
  fi_addr_t self = here.hub.insert(here.name());
  std::vector<uint8_t> names;
  for (size_t i = 0; i < kMany; ++i) {
    const auto name = Sharer::at_port(10000 + i);
    names.insert(names.end(), name.begin(), name.end());
  }
  fi_addr_t addrs[kMany] = {};
  int errors[kMany] = {};
  {
    Changing other(file());
    uint64_t naps = 0;
    counted = &naps;
    EXPECT_EQ(fi_av_insert(here.hub.av(), names.data(), kMany, addrs, FI_SYNC_ERR, errors), 0);
    EXPECT_LE(naps, 110u) << "each of 20 ms, in 2 s";
    naps = 0;
    EXPECT_EQ(fi_av_remove(here.hub.av(), &self, 1, 0), -FI_ETIMEDOUT);
    EXPECT_LE(naps, 110u);
    counted = nullptr;
  }
  for (size_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(addrs[i], FI_ADDR_NOTAVAIL);
    EXPECT_EQ(errors[i], FI_ETIMEDOUT);
  }
  EXPECT_EQ(fi_av_insert(here.hub.av(), names.data(), kMany, addrs, FI_SYNC_ERR, errors), 3);
  for (size_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(addrs[i], self + 1 + i);
    EXPECT_EQ(errors[i], 0);
  }
}

// An endpoint with an address vector of its own, that nobody here knows.
struct Stranger {
  explicit Stranger(Opened& to, uint64_t caps = FI_MSG | FI_TAGGED)
      : hub({.caps = caps}), ep(hub.enabled(nullptr)), at(hub.insert(to.name())) {}
  std::vector<uint8_t> name() { return name_of(&ep->fid); }
  void send(uint64_t word = 0) {
    Op op;
    ASSERT_EQ(post(fi_send, ep.get(), &word, 8, nullptr, at, &op), 0);
    EXPECT_EQ(hub.wait(&op).err, 0);
  }
  Hub hub;
  Fid<fid_ep> ep;
  fi_addr_t at;
};

TEST_F(SharedAv, a_stream_from_a_stranger_is_not_looked_up_message_by_message) {
  constexpr uint64_t kMessages = 3000;
  RemoteSharer other;
  other.open();
  Opened here;
  Stranger stranger(here);
  stranger.send();
  EXPECT_EQ(here.receive().source, FI_ADDR_NOTAVAIL);
  const uint64_t before = reads;
  const auto begun = Clock::now();
  for (uint64_t i = 0; i < kMessages; ++i) {
    stranger.send();
    EXPECT_EQ(here.receive().source, FI_ADDR_NOTAVAIL);
  }
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
  EXPECT_LE(reads - before, 40 + static_cast<uint64_t>(ms.count())) << "in " << ms.count() << " ms";
  const fi_addr_t known = other.insert(stranger.name());
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  while (source == FI_ADDR_NOTAVAIL && Clock::now() < give_up) {
    stranger.send();
    source = here.receive().source;
  }
  EXPECT_EQ(source, known) << "once another process has inserted it";
}

TEST_F(SharedAv, a_receive_from_an_index_to_come_gets_the_first_message_of_it) {
  RemoteSharer other;
  other.open();
  Opened here(named(0, FI_DIRECTED_RECV));
  Stranger stranger(here);
  Op awaited, early;
  uint64_t box = 0, others = 0;
  constexpr fi_addr_t kToCome = 0;
  ASSERT_EQ(fi_recv(here.ep.get(), &box, 8, nullptr, kToCome, &awaited), 0);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(fi_recv(here.ep.get(), &others, 8, nullptr, FI_ADDR_UNSPEC, &early), 0);
    stranger.send();
    EXPECT_EQ(here.hub.wait(&early).err, 0);
  }
  ASSERT_EQ(other.insert(stranger.name()), kToCome);
  stranger.send(77);
  EXPECT_EQ(here.hub.wait(&awaited).source, kToCome);
  EXPECT_EQ(box, 77u);
}

TEST_F(SharedAv, a_receive_from_an_index_that_another_process_has_inserted_finds_what_came_early) {
  RemoteSharer other;
  other.open();
  Opened here(named(0, FI_DIRECTED_RECV));
  Stranger stranger(here);
  for (int i = 0; i < 200; ++i) {
    stranger.send();
    EXPECT_EQ(here.receive().err, 0);
  }
  const fi_addr_t known = other.insert(stranger.name());
  stranger.send(78);
  pump_for(50);
  EXPECT_EQ(here.receive(known).source, known);
}

// Gets messages of a stranger while the file is damaged.
DOOR_ROLE(reader_of_rubbish) {
  if (!say_to_parent()) return 1;
  Opened here;
  Stranger stranger(here);
  const uint64_t no_magic = 0;
  overwrite(file_in(std::getenv("XDG_RUNTIME_DIR")), 0, &no_magic, sizeof no_magic);
  for (int i = 0; i < 200; ++i) {
    stranger.send();
    here.receive();
  }
  return control.put(true) ? 0 : 2;
}

// The first entry that is written over is gone for everybody, whatever becomes of the second.
TEST_F(SharedAv, what_a_removal_that_failed_has_taken_out_is_gone_here_too) {
  Opened here;
  fi_addr_t both[2];
  for (fi_addr_t& one : both) one = here.hub.insert(here.name());
  ASSERT_EQ(here.look_up(both[0]), here.name());
  failing_write = 2;
  EXPECT_EQ(fi_av_remove(here.hub.av(), both, 2, 0), -FI_EIO);
  EXPECT_EQ(failing_write, 0);
  EXPECT_EQ(here.look_up(both[0]).size(), 0u);
  EXPECT_EQ(here.look_up(both[1]), here.name());
  EXPECT_EQ(fi_av_remove(here.hub.av(), &both[1], 1, 0), 0);
}

TEST_F(SharedAv, a_file_that_is_damaged_is_told_once) {
  const std::string text = said_by("reader_of_rubbish", "warn");
  const size_t first = text.find("cannot be read");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("cannot be read", first + 1), std::string::npos) << text;
}

}  // namespace
}  // namespace aperture::doors

#pragma GCC visibility push(default)  // a library finds them here

extern "C" {
int nanosleep(const timespec* wanted, timespec* left) {
  using namespace aperture::doors;
  static auto* const passed_on =
      reinterpret_cast<int (*)(const timespec*, timespec*)>(::dlsym(RTLD_NEXT, "nanosleep"));
  if (counted != nullptr) {
    ++*counted;
    const timespec longer{0, 20'000'000};
    return passed_on(&longer, nullptr);
  }
  if (nap == nullptr) return passed_on(wanted, left);
  nap->sleep();
  return 0;
}

ssize_t pread(int fd, void* to, size_t size, off_t at) {
  using Call = ssize_t (*)(int, void*, size_t, off_t);
  static const auto passed_on = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "pread"));
  aperture::doors::reads.fetch_add(1, std::memory_order_relaxed);
  return passed_on(fd, to, size, at);
}

ssize_t pwrite(int fd, const void* from, size_t size, off_t at) {
  using Call = ssize_t (*)(int, const void*, size_t, off_t);
  static const auto passed_on = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "pwrite"));
  int& failing = aperture::doors::failing_write;
  if (failing == 0 || --failing != 0) return passed_on(fd, from, size, at);
  errno = EIO;
  return -1;
}
}

#pragma GCC visibility pop
