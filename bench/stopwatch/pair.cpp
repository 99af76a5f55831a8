// Forking, supervising and burying a pair of processes.
//
// A side writes one Report to its pipe. The pipe's end of file without one means that the side
// died.
#include "stopwatch/pair.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/gate.hpp"
#include "stopwatch/leftovers.hpp"
#include "stopwatch/report.hpp"

namespace aperture::bench {

namespace {

// A message that passes one descriptor, unix(7).
struct Passing {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{nullptr, 0, &piece, 1, control, sizeof control, 0};
};

struct Child {
  pid_t pid = -1;
  UniqueFd pipe;
  Report report;
  int status = 0;
  bool reaped = false;
};

// Throws Failure when a CPU is not ours to use.
void pin(int rank, const PairOptions& options) {
  const int own = options.cpus[options.cores == Cores::one ? 0 : rank % 2];
  if (own < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(own), &set);
  if (options.cores == Cores::either) {
    for (const int cpu : options.cpus) CPU_SET(static_cast<unsigned>(cpu), &set);
  }
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    throw Failure("CPU %d is not available (%s); choose others with --cpus", own,
                  std::strerror(errno));
  }
}

using Sockets = std::vector<UniqueFd>;

[[noreturn]] void be_side(int rank, const PairOptions& options, Sockets sockets, UniqueFd pipe,
                          pid_t supervisor, const std::function<Row(Side&)>& body, Gate* gate) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != supervisor) ::_exit(1);
  Report report;
  {
    Channel channel(std::move(sockets.at(0)));
    try {
      pin(rank, options);
      Side side{rank, channel, gate};
      for (size_t i = 1; i < sockets.size(); i++) side.others.emplace_back(std::move(sockets[i]));
      report = report_of(body(side));
      report.ok = true;  // it came to its end: rank 1 has no row of its own
    } catch (const std::exception& e) {
      report = report_of(e);
    }
    write_report(pipe.get(), report);
  }
  ::_exit(report.ok ? 0 : 1);
}

// A side has reported or closed its pipe.
void take_report(Child& child) {
  read_report(child.pipe.get(), child.report);
  child.pipe.reset();
}

using Children = std::vector<Child>;

// Waits for all reports; after one side failed, the others have half a second to say more.
bool await_reports(Children& children, double timeout_s) {
  uint64_t deadline = now_ns() + static_cast<uint64_t>(timeout_s * 1e9);
  const auto waits = [](const Child& child) { return static_cast<bool>(child.pipe); };
  while (std::any_of(children.begin(), children.end(), waits)) {
    const uint64_t now = now_ns();
    if (now >= deadline) return false;
    std::vector<pollfd> fds;
    for (const Child& child : children) fds.push_back({child.pipe.get(), POLLIN, 0});
    const int wait_ms = static_cast<int>((deadline - now) / 1'000'000) + 1;
    if (::poll(fds.data(), fds.size(), wait_ms) < 0) continue;
    for (size_t i = 0; i < fds.size(); i++) {
      if (!children[i].pipe || fds[i].revents == 0) continue;
      take_report(children[i]);
      const uint64_t grace = now_ns() + 500'000'000;
      if (!children[i].report.ok && grace < deadline) deadline = grace;
    }
  }
  return true;
}

bool reap(Child& child, int wait_ms) {
  for (int i = 0; !child.reaped; i++) {
    const pid_t got = ::waitpid(child.pid, &child.status, WNOHANG);
    if (got == child.pid || (got < 0 && errno == ECHILD)) {
      child.reaped = true;
    } else if (i >= wait_ms) {
      return false;
    } else {
      ::usleep(1000);
    }
  }
  return true;
}

void bury(Child& child) {
  if (!reap(child, 500)) {
    ::kill(child.pid, SIGTERM);  // a provider may still put its shared files away
    if (!reap(child, 300)) {
      ::kill(child.pid, SIGKILL);
      reap(child, 2000);
    }
  }
  remove_leftovers(child.pid);
}

std::string name_of(size_t rank, const Children& children) {
  if (rank == 0) return "initiator";
  return children.size() == 2 ? "target" : "target " + std::to_string(rank);
}

// The most telling reason first: a crash, then what a side said, then a hang.
std::string reason_of(const Children& children, bool ended_in_time, double timeout_s) {
  for (size_t i = 0; i < children.size(); i++) {
    const Child& c = children[i];
    if (!c.report.done && ended_in_time && c.reaped && WIFSIGNALED(c.status)) {
      return "the " + name_of(i, children) + " died: " + ::strsignal(WTERMSIG(c.status));
    }
  }
  for (int pass = 0; pass < 2; pass++) {
    for (size_t i = 0; i < children.size(); i++) {
      const Report& r = children[i].report;
      if (!r.done || r.ok) continue;
      if (pass == 0 && is_consequence(r.text)) continue;
      return name_of(i, children) + ": " + r.text;
    }
  }
  char text[96];
  std::snprintf(text, sizeof text, "%s within %.0f s", "did not end", timeout_s);
  return ended_in_time ? "a side ended without a word" : text;
}

