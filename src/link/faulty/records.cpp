// Records of both languages, seen from outside: see records.hpp.
#include "link/faulty/records.hpp"

#include "wire/rc.hpp"
#include "wire/request.hpp"

namespace aperture::link::faulty {

namespace {

using wire::Op;
using wire::RcOp;

bool begins_request(const std::byte* body, bool only_messages) noexcept {
  wire::SoundHead head;
  if (wire::read_head(body, head) == 0) return false;
  switch (head.op()) {
    case Op::send:
    case Op::send_bytes:
    case Op::send_offer: return true;
    case Op::write:
    case Op::write_bytes:
    case Op::read:
    case Op::atomic:
    case Op::atomic_bytes:
      return !only_messages &&
             (head.op() == Op::atomic || head.op() == Op::atomic_bytes || head.has(wire::kFirst));
    default: return false;
  }
}

bool begins_rc(const std::byte* body, bool only_messages) noexcept {
  wire::RcMessage m;
  if (!wire::read_rc_head(body, m)) return false;
  switch (m.op) {
    case RcOp::send:
    case RcOp::send_bytes: return m.has(wire::kRcFirst);
    // the receive that the immediate data take is taken by its last piece
    case RcOp::write:
    case RcOp::write_bytes:
      return only_messages ? m.has(wire::kRcImm) && m.has(wire::kRcLast) : m.has(wire::kRcFirst);
    case RcOp::notice: return true;
    // only compared: its first part
    case RcOp::read:
      return !only_messages && wire::load_rc<wire::RcReadFields>(body).offset.unchecked() == 0;
    case RcOp::atomic:
    case RcOp::atomic_write:
    case RcOp::flush: return !only_messages;
    default: return false;
  }
}

}  // namespace

uint32_t cells_of(Language language, const std::byte* body) noexcept {
  if (language == Language::request) {
    wire::SoundHead head;
    return wire::read_head(body, head);
  }
  wire::RcMessage m;
  return wire::read_rc_head(body, m) ? m.n_cells : 0;
}

bool begins_operation(Language language, const std::byte* body) noexcept {
  return language == Language::request ? begins_request(body, false) : begins_rc(body, false);
}

bool begins_message(Language language, const std::byte* body) noexcept {
  return language == Language::request ? begins_request(body, true) : begins_rc(body, true);
}

bool put_not_ready(Language language, std::byte* body, uint64_t pos, uint8_t timer) noexcept {
  if (language == Language::request) return false;
  wire::store_rc(body, {static_cast<uint8_t>(RcOp::rnr), 0, 0, timer}, wire::RcAnswer{pos});
  return true;
}

}  // namespace aperture::link::faulty
