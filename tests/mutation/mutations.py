"""The list of mutations: each takes one check out of src/protect/ (a few out of src/qp/), or bends
it. mutate.py applies them one at a time.

`old` must occur exactly once in the file, as it is after clang-format. A mutation that no test can
see has `reason`: why it changes no behaviour, or what else proves the rule (a Spin model). It is
run all the same, and may survive. `tests` is for those that the tests of protect/ alone cannot see.
"""
from dataclasses import dataclass

QP_TESTS = ("qp_refusal", "qp_hostile_peer")


@dataclass(frozen=True)
class Mutation:
    what: str  # the rule that is taken out, in a few words
    file: str  # beneath src/
    old: str
    new: str
    reason: str = ""
    tests: tuple[str, ...] = ()


MODEL = "an order of memory accesses: proved by tests/spin/revocation.pml, too rare for a test"

ENTRY = [  # the rules that owner and peers share
    Mutation("a region must be enabled", "protect/key_file.hpp",
             "if ((entry.rights & kFlagEnabled) == 0) return Denial::not_enabled;", ""),
    Mutation("a right must be granted", "protect/key_file.hpp",
             "  if (!includes(static_cast<Rights>(entry.rights & kRightsMask), need)) {\n"
             "    return Denial::missing_right;\n  }\n", ""),
    Mutation("every right that is needed, not any", "protect/rights.hpp",
             "return (have & need) == need;", "return (have & need) != Rights::none;"),
    Mutation("remote_read is a right of its own", "protect/rights.hpp",
             "remote_read = 4,", "remote_read = 8,"),
    Mutation("remote_atomic is a right of its own", "protect/rights.hpp",
             "remote_atomic = 16,", "remote_atomic = 8,"),
    Mutation("nothing before the region", "protect/key_file.hpp",
             "  if (!zero_based && addr < entry.base) return Denial::out_of_range;\n", ""),
    Mutation("nothing that begins past the region", "protect/key_file.hpp",
             "if (offset > entry.length || len > entry.length - offset)",
             "if (len > entry.length - offset)"),
    Mutation("nothing that ends past the region", "protect/key_file.hpp",
             "if (offset > entry.length || len > entry.length - offset)",
             "if (offset > entry.length)"),
    Mutation("one byte past the region", "protect/key_file.hpp",
             "len > entry.length - offset)", "len > entry.length - offset + 1)"),
    Mutation("the last byte of the region", "protect/key_file.hpp",
             "len > entry.length - offset)", "len >= entry.length - offset)"),
    Mutation("a sum that wraps", "protect/key_file.hpp",
             "if (offset > entry.length || len > entry.length - offset)",
             "if (offset + len > entry.length)"),
    Mutation("offsets are not addresses", "protect/key_file.hpp",
             "const bool zero_based = (entry.rights & kFlagZeroBased) != 0;",
             "const bool zero_based = addr < entry.base;"),
    Mutation("addresses are not offsets", "protect/key_file.hpp",
             "const bool zero_based = (entry.rights & kFlagZeroBased) != 0;",
             "const bool zero_based = false;"),
    Mutation("a hint holds for one life of an entry", "protect/key_file.hpp",
             "  if (e.state_gen.load(std::memory_order_acquire) != wanted) return false;\n", "",
             reason="the same comparison is made once more after the fields were read"),
    Mutation("an entry that changed while it was read", "protect/key_file.hpp",
             "return same && e.state_gen.load(std::memory_order_acquire) == wanted;",
             "return same;"),
    Mutation("a hint is looked at once more, and first", "protect/key_file.hpp",
             "const uint64_t wanted = state_gen_of(ref.generation, EntryState::valid);",
             "const uint64_t wanted = e.state_gen.load(std::memory_order_acquire);"),
    Mutation("a hint is of this key", "protect/key_file.hpp",
             "e.key.load(std::memory_order_acquire) == key && e.pd", "e.pd"),
    Mutation("a hint is of this domain", "protect/key_file.hpp",
             "e.key.load(std::memory_order_acquire) == key && "
             "e.pd.load(std::memory_order_acquire) == pd;",
             "e.key.load(std::memory_order_acquire) == key;"),
    Mutation("a hint lies in the table", "protect/key_file.hpp",
             "if (ref.generation == 0 || ref.index >= file.capacity) return false;",
             "if (ref.generation == 0) return false;"),
    Mutation("no hint is no region", "protect/key_file.hpp",
             "if (ref.generation == 0 || ref.index >= file.capacity) return false;",
             "if (ref.index >= file.capacity) return false;",
             reason="no entry is VALID in generation 0, which is compared next"),
]

