// Queue pairs by number: see verbs_qps.hpp.
#include "nic/verbs_qps.hpp"

#include <cassert>
#include <mutex>

#include "ib/queue_pair.hpp"
#include "nic/engine.hpp"

namespace aperture::nic {

namespace {
constinit PerProcess<VerbsQps> the_one;  // a child's begins empty
}

void VerbsQps::add(QpNumber number, Entry& entry) {
  VerbsQps& all = the_one.get();
  const std::lock_guard guard(all.lock_);
  assert(all.entries_.find(number) == nullptr);
  all.entries_.set(number, entry);
}

void VerbsQps::remove(QpNumber number) noexcept {
  VerbsQps* const all = the_one.existing();
  if (all == nullptr) return;
  const std::lock_guard guard(all->lock_);
  all->entries_.remove(number);
}

bool VerbsQps::has_untaken(QpNumber number) noexcept {
  VerbsQps* const all = the_one.existing();
  if (all == nullptr) return false;
  const std::lock_guard guard(all->lock_);
  const Entry* entry = all->entries_.find(number);
  if (entry == nullptr) return false;
  assert(entry->qp.qpn() == number);
  const EngineGuard engine(entry->engine);
  return entry->qp.has_untaken_successes();
}

}  // namespace aperture::nic
