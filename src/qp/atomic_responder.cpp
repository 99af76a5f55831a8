// Atomics of the peer: see atomic_responder.hpp.
#include "qp/atomic_responder.hpp"

#include <cstring>

#include "base/guarded_copy.hpp"

namespace aperture::qp {

using protect::AccessAsk;
using protect::Denial;
using transport::AtomicKind;
using transport::AtomicOp;
using transport::AtomicType;
using wire::Head;
using wire::Op;
using wire::SoundHead;

namespace {

constexpr uintptr_t kSmallPage = 4096;  // the smallest there is

// Ranges, their secrets, and both operands.
constexpr uint32_t kMostBytes =
    kRmaIovLimit * (sizeof(wire::AtomicRange) + sizeof(uint64_t)) + 2 * transport::kAtomicBytes;

}  // namespace

struct AtomicResponder::Request {
  AtomicOp op;
  AtomicType type;
  AtomicKind kind;
  size_t size;         // of an element
  uint64_t count = 0;  // elements of all ranges
  size_t range_count = 1;
  std::array<wire::Loaded<wire::AtomicRange>, kRmaIovLimit> ranges;
  std::array<uint64_t, kRmaIovLimit> elements;       // of each, bounded
  std::array<Wild<uint64_t>, kRmaIovLimit> secrets;  // of raw keys, else 0
  const std::byte* operand = nullptr;  // as many as `count`, and to compare with behind them

  uint64_t len() const noexcept { return count * size; }
  uint64_t payload() const noexcept { return len() * transport::operands_of(kind, op); }