SEARCH = [
    Mutation("a chain stays in the table", "protect/key_file.cpp",
             "if (at > file.capacity || step == kMaxSteps)", "if (step == kMaxSteps)"),
    Mutation("a chain ends", "protect/key_file.cpp",
             "if (at > file.capacity || step == kMaxSteps)", "if (at > file.capacity)"),
    Mutation("the key is compared", "protect/key_file.cpp",
             "if (e.key.load(std::memory_order_acquire) == key &&\n"
             "        e.pd.load(std::memory_order_acquire) == pd) {",
             "if (e.pd.load(std::memory_order_acquire) == pd) {"),
    Mutation("the domain is compared", "protect/key_file.cpp",
             "if (e.key.load(std::memory_order_acquire) == key &&\n"
             "        e.pd.load(std::memory_order_acquire) == pd) {",
             "if (e.key.load(std::memory_order_acquire) == key) {"),
    Mutation("only a valid entry answers", "protect/key_file.cpp",
             "if (state_of(s) == EntryState::valid) {", "if (state_of(s) != EntryState::free) {"),
    Mutation("a revoked region says so", "protect/key_file.cpp",
             "seen = Search::revoking;", "seen = Search::closed;"),
    Mutation("a closed region says so", "protect/key_file.cpp",
             "seen = Search::closed;", "seen = Search::unknown;"),
    Mutation("a walk during a split is made again", "protect/key_file.cpp",
             "    if ((version & 1) != 0) {\n      cpu_relax();\n      continue;\n    }\n", ""),
    Mutation("a miss counts only if no chain changed", "protect/key_file.cpp",
             "if (answer != Search::unstable &&\n"
             "        file.header->version.load(std::memory_order_acquire) == version) {",
             "if (answer != Search::unstable) {"),
    Mutation("the count of buckets is bounded", "protect/key_file.cpp",
             "if (count == 0 || count > file.max_buckets)", "if (count == 0)"),
    Mutation("no buckets, no walk", "protect/key_file.cpp",
             "if (count == 0 || count > file.max_buckets)", "if (count > file.max_buckets)"),
    Mutation("another domain's key is told from an unknown one", "protect/key_file.cpp",
             "if (other != 0 && other != pd &&", "if (other != 0 && other == pd &&"),
]

