// What a peer may put into a lane: a queue pair with matching above it, whose peer is the fuzzer.
//
// The input is a program of small steps: cells, words and bytes that the peer writes (also between
// the polls of the victim), and calls that the victim's application makes. Values are raw or chosen
// from what a clever peer would know: positions, ids, keys, addresses. Never may the victim crash,
// hang, leak, write outside its buffers and its one region, or end an operation other than once.
#include <vector>

#include "fuzz/lane_game.hpp"
#include "msg/matcher.hpp"

namespace aperture {
namespace {

using fuzz::require;
using fuzz::Steps;
using wire::Op;

// What outlives an input: the key table with regions between canaries (one of them with a raw key),
// and one segment.
struct World : fuzz::LaneWorld {
  static constexpr uint64_t kKey = 0x11;
  static constexpr uint64_t kPeerKey = 0x22;
  static constexpr uint64_t kRawKey = 0x33;
  static constexpr uint64_t kSecret = 0x5ec12e7;
  static constexpr uint64_t kWindowKey = 0x44;  // a window of the victim's endpoint
  static constexpr protect::EndpointId kEndpoint = 0x7001;
  static constexpr auto kReadWrite = protect::Rights::remote_read | protect::Rights::remote_write;
  static constexpr auto kEverything = kReadWrite | protect::Rights::remote_atomic;

  World() : LaneWorld(64) {
    add(spec_of(own, memory.data(), kRegion, kKey, kEverything));
    add(spec_of(theirs, peer_memory.data(), kRegion, kPeerKey, kEverything));
    auto side = std::make_unique<protect::SideRecord>();
    side->segments.push_back({raw_memory.data(), kRegion, std::nullopt});
    side->secret = kSecret;
    auto raw = spec_of(own, raw_memory.data(), kRegion, kRawKey, kEverything);
    raw.zero_based = true;
    add(raw, std::move(side));
    open_segment();
  }
  // Bound anew for each input: the peer may have invalidated it.
  void bind_window() {
    auto spec = spec_of(own, memory.data(), kRegion / 2, kWindowKey, kReadWrite);
    spec.bound_to = kEndpoint;
    window = add(spec);
  }
  void end_window() {
    const bool was_bound = !keys->entries().is_over(window);
    require(keys->revocation().revoke_bound(window).ok() == was_bound &&
                keys->entries().is_over(window),
            "a window did not end");
  }
  void check() const {
    for (const auto* m : {&memory, &peer_memory, &raw_memory}) m->check();
  }

  protect::RegionHandle window;
  fuzz::GuardedMemory raw_memory;
};

World& world() {
  static World w;
  return w;
}

class Game final : public msg::Matcher::Host, private fuzz::LaneGame {
 public:
  Game(Steps& steps, uint8_t how)
      : LaneGame(steps, world(), how % 2 != 0), tx_cq_(64), rx_cq_(64), port_(*world().keys, 16) {
    World& w = world();
    w.bind_window();
    port_.domain = w.own;
    port_.endpoint = World::kEndpoint;
    port_.tx_cq = &tx_cq_;
    port_.rx_cq = &rx_cq_;
    port_.set_imm_flag(1);
    port_.set_invalidated_flag(2);
    port_.release_flag = kRelease;
    port_.remote_read_counter = &remote_reads_;
    port_.remote_write_counter = &remote_writes_;
    port_.tx.size = 64;
    if (how / 2 % 2 != 0) {
      port_.raw_keys = &mapped_;
      peer_key_ = *mapped_.map({World::kPeerKey, World::kSecret, wire::kRaw});
    }
    matcher_ = std::make_unique<msg::Matcher>(port_, *this, 16, true, true);
    port_.sink = matcher_.get();
    qp_ = std::make_unique<qp::Qp>(port_, Address{});
    qp_->attach(connect());
  }

  ~Game() override {
    qp_->ending().lose(Errc::peer_lost);
    for (int i = 0; i < 8; ++i) poll();
    end();
    matcher_->cancel_all(Errc::canceled);
    drain();
    for (size_t i = 0; i < operations_.size(); ++i) {
      require(operations_[i].ended == 1, "an operation did not end exactly once");
    }
    require(port_.tx.wqes.out() == 0, "a WQE has leaked");
    require(port_.tx.atomics.out() == 0, "a waiting atomic has leaked");
    require(port_.tx.queued == 0, "the count of queued operations is wrong");
    qp_.reset();
    matcher_.reset();
    disconnect();
    world().end_window();
    world().check();
  }

