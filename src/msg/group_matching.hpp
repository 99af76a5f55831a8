// Matching at an endpoint that may be a member of groups: messages of groups have receives of their
// own, which no message of the application's meets, and the other way round.
//
// Guarded by the engine's lock. An endpoint without groups has its Matcher for its sink, and pays
// nothing for this.
#pragma once

#include "base/invariant.hpp"
#include "msg/matcher.hpp"

namespace aperture::msg {

// RecvWr::flags of the receives of groups; all of these are told of (qp::kTold).
inline constexpr uint64_t kGroupReceive = uint64_t{1} << 62;

class GroupMatching final : public qp::MessageSink {
 public:
  // own: where the application's messages go.
  GroupMatching(qp::MessageSink& own, qp::Port& port, Matcher::Host& host) noexcept
      : own_(own), groups_(port, host, 0, true, false) {}
  Matcher& groups() noexcept { return groups_; }

  bool on_message(qp::Qp& qp, const qp::Arrival& a) noexcept override {
    return a.beside == qp::Beside::group_key ? groups_.on_message(qp, a) : own_.on_message(qp, a);
  }
  bool on_line(qp::Qp& qp, wire::SoundHead head, const std::byte* body) noexcept override {
    APERTURE_DEBUG_ASSERT(!head.has(wire::kGroup));  // read_line() takes none of a group's
    return own_.on_line(qp, head, body);
  }
  void on_received(qp::Qp& qp, void* cookie, Errc err) noexcept override {
    const bool of_group = (static_cast<Receive*>(cookie)->flags & kGroupReceive) != 0;
    if (of_group) {
      groups_.on_received(qp, cookie, err);
    } else {
      own_.on_received(qp, cookie, err);
    }
  }
  uint64_t source_to_report(qp::Qp& qp) noexcept override { return own_.source_to_report(qp); }

 private:
  qp::MessageSink& own_;
  Matcher groups_;
};

}  // namespace aperture::msg
