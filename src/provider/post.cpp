// Why a post is refused: see post.hpp.
#include "provider/post.hpp"

#include "base/log.hpp"
#include "nic/datagram_endpoint.hpp"

namespace aperture::provider {

ssize_t refuse_pieces(const char* call, size_t count, size_t limit) noexcept {
  if (count > limit) {
    APERTURE_WARN("%s: %zu pieces; the limit of this endpoint is %zu (iov_limit)", call, count,
                  limit);
  } else {
    APERTURE_WARN("%s: a buffer is NULL but has a length, or the lengths do not add up", call);
  }
  return -FI_EINVAL;
}

ssize_t refuse_length(const char* call, uint64_t len, uint64_t limit) noexcept {
  return refuse(-FI_EMSGSIZE, "%s: %llu bytes; the limit is %llu (inject_size or max_msg_size)",
                call, static_cast<unsigned long long>(len), static_cast<unsigned long long>(limit));
}

ssize_t refuse_flags(const char* call, uint64_t flags, uint64_t known) noexcept {
  if ((flags & ~known & FI_COMMIT_COMPLETE) != 0)
    return refuse(
        -FI_EBADFLAGS,
        "%s: FI_COMMIT_COMPLETE is for RMA writes of endpoints that were opened with FI_RMA_PMEM; "
        "FI_DELIVERY_COMPLETE is the highest level here",
        call);
  if ((flags & ~known & kAuthKeyFlag) != 0)
    return refuse(
        -FI_EBADFLAGS,
        "%s: FI_AUTH_KEY is for receives of endpoints that were opened with FI_DIRECTED_RECV in a "
        "domain with FI_AV_AUTH_KEY",
        call);
  if ((flags & ~known & (FI_CLAIM | FI_DISCARD)) != 0)
    return refuse(
        -FI_EBADFLAGS,
        "%s: FI_CLAIM and FI_DISCARD are for messages that wait to be claimed: those of an "
        "endpoint that was opened with FI_BUFFERED_RECV or FI_VARIABLE_MSG, or tagged ones",
        call);
  return refuse(-FI_EBADFLAGS, "%s: flags 0x%llx are not offered for this call", call,
                static_cast<unsigned long long>(flags & ~known));
}

ssize_t refuse_side(const char* call, const char* cap) noexcept {
  return refuse(-FI_EOPNOTSUPP, "%s: the endpoint was opened without %s; ask for it in hints->caps",
                call, cap);
}

ssize_t refuse_post(const char* call, Errc why, uint64_t addr) noexcept {
  if (nic::DatagramGroups::is_group(addr) && (why == Errc::no_entry || why == Errc::access_denied))
    return refuse(why == Errc::no_entry ? -FI_EINVAL : -FI_EACCES,
                  "%s: the multicast address is of no group that this endpoint has joined to send "
                  "to; fi_join it without FI_RECV, and pass what fi_mc_addr returns",
                  call);
  if (why == Errc::no_entry || why == Errc::addr_not_avail)
    return refuse(-FI_EINVAL, "%s: address %llu is not in the address vector; insert it first",
                  call, static_cast<unsigned long long>(addr));
  if (why == Errc::no_key)
    return refuse(
        fi_code(why),
        "%s: the key is not one that is mapped in this domain, which was opened with FI_MR_RAW; "
        "map the peer's raw key with fi_mr_map_raw and pass what that returns",
        call);
  return refuse(fi_code(why), "%s: %s", call, describe(why));
}

}  // namespace aperture::provider
