// Code addresses in words: see code_place.hpp. libdw reads the debug information; it is loaded when
// the first explanation needs it, so that nobody else pays for it and its absence is no error.
#include "protect/code_place.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>

#include "base/clock.hpp"
#include "base/not_cancelled.hpp"
#include "base/per_process.hpp"

namespace aperture::protect {

namespace {

constexpr size_t kRemembered = 1024;  // places; a program registers at a few
constexpr size_t kStackBytes = size_t{2} << 20;

// libdw's functions that are called here.
// Without layout: clang-format never comes to rest over this list.
// clang-format off
#define APERTURE_DW_CALLS(X)                                                                    \
  X(dwfl_begin)                                                                                 \
  X(dwfl_end)                                                                                   \
  X(dwfl_linux_proc_report)                                                                     \
  X(dwfl_linux_proc_find_elf)                                                                   \
  X(dwfl_report_end)                                                                            \
  X(dwfl_addrmodule)                                                                            \
  X(dwfl_module_addrname)                                                                       \
  X(dwfl_module_addrdie) X(dwfl_module_nextcu) X(dwarf_haspc)                                   \
  X(dwarf_getsrc_die) X(dwarf_linesrc) X(dwarf_lineno)                                          \
  X(dwarf_getscopes) X(dwarf_tag) X(dwarf_diename) X(dwarf_attr) X(dwarf_formudata)             \
  X(dwarf_getsrcfiles) X(dwarf_filesrc)
// clang-format on

// libdw's functions by name, with the types that its header gives them.
struct Libdw {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a member cannot be declared in parentheses
#define APERTURE_DW(name) decltype(&::name) name = nullptr;
  APERTURE_DW_CALLS(APERTURE_DW)
#undef APERTURE_DW

  Libdw() noexcept {
    void* lib = ::dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib == nullptr) return;
    complete_ = true;
#define APERTURE_DW(name) load(lib, #name, name);
    APERTURE_DW_CALLS(APERTURE_DW)
#undef APERTURE_DW
  }
  bool complete() const noexcept {
    return complete_;
  }

 private:
  template <typename Fn>
  void load(void* lib, const char* name, Fn& fn) noexcept {
    fn = reinterpret_cast<Fn>(::dlsym(lib, name));
    complete_ = complete_ && fn != nullptr;
  }
  bool complete_ = false;
};

// What the program itself carries, and no more: not its separate files, and never the network.
int find_no_debuginfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                      GElf_Word, char**) {
  return -1;
}

