// Whose object it is, and changing the tables in a forked child: see fork.hpp.
#include "provider/fork.hpp"

#include <pthread.h>

#include <atomic>
#include <new>

#include "base/per_process.hpp"
#include "provider/av.hpp"
#include "provider/av_set.hpp"
#include "provider/cntr.hpp"
#include "provider/cq.hpp"
#include "provider/ep.hpp"
#include "provider/eq.hpp"
#include "provider/mr.hpp"
#include "provider/multicast.hpp"
#include "provider/pep.hpp"
#include "provider/stx.hpp"
#include "provider/wait.hpp"
#include "provider/window.hpp"

namespace aperture::provider {

namespace {

constinit PerProcess<CallTables> own_tables;
// The last that were made, here or in a parent, for the child's handler.
constinit std::atomic<CallTables*> latest{nullptr};
constinit std::atomic<bool> handles_forks{false};

void turn_away() noexcept {
  // SYNC POINT: call-tables
  CallTables* const inherited = latest.load(std::memory_order_acquire);
  if (inherited == nullptr) return;
  CallTables& t = *inherited;
  t.msg = t.msg_described = t.msg_many = t.msg_triggered = refusing<fi_ops_msg>(InForkedChild{});
  t.msg_datagram = t.msg_buffered = t.msg_sources = t.msg_device = t.msg;
  t.tagged = t.tagged_described = t.tagged_triggered = refusing<fi_ops_tagged>(InForkedChild{});
  t.tagged_buffered = t.tagged_many = t.tagged_sources = t.tagged_device = t.tagged;
  t.rma = t.rma_described = t.rma_device = t.rma_triggered = refusing<fi_ops_rma>(InForkedChild{});
  turn_away_atomics(t);
  turn_away_cq_reads(t);
  turn_away_counters(t);
}

Result<CallTables*> make() noexcept {
  // relaxed: PerProcess's lock is held; a child has what its parent had installed
  if (!handles_forks.load(std::memory_order_relaxed)) {
    if (::pthread_atfork(nullptr, nullptr, turn_away) != 0) return Errc::no_memory;
    handles_forks.store(true, std::memory_order_relaxed);
  }
  auto* const made = new (std::nothrow) CallTables;
  if (made == nullptr) return Errc::no_memory;
  fill_messages(*made);
  fill_tagged(*made);
  fill_rma(*made);
  fill_atomics(*made);
  fill_triggered(*made);
  fill_cq_reads(*made);
  fill_counters(*made);
  // SYNC POINT: call-tables: they are whole before a fork's handler, on any thread, changes them
  latest.store(made, std::memory_order_release);
  return made;
}

bool is_over(const Domain& domain) noexcept {
  return domain.engine->life().is_over();
}

}  // namespace

Result<CallTables*> call_tables() noexcept {
  return own_tables.get(make);
}

bool is_of_parent(const struct fid* what) noexcept {
  if (what == nullptr) return false;
  switch (what->fclass) {
    case FI_CLASS_FABRIC: return object_of<const Fabric>(what).round.is_over();
    case FI_CLASS_EQ: return object_of<const Eq>(what).round.is_over();
    case FI_CLASS_WAIT: return object_of<const WaitSet>(what).round.is_over();
    case FI_CLASS_PEP: return object_of<const Pep>(what).round.is_over();
    case FI_CLASS_DOMAIN: return is_over(object_of<const Domain>(what));
    case FI_CLASS_EP:
    case FI_CLASS_SEP:
    case FI_CLASS_TX_CTX:
    case FI_CLASS_RX_CTX:
    case FI_CLASS_SRX_CTX: return is_over(*object_of<const Ep>(what).body->domain);
    case FI_CLASS_STX_CTX: return is_over(*object_of<const Stx>(what).domain);
    case FI_CLASS_AV: return is_over(*object_of<const Av>(what).domain);
    case FI_CLASS_AV_SET: return is_over(*object_of<const AvSet>(what).av->domain);
    case FI_CLASS_CQ: return is_over(*object_of<const FabricCq>(what).domain);
    case FI_CLASS_CNTR: return is_over(*object_of<const Cntr>(what).domain);
    case FI_CLASS_MR: return is_over(*object_of<const Region>(what).domain);
    case FI_CLASS_MC: return is_over(*object_of<const Joined>(what).domain);
    case FI_CLASS_POLL: return is_over(domain_of_poll_set(what));
    case APERTURE_CLASS_WINDOW: return is_over(*object_of<const Window>(what).domain);
    default: return false;  // no object of ours: the call itself says so
  }
}

}  // namespace aperture::provider
