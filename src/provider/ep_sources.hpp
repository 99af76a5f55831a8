// Whose messages a receive takes: what becomes of src_addr. man 3 fi_getinfo, FI_DIRECTED_RECV, and
// from API 2.0 on FI_TAGGED_DIRECTED_RECV and FI_EXACT_DIRECTED_RECV.
//
// The core reads the sources of all receives of an endpoint, or of none. Endpoints whose two kinds
// of receives differ, or whose sources have to be exact, have tables of their own for the calls, so
// that all others pay nothing. No state.
#pragma once

#include "provider/post_message.hpp"

namespace aperture::provider {

enum class SourceRule : uint8_t {
  none,   // src_addr is not looked at
  named,  // it is a source, or FI_ADDR_UNSPEC
  exact,  // it is a source
};
SourceRule source_rule(const EpBody& body, bool tagged) noexcept;
// Some receives of it name sources.
inline bool names_sources(const EpBody& body) noexcept {
  return source_rule(body, true) != SourceRule::none;  // untagged ones do not do so alone
}

// Such an endpoint's calls have to read src_addr first.
inline bool reads_sources(const EpBody& body, bool tagged) noexcept {
  const SourceRule rule = source_rule(body, tagged);
  return rule == SourceRule::exact || (rule == SourceRule::none && names_sources(body));
}
// Makes of src_addr what the core is to look at; 0 or the refusal.
ssize_t read_source(const EpBody& body, const char* call, bool tagged, fi_addr_t& addr) noexcept;

// Those calls; they make those that the endpoint would have otherwise.
fi_ops_msg sources_msg_ops() noexcept;
fi_ops_tagged sources_tagged_ops() noexcept;
// ep_msg.cpp, ep_tagged.cpp: the latter.
fi_ops_msg& msg_ops_beneath_sources(const Ep& ep) noexcept;
fi_ops_tagged& tagged_ops_beneath_sources(const Ep& ep) noexcept;

}  // namespace aperture::provider
