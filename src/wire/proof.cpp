// The text of a proof: see proof.hpp for the layout.
#include "wire/proof.hpp"

#include <cstring>

namespace aperture::wire {

namespace {

class Writer {
 public:
  explicit Writer(std::byte* at) noexcept : at_(at) {}
  void skip(size_t n) noexcept { at_ += n; }
  void number(uint64_t value, size_t bytes) noexcept {
    for (size_t i = 0; i < bytes; ++i) *at_++ = static_cast<std::byte>(value >> (8 * i));
  }
  void id(const Id128& id) noexcept {
    std::memcpy(at_, id.data(), id.size());
    at_ += id.size();
  }
  void address(const Address& address) noexcept {
    id(address.ip);
    number(address.port, 2);
  }

 private:
  std::byte* at_;
};

}  // namespace

std::array<std::byte, kStatementBytes> encode(const Statement& statement, Who who) noexcept {
  std::array<std::byte, kStatementBytes> out{};
  Writer to(out.data());
  to.number(kMagic, 8);
  to.number(kVersion, 2);
  to.number(static_cast<uint8_t>(who), 1);
  to.skip(5);
  to.id(statement.connector.nonce);
  to.id(statement.acceptor.nonce);
  to.id(statement.connector.incarnation);
  to.id(statement.acceptor.incarnation);
  to.address(statement.connector.address);
  to.address(statement.acceptor.address);
  to.number(statement.connector.address.index, 1);
  to.number(statement.acceptor.address.index, 1);
  to.skip(2);
  to.number(statement.ticket, 8);
  return out;
}

}  // namespace aperture::wire
