// Completion counters: see cntr.hpp.
#include "provider/cntr.hpp"

#include <cassert>
#include <memory>

#include "provider/fork.hpp"

namespace aperture::provider {

namespace {

bool has_changed(const void* cntr) {
  const auto* c = static_cast<const Cntr*>(cntr);
  return c->core.value() != c->seen_value || c->core.errors() != c->seen_errors ||
         c->settings != c->seen_settings;
}

void progress(Cntr& cntr, nic::PollGuard& guard) noexcept {
  cntr.sleeper.wake_up();
  cntr.engine->poll();
  Sleeper::keep_asleep(*cntr.domain);
  if (!has_changed(&cntr) && cntr.engine->is_look_due()) {
    guard.look([&cntr] { return has_changed(&cntr); });
  }
  cntr.note_seen();
}

uint64_t read(fid_cntr* fid) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  nic::PollGuard guard(*cntr.engine);
  progress(cntr, guard);
  return cntr.core.value();
}

uint64_t readerr(fid_cntr* fid) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  nic::PollGuard guard(*cntr.engine);
  progress(cntr, guard);
  return cntr.core.errors();
}

// One that is set back and climbs again has changed, though its value has not.
void note_setting(Cntr& cntr, uint64_t value, uint64_t errors) noexcept {
  ++cntr.settings;
  cntr.set_value = value;
  cntr.set_errors = errors;
}

template <bool kAdds>
int change_value(fid_cntr* fid, uint64_t by) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  nic::EngineGuard guard(*cntr.engine);
  const uint64_t value = kAdds ? cntr.core.value() + by : by;
  note_setting(cntr, value, cntr.core.errors());
  cntr.core.set(value, true);
  return 0;
}

template <bool kAdds>
int change_errors(fid_cntr* fid, uint64_t by) noexcept {
  auto& cntr = object_of<Cntr>(fid);
  nic::EngineGuard guard(*cntr.engine);
  const uint64_t errors = kAdds ? cntr.core.errors() + by : by;
  note_setting(cntr, cntr.core.value(), errors);
  cntr.core.set_error(errors, true);
  return 0;
}

// What one thread waits for. Whether the counter has changed would not do: another one may have
// seen that.
struct Wish {
  const qp::Counter* core;
  uint64_t threshold;
  uint64_t errors_before;
};
bool is_fulfilled(const void* what) {
  const auto& wish = *static_cast<const Wish*>(what);
  return wish.core->value() >= wish.threshold || wish.core->errors() != wish.errors_before;
}

[[gnu::noinline]] bool may_sleep(Cntr& cntr, uint64_t threshold, uint64_t errors_before) noexcept {
  const Wish wish{&cntr.core, threshold, errors_before};
  return cntr.may_sleep([&] { return read(&cntr.fid) >= threshold; },
                        [&] { return cntr.try_sleep_unless(Waits::in_call, is_fulfilled, &wish); });
}

// What fi_cntr_wait returns if it returns now; -FI_EAGAIN: it does not.
[[gnu::noinline]] int answer(Cntr& cntr, uint64_t threshold, uint64_t errors_before,
                             const Deadline& deadline) noexcept {
  if (read(&cntr.fid) >= threshold) return 0;
  if (cntr.core.errors() != errors_before) return -FI_EAVAIL;
  return deadline.passed() ? -FI_ETIMEDOUT : -FI_EAGAIN;
}

// A cancellation point while it sleeps. The page has no such call for FI_WAIT_NONE, which is the
// default; there it polls and yields, as other providers do.
int wait(fid_cntr* fid, uint64_t threshold, int timeout) {
  auto& cntr = object_of<Cntr>(fid);
  const bool yields = cntr.wait_obj == FI_WAIT_NONE || cntr.wait_obj == FI_WAIT_YIELD;
  const fi_wait_obj wait_obj = yields ? FI_WAIT_YIELD : cntr.wait_obj;
  if (const int rc = check_blocking("fi_cntr_wait", wait_obj); rc != 0) return rc;
  const Deadline deadline(timeout);
  const uint64_t errors_before = cntr.core.errors();
  for (bool interrupted = false;;) {
    const int rc = answer(cntr, threshold, errors_before, deadline);
    if (rc == 0 || rc == -FI_EAVAIL) return rc;
    if (interrupted) return -FI_EINTR;
    if (rc != -FI_EAGAIN) return rc;
    if (!yields && !may_sleep(cntr, threshold, errors_before)) continue;
    interrupted = cntr.sleeper.sleep(wait_obj, deadline) == Slept::interrupted;
  }
}