TABLE = [
    Mutation("a requested key is free", "protect/key_table.cpp",
             "    if (key_in_use(hash, spec.pd, key, resting)) return Errc::no_key;\n", ""),
    Mutation("FI_KEY_NOTAVAIL cannot be requested", "protect/key_table.cpp",
             "  if (spec.requested_key == kNotAvail) return Errc::key_rejected;\n", ""),
    Mutation("a range does not wrap", "protect/key_table.cpp",
             "  if (spec.length != 0 && spec.base > ~uint64_t{0} - (spec.length - 1)) "
             "return Errc::invalid;\n", ""),
    Mutation("unknown rights are refused", "protect/key_table.cpp",
             "if (spec.pd == 0 || (static_cast<uint32_t>(spec.rights) & ~kAllRights) != 0)",
             "if (spec.pd == 0)"),
    Mutation("domain 0 is refused", "protect/key_table.cpp",
             "if (spec.pd == 0 || (static_cast<uint32_t>(spec.rights) & ~kAllRights) != 0)",
             "if ((static_cast<uint32_t>(spec.rights) & ~kAllRights) != 0)"),
    Mutation("keys are in use in one domain", "protect/key_table.cpp",
             "    if (e.pd.load(std::memory_order_relaxed) != pd) continue;\n", ""),
    Mutation("keys are drawn", "protect/key_table.cpp",
             "const uint64_t key = fresh_[fresh_at_++];",
             "const uint64_t key = 1 + ahead_at_ + 0 * fresh_at_++;"),
    Mutation("neighbouring keys do not follow one another", "protect/key_table.cpp",
             "    random_bytes(fresh_.data(), sizeof fresh_);\n",
             "    if (fresh_.back() == 0) random_bytes(fresh_.data(), sizeof fresh_);\n"
             "    for (uint64_t& key : fresh_) key += 0x9e3779b97f4a7c15;\n"),
    Mutation("key 0 is never given", "protect/key_table.cpp",
             "if (drawn.key == 0 || drawn.key == kNotAvail) continue;",
             "if (drawn.key == kNotAvail) continue;"),
    Mutation("a drawn key rests with nobody", "protect/key_table.cpp",
             "if (!key_in_use(drawn.hash, pd, drawn.key, resting) && resting == 0) return drawn;",
             "return drawn;",
             reason="only after a repeat among 2^64 random keys"),
    Mutation("a disabled region starts disabled", "protect/key_table.cpp",
             "(spec.enabled ? kFlagEnabled : 0)", "kFlagEnabled"),
    Mutation("enabling a closed region", "protect/key_table.cpp",
             "  if (!in_force(region)) return Errc::no_entry;\n  // the one bit",
             "  // the one bit"),
    Mutation("generations are never used twice", "protect/key_table.hpp",
             "return next_generation_++;", "return next_generation_;"),
    Mutation("a handle is of one life", "protect/key_table.cpp",
             "return file_.entries[region.index].state_gen.load(std::memory_order_acquire) ==\n"
             "         state_gen_of(region.generation, EntryState::valid);",
             "return state_of(file_.entries[region.index].state_gen.load("
             "std::memory_order_acquire)) == EntryState::valid;"),
    Mutation("a hint is kept where the walk found it", "protect/key_table.cpp",
             "if (hint != nullptr) hint->last = out.ref();", ""),
    Mutation("a hint that is right for another key", "protect/key_table.cpp",
             "!copy_entry(file_, hint->last, ask.pd, ask.key.unchecked(), entry)",
             "!copy_entry(file_, hint->last, ask.pd, file_.entries[hint->last.index].key, entry)"),
    Mutation("a side record is looked at", "protect/key_table.cpp",
             "  if ((entry.rights & kFlagAskOwner) != 0) [[unlikely]]\n"
             "    return grant_beside(ask, entry);\n", ""),
    Mutation("a grant is one chunk", "protect/key_table.cpp",
             "return Checked(data, std::min(len, kChunkBytes), entry.ref());",
             "return Checked(data, len, entry.ref());"),
    Mutation("the next chunk is checked again", "protect/key_table.cpp",
             "if (copy_entry(file_, region, ask.pd, ask.key.unchecked(), entry)) "
             "return grant(ask, entry);",
             "if (copy_entry(file_, region, ask.pd, ask.key.unchecked(), entry)) return "
             "Checked(reinterpret_cast<std::byte*>(entry.base), 1, region);"),
    Mutation("the next chunk is of the same life", "protect/key_table.cpp",
             "  if (region.index >= file_.capacity) return Checked(Denial::unknown_key);\n",
             "  if (Checked again = check(ask); again) return grant(ask, (find(ask, nullptr, "
             "entry), entry));\n"
             "  if (region.index >= file_.capacity) return Checked(Denial::unknown_key);\n"),
    Mutation("the next chunk's region lies in the table", "protect/key_table.cpp",
             "  if (region.index >= file_.capacity) return Checked(Denial::unknown_key);\n", ""),
    Mutation("the next chunk of a region that is being closed", "protect/key_table.cpp",
             "return Checked(closing ? Denial::revoking : Denial::closed);",
             "return Checked(Denial::closed);"),
    Mutation("who left a chain is told", "protect/key_table.cpp",
             "file_.header->version.store(version + 2, std::memory_order_release);",
             "file_.header->version.store(version, std::memory_order_release);"),
    Mutation("a split is announced", "protect/key_table.cpp",
             "  h.version.store(version + 1, std::memory_order_relaxed);\n", ""),
    Mutation("an entry that left is emptied", "protect/key_table.cpp",
             "  e.key.store(0, std::memory_order_release);\n"
             "  e.pd.store(0, std::memory_order_release);\n", "",
             reason="a FREE entry out of every chain is met by no walk; explain() passes it over"),
    Mutation("a table has a size", "protect/key_table.cpp",
             "  if (count > file_.capacity) return Errc::no_space;\n", ""),
    Mutation("a new domain has a new number", "protect/rights.cpp",
             "DomainId id = next.fetch_add(1, std::memory_order_relaxed);",
             "DomainId id = next.load(std::memory_order_relaxed);"),
]

