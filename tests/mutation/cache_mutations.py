"""Mutations of src/regcache/ and of the provider's use of it: see mutations.py."""
from mutation import Mutation, in_file

CACHE = ("regcache_cache", "regcache_steps", "regcache_races")
STEPS = ("regcache_steps", "regcache_several", "regcache_races")
HOOKS = ("regcache_memhooks", "regcache_steps", "regcache_several")
DOOR = ("door_local_cache", "door_descriptor")
RACE = "a window of a microsecond between a monitor and the kernel: too narrow for a test"

cache = in_file("regcache/cache.cpp", tests=CACHE)
index = in_file("regcache/index.cpp", tests=CACHE)
reader = in_file("regcache/userfault_reader.cpp", tests=STEPS)
userfault = in_file("regcache/userfault_monitor.cpp", tests=STEPS)
memhooks = in_file("regcache/memhooks_monitor.cpp", tests=HOOKS)
listeners = in_file("regcache/hook_listeners.cpp", tests=HOOKS)
settings = in_file("regcache/settings.cpp", tests=("regcache_settings", "door_local_cache"))
calls = in_file("regcache/hooked_calls.cpp", tests=("regcache_steps", "regcache_memhooks"))
words = in_file("regcache/memhooks.cpp", tests=("regcache_memhooks", "regcache_several"))
linkage = in_file("regcache/linkage.cpp", tests=("regcache_memhooks",))
watched = in_file("regcache/watched_pages.cpp", tests=("regcache_watched_pages",
                                                       "regcache_memhooks"))
stacks = in_file("regcache/thread_stacks.cpp", tests=("regcache_thread_stacks",))
mappings = in_file("regcache/mappings.cpp", tests=("regcache_mappings",))
oracle = in_file("regcache/oracle.cpp", tests=("regcache_cache",))
changes = in_file("regcache/changes.cpp", tests=("regcache_changes", "regcache_cache"))
forks = in_file("regcache/forks.cpp", tests=("regcache_steps",))
kernel = in_file("regcache/userfault.cpp", tests=("regcache_steps", "regcache_races"))
own = in_file("provider/own_registrations.cpp", tests=DOOR)