int close_cntr(fid* fid) noexcept {
  return guarded_close("fi_close(cntr)", fid, [&]() -> int {
    auto& cntr = object_of<Cntr>(fid);
    if (const int rc = cntr.check_unused("fi_close(cntr)"); rc != 0) return rc;
    cntr.leave_regions();
    assert(cntr.regions.empty() && cntr.work.is_empty());
    Cntr::end(cntr);
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
  return control_wait("fi_control(cntr)", cntr.wait_obj, cntr.sleeper.descriptor(), command, arg);
}

fi_ops g_cntr_fid_ops = fid_ops<"cntr">(
    close_cntr, NotOffered<"fi_bind(cntr): bind the counter to an endpoint with fi_ep_bind">{},
    control_cntr);

const fi_ops_cntr g_cntr_ops = {
    .size = sizeof(fi_ops_cntr),
    .read = read,
    .readerr = readerr,
    .add = change_value<true>,
    .set = change_value<false>,
    .wait = wait,
    .adderr = change_errors<true>,
    .seterr = change_errors<false>,
};

int check_attr(const fi_cntr_attr& attr) {
  if (attr.events != FI_CNTR_EVENTS_COMP) {
    APERTURE_WARN("fi_cntr_open: events %d; only FI_CNTR_EVENTS_COMP is offered",
                  static_cast<int>(attr.events));
    // 1: FI_CNTR_EVENTS_BYTES of libfabric 2.x, which these headers need not know
    return static_cast<unsigned>(attr.events) == 1 ? -FI_ENOSYS : -FI_EINVAL;
  }
  if (attr.flags != 0) return refuse(-FI_EBADFLAGS, "fi_cntr_open: flags must be 0");
  return check_wait_obj("fi_cntr_open", attr.wait_obj, attr.wait_set);
}

}  // namespace

void fill_counters(CallTables& tables) noexcept {
  tables.cntr = g_cntr_ops;
}

// What was counted before the fork can still be read.
void turn_away_counters(CallTables& tables) noexcept {
  const InForkedChild refusal;
  tables.cntr = {
      .size = sizeof(fi_ops_cntr),
      .read = [](fid_cntr* fid) { return object_of<Cntr>(fid).core.value(); },
      .readerr = [](fid_cntr* fid) { return object_of<Cntr>(fid).core.errors(); },
      .add = refusal,
      .set = refusal,
      .wait = refusal,
      .adderr = refusal,
      .seterr = refusal,
  };
}

void Cntr::note_seen() noexcept {
  seen_value = core.value();
  seen_errors = core.errors();
  seen_settings = settings;
}

int Cntr::try_wait() noexcept {
  return try_sleep_unless(Waits::on_descriptor, has_changed, this);
}

int open_cntr(fid_domain* fid, fi_cntr_attr* attr, fid_cntr** out, void* context) noexcept {
  return guarded("fi_cntr_open", fid, [&]() -> int {
    if (fid == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_cntr_open: domain or cntr is NULL");
    const fi_cntr_attr defaults{};
    const fi_cntr_attr& asked = attr != nullptr ? *attr : defaults;
    if (const int rc = check_attr(asked); rc != 0) return rc;
    auto& domain = object_of<Domain>(fid);
    auto cntr = std::make_unique<Cntr>();
    cntr->fid.fid = {FI_CLASS_CNTR, context, &g_cntr_fid_ops};
    cntr->fid.ops = &domain.calls->cntr;
    const int rc = cntr->open(domain, asked.wait_obj, asked.wait_set, cntr->core.wake_fd);
    if (rc != 0) return rc;
    domain.uses.add();
    *out = &cntr.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
