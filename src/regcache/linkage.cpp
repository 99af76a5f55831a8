// Reading the tables of loaded objects: see linkage.hpp.
#include "regcache/linkage.hpp"

#include <linux/futex.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>

namespace aperture::regcache {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kCall = R_X86_64_JUMP_SLOT, kAddress = R_X86_64_GLOB_DAT, kData = R_X86_64_64;
#elif defined(__aarch64__)
constexpr uint32_t kCall = R_AARCH64_JUMP_SLOT, kAddress = R_AARCH64_GLOB_DAT,
                   kData = R_AARCH64_ABS64;
#else
constexpr uint32_t kCall = 0, kAddress = 0, kData = 0;  // none: R_*_NONE
#endif

// Asked of the kernel by an operation that changes nothing (or with 0), and is atomic.
bool is_writable(std::atomic<uintptr_t>& word) noexcept {
  static uint32_t nobody_waits = 0;
  constexpr int kOrNothing = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0);
  return ::syscall(SYS_futex, &nobody_waits, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, nullptr, &word,
                   kOrNothing) >= 0;
}

}  // namespace

bool knows_linkage() noexcept {
  return kCall != 0;
}

LoadedObject::LoadedObject(const dl_phdr_info& info) noexcept
    : path_(info.dlpi_name), base_(info.dlpi_addr), segments_(info.dlpi_phdr, info.dlpi_phnum) {
  assert(path_ != nullptr && (segments_.empty() || segments_.data() != nullptr));
  for (const ElfW(Phdr) & segment : segments_) {
    const uint64_t at = base_ + segment.p_vaddr;
    if (segment.p_type == PT_INTERP) names_a_loader_ = true;
    if (segment.p_type == PT_DYNAMIC) read_dynamic(reinterpret_cast<const ElfW(Dyn)*>(at));
    if (segment.p_type == PT_GNU_RELRO) {
      // as the loader does: what it shares a page with at its end stays writable
      sealed_ = {at & ~(page_size() - 1), (at + segment.p_memsz) & ~(page_size() - 1)};
    }
  }
}

void LoadedObject::read_dynamic(const ElfW(Dyn) * dynamic) noexcept {
  const auto placed = [this](ElfW(Addr) at) { return at < base_ ? base_ + at : at; };
  const auto relocations = [&](ElfW(Addr) at) {
    return reinterpret_cast<const ElfW(Rela)*>(placed(at));
  };
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const ElfW(Addr) at = dynamic->d_un.d_ptr;
    switch (dynamic->d_tag) {
      case DT_SYMTAB: symbols_ = reinterpret_cast<const ElfW(Sym)*>(placed(at)); break;
      case DT_STRTAB: strings_ = reinterpret_cast<const char*>(placed(at)); break;
      case DT_RELA: tables_[0].relocations = relocations(at); break;
      case DT_RELASZ: tables_[0].count = dynamic->d_un.d_val / sizeof(ElfW(Rela)); break;
      case DT_JMPREL: tables_[1].relocations = relocations(at); break;
      case DT_PLTRELSZ: tables_[1].count = dynamic->d_un.d_val / sizeof(ElfW(Rela)); break;
      default: break;
    }
  }
  for (Table& table : tables_) {
    if (table.relocations == nullptr || symbols_ == nullptr || strings_ == nullptr) table.count = 0;
  }
}

bool LoadedObject::contains(uintptr_t addr) const noexcept {
  for (const ElfW(Phdr) & segment : segments_) {
    const uint64_t at = base_ + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && addr >= at && addr - at < segment.p_memsz) return true;
  }
  return false;
}

bool LoadedObject::is_the_loader() const noexcept {
  return base_ != 0 && base_ == ::getauxval(AT_BASE);
}

bool LoadedObject::is_word(const ElfW(Rela) & relocation, std::span<const char* const> names,
                           LinkageWord& word) const noexcept {
  const auto type = static_cast<uint32_t>(relocation.r_info);
  if (type == 0 || (type != kCall && type != kAddress && type != kData)) return false;
  if (relocation.r_addend != 0) return false;
  const ElfW(Sym)& symbol = symbols_[relocation.r_info >> 32];
  const char* const name = strings_ + symbol.st_name;
  for (size_t i = 0; i < names.size(); ++i) {
    if (*name != *names[i] || std::strcmp(name, names[i]) != 0) continue;
    word.at = &word_at(base_ + relocation.r_offset);
    word.name = i;
    word.kind = type == kCall      ? LinkageWord::Kind::call
                : type == kAddress ? LinkageWord::Kind::address
                                   : LinkageWord::Kind::data;
    word.own = symbol.st_shndx != SHN_UNDEF ? base_ + symbol.st_value : 0;
    return reinterpret_cast<uintptr_t>(word.at) % sizeof(uintptr_t) == 0;
  }
  return false;
}

bool LoadedObject::is_sealed() const noexcept {
  return !sealed_.is_empty() && !is_writable(word_at(sealed_.begin));
}

bool LoadedObject::store(std::atomic<uintptr_t>& word, uintptr_t value) const noexcept {
  const auto at = reinterpret_cast<uint64_t>(&word);
  const bool is_sealed = at >= sealed_.begin && at < sealed_.end;
  assert(at % sizeof value == 0 && contains(at));
  if (!is_sealed) {  // the loader writes there whenever a function is first called
    // SYNC POINT: linkage: what the new function needs is there
    word.store(value, std::memory_order_release);
    return true;
  }
  if (is_writable(word)) {
    // The loader may be at it and seal the page at any moment, after which a store would be the end
    // of the process: so the kernel does it, or finds the page sealed. Nobody runs that object yet.
    const iovec from{&value, sizeof value}, to{&word, sizeof word};
    if (::syscall(SYS_process_vm_writev, ::getpid(), &from, 1, &to, 1, 0) == sizeof value) {
      return true;
    }
    if (errno != EFAULT) return false;
  }
  void* const page = reinterpret_cast<void*>(at & ~(page_size() - 1));
  if (::mprotect(page, page_size(), PROT_READ | PROT_WRITE) != 0) return false;
  word.store(value, std::memory_order_release);  // SYNC POINT: linkage
  ::mprotect(page, page_size(), PROT_READ);
  return true;
}

}  // namespace aperture::regcache