SIDE = [
    Mutation("a raw key has two halves", "protect/beside.cpp",
             "  if (side.secret && ask.secret.unchecked() != *side.secret) "
             "return Checked(Denial::unknown_key);\n", ""),
    Mutation("no secret is a wrong secret", "protect/beside.cpp",
             "if (side.secret && ask.secret.unchecked() != *side.secret)",
             "if (side.secret && ask.secret.unchecked() != 0 && "
             "ask.secret.unchecked() != *side.secret)"),
    Mutation("a region without a secret asks for none", "protect/beside.cpp",
             "if (side.secret && ask.secret.unchecked() != *side.secret)",
             "if (ask.secret.unchecked() != side.secret.value_or(0))"),
    Mutation("rights and range beside", "protect/beside.cpp",
             "Denial denial = judge_entry(entry, ask.addr.unchecked(), len, ask.need, offset);",
             "Denial denial = (judge_entry(entry, ask.addr.unchecked(), len, ask.need, offset), "
             "Denial::none);"),
    Mutation("the rules of the record", "protect/beside.cpp",
             "  if (denial == Denial::none) denial = side.judge(ask.through, offset, len);\n", ""),
    Mutation("a chunk of several runs", "protect/beside.cpp",
             "  if (run == n) return Checked(first, n, entry.ref());\n",
             "  return Checked(first, n, entry.ref());\n"),
    Mutation("one record for each region", "protect/beside.cpp",
             "  if (sides_[region.index] != nullptr) return sides_[region.index];\n", ""),
    Mutation("a record for a closed region", "protect/beside.cpp",
             "  if (!in_force(region)) return Errc::no_entry;\n"
             "  if (sides_[region.index] != nullptr)",
             "  if (sides_[region.index] != nullptr)"),
    Mutation("a record is seen at once", "protect/beside.cpp",
             "  entry.rights.fetch_or(kFlagAskOwner, std::memory_order_release);\n", ""),
    Mutation("a write to an earlier life", "protect/beside.cpp",
             "state_gen_of(region.generation, EntryState::valid)) {\n    return;",
             "state_gen_of(region.generation, EntryState::valid)) {"),
    Mutation("a write to no region", "protect/beside.cpp",
             "if (region.generation == 0 || region.index >= file_.capacity) return;",
             "if (region.generation == 0) return;"),
    Mutation("a commit needs the flag", "protect/beside.cpp",
             "(flags & kFlagAskOwner) == 0 || !sides_[index]->persistent",
             "(flags & kFlagAskOwner) == 0"),
    Mutation("a commit is an access", "protect/beside.cpp",
             "const Checked checked = check(ask);\n  if (!checked) return checked.denial();",
             "const Checked checked = check(ask);\n  if (!checked) return Denial::none;"),
    Mutation("a commit reaches memory", "protect/beside.cpp",
             "sync) ? Denial::none\n", "sync) ? Denial::none\n : true ? Denial::none\n"),
    Mutation("a region of one endpoint", "protect/side_record.cpp",
             "  if (needs_endpoint && (endpoint == 0 || endpoint != through)) "
             "return Denial::wrong_endpoint;\n", ""),
    Mutation("a region whose endpoint is gone", "protect/side_record.cpp",
             "if (needs_endpoint && (endpoint == 0 || endpoint != through))",
             "if (needs_endpoint && endpoint != through)"),
    Mutation("a region whose endpoint is not yet bound", "protect/side_record.cpp",
             "if (needs_endpoint && (endpoint == 0 || endpoint != through))",
             "if (needs_endpoint && endpoint != 0 && endpoint != through)"),
    Mutation("pages must be verified", "protect/side_record.cpp",
             "    if (s.pages && !s.pages->covers(offset, n)) return Denial::not_verified;\n", ""),
    Mutation("pages of every buffer", "protect/side_record.cpp",
             "    if (s.pages && !s.pages->covers(offset, n)) return Denial::not_verified;\n"
             "    offset = 0;\n    len -= n;\n",
             "    if (s.pages && !s.pages->covers(offset, n)) return Denial::not_verified;\n"
             "    len = 0;\n"),
    Mutation("the last page of a range", "protect/side_record.cpp",
             "for (size_t i = page_of(base_ + offset); i <= last; ++i) {",
             "for (size_t i = page_of(base_ + offset); i < last; ++i) {"),
    Mutation("the first page of a range", "protect/side_record.cpp",
             "for (size_t i = page_of(base_ + offset); i <= last; ++i) {",
             "for (size_t i = page_of(base_ + offset) + 1; i <= last; ++i) {"),
    Mutation("one byte of a page", "protect/side_record.cpp",
             "const size_t last = page_of(base_ + offset + len - 1);",
             "const size_t last = page_of(base_ + offset + len);"),
    Mutation("pages that went away", "protect/side_record.cpp",
             "      if (verified_[i] == mapped) continue;\n",
             "      if (verified_[i] == mapped || !mapped) continue;\n"),
    Mutation("a refresh looks at what it names", "protect/side_record.cpp",
             "page_of(from + len - 1) - first + 1}};", "verified_.size() - first}};"),
    Mutation("complete means all pages", "protect/side_record.cpp",
             "missing_ += mapped ? size_t(-1) : 1;", "missing_ = mapped ? 0 : missing_ + 1;"),
    Mutation("a run ends with its buffer", "protect/side_record.hpp",
             "const uint64_t n = len < s.length - offset ? len : s.length - offset;",
             "const uint64_t n = len;"),
    Mutation("the next run begins with its buffer", "protect/side_record.hpp",
             "    offset = 0;\n    len -= n;\n", "    len -= n;\n"),
    Mutation("an empty buffer is passed over", "protect/side_record.hpp",
             "if (offset >= s.length) {", "if (offset > s.length) {"),
    Mutation("memory that is not there, going in", "protect/grant.hpp",
             "      return guarded_copy(data_ + at, from, n);",
             "      return guarded_copy(data_ + at, from, n) || true;"),
    Mutation("memory that is not there, coming out", "protect/grant.hpp",
             "      return guarded_copy(to, data_ + at, n);",
             "      return guarded_copy(to, data_ + at, n) || true;"),
]

