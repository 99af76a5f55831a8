// FI_MULTI_RECV: buffers that take many messages. man 3 fi_msg, fi_tagged (2.x), fi_endpoint. Data
// path.
//
// Tagged receives may have it from API 2.0 on, and by a capability of their own
// (FI_TAGGED_MULTI_RECV). An endpoint whose receives are multi by default has its own tables of
// calls, so that all others pay nothing.
#include "provider/ep_multi_recv.hpp"

#include "provider/ep_described.hpp"

namespace aperture::provider {

namespace {

// `Tag` as in ep_message_calls.hpp.
template <typename... Tag>
ssize_t recvv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t source, Tag... tag,
              Tag... ignore, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  constexpr bool tagged = sizeof...(Tag) != 0;
  return recv_many(ep, tagged ? "fi_trecvv" : "fi_recvv",
                   {.iov = iov,
                    .count = count,
                    .addr = source,
                    .context = context,
                    .tag = (uint64_t{0} | ... | tag),
                    .ignore = (uint64_t{0} | ... | ignore),
                    .tagged = tagged},
                   ep.rx_completion);
}

template <typename... Tag>
ssize_t recv(fid_ep* fid, void* buf, size_t len, void*, fi_addr_t source, Tag... tag, Tag... ignore,
             void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  constexpr bool tagged = sizeof...(Tag) != 0;
  const iovec iov{buf, len};
  return recv_many(ep, tagged ? "fi_trecv" : "fi_recv",
                   {.iov = &iov,
                    .count = 1,
                    .addr = source,
                    .context = context,
                    .tag = (uint64_t{0} | ... | tag),
                    .ignore = (uint64_t{0} | ... | ignore),
                    .tagged = tagged},
                   ep.rx_completion);
}

}  // namespace

ssize_t make_multi_receive(const Ep& ep, const char* call, const Message& m, bool completion,
                           qp::RecvWr& wr) noexcept {
  if (!ep.may_recv) return refuse_side(call, "FI_RECV");
  if ((ep.body->rx_caps & multi_recv_cap(m.tagged)) == 0)
    return refuse(-FI_EBADFLAGS,
                  "%s: FI_MULTI_RECV on an endpoint that was opened without %s; ask for it in "
                  "hints->caps%s",
                  call, m.tagged ? "FI_TAGGED_MULTI_RECV" : "it",
                  m.tagged ? ", from API 2.0 on" : "");
  if (m.count != 1)
    return refuse(-FI_EINVAL,
                  "%s: FI_MULTI_RECV with %zu buffers; it takes a single one, post each by itself",
                  call, m.count);
  if (m.iov == nullptr || (m.iov->iov_base == nullptr && m.iov->iov_len != 0))
    return refuse_pieces(call, m.count, ep.rx_iov_limit);
  return make_receive(ep, call, m, completion, wr);
}

ssize_t recv_many(Ep& ep, const char* call, const Message& m, bool completion) noexcept {
  qp::RecvWr wr;
  if (const ssize_t rc = make_multi_receive(ep, call, m, completion, wr); rc != 0) return rc;
  return Now::recv_multi(ep, call, wr);
}

const fi_ops_msg& multi_recv_ops() noexcept {
  static const fi_ops_msg ops = [] {
    fi_ops_msg made = plain_msg_ops();
    made.recv = recv<>;
    made.recvv = recvv<>;
    return made;
  }();
  return ops;
}

const fi_ops_tagged& tagged_multi_recv_ops() noexcept {
  static const fi_ops_tagged ops = [] {
    fi_ops_tagged made = plain_tagged_ops();
    made.recv = recv<uint64_t>;
    made.recvv = recvv<uint64_t>;
    return made;
  }();
  return ops;
}

int set_min_multi_recv(EpBody& body, const void* value, size_t len) noexcept {
  size_t wanted = 0;
  if (len != sizeof wanted)
    return refuse(-FI_EINVAL,
                  "fi_setopt: FI_OPT_MIN_MULTI_RECV is a size_t (%zu bytes); optlen is %zu",
                  sizeof wanted, len);
  std::memcpy(&wanted, value, sizeof wanted);
  nic::EngineGuard guard(*body.domain->engine);
  body.min_multi_recv = wanted;  // of receives posted from now on
  return 0;
}

}  // namespace aperture::provider
