// Service id resolution: see sidr.hpp.
#include "cm/sidr.hpp"

#include <sys/epoll.h>

#include <cassert>
#include <cerrno>

#include "base/clock.hpp"
#include "base/no_throw.hpp"
#include "base/random.hpp"
#include "cm/params_on_wire.hpp"

namespace aperture::cm {

namespace {
constexpr int kDatagramsAtOnce = 64;
}

Status UdpPort::start() noexcept {
  if (watch_ != 0) return {};
  auto watch = control_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { on_readable(); });
  if (!watch) return watch.error();
  watch_ = *watch;
  return {};
}

void UdpPort::stop() noexcept {
  control_.unwatch(watch_);
  watch_ = 0;
}

void UdpPort::on_readable() noexcept {
  for (int i = 0; i < kDatagramsAtOnce && watch_ != 0; ++i) {
    Datagram datagram;
    const Status s = receive_datagram(socket_.get(), bound_, datagram);
    if (s.error() == Errc::again) return;
    if (s.error() == Errc::refused) {
      const auto tell = on_refused;
      if (tell) tell();
    } else if (s.ok()) {
      const auto tell = on_datagram;
      if (tell) tell(datagram);
    }
  }
}

UdpPort::Asked* UdpPort::find(const Address& from, uint64_t request_id) noexcept {
  const auto at = std::find_if(asked_.begin(), asked_.end(), [&](const Asked& a) {
    return a.request_id == request_id && a.from == from;
  });
  return at == asked_.end() ? nullptr : &*at;
}

UdpPort::Asked* UdpPort::remember(const Address& from, uint64_t request_id) noexcept {
  if (asked_.size() >= kMaxRemembered) {
    const auto old =
        std::find_if(asked_.begin(), asked_.end(), [](const Asked& a) { return a.answered; });
    if (old == asked_.end()) return nullptr;
    asked_.erase(old);
  }
  assert(asked_.size() < kMaxRemembered && find(from, request_id) == nullptr);
  const Status kept = no_throw([&] { asked_.push_back({from, request_id, false, {}}); });
  return kept ? &asked_.back() : nullptr;
}

Sidr::~Sidr() {
  control_.cancel_timer(timer_);
  if (!done_) return;
  port_->stop();
  port_->on_datagram = nullptr;
  port_->on_refused = nullptr;
}

Status Sidr::ask(std::span<const uint8_t> data, const Pace& pace, Done done) noexcept {
  wire::SidrReq req;
  request_id_ = random_u64();
  req.request_id = Wild(request_id_);
  std::copy(data.begin(), data.end(), req.data.begin());
  request_ = wire::encode(req);
  pace_ = pace;
  refused_until_ns_ = now_ns() + pace.refused_ns;
  // from now on the port hears its peer only, and learns if nobody is there
  if (const Status s = connect_from(port_->fd(), to_); !s) return s;
  port_->on_datagram = [this](const Datagram& datagram) { on_datagram(datagram); };
  port_->on_refused = [this] { on_refused(); };
  done_ = std::move(done);
  if (const Status s = port_->start(); !s) return s;
  send_again();
  return {};
}

void Sidr::send_again() noexcept {
  timer_ = 0;
  assert(pace_.tries >= 0);
  if (pace_.tries-- == 0) return finish(nullptr, -ETIMEDOUT);
  // whatever becomes of it, the timer or the answer tells
  [[maybe_unused]] const Status s = send_datagram(port_->fd(), request_.view(), from_, to_);
  timer_ = control_.add_timer(now_ns() + pace_.every_ns, [this] { send_again(); });
}

void Sidr::on_refused() noexcept {
  constexpr uint64_t kPauseNs = 10'000'000;
  const uint64_t at = now_ns() + kPauseNs;
  if (at > refused_until_ns_) return finish(nullptr, static_cast<int>(kSidrUnsupported));
  control_.cancel_timer(timer_);
  ++pace_.tries;  // it did not count
  timer_ = control_.add_timer(at, [this] { send_again(); });
}

void Sidr::on_datagram(const Datagram& datagram) noexcept {
  auto rep = wire::decode_sidr_rep(datagram.view());
  if (!rep || rep->request_id.unchecked() != request_id_ || datagram.from != to_) return;
  const uint32_t status = rep->status.unchecked();
  if (status != kSidrOk) return finish(nullptr, static_cast<int>(status));
  const Params params = params_of(*rep);
  finish(&params, 0);
}

void Sidr::finish(const Params* reply, int status) noexcept {
  control_.cancel_timer(timer_);
  timer_ = 0;
  port_->stop();
  const auto tell = done_;
  if (tell) tell(reply, status);
}

void Sidr::answer(uint32_t status, const Params& params) noexcept {
  if (!owes_) return;
  owes_ = false;
  wire::SidrRep rep;
  rep.request_id = Wild(request_id_);
  rep.status = Wild(status);
  if (status == kSidrOk) {
    rep.qpn = Wild(params.qpn);
    rep.qkey = Wild(params.qkey);
    rep.ece = on_wire(params.ece);
  }
  const size_t n = std::min<size_t>(params.data_bytes, rep.data.size());
  std::copy_n(params.data.begin(), n, rep.data.begin());
  const wire::CmPacket packet = wire::encode(rep);
  if (UdpPort::Asked* asked = port_->find(to_, request_id_)) {
    asked->answered = true;
    asked->answer = packet;
  }
  [[maybe_unused]] const Status s = send_datagram(port_->fd(), packet.view(), from_, to_);
}

}  // namespace aperture::cm