REVOKE = [
    Mutation("a close begins with a refusal", "protect/revoke.cpp",
             "  entry.state_gen.store(revoking, std::memory_order_seq_cst);\n", ""),
    Mutation("a close fences what is pinned", "protect/revoke.cpp",
             "      slot.riov_len.store(0, std::memory_order_seq_cst);\n      pinned = true;",
             "      pinned = true;"),
    Mutation("a close fences no other region", "protect/revoke.cpp",
             "if (slot.pin.load(std::memory_order_acquire) != generation) continue;",
             "if (slot.pin.load(std::memory_order_acquire) == 0) continue;"),
    Mutation("a close at once waits for who is inside", "protect/revoke.cpp",
             "    if (is_pinned(region.generation)) return Errc::busy;\n", ""),
    Mutation("FENCE_R of a close at once", "protect/revoke.cpp",
             "    // SYNC POINT: revocation (FENCE_R)\n    full_fence();\n", "", reason=MODEL),
    Mutation("FENCE_R", "protect/revoke.cpp",
             "  // the accessor sees REVOKING)\n  full_fence();\n", "", reason=MODEL),
    Mutation("a pin holds up a close", "protect/revoke.cpp",
             "  if (slot.pin.load(std::memory_order_acquire) != pin) return true;\n"
             "  // once more", "  return true;\n  // once more"),
    Mutation("a pin of another region holds up no close", "protect/revoke.cpp",
             "  if (slot.pin.load(std::memory_order_acquire) != pin) return true;\n"
             "  // once more",
             "  if (slot.pin.load(std::memory_order_acquire) == 0) return true;\n  // once more"),
    Mutation("a late pin is fenced too", "protect/revoke.cpp",
             "  slot.riov_len.store(0, std::memory_order_seq_cst);\n  full_fence();\n"
             "  const auto tid", "  full_fence();\n  const auto tid"),
    Mutation("a thread that runs is waited for", "protect/revoke.cpp",
             "return probe_->look(accessor, tid, start) != ThreadState::running;",
             "return true;"),
    Mutation("a thread that stands or is dead is not", "protect/revoke.cpp",
             "return probe_->look(accessor, tid, start) != ThreadState::running;",
             "return false;"),
    Mutation("every slot is looked at", "protect/revoke.cpp",
             "      if (!slot_quiet(slot, generation, a.accessor)) return false;\n",
             "      return slot_quiet(slot, generation, a.accessor);\n"),
    Mutation("a region in force is not quiet", "protect/revoke.cpp",
             "if (now != revoking) return now != state_gen_of(region.generation, "
             "EntryState::valid);", "if (now != revoking) return true;"),
    Mutation("only what is being closed is freed", "protect/revoke.cpp",
             "  if (being_closed(region)) free_entry(region);\n", "  free_entry(region);\n"),
    Mutation("a record ends with its region", "protect/revoke.cpp",
             "    delete std::exchange(sides_[region.index], nullptr);\n", ""),
    Mutation("a revived region has a new life", "protect/revoke.cpp",
             "next.generation = next_generation();", ""),
    Mutation("only what is being closed is revived", "protect/revoke.cpp",
             "if (region.generation == 0 || !being_closed(region)) return Errc::no_entry;", ""),
    Mutation("a close at once is for when nobody is attached", "protect/revoke.cpp",
             "  if (attached_count_.load(std::memory_order_relaxed) != 0) slots_guard.lock();\n"
             "  {\n    std::lock_guard guard(mutex_);\n"
             "    if (attached_count_.load(std::memory_order_relaxed) != 0 && "
             "!slots_guard.owns_lock()) {\n"
             "      const Status begun = begin_under_mutex(region);\n"
             "      // SYNC POINT: revocation (FENCE_R, for whoever polls)\n"
             "      full_fence();\n      return begun;\n    }\n",
             "  {\n    std::lock_guard guard(mutex_);\n"),
    Mutation("a peer that attaches during a close", "protect/revoke.cpp",
             "    if (attached_count_.load(std::memory_order_relaxed) != 0 && "
             "!slots_guard.owns_lock()) {\n"
             "      const Status begun = begin_under_mutex(region);\n"
             "      // SYNC POINT: revocation (FENCE_R, for whoever polls)\n"
             "      full_fence();\n      return begun;\n    }\n", "",
             reason="a race of one first contact with one close, in two instructions"),
    Mutation("closing twice", "protect/revoke.cpp",
             "      if (!in_force(region) && !being_closed(region)) return Errc::no_entry;\n", ""),
    Mutation("a close with a stale handle", "protect/revoke.cpp",
             "  if (now != revoking && now != state_gen_of(region.generation, EntryState::valid)) {"
             "\n    return Errc::no_entry;\n  }\n", ""),
    Mutation("a closed key is remembered", "protect/revoke.cpp",
             "if (quarantine_size_ == kQuarantine) wake_oldest();",
             "while (quarantine_size_ != 0) wake_oldest();\n"
             "  if (index != 0) { unlink(index); return; }"),
    Mutation("a resting entry that lives again is left alone", "protect/revoke.cpp",
             "state_gen_of(oldest.generation, EntryState::free)) {\n      continue;",
             "state_gen_of(oldest.generation, EntryState::free) && false) {\n      continue;"),
    Mutation("detached slots are closed", "protect/revoke.cpp",
             "  for (AccessorSlot& slot : slots->slots) slot.closed.store(1, "
             "std::memory_order_seq_cst);\n", ""),
    Mutation("detaching waits for pins", "protect/revoke.cpp",
             "    if (pin != 0 && !slot_quiet(slot, pin, at->accessor)) return false;\n", ""),
    Mutation("an accessor that cannot be watched", "protect/revoke.cpp",
             "  if (thread_start_time(accessor, accessor) == 0) return Errc::not_supported;\n",
             ""),
]