  void step(unsigned what) {
    switch (what) {
      case 0: put(peer_->request_tx); break;
      case 1: put(peer_->response_tx); break;
      case 2: scribble_word(8, [this] { return value(); }); break;
      case 3: scribble_bytes(); break;
      case 4: poll(); break;
      case 5: post_recv(); break;
      case 6: post_send(); break;
      case 7: post_rma(); break;
      case 8: drain(); break;
      case 9: ask_matcher(); break;
      case 10: acknowledge(); break;
      case 11:
        switch (steps_.take<uint8_t>()) {
          case 0xee: qp_->ending().lose(Errc::peer_lost); break;
          case 0xa0: put_atomic(0); break;
          case 0xa1: put_atomic_bytes(0); break;
          case 0xa2: post_atomic(); break;
          case 0xa3: put_atomic(wire::kRaw); break;
          case 0xa4: put_atomic_bytes(wire::kRaw); break;
          case 0xa5: (void)mapped_.unmap(peer_key_); break;
          case 0xa6: put_invalidate(); break;
          case 0xa7: put_invalidating_send(); break;
        }
        break;
    }
  }

 private:
  // A number as a peer would choose it.
  uint64_t value() {
    return choose([this](unsigned which, uint64_t small) -> uint64_t {
      if (which == 3) return peer_->request_rx.cells.pos() + small;
      if (which == 6) return last_offer_ - small / 128;
      if (which == 7) return last_receive_;
      return small == World::kRawKey      ? World::kRawKey
             : small == World::kWindowKey ? World::kWindowKey
             : small == 1                 ? World::kSecret
                                          : World::kKey;
    });
  }

  uint64_t source_of(qp::Qp&) noexcept override { return 3; }
  void set_pressure(bool on) noexcept override { qp_->set_pressure(on); }

  struct Operation {
    std::unique_ptr<std::byte[]> buffer;  // on the heap, so that ASan guards its ends
    iovec iov;
    int ended = 0;
    bool multi = false;  // ends with its release, after any number of messages
  };

  void put(ring::ChannelTx& tx) {
    const uint8_t op = steps_.take<uint8_t>();
    const uint8_t flags = steps_.take<uint8_t>();
    const uint16_t len = steps_.take<uint16_t>();
    const auto head = wire::Head::make(static_cast<Op>(op), flags, len, value());
    wire::store(tx.cells.body(), head);
    uint64_t fields[6];
    const unsigned count = op == uint8_t(Op::write_bytes) ? 5 : 3;
    for (unsigned i = 0; i < count; ++i) fields[i] = value();
    if (op == uint8_t(Op::send_offer)) fields[2] &= 0xff'ffff'ffff;  // claim words that exist
    const size_t bytes = sizeof(uint64_t) * count;
    std::memcpy(tx.cells.body() + wire::kHeadBytes, fields, bytes);
    if ((flags & wire::kRaw) != 0 && wire::names_key(static_cast<Op>(op))) {
      wire::store_secret(tx.cells.body(), static_cast<Op>(op), flags, value());
    }
    publish(tx, wire::cells_of(static_cast<Op>(op), flags, len));
  }

  void put_invalidate() {
    last_invalidated_ = steps_.take<uint8_t>() < 128 ? World::kWindowKey : value();
    ring::ChannelTx& tx = peer_->request_tx;
    const auto head = wire::Head::make(Op::invalidate, 0, 0, last_invalidated_);
    wire::store(tx.cells.body(), head);
    tx.cells.publish(1);
  }
  // Of any of the three kinds, mostly with the key that goes before it.
  void put_invalidating_send() {
    const uint8_t how = steps_.take<uint8_t>();
    const Op op = how % 4 == 0 ? Op::send_bytes : how % 4 == 1 ? Op::send_offer : Op::send;
    const uint16_t len = op == Op::send ? how : uint16_t{0};
    ring::ChannelTx& tx = peer_->request_tx;
    const auto flags = static_cast<uint8_t>(wire::kImm | wire::kInvalidates | (how / 8 % 2));
    const auto head = wire::Head::make(op, flags, len, how);
    wire::store(tx.cells.body(), head);
    const uint64_t fields[3] = {value(), value(), value() & 0xff'ffff'ffff};
    if (op != Op::send) {
      std::memcpy(tx.cells.body() + wire::kHeadBytes, fields, wire::field_bytes(op));
    }
    const uint64_t key = how < 240 ? last_invalidated_ : value();
    std::memcpy(tx.cells.body() + wire::kHeadBytes + wire::field_bytes(op), &key, sizeof key);
    tx.cells.publish(wire::cells_of(op, flags, len));
  }

