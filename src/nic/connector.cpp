// Dialing, greeting, waiting and trying again: see connector.hpp.
#include "nic/connector.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cassert>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "link/udp/udp.hpp"
#include "nic/meeting_directory.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

Connector::Connector(ControlThread& control, ConnectorHost& host, const Identity& self,
                     const LocalEnd& end, const Address& remote, uint32_t attempt,
                     const Limits& limits, const wire::PrivateData* request) noexcept
    : control_(control),
      host_(host),
      self_(self),
      end_(end),
      any_ip_(end.address.is_any_ip()),
      remote_(remote),
      attempt_(attempt),
      limits_(limits),
      request_(request != nullptr ? std::optional(*request) : std::nullopt) {}

Connector::~Connector() {
  hang_up();
  control_.cancel_timer(deadline_timer_);
  control_.cancel_timer(pause_timer_);
}

void Connector::begin() noexcept {
  assert(tries_ == 0 && deadline_timer_ == 0);
  deadline_ns_ = now_ns() + limits_.timeout_ns;
  set_deadline();
}

void Connector::start(bool wait_first) noexcept {
  begin();
  if (wait_first) return wait();
  dial();
}

void Connector::start_at(const wire::Id128& incarnation) noexcept {
  begin();
  offer_.verdict = wire::Verdict::offered;
  offer_.incarnation = incarnation;
  offer_.ticket = wire::kNoTicket;
  host_.on_offer(*this, offer_);
}

void Connector::set_deadline() noexcept {
  if (deadline_timer_ != 0) return;
  deadline_timer_ = control_.add_timer(deadline_ns_, [this] { on_deadline(); });
}

void Connector::dial() noexcept {
  assert(!tcp_ && watch_ == 0 && peer_ == nullptr);  // the last try has hung up
  stage_ = Stage::dialing;
  if (tries_++ == 0) elsewhere_ = !link::udp::is_of_this_host(remote_);
  // another host believes who comes from the address that he says is his
  auto tcp = connect_tcp(remote_, elsewhere_ ? end_.address : Address{});
  if (!tcp) return fail(tcp.error());
  tcp_ = *std::move(tcp);
  auto watch = control_.watch(tcp_.get(), EPOLLOUT | EPOLLIN, [this](uint32_t) { on_tcp(); });
  if (!watch) return fail(watch.error());
  watch_ = watch.value();
  assert(pause_timer_ == 0);
  const Dials& dials = elsewhere_ ? kDialsElsewhere : kDialsHere;
  const uint32_t doublings = std::clamp(tries_, dials.soon, dials.soon + 10) - dials.soon;
  pause_timer_ = control_.add_timer(now_ns() + (dials.again_ns << doublings), [this] {
    pause_timer_ = 0;
    if (stage_ == Stage::dialing) on_not_answered();
  });
}

void Connector::on_not_answered() noexcept {
  hang_up();
  dial();
}

void Connector::on_tcp() noexcept {
  if (stage_ == Stage::dialing) {
    const Status connected = connect_outcome(tcp_.get());
    if (connected.ok()) return greet();
    if (connected.error() == Errc::peer_lost) return try_again();
    return fail(connected.error());
  }
  if (stage_ != Stage::greeting) {
    // joining, opening: the unix socket tells what becomes of it
    control_.rewatch(watch_, 0);
    control_.unwatch(watch_);
    watch_ = 0;
    return;
  }
  assert(got_ < bytes_.size());
  const Status s = receive_bytes(tcp_.get(), bytes_, got_);
  if (s.error() == Errc::again) return;
  if (!s) return try_again();  // closed without an answer: it had no room, or it ended
  on_answer();
}

void Connector::greet() noexcept {
  stage_ = Stage::greeting;
  if (any_ip_) end_.address.ip = local_address(tcp_.get()).ip;
  random_bytes(nonce_.data(), nonce_.size());
  wire::Hello hello;
  if (!self_.streams_only) hello.boot_id = self_.boot_id;
  hello.net_ns = self_.net_ns;
  hello.incarnation = self_.incarnation;
  hello.nonce = nonce_;
  hello.source = end_.address;
  hello.destination = remote_;
  hello.key_tag = tag_of(end_.auth_key.get(), nonce_);
  if (self_.meeting != nullptr && may_meet_) hello.meeting_tag = self_.meeting->tag(nonce_);
  got_ = 0;
  control_.rewatch(watch_, EPOLLIN);
  if (!send_bytes(tcp_.get(), wire::encode(hello))) try_again();
}

