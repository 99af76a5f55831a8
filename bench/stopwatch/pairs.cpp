// Forking a supervisor for each pair, and adding up what they report.
#include "stopwatch/pairs.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "stopwatch/failure.hpp"
#include "stopwatch/gate.hpp"
#include "stopwatch/report.hpp"

namespace aperture::bench {

namespace {

struct Supervisor {
  pid_t pid;
  UniqueFd pipe;
};

[[noreturn]] void supervise(const PairOptions& options, const std::function<Row(Side&)>& body,
                            Gate& gate, const UniqueFd& pipe, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  Report report;
  try {
    report = report_of(run_pair(options, body, &gate));
  } catch (const std::exception& e) {
    report = report_of(e);
  }
  write_report(pipe.get(), report);
  ::_exit(0);
}

Supervisor start(const PairOptions& options, const std::function<Row(Side&)>& body, Gate& gate) {
  int pipes[2];
  if (::pipe2(pipes, O_CLOEXEC) != 0) throw Failure("pipe2: %s", std::strerror(errno));
  UniqueFd reader(pipes[0]), writer(pipes[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) supervise(options, body, gate, writer, parent);
  if (pid < 0) throw Failure("fork: %s", std::strerror(errno));
  return {pid, std::move(reader)};
}

// Each ends by itself: it has a deadline.
Row finish(const Supervisor& supervisor) {
  Report report;
  if (!read_report(supervisor.pipe.get(), report)) {
    report = report_of(Failure("its supervisor ended without a word"));
  }
  while (::waitpid(supervisor.pid, nullptr, 0) < 0 && errno == EINTR) continue;
  return row_of(report);
}

// What failed by itself before what waited for it.
const Row* first_cause(const std::vector<Row>& rows) {
  const Row* consequence = nullptr;
  for (const Row& row : rows) {
    if (row.ok) continue;
    if (row.note.find(kNotAllCame) == std::string::npos) return &row;
    consequence = &row;
  }
  return consequence;
}

}  // namespace

Row sum_of(const std::vector<Row>& rows, const char* each) {
  Row sum = rows.at(0);
  sum.value = 0;
  double slowest = rows[0].value, fastest = slowest;
  if (const Row* bad = first_cause(rows); bad != nullptr) {
    Row failed = *bad;
    failed.note = std::string(each) + " " + std::to_string(bad - rows.data()) + ": " + bad->note;
    return failed;
  }
  for (size_t i = 0; i < rows.size(); i++) {
    sum.value += rows[i].value;
    slowest = std::min(slowest, rows[i].value);
    fastest = std::max(fastest, rows[i].value);
  }
  Summary spread;
  spread.typical = spread.p50 = spread.p99 = spread.mean = sum.value;
  spread.min = slowest;
  spread.count = rows.size();
  sum.spread = spread;
  char text[128];
  std::snprintf(text, sizeof text, "%zu %ss, of %.3g to %.3g each; ", rows.size(), each, slowest,
                fastest);
  sum.note = text + rows[0].note;
  return sum;
}

Row run_pairs(const PairOptions& options, unsigned pairs, const std::function<Row(Side&)>& body) {
  Gate gate(pairs);
  std::vector<Supervisor> supervisors;
  for (unsigned i = 0; i < pairs; i++) supervisors.push_back(start(options, body, gate));
  std::vector<Row> rows;
  for (const Supervisor& one : supervisors) rows.push_back(finish(one));
  return sum_of(rows, "pair");
}

}  // namespace aperture::bench
