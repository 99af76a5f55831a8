// The port of an endpoint whose messages are matched: what its queue pairs share (qp/port.hpp), and
// where their messages go.
//
//   queue pairs --> [matching of groups] --> a matching of its own
//                                       or   a membership --> the matching of a shared context
//
// Guarded by the engine's lock, but for its making. join() comes before the first queue pair, and
// every queue pair that goes is told to lost() before it is finished. end() is the last call, after
// all of them: nothing that was posted to the port is left unanswered then, and what came to it and
// was not received is gone. What is posted to a shared context stays there, for its other members.
#pragma once

#include <memory>
#include <optional>

#include "msg/group_matching.hpp"
#include "msg/matcher.hpp"
#include "nic/endpoint.hpp"
#include "nic/shared_receive.hpp"

namespace aperture::nic {

class MatchedPort {
 public:
  // none: there is one peer, so receives name nobody, completions tell of nobody, and no group has
  // it for a member, whatever the options say.
  enum class Sources : bool { none, as_options };

  // The host outlives it, and so do the shared context and queue that the options name. By
  // exception std::bad_alloc.
  MatchedPort(const EndpointOptions& options, msg::Matcher::Host& host, Sources sources);
  MatchedPort(const MatchedPort&) = delete;
  MatchedPort& operator=(const MatchedPort&) = delete;

  // Errors: no_memory, and messages may not come then.
  Status join() noexcept;
  // The endpoint is being closed: what ends from here on is told to nobody.
  void discard() noexcept { port_.discards = true; }
  // After discard().
  void end() noexcept;

  qp::Port& port() noexcept { return port_; }
  // Where this endpoint's receives are posted; nullptr: to a shared context, and not here.
  msg::Matcher* own() noexcept { return own_ ? &*own_ : nullptr; }
  // Those of groups; nullptr: it is in none.
  msg::Matcher* groups() noexcept { return groups_ != nullptr ? &groups_->groups() : nullptr; }

  // The queue pair goes: what its peer has offered cannot be had any more.
  void lost(qp::Qp& qp, Errc why) noexcept;
  // Receives that were posted here end.
  void cancel_all(Errc why) noexcept;
  // Peers are to offer messages only: some matching has too much that nobody has asked for.
  bool under_pressure() const noexcept {
    return matcher_->under_pressure() || (groups_ != nullptr && groups_->groups().under_pressure());
  }
  // Those of msg::Matcher, in whatever matching the names are.
  void name_source(const Address& remote, uint64_t before, uint64_t source) noexcept;
  void forget_source(uint64_t source, uint64_t now) noexcept;

 private:
  qp::Port port_;
  std::optional<msg::Matcher> own_;              // without a shared receive context
  std::optional<SharedReceive::Member> member_;  // with one
  msg::Matcher* matcher_ = nullptr;              // of either
  std::unique_ptr<msg::GroupMatching> groups_;
};

}  // namespace aperture::nic
