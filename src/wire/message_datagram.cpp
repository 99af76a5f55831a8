// The codec of libfabric's datagrams: see message_datagram.hpp.
#include "wire/message_datagram.hpp"

#include "wire/codec.hpp"

namespace aperture::wire {

static_assert(kMessageData == 1, "the limit of the flags is the mask of all of them");

// Found by its arguments, so not in a nameless namespace.
static void fields(auto& io, Like<MessageHead> auto& head) noexcept {
  io.number(5, head.flags, kMessageData);
  io.number(6, head.length);
  io.number(8, head.group);
  io.number(12, head.group_port);
  io.zeros(14, 16);
  io.number(16, head.data);
}

void encode(const MessageHead& head, std::span<std::byte, kMessageHeaderBytes> out) noexcept {
  std::fill(out.begin(), out.end(), std::byte{0});
  store<uint32_t>(out, 0, kMessageDatagramMagic);
  store<uint8_t>(out, 4, kMessageDatagramVersion);
  write(head, out);
}

Result<MessageHead> decode_message_datagram(std::span<const std::byte> in) noexcept {
  if (in.size() < kMessageHeaderBytes || in.size() > kMessageHeaderBytes + kDatagramMtu) {
    return Errc::protocol;
  }
  if (load<uint32_t>(in, 0) != kMessageDatagramMagic) return Errc::protocol;
  if (load<uint8_t>(in, 4) != kMessageDatagramVersion) return Errc::protocol;
  auto head = read<MessageHead>(in);
  if (!head.ok()) return head;
  const bool sound = head->length.unchecked() == in.size() - kMessageHeaderBytes &&
                     ((head->flags & kMessageData) != 0 || head->data == 0) &&
                     (head->group.unchecked() != 0 || head->group_port.unchecked() == 0);
  if (!sound) return Errc::protocol;
  return head;
}

}  // namespace aperture::wire