  // False: no sound peer asks for that.
  bool decode(Wild<wire::AtomicCode> wild) noexcept {
    const wire::AtomicCode code = wild.unchecked();  // each number is looked at here
    op = static_cast<AtomicOp>(code.op);
    type = static_cast<AtomicType>(code.type);
    kind = static_cast<AtomicKind>(code.kind);
    size = transport::atomic_size(type);
    range_count = code.ranges;
    return code.kind < transport::kAtomicKinds && transport::atomic_offered(kind, op, type) &&
           range_count >= 1 && range_count <= kRmaIovLimit;
  }
  // Adds up the ranges; each is bounded before it is added.
  bool measure() noexcept {
    const uint64_t most = transport::kAtomicBytes / size;
    count = 0;
    for (size_t i = 0; i < range_count; ++i) {
      if (!ranges[i].count.bounded(most, elements[i]) || elements[i] == 0) return false;
      count += elements[i];
    }
    return count <= most;
  }
};

bool AtomicResponder::on_atomic(const SoundHead& head) noexcept {
  const ring::CellReader& cells = core_.lane->request_rx.cells;
  const auto f = wire::load_fields<wire::AtomicFields>(cells.body());
  Request r;
  r.ranges[0] = {head.word(), f.key, Wild<uint64_t>(f.count.unchecked())};
  r.secrets[0] = wire::load_secret(cells.body(), Op::atomic, head.flags());
  if (!r.decode(f.code) || r.range_count != 1 || !r.measure() || r.payload() != head.len()) {
    core_.break_protocol("an atomic that does not exist");
    return false;
  }
  std::array<std::byte, wire::kMaxInline> operands;
  ring::BodyReader(cells, wire::payload_offset(Op::atomic, head.flags()))
      .copy_out(operands.data(), head.len());
  r.operand = operands.data();
  return execute(r);
}

bool AtomicResponder::on_atomic_bytes(const SoundHead& head) noexcept {
  ring::ChannelRx& rx = core_.lane->request_rx;
  const auto f = wire::load_fields<wire::AtomicBytesFields>(rx.cells.body());
  const transport::BytesIn bytes = core_.lane.payload().take_bytes(
      rx, f.byte_pos, Wild<uint64_t>(f.len.unchecked()), kMostBytes);
  Request r;
  if (!bytes || !r.decode(f.code)) {
    core_.break_protocol("an atomic that does not exist, or outside its ring");
    return false;
  }
  const bool raw = head.has(wire::kRaw);
  const size_t secrets_at = r.range_count * sizeof(wire::AtomicRange);
  const size_t list = secrets_at + (raw ? r.range_count * sizeof(uint64_t) : 0);
  if (bytes.len < list) {
    core_.break_protocol("an atomic without its ranges");
    return false;
  }
  std::memcpy(static_cast<void*>(r.ranges.data()), bytes.from(), secrets_at);
  if (raw) {
    std::memcpy(static_cast<void*>(r.secrets.data()), bytes.from() + secrets_at, list - secrets_at);
  }
  if (!r.measure() || r.payload() != bytes.len - list) {
    core_.break_protocol("an atomic whose operands do not fit its ranges");
    return false;
  }
  // Operands stay where they are: each is read once, and whatever it then is, it is only a number.
  r.operand = bytes.from() + list;
  if (!execute(r)) return false;
  core_.lane.payload().done_with(rx, bytes);
  return true;
}

AccessAsk AtomicResponder::ask_of(const Request& r, size_t range_at) const noexcept {
  assert(range_at < r.range_count);
  return execution_.ask(r.ranges[range_at].key, r.ranges[range_at].addr,
                        Wild<uint64_t>(r.elements[range_at] * r.size),
                        transport::rights_for(r.kind, r.op), r.secrets[range_at]);
}

// Beyond the check: whole elements in each run of the region, aligned, in memory that is there. It
// is touched once for each page in one look at the ring, which takes microseconds.
Denial AtomicResponder::validate(const protect::Checked& checked, const Request& r) noexcept {
  if (!checked) return checked.denial();
  const bool writes = r.op != AtomicOp::read;
  if (checked.grant().is_in_device()) [[unlikely]] {
    // its driver finds out whether it is there
    const auto at = reinterpret_cast<uintptr_t>(checked.grant().data());
    return at % transport::atomic_alignment(r.type) == 0 ? Denial::none : Denial::misaligned;
  }
  Denial denial = Denial::none;
  (void)checked.grant().each_piece([&](std::byte* piece, size_t n) {
    const auto at = reinterpret_cast<uintptr_t>(piece);
    if (at % transport::atomic_alignment(r.type) != 0 || n % r.size != 0) {
      denial = Denial::misaligned;
      return false;
    }
    const uintptr_t page = at / kSmallPage;
    const bool one_page = (at + n - 1) / kSmallPage == page;
    if (one_page && page == touched_page_ && writes) return true;
    if (!guarded_touch(piece, n, writes)) {
      denial = Denial::not_backed;
    } else if (one_page && writes) {
      touched_page_ = page;
    }
    return denial == Denial::none;
  });
  return denial;
}

bool AtomicResponder::is_any_refused(const Request& r) noexcept {
  for (size_t i = 0; i < r.range_count; ++i) {
    const AccessAsk ask = ask_of(r, i);
    const Denial denial =
        validate(core_.port.keys.access().check(ask, &execution_.access().hint()), r);
    if (denial == Denial::none) continue;
    execution_.refuse(ask, denial, static_cast<uint8_t>(i));
    return true;
  }
  return false;
}

// Memory of a device is changed in a copy. Whatever comes through us runs under the engine's lock,
// and is atomic with it; what the device does by itself is not.
bool AtomicResponder::run_on_copy(const protect::Grant& grant, const Request& r,
                                  const Operands& at) noexcept {
  alignas(2 * sizeof(uint64_t)) std::array<std::byte, transport::kAtomicBytes> copy;
  const size_t n = grant.size();
  assert(n <= copy.size());
  if (!grant.copy_out(copy.data(), n)) return false;
  transport::execute_atomic(r.op, r.type, copy.data(), at.operand, at.compare, at.result,
                            n / r.size);
  return r.op == AtomicOp::read || grant.copy_in(copy.data(), n);
}

// Changes the memory, and puts the former values there if they are wanted. False: refused.
bool AtomicResponder::run(const Request& r, std::byte* result) noexcept {
  if (r.range_count > 1 && is_any_refused(r)) return false;
  Operands at{r.operand, r.kind == AtomicKind::compare ? r.operand + r.len() : nullptr, result};
  const auto advance = [&](size_t n) {
    if (transport::has_operand(r.op)) at.operand += n;
    if (at.compare != nullptr) at.compare += n;
    if (at.result != nullptr) at.result += n;
    return true;
  };
  for (size_t i = 0; i < r.range_count; ++i) {
    const AccessAsk ask = ask_of(r, i);
    const protect::Checked checked =
        core_.port.keys.access().check(ask, &execution_.access().hint());
    if (const Denial denial = validate(checked, r); denial != Denial::none) {
      execution_.refuse(ask, denial, static_cast<uint8_t>(i));  // the only range: nothing changed
      return false;
    }
    if (checked.grant().is_in_device()) [[unlikely]] {
      if (!run_on_copy(checked.grant(), r, at)) {
        execution_.refuse(ask, Denial::not_backed, static_cast<uint8_t>(i));
        return false;
      }
      advance(checked.grant().size());
    } else {
      (void)checked.grant().each_piece([&](std::byte* piece, size_t n) {
        transport::execute_atomic(r.op, r.type, piece, at.operand, at.compare, at.result,
                                  n / r.size);
        return advance(n);
      });
    }
    if (r.op != AtomicOp::read) execution_.note_write(checked.grant().region(), r.len());
  }
  APERTURE_DEBUG_ASSERT(!transport::has_operand(r.op) || at.operand == r.operand + r.len());
  return true;
}

bool AtomicResponder::execute(const Request& r) noexcept {
  ring::ChannelTx& tx = core_.lane->response_tx;
  if (!tx.room(wire::kMaxCells)) return execution_.wait_for_peer();
  APERTURE_DEBUG_ASSERT(r.count != 0 && r.len() <= transport::kAtomicBytes);
  execution_.begin_operation();
  const bool answers = r.kind != AtomicKind::base;
  const uint64_t pos = core_.lane->request_rx.cells.pos();
  const auto len = static_cast<uint16_t>(r.len());
  static_assert(transport::kAtomicBytes <= UINT16_MAX);
  if (answers && len > wire::kMaxInline) {
    uint64_t at = 0;
    const transport::Put put =
        core_.lane.payload().put_response_bytes(len, at, [&](std::byte* to) { return run(r, to); });
    if (put == transport::Put::no_room) return execution_.wait_for_peer();
    if (put == transport::Put::no_memory) execution_.refuse(ask_of(r, 0), Denial::not_backed);
    if (put != transport::Put::done) return true;
    wire::store(tx.cells.body(), Head::make(Op::read_data, 0, 0, pos),
                wire::DataFields{0, at, len});
    core_.lane.publish_response(1);
  } else {
    std::array<std::byte, wire::kMaxInline> small;
    if (!run(r, answers ? small.data() : nullptr)) return true;
    if (answers) {
      wire::store(tx.cells.body(), Head::make(Op::read_inline, 0, len, pos));
      ring::BodyWriter(tx.cells, wire::kHeadBytes).copy_in(small.data(), len);
      core_.lane.publish_response(wire::cells_of(Op::read_inline, 0, len));
    }
  }
  answers ? execution_.count_read() : execution_.count_write();
  return true;
}

}  // namespace aperture::qp
