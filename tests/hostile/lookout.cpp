// Looking at a process that takes long: see lookout.hpp.
#include "hostile/lookout.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "doors/fixture.hpp"

namespace aperture::hostile {
namespace {

namespace fs = std::filesystem;

constexpr useconds_t kPause_us = 5000;
constexpr int kPlaceEvery = 4;  // looks
constexpr int kFrames = 24;
constexpr int kSignal = SIGUSR2;

// Written by the signal handler, on the thread that is watched.
std::array<void*, kFrames> g_frames;
std::atomic<int> g_frame_count{0};

void note_frames(int) {
  const int before = errno;
  g_frame_count.store(::backtrace(g_frames.data(), kFrames), std::memory_order_release);
  errno = before;
}

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// proc(5): behind the name, which may hold anything.
std::string state_of(const fs::path& thread) {
  const std::string line = line_of(thread / "stat");
  const size_t at = line.rfind(')');
  return at == std::string::npos || at + 2 >= line.size() ? "?" : line.substr(at + 2, 1);
}

// Its number, "running" or -1.
std::string call_of(const fs::path& thread) {
  const std::string line = line_of(thread / "syscall");
  return line.substr(0, line.find(' '));
}

}  // namespace

Lookout::Lookout() : watched_(::pthread_self()), watched_tid_(::gettid()) {
  void* warm_up[1];
  ::backtrace(warm_up, 1);  // which loads a library the first time
  struct sigaction action {};
  action.sa_handler = note_frames;
  action.sa_flags = SA_RESTART;
  ::sigaction(kSignal, &action, nullptr);
  if (::pthread_create(&thread_, nullptr, run, this) != 0) over_ = true;
}

Lookout::~Lookout() {
  if (!over_.exchange(true)) ::pthread_join(thread_, nullptr);
}

void* Lookout::run(void* self) {
  auto& lookout = *static_cast<Lookout*>(self);
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), kName);
  while (!lookout.over_) {
    ::usleep(kPause_us);
    const int64_t round = lookout.began_ns_.load(std::memory_order_acquire);
    if (round != 0 && doors::now_ns() - round > kLong_ns) lookout.look(round);
  }
  return nullptr;
}

void Lookout::look(int64_t round) {
  const std::lock_guard guard(mutex_);
  if (round_ != round) {
    round_ = round;
    states_.clear();
    places_.clear();
  }
  note_threads();
  if (++states_["looks"] % kPlaceEvery == 1) note_place();
}

void Lookout::note_threads() {
  const std::string own = std::to_string(::gettid());
  std::error_code gone;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", gone)) {
    const std::string tid = thread.path().filename();
    if (tid == own) continue;
    const std::string name =
        tid == std::to_string(watched_tid_) ? "caller" : line_of(thread.path() / "comm");
    ++states_[name + " " + state_of(thread.path()) + " " + call_of(thread.path()) + " " +
              line_of(thread.path() / "wchan")];
  }
}

void Lookout::note_place() {
  g_frame_count.store(0, std::memory_order_relaxed);
  if (::pthread_kill(watched_, kSignal) != 0) return;
  for (int waits = 0; g_frame_count.load(std::memory_order_acquire) == 0; ++waits) {
    if (waits == 20) {
      ++places_["(does not heed signals)"];
      return;
    }
    ::usleep(1000);
  }
  std::string place;
  const int count = g_frame_count.load(std::memory_order_acquire);
  int named = 0;
  for (int i = 2; i < count && named < 5; ++i) {  // the handler and the kernel's return first
    Dl_info where{};
    if (::dladdr(g_frames[static_cast<size_t>(i)], &where) == 0 || where.dli_fname == nullptr)
      continue;
    char frame[96];
    std::snprintf(frame, sizeof frame, " %s+%#zx", fs::path(where.dli_fname).filename().c_str(),
                  static_cast<size_t>(static_cast<char*>(g_frames[static_cast<size_t>(i)]) -
                                      static_cast<char*>(where.dli_fbase)));
    place += frame;
    ++named;
  }
  ++places_[place];
}

std::string Lookout::text() {
  const std::lock_guard guard(mutex_);
  if (round_ == 0) return {};
  round_ = 0;
  std::string all;
  for (const auto* seen : {&states_, &places_}) {
    for (const auto& [what, times] : *seen) all += std::to_string(times) + "x " + what + "; ";
  }
  return all;
}

}  // namespace aperture::hostile
