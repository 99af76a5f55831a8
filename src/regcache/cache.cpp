// Keeping resources, and losing them: see cache.hpp.
#include "regcache/cache.hpp"

#include <algorithm>
#include <cassert>
#include <cinttypes>
#include <new>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "base/invariant.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"

namespace aperture::regcache {

namespace {

// Looks at a monitor that cannot say yet that nothing has changed: a reader needs a microsecond or
// two from the first sign of a change to having put it.
constexpr int kLooks = 32;
constexpr int kRelaxPerLook = 8;

}  // namespace

// The lock, with all changes taken when it is given back. What is put just then is left to the next
// one to take it, which looks before it relies on anything.
class Cache::Guard {
 public:
  explicit Guard(Cache& cache) noexcept : cache_(cache) { cache_.mutex_.lock(); }
  Guard(Cache& cache, std::try_to_lock_t) noexcept
      : cache_(cache), locked_(cache.mutex_.try_lock()) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    while (locked_) {
      cache_.take_changes();
      cache_.mutex_.unlock();
      locked_ = cache_.changes_.any() && cache_.mutex_.try_lock();
    }
  }

 private:
  Cache& cache_;
  bool locked_ = true;
};

Result<std::unique_ptr<Cache>> Cache::create(Registrar& registrar,
                                             const Options& options) noexcept {
  if (options.max_count == 0) return Errc::invalid;
  if (const Status s = count_forks(); !s) return s.error();
  Options within = options;
  within.max_count = std::min(options.max_count, Options::kMostCount);
  std::unique_ptr<Cache> cache(new (std::nothrow) Cache(registrar, within));
  if (cache == nullptr) return Errc::no_memory;
  if (const Status s = cache->index_.reserve(within.max_count); !s) return s.error();
  return cache;
}

Cache::Cache(Registrar& registrar, const Options& options) noexcept
    : registrar_(registrar), options_(options), forks_(forks()) {}

Cache::~Cache() {
  {
    const Guard guard(*this);
    take_changes();
    adrift_count_ = 0;  // the monitor may be gone, and what it watched with it
  }
  trim();
  assert(kept_.empty() && loose_.empty() && over_.empty());
  assert(kept_bytes_ == 0 && index_.count() == 0);
}

// --- finding ---

bool Cache::is_settled() noexcept {
  // in this order: a change that had begun for the monitor alone is in changes_ by now, or under
  // way
  if (monitor_ == nullptr || !monitor_->is_settled() || changes_.any_begun() ||
      monitor_->has_stopped()) {
    return false;
  }
  if (const Forks now = forks(); now != forks_) [[unlikely]] {
    if (now.begun != now.over) return false;
    forks_ = now;
    take({{0, ~uint64_t{0}}, Change::Kind::shared});
  }
  return true;
}

Entry* Cache::look_up(const Range& range, Access access, bool& settled) noexcept {
  settled = false;
  for (int look = 0; look < kLooks && monitor_ != nullptr; ++look) {
    {
      const Guard guard(*this);
      settled = is_settled();
      if (settled) {
        take_changes();
        Entry* const entry = index_.find(range, access);
        if (entry == nullptr) return nullptr;
        assert(entry->kept && !entry->stale && entry->range.covers(range));
        ++entry->users;
        ++counts_.hits;
        if (kept_.back() != entry) {
          kept_.remove(entry);
          kept_.push_back(entry);
        }
        return entry;
      }
    }
    for (int i = 0; i < kRelaxPerLook; ++i) cpu_relax();
  }
  return nullptr;
}

Result<Cache::Use> Cache::acquire(const void* addr, size_t len, Access access) noexcept {
  const Range wanted = pages_around(addr, len);
  if (wanted.is_empty()) return Errc::invalid;
  bool settled = false;
  if (Entry* const found = look_up(wanted, access, settled); found != nullptr) {
    if (!options_.check || is_right(*found)) return Use(found);
    release(Use(found));
  }
  // relaxed: a hint
  if (any_over_.load(std::memory_order_relaxed)) give_back_what_is_over();
  if (!settled && monitor_ != nullptr) monitor_->settle();  // for the next one
  const Range range = settled ? range_to_keep(wanted, access) : Range{};
  if (!range.is_empty()) {
    Result<Use> made = make(range, access, true);
    // for more than was asked for the registrar may have no room
    if (made || wanted.covers(range)) return made;
  }
  return make(wanted, access, false);
}

std::unique_ptr<Oracle::View> Cache::look(const Range& range) const noexcept {
  assert(options_.check);
  return Oracle::look(range, registrar_.holds_pages());
}