  // Numbers of atomics that exist, and some that do not.
  wire::AtomicCode atomic_code() {
    const auto pick = [this](unsigned limit) {
      const uint8_t v = steps_.take<uint8_t>();
      return static_cast<uint8_t>(v < 250 ? v % limit : v);
    };
    return {pick(transport::kAtomicOps + 1), pick(transport::kAtomicTypes + 1),
            pick(transport::kAtomicKinds), static_cast<uint8_t>(pick(4) + 1)};
  }
  // The length that would be right, most of the time.
  uint64_t atomic_len(const wire::AtomicCode& code, uint64_t count) {
    const uint8_t off = steps_.take<uint8_t>();
    const auto type = static_cast<transport::AtomicType>(code.type);
    const uint64_t len = count * transport::atomic_size(type) *
                         transport::operands_of(static_cast<transport::AtomicKind>(code.kind),
                                                static_cast<transport::AtomicOp>(code.op));
    return off < 240 ? len : len + off - 248;
  }
  void put_atomic(uint8_t flags) {
    wire::AtomicCode code = atomic_code();
    if (code.ranges < 4) code.ranges = 1;
    const uint32_t count = steps_.take<uint8_t>() % 20;
    const auto len = static_cast<uint16_t>(atomic_len(code, count));
    ring::ChannelTx& tx = peer_->request_tx;
    const auto head = wire::Head::make(Op::atomic, flags, len, value());
    wire::store(tx.cells.body(), head);
    wire::store_fields(tx.cells.body(), wire::AtomicFields{value(), code, count});
    if (flags != 0) wire::store_secret(tx.cells.body(), Op::atomic, flags, value());
    publish(tx, wire::cells_of(Op::atomic, flags, len));
  }
  void put_atomic_bytes(uint8_t flags) {
    const wire::AtomicCode code = atomic_code();
    ring::ChannelTx& tx = peer_->request_tx;
    const uint64_t at = uint64_t{steps_.take<uint8_t>()} * 64;
    uint64_t elements = 0;
    for (unsigned i = 0; i < code.ranges && i < 9; ++i) {
      wire::AtomicRange range{value(), value(), steps_.take<uint16_t>() % 1100u};
      if (range.count == 1099) range.count = value();
      elements += range.count;
      std::memcpy(tx.bytes.at(at + i * sizeof range), &range, sizeof range);
    }
    uint64_t len = code.ranges * sizeof(wire::AtomicRange);
    for (unsigned i = 0; flags != 0 && i < code.ranges && i < 9; ++i) {
      const uint64_t secret = value();
      std::memcpy(tx.bytes.at(at + len + i * 8), &secret, sizeof secret);
    }
    if (flags != 0) len += code.ranges * uint64_t{8};
    len += atomic_len(code, elements);
    const auto head = wire::Head::make(Op::atomic_bytes, flags, 0, 0);
    wire::store(tx.cells.body(), head);
    const uint64_t pos = steps_.take<uint8_t>() < 240 ? at : value();
    wire::store_fields(tx.cells.body(),
                       wire::AtomicBytesFields{pos, code, static_cast<uint32_t>(len)});
    tx.cells.publish(1);
  }

  // Lets the victim do a bounded amount of work, and looks at what it said, as a peer can.
  void poll() {
    for (int n = steps_.take<uint8_t>() % 4 + 1; n > 0; --n) {
      if (qp_->needs_wind_up()) end();
      qp_->poll(++polls_);
    }
    look(peer_->request_rx, [this](const std::byte* body) {
      wire::SoundHead head;
      const uint32_t n_cells = wire::read_head(body, head);
      if (head.op() == Op::send_offer) {
        last_offer_ = wire::load_fields<wire::SendOfferFields>(body).id.unchecked();
      }
      return n_cells;
    });
    look(peer_->response_rx, [this](const std::byte* body) {
      wire::SoundHead head;
      const uint32_t n_cells = wire::read_head(body, head);
      if (head.op() == Op::grant) {
        last_receive_ = wire::load_fields<wire::GrantFields>(body).receive_id.unchecked();
      }
      return n_cells;
    });
  }

