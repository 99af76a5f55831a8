// A peer written by hand, which may break every rule of first contact.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "base/doorbell.hpp"
#include "base/random.hpp"
#include "link/shm/segment.hpp"
#include "nic/identity.hpp"
#include "nic/sockets.hpp"
#include "wire/hello.hpp"

namespace aperture::nic::test {

inline bool readable(int fd, int timeout_ms = 3000) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

// The other side has closed, within the time.
inline bool closed_by_peer(int fd, int timeout_ms = 3000) {
  if (!readable(fd, timeout_ms)) return false;
  char byte;
  return ::recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

inline wire::Id128 random_id() {
  wire::Id128 id;
  random_bytes(id.data(), id.size());
  return id;
}

// What may come with Open.
inline int sealed_segment() {
  static auto segment = link::shm::Segment::create();
  return segment.value()->fd();
}
inline int doorbell() {
  static const UniqueFd fd = *make_doorbell();
  return fd.get();
}

struct RawClient {
  ParentOnlyFd tcp;
  ParentOnlyFd unix_socket;
  wire::Hello hello;
  wire::Answer answer;

  // What a process of this host may say there.
  static wire::Hello hello_to(const Address& to) {
    static Result<Identity> identity = Identity::read();
    EXPECT_TRUE(identity.ok());
    wire::Hello hello;
    hello.boot_id = identity.value().boot_id;
    hello.net_ns = identity.value().net_ns;
    hello.incarnation = random_id();
    hello.nonce = random_id();
    hello.source = Address::v4(0x7f000001, 9);  // nobody listens there
    hello.destination = to;
    return hello;
  }
  explicit RawClient(const Address& to) : hello(hello_to(to)) {
    auto socket = connect_tcp(to);
    EXPECT_TRUE(socket.ok());
    tcp = *std::move(socket);
    pollfd p{tcp.get(), POLLOUT, 0};
    EXPECT_EQ(::poll(&p, 1, 3000), 1);
  }

  bool say(std::span<const std::byte> bytes) { return send_bytes(tcp.get(), bytes).ok(); }
  bool greet() {
    if (!say(wire::encode(hello))) return false;
    std::array<std::byte, wire::kAnswerBytes> bytes;
    size_t got = 0;
    while (readable(tcp.get())) {
      const Status s = receive_bytes(tcp.get(), bytes, got);
      if (s.ok()) break;
      if (s.error() != Errc::again) return false;
    }
    auto decoded = wire::decode_answer(bytes);
    if (got != bytes.size() || !decoded) return false;
    answer = decoded.value();
    return true;
  }
  // What its hello is answered with.
  wire::Verdict verdict() {
    EXPECT_TRUE(greet());
    return answer.verdict;
  }
  bool knock() {
    auto socket = connect_abstract(answer.socket_name);
    if (!socket) return false;
    unix_socket = *std::move(socket);
    return true;
  }
  // All the way to where a lane can be asked for.
  bool enter() {
    const char* missing = !greet()              ? "answer"
                          : !knock()            ? "socket"
                          : !join(answer.nonce) ? "word of Joined"
                                                : nullptr;
    if (missing != nullptr) ADD_FAILURE() << "no " << missing;
    return missing == nullptr;
  }
  bool join(const wire::Id128& nonce) { return join_as(nonce, hello.incarnation); }
  // True if Joined came, with our nonce.
  bool join_as(const wire::Id128& nonce, const wire::Id128& incarnation) {
    wire::Join join;
    join.nonce = nonce;
    join.incarnation = incarnation;
    if (!send_packet(unix_socket.get(), wire::encode_join(join).view(), {}).ok()) return false;
    Packet packet;
    if (!receive(packet)) return false;
    auto joined = wire::decode_joined(packet.view());
    return joined.ok() && joined->nonce == hello.nonce;
  }
  bool receive(Packet& packet) {
    return readable(unix_socket.get()) && receive_packet(unix_socket.get(), packet).ok();
  }
  wire::Open good_open() const {
    wire::Open open;
    open.nonce = answer.nonce;
    open.ticket = Wild<uint64_t>(answer.ticket);
    open.source = hello.source;
    open.destination = hello.destination;
    open.segment = Wild<uint32_t>(1);
    open.attempt = Wild<uint32_t>(1);
    return open;
  }
  // What comes back: accept, or why it was rejected; nullopt if the socket was closed.
  struct Outcome {
    bool accepted = false;
    wire::Why why = wire::Why::no_endpoint;
  };
  std::optional<Outcome> open(const wire::Open& open, std::vector<int> fds) {
    if (!send_packet(unix_socket.get(), wire::encode(open).view(), fds).ok()) return std::nullopt;
    for (;;) {
      Packet packet;
      if (!receive(packet)) return std::nullopt;
      auto kind = wire::peer_message(packet.view());
      if (!kind) return std::nullopt;
      if (kind.value() == wire::PeerMessage::accept) return Outcome{true, {}};
      if (kind.value() == wire::PeerMessage::reject) {
        return Outcome{false, wire::decode_reject(packet.view())->why};
      }
    }
  }
  // Why Open is refused, though with sound descriptors.
  wire::Why refusal(const wire::Open& message) {
    const auto said = open(message, {sealed_segment(), doorbell()});
    EXPECT_TRUE(said.has_value()) << "the socket was closed";
    EXPECT_FALSE(said && said->accepted);
    return said ? said->why : wire::Why::no_endpoint;
  }
};

// Stands where an endpoint should be, and says what it is told to.
class Impostor {
 public:
  Impostor() {
    auto socket = listen_tcp(Address::v4(0x7f000001, 0), address);
    EXPECT_TRUE(socket.ok());
    tcp_ = *std::move(socket);
  }
  ParentOnlyFd accept() {
    EXPECT_TRUE(readable(tcp_.get()));
    auto got = accept_one(tcp_.get());
    EXPECT_TRUE(got.ok());
    return got.ok() ? *std::move(got) : ParentOnlyFd();
  }
  static wire::Hello hear(int fd) {
    std::array<std::byte, wire::kHelloBytes> bytes{};
    size_t got = 0;
    while (readable(fd) && receive_bytes(fd, bytes, got).error() == Errc::again) {
    }
    auto hello = wire::decode_hello(bytes);
    EXPECT_TRUE(hello.ok());
    return hello.ok() ? hello.value() : wire::Hello{};
  }
  // An offer to who said that, of this very host.
  static wire::Answer offer_to(const wire::Hello& hello) {
    wire::Answer answer;
    answer.verdict = wire::Verdict::offered;
    answer.boot_id = hello.boot_id;
    answer.net_ns = hello.net_ns;
    answer.incarnation = random_id();
    answer.nonce = random_id();
    answer.socket_name = random_id();
    answer.ticket = 1;
    return answer;
  }
  Address address;

 private:
  ParentOnlyFd tcp_;
};

}  // namespace aperture::nic::test
