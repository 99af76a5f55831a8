// A play that a door's library is led through while something of it fails, for each N, in a process
// of its own: nobody crashes or hangs, whatever fails says so, the same process then does all of it
// without a fault, and holds no more than one in which nothing has failed (docs/adr/0006). What
// fails is in nth_allocation.hpp and nth_call.hpp, one of which one source of a program includes;
// what libfabric, librdmacm and libc do for themselves never fails.
#pragma once

#include <link.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/each_allocation.hpp"

namespace aperture::nth {

// Where the door's library lies; written before there is a second thread.
inline uintptr_t library_from = 0;
inline uintptr_t library_end = 0;

inline bool is_in_library(const void* caller) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(caller);
  return at >= library_from && at < library_end;
}

// What a play ends with, as a process's exit status.
enum Outcome : int {
  fine = 0,
  refused = 1,
  hangs = 10,
  does_not_recover = 11,
  stays_open = 12,
  keeps = 13
};

// Thrown by a play: a call has failed, or what it waits for does not come.
struct Ended {
  Outcome outcome;
  std::string why;
};

// What a close came to say; the second call of one that was refused must succeed.
inline bool all_closed = true;

// Calls step() until it returns true.
template <typename Step>
void until(const char* what, Step&& step) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!step()) {
    if (std::chrono::steady_clock::now() > end) throw Ended{hangs, what};
    std::this_thread::yield();
  }
}

inline int find_library(dl_phdr_info* info, size_t, void* name) {
  if (std::strstr(info->dlpi_name, static_cast<const char*>(name)) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    library_from = info->dlpi_addr + part.p_vaddr;
    library_end = library_from + part.p_memsz;
  }
  return 1;
}

using Play = void (*)();

// Each program's own: connected_play.cpp of doors/, connection_play.cpp of rdma_cm/ and verbs/.
void load_door();
void play_connection();

// Why plays have ended before their end, a line each: told of a run that is not well.
inline std::string reasons;

inline Outcome outcome_of(Play play) {
  try {
    play();
    return all_closed ? fine : stays_open;
  } catch (const Ended& end) {
    reasons += end.why + "\n";
    return all_closed ? end.outcome : stays_open;
  }
}

// Descriptors, and mappings of memory files: each in a line.
inline std::vector<std::string> what_is_held() {
  namespace fs = std::filesystem;
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    all.push_back(entry.path().filename().string() + " " +
                  fs::read_symlink(entry.path(), gone).string());
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:aperture") != std::string::npos) all.push_back(line);
  }
  return all;
}
inline size_t held() {
  return what_is_held().size();
}
inline std::string lines_of(const std::vector<std::string>& all) {
  std::string lines;
  for (const std::string& each : all) lines += "  " + each + "\n";
  return lines;
}

// The same after a run without a failure: for all of these processes.
struct HeldForGood {
  size_t count;
  char lines[8192];
};
inline HeldForGood* const held_for_good = static_cast<HeldForGood*>(::mmap(
    nullptr, sizeof(HeldForGood), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));

// `load` sees to it that the library, whose file name `library` is part of, is there.
template <Play load, Play play>
void fail_each(const char* library, int sample_seconds) {
  static const char* name;
  name = library;
  const auto outcome = [](uint64_t n) -> Outcome {
    load();
    ::dl_iterate_phdr(find_library, const_cast<char*>(name));
    if (library_end == 0) return does_not_recover;
    fail_from_now_on(n);
    const Outcome first = outcome_of(play);
    fails_at = kNever;
    if (n == 0) {
      const Outcome second = first == fine ? outcome_of(play) : first;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      const auto all = what_is_held();
      held_for_good->count = all.size();
      lines_of(all).copy(held_for_good->lines, sizeof held_for_good->lines - 1);
      return second;
    }
    if (first >= hangs) return first;
    Outcome again = refused;  // a connection may be in its last gasps
    for (int tries = 0; tries < 2 && again == refused; ++tries) again = outcome_of(play);
    if (again != fine) return again == refused ? does_not_recover : again;
    // a peer that has joined and opened nothing goes after 5 s; looked at once each time, since
    // others may connect at any moment (tests/hosts/call_back.cpp tries again and again)
    for (int ms = 0; ms < 8000; ++ms) {
      if (held() <= held_for_good->count) return fine;
      ::usleep(1000);
    }
    reasons += "held:\n" + lines_of(what_is_held()) + "held for good:\n" + held_for_good->lines;
    return keeps;
  };
  static constexpr auto of_run = +outcome;
  const auto run = [](uint64_t n) -> int {
    const Outcome ended = of_run(n);
    if (ended != fine) std::fputs(reasons.c_str(), stderr);
    return ended;
  };
  fail_each(run, sample_seconds,
            "12 that something cannot be closed, 13 that descriptors or mappings stay");
}

}  // namespace aperture::nth
