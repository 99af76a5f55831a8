// The words through which loaded objects call each other's functions: what the dynamic loader fills
// in, by the System V ABI's relocations for functions (JUMP_SLOT, GLOB_DAT) and pointers to them.
//
// LoadedObject reads an object's own tables, as the loader has mapped them, and stores into one
// word at a time, with one store. For use in a callback of dl_iterate_phdr(3) alone, which keeps
// objects from being unmapped meanwhile; nothing is allocated. No state of its own.
#pragma once

#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "regcache/range.hpp"

namespace aperture::regcache {

struct LinkageWord {
  enum class Kind : uint8_t {
    call,     // of a function: may lead to code that is yet to find it
    address,  // of a function
    data,     // a variable of the object's, which may hold anything by now
  };
  std::atomic<uintptr_t>* at = nullptr;
  size_t name = 0;  // among those that were asked for
  Kind kind = Kind::call;
  uintptr_t own = 0;  // the object's own function of that name, if it has one
};

class LoadedObject {
 public:
  explicit LoadedObject(const dl_phdr_info& info) noexcept;

  const char* path() const noexcept { return path_; }
  bool contains(uintptr_t addr) const noexcept;
  // It names the loader to start it with: a program that is not linked statically.
  bool names_a_loader() const noexcept { return names_a_loader_; }
  bool is_the_loader() const noexcept;

  // Calls visit(LinkageWord) for each word by which it reaches one of these names.
  template <typename Visit>
  void for_each_word(std::span<const char* const> names, Visit&& visit) const noexcept {
    for (const Table& table : tables_) {
      for (size_t i = 0; i < table.count; ++i) {
        LinkageWord word;
        if (is_word(table.relocations[i], names, word)) visit(word);
      }
    }
  }
  // Calls visit(word) for each word of what it is done with writing, but for tables of that kind.
  template <typename Visit>
  void for_each_sealed_word(Visit&& visit) const noexcept {
    constexpr uint64_t kSize = sizeof(uintptr_t);
    for (uint64_t at = (sealed_.begin + kSize - 1) & ~(kSize - 1); at + kSize <= sealed_.end;
         at += kSize) {
      visit(word_at(at));
    }
  }

  // Whether the loader has come to that word yet, which holds this value: other threads may look at
  // an object while one loads it.
  bool is_relocated(const LinkageWord& word, uintptr_t value) const noexcept {
    // as it is in the file, the address of code of the object's own is an offset
    const bool is_offset =
        word.kind == LinkageWord::Kind::call && base_ != 0 && contains(base_ + value);
    return value != 0 && !is_offset;
  }
  // The loader is done with it. False: or there is nothing by which that could be seen.
  bool is_sealed() const noexcept;
  // False: it cannot be written to.
  bool store(std::atomic<uintptr_t>& word, uintptr_t value) const noexcept;

 private:
  struct Table {
    const ElfW(Rela) * relocations = nullptr;
    size_t count = 0;
  };

  static std::atomic<uintptr_t>& word_at(uint64_t addr) noexcept {
    static_assert(sizeof(std::atomic<uintptr_t>) == sizeof(uintptr_t));
    return *reinterpret_cast<std::atomic<uintptr_t>*>(addr);
  }
  void read_dynamic(const ElfW(Dyn) * dynamic) noexcept;
  bool is_word(const ElfW(Rela) & relocation, std::span<const char* const> names,
               LinkageWord& word) const noexcept;

  const char* path_;
  ElfW(Addr) base_;
  std::span<const ElfW(Phdr)> segments_;
  bool names_a_loader_ = false;
  Range sealed_;  // read-only once the loader is done with it (PT_GNU_RELRO)
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  Table tables_[2];
};

// False: this machine's relocations are not known here.
bool knows_linkage() noexcept;

}  // namespace aperture::regcache
