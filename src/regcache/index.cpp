// Entries by address: see index.hpp.
#include "regcache/index.hpp"

namespace aperture::regcache {

Status Index::reserve(size_t most) noexcept {
  assert(most_ == 0 && most != 0);
  for (Kind& kind : kinds_) {
    kind.entries.reset(new (std::nothrow) Entry*[most]);
    if (kind.entries == nullptr) return Errc::no_memory;
  }
  most_ = most;
  return {};
}

size_t Index::first_behind(const Kind& kind, uint64_t addr) noexcept {
  // none overlaps another, so the ends are in order as the beginnings are
  size_t first = 0;
  for (size_t n = kind.count; n != 0;) {
    const size_t half = n / 2;
    const bool before = kind.entries[first + half]->range.end <= addr;
    first = before ? first + half + 1 : first;
    n = before ? n - half - 1 : half;
  }
  return first;
}

Entry* Index::find(const Range& range, Access access) const noexcept {
  for (const Access kind : {Access::read, Access::write, Access::read_write}) {
    if (!allows(kind, access)) continue;
    const Kind& k = of(kind);
    const size_t at = first_behind(k, range.begin);
    if (at != k.count && k.entries[at]->range.covers(range)) return k.entries[at];
  }
  return nullptr;
}

Range Index::joined(const Range& range, Access access) const noexcept {
  assert(!range.is_empty());
  Range all = range;
  const Kind& kind = of(access);
  for (size_t at = first_behind(kind, range.begin);
       at < kind.count && kind.entries[at]->range.begin < range.end; ++at) {
    all.begin = std::min(all.begin, kind.entries[at]->range.begin);
    all.end = std::max(all.end, kind.entries[at]->range.end);
  }
  return all;
}

void Index::insert(Entry& entry) noexcept {
  assert(has_room() && !entry.kept && !entry.stale);
  Kind& kind = of(entry.access);
  const size_t at = first_behind(kind, entry.range.begin);
  assert(at == kind.count || entry.range.end <= kind.entries[at]->range.begin);
  std::copy_backward(&kind.entries[at], &kind.entries[kind.count], &kind.entries[kind.count + 1]);
  kind.entries[at] = &entry;
  ++kind.count;
  ++count_;
  entry.kept = true;
}

void Index::remove(Entry& entry) noexcept {
  assert(entry.kept);
  Kind& kind = of(entry.access);
  const size_t at = first_behind(kind, entry.range.begin);
  assert(at < kind.count && kind.entries[at] == &entry);
  std::copy(&kind.entries[at + 1], &kind.entries[kind.count], &kind.entries[at]);
  --kind.count;
  --count_;
  entry.kept = false;
}

bool Index::any(const Range& range) const noexcept {
  return std::any_of(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
    const size_t at = first_behind(kind, range.begin);
    return at != kind.count && kind.entries[at]->range.overlaps(range);
  });
}

}  // namespace aperture::regcache
