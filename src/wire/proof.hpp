// What an endpoint proves at first contact: that it holds the authorization key which the other one
// holds. fi_endpoint(3), "auth_key".
//
// A proof is the keyed hash of a statement under the key. The statement names both sides of this
// very handshake (nonces, incarnations, addresses, ticket) and who says it, so a proof that was
// overheard says nothing in another handshake, nor back to whom it came from. Values; any thread.
//
//   Statement  0         8         10    11       16
//              | magic   | version | who | 0      | nonce of the connector, 16 |
//              32                            48
//              | nonce of the acceptor, 16   | incarnation of the connector, 16 |
//              64                        80              98             116          118 120
//              | incarnation of acceptor | connector, 18 | acceptor, 18 | indices, 2 | 0 | ticket |
//
//   who: 1 the connector (in Open, Connect), 2 the acceptor (in Accept, Connected). Over TCP the
//   packet follows, with zeros in the place of the proof; and two keyed hashes that nobody says are
//   the keys of the frames' tags (frame.hpp): 3 of the connector's frames, 4 of the acceptor's.
#pragma once

#include "wire/hello.hpp"

namespace aperture::wire {

inline constexpr size_t kStatementBytes = 128;

enum class Who : uint8_t {
  connector = 1,
  acceptor = 2,
  frames_of_connector = 3,
  frames_of_acceptor = 4,
};

struct Statement {
  struct Side {
    Id128 nonce{};
    Id128 incarnation{};
    Address address;
  };
  Side connector;
  Side acceptor;
  uint64_t ticket = 0;
};

std::array<std::byte, kStatementBytes> encode(const Statement& statement, Who who) noexcept;

}  // namespace aperture::wire
