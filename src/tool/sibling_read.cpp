// Two forked siblings, one read: see sibling_read.hpp. The owner waits on a pipe whose other end
// only the parent keeps, so it goes away with the parent in any case.
#include "tool/sibling_read.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include "base/fd.hpp"
#include "tool/child_probe.hpp"

namespace aperture::tool {

namespace {

constexpr uint64_t kMark = 0x4170657274757265;  // any value that memory does not hold by chance

// At the same address in parent and children; only the owner's copy holds the mark.
volatile uint64_t the_word = 0;

std::string read_from(pid_t owner) {
  uint64_t got = 0;
  iovec local{&got, sizeof got};
  iovec remote{const_cast<uint64_t*>(&the_word), sizeof the_word};
  if (::process_vm_readv(owner, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(sizeof got)) {
    return std::to_string(errno);
  }
  return std::to_string(got == kMark ? 0 : EIO);
}

[[noreturn]] void be_the_owner(int ready, int hold, bool allow) {
  assert(the_word != kMark);
  // as a process with APERTURE_CMA=allow does; EINVAL where there is no Yama
  if (allow) ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  the_word = kMark;
  char byte = 0;
  if (::write(ready, &byte, 1) == 1) {
    while (::read(hold, &byte, 1) < 0 && errno == EINTR) {
    }
  }
  ::_exit(0);
}

}  // namespace

int try_sibling_read(bool allow) {
  int ready[2];
  int hold[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return errno;
  UniqueFd ready_in(ready[0]);
  UniqueFd ready_out(ready[1]);
  if (::pipe2(hold, O_CLOEXEC) != 0) return errno;
  UniqueFd hold_in(hold[0]);
  UniqueFd hold_out(hold[1]);
  const ReapableChildren reapable;
  const pid_t owner = ::fork();
  if (owner < 0) return errno;
  if (owner == 0) {
    hold_out.reset();  // else it would hold itself open
    be_the_owner(ready_out.get(), hold_in.get(), allow);
  }
  assert(the_word != kMark);  // of the owner's copy alone
  ready_out.reset();
  char byte = 0;
  ProbeAnswer answer{false, ""};
  if (::read(ready_in.get(), &byte, 1) == 1) {
    answer = probe_in_child([owner] { return read_from(owner); });
  }
  hold_out.reset();
  int status = 0;
  if (!reap(owner, status)) return errno;
  return answer.answered ? std::atoi(answer.text.c_str()) : EIO;
}

}  // namespace aperture::tool
