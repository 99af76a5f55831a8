// See restart.hpp.
#include "base/restart.hpp"

#include <pthread.h>

#include <cerrno>
#include <csignal>

namespace aperture {

namespace {

// Their handlers are for what a thread does itself, and do not end its sleep.
constexpr bool is_own_fault(int signal) noexcept {
  switch (signal) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT:
    case SIGPIPE: return true;
    default: return false;
  }
}

bool may_have_ended(const struct sigaction& action) noexcept {
  if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
    return (action.sa_flags & SA_RESTART) == 0;
  }
  // flags are left of a handler that has run once; or of one that may have run and then been taken
  // away by signal(3), which sets SA_RESTART
  constexpr int kRestartsOnce = SA_RESTART | SA_RESETHAND;
  const int left = action.sa_flags & kRestartsOnce;
  return left != 0 && left != kRestartsOnce;
}

}  // namespace

int errno_of_wait(int error) noexcept {
  sigset_t blocked;
  if (error != EINTR || ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked) != 0) return error;
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    if (is_own_fault(signal) || sigismember(&blocked, signal) == 1) continue;
    struct sigaction action {};
    // those that the C library keeps for itself are not told, and have SA_RESTART
    if (::sigaction(signal, nullptr, &action) == 0 && may_have_ended(action)) return error;
  }
  return 0;
}

}  // namespace aperture
