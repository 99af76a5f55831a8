// Reading completions: the calls of fi_ops_cq. man 3 fi_cq.
//
// Reading progresses the whole engine (manual progress). No allocation and no system call unless an
// error is read or somebody sleeps.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/invariant.hpp"
#include "base/no_throw.hpp"
#include "provider/cq.hpp"
#include "provider/error_text.hpp"
#include "provider/errors.hpp"
#include "provider/fork.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

// A queue that is never empty must not keep the engine from being progressed.
constexpr uint32_t kPollEvery = 16;

void put(const qp::Completion& c, fi_cq_entry& out) noexcept {
  out.op_context = c.context;
}
void put(const qp::Completion& c, fi_cq_msg_entry& out) noexcept {
  out = {c.context, c.flags, c.len};
}
void put(const qp::Completion& c, fi_cq_data_entry& out) noexcept {
  out = {c.context, c.flags, c.len, c.buf, c.imm};
}
void put(const qp::Completion& c, fi_cq_tagged_entry& out) noexcept {
  out = {c.context, c.flags, c.len, c.buf, c.imm, c.tag};
}

template <typename Entry>
ssize_t take(qp::Cq& core, void* buf, size_t count, fi_addr_t* source) noexcept {
  auto* out = static_cast<Entry*>(buf);
  size_t n = 0;
  for (; n < count && !core.empty() && !core.error_first(); ++n) {
    const qp::Completion& c = core.front();
    put(c, out[n]);
    if (source != nullptr) source[n] = c.source;
    core.pop();
  }
  APERTURE_DEBUG_ASSERT(n <= count);
  if (core.empty()) core.rewind();
  return static_cast<ssize_t>(n);
}

void progress(FabricCq& cq) noexcept {
  cq.engine->poll();
  Sleeper::keep_asleep(*cq.domain);
}

// One set of reading calls for each format of entries: which it is was settled by fi_cq_open.
template <typename Entry>
ssize_t read_from(fid_cq* fid, void* buf, size_t count, fi_addr_t* source) noexcept {
  auto& cq = object_of<FabricCq>(fid);
  if (buf == nullptr && count != 0) [[unlikely]]
    return -FI_EINVAL;
  bool idle = false;
  {
    nic::EngineGuard guard(*cq.engine);
    cq.sleeper.wake_up();
    if (cq.core.size() < count || cq.core.empty() || ++cq.reads % kPollEvery == 0) progress(cq);
    if (cq.core.empty()) {
      if (!cq.engine->is_look_due()) [[likely]]
        return -FI_EAGAIN;
      idle = cq.engine->look([&cq] { return !cq.core.empty(); });
    }
    if (!cq.core.empty()) {
      if (cq.core.error_first()) [[unlikely]]
        return -FI_EAVAIL;
      return take<Entry>(cq.core, buf, count, source);
    }
  }
  if (idle) [[unlikely]]
    cq.engine->share_core();
  return -FI_EAGAIN;
}

template <typename Entry>
ssize_t read_plain(fid_cq* fid, void* buf, size_t count) noexcept {
  return read_from<Entry>(fid, buf, count, nullptr);
}

// fi_cq_err_entry up to 1.19 ends before src_addr, before 1.5 before err_data_size.
struct ErrorEntry {
  fi_cq_err_entry known;
  fi_addr_t src_addr;
};
static_assert(offsetof(ErrorEntry, src_addr) == sizeof(fi_cq_err_entry));

size_t error_entry_bytes(uint32_t api) noexcept {
  if (api < kApi15) return offsetof(fi_cq_err_entry, err_data_size);
  return api < kApi120 ? sizeof(fi_cq_err_entry) : sizeof(ErrorEntry);
}

// The sentence goes into the buffer that the application gave, or is lent out. Into a buffer goes
// only what prov_errno does not say by itself: that there was no message, that one was truncated or
// canceled is an answer that programs ask for, with an entry that they have not filled in.
void put_error(FabricCq& cq, qp::CompletionError e, fi_cq_err_entry* buf) noexcept {
  const bool own_buffer =
      cq.api_version < kApi15 || buf->err_data_size == 0 || buf->err_data == nullptr;
  ErrorEntry out{};
  out.known.op_context = e.entry.context;
  out.known.flags = e.entry.flags;
  out.known.len = e.entry.len;
  out.known.buf = e.entry.buf;
  out.known.data = e.entry.imm;
  out.known.tag = e.entry.tag;
  out.known.olen = e.overflow;
  out.known.err = fi_error(e.err);
  out.known.prov_errno = provider_code(e.vendor, e.err);
  out.src_addr = e.entry.source;
  cq.last_sentence = std::move(e.sentence);
  if (!own_buffer) {
    out.known.err_data_size = copy_text(cq.last_sentence, buf->err_data, buf->err_data_size);
    if (out.known.err_data_size != 0) out.known.err_data = buf->err_data;
  } else {
    if (cq.last_sentence.empty()) {  // and it stays empty where there is no memory
      [[maybe_unused]] const Status s = no_throw([&] { cq.last_sentence = describe(e.err); });
    }
    out.known.err_data = cq.last_sentence.data();
    out.known.err_data_size = cq.last_sentence.size() + 1;
  }
  std::memcpy(static_cast<void*>(buf), &out, error_entry_bytes(cq.api_version));
}