  Operation* make_operation(size_t size) {
    if (operations_.size() >= 48) return nullptr;
    Operation o;
    o.buffer = std::make_unique<std::byte[]>(size);
    o.iov = {o.buffer.get(), size};
    operations_.push_back(std::move(o));
    return &operations_.back();
  }
  void* context() { return reinterpret_cast<void*>(operations_.size()); }
  size_t a_size() {
    constexpr size_t kSizes[] = {0, 1, 8, 48, 100, 256, 257, 5000, 16384, 40000, 70000, 200000};
    return kSizes[steps_.take<uint8_t>() % 12];
  }

  void post_recv() {
    const uint8_t how = steps_.take<uint8_t>();
    Operation* o = make_operation(a_size());
    if (o == nullptr) return;
    qp::RecvWr wr;
    wr.iov = &o->iov;
    wr.iov_count = 1;
    wr.len = o->iov.iov_len;
    wr.tagged = how % 2 != 0;
    wr.ignore = how % 4 < 2 ? ~uint64_t{0} : 0;
    wr.tag = how;
    wr.source = how % 8 == 0 ? 5 : qp::kAnySource;
    wr.context = context();
    o->multi = how % 16 == 6;
    wr.completion = how % 32 != 22;
    const Status posted = o->multi ? matcher_->recv_multi(wr, how / 4) : matcher_->recv(wr);
    if (!posted) operations_.pop_back();
  }
  void post_send() {
    const uint8_t how = steps_.take<uint8_t>();
    Operation* o = make_operation(a_size());
    if (o == nullptr) return;
    qp::SendWr wr;
    wr.iov = &o->iov;
    wr.iov_count = 1;
    wr.len = o->iov.iov_len;
    wr.tagged = how % 2 != 0;
    wr.delivery = how % 4 != 1 ? 0 : how % 8 == 1 ? qp::kMatched : qp::kDelivered;
    wr.has_imm = how % 8 == 0;
    if (how % 4 == 3) {  // with invalidation
      wr.delivery = qp::kInvalidating | (how % 8 == 3 ? qp::kDelivered : qp::kMatched);
      wr.has_imm = true;
      wr.imm = how % 16 < 12 ? peer_key_ : 7;
    }
    wr.context = context();
    if (!qp_->requester().send(wr)) operations_.pop_back();
  }
  void post_rma() {
    const uint8_t how = steps_.take<uint8_t>();
    Operation* o =
        make_operation(std::min<size_t>(a_size(), how % 16 == 0 ? 200000 : World::kRegion));
    if (o == nullptr) return;
    const uint64_t base = world().peer_memory.address();
    const uint64_t half = o->iov.iov_len / 2;
    const qp::RemoteRange ranges[2] = {
        {base, how % 4 == 0 ? o->iov.iov_len : half, peer_key_},
        {base + half, o->iov.iov_len - half, how % 32 == 3 ? World::kKey : peer_key_}};
    qp::RmaWr wr;
    wr.iov = &o->iov;
    wr.iov_count = 1;
    wr.len = o->iov.iov_len;
    wr.ranges = ranges;
    wr.range_count = how % 4 == 0 ? 1 : 2;
    wr.has_imm = how % 8 == 4;
    wr.fence = how % 8 == 5;
    wr.context = context();
    const auto kind = how % 2 == 0 ? qp::WqeKind::write : qp::WqeKind::read;
    if (kind == qp::WqeKind::read) wr.has_imm = false;
    if (!qp_->requester().rma(kind, wr)) operations_.pop_back();
  }

