// Connecting, speaking and letting go: see conversation.hpp.
#include "cm/conversation.hpp"

#include <cassert>

#include "base/clock.hpp"
#include "base/no_throw.hpp"
#include "cm/farewell.hpp"

namespace aperture::cm {

namespace {
// Before a port that did not take us is tried again, on this host and on another.
constexpr uint64_t kPauseHereNs = 10'000'000;
constexpr uint64_t kPauseElsewhereNs = 50'000'000;
}  // namespace

Conversation::Conversation(nic::ControlThread& control, const Life& life, Binding& binding) noexcept
    : control_(control), farewell_(Farewell::instance(control)), life_(life), binding_(binding) {}

// ---- connecting ---------------------------------------------------------------------------------

void Conversation::ask(const wire::CmPacket& question, uint64_t refused_ns) noexcept {
  assert(on_message && on_lost && on_no_peer);
  assert(retry_timer_ == 0 && connection_ == nullptr && dial_ == nullptr);
  question_ = question;
  refused_until_ns_ = now_ns() + refused_ns;
  try_to_ask();
}

void Conversation::ask_again_in(uint64_t ns) noexcept {
  assert(connection_ == nullptr);
  control_.cancel_timer(retry_timer_);
  retry_timer_ = control_.add_timer(now_ns() + ns, [this] { try_to_ask(); });
  assert(retry_timer_ != 0);
}

void Conversation::try_to_ask() noexcept {
  retry_timer_ = 0;
  if (!is_asking()) return;
  const Status s = binding_.leads_elsewhere() ? dial() : connect();
  if (!s) return on_not_connected(s.error());
  assert((connection_ != nullptr) != (dial_ != nullptr));
  if (connection_ != nullptr) say(question_);
}

bool Conversation::is_asking() const noexcept {
  return life_.state() == State::req_sent || life_.state() == State::sidr_sent;
}

Status Conversation::connect() noexcept {
  auto socket = binding_.connect();
  if (!socket) return socket.error();
  return begin_with(*std::move(socket));
}

Status Conversation::dial() noexcept {
  assert(dial_ == nullptr && connection_ == nullptr);
  auto dial = Dial::begin(control_, binding_.space(), *binding_.local(), *binding_.remote(),
                          [this](Result<ParentOnlyFd> socket) { on_dialled(std::move(socket)); });
  if (!dial) return dial.error();
  dial_ = *std::move(dial);
  return {};
}

void Conversation::on_dialled(Result<ParentOnlyFd> socket) noexcept {
  assert(dial_ != nullptr && connection_ == nullptr);
  dial_.reset();
  if (!is_asking()) return;
  const Status s = socket ? begin_with(*std::move(socket)) : Status(socket.error());
  if (!s) return on_not_connected(s.error());
  say(question_);
}

Status Conversation::begin_with(ParentOnlyFd socket) noexcept {
  assert(connection_ == nullptr);
  std::shared_ptr<Connection> connection;
  const Status made =
      no_throw([&] { connection = std::make_shared<Connection>(control_, std::move(socket)); });
  if (!made) return made;
  if (const Status s = connection->start(); !s) return s;
  adopt(std::move(connection));
  return {};
}

void Conversation::on_not_connected(Errc why) noexcept {
  assert(connection_ == nullptr && retry_timer_ == 0);
  const uint64_t pause_ns = binding_.leads_elsewhere() ? kPauseElsewhereNs : kPauseHereNs;
  const bool in_time = now_ns() + pause_ns <= refused_until_ns_;
  // `again`: it is there, and busy; the time that this state may last ends it
  if (why == Errc::again || (why == Errc::refused && in_time)) return ask_again_in(pause_ns);
  on_no_peer(why);
}

void Conversation::adopt(std::shared_ptr<Connection> connection) noexcept {
  assert(connection_ == nullptr && connection != nullptr);
  connection_ = std::move(connection);
  connection_->on_message = [this](wire::CmKind kind, Connection::Bytes bytes) {
    on_message(kind, bytes);
  };
  connection_->on_lost = [this](Errc) { lose(); };
  assert(retry_timer_ == 0);
}

// ---- speaking and letting go --------------------------------------------------------------------

void Conversation::say(const wire::CmPacket& packet) noexcept {
  assert(connection_ != nullptr);
  if (!connection_->send(packet)) lose();
}

void Conversation::say_last(const wire::CmPacket& packet) noexcept {
  dial_.reset();
  if (connection_ == nullptr) return;
  if (connection_->send(packet).ok()) return part();
  close();
}

void Conversation::part() noexcept {
  dial_.reset();
  if (connection_ == nullptr) return;
  farewell_.keep(std::move(connection_));
  assert(connection_ == nullptr);
}

void Conversation::close() noexcept {
  dial_.reset();
  if (connection_ != nullptr) connection_->close();
  connection_.reset();
}

void Conversation::lose() noexcept {
  close();
  assert(connection_ == nullptr);
  on_lost();
}

}  // namespace aperture::cm