Row row_of(const Children& children, bool ended_in_time, double timeout_s) {
  const auto good = [](const Child& child) { return child.report.ok; };
  if (std::all_of(children.begin(), children.end(), good)) return row_of(children[0].report);
  Row row;
  row.note = reason_of(children, ended_in_time, timeout_s);
  return row;
}

// The ends of each rank's channels: rank 0 has one to each of the others.
std::vector<Sockets> connect_ranks(unsigned ranks) {
  std::vector<Sockets> all(ranks);
  for (unsigned i = 1; i < ranks; i++) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      throw Failure("no descriptors for a pair: %s", std::strerror(errno));
    }
    all[0].emplace_back(ends[0]);
    all[i].emplace_back(ends[1]);
  }
  return all;
}

}  // namespace

void Channel::send(const void* data, size_t len_bytes) {
  ssize_t n;
  do {
    n = ::send(fd_.get(), data, len_bytes, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(len_bytes)) throw Failure("%s", kPeerGone);
}

size_t Channel::receive(void* data, size_t capacity) {
  ssize_t n;
  do {
    n = ::recv(fd_.get(), data, capacity, 0);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) throw Failure("%s", kPeerGone);
  return static_cast<size_t>(n);
}

bool Channel::try_receive(void* data, size_t capacity, size_t& len_bytes) {
  const ssize_t n = ::recv(fd_.get(), data, capacity, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (n <= 0) throw Failure("%s", kPeerGone);
  len_bytes = static_cast<size_t>(n);
  return true;
}

uint64_t Channel::receive_word() {
  uint64_t word = 0;
  expect_whole(receive(&word, sizeof word), sizeof word, "word between the sides");
  return word;
}

Channel Channel::open_another() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Failure("no descriptors for a channel: %s", std::strerror(errno));
  }
  Channel ours{UniqueFd(ends[0])};
  const UniqueFd theirs(ends[1]);
  Passing passing;
  const cmsghdr header{CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_FIRSTHDR(&passing.message), &header, sizeof header);
  std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&passing.message)), &ends[1], sizeof(int));
  if (::sendmsg(fd_.get(), &passing.message, MSG_NOSIGNAL) != 1) throw Failure("%s", kPeerGone);
  return ours;
}

Channel Channel::take_another() {
  Passing passing;
  if (::recvmsg(fd_.get(), &passing.message, MSG_CMSG_CLOEXEC) != 1) {
    throw Failure("%s", kPeerGone);
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&passing.message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) throw Failure("no channel was passed");
  int fd;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return Channel{UniqueFd(fd)};
}

void Channel::expect_whole(size_t len_bytes, size_t expected, const char* what) {
  if (len_bytes != expected) throw Failure("a torn %s", what);
}

Row run_pair(const PairOptions& options, const std::function<Row(Side&)>& body, Gate* gate) {
  return run_group(options, 2, body, gate);
}

Row run_group(const PairOptions& options, unsigned ranks, const std::function<Row(Side&)>& body,
              Gate* gate) {
  std::vector<Sockets> sockets = connect_ranks(ranks);
  std::vector<UniqueFd> writers;
  Children children(ranks);
  for (Child& child : children) {
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) {
      throw Failure("no descriptors for a pair: %s", std::strerror(errno));
    }
    child.pipe = UniqueFd(pipe[0]);
    writers.emplace_back(pipe[1]);
  }
  const pid_t supervisor = ::getpid();
  for (unsigned i = 0; i < ranks; i++) {
    children[i].pid = ::fork();
    if (children[i].pid == 0) {
      Sockets mine = std::move(sockets[i]);
      UniqueFd writer = std::move(writers[i]);
      sockets.clear();
      writers.clear();
      be_side(static_cast<int>(i), options, std::move(mine), std::move(writer), supervisor, body,
              gate);
    }
    if (children[i].pid < 0) {
      const int error = errno;
      for (unsigned done = 0; done < i; done++) bury(children[done]);
      throw Failure("fork: %s", std::strerror(error));
    }
  }
  sockets.clear();
  writers.clear();
  const bool ended = await_reports(children, options.timeout_s);
  for (Child& child : children) bury(child);
  return row_of(children, ended, options.timeout_s);
}

}  // namespace aperture::bench