ssize_t read_error(fid_cq* fid, fi_cq_err_entry* buf, uint64_t flags) noexcept {
  return guarded("fi_cq_readerr", fid, [&]() -> ssize_t {
    auto& cq = object_of<FabricCq>(fid);
    if (buf == nullptr) return -FI_EINVAL;
    if (flags != 0) return -FI_EBADFLAGS;
    nic::EngineGuard guard(*cq.engine);
    if (cq.core.empty()) progress(cq);
    if (!cq.core.error_first()) return -FI_EAGAIN;
    put_error(cq, cq.core.pop_error(), buf);
    return 1;
  });
}

// Whether a blocking read is to return now: what it asked for is there, or an error is.
bool satisfied(FabricCq& cq, size_t threshold) noexcept {
  nic::PollGuard guard(*cq.engine);
  cq.sleeper.wake_up();
  if (cq.core.size() < threshold) progress(cq);
  if (cq.core.size() >= threshold || cq.core.has_error()) return true;
  guard.found_nothing();
  return false;
}

[[gnu::noinline]] bool may_sleep(FabricCq& cq, size_t threshold) noexcept {
  return cq.may_sleep([&] { return satisfied(cq, threshold); },
                      [&] { return cq.try_sleep(Waits::in_call, threshold); });
}

[[gnu::noinline]] bool may_go_on(FabricCq& cq, size_t threshold,
                                 const Deadline& deadline) noexcept {
  if (satisfied(cq, threshold)) return false;
  // SYNC POINT: cq-signal (pairs with the store in signal)
  if (cq.signaled.exchange(false, std::memory_order_acq_rel)) return false;
  return !deadline.passed();
}

// 0 and how many entries are waited for, or why not.
[[gnu::noinline]] ssize_t begin_sread(const FabricCq& cq, const void* buf, size_t count,
                                      const void* cond, size_t& threshold) noexcept {
  if (const int rc = check_blocking("fi_cq_sread", cq.wait_obj); rc != 0) return rc;
  if (buf == nullptr && count != 0) return -FI_EINVAL;
  threshold = 1;  // "cond is interpreted as a size_t threshold value"
  if (cq.wait_cond == FI_CQ_COND_THRESHOLD && cond != nullptr) {
    threshold = std::clamp<size_t>(reinterpret_cast<uintptr_t>(cond), 1,
                                   std::min(std::max<size_t>(count, 1), cq.entries));
  }
  assert(threshold != 0 && threshold <= cq.entries);
  return 0;
}

// A cancellation point while it sleeps; so is sread.
template <typename Entry>
ssize_t sread_from(fid_cq* fid, void* buf, size_t count, fi_addr_t* source, const void* cond,
                   int timeout) {
  auto& cq = object_of<FabricCq>(fid);
  size_t threshold = 0;
  if (const ssize_t rc = begin_sread(cq, buf, count, cond, threshold); rc != 0) return rc;
  const Deadline deadline(timeout);
  while (may_go_on(cq, threshold, deadline)) {
    if (!may_sleep(cq, threshold)) continue;
    if (cq.sleeper.sleep(cq.wait_obj, deadline) == Slept::interrupted) break;
  }
  return read_from<Entry>(fid, buf, count, source);
}

template <typename Entry>
ssize_t sread(fid_cq* fid, void* buf, size_t count, const void* cond, int timeout) {
  return sread_from<Entry>(fid, buf, count, nullptr, cond, timeout);
}

int signal(fid_cq* fid) noexcept {
  auto& cq = object_of<FabricCq>(fid);
  if (cq.wait_obj == FI_WAIT_NONE)
    return refuse(-FI_EINVAL,
                  "fi_cq_signal: the queue was opened with FI_WAIT_NONE; nobody can be waiting");
  // SYNC POINT: cq-signal: the flag is seen by whoever the descriptor wakes
  cq.signaled.store(true, std::memory_order_release);
  if (has_fd(cq.wait_obj)) cq.sleeper.ring();
  return 0;
}

const char* strerror(fid_cq*, int prov_errno, const void* err_data, char* buf,
                     size_t len) noexcept {
  return error_text(prov_errno, err_data, buf, len);
}

template <typename Entry>
const fi_ops_cq g_ops = {
    .size = sizeof(fi_ops_cq),
    .read = read_plain<Entry>,
    .readfrom = read_from<Entry>,
    .readerr = read_error,
    .sread = sread<Entry>,
    .sreadfrom = sread_from<Entry>,
    .signal = signal,
    .strerror = strerror,
};

fi_ops_cq make_refusing() noexcept {
  const InForkedChild refusal;
  return {.size = sizeof(fi_ops_cq),
          .read = refusal,
          .readfrom = refusal,
          .readerr = refusal,
          .sread = refusal,
          .sreadfrom = refusal,
          .signal = refusal,
          .strerror = strerror};
}

}  // namespace

void fill_cq_reads(CallTables& tables) noexcept {
  tables.cq_context = g_ops<fi_cq_entry>;
  tables.cq_msg = g_ops<fi_cq_msg_entry>;
  tables.cq_data = g_ops<fi_cq_data_entry>;
  tables.cq_tagged = g_ops<fi_cq_tagged_entry>;
}

void turn_away_cq_reads(CallTables& tables) noexcept {
  tables.cq_context = tables.cq_msg = tables.cq_data = tables.cq_tagged = make_refusing();
}

fi_ops_cq* cq_ops(CallTables& tables, fi_cq_format format) noexcept {
  switch (format) {
    case FI_CQ_FORMAT_MSG: return &tables.cq_msg;
    case FI_CQ_FORMAT_DATA: return &tables.cq_data;
    case FI_CQ_FORMAT_TAGGED: return &tables.cq_tagged;
    default: return &tables.cq_context;
  }
}

}  // namespace aperture::provider