PEER = [
    Mutation("a key file is sealed", "protect/peer_key_view.cpp",
             "if (size_bytes < kKeyHeaderBytes || !is_sealed_and_at_least(fd.get(), size_bytes)) {",
             "if (size_bytes < kKeyHeaderBytes) {"),
    Mutation("a key file has its header", "protect/peer_key_view.cpp",
             "if (header->magic != kKeyFileMagic || header->layout != kKeyFileLayout) "
             "return Errc::protocol;", ""),
    Mutation("a key file holds its entries", "protect/peer_key_view.cpp",
             " ||\n      (size_bytes - entries_offset) / sizeof(KeyEntry) < capacity) {", ") {"),
    Mutation("entries do not lie in the buckets", "protect/peer_key_view.cpp",
             " ||\n      entries_offset < kKeyHeaderBytes + uint64_t{max_buckets} * 4", ""),
    Mutation("the entry lies in the file", "protect/peer_key_view.cpp",
             "|| entries_offset > size_bytes ||", "||"),
    Mutation("buckets are a power of two", "protect/peer_key_view.cpp",
             "if (capacity == 0 || max_buckets == 0 || !std::has_single_bit(max_buckets)) {",
             "if (capacity == 0 || max_buckets == 0) {"),
    Mutation("the maker of the file", "protect/peer_key_view.cpp",
             "return found == file_.header->nonce ? Status{} : Status{Errc::not_supported};",
             "return Status{};"),
    Mutation("a peer's next chunk is of the same life", "protect/peer_key_view.cpp",
             "if (ask.generation != 0 && ask.generation != generation) {", "if (false) {"),
    Mutation("a peer leaves such a region to its owner", "protect/peer_key_view.cpp",
             "  if ((entry.rights & kFlagAskOwner) != 0) return {Outcome::through_ring, "
             "Denial::none};\n", ""),
    Mutation("nothing is certain of such a region", "protect/peer_key_view.cpp",
             "  if ((entry.rights & kFlagAskOwner) != 0) return Denial::none;\n", ""),
    Mutation("a peer checks the entry", "protect/peer_key_view.cpp",
             "  if (denial != Denial::none) return {Outcome::denied, denial};\n"
             "  if (ask.len == 0)", "  if (ask.len == 0)"),
    Mutation("a peer writes only what it may", "protect/peer_key_view.cpp",
             "return access(owner, slot, ask, Rights::remote_write, write_call_, hint);",
             "return access(owner, slot, ask, Rights::none, write_call_, hint);"),
    Mutation("a peer reads only what it may", "protect/peer_key_view.cpp",
             "return access(owner, slot, ask, Rights::remote_read, read_call_, hint);",
             "return access(owner, slot, ask, Rights::none, read_call_, hint);"),
    Mutation("a peer pins", "protect/peer_key_view.cpp",
             "  slot.pin.store(generation, std::memory_order_release);\n", ""),
    Mutation("FENCE_A", "protect/peer_key_view.cpp",
             "  slot.pin.store(generation, std::memory_order_release);\n  full_fence();\n",
             "  slot.pin.store(generation, std::memory_order_release);\n", reason=MODEL),
    Mutation("a peer looks again when it has pinned", "protect/peer_key_view.cpp",
             "} else if (now != entry.state_gen) {", "} else if (false) {"),
    Mutation("a closed slot is not used", "protect/peer_key_view.cpp",
             "  if (closed) {\n", "  if (false && closed) {\n"),
    Mutation("a peer unpins", "protect/peer_key_view.cpp",
             "  slot.pin.store(0, std::memory_order_release);\n", ""),
    Mutation("a peer copies at most a chunk", "protect/peer_key_view.cpp",
             "    if (len > kChunkBytes - total) return {Outcome::through_ring, Denial::none};\n",
             ""),
    Mutation("a peer copies few pieces at once", "protect/peer_key_view.cpp",
             "  if (ask.local_count > kMaxLocalSegments) return {Outcome::through_ring, "
             "Denial::none};\n", ""),
    Mutation("a copy that stays empty ends", "protect/peer_key_view.cpp",
             "if (one.bytes == 0 && ++empty > kEmptyCopies) {", "if (false && ++empty > 0) {"),
    Mutation("a thread's number may serve again", "protect/thread_probe.cpp",
             "  if (start_time != 0 && stat.start_time != start_time) "
             "return ThreadState::gone;\n", ""),
    Mutation("a dead thread is gone", "protect/thread_probe.cpp",
             "  if (stat.state == 'Z' || stat.state == 'X' || stat.state == 'x') "
             "return ThreadState::gone;\n", "",
             reason="the kernel sets PF_EXITING before that state, and it is looked at first"),
    Mutation("a stopped thread is stopped", "protect/thread_probe.cpp",
             "  if (stat.state == 'T' || stat.state == 't') return ThreadState::stopped;\n", ""),
]

