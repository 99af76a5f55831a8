// Sentences for operations that have failed: see explain.hpp.
#include "qp/explain.hpp"

#include <cstdio>

#include "base/log.hpp"
#include "protect/wording.hpp"

namespace aperture::qp {

namespace {

const RemoteRange& range_met(const Wqe& wqe) noexcept {
  assert(wqe.range_count > 0);
  return wqe.ranges[std::min<size_t>(wqe.range_at, wqe.range_count - 1u)];
}

// The sentence `text`, and what of the owner's regions we may know. May throw bad_alloc.
std::string explain_region(const QpCore& core, const char* text, const Wqe& wqe) {
  const RemoteRange& r = range_met(wqe);
  const protect::AccessAsk ask{
      core.lane->remote_domain, core.number,           Wild<uint64_t>(core.shown(r.key).key),
      Wild<uint64_t>(r.addr),   Wild<uint64_t>(r.len), need_of(wqe),
      core.port.endpoint};
  const protect::Wording& wording = *core.port.wording;
  if (core.lane->to_self)
    return protect::explain(core.port.keys.access(), ask, wqe.denial, wording);
  const auto* keys = core.lane->direct.keys;
  return text + (keys == nullptr ? protect::explain_unseen(wqe.denial, ask.need, wording)
                                 : keys->explain(core.lane->direct.pid, ask, wqe.denial, wording));
}

}  // namespace

void explain(const QpCore& core, const Wqe& wqe, CompletionError& e) noexcept {
  assert(wqe.error != Errc::ok);
  char text[320];
  static constexpr const char* kWhat[] = {"send", "remote write", "remote read", "remote atomic",
                                          "remote fetching atomic"};
  const char* what = kWhat[static_cast<size_t>(wqe.kind)];
  const protect::Wording& wording = *core.port.wording;
  const auto len = static_cast<unsigned long long>(wqe.len);
  // without a denial no region was met: there is no connection
  const bool refused = wqe.error == Errc::access_denied && wqe.denial != protect::Denial::none;
  try {
    const std::string remote = core.remote.text();
    if (refused && is_invalidation(wqe)) {
      std::snprintf(text, sizeof text,
                    "send of %llu bytes with invalidation of key 0x%llx was refused by %s, and not "
                    "delivered: %s",
                    len, static_cast<unsigned long long>(wqe.ranges[0].key), remote.c_str(),
                    protect::rule(wording, wqe.denial));
    } else if (refused) {
      const RemoteRange& r = range_met(wqe);
      std::snprintf(text, sizeof text,
                    "%s of %llu bytes at 0x%llx with key 0x%llx was refused by %s: %s", what,
                    static_cast<unsigned long long>(r.len), static_cast<unsigned long long>(r.addr),
                    static_cast<unsigned long long>(r.key), remote.c_str(),
                    protect::rule(wording, wqe.denial));
    } else {
      std::snprintf(text, sizeof text, "%s of %llu bytes to %s ended: %s%s", what, len,
                    remote.c_str(), describe(wqe.error),
                    wqe.error == Errc::access_denied
                        ? ": the endpoint there has another authorization key than ours, or one of "
                          "the two has none; give both the same auth_key"
                    : wqe.error == Errc::bad_buffer
                        ? ": keep the buffer mapped, and writable for a read, until it completes"
                        : "");
    }
    if (!refused || !core.lane) {
      e.sentence = text;
    } else if (is_invalidation(wqe)) {
      e.sentence = text + protect::explain_unseen(wqe.denial, protect::Rights::none, wording);
    } else {
      e.sentence = explain_region(core, text, wqe);
    }
    APERTURE_WARN("%s", e.sentence.c_str());
  } catch (...) {
    e.sentence.clear();  // out of memory: the code alone has to do
  }
}

}  // namespace aperture::qp
