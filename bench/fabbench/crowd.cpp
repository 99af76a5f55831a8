// Forking a crowd, and telling its members what to do: see crowd.hpp.
//
// Memory is counted as proportional shares (Pss of smaps_rollup, proc(5)) summed over all processes
// concerned: a page that two of them map counts once.
#include "fabbench/crowd.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "fabbench/messenger.hpp"
#include "fabbench/task.hpp"
#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kWord = 8;  // bytes of the message that makes two endpoints meet

enum class Order : uint64_t { warm_up, connect, resident, end };

// One endpoint, and the buffers of its only messages.
class Meeter {
 public:
  Meeter(const Setup& setup, Channel& channel)
      : session_(setup, channel), local_(session_.register_local(words_, sizeof words_)) {}

  Session& session() noexcept { return session_; }
  void send_to(fi_addr_t peer) {
    session_.post("room to send", [&] {
      return fi_send(session_.ep(), words_, kWord, local_.desc, peer, &slots_[0].context);
    });
    session_.await_tx("the completion of a send");
  }
  void receive() {
    session_.post("room to post a receive", [&] {
      return fi_recv(session_.ep(), words_ + kWord, kWord, local_.desc, FI_ADDR_UNSPEC,
                     &slots_[1].context);
    });
    session_.await_rx("a message");
  }

 private:
  Session session_;
  Slot slots_[2]{};
  std::byte words_[2 * kWord]{};
  Region local_;
};

Order next_order(Channel& channel) {
  return static_cast<Order>(channel.receive_word());
}

std::string receive_name(Channel& channel) {
  char name[512];
  return {name, channel.receive(name, sizeof name)};
}

void be_member(const Setup& setup, Channel& channel, size_t endpoints) {
  std::vector<std::unique_ptr<Meeter>> meeters;
  for (size_t i = 0; i < endpoints; i++) {
    meeters.push_back(std::make_unique<Meeter>(setup, channel));
  }
  for (Order order; (order = next_order(channel)) != Order::end;) {
    uint64_t answer = 0;
    switch (order) {
      case Order::warm_up: {
        const std::string other = receive_name(channel);
        for (auto& m : meeters) m->send_to(m->session().insert(other));
        break;
      }
      case Order::connect:
        for (auto& m : meeters) {
          m->send_to(m->session().peer());
          m->receive();
        }
        break;
      case Order::resident: answer = resident_share_bytes(); break;
      case Order::end: break;
    }
    channel.send_word(answer);
  }
}

// Rank 0 is pinned; its idle peers may wait anywhere.
void leave_the_pinned_cpu() {
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  ::sched_setaffinity(0, sizeof all, &all);  // where it may not, it stays
}

[[noreturn]] void be_process(const Setup& setup, UniqueFd socket, size_t endpoints, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  leave_the_pinned_cpu();
  try {
    Channel channel(std::move(socket));
    be_member(setup, channel, endpoints);
    ::_exit(0);
  } catch (const std::exception&) {
    ::_exit(1);  // rank 0 notices, or has gone itself
  }
}

struct Ends {
  UniqueFd ours, theirs;
};

Ends make_ends() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    throw Failure("no descriptors for idle peers: %s", std::strerror(errno));
  }
  return {UniqueFd(sockets[0]), UniqueFd(sockets[1])};
}

[[noreturn]] void fork_members(const Setup& setup, std::vector<UniqueFd> sockets, size_t endpoints,
                               pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const pid_t self = ::getpid();
  try {
    find_provider(setup);  // and nothing is opened: that would not survive a fork
    for (UniqueFd& socket : sockets) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        UniqueFd own = std::move(socket);
        sockets.clear();
        be_process(setup, std::move(own), endpoints, self);
      }
      if (pid < 0) ::_exit(1);
      socket.reset();
    }
  } catch (const std::exception&) {
    ::_exit(1);  // rank 0 notices
  }
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  ::_exit(0);
}

// Each idle peer is several descriptors, and programs start with few.
void allow_more_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Crowd::Crowd(const Setup& setup, size_t processes, size_t endpoints_each)
    : endpoints_each_(endpoints_each) {
  if (processes <= kMostByThemselves) {
    fork_each(setup, processes);
  } else {
    allow_more_descriptors();
    fork_all_at_once(setup, processes);
  }
}

void Crowd::fork_each(const Setup& setup, size_t processes) {
  const pid_t parent = ::getpid();
  for (size_t i = 0; i < processes; i++) {
    Ends ends = make_ends();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ends.ours.reset();
      for (Member& other : members_) other.channel.reset();
      be_process(setup, std::move(ends.theirs), endpoints_each_, parent);
    }
    if (pid < 0) throw Failure("fork: %s", std::strerror(errno));
    members_.push_back({pid, std::make_unique<Channel>(std::move(ends.ours)), {}});
  }
}