// Asks the kernel itself, and says so where the monitor had said nothing. False: nobody finds it
// any more.
bool Cache::is_right(Entry& found) noexcept {
  assert(found.users != 0);
  const auto now = found.view != nullptr ? look(found.range) : nullptr;
  if (now == nullptr) return true;  // nothing can be said
  std::string why;
  if (!no_throw([&] { why = Oracle::why_stale(*found.view, *now); }) || why.empty()) return true;
  bool told = false;
  {
    const Guard guard(*this);
    take_changes();
    assert(counts_.hits != 0);
    --counts_.hits;  // the use makes another one
    told = found.stale;
    found.stale = true;
    if (found.kept) {
      index_.remove(found);
      let_go(found);
    }
    if (!told) ++counts_.caught;
  }
  if (!told) {
    APERTURE_WARN("a registration of 0x%" PRIx64 " to 0x%" PRIx64
                  " was kept although its memory has changed: %s, and %s has not told so, as of a "
                  "bare system call; it is not used",
                  found.range.begin, found.range.end, why.c_str(), monitor_->name());
  }
  return false;
}

// What a resource for it is made for, if it is to be kept: nothing, if that is too much. It takes
// the place of those that it overlaps.
Range Cache::range_to_keep(const Range& wanted, Access access) noexcept {
  if (wanted.size() > options_.max_bytes) return {};
  const Guard guard(*this);
  const Range all = index_.joined(wanted, access);
  return all.size() <= options_.max_bytes ? all : Range{};
}

// --- making and keeping ---

Result<Cache::Use> Cache::make(const Range& range, Access access, bool to_keep) noexcept {
  Entry* const entry = new (std::nothrow) Entry;
  if (entry == nullptr) return Errc::no_memory;
  entry->range = range;
  entry->access = access;
  entry->users = 1;
  {
    const Guard guard(*this);
    loose_.push_back(entry);
  }
  // before the resource is made: what changes from now on makes it stale
  if (to_keep) to_keep = watch(*entry);
  Result<Registrar::Resource> resource = registrar_.add(range, access);
  if (resource) entry->resource = *resource;
  if (resource && options_.check) entry->view = look(range);
  {
    const Guard guard(*this);
    assert(entry->users == 1 && !entry->kept);
    if (resource) {
      ++counts_.misses;
      if (!to_keep || !keep(*entry)) ++counts_.not_kept;
      return Use(entry);
    }
    loose_.remove(entry);
  }
  forget(entry->watched);
  delete entry;
  return resource.error();
}

// False: it stays its maker's own.
bool Cache::keep(Entry& entry) noexcept {
  if (!is_settled()) return false;
  take_changes();
  if (entry.stale || drops_.any(entry.range, now_ns())) return false;
  const Range all = index_.joined(entry.range, entry.access);
  // somebody has kept another one meanwhile, which reaches further
  if (!entry.range.covers(all)) return false;
  index_.take_out(entry.range, entry.access, [this](Entry& smaller) { let_go(smaller); });
  if (!make_room(entry.range.size())) return false;
  index_.insert(entry);
  loose_.remove(&entry);
  kept_.push_back(&entry);
  kept_bytes_ += entry.range.size();
  APERTURE_DEBUG_ASSERT(kept_bytes_ <= options_.max_bytes && index_.count() <= options_.max_count);
  return true;
}

// Gives up what was used longest ago, unless it is in use.
bool Cache::make_room(uint64_t bytes) noexcept {
  assert(bytes <= options_.max_bytes);
  Entry* entry = kept_.front();
  while (!index_.has_room() || options_.max_bytes - kept_bytes_ < bytes) {
    while (entry != nullptr && entry->users != 0) entry = kept_.after(entry);
    if (entry == nullptr) return false;
    Entry* const next = kept_.after(entry);
    index_.remove(*entry);
    let_go(*entry);
    ++counts_.evicted;
    entry = next;
  }
  return true;
}

// One that was kept, and is out of the index.
void Cache::let_go(Entry& entry) noexcept {
  assert(!entry.kept && kept_bytes_ >= entry.range.size());
  kept_bytes_ -= entry.range.size();
  kept_.remove(&entry);
  if (entry.users == 0) {
    end(entry);
  } else {
    loose_.push_back(&entry);
  }
}

void Cache::end(Entry& entry) noexcept {
  assert(entry.users == 0 && !entry.kept);
  over_.push_back(&entry);
  any_over_.store(true, std::memory_order_relaxed);  // relaxed: a hint
}

