// A library of a vendor's: loaded when it is needed, never linked, never unloaded.
//
// Whoever loads one gets its functions alone: nothing of it is offered to other libraries. It
// stays, since what it has set up for this process ends with the process, so a Library is no more
// than a name for it and is copied as such. Any thread.
#pragma once

#include <atomic>

namespace aperture::memory {

// The address of one symbol, as whatever function it is said to be.
struct Symbol {
  void* at = nullptr;
  template <typename Function>
  operator Function*() const noexcept {  // NOLINT: conversion is the point
    return reinterpret_cast<Function*>(at);
  }
};

class Library {
 public:
  // Looked for as the loader looks for all libraries; `there` is false where none was found, or one
  // that cannot be loaded. What the loader said is logged.
  static Library load(const char* name) noexcept;
  // None, or one by its handle.
  explicit Library(void* handle = nullptr) noexcept : handle_(handle) {}

  bool there() const noexcept { return handle_ != nullptr; }
  // Of a library that is there. Null: it has no such symbol.
  Symbol find(const char* name) const noexcept;

  void* handle() const noexcept { return handle_; }

 private:
  void* handle_;  // the loader's; a reference that is never given back
};

// How many libraries this process has ever loaded; 0 if the C library does not tell.
unsigned long long loads_so_far() noexcept;

// Whether this process has loaded a library by itself. Loads none, and looks into no folder unless
// something was loaded since it was last found to be absent.
class AlreadyLoaded {
 public:
  explicit constexpr AlreadyLoaded(const char* name) noexcept : name_(name) {}
  // `loads`: loads_so_far(), asked now.
  Library look(unsigned long long loads) noexcept;

 private:
  const char* const name_;
  std::atomic<void*> handle_{nullptr};            // once it was there
  std::atomic<unsigned long long> absent_at_{0};  // loads_so_far() when it was not; 0: not known
};

// Finds the functions of one driver, for the members of a table of them, and remembers the first
// that was not there.
class Finder {
 public:
  explicit Finder(Library library) noexcept : library_(library) {}

  Symbol operator()(const char* name) noexcept;
  // As operator(), for a function that can be done without.
  Symbol perhaps(const char* name) const noexcept { return library_.find(name); }
  // Null: all were there.
  const char* missing() const noexcept { return missing_; }

 private:
  Library library_;
  const char* missing_ = nullptr;  // static storage
};

}  // namespace aperture::memory
