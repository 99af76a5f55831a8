// Program lookup and ELF header reading: see program.hpp. ELF layout: elf(5).
#include "tool/program.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

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

// True if the program header table names an interpreter (ld.so), as every program that loads
// libraries does. Says true when the table cannot be read: then there is nothing to be said.
bool has_interpreter(int fd, const Elf64_Ehdr& header) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const auto at = static_cast<off_t>(header.e_phoff + uint64_t{i} * header.e_phentsize);
    if (::pread(fd, &segment, sizeof segment, at) != sizeof segment) return true;
    if (segment.p_type == PT_INTERP) return true;
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

bool is_for_other_machine(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr header;
  return read_header(fd.get(), header) && is_foreign(header);
}

std::string why_out_of_reach(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr header;
  if (!read_header(fd.get(), header)) return {};
  if (is_foreign(header)) {
    return path + " is built for " + machine_name(header.e_machine) + " and Aperture for " +
           kOwnMachineName + ", so the provider cannot be loaded into it; rebuild one of them.";
  }
  if (!has_interpreter(fd.get(), header)) {
    return path +
           " is statically linked, so it cannot load a provider or a preloaded library; link it "
           "with "
           "the shared libfabric or libibverbs.";
  }
  struct stat st;
  const bool changes_user = ::fstat(fd.get(), &st) == 0 && (st.st_mode & (S_ISUID | S_ISGID)) != 0;
  if (changes_user || ::fgetxattr(fd.get(), "security.capability", nullptr, 0) > 0) {
    return path + (changes_user ? " is set-user-ID or set-group-ID" : " has file capabilities") +
           ", so it may drop the environment that leads to Aperture; start it first and "
           "`aperture run` inside it.";
  }
  return {};
}

}  // namespace aperture::tool
