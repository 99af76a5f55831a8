// Questions to sock_diag(7): see port_owner.hpp.
#include "nic/port_owner.hpp"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace aperture::nic {

struct PortOwners::Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

namespace {

void put_ip(const Address& at, bool v4, __be32 (&out)[4]) noexcept {
  if (v4) {
    std::memcpy(out, at.ip.data() + 12, 4);
  } else {
    std::memcpy(out, at.ip.data(), 16);
  }
}

UniqueFd open_sock_diag() noexcept {
  UniqueFd socket(
      move_high(UniqueFd(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG))));
  const timeval patience{0, 100'000};  // the kernel answers within the send
  if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

}  // namespace

// to: null for a socket that listens.
PortOwners::Question PortOwners::question_about(const Address& at, const Address* to) noexcept {
  Question q;
  std::memset(&q, 0, sizeof q);
  q.header.nlmsg_len = sizeof q;
  q.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  q.header.nlmsg_flags = NLM_F_REQUEST;
  q.request.sdiag_family = at.is_v4() ? AF_INET : AF_INET6;
  q.request.sdiag_protocol = IPPROTO_TCP;
  q.request.idiag_states = to == nullptr ? 1u << TCP_LISTEN : ~0u;
  q.request.id.idiag_sport = htons(at.port);
  q.request.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  q.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  put_ip(at, at.is_v4(), q.request.id.idiag_src);
  if (to == nullptr) return q;
  q.request.id.idiag_dport = htons(to->port);
  put_ip(*to, at.is_v4(), q.request.id.idiag_dst);
  return q;
}

Result<inet_diag_msg> PortOwners::ask(const Question& question) noexcept {
  if (!socket_.is_here()) socket_ = ParentOnlyFd(open_sock_diag());
  if (!socket_) return Errc::io;
  assert(question.header.nlmsg_len == sizeof question);
  // kept for the next question only if this one has had its answer
  ParentOnlyFd socket = std::move(socket_);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(socket.get(), &question, sizeof question, 0,
               reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel) < 0) {
    return Errc::io;
  }
  alignas(nlmsghdr) char reply[4096];
  ssize_t n;
  do {
    n = ::recv(socket.get(), reply, sizeof reply, 0);
  } while (n < 0 && errno == EINTR);
  nlmsghdr header;
  if (n < static_cast<ssize_t>(sizeof header)) return Errc::io;
  assert(!socket_ && socket.is_here());
  socket_ = std::move(socket);
  std::memcpy(&header, reply, sizeof header);
  if (header.nlmsg_type == NLMSG_ERROR) return Errc::no_entry;
  inet_diag_msg found;
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < ssize_t{NLMSG_LENGTH(sizeof found)}) {
    return Errc::io;
  }
  std::memcpy(&found, reply + NLMSG_HDRLEN, sizeof found);
  return found;
}

Result<uid_t> PortOwners::of_port(const Address& at) noexcept {
  const auto found = ask(question_about(at, nullptr));
  if (!found) return found.error();
  // an established connection with that local port is not a listener
  if (found.value().idiag_state != TCP_LISTEN) return Errc::no_entry;
  return static_cast<uid_t>(found.value().idiag_uid);
}

Result<uid_t> PortOwners::of_connection(const Address& there, const Address& here) noexcept {
  const auto found = ask(question_about(there, &here));
  if (!found) return found.error();
  // where there is no such connection, the kernel tells of who listens at that port; and what has
  // been closed belongs to nobody
  if (found.value().idiag_state == TCP_LISTEN || found.value().idiag_inode == 0)
    return Errc::no_entry;
  return static_cast<uid_t>(found.value().idiag_uid);
}

}  // namespace aperture::nic
