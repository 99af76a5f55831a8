// Finding a program as execvp does, and reading from its ELF header what the provider meets there.
#include "tool/program.hpp"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace aperture::tool {
namespace {

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "aperture-program-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    ::chmod(path.c_str(), mode);
    return path;
  }

  // An ELF header and one program header of the type given.
  static std::string elf(uint16_t machine, uint32_t segment_type) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_machine = machine;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 1;
    Elf64_Phdr segment{};
    segment.p_type = segment_type;
    std::string bytes(sizeof header + sizeof segment, '\0');
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, &segment, sizeof segment);
    return bytes;
  }

#if defined(__x86_64__)
  static constexpr uint16_t kOwn = EM_X86_64;
  static constexpr uint16_t kOther = EM_AARCH64;
#else
  static constexpr uint16_t kOwn = EM_AARCH64;
  static constexpr uint16_t kOther = EM_X86_64;
#endif

  std::string folder_;
};

TEST_F(ProgramTest, is_found_by_path_and_through_search) {
  const std::string path = write("tool", "#!/bin/sh\n", 0755);
  EXPECT_EQ(find_program(path, "").path, path);
  EXPECT_EQ(find_program("tool", "/nonexistent:" + folder_).path, path);
}

TEST_F(ProgramTest, an_empty_item_of_the_search_path_is_the_current_folder) {
  write("tool", "#!/bin/sh\n", 0755);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  for (const char* path : {"/nonexistent:", ":/nonexistent", "/nonexistent::/nowhere", ":", ""}) {
    EXPECT_EQ(find_program("tool", path).path, "./tool") << path;
  }
  EXPECT_EQ(find_program("tool", "/nonexistent").exit_code, kExitNotFound);
  std::filesystem::current_path(before);
}

TEST_F(ProgramTest, absent_is_127) {
  EXPECT_EQ(find_program("tool", folder_).exit_code, kExitNotFound);
  EXPECT_EQ(find_program(folder_ + "/tool", "").exit_code, kExitNotFound);
  EXPECT_EQ(find_program("", folder_).exit_code, kExitNotFound);
}

TEST_F(ProgramTest, not_executable_is_126) {
  const std::string path = write("tool", "#!/bin/sh\n", 0644);
  EXPECT_EQ(find_program(path, "").exit_code, kExitNotExecutable);
  EXPECT_EQ(find_program("tool", folder_).exit_code, kExitNotExecutable);
  EXPECT_EQ(find_program(folder_, "").exit_code, kExitNotExecutable);
}

TEST_F(ProgramTest, a_later_folder_can_have_what_an_earlier_one_refuses) {
  write("tool", "#!/bin/sh\n", 0644);
  std::filesystem::create_directory(folder_ + "/later");
  const std::string good = write("later/tool", "#!/bin/sh\n", 0755);
  EXPECT_EQ(find_program("tool", folder_ + ":" + folder_ + "/later").path, good);
}

TEST_F(ProgramTest, an_ordinary_program_is_within_reach) {
  EXPECT_EQ(why_out_of_reach(write("dynamic", elf(kOwn, PT_INTERP), 0755)), "");
  EXPECT_EQ(why_out_of_reach("/bin/sh"), "");
}

TEST_F(ProgramTest, a_static_one_is_not) {
  const std::string why = why_out_of_reach(write("static", elf(kOwn, PT_LOAD), 0755));
  EXPECT_NE(why.find("statically linked"), std::string::npos) << why;
  EXPECT_NE(why.find("nothing of the device under /sys"), std::string::npos) << why;
}

// A program that loads libraries, with a note behind its program headers.
TEST_F(ProgramTest, one_of_gos_is_reached_in_part) {
  const auto with_note = [this](uint32_t type, const std::string& name, uint64_t size_of_notes) {
    std::string bytes = elf(kOwn, PT_INTERP);
    Elf64_Phdr segment{};
    segment.p_type = PT_NOTE;
    segment.p_offset = bytes.size() + sizeof segment;
    segment.p_filesz = size_of_notes;
    bytes.append(reinterpret_cast<const char*>(&segment), sizeof segment);
    bytes[offsetof(Elf64_Ehdr, e_phnum)] = 2;
    for (const auto& [note, owner] :
         {std::pair{uint32_t{NT_GNU_BUILD_ID}, std::string("GNU\0", 4)}, std::pair{type, name}}) {
      Elf64_Nhdr header{4, 5, note};
      bytes.append(reinterpret_cast<const char*>(&header), sizeof header);
      bytes.append(owner).append("12345\0\0", 8);
    }
    return why_out_of_reach(write("noted", bytes, 0755));
  };
  constexpr uint64_t kBoth = 2 * (sizeof(Elf64_Nhdr) + 4 + 8);
  const std::string go("Go\0\0", 4);
  EXPECT_NE(with_note(4, go, kBoth).find("is a Go program"), std::string::npos);
  EXPECT_NE(with_note(4, go, uint64_t{1} << 60).find("is a Go program"), std::string::npos);
  EXPECT_EQ(with_note(4, "GNU" + std::string(1, '\0'), kBoth), "");
  EXPECT_EQ(with_note(1, go, kBoth), "");
  EXPECT_EQ(with_note(4, go, kBoth / 2), "");
  EXPECT_EQ(with_note(4, go, kBoth / 2 + 13), "");
}

TEST_F(ProgramTest, one_for_another_machine_is_not) {
  const std::string foreign = write("foreign", elf(kOther, PT_INTERP), 0755);
  const std::string why = why_out_of_reach(foreign);
  EXPECT_FALSE(bears_preload(foreign));
  EXPECT_NE(why.find("is built for"), std::string::npos) << why;
}

TEST_F(ProgramTest, one_for_musl_is_not) {
  const auto with_interpreter = [this](const std::string& name) {
    std::string bytes = elf(kOwn, PT_INTERP);
    const uint64_t at = bytes.size();
    std::memcpy(bytes.data() + sizeof(Elf64_Ehdr) + offsetof(Elf64_Phdr, p_offset), &at, sizeof at);
    return write("dynamic", bytes + name + std::string(1, '\0'), 0755);
  };
  const std::string musl = with_interpreter("/lib/ld-musl-x86_64.so.1");
  EXPECT_NE(why_out_of_reach(musl).find("musl"), std::string::npos);
  EXPECT_FALSE(bears_preload(musl));
  for (const char* name : {"/lib64/ld-linux-x86-64.so.2", "/opt/ld-musl-1/ld.so", "ld-", ""}) {
    const std::string other = with_interpreter(name);
    EXPECT_EQ(why_out_of_reach(other), "") << name;
    EXPECT_TRUE(bears_preload(other)) << name;
  }
}

TEST_F(ProgramTest, a_set_user_id_one_may_not_be) {
  const std::string why = why_out_of_reach(write("suid", elf(kOwn, PT_INTERP), 04755));
  EXPECT_NE(why.find("set-user-ID"), std::string::npos) << why;
}

TEST_F(ProgramTest, scripts_stubs_and_missing_files_have_nothing_said_about_them) {
  EXPECT_EQ(why_out_of_reach(write("script", "#!/bin/sh\necho\n", 0755)), "");
  EXPECT_EQ(why_out_of_reach(write("stub",
                                   "\x7f"
                                   "ELF",
                                   0755)),
            "");
  EXPECT_EQ(why_out_of_reach(write("empty", "", 0755)), "");
  EXPECT_EQ(why_out_of_reach(folder_ + "/missing"), "");
}

}  // namespace
}  // namespace aperture::tool