void Crowd::fork_all_at_once(const Setup& setup, size_t processes) {
  std::vector<UniqueFd> theirs;
  for (size_t i = 0; i < processes; i++) {
    Ends ends = make_ends();
    theirs.push_back(std::move(ends.theirs));
    members_.push_back({0, std::make_unique<Channel>(std::move(ends.ours)), {}});
  }
  const pid_t parent = ::getpid();
  forker_ = ::fork();
  if (forker_ == 0) {
    for (Member& member : members_) member.channel.reset();
    fork_members(setup, std::move(theirs), endpoints_each_, parent);
  }
  if (forker_ < 0) throw Failure("fork: %s", std::strerror(errno));
}

Crowd::~Crowd() {
  for (Member& member : members_) {
    try {
      member.channel->send_word(static_cast<uint64_t>(Order::end));
    } catch (const Failure&) {  // it has gone already
    }
  }
  for (Member& member : members_) {
    member.channel.reset();
    if (member.pid != 0) ::waitpid(member.pid, nullptr, 0);
  }
  if (forker_ > 0) ::waitpid(forker_, nullptr, 0);
}

void Crowd::introduce(Session& session) {
  const std::string mine = session.name();
  for (Member& member : members_) {
    for (size_t i = 0; i < endpoints_each_; i++) {
      member.peers.push_back(session.insert(receive_name(*member.channel)));
      member.channel->send(mine.data(), mine.size());
    }
  }
}

void Crowd::warm_up(const std::string& other) {
  for (Member& member : members_) {
    member.channel->send_word(static_cast<uint64_t>(Order::warm_up));
    member.channel->send(other.data(), other.size());
    member.channel->receive_word();
  }
}

void Crowd::connect(Session& session) {
  Slot slots[2]{};
  std::byte words[2 * kWord]{};
  const Region local = session.register_local(words, sizeof words);
  for (Member& member : members_) {
    member.channel->send_word(static_cast<uint64_t>(Order::connect));
    for (const fi_addr_t peer : member.peers) {
      session.post("room to post a receive", [&] {
        return fi_recv(session.ep(), words, kWord, local.desc, FI_ADDR_UNSPEC, &slots[0].context);
      });
      session.await_rx("a message of an idle peer");
      session.post("room to send", [&] {
        return fi_send(session.ep(), words + kWord, kWord, local.desc, peer, &slots[1].context);
      });
      session.await_tx("the completion of a send to an idle peer");
    }
    member.channel->receive_word();
  }
}

uint64_t Crowd::resident_bytes() {
  uint64_t sum = 0;
  for (Member& member : members_) {
    member.channel->send_word(static_cast<uint64_t>(Order::resident));
    sum += member.channel->receive_word();
  }
  return sum;
}

uint64_t resident_share_bytes() {
  std::FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  if (file == nullptr) throw Failure("smaps_rollup: %s", std::strerror(errno));
  char line[256];
  unsigned long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "Pss: %lu kB", &kib) == 1) break;
  }
  std::fclose(file);
  return uint64_t{kib} * 1024;
}

Row measure_peer_memory(const Setup& setup, Side& side, size_t peers) {
  std::unique_ptr<Crowd> crowd;
  if (side.rank == 0) crowd = std::make_unique<Crowd>(setup, peers, 1);
  Meeter mine(setup, side.channel);
  Session& session = mine.session();
  if (side.rank == 1) {
    const std::string name = session.name();
    side.channel.send(name.data(), name.size());
    uint64_t word;
    await_datagram(side.channel, Target::polling, &word, sizeof word,
                   [&session](int calls) { session.progress(calls); });
    return Row{};
  }
  const std::string other = receive_name(side.channel);
  crowd->introduce(session);
  crowd->warm_up(other);
  mine.send_to(session.peer());
  const uint64_t before = resident_share_bytes() + crowd->resident_bytes();
  crowd->connect(session);
  const uint64_t after = resident_share_bytes() + crowd->resident_bytes();
  side.channel.send_word(0);

  Row row = single_row(Unit::kibibytes,
                       (static_cast<double>(after) - static_cast<double>(before)) / 1024 /
                           static_cast<double>(peers),
                       peers);
  row.note = "memory of both sides for each of " + std::to_string(peers) +
             " processes that connect, after one message each way";
  return row;
}

}  // namespace aperture::bench
