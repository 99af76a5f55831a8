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
  if (!report.ok) gate.give_up();
  write_report(pipe.get(), report);
  ::_exit(0);
}

// The supervisors of all pairs. None outlives this: each ends by itself, for it has a deadline, and
// those that wait for one that never came give up.
class Supervisors {
 public:
  explicit Supervisors(Gate& gate) noexcept : gate_(gate) {}
  ~Supervisors() {
    if (!started_.empty()) gate_.give_up();
    for (const Supervisor& one : started_) reap(one);
  }
  Supervisors(const Supervisors&) = delete;
  Supervisors& operator=(const Supervisors&) = delete;

  void start(const PairOptions& options, const std::function<Row(Side&)>& body) {
    int pipes[2];
    if (::pipe2(pipes, O_CLOEXEC) != 0) throw Failure("pipe2: %s", std::strerror(errno));
    UniqueFd reader(pipes[0]), writer(pipes[1]);
    started_.push_back({-1, std::move(reader)});
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) supervise(options, body, gate_, writer, parent);
    if (pid < 0) {
      started_.pop_back();
      throw Failure("fork: %s", std::strerror(errno));
    }
    started_.back().pid = pid;
  }

  std::vector<Row> finish() {
    std::vector<Row> rows;
    for (const Supervisor& one : started_) {
      Report report;
      if (!read_report(one.pipe.get(), report)) {
        report = report_of(Failure("its supervisor ended without a word"));
        gate_.give_up();
      }
      rows.push_back(row_of(report));
    }
    return rows;
  }

 private:
  struct Supervisor {
    pid_t pid;
    UniqueFd pipe;
  };

  static void reap(const Supervisor& one) noexcept {
    while (::waitpid(one.pid, nullptr, 0) < 0 && errno == EINTR) continue;
  }

  Gate& gate_;
  std::vector<Supervisor> started_;
};

// What failed by itself before what waited for it.
const Row* first_cause(const std::vector<Row>& rows) {
  const Row* consequence = nullptr;
  for (const Row& row : rows) {
    if (row.ok) continue;
    if (!is_consequence(row.note.c_str())) return &row;
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
  std::snprintf(text, sizeof text, "%zu %s%s, of %.3g to %.3g each; ", rows.size(), each,
                rows.size() == 1 ? "" : "s", slowest, fastest);
  sum.note = text + rows[0].note;
  return sum;
}

Row run_pairs(const PairOptions& options, unsigned pairs, const std::function<Row(Side&)>& body) {
  Gate gate(pairs);
  Supervisors supervisors(gate);
  for (unsigned i = 0; i < pairs; i++) supervisors.start(options, body);
  return sum_of(supervisors.finish(), "pair");
}

}  // namespace aperture::bench