LOCAL = [  # descriptors of local buffers
    Mutation("a descriptor lies in the table", "protect/descriptor.cpp",
             "if (index >= file.capacity || generation == 0) return Denial::unknown_key;",
             "if (generation == 0) return Denial::unknown_key;"),
    Mutation("a descriptor is of one life", "protect/descriptor.cpp",
             "  if (birth != generation) return generation < birth ? Denial::closed : "
             "Denial::unknown_key;\n", ""),
    Mutation("a descriptor of a region that is being closed", "protect/descriptor.cpp",
             "  if (state_of(s) == EntryState::revoking) return Denial::revoking;\n", ""),
    Mutation("a descriptor of a closed region", "protect/descriptor.cpp",
             "  if (state_of(s) != EntryState::valid) return Denial::closed;\n", ""),
    Mutation("a descriptor of another domain", "protect/descriptor.cpp",
             "  if (owner != ask.pd) return {Denial::wrong_domain, {}};\n", ""),
    Mutation("a descriptor of a region that waits", "protect/descriptor.cpp",
             "  if ((entry.rights & kFlagEnabled) == 0) return {Denial::not_enabled, {}};\n", ""),
    Mutation("a descriptor has its rights", "protect/descriptor.cpp",
             "  if (!includes(static_cast<Rights>(entry.rights & kRightsMask), ask.need))\n"
             "    return {Denial::missing_right, {}};\n", ""),
    Mutation("a descriptor covers its buffer", "protect/descriptor.cpp",
             "return {covered ? Denial::none : Denial::out_of_range, {}};",
             "return {covered || true ? Denial::none : Denial::out_of_range, {}};"),
    Mutation("a buffer before the region", "protect/descriptor.cpp",
             "return addr >= base && addr - base <= length &&", "return addr - base <= length &&",
             reason="the difference wraps to more than any length but for no bytes at address 0"),
    Mutation("a buffer that ends past the region", "protect/descriptor.cpp",
             " && len <= length - (addr - base);", ";"),
    Mutation("a buffer that several segments cover", "protect/descriptor.cpp",
             "    if (n == 0) return Denial::out_of_range;\n", "    if (n == 0) break;\n"),
    Mutation("a descriptor of a region with rules", "protect/descriptor.cpp",
             "    if (const Denial d = side->judge(through, offset, n); d != Denial::none) "
             "return d;\n", ""),
    Mutation("an endpoint's descriptor", "protect/descriptor.cpp",
             "const EndpointId through = ask.through != 0 ? ask.through : side->endpoint;",
             "const EndpointId through = side->endpoint;"),
]