void Connector::on_answer() noexcept {
  const auto answer = wire::decode_answer(bytes_);
  if (!answer) {
    if (answer.error() == Errc::not_supported) {
      APERTURE_WARN(
          "%s speaks another version of Aperture's wire protocol: run the same release "
          "on both sides",
          remote_.print().c_str());
    } else {
      APERTURE_WARN("who listens at %s is not an Aperture endpoint: check the address",
                    remote_.print().c_str());
    }
    return fail(Errc::protocol);
  }
  switch (answer.value().verdict) {
    case wire::Verdict::crossing: return yield();
    case wire::Verdict::busy: return try_again();
    case wire::Verdict::not_yet: return try_again_within(kLongestNotYetNs);
    case wire::Verdict::wrong_version: return fail(Errc::protocol);
    case wire::Verdict::wrong_destination: return fail(Errc::refused);
    case wire::Verdict::offered:
      if (self_.same_host(answer.value().boot_id, answer.value().net_ns)) break;
      return fail(Errc::protocol);  // that name means nothing here
    case wire::Verdict::meets:
      if (self_.meeting != nullptr && may_meet_ &&
          self_.same_kernel(answer.value().boot_id, answer.value().net_ns)) {
        break;
      }
      return fail(Errc::protocol);  // likewise
    case wire::Verdict::stays: explain_stay(answer.value()); break;
  }
  offer_ = answer.value();
  host_.on_offer(*this, offer_);
}

void Connector::explain_stay(const wire::Answer& answer) const noexcept {
  if (!self_.same_kernel(answer.boot_id, answer.net_ns)) return;
  explain_not_met(remote_, self_.meeting == nullptr ? nullptr
                           : may_meet_ ? "it has no such directory, or another than ours"
                                       : "nobody was met in the directory");
}

void Connector::enter(Stage joining_or_opening, Peer* peer) noexcept {
  assert(joining_or_opening >= Stage::joining && peer != nullptr);
  stage_ = joining_or_opening;
  peer_ = peer;
  if (stage_ == Stage::joining && offer_.verdict == wire::Verdict::meets) {
    control_.cancel_timer(pause_timer_);
    pause_timer_ = control_.add_timer(now_ns() + kLongestMeetingNs, [this] {
      pause_timer_ = 0;
      if (stage_ == Stage::joining) try_again();
    });
  }
  if (stage_ != Stage::opening || !request_) return;
  control_.cancel_timer(deadline_timer_);
  deadline_timer_ = 0;
}

ParentOnlyFd Connector::take_connection() noexcept {
  assert(stage_ == Stage::greeting && tcp_);
  control_.unwatch(watch_);
  watch_ = 0;
  return std::move(tcp_);
}

void Connector::yield() noexcept {
  ++yields_;
  hang_up();
  wait();
}

void Connector::wait() noexcept {
  stage_ = Stage::waiting;
  set_pause(limits_.waiting_ns);
  host_.on_connector_waits(*this);
}

// Who was to be met and was not is reached over TCP, and so is who was asked without a ticket and
// has the port no longer: at once, since nothing was wrong with that.
void Connector::try_again() noexcept {
  const bool was_to_meet = offer_.verdict == wire::Verdict::meets && stage_ != Stage::opening;
  if (was_to_meet) may_meet_ = false;
  try_again_within(was_to_meet || tries_ == 0 ? 0 : kLongestPauseNs);
}

void Connector::try_again_within(uint64_t longest_pause_ns) noexcept {
  hang_up();
  set_deadline();
  stage_ = Stage::waiting;
  const uint64_t doublings = std::min<uint64_t>(tries_ == 0 ? 0 : tries_ - 1, 10);
  set_pause(std::min(kFirstPauseNs << doublings, longest_pause_ns));
  host_.on_connector_waits(*this);
}

void Connector::stop_waiting() noexcept {
  if (stage_ == Stage::waiting) set_pause(0);
}

void Connector::set_pause(uint64_t pause_ns) noexcept {
  control_.cancel_timer(pause_timer_);
  pause_timer_ = control_.add_timer(now_ns() + pause_ns, [this] {
    pause_timer_ = 0;
    dial();
  });
}

void Connector::hang_up() noexcept {
  control_.unwatch(watch_);
  watch_ = 0;
  peer_ = nullptr;
  offer_ = {};
  if (!tcp_) return;
  close_without_waiting(tcp_.get());
  tcp_.reset();
  assert(!tcp_);
}

// A process that was asked and is there answers: that its turn comes late, as where it is asked
// for thousands of lanes at once, is no sign that the endpoint is not there.
void Connector::on_deadline() noexcept {
  deadline_timer_ = 0;
  if (stage_ != Stage::opening || is_overdue_) return fail(Errc::timed_out);
  is_overdue_ = true;
  deadline_ns_ = now_ns() + kLongestAnswerNs;
  set_deadline();
}

void Connector::fail(Errc why) noexcept {
  hang_up();
  host_.on_connector_failed(*this, why);
}

}  // namespace aperture::nic
