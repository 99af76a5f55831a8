// Where the messages of an endpoint go: see matched_port.hpp.
#include "nic/matched_port.hpp"

#include <cassert>
#include <new>

namespace aperture::nic {

MatchedPort::MatchedPort(const EndpointOptions& options, msg::Matcher::Host& host, Sources sources)
    : port_(options.engine->keys(), options.tx_size, options.atomics_waiting,
            options.shared_transmit) {
  const bool named = sources == Sources::as_options;
  if (options.shared_receive == nullptr) {
    own_.emplace(port_, host, options.rx_size, named && options.directed_recv,
                 named && options.report_source);
    if (options.buffered != nullptr && !own_->show_messages(*options.buffered))
      throw std::bad_alloc();
    matcher_ = &*own_;
    port_.sink = matcher_;
  } else {
    member_.emplace(*options.shared_receive, port_, host);
    matcher_ = &options.shared_receive->receives();
    port_.sink = &*member_;
  }
  assert(own_.has_value() != member_.has_value() && port_.sink != nullptr);
  set_up(port_, options);
  if (!named || !options.groups) return;
  groups_ = std::make_unique<msg::GroupMatching>(*port_.sink, port_, host);
  port_.sink = groups_.get();
  port_.takes_groups = true;
}

Status MatchedPort::join() noexcept {
  return member_ ? member_->join() : Status();
}

void MatchedPort::end() noexcept {
  assert(port_.discards);
  cancel_all(Errc::canceled);
  member_.reset();
}

void MatchedPort::lost(qp::Qp& qp, Errc why) noexcept {
  assert(own_.has_value() != member_.has_value());
  if (member_) {
    member_->on_lost(qp, why);
  } else {
    own_->on_lost(qp, why);
  }
  if (groups_ != nullptr) groups_->groups().on_lost(qp, why);
}

void MatchedPort::cancel_all(Errc why) noexcept {
  if (own_) own_->cancel_all(why);
  if (groups_ != nullptr) groups_->groups().cancel_all(why);
}

void MatchedPort::name_source(const Address& remote, uint64_t before, uint64_t source) noexcept {
  matcher_->name_source(remote, before, source);
  if (groups_ != nullptr) groups_->groups().name_source(remote, before, source);
}

void MatchedPort::forget_source(uint64_t source, uint64_t now) noexcept {
  matcher_->forget_source(source, now);
  if (groups_ != nullptr) groups_->groups().forget_source(source, now);
}

}  // namespace aperture::nic