const char* last_part(const char* path) noexcept {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// The name as the program's author wrote it, where the compiler has changed it.
std::string readable(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr ? text.get() : name;
}

// Whether that is one of the door's inline functions that register or bind.
bool is_call_of(const Wording& door, const char* name) noexcept {
  for (const char* const* begin = door.inline_calls; *begin != nullptr; ++begin) {
    if (std::strncmp(name, *begin, std::strlen(*begin)) == 0) return true;
  }
  return false;
}

// The compilation that an address is of, as its module has it; no unit: it has none.
struct Compiled {
  Dwarf_Die* unit = nullptr;
  Dwarf_Addr at = 0;
};
Compiled find_compiled(const Libdw& dw, Dwfl_Module* module, uint64_t address) {
  Dwarf_Addr bias = 0;
  Dwarf_Die* unit = dw.dwfl_module_addrdie(module, address, &bias);
  if (unit == nullptr) {  // clang writes no table of addresses
    do {
      unit = dw.dwfl_module_nextcu(module, unit, &bias);
    } while (unit != nullptr && dw.dwarf_haspc(unit, address - bias) <= 0);
  }
  return {unit, address - bias};
}

// "program.c:42", or nothing.
std::string source_of(const Libdw& dw, const Compiled& code) {
  Dwarf_Line* const line = dw.dwarf_getsrc_die(code.unit, code.at);
  const char* const path = line == nullptr ? nullptr : dw.dwarf_linesrc(line, nullptr, nullptr);
  int number = 0;
  if (path == nullptr || dw.dwarf_lineno(line, &number) != 0) return {};
  return std::string(last_part(path)) + ":" + std::to_string(number);
}

// Where an inline call at that address was itself called: "program.c:42", or nothing.
std::string caller_of_inlined(const Libdw& dw, const Compiled& code, const Wording& door) {
  Dwarf_Die* found = nullptr;
  const int count = dw.dwarf_getscopes(code.unit, code.at, &found);
  const std::unique_ptr<Dwarf_Die, decltype(&std::free)> scopes(found, &std::free);
  for (int i = 0; i < count; ++i) {
    const char* name = dw.dwarf_diename(found + i);
    if (dw.dwarf_tag(found + i) != DW_TAG_inlined_subroutine || name == nullptr ||
        !is_call_of(door, name)) {
      continue;
    }
    Dwarf_Attribute attribute;
    Dwarf_Word line = 0;
    Dwarf_Word file = 0;
    Dwarf_Files* files = nullptr;
    size_t files_count = 0;
    if (dw.dwarf_formudata(dw.dwarf_attr(found + i, DW_AT_call_line, &attribute), &line) != 0 ||
        dw.dwarf_formudata(dw.dwarf_attr(found + i, DW_AT_call_file, &attribute), &file) != 0 ||
        dw.dwarf_getsrcfiles(code.unit, &files, &files_count) != 0 || file >= files_count) {
      return {};
    }
    const char* path = dw.dwarf_filesrc(files, file, nullptr, nullptr);
    return path == nullptr ? "" : std::string(last_part(path)) + ":" + std::to_string(line);
  }
  return {};
}

// "in main at program.c:42", "in main", or nothing.
std::string from_debug_information(const Libdw& dw, pid_t pid, uint64_t address,
                                   const Wording& door) {
  if (!dw.complete()) return {};
  static char no_path[] = "";
  static char* debug_path = no_path;
  const Dwfl_Callbacks callbacks{dw.dwfl_linux_proc_find_elf, find_no_debuginfo, nullptr,
                                 &debug_path};
  const std::unique_ptr<Dwfl, decltype(&::dwfl_end)> dwfl(dw.dwfl_begin(&callbacks), dw.dwfl_end);
  if (dwfl == nullptr || dw.dwfl_linux_proc_report(dwfl.get(), pid) != 0 ||
      dw.dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0) {
    return {};
  }
  Dwfl_Module* module = dw.dwfl_addrmodule(dwfl.get(), address);
  if (module == nullptr) return {};
  std::string out;
  // the call itself, not what comes after it
  if (const char* name = dw.dwfl_module_addrname(module, address - 1); name != nullptr) {
    out = "in " + readable(name);
  }
  const Compiled code = find_compiled(dw, module, address - 1);
  if (code.unit == nullptr) return out;
  std::string at = caller_of_inlined(dw, code, door);
  if (at.empty()) at = source_of(dw, code);
  if (!at.empty()) out += (out.empty() ? "at " : " at ") + at;
  return out;
}

// libdw takes some 200 KiB of stack, and a caller of ours may have less (a fibre, ulimit -s): it
// has a thread of its own. Without one there is nothing to tell.
std::string on_a_large_stack(const std::function<std::string()>& search) {
  struct Search {
    const std::function<std::string()>& run;
    std::string found;
  } job{search, {}};
  const auto main = [](void* arg) -> void* {
    auto& self = *static_cast<Search*>(arg);
    try {
      self.found = self.run();
    } catch (const std::bad_alloc&) {
      self.found.clear();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return {};
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the application's signals are not for it
  pthread_t thread;
  const bool started = ::pthread_create(&thread, &attributes, main, &job) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (started) ::pthread_join(thread, nullptr);
  return job.found;
}

// Where an address lies in a file that its process has mapped.
struct PlaceInFile {
  // device, inode, and when it was last written, if it still has that name
  std::array<uint64_t, 4> file{};
  uint64_t offset = 0;
  std::string name;  // "program+0x1234"
};

// By the process's list of mappings; nothing: in no file, or it is not told.
std::optional<PlaceInFile> find_in_file(pid_t pid, uint64_t address) {
  char list[64];
  std::snprintf(list, sizeof list, "/proc/%d/maps", static_cast<int>(pid));
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen(list, "re"), &std::fclose);
  if (maps == nullptr) return {};
  char line[4352];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    uint64_t from = 0, end = 0, offset = 0, major = 0, minor = 0, inode = 0;
    int path_at = 0;
    if (std::sscanf(
            line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %" SCNx64 ":%" SCNx64 " %" SCNu64 " %n",
            &from, &end, &offset, &major, &minor, &inode, &path_at) < 6 ||
        address < from || address >= end || line[path_at] != '/') {
      continue;
    }
    const char* const path = line + path_at;
    line[std::strcspn(line, "\n")] = '\0';
    PlaceInFile found{{major << 32 | minor, inode, 0, 0}, address - from + offset, {}};
    struct stat now;
    if (::stat(path, &now) == 0 && now.st_ino == inode) {  // a number is given out again
      found.file[2] = static_cast<uint64_t>(now.st_mtim.tv_sec);
      found.file[3] = static_cast<uint64_t>(now.st_mtim.tv_nsec);
    }
    char text[288];
    std::snprintf(text, sizeof text, "%.255s+0x%" PRIx64, last_part(path), found.offset);
    found.name = text;
    return found;
  }
  return {};
}

// What looking into other processes may take. They can make us look at as many places as they like,
// each time for as long as it takes to read what they have mapped: while the engine waits.
class Allowance {
 public:
  bool is_used_up() const noexcept { return due_ns_ > now_ns() + kShare * kAtOnceNs; }
  void use(uint64_t ns) noexcept { due_ns_ = std::max(due_ns_, now_ns()) + kShare * ns; }

 private:
  static constexpr uint64_t kShare = 16;  // one part in so many of all time
  static constexpr uint64_t kAtOnceNs = 1'000'000'000;
  uint64_t due_ns_ = 0;
};

// The answers are remembered, those about files for every process that has mapped them: processes
// come and go. libdw is for one thread at a time.
class CodeSearch {
 public:
  std::string describe(pid_t pid, uint64_t address, const Wording& door) {
    const std::lock_guard guard(mutex_);
    const auto key = std::tuple(pid, address, &door);
    if (const auto it = by_process_.find(key); it != by_process_.end()) return it->second;
    char digits[32];
    std::snprintf(digits, sizeof digits, "0x%" PRIx64, address);
    const std::string number = digits;
    const bool is_other = pid != ::getpid();
    if (is_other && allowance_.is_used_up()) return "at " + number;
    const uint64_t began = now_ns();
    const Text text = look(pid, address, door);
    if (is_other) allowance_.use(now_ns() - began);
    std::string said = text.where.empty() ? "at " + number : text.where;
    const std::string& beside = text.where.empty() ? text.in_file : number;
    if (!beside.empty()) said += " (" + beside + ")";
    return remember(by_process_, key, said);
  }

 private:
  struct Text {
    std::string where;    // in the source, if that is known
    std::string in_file;  // else
  };
  Text look(pid_t pid, uint64_t address, const Wording& door) {
    assert(address != 0);  // the byte before it is looked up
    const auto place = find_in_file(pid, address);
    if (!place) return {};
    const auto key = std::tuple(place->file, place->offset, &door);
    const auto known = by_file_.find(key);
    if (known != by_file_.end()) return {known->second, place->name};
    const std::string where =
        on_a_large_stack([&] { return from_debug_information(libdw_, pid, address, door); });
    return {remember(by_file_, key, where), place->name};
  }
  template <typename Map>
  static const std::string& remember(Map& map, const typename Map::key_type& key,
                                     const std::string& text) {
    if (map.size() >= kRemembered) map.clear();
    assert(map.size() < kRemembered);
    return map[key] = text;
  }

  std::mutex mutex_;  // guards what follows
  const Libdw libdw_;
  Allowance allowance_;
  std::map<std::tuple<pid_t, uint64_t, const Wording*>, std::string> by_process_;
  std::map<std::tuple<std::array<uint64_t, 4>, uint64_t, const Wording*>, std::string> by_file_;
};
constinit PerProcess<CodeSearch> code_search;

}  // namespace

std::string describe_code(pid_t pid, uint64_t address, const Wording& door) {
  if (address == 0) return "at a place that was not recorded";
  const NotCancelled section;  // reading files and waiting for the search are cancellation points
  return code_search.get().describe(pid, address, door);
}

}  // namespace aperture::protect
