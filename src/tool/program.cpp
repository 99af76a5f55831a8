// Program lookup and ELF header reading: see program.hpp. ELF layout: elf(5).
#include "tool/program.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/fd.hpp"

namespace aperture::tool {

namespace {

#if defined(__x86_64__)
constexpr uint16_t kOwnMachine = EM_X86_64;
constexpr const char* kOwnMachineName = "x86_64";
#elif defined(__aarch64__)
constexpr uint16_t kOwnMachine = EM_AARCH64;
constexpr const char* kOwnMachineName = "aarch64";
#else
constexpr uint16_t kOwnMachine = EM_NONE;
constexpr const char* kOwnMachineName = "this machine";
#endif

const char* machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86_64";
    case EM_386: return "32-bit x86";
    case EM_AARCH64: return "aarch64";
    case EM_ARM: return "32-bit ARM";
    case EM_PPC64: return "ppc64";
    case EM_RISCV: return "RISC-V";
    case EM_S390: return "s390";
    default: return "another machine";
  }
}

// What stands at one path: an empty problem means that it can be executed.
Program validate(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) {
    return {"", std::string(std::strerror(errno)),
            errno == ENOENT || errno == ENOTDIR ? kExitNotFound : kExitNotExecutable};
  }
  if (S_ISDIR(st.st_mode)) return {"", "it is a directory", kExitNotExecutable};
  if (::access(path.c_str(), X_OK) != 0) {
    return {"", "it is not executable (chmod +x it, or name its interpreter first)",
            kExitNotExecutable};
  }
  return {path, "", 0};
}

// What the program header table says. Where it cannot be read, `whole` is false: then there is
// nothing to be said of the program.
struct Segments {
  std::vector<Elf64_Phdr> all;
  bool whole = true;
};

Segments read_segments(int fd, const Elf64_Ehdr& header) {
  Segments segments;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const auto at = static_cast<off_t>(header.e_phoff + uint64_t{i} * header.e_phentsize);
    segments.whole = ::pread(fd, &segment, sizeof segment, at) == sizeof segment;
    if (!segments.whole) break;
    segments.all.push_back(segment);
  }
  return segments;
}

const Elf64_Phdr* segment_of_type(const Segments& segments, uint32_t type) {
  for (const Elf64_Phdr& segment : segments.all) {
    if (segment.p_type == type) return &segment;
  }
  return nullptr;
}

// Whether it loads libraries: it names an interpreter (ld.so).
bool has_interpreter(const Segments& segments) {
  return !segments.whole || segment_of_type(segments, PT_INTERP) != nullptr;
}

// A name of the file, which ends with a zero; shortened where it is longer than names are.
std::string read_name(int fd, uint64_t at) {
  char text[256] = "";
  const ssize_t n = ::pread(fd, text, sizeof text - 1, static_cast<off_t>(at));
  return n > 0 ? std::string(text) : std::string();
}

// Where in the file that address of the loaded program stands; 0: in no segment.
uint64_t offset_of(const Segments& segments, uint64_t address) {
  for (const Elf64_Phdr& segment : segments.all) {
    if (segment.p_type == PT_LOAD && address - segment.p_vaddr < segment.p_filesz) {
      return address - segment.p_vaddr + segment.p_offset;
    }
  }
  return 0;
}

// Whether it needs a library whose name begins so.
bool needs_library(int fd, const Segments& segments, const std::string& prefix) {
  constexpr uint64_t kMostEntries = 4096;
  const Elf64_Phdr* dynamic = segment_of_type(segments, PT_DYNAMIC);
  if (dynamic == nullptr) return false;
  const uint64_t count = std::min(dynamic->p_filesz / sizeof(Elf64_Dyn), kMostEntries);
  uint64_t names = 0;
  std::vector<uint64_t> needed;  // offsets among the names
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Dyn entry;
    const auto at = static_cast<off_t>(dynamic->p_offset + i * sizeof entry);
    if (::pread(fd, &entry, sizeof entry, at) != sizeof entry || entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_STRTAB) names = offset_of(segments, entry.d_un.d_ptr);
    if (entry.d_tag == DT_NEEDED) needed.push_back(entry.d_un.d_val);
  }
  return names != 0 && std::any_of(needed.begin(), needed.end(), [&](uint64_t name) {
           return read_name(fd, names + name).rfind(prefix, 0) == 0;
         });
}

// Whether its C library is musl, by its ld.so or by the name that Alpine gives to that library.
bool is_for_musl(int fd, const Segments& segments) {
  const Elf64_Phdr* interpreter = segment_of_type(segments, PT_INTERP);
  if (interpreter == nullptr) return false;
  const std::string path = read_name(fd, interpreter->p_offset);
  const std::string name = path.substr(path.rfind('/') + 1);  // of all of it where there is none
  return name.rfind("ld-musl-", 0) == 0 || needs_library(fd, segments, "libc.musl-");
}