  // Operand, compare and result are all one buffer: what is in it does not matter.
  void post_atomic() {
    const uint8_t how = steps_.take<uint8_t>();
    constexpr size_t kCounts[] = {1, 1, 2, 32, 33, 100, 1024, 3};
    qp::AtomicWr wr;
    wr.kind = static_cast<transport::AtomicKind>(how % 3);
    wr.op = wr.kind == transport::AtomicKind::compare                 ? transport::AtomicOp::cswap
            : how % 4 == 1 && wr.kind == transport::AtomicKind::fetch ? transport::AtomicOp::read
                                                                      : transport::AtomicOp::sum;
    Operation* o = make_operation(kCounts[how / 3 % 8] * 8);
    if (o == nullptr) return;
    wr.len = o->iov.iov_len;
    const uint64_t base = world().peer_memory.address();
    const bool two = wr.len > 8 && how >= 128;
    const qp::RemoteRange ranges[2] = {{base, two ? 8 : wr.len, peer_key_},
                                       {base + 64, wr.len - 8, peer_key_}};
    wr.ranges = ranges;
    wr.range_count = two ? 2 : 1;
    wr.operand = wr.compare = wr.result = &o->iov;
    wr.operand_count = wr.op == transport::AtomicOp::read ? 0 : 1;
    wr.compare_count = wr.kind == transport::AtomicKind::compare ? 1 : 0;
    wr.result_count = wr.kind == transport::AtomicKind::base ? 0 : 1;
    wr.inject = wr.len <= qp::kInjectBytes && how % 5 == 0;
    wr.fence = how % 7 == 0;
    wr.context = context();
    if (!qp_->requester().atomic(wr)) operations_.pop_back();
  }

  void ask_matcher() {
    const uint8_t how = steps_.take<uint8_t>();
    if (how % 8 == 7) {
      void* of = reinterpret_cast<void*>(uint64_t{steps_.take<uint8_t>()});
      if (!matcher_->cancel(of)) (void)qp_->requester().cancel(of);
      return;
    }
    msg::Probe probe;
    probe.action = static_cast<msg::Probe::Action>(how % 5);
    probe.match.tagged = how % 2 != 0;
    probe.match.ignore = ~uint64_t{0};
    probe.match.context = reinterpret_cast<void*>(kProbe);
    std::byte nowhere[8];
    const iovec iov{nowhere, sizeof nowhere};
    if (probe.action == msg::Probe::Action::claim) {
      Operation* o = make_operation(a_size());
      if (o == nullptr) return;
      probe.match.iov = &o->iov;
      probe.match.iov_count = 1;
      probe.match.len = o->iov.iov_len;
      probes_.push_back(operations_.size() - 1);
      operations_.back().ended = 1;  // told under kProbe
      (void)matcher_->probe(probe);
      return;
    }
    probe.match.iov = &iov;
    (void)matcher_->probe(probe);
  }

  void drain() {
    for (qp::Cq* cq : {&tx_cq_, &rx_cq_}) {
      while (!cq->empty()) {
        void* of = cq->front().context;
        uint64_t flags = cq->front().flags;
        if (cq->error_first()) {
          const qp::CompletionError e = cq->pop_error();
          of = e.entry.context;
          flags = e.entry.flags;
        } else {
          cq->pop();
        }
        const auto nth = reinterpret_cast<uint64_t>(of);
        if (nth == 0 || nth == kProbe) continue;  // a notice, or a look
        require(nth <= operations_.size(), "a completion of nothing");
        Operation& o = operations_[nth - 1];
        require(o.ended == 0, "told again after its end");
        if (!o.multi || (flags & kRelease) != 0) ++o.ended;
      }
    }
  }

  void end() {
    if (qp_->state() == qp::QpState::dead) return;
    matcher_->on_lost(*qp_, Errc::peer_lost);
    qp_->finish(Errc::protocol);
  }

  static constexpr uint64_t kProbe = 1'000'000;
  static constexpr uint64_t kRelease = 1u << 16;

  qp::Cq tx_cq_, rx_cq_;
  qp::Counter remote_reads_, remote_writes_;
  qp::RawKeys mapped_;
  uint64_t peer_key_ = World::kPeerKey;  // as operations name it
  qp::Port port_;
  std::unique_ptr<msg::Matcher> matcher_;
  std::unique_ptr<qp::Qp> qp_;
  std::vector<Operation> operations_;
  std::vector<size_t> probes_;
  uint64_t last_offer_ = 0;
  uint64_t last_invalidated_ = 0;
  uint64_t last_receive_ = 0;
};

}  // namespace
}  // namespace aperture

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return aperture::fuzz::play<aperture::Game>(data, size);
}
