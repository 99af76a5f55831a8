// Looking at a process that takes long: see lookout.hpp.
#include "hostile/lookout.hpp"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "doors/fixture.hpp"

namespace aperture::hostile {
namespace {

namespace fs = std::filesystem;

constexpr useconds_t kPause_us = 5000;

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

Lookout::Lookout() : watched_tid_(::gettid()) {
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
  }
  note_threads();
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

std::string Lookout::text() {
  const std::lock_guard guard(mutex_);
  if (round_ == 0) return {};
  round_ = 0;
  std::string all;
  for (const auto& [what, times] : states_) all += std::to_string(times) + "x " + what + "; ";
  return all;
}

}  // namespace aperture::hostile
