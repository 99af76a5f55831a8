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
#include <tuple>

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
  X(dwfl_module_getsrc) X(dwfl_lineinfo) X(dwfl_module_addrdie) X(dwarf_getscopes) X(dwarf_tag) \
      X(dwarf_diename) X(dwarf_attr) X(dwarf_formudata) X(dwarf_getsrcfiles) X(dwarf_filesrc)
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

// Where an inline call at that address was itself called: "program.c:42", or nothing.
std::string caller_of_inlined(const Libdw& dw, Dwfl_Module* module, uint64_t address,
                              const Wording& door) {
  Dwarf_Addr bias = 0;
  Dwarf_Die* unit = dw.dwfl_module_addrdie(module, address, &bias);
  if (unit == nullptr) return {};
  Dwarf_Die* found = nullptr;
  const int count = dw.dwarf_getscopes(unit, address - bias, &found);
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
        dw.dwarf_getsrcfiles(unit, &files, &files_count) != 0 || file >= files_count) {
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
  if (const std::string at = caller_of_inlined(dw, module, address - 1, door); !at.empty()) {
    return out + (out.empty() ? "at " : " at ") + at;
  }
  Dwfl_Line* line = dw.dwfl_module_getsrc(module, address - 1);
  int number = 0;
  const char* file = line == nullptr
                         ? nullptr
                         : dw.dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
  if (file != nullptr) {
    out +=
        std::string(out.empty() ? "at " : " at ") + last_part(file) + ":" + std::to_string(number);
  }
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

// "program+0x1234" from the process's list of mappings, or nothing.
std::string from_mappings(pid_t pid, uint64_t address) {
  char name[64];
  std::snprintf(name, sizeof name, "/proc/%d/maps", static_cast<int>(pid));
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen(name, "re"), &std::fclose);
  if (maps == nullptr) return {};
  char line[4352];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    uint64_t from = 0;
    uint64_t end = 0;
    uint64_t offset = 0;
    int path_at = 0;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %*s %n", &from, &end,
                    &offset, &path_at) < 3 ||
        address < from || address >= end || line[path_at] != '/') {
      continue;
    }
    line[std::strcspn(line, "\n")] = '\0';
    char text[288];
    std::snprintf(text, sizeof text, "%.255s+0x%" PRIx64, last_part(line + path_at),
                  address - from + offset);
    return text;
  }
  return {};
}

// libdw is for one thread at a time.
struct CodeSearch {
  std::mutex mutex;  // guards what follows
  const Libdw libdw;
  std::map<std::tuple<pid_t, uint64_t, const Wording*>, std::string> known;
};
constinit PerProcess<CodeSearch> code_search;

std::string look(const Libdw& libdw, pid_t pid, uint64_t address, const Wording& door) {
  assert(address != 0);  // the byte before it is looked up
  char number[32];
  std::snprintf(number, sizeof number, "0x%" PRIx64, address);
  const std::string place_in_source =
      on_a_large_stack([&] { return from_debug_information(libdw, pid, address, door); });
  if (!place_in_source.empty()) return place_in_source + " (" + number + ")";
  const std::string place = from_mappings(pid, address);
  return std::string("at ") + number + (place.empty() ? "" : " (" + place + ")");
}

}  // namespace

std::string describe_code(pid_t pid, uint64_t address, const Wording& door) {
  if (address == 0) return "at a place that was not recorded";
  const NotCancelled section;  // reading files and waiting for the search are cancellation points
  CodeSearch& ours = code_search.get();
  auto& known = ours.known;
  std::lock_guard guard(ours.mutex);
  const std::tuple key{pid, address, &door};
  if (const auto it = known.find(key); it != known.end()) return it->second;
  if (known.size() >= kRemembered) known.clear();
  assert(known.size() < kRemembered && known.find(key) == known.end());
  return known[key] = look(ours.libdw, pid, address, door);
}

}  // namespace aperture::protect
