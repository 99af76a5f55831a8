// Opening the verbs door: see verbs_door.hpp. How ld.so looks for libraries: ld.so(8).
#include "tool/verbs_door.hpp"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>

#include "base/runtime_folder.hpp"
#include "tool/child_probe.hpp"
#include "tool/kept_answer.hpp"
#include "tool/places.hpp"
#include "tool/surroundings.hpp"

namespace aperture::tool {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMark = "aperture_verbs_door";  // which our library alone has
constexpr unsigned kProbeSeconds = 10;

std::string find_library(const std::string& command_folder) {
  const fs::path own(command_folder);
  for (const fs::path& folder : {own / APERTURE_INSTALLED_PROVIDER_DIR, own / "../lib/aperture"}) {
    std::error_code ec;
    const fs::path file = (folder / kVerbsFile).lexically_normal();
    if (fs::is_regular_file(file, ec)) return file.string();
  }
  return {};
}

// Of a library that was found by a path, as all are but the kernel's.
int add_file(dl_phdr_info* loaded, size_t, void* files) {
  if (loaded->dlpi_name != nullptr && loaded->dlpi_name[0] == '/') {
    static_cast<std::string*>(files)->append(loaded->dlpi_name).append("\n");
  }
  return 0;
}

// The file of a loaded library, unless it is ours, and those of all that is loaded with it, each
// with a line's end. In a child: loading runs foreign code.
std::string load_real(const char* name) {
  void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr || ::dlsym(handle, kMark) != nullptr) return {};
  Dl_info where{};
  char resolved[PATH_MAX];
  void* function = ::dlsym(handle, "ibv_get_device_list");
  if (function == nullptr || ::dladdr(function, &where) == 0 ||
      ::realpath(where.dli_fname, resolved) == nullptr) {
    return {};
  }
  std::string files = std::string(resolved) + "\n";
  ::dl_iterate_phdr(add_file, &files);
  return files;
}

// As a program would find it (ld.so's cache, the multiarch folders); where ours already stands in
// front of it, the link that was made for ours, and then the usual folders.
std::string find_real() {
  struct Place {
    const char* folder;
    const char* file;
  };
  constexpr std::array<Place, 5> kPlaces = {{{"", kVerbsFile},
                                             {"", kRealVerbsName},
                                             {"/usr/lib/" APERTURE_MULTIARCH "/", kVerbsFile},
                                             {"/usr/lib64/", kVerbsFile},
                                             {"/usr/lib/", kVerbsFile}}};
  for (const Place& place : kPlaces) {
    const fs::path name = fs::path(place.folder) / place.file;
    const ProbeAnswer answer = probe_in_child([&] { return load_real(name.c_str()); });
    if (answer.answered && !answer.text.empty()) return answer.text;
  }
  return {};
}

// In base, the user's own folder, one for each place of our library and of the real one: of
// programs that run at once, each may have its own.
std::string make_folder(const std::string& base, const std::string& library,
                        const std::string& real, std::string& why_not) {
  if (base.empty()) return {};
  char name[32];
  std::snprintf(name, sizeof name, "/verbs-%016zx", std::hash<std::string>()(library + ' ' + real));
  if (::mkdir((base + name).c_str(), 0700) == 0 || errno == EEXIST) return base + name;
  why_not = base + name + " cannot be made: " + std::strerror(errno);
  return {};
}

bool make_link(const std::string& link, const std::string& target, std::string& why_not) {
  std::error_code ec;
  if (fs::read_symlink(link, ec) == target && !ec) return true;
  // made beside it and moved over it, so that whoever starts at this moment finds one or the other
  const std::string fresh = link + "." + std::to_string(::getpid());
  if (::symlink(target.c_str(), fresh.c_str()) == 0 && ::rename(fresh.c_str(), link.c_str()) == 0) {
    return true;
  }
  why_not = link + " cannot be made: " + std::strerror(errno);
  ::unlink(fresh.c_str());
  return false;
}

// Empty: the variables that lead to the door can hold its paths.
std::string why_in_no_list(const VerbsDoor& door) {
  std::string why = why_not_in_list("LD_PRELOAD", door.preload);
  if (why.empty()) why = why_not_in_list("LD_LIBRARY_PATH", door.folder);
  if (why.empty()) return {};
  return why + "; set XDG_RUNTIME_DIR to a folder of yours without such a character";
}

// Starts this program again under the door. Empty: it came up with both libraries.
std::string try_out(const VerbsDoor& door) {
  const ReapableChildren reapable;
  const pid_t child = ::fork();
  if (child < 0) return std::string("no process for a probe: ") + std::strerror(errno);
  if (child == 0) {
    Surroundings surroundings;
    add_verbs_door(
        door.preload, door.folder, [](const char* name) { return ::getenv(name); }, surroundings);
    // ends what hangs; it stays in force across the exec
    ::alarm(kProbeSeconds);
    if (apply(surroundings)) {
      ::execl("/proc/self/exe", "aperture", kVerbsProbeWord, static_cast<char*>(nullptr));
    }
    ::_exit(1);
  }
  int status = 0;
  if (reap(child, status) && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return "a process that was started with " + door.library + " and " + door.real + " failed";
}

}  // namespace

VerbsDoor open_verbs_door(const std::string& command_folder, Probes probes) {
  VerbsDoor door;
  door.library = find_library(command_folder);
  if (door.library.empty()) {
    door.why_not = kVerbsFile;
    door.why_not += " is not beside the provider";
    return door;
  }
  std::string why_no_folder;
  const std::string base = runtime_folder(why_no_folder);
  const KeptAnswer kept(base, door.library);
  std::string files = probes == Probes::as_kept ? kept.files() : std::string();
  const bool is_kept = !files.empty();
  if (!is_kept) files = find_real();
  door.real = files.substr(0, files.find('\n'));
  if (door.real.empty()) {
    door.why_not = "this host has no libibverbs.so.1 (on Debian: apt-get install libibverbs1)";
    return door;
  }
  door.why_not = why_no_folder;
  door.folder = make_folder(base, door.library, door.real, door.why_not);
  if (door.folder.empty()) return door;
  door.preload = door.folder + "/" + kVerbsFile;
  door.why_not = why_in_no_list(door);
  if (!door.why_not.empty()) return door;
  // the real one first: who finds ours there needs it
  if (!make_link(door.folder + "/" + kRealVerbsName, door.real, door.why_not) ||
      !make_link(door.preload, door.library, door.why_not) ||
      !make_link(door.folder + "/" + kPlainVerbsName, door.library, door.why_not)) {
    return door;
  }
  if (is_kept) return door;
  const std::string written = kept.written_of(files);
  door.why_not = try_out(door);
  if (door.why_not.empty()) {
    kept.keep(written);
  } else {
    kept.forget();
  }
  return door;
}

int probe_verbs_door() {
  const bool ours = ::dlsym(RTLD_DEFAULT, kMark) != nullptr;
  const bool real = ::dlopen(kRealVerbsName, RTLD_LAZY | RTLD_NOLOAD) != nullptr;
  return ours && real ? 0 : 1;
}

}  // namespace aperture::tool
