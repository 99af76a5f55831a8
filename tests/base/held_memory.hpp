// What this process holds of memory: resident, and in its key file. For the tests of both doors
// that regions which are closed give their memory back.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

namespace aperture::test {

struct HeldMemory {
  uint64_t resident = 0;   // bytes, without what malloc keeps of what it was given back
  uint64_t key_files = 0;  // bytes that have pages, in all that this process has open
};

inline HeldMemory held_memory() {
  ::malloc_trim(0);
  HeldMemory held;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    unsigned long long pages = 0;
    if (std::fscanf(file, "%*u %llu", &pages) == 1)
      held.resident = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    std::fclose(file);
  }
  std::map<ino_t, uint64_t> files;
  DIR* const all = ::opendir("/proc/self/fd");
  for (const dirent* one; all != nullptr && (one = ::readdir(all)) != nullptr;) {
    const std::string path = std::string("/proc/self/fd/") + one->d_name;
    char target[64] = {};
    struct stat now {};
    if (::readlink(path.c_str(), target, sizeof target - 1) < 0) continue;
    if (std::string(target).rfind("/memfd:aperture-keys", 0) != 0) continue;
    if (::stat(path.c_str(), &now) == 0)
      files[now.st_ino] = static_cast<uint64_t>(now.st_blocks) * 512;
  }
  if (all != nullptr) ::closedir(all);
  for (const auto& [inode, bytes] : files) held.key_files += bytes;
  return held;
}

inline size_t many_regions() {
  const char* text = std::getenv("APERTURE_REGIONS");
  return text != nullptr ? static_cast<size_t>(std::atoll(text)) : 60'000;
}

// The regions are closed; what there was before the first, and while all were open. The library
// gives back on a thread of its own, and soon. kept: bytes for each that are known to stay.
inline void expect_given_back(size_t regions, const HeldMemory& before, const HeldMemory& full,
                              size_t kept = 0) {
  constexpr uint64_t kMargin = 2 << 20;  // kept for a few thousand regions to come
  constexpr auto kPatience = std::chrono::seconds(20);
  const uint64_t resident = before.resident + 2 * kMargin + kept * regions;
  const auto began = std::chrono::steady_clock::now();
  HeldMemory after = held_memory();
  const auto back = [&] {
    return after.key_files <= before.key_files + kMargin && after.resident <= resident;
  };
  while (!back() && std::chrono::steady_clock::now() - began < kPatience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    after = held_memory();
  }
  const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf(
      "%zu regions: resident %.1f MiB, %.1f when all were open, %.1f in the end; in the key "
      "file %.1f, %.1f, %.1f\n",
      regions, mib(before.resident), mib(full.resident), mib(after.resident), mib(before.key_files),
      mib(full.key_files), mib(after.key_files));
  EXPECT_GE(full.key_files, regions * 64) << "they were not all open";
  EXPECT_LE(after.key_files, before.key_files + kMargin);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
  EXPECT_LE(after.resident, resident);
#endif
}

}  // namespace aperture::test
