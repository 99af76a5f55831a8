// Letting last words arrive: see farewell.hpp.
#include "cm/farewell.hpp"

#include <cassert>
#include <new>

#include "base/clock.hpp"
#include "base/no_throw.hpp"

namespace aperture::cm {

namespace {
constexpr size_t kMax = 1024;
constexpr uint64_t kHoldNs = 2'000'000'000;
}  // namespace

Farewell& Farewell::instance(nic::ControlThread& control) noexcept {
  // lives until the process ends, in a place that nobody has to allocate
  alignas(Farewell) static std::byte place[sizeof(Farewell)];
  static Farewell* the_one = nullptr;
  if (the_one == nullptr || &the_one->control_ != &control) {  // not there, or a parent's
    the_one = new (place) Farewell(control);
  }
  return *the_one;
}

void Farewell::keep(std::shared_ptr<Connection> connection) noexcept {
  assert(connection != nullptr);
  if (kept_.size() >= kMax) drop(kept_.begin());
  if (!no_throw([&] { kept_.push_back({std::move(connection), 0}); })) return;
  const auto at = std::prev(kept_.end());
  at->timer = control_.add_timer(now_ns() + kHoldNs, [this, at] {
    at->timer = 0;
    drop(at);
  });
  at->connection->on_message = [this, at](wire::CmKind kind, Connection::Bytes) {
    if (kind == wire::CmKind::drep) return drop(at);
    if (kind != wire::CmKind::dreq) return;
    // both sides end it at once: the other one waits for its answer, then closes
    [[maybe_unused]] const Status s = at->connection->send(wire::encode_bare(wire::CmKind::drep));
  };
  at->connection->on_lost = [this, at](Errc) { drop(at); };
}

void Farewell::drop(std::list<Kept>::iterator at) noexcept {
  assert(!kept_.empty() && at->connection != nullptr);
  control_.cancel_timer(at->timer);
  // it may be reading right now, and what comes next is for nobody
  at->connection->close();
  at->connection->on_message = nullptr;
  at->connection->on_lost = nullptr;
  kept_.erase(at);
}

}  // namespace aperture::cm