CACHE_MUTATIONS = [
    # --- what is handed out ---
    cache("nothing is found while a change is under way",
          "!monitor_->is_settled() || changes_.any_begun() ||", "!monitor_->is_settled() ||"),
    cache("nothing is found while the monitor is behind",
          "if (monitor_ == nullptr || !monitor_->is_settled() ||", "if (monitor_ == nullptr ||"),
    cache("nor once it has stopped", " ||\n      monitor_->has_stopped()) {", ") {"),
    cache("what was put is taken before anything is found",
          "        take_changes();\n        Entry* const entry = index_.find(range, access);",
          "        Entry* const entry = index_.find(range, access);"),
    cache("what was lost may have been anything",
          "    take({kAll, Change::Kind::unmapped});\n"),
    cache("drops may have been among what was lost", "    drops_.note(kAll, now_ns());\n"),
    cache("a fork shares all pages", "    take({{0, ~uint64_t{0}}, Change::Kind::shared});\n"),
    cache("a change while it is made keeps it from being kept",
          "if (entry.stale || drops_.any(entry.range, now_ns())) return false;",
          "if (drops_.any(entry.range, now_ns())) return false;"),
    cache("dropped pages may still be there for a moment",
          "if (entry.stale || drops_.any(entry.range, now_ns())) return false;",
          "if (entry.stale) return false;"),
    cache("it is watched before it is made", "  if (to_keep) to_keep = watch(*entry);\n"),
    cache("what cannot be watched is not kept", "    return false;\n  }\n  entry.watched",
          "    return true;\n  }\n  entry.watched"),
    cache("a stale one that is in use is found by nobody",
          "    entry.stale = true;\n    let_go(entry);", "    let_go(entry);",
          reason="it is out of the index by then: stale is for who asks why"),
    # --- giving back ---
    cache("one in use is not given back", "  if (entry.users == 0) {\n    end(entry);",
          "  if (true) {\n    end(entry);"),
    cache("the last user gives it back", "if (--entry->users == 0 && !entry->kept) {",
          "if (--entry->users == 0 && false) {"),
    cache("what is in use makes no room",
          "    while (entry != nullptr && entry->users != 0) entry = kept_.after(entry);\n"),
    cache("bytes are limited", " || options_.max_bytes - kept_bytes_ < bytes) {", ") {"),
    cache("what was used last is given up last",
          "        if (kept_.back() != entry) {", "        if (false) {"),
    cache("what others have kept goes on being watched",
          "if (!has_any(piece)) monitor_->forget", "monitor_->forget"),
    cache("of what was watched as one each piece is forgotten", "    left.begin = piece.end;\n",
          "    return;\n"),
    cache("what was moved is not watched for ever",
          "  if (change.kind == Change::Kind::moved) note_adrift(change.range);\n"),
    # --- ranges and rights ---
    index("a part is not all", "if (at != k.count && k.entries[at]->range.covers(range)) return",
          "if (at != k.count && k.entries[at]->range.overlaps(range)) return"),
    index("rights are not widened", "    if (!allows(kind, access)) continue;\n"),
    index("ranges grow only where rights are the same",
          "  const Kind& kind = of(access);\n  for (size_t at = first_behind(kind, range.begin);",
          "  const Kind& kind = of(Access::read);\n"
          "  for (size_t at = first_behind(kind, range.begin);"),
    # --- by the kernel ---
    reader("what is unmapped", "        put({event.arg.remove.start, event.arg.remove.end}, "
           "Change::Kind::unmapped);\n"),
    reader("what is dropped", "        put({event.arg.remove.start, event.arg.remove.end}, "
           "Change::Kind::dropped);\n"),
    reader("the place that was left",
           "        put({event.arg.remap.from, event.arg.remap.from + event.arg.remap.len},\n"
           "            Change::Kind::unmapped);\n"),
    reader("others go on watching",
           "if (has_stopped() || std::any_of(caches_.begin(), caches_.end(), wants)) return;",
           "if (has_stopped()) return;"),
    reader("all caches are told", "told[n++] = cache;", "told[n = 0] = cache, ++n;"),
    reader("one that comes is waited for",
           "    wait_for_reader();  // what it reads by now might have been watched already\n",
           reason=RACE),
    reader("one that goes is waited for", "  }\n  wait_for_reader();\n}", "  }\n}", reason=RACE),
    reader("a descriptor that somebody closed tells nothing more",
           "if (underway == Underway::no_more) stopped_.store(true, std::memory_order_release);",
           ""),
    userfault("what it kept goes when it has stopped",
              "  if (reader_->has_stopped() && !has_told_) {", "  if (false) {"),
    userfault("memory of files is not kept",
              "  if (whole.is_empty()) return Errc::not_supported;\n",
              "  if (whole.is_empty()) return range;\n"),
    # --- by hooks ---
    memhooks("what is loaded later has hooks too",
             "return !has_stopped() && hooks_are_whole(Hooks::all);", "return !has_stopped();"),
    memhooks("stacks of threads are not kept",
             "if (whole.is_empty() || may_be_on_a_stack(range, whole)) return",
             "if (whole.is_empty()) return"),
    memhooks("what is watched is found by hooks",
             "  if (const Status s = listener_.pages().add(range); !s) return s.error();\n"),
    listeners("who is told knows what",
              "    cache.changes().put({range_, Change::Kind::replaced});\n"),
    # --- what a user sets ---
    settings("zero is off", "if (s.cache.max_bytes == 0 || s.cache.max_count == 0) s.monitor",
             "if (s.cache.max_bytes == 0) s.monitor"),
    settings("a monitor that is none is off", "  return MonitorKind::disabled;\n}",
             "  return MonitorKind::userfaultfd;\n}"),
    # --- at the door ---
    own("what could not be pinned is refused",
        "  if (!may_be_pinned(range.begin, range.size(), is_written)) return Errc::bad_buffer;\n"),
    own("what is written into must be writable",
        "if (!may_be_pinned(range.begin, range.size(), is_written))",
        "if (!may_be_pinned(range.begin, range.size(), false))"),
    own("what is written into is registered for it",
        "is_written ? Access::write : Access::read);", "Access::read);"),
    Mutation("who offers FI_MR_LOCAL is told to register",
             "demanded &= offers_local(offer) ? ~kLocalByCache : ~(kLocalByCache | FI_MR_LOCAL);",
             "demanded &= ~(kLocalByCache | FI_MR_LOCAL);", file="provider/mr_mode.cpp",
             tests=("provider_mr_mode",)),
    Mutation("given descriptors are ignored where they were",
             "    out.descriptors = are_read ? DescriptorRule::own_or_valid : DescriptorRule::own;",
             "    out.descriptors = DescriptorRule::own_or_valid;", file="provider/mr_mode.cpp",
             tests=DOOR),
    # --- each hook ---
    calls("what is mapped over", "    if ((flags & MAP_FIXED) == 0) return call(addr, len, prot, ",
          "    if (fd != -2) return call(addr, len, prot, "),
    calls("the place that something is moved to",
          "    const HookedChange there(to, has_place ? len : 0);\n",
          "    const HookedChange there(to, has_place ? 0 : 0);\n"),
    calls("the kernel is silent of guard pages",
          "return is_told(advice) ? Told::by_the_kernel : Told::by_nobody;",
          "return is_told(advice) ? Told::by_the_kernel : Told::by_the_kernel;"),
    calls("a segment may be attached over memory", "if ((flags & SHM_REMAP) == 0) return call",
          "if (flags != -1) return call"),
    calls("rights may be taken", "    if (takes_none(rights)) return call(addr, len, rights);\n",
          "    if (rights != -1) return call(addr, len, rights);\n"),
    calls("a key may take them", "    const HookedChange change(addr, len, Of::pages, "
          "Told::by_nobody);\n    return call(addr, len, rights, key);",
          "    return call(addr, len, rights, key);"),
    calls("pages may be moved away", "if (static_cast<uint32_t>(request) != kMove) return call",
          "if (request != 0) return call"),
    calls("a fork without handlers is one", "    fork_begins();\n    const pid_t child",
          "    return next<HookedCall::fork, kChain, pid_t()>()();\n    const pid_t child"),
    listeners("beside the kernel what it tells nobody is heard",
              "? told == Told::by_nobody && !range_.is_empty()", "? false"),
    # --- hooks in words ---
    words("what was called without hooks may have been anything", "    g_state.untold = true;\n"),
    words("what is unloaded takes memory with it", " || loads_.subs != g_state.seen.subs) {",
          ") {"),
    words("hooks for a few calls are not all",
          "(g_state.which == which || g_state.which == Hooks::all)",
          "(g_state.which == which || true)"),
    words("hooks that are written over are missed",
          "      are = g_state.are_put = has_its_hook(g_state.words[g_state.look_next++]);\n",
          "      ++g_state.look_next;\n"),
    words("nobody takes them from who listens",
          "      if (HookListener::any_open()) return false;\n"),
    linkage("what was sealed is sealed again", "  ::mprotect(page, page_size(), PROT_READ);\n"),
    linkage("a word of another name is left alone",
            "if (*name != *names[i] || std::strcmp(name, names[i]) != 0) continue;",
            "if (*name != *names[i]) continue;"),
    # --- what is there ---
    watched("neighbours of a block come and go", "  if (range.size() >= 3 * page_size()) {",
            "  if (range.size() >= 3 * page_size() && false) {"),
    watched("what is forgotten is not found", "word.fetch_and(~mask, std::memory_order_relaxed);",
            "word.fetch_or(mask & 0, std::memory_order_relaxed);"),
    stacks("any thread may have its stack there",
           "if (thread != main_thread && is_on_that_of(thread, range, whole)) return true;",
           ""),
    stacks("where it cannot be found out it may be one",
           "return place == Place::unknown || (place", "return (place",
           reason="no kernel that these tests meet hides a thread's descriptor"),
    mappings("memory of files is not alone", "seen.range.begin > at_ || !seen.is_alone()",
             "seen.range.begin > at_"),
    mappings("a hole is none", "if (seen.range.begin > at_ || !seen.is_alone()) return false;",
             "if (!seen.is_alone()) return false;"),
    mappings("what follows a hole is found", "    query.flags = flags;\n"),
    oracle("frames tell of pages that are held alone", "    if (are_held) see_frames(*view);\n",
           "    see_frames(*view);\n"),
    oracle("what was not told before is no change",
           "if (was.frame != 0 && is.frame != was.frame) {", "if (is.frame != was.frame) {"),
    changes("what has no room is counted",
            "      lost_.fetch_add(1, std::memory_order_release);\n"),
    changes("a slot is taken when it is there",
            "  if (slot.turn.load(std::memory_order_acquire) != pos + 1) return false;\n",
            "  if (put_.load() == pos) return false;\n",
            reason="a few instructions lie between a position and its slot: TSan sees it"),
    forks("forks of the parent are none of a child's",
          "::pthread_atfork(fork_begins, fork_is_over, forks_of_parent_are_over)",
          "::pthread_atfork(fork_begins, fork_is_over, nullptr)"),
    kernel("untouched pages are nobody's to fill", "asked.mode = UFFDIO_REGISTER_MODE_WP;",
           "asked.mode = UFFDIO_REGISTER_MODE_MISSING;"),
    kernel("a change that is under way is one", "return errno == EAGAIN ? Underway::some :",
           "return errno == EAGAIN ? Underway::none :"),
    userfault("what is loaded later has hooks too",
              "if (!has_stopped() && !hooks_are_whole(Hooks::beside_the_kernel)) return false;",
              ""),
    reader("what another one watches is left to it",
           "if (register_range(number_, range)) unregister_range", "unregister_range",
           reason="Linux refuses that by itself since 6.17"),
]
