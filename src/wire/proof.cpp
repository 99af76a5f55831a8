// The text of a proof: see proof.hpp for the layout.
#include "wire/proof.hpp"

#include "wire/codec.hpp"

namespace aperture::wire {

std::array<std::byte, kStatementBytes> encode(const Statement& statement, Who who) noexcept {
  std::array<std::byte, kStatementBytes> out{};
  Writer to(out);
  to.number(0, kMagic);
  to.number(8, kVersion);
  to.number(10, static_cast<uint8_t>(who));
  to.bytes(16, statement.connector.nonce);
  to.bytes(32, statement.acceptor.nonce);
  to.bytes(48, statement.connector.incarnation);
  to.bytes(64, statement.acceptor.incarnation);
  to.address(80, statement.connector.address);
  to.address(98, statement.acceptor.address);
  to.halves(116, 118, statement.connector.address.index, Address::kMostIndex);
  to.halves(117, 119, statement.acceptor.address.index, Address::kMostIndex);
  to.number(120, statement.ticket);
  return out;
}

}  // namespace aperture::wire
