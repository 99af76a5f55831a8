// Receives that name sources in part, or exactly: see ep_sources.hpp.
#include "provider/ep_sources.hpp"

#include <type_traits>

#include "provider/offer.hpp"

namespace aperture::provider {

SourceRule source_rule(const EpBody& body, bool tagged) noexcept {
  const uint64_t caps = body.rx_caps;
  const bool exact =
      body.domain->api_version >= kApi20 && (caps & kExactDirectedRecv) != 0;  // else another bit
  const bool tagged_alone = (caps & kTaggedDirectedRecv) != 0 && (caps & FI_DIRECTED_RECV) == 0;
  const bool any = exact || (caps & (FI_DIRECTED_RECV | kTaggedDirectedRecv)) != 0;
  if (!any || (tagged_alone && !tagged)) return SourceRule::none;
  return exact ? SourceRule::exact : SourceRule::named;
}

ssize_t read_source(const EpBody& body, const char* call, bool tagged, fi_addr_t& addr) noexcept {
  switch (source_rule(body, tagged)) {
    case SourceRule::none: addr = FI_ADDR_UNSPEC; return 0;
    case SourceRule::named: return 0;
    case SourceRule::exact: break;
  }
  if (addr != FI_ADDR_UNSPEC) [[likely]]
    return 0;
  return refuse(-FI_EINVAL,
                "%s: src_addr is FI_ADDR_UNSPEC, and the endpoint was opened with "
                "FI_EXACT_DIRECTED_RECV: each receive names the one whose message it takes",
                call);
}

namespace {

template <typename Ops>
const Ops& beneath(const Ep& ep) noexcept {
  if constexpr (std::is_same_v<Ops, fi_ops_msg>) return msg_ops_beneath_sources(ep);
  if constexpr (std::is_same_v<Ops, fi_ops_tagged>) return tagged_ops_beneath_sources(ep);
}
template <typename Ops, auto Slot, typename... Args>
ssize_t pass_on(fid_ep* fid, Args... args) noexcept {
  return (beneath<Ops>(object_of<Ep>(fid)).*Slot)(fid, args...);
}

// `Tag` as in ep_message_calls.hpp.
template <typename Ops, typename Msg, typename... Tag>
struct Sources {
  static constexpr bool kTagged = sizeof...(Tag) != 0;

  static ssize_t recv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source, Tag... tag,
                      Tag... ignore, void* context) noexcept {
    const auto& ep = object_of<Ep>(fid);
    const ssize_t rc = read_source(*ep.body, kTagged ? "fi_trecv" : "fi_recv", kTagged, source);
    if (rc != 0) return rc;
    return beneath<Ops>(ep).recv(fid, buf, len, desc, source, tag..., ignore..., context);
  }
  static ssize_t recvv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
                       Tag... tag, Tag... ignore, void* context) noexcept {
    const auto& ep = object_of<Ep>(fid);
    const ssize_t rc = read_source(*ep.body, kTagged ? "fi_trecvv" : "fi_recvv", kTagged, source);
    if (rc != 0) return rc;
    return beneath<Ops>(ep).recvv(fid, iov, desc, count, source, tag..., ignore..., context);
  }
  static ssize_t recvmsg(fid_ep* fid, const Msg* msg, uint64_t flags) noexcept {
    const auto& ep = object_of<Ep>(fid);
    // a claim is of the message that its context means
    const bool looks = msg != nullptr && (flags & (FI_PEEK | FI_CLAIM)) != FI_CLAIM;
    if (!looks) return beneath<Ops>(ep).recvmsg(fid, msg, flags);
    Msg read = *msg;
    const ssize_t rc =
        read_source(*ep.body, kTagged ? "fi_trecvmsg" : "fi_recvmsg", kTagged, read.addr);
    return rc != 0 ? rc : beneath<Ops>(ep).recvmsg(fid, &read, flags);
  }

  static constexpr Ops table() noexcept {
    return {.size = sizeof(Ops),
            .recv = recv,
            .recvv = recvv,
            .recvmsg = recvmsg,
            .send = pass_on<Ops, &Ops::send>,
            .sendv = pass_on<Ops, &Ops::sendv>,
            .sendmsg = pass_on<Ops, &Ops::sendmsg>,
            .inject = pass_on<Ops, &Ops::inject>,
            .senddata = pass_on<Ops, &Ops::senddata>,
            .injectdata = pass_on<Ops, &Ops::injectdata>};
  }
};

}  // namespace

fi_ops_msg sources_msg_ops() noexcept {
  return Sources<fi_ops_msg, fi_msg>::table();
}

fi_ops_tagged sources_tagged_ops() noexcept {
  return Sources<fi_ops_tagged, fi_msg_tagged, uint64_t>::table();
}

}  // namespace aperture::provider
