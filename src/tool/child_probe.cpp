// Fork, run, report, exit: see child_probe.hpp.
#include "tool/child_probe.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace aperture::tool {

namespace {

constexpr size_t kAnswerLimitBytes = 4096;

[[noreturn]] void be_the_child(int out, const std::function<std::string()>& probe) {
  // libraries that are tried out may talk; only the answer is wanted
  const int quiet = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (quiet >= 0) {
    ::dup2(quiet, STDOUT_FILENO);
    ::dup2(quiet, STDERR_FILENO);
  }
  const std::string answer = probe().substr(0, kAnswerLimitBytes);
  const bool sent =
      ::write(out, answer.data(), answer.size()) == static_cast<ssize_t>(answer.size());
  ::_exit(sent ? 0 : 1);
}

// Where the command was started with one of the first three closed, an end of the pipe may be it;
// the child uses those for something else.
void move_above_standard(UniqueFd& end) {
  if (!end || end.get() > STDERR_FILENO) return;
  end = UniqueFd(::fcntl(end.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

// Reads until the child closes its end. False when the time is over first.
bool read_until_closed(int in, int timeout_ms, std::string& text) {
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000;
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) return false;
    pollfd waiting{in, POLLIN, 0};
    const int left_ms = static_cast<int>((deadline_ns - now) / 1'000'000) + 1;
    if (::poll(&waiting, 1, left_ms) <= 0) continue;
    char buffer[512];
    const ssize_t n = ::read(in, buffer, sizeof buffer);
    if (n == 0) return true;
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

ReapableChildren::ReapableChildren() noexcept {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  const int taken = ::sigaction(SIGCHLD, &usual, &before_);
  assert(taken == 0);
  (void)taken;
}

ReapableChildren::~ReapableChildren() {
  const int given_back = ::sigaction(SIGCHLD, &before_, nullptr);
  assert(given_back == 0);
  (void)given_back;
}

bool reap(pid_t child, int& status) noexcept {
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

ProbeAnswer probe_in_child(const std::function<std::string()>& probe, int timeout_ms) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {false, std::strerror(errno)};
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  move_above_standard(in);
  move_above_standard(out);
  if (!in || !out) return {false, std::strerror(errno)};
  const ReapableChildren reapable;
  const pid_t child = ::fork();
  if (child < 0) return {false, std::strerror(errno)};
  if (child == 0) be_the_child(out.get(), probe);
  assert(in && out);
  out.reset();
  ProbeAnswer answer;
  const bool in_time = read_until_closed(in.get(), timeout_ms, answer.text);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  if (!reap(child, status))
    return {false, std::string("its end was not seen: ") + std::strerror(errno)};
  if (!in_time) return {false, "no answer within " + std::to_string(timeout_ms) + " ms"};
  if (WIFSIGNALED(status)) {
    return {false, std::string("it crashed: ") + ::strsignal(WTERMSIG(status))};
  }
  if (WEXITSTATUS(status) != 0) {
    return {false, "it ended the process, with exit code " + std::to_string(WEXITSTATUS(status))};
  }
  assert(in_time && WIFEXITED(status) && answer.text.size() <= kAnswerLimitBytes);
  answer.answered = true;
  return answer;
}

}  // namespace aperture::tool
