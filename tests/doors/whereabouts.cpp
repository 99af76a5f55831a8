// See whereabouts.hpp: /proc/PID/task, and the stack as process_vm_readv gives it.
#include "doors/whereabouts.hpp"

#include <sys/uio.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace aperture::doors {
namespace {

namespace fs = std::filesystem;

struct Code {
  uint64_t begin, end, offset;
  std::string file;
};

std::vector<Code> code_of(const fs::path& process) {
  std::vector<Code> all;
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream in(line);
    Code code{};
    char dash = 0;
    std::string rights, device, inode;
    in >> std::hex >> code.begin >> dash >> code.end >> rights >> code.offset >> device >> inode >>
        code.file;
    if (rights.find('x') != std::string::npos && !code.file.empty()) all.push_back(code);
  }
  return all;
}

std::string place_of(const std::vector<Code>& all, uint64_t address) {
  for (const Code& code : all) {
    if (address < code.begin || address >= code.end) continue;
    std::ostringstream out;
    out << fs::path(code.file).filename().string() << "+0x" << std::hex
        << address - code.begin + code.offset;
    return out.str();
  }
  return "";
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string stack_of(pid_t pid, const std::vector<Code>& code, uint64_t top, uint64_t pc) {
  constexpr size_t kMost = 40;
  std::string text = " " + place_of(code, pc);
  std::array<uint64_t, 2048> words{};
  iovec here{words.data(), sizeof words};
  iovec there{reinterpret_cast<void*>(top), sizeof words};
  const ssize_t n = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
  size_t told = 0;
  for (ssize_t i = 0; i < n / 8 && told < kMost; ++i) {
    const std::string place = place_of(code, words[static_cast<size_t>(i)]);
    if (place.empty()) continue;
    text += " " + place;
    ++told;
  }
  return text;
}

}  // namespace

std::string whereabouts(pid_t pid) {
  const fs::path process = "/proc/" + std::to_string(pid);
  const std::vector<Code> code = code_of(process);
  std::string text = "process " + std::to_string(pid) + ":\n";
  std::error_code none;
  for (const fs::directory_entry& task : fs::directory_iterator(process / "task", none)) {
    text += "  " + first_line(task.path() / "stat") + "\n    in " +
            first_line(task.path() / "wchan") + ", system call ";
    const std::string call = first_line(task.path() / "syscall");  // number, six words, sp, pc
    text += call;
    std::ifstream kernel(task.path() / "stack");  // root's to read
    for (std::string line; std::getline(kernel, line);) text += "\n    kernel: " + line;
    std::istringstream in(call);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    if (words.size() >= 3) {
      const uint64_t pc = std::stoull(words.back(), nullptr, 16);
      const uint64_t top = std::stoull(words[words.size() - 2], nullptr, 16);
      text += "\n   " + stack_of(pid, code, top, pc);
    }
    text += "\n";
  }
  return text;
}

}  // namespace aperture::doors