// Whether the Go compiler has made it: one of its notes is Go's build ID, whoever has linked it.
bool is_gos(int fd, const Segments& segments) {
  constexpr uint64_t kMostNoteBytes = 4096;
  constexpr uint32_t kBuildId = 4;
  for (const Elf64_Phdr& segment : segments.all) {
    if (segment.p_type != PT_NOTE) continue;
    std::vector<char> notes(std::min<uint64_t>(segment.p_filesz, kMostNoteBytes));
    const ssize_t n = ::pread(fd, notes.data(), notes.size(), static_cast<off_t>(segment.p_offset));
    const uint64_t size = n > 0 ? static_cast<uint64_t>(n) : 0;
    const auto padded = [](uint64_t length) { return (length + 3) & ~uint64_t{3}; };
    Elf64_Nhdr note;
    for (uint64_t at = 0; at + sizeof note + 4 <= size;) {
      std::memcpy(&note, notes.data() + at, sizeof note);
      const char* const name = notes.data() + at + sizeof note;
      if (note.n_type == kBuildId && note.n_namesz == 4 && std::memcmp(name, "Go\0", 4) == 0) {
        return true;
      }
      at += sizeof note + padded(note.n_namesz) + padded(note.n_descsz);
    }
  }
  return false;
}

}  // namespace

Program find_program(const std::string& command, const std::string& search_path) {
  if (command.empty()) return {"", "an empty name is no program", kExitNotFound};
  if (command.find('/') != std::string::npos) return validate(command);
  Program first_refusal;
  // an empty item is the current folder, behind a last colon too: execvp(3), environ(7)
  for (size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
    end = search_path.find(':', at);
    const std::string folder = search_path.substr(at, end == std::string::npos ? end : end - at);
    Program found = validate((folder.empty() ? "." : folder) + "/" + command);
    if (found.problem.empty()) return found;
    const bool refused = found.exit_code == kExitNotExecutable;
    if (refused && first_refusal.problem.empty()) first_refusal = std::move(found);
  }
  if (!first_refusal.problem.empty()) return first_refusal;
  return {"", "no folder of PATH has it", kExitNotFound};
}

namespace {

// False: no ELF file, or one that cannot be read.
bool read_header(int fd, Elf64_Ehdr& header) {
  return fd >= 0 && ::pread(fd, &header, sizeof header, 0) == sizeof header &&
         std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0;
}

bool is_foreign(const Elf64_Ehdr& header) {
  return kOwnMachine != EM_NONE &&
         (header.e_machine != kOwnMachine || header.e_ident[EI_CLASS] != ELFCLASS64);
}

}  // namespace

bool bears_preload(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr header;
  if (!read_header(fd.get(), header)) return true;
  return !is_foreign(header) && !is_for_musl(fd.get(), read_segments(fd.get(), header));
}

std::string why_out_of_reach(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr header;
  if (!read_header(fd.get(), header)) return {};
  if (is_foreign(header)) {
    return path + " is built for " + machine_name(header.e_machine) + " and Aperture for " +
           kOwnMachineName + ", so the provider cannot be loaded into it; rebuild one of them.";
  }
  const Segments segments = read_segments(fd.get(), header);
  if (is_for_musl(fd.get(), segments)) {
    return path +
           " is built for the C library musl and Aperture for glibc, so neither the provider nor a "
           "preloaded library can be loaded into it; build it for glibc.";
  }
  if (!has_interpreter(segments)) {
    return path +
           " is statically linked, so it cannot load a provider or a preloaded library, and finds "
           "nothing of the device under /sys and /dev; link it with the shared libfabric or "
           "libibverbs.";
  }
  struct stat st;
  const bool changes_user = ::fstat(fd.get(), &st) == 0 && (st.st_mode & (S_ISUID | S_ISGID)) != 0;
  if (changes_user || ::fgetxattr(fd.get(), "security.capability", nullptr, 0) > 0) {
    return path + (changes_user ? " is set-user-ID or set-group-ID" : " has file capabilities") +
           ", so it may drop the environment that leads to Aperture; start it first and "
           "`aperture run` inside it.";
  }
  if (is_gos(fd.get(), segments)) {
    return path +
           " is a Go program: what Go asks of the kernel by itself (os.ReadDir, os.Stat, "
           "filepath.Glob) finds nothing of the device under /sys and /dev; what it calls through "
           "cgo does.";
  }
  return {};
}

}  // namespace aperture::tool
