// Completion counters: see cntr.hpp.
#include "provider/cntr.hpp"

#include <sched.h>

#include <memory>

#include "base/clock.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

constexpr uint64_t kSpinNs = 20'000;

bool has_changed(const void* cntr) {
  const auto* c = static_cast<const Cntr*>(cntr);
  return c->core.value() != c->seen_value || c->core.errors() != c->seen_errors;
}

void drive(Cntr& cntr) noexcept {
  cntr.sleeper.wake_up();
  cntr.engine->poll();
  Sleeper::keep_asleep(*cntr.domain);
  cntr.note_seen();
}

uint64_t read(fid_cntr* fid) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  nic::EngineGuard guard(*cntr.engine);
  drive(cntr);
  return cntr.core.value();
}

uint64_t readerr(fid_cntr* fid) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  nic::EngineGuard guard(*cntr.engine);
  drive(cntr);
  return cntr.core.errors();
}

template <void (qp::Counter::*Change)(uint64_t)>
int change(fid_cntr* fid, uint64_t value) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  nic::EngineGuard guard(*cntr.engine);
  (cntr.core.*Change)(value);
  return 0;
}

// Spins for about the price of a sleep, then sleeps until something moves. False: interrupted.
bool wait_a_while(Cntr& cntr, uint64_t threshold, const Deadline& deadline) noexcept {
  if (cntr.wait_obj == FI_WAIT_YIELD) {
    ::sched_yield();
    return true;
  }
  const uint64_t spin_until = now_ns() + kSpinNs;
  while (now_ns() < spin_until) {
    if (read(&cntr.fid) >= threshold) return true;
  }
  if (cntr.try_sleep() != 0) return true;
  return sleep_on(cntr.sleeper.fd(), deadline) != Slept::interrupted;
}

int wait(fid_cntr* fid, uint64_t threshold, int timeout) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  if (cntr.wait_obj == FI_WAIT_NONE || cntr.wait_obj == FI_WAIT_SET) {
    APERTURE_WARN(
        "fi_cntr_wait: the counter was opened with %s; open it with FI_WAIT_UNSPEC to block",
        wait_name(cntr.wait_obj));
    return -FI_EINVAL;
  }
  const Deadline deadline(timeout);
  const uint64_t errors_before = cntr.core.errors();
  for (bool interrupted = false;;) {
    if (read(fid) >= threshold) return 0;
    if (cntr.core.errors() != errors_before) return -FI_EAVAIL;
    if (interrupted) return -FI_EINTR;
    if (deadline.passed()) return -FI_ETIMEDOUT;
    interrupted = !wait_a_while(cntr, threshold, deadline);
  }
}

int close_cntr(fid* fid) noexcept {
  return guarded("fi_close(cntr)", [&]() -> int {
    auto& cntr = object_of<Cntr>(fid);
    if (const uint32_t n = cntr.uses.count(); n != 0) {
      APERTURE_WARN("fi_close(cntr): %u endpoint(s) or poll set(s) use it; close them first", n);
      return -FI_EBUSY;
    }
    cntr.leave_regions();
    if (cntr.wait_set != nullptr) leave_set(*cntr.wait_set, fid, cntr.sleeper.fd());
    Uses& domain_uses = cntr.domain->uses;
    delete &cntr;
    domain_uses.drop();
    return 0;
  });
}

int control_cntr(fid* fid, int command, void* arg) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  if (command == FI_GETOPSFLAG && arg != nullptr) {
    *static_cast<uint64_t*>(arg) = 0;
    return 0;
  }
  if (command == FI_SETOPSFLAG && arg != nullptr) {
    return *static_cast<uint64_t*>(arg) == 0 ? 0 : -FI_EBADFLAGS;
  }
  return control_wait("fi_control(cntr)", cntr.wait_obj, cntr.sleeper.fd(), command, arg);
}

fi_ops g_fid_ops = {
    .size = sizeof(fi_ops),
    .close = close_cntr,
    .bind = NotOffered<"fi_bind(cntr): bind the counter to an endpoint with fi_ep_bind">{},
    .control = control_cntr,
    .ops_open = NotOffered<"fi_open_ops(cntr): Aperture has no extension of that name">{},
    .tostr = NotOffered<"fi_tostr is libfabric's own">{},
    .ops_set = NotOffered<"fi_set_ops(cntr): nothing can be overridden here">{},
};

fi_ops_cntr g_cntr_ops = {
    .size = sizeof(fi_ops_cntr),
    .read = read,
    .readerr = readerr,
    .add = change<&qp::Counter::add>,
    .set = change<&qp::Counter::set>,
    .wait = wait,
    .adderr = change<&qp::Counter::add_error>,
    .seterr = change<&qp::Counter::set_error>,
};

int check_attr(const fi_cntr_attr& attr) {
  if (attr.events != FI_CNTR_EVENTS_COMP) {
    APERTURE_WARN("fi_cntr_open: events %d; only FI_CNTR_EVENTS_COMP is offered",
                  static_cast<int>(attr.events));
    // 1: FI_CNTR_EVENTS_BYTES of libfabric 2.x, which these headers need not know
    return static_cast<unsigned>(attr.events) == 1 ? -FI_ENOSYS : -FI_EINVAL;
  }
  if (attr.flags != 0) {
    APERTURE_WARN("fi_cntr_open: flags must be 0");
    return -FI_EBADFLAGS;
  }
  return check_wait_obj("fi_cntr_open", attr.wait_obj, attr.wait_set);
}

}  // namespace

void Cntr::note_seen() noexcept {
  seen_value = core.value();
  seen_errors = core.errors();
}

int Cntr::try_sleep() noexcept {
  if (wait_obj == FI_WAIT_NONE) return -FI_EINVAL;
  nic::EngineGuard guard(*engine);
  if (has_fd(wait_obj)) return sleeper.try_sleep(has_changed, this) ? 0 : -FI_EAGAIN;
  engine->poll();
  Sleeper::keep_asleep(*domain);
  return has_changed(this) ? -FI_EAGAIN : 0;
}

int open_cntr(fid_domain* fid, fi_cntr_attr* attr, fid_cntr** out, void* context) noexcept {
  return guarded("fi_cntr_open", [&]() -> int {
    if (fid == nullptr || out == nullptr) {
      APERTURE_WARN("fi_cntr_open: domain or cntr is NULL");
      return -FI_EINVAL;
    }
    const fi_cntr_attr defaults{};
    const fi_cntr_attr& asked = attr != nullptr ? *attr : defaults;
    if (const int rc = check_attr(asked); rc != 0) return rc;
    auto& domain = object_of<Domain>(fid);
    auto cntr = std::make_unique<Cntr>();
    cntr->domain = &domain;
    cntr->engine = domain.engine.get();
    cntr->wait_obj = settle_wait_obj(asked.wait_obj);
    cntr->fid.fid = {FI_CLASS_CNTR, context, &g_fid_ops};
    cntr->fid.ops = &g_cntr_ops;
    const int opened = cntr->sleeper.open(domain, cntr->wait_obj, nullptr, &cntr->core);
    if (opened != 0) return opened;
    if (cntr->wait_obj == FI_WAIT_SET) {
      const int rc = join_set(asked.wait_set, &cntr->fid.fid, cntr->sleeper.fd(), cntr->wait_set);
      if (rc != 0) return rc;
    }
    domain.uses.add();
    *out = &cntr.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
