// A wait that a signal has interrupted goes on, or ends, as a read(2) would: by the handlers that
// may have run.
#include "base/restart.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

namespace aperture {
namespace {

void nothing(int) {}

// A disposition for as long as it lives.
class Disposition {
 public:
  Disposition(int signal, void (*handler)(int), int flags) : signal_(signal) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    EXPECT_EQ(::sigaction(signal, &action, &before_), 0);
  }
  ~Disposition() { ::sigaction(signal_, &before_, nullptr); }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;

 private:
  const int signal_;
  struct sigaction before_ {};
};

TEST(Restart, other_errors_stay_what_they_are) {
  EXPECT_EQ(errno_of_wait(EFAULT), EFAULT);
}

TEST(Restart, a_wait_goes_on_where_every_handler_restarts_calls) {
  EXPECT_EQ(errno_of_wait(EINTR), 0) << "none";
  const Disposition one(SIGUSR1, nothing, SA_RESTART), other(SIGRTMIN, nothing, SA_RESTART);
  EXPECT_EQ(errno_of_wait(EINTR), 0);
}

TEST(Restart, a_wait_ends_where_one_handler_does_not) {
  const Disposition restarts(SIGUSR1, nothing, SA_RESTART), ends(SIGUSR2, nothing, 0);
  EXPECT_EQ(errno_of_wait(EINTR), EINTR);
}

TEST(Restart, handlers_of_faults_and_of_blocked_signals_end_no_wait) {
  const Disposition fault(SIGSEGV, nothing, 0), blocked(SIGUSR2, nothing, 0);
  sigset_t usr2, before;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &usr2, &before), 0);
  EXPECT_EQ(errno_of_wait(EINTR), 0);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  EXPECT_EQ(errno_of_wait(EINTR), EINTR);
}

TEST(Restart, a_handler_that_has_run_once_and_is_gone_may_have_ended_it) {
  {
    const Disposition once(SIGUSR1, nothing, SA_RESETHAND);
    ::raise(SIGUSR1);
    EXPECT_EQ(errno_of_wait(EINTR), EINTR);
  }
  const Disposition once(SIGUSR1, nothing, SA_RESETHAND | SA_RESTART);
  ::raise(SIGUSR1);
  EXPECT_EQ(errno_of_wait(EINTR), 0);
}

}  // namespace
}  // namespace aperture
