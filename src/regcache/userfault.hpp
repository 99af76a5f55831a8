// userfaultfd(2) as far as it tells what becomes of memory: opening one, and its calls by name.
//
// Nothing is ever write-protected and no fault is handled. Memory is registered for write
// protection since that alone changes nothing for the process, its system calls and its peers'
// process_vm_readv: registered for missing pages, untouched ones would be EFAULT there. No state,
// any thread.
#pragma once

#include <linux/userfaultfd.h>

#include "base/fd.hpp"
#include "regcache/range.hpp"

namespace aperture::regcache {

// One that reads without waiting, and tells of memory that is unmapped, moved or dropped. First by
// /dev/userfaultfd, whose permissions an administrator sets, then by the system call. Errors, and
// `why` (static storage) says what is missing: access_denied, no_sys, no_fds, no_memory,
// not_supported.
Result<UniqueFd> open_userfault(const char*& why) noexcept;

// Errors: not_supported (memory of a kind that cannot be registered), busy (another one has it),
// no_memory, shut_down (fd is no such descriptor any more).
Status register_range(int fd, const Range& range) noexcept;
void unregister_range(int fd, const Range& range) noexcept;

// What fd says of changes that began before this was asked.
enum class Underway : uint8_t {
  none,     // whoever made them has gone on, and they were read
  some,     // of one at least, no
  no_more,  // fd is no such descriptor any more: somebody has closed it, or put another there
};
Underway ask_underway(int fd) noexcept;

// The next change. False: none for now.
bool read_event(int fd, uffd_msg& event) noexcept;

}  // namespace aperture::regcache
