// The sockets of first contact: TCP to an endpoint's address, unix sockets of a process pair.
//
// Everything is non-blocking, CLOEXEC, moved high and closed in forked children. No state; the
// control thread calls these, and listen() of the contact calls listen_tcp() on its caller's.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "base/fork_guard.hpp"
#include "wire/hello.hpp"

namespace aperture::nic {

// Listens on exactly that address; the port is in `bound`. Errors: addr_in_use, addr_not_avail,
// no_fds, no_memory.
Result<ParentOnlyFd> listen_tcp(const Address& at, Address& bound) noexcept;
// Listens on all of these addresses under one port number, which nobody had; their ports are not
// looked at. Errors: addr_in_use (no number is free on all of them), and those of listen_tcp().
Result<std::vector<ParentOnlyFd>> listen_tcp_on_all(std::span<const Address> ips,
                                                    uint16_t& port) noexcept;
// Begins to connect, from that IP (any: the kernel chooses); writable when decided. Errors:
// refused, unreachable (also from there), no_fds.
Result<ParentOnlyFd> connect_tcp(const Address& to, Address from = {}) noexcept;
// What became of it. Errors: refused (also when it met itself: nobody listens), unreachable,
// timed_out.
Status connect_outcome(int fd) noexcept;
// Closing then sends RST and leaves no TIME_WAIT behind.
void close_without_waiting(int fd) noexcept;
// Errors: again (nobody there), no_fds, no_memory, io.
Result<ParentOnlyFd> accept_one(int fd) noexcept;
// Who accepts in the control thread takes so many before others have their turn, and pauses when
// there are no descriptors or no memory: it would fail again at once.
inline constexpr int kAcceptsAtOnce = 64;
inline constexpr uint64_t kNoDescriptorPauseNs = 10'000'000;
Address local_address(int fd) noexcept;
Address remote_address(int fd) noexcept;  // all zero: it is not connected any more
// Whether a connection between the two stays within this host: the kernel lets nobody in from
// elsewhere under an address of this host.
bool is_within_host(const Address& here, const Address& there) noexcept;

// Bytes of a stream. `got` grows; ok when all have come. Errors: again, peer_lost (end of stream,
// or a reset).
Status receive_bytes(int fd, std::span<std::byte> into, size_t& got) noexcept;
// All at once (small, on a fresh connection). Errors: peer_lost, again.
Status send_bytes(int fd, std::span<const std::byte> bytes) noexcept;

// A unix SOCK_SEQPACKET socket under the abstract name of those bits. Errors: addr_in_use,
// no_fds...
Result<ParentOnlyFd> listen_abstract(const wire::Id128& name) noexcept;
// Errors: refused (no such name), again (its queue is full), no_fds...
Result<ParentOnlyFd> connect_abstract(const wire::Id128& name) noexcept;
// The same under a name in that directory (O_PATH will do), for our user alone: mode 0600. Errors:
// addr_in_use, access_denied, no_space, no_fds, io...
Result<ParentOnlyFd> listen_in(int directory, const char* name) noexcept;
// Errors: io (no such name), invalid (it is no socket, but perhaps a link to one), access_denied
// (another user's, or not for ours), refused, again (its queue is full), no_fds...
Result<ParentOnlyFd> connect_in(int directory, const char* name) noexcept;
// Whether no process has the socket any more that this file (O_PATH) was bound to.
bool is_socket_dead(int file) noexcept;

struct Credentials {
  pid_t pid = 0;  // 0: not in our pid namespace
  uid_t uid = 0;
};
// Of the process that connected, or that listens (SO_PEERCRED). Errors: io.
Result<Credentials> peer_credentials(int fd) noexcept;

struct Packet {
  std::array<std::byte, wire::kMaxPeerMessageBytes + 1> bytes;
  size_t size = 0;
  std::array<UniqueFd, wire::kMaxDescriptors> fds;
  size_t fd_count = 0;
  bool fds_lost = false;  // we had no room for a descriptor that came with it
  std::span<const std::byte> view() const noexcept { return {bytes.data(), size}; }
};

// Errors: again, peer_lost.
Status send_packet(int fd, std::span<const std::byte> bytes, std::span<const int> fds) noexcept;
// Which descriptors may come with a packet.
enum class Expect : uint8_t {
  memory_and_bells,  // whose end keeps nobody waiting: closes_at_once()
  anything,          // from whom we trust as far as that
};
// Errors: again, peer_lost (end), protocol (too long, too many descriptors, or of another kind).
Status receive_packet(int fd, Packet& packet, Expect what = Expect::memory_and_bells) noexcept;
// Asked without taking it.
bool next_packet_brings_descriptors(int fd) noexcept;
// Who comes by listen_abstract() and listen_in() can send none before this (Linux 6.16). Errors:
// no_memory, and then he cannot; before Linux 6.16 none.
Status allow_descriptors(int fd) noexcept;
// Closes what one of these listens with, or who came by it: nobody waits for what lies in there
// unread (closer.hpp).
void close_listening(ParentOnlyFd socket) noexcept;
void close_stranger(ParentOnlyFd socket) noexcept;

}  // namespace aperture::nic