OWNER = [  # what the queue pair does with a check's answer
    Mutation("a refused write is not copied", "qp/responder.cpp",
             "const AccessAsk ask = ask_of(f.key, head.word(), head.len, Rights::remote_write,",
             "const AccessAsk ask = ask_of(f.key, head.word(), head.len, Rights::none,",
             tests=QP_TESTS),
    Mutation("the whole of a long write is checked first", "qp/responder.cpp",
             "ask_of(f.key, head.word(), f.total, Rights::remote_write, secret);",
             "ask_of(f.key, head.word(), f.len, Rights::remote_write, secret);",
             tests=QP_TESTS),
    Mutation("one refusal for each operation", "qp/responder.cpp",
             "note_write(whole_region_, f.total, noted_);\n    }\n"
             "    if (denial != Denial::none) {\n      op_refused_ = true;\n",
             "note_write(whole_region_, f.total, noted_);\n    }\n"
             "    if (denial != Denial::none) {\n", tests=QP_TESTS),
    Mutation("a long write stays in one life", "qp/responder.cpp",
             "      const protect::Checked checked = port_.keys.recheck(part, whole_region_);\n"
             "      denial = checked.denial();\n"
             "      if (checked && !checked.grant().copy_in",
             "      const protect::Checked checked = port_.keys.check(part, &hint_);\n"
             "      denial = checked.denial();\n"
             "      if (checked && !checked.grant().copy_in", tests=QP_TESTS),
    Mutation("both halves of a raw key are looked at", "qp/responder.cpp",
             "need,         port_.endpoint,      Wild<uint64_t>(secret)};",
             "need,         port_.endpoint,      Wild<uint64_t>(secret & 0)};",
             tests=("qp_raw_keys",)),
    Mutation("a piece lies in its operation", "qp/responder.cpp",
             "if (from == nullptr || f.offset > f.total || f.len > f.total - f.offset) {",
             "if (from == nullptr) {", tests=QP_TESTS),
    Mutation("a piece lies in its ring", "qp/responder.cpp",
             "f.len <= protect::kChunkBytes ? rx.bytes.view(f.byte_pos, f.len) : nullptr;",
             "rx.bytes.view(f.byte_pos, 0);", tests=QP_TESTS),
]

ALL = ENTRY + SEARCH + TABLE + SIDE + REVOKE + PEER + LOCAL + OWNER