// --- changes ---

void Cache::take_changes() noexcept {
  if (changes_.was_lost()) [[unlikely]] {
    // among them may have been drops, whose pages are not gone yet
    constexpr Range kAll{0, ~uint64_t{0}};
    drops_.note(kAll, now_ns());
    take({kAll, Change::Kind::unmapped});
  }
  for (Change change; changes_.take(change);) take(change);
}

void Cache::take(const Change& change) noexcept {
  if (change.kind == Change::Kind::moved) note_adrift(change.range);
  if (change.kind == Change::Kind::dropped) drops_.note(change.range, now_ns());
  for (Entry* entry = loose_.front(); entry != nullptr; entry = loose_.after(entry)) {
    if (entry->range.overlaps(change.range)) entry->stale = true;
  }
  index_.take_out(change.range, [&](Entry& entry) {
    ++counts_.stale;
    entry.stale = true;
    let_go(entry);
  });
}

void Cache::on_changes() noexcept {
  const Guard guard(*this, std::try_to_lock);
}

// --- giving back ---

void Cache::release(Use use) noexcept {
  Entry* const entry = use.entry_;
  assert(entry != nullptr);
  {
    const Guard guard(*this);
    assert(entry->users != 0);
    if (--entry->users == 0 && !entry->kept) {
      loose_.remove(entry);
      end(*entry);
    }
  }
  // relaxed: a hint
  if (any_over_.load(std::memory_order_relaxed)) give_back_what_is_over();
}

void Cache::give_back_what_is_over() noexcept {
  for (;;) {
    Entry* entry = nullptr;
    Range adrift;
    {
      const Guard guard(*this);
      entry = over_.pop_front();
      if (entry == nullptr && adrift_count_ != 0) adrift = adrift_[--adrift_count_];
      // relaxed: a hint
      if (entry == nullptr) any_over_.store(adrift_count_ != 0, std::memory_order_relaxed);
    }
    if (entry == nullptr && adrift.is_empty()) return;
    if (entry != nullptr) registrar_.remove(entry->resource);
    forget(entry != nullptr ? entry->watched : adrift);
    delete entry;
  }
}

void Cache::trim() noexcept {
  {
    const Guard guard(*this);
    for (Entry* entry = kept_.front(); entry != nullptr;) {
      Entry* const next = kept_.after(entry);
      if (entry->users == 0) {
        index_.remove(*entry);
        let_go(*entry);
      }
      entry = next;
    }
  }
  give_back_what_is_over();
}

// To be forgotten by the next call of ours, unless somebody wants it by then.
void Cache::note_adrift(const Range& range) noexcept {
  assert(!range.is_empty() && adrift_count_ <= adrift_.size());
  if (adrift_count_ < adrift_.size()) {
    adrift_[adrift_count_++] = range;
  } else {  // what is between is asked about in vain
    Range& last = adrift_.back();
    last = {std::min(last.begin, range.begin), std::max(last.end, range.end)};
  }
  any_over_.store(true, std::memory_order_relaxed);  // relaxed: a hint
}

bool Cache::watch(Entry& entry) noexcept {
  const std::lock_guard in_order(watching_);
  const auto watched = monitor_->watch(entry.range);
  if (!watched) {
    APERTURE_DEBUG("%s cannot watch this memory: %s", monitor_->name(), describe(watched.error()));
    return false;
  }
  entry.watched = watched.value();
  assert(entry.watched.covers(entry.range));
  return true;
}

// Of what was watched some may be gone, or be others' memory by now.
void Cache::forget(const Range& watched) noexcept {
  if (watched.is_empty()) return;
  const std::lock_guard in_order(watching_);
  for (Range left = watched; !left.is_empty();) {
    const Range piece = monitor_->piece_of(left);
    if (piece.is_empty()) return;
    assert(piece.overlaps(left));
    if (!has_any(piece)) monitor_->forget(piece);
    left.begin = piece.end;
  }
}

Counts Cache::counts() const noexcept {
  const std::lock_guard lock(mutex_);
  return counts_;
}

bool Cache::has_any(const Range& range) noexcept {
  const std::lock_guard lock(mutex_);
  bool any = index_.any(range);
  for (Entry* one = loose_.front(); !any && one != nullptr; one = loose_.after(one)) {
    any = one->range.overlaps(range);
  }
  return any;
}

size_t Cache::kept() const noexcept {
  const std::lock_guard lock(mutex_);
  return index_.count();
}

}  // namespace aperture::regcache
