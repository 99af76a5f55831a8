// Other processes that connect to rank 0 and then keep quiet: idle peers beside the active one.
//
// Owned by rank 0. Forked before its first call into libfabric; each member opens endpoints of its
// own, exchanges one message with rank 0 on each, and sleeps in a read of its channel from then on.
// More than kMostByThemselves are forked by a process in between, which has loaded libfabric's
// providers for all of them: by itself each takes a third of a second for that.
// Members end with the crowd, and die with rank 0 whatever happens to it (PR_SET_PDEATHSIG).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabbench/session.hpp"
#include "stopwatch/pair.hpp"
#include "stopwatch/row.hpp"

namespace aperture::bench {

class Crowd {
 public:
  static constexpr size_t kMostByThemselves = 64;

  Crowd(const Setup& setup, size_t processes, size_t endpoints_each);
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  size_t size() const noexcept { return members_.size() * endpoints_each_; }

  // Each endpoint and the session learn each other's names. First of all.
  void introduce(Session& session);
  // Each endpoint sends one message to `other`, so that what is spent once per process is spent.
  void warm_up(const std::string& other);
  // Each endpoint sends one message to rank 0's session and gets one back.
  void connect(Session& session);
  // Bytes that the members hold by themselves and their share of what they share, in all.
  uint64_t resident_bytes();

 private:
  struct Member {
    pid_t pid;  // 0: another process's child
    std::unique_ptr<Channel> channel;
    std::vector<fi_addr_t> peers;  // rank 0's addresses of its endpoints
  };

  void fork_each(const Setup& setup, size_t processes);
  void fork_all_at_once(const Setup& setup, size_t processes);

  const size_t endpoints_each_;
  pid_t forker_ = 0;  // of all members, where it is not this process
  std::vector<Member> members_;
};

// Bytes that this process holds by itself, and its share of what it shares with others.
uint64_t resident_share_bytes();

// What one more peer costs on this host, in the memory of both sides.
Row measure_peer_memory(const Setup& setup, Side& side, size_t peers);

}  // namespace aperture::bench
