// What a peer may put into the lane of a connected verbs queue pair, whose peer is the fuzzer.
//
// The input is a program of small steps: cells, words and bytes that the peer writes (also between
// the polls of the victim), and calls that the victim's application makes: posts, state changes,
// windows bound and invalidated, a lane lost and a new one. Values are raw or chosen from what a
// clever peer would know: positions, keys, addresses. Never may the victim crash, hang, leak, write
// outside its buffers and its region, or end a work request other than once.
#include <vector>

#include "base/clock.hpp"
#include "fuzz/lane_game.hpp"
#include "ib/rc_qp.hpp"
#include "ib/window_book.hpp"

namespace aperture {
namespace {

using fuzz::require;
using fuzz::Steps;
using ib::QpState;
using ib::QpType;
using ib::SendOp;
using protect::Rights;
using wire::RcOp;

constexpr Rights kLocal = Rights::local_read | Rights::local_write;
constexpr Rights kRemote = Rights::remote_read | Rights::remote_write | Rights::remote_atomic |
                           Rights::flush_global | Rights::flush_persistent;
constexpr uint32_t kAllowAll = 14 | ib::kAllowFlushGlobal | ib::kAllowFlushPersistent;

// What outlives an input: the key table with regions between canaries, and one segment.
struct World : fuzz::LaneWorld {
  static constexpr uint32_t kKey = 0x1101;
  static constexpr uint32_t kPeerKey = 0x2201;
  static constexpr uint32_t kFirstBuffer = 0x4000;

  World() : LaneWorld(256) {
    numbers = std::move(protect::KeyNumbers::create(16)).value();
    region.pd = own;
    region.base = region.origin = memory.address();
    region.length = kRegion;
    region.rights = kLocal | kRemote | Rights::bind_window;
    region.windows = &windows_of_region;
    region.entry = add(spec_of(own, memory.data(), kRegion, kKey, region.rights));
    add(spec_of(theirs, peer_memory.data(), kRegion, kPeerKey, kRemote));
    open_segment();
  }
  void check() const {
    memory.check();
    peer_memory.check();
  }

  std::unique_ptr<protect::KeyNumbers> numbers;
  protect::BindableRegion region;
  protect::WindowCount windows_of_region;
};

World& world() {
  static World w;
  return w;
}

class Game final : public ib::LaneHost,
                   public ib::CqEvents,
                   public ib::QpEvents,
                   private fuzz::LaneGame {
 public:
  Game(Steps& steps, uint8_t how)
      : LaneGame(steps, world(), how % 2 != 0),
        send_cq_(128, *this, false),
        recv_cq_(128, *this, false) {
    World& w = world();
    window_ = std::move(protect::Window::create(*w.keys, *w.numbers, w.own,
                                                how % 8 < 4 ? protect::WindowType::type_2b
                                                            : protect::WindowType::type_1))
                  .value();
    book_.windows.add(*window_);
    require(book_.enter_region(World::kKey, w.region).ok(), "no memory");
    ib::QpSpec spec;
    spec.type = how / 2 % 2 == 0 ? QpType::rc : QpType::uc;
    spec.qpn = 0x101;
    spec.keys = w.keys.get();
    spec.pd = w.own;
    spec.windows = &book_;
    spec.send_cq = &send_cq_;
    spec.recv_cq = &recv_cq_;
    spec.max_send_wr = spec.max_recv_wr = kOperations;
    spec.max_send_sge = spec.max_recv_sge = 3;
    spec.max_inline_bytes = 64;
    spec.sq_sig_all = true;
    spec.events = this;
    qp_ = std::make_unique<ib::RcQp>(spec, *this);
    bring_up();
    join();
  }

  ~Game() override {
    if (steps_.take<uint8_t>() % 2 == 0) qp_->lose();
    bring_to(QpState::err);
    drain();
    for (const Operation& o : operations_) {
      require(o.ended == 1, "a work request did not end exactly once");
    }
    require(qp_->lane() == nullptr, "a lane is held by a queue pair that is over");
    qp_->leave();
    book_.windows.remove(*window_);
    require(window_->close() == protect::WindowAnswer::done, "a window does not close");
    window_.reset();
    qp_.reset();
    part();
    World& w = world();
    for (const Operation& o : operations_) {
      require(w.keys->revocation().revoke(o.region, now_ns() + 1'000'000'000).ok(),
              "a region does not close");
    }
    w.check();
  }

  void step(unsigned what) {
    switch (what) {
      case 0: put_request(); break;
      case 1: put_response(); break;
      case 2:
        if (peer_ != nullptr) scribble_word(6, [this] { return value(); });
        break;
      case 3:
        if (peer_ != nullptr) scribble_bytes();
        break;
      case 4: poll(); break;
      case 5: post_recv(); break;
      case 6: post_send(); break;
      case 7: put_request(); break;
      case 8: drain(); break;
      case 9: post_local(); break;
      case 10:
        if (peer_ != nullptr) acknowledge();
        break;
      case 11: change_state(); break;
    }
  }

  void want_lane() noexcept override { wanted_ = true; }
  void give_back(std::unique_ptr<link::Lane> lane) noexcept override {
    returned_ = std::move(lane);
  }
  void share_taken() noexcept override {}
  void on_completion_event() noexcept override {}
  void on_overrun() noexcept override { require(false, "a completion queue is overrun"); }
  void on_async_event(ib::AsyncEvent) noexcept override {}

 private:
  static constexpr uint32_t kOperations = 48;

  struct Operation {
    std::unique_ptr<std::byte[]> buffer;  // on the heap, so that ASan guards its ends
    size_t size = 0;
    protect::RegionHandle region;
    int ended = 0;
  };

  void bring_to(QpState state) {
    ib::QpAttributes attr;
    attr.state = state;
    qp_->modify(attr, ib::kAttrState);
  }
  void bring_up() {
    ib::QpAttributes attr;
    const uint8_t how = steps_.take<uint8_t>();
    attr.access = how % 8 == 7 ? 0 : kAllowAll;
    attr.rnr_retry = how / 8 % 8;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = how < 250 ? 4 : 0;
    for (const QpState state : {QpState::init, QpState::rtr, QpState::rts}) {
      attr.state = state;
      qp_->modify(attr, ib::kAttrState | ib::kAttrAccessFlags | ib::kAttrRnrRetry |
                            ib::kAttrMaxRdAtomic | ib::kAttrMaxDestRdAtomic);
    }
  }
  void join() {
    wanted_ = false;
    qp_->attach(connect());
  }
  void part() {
    if (peer_ == nullptr) return;
    require(returned_ != nullptr, "a lane was not given back");
    returned_.reset();
    disconnect();
  }

  // A number as a peer would choose it.
  uint64_t value() {
    return choose([this](unsigned which, uint64_t small) -> uint64_t {
      if (which == 3) return peer_->request_rx.cells.pos() - small / 32;
      if (which == 6) return window_->key() + small / 128;
      return which == 7 ? World::kRegion - small : World::kKey;
    });
  }
  uint32_t value32() { return static_cast<uint32_t>(value()); }

  template <typename Fields>
  void put(ring::ChannelTx& tx, RcOp op, const Fields& f) {
    const uint8_t flags = steps_.take<uint8_t>();
    const auto len = static_cast<uint16_t>(steps_.take<uint8_t>() < 240 ? steps_.take<uint8_t>()
                                                                        : steps_.take<uint16_t>());
    const uint8_t how = steps_.take<uint8_t>();
    const wire::RcHead head{static_cast<uint8_t>(op), flags, len, how < 128 ? how : value32()};
    wire::store_rc(tx.cells.body(), head, f);
    publish(tx, wire::rc_cells_of(op, flags, len));
  }

  void put_request() {
    if (peer_ == nullptr) return;
    ring::ChannelTx& tx = peer_->request_tx;
    const uint8_t how = steps_.take<uint8_t>();
    const uint64_t at = world().memory.address() + steps_.take<uint8_t>() * 8u;
    const bool plain = how / 16 % 4 != 0;
    const uint32_t key = plain ? World::kKey : value32();
    const uint64_t addr = plain ? at : value();
    switch (how % 12) {
      case 1:
        return put(tx, RcOp::send_bytes,
                   wire::RcSendBytes{value(), value32(), value32(), value32(), 0});
      case 2:
        return put(
            tx, RcOp::write,
            wire::RcWrite{static_cast<uint32_t>(addr), static_cast<uint32_t>(addr >> 32), key});
      case 3:
        return put(tx, RcOp::write_bytes,
                   wire::RcWriteBytes{addr, value(), key, value32(), value32(), value32()});
      case 4: {  // a part of a read, mostly its first and only one
        const uint32_t n = value32();
        const uint32_t offset = steps_.take<uint8_t>() < 200 ? 0 : value32();
        return put(tx, RcOp::read, wire::RcRead{addr, key, n, offset, offset + n});
      }
      case 5:
        return put(tx, RcOp::atomic,
                   wire::RcAtomic{addr, key, steps_.take<uint8_t>() % 3u, value(), value()});
      case 6: return put(tx, RcOp::notice, wire::RcNotice{value()});
      case 7:
        return put(tx, static_cast<RcOp>(steps_.take<uint8_t>()),
                   wire::RcReadData{value(), value(), value32(), value32()});
      case 8: {  // the next piece of a message that is whole
        const uint32_t n = steps_.take<uint8_t>();
        return put(tx, RcOp::send_bytes, wire::RcSendBytes{0, n, 0, n, 0});
      }
      case 9: return put(tx, RcOp::atomic_write, wire::RcAtomicWrite{addr, value(), key, 0});
      case 10:
        return put(
            tx, RcOp::flush,
            wire::RcFlush{addr, value(), key, plain ? steps_.take<uint8_t>() % 9u : value32()});
      default: return put(tx, RcOp::send, wire::RcNotice{0});
    }
  }

  void put_response() {
    if (peer_ == nullptr) return;
    ring::ChannelTx& tx = peer_->response_tx;
    const uint8_t how = steps_.take<uint8_t>();
    const uint64_t pos = peer_->request_rx.cells.pos() - how / 16;
    switch (how % 8) {
      case 0: return put(tx, RcOp::nak, wire::RcAnswer{value()});
      case 1: return put(tx, RcOp::rnr, wire::RcAnswer{pos});
      case 2:
      case 3: return put(tx, RcOp::read_inline, wire::RcAnswer{pos});
      case 4: return put(tx, RcOp::read_data, wire::RcReadData{pos, value(), value32(), value32()});
      case 5:
        return put(tx, RcOp::read_data,
                   wire::RcReadData{pos, 0, steps_.take<uint16_t>(), steps_.take<uint16_t>()});
      case 6: return put(tx, RcOp::nak, wire::RcAnswer{pos});
      default:
        return put(tx, static_cast<RcOp>(steps_.take<uint8_t>()),
                   wire::RcReadData{value(), value(), value32(), value32()});
    }
  }

  // Lets the victim do a bounded amount of work, and looks at what it said, as a peer can.
  void poll() {
    for (int n = steps_.take<uint8_t>() % 4 + 1; n > 0; --n) qp_->poll(++polls_);
    if (peer_ == nullptr) return;
    for (ring::ChannelRx* rx : {&peer_->request_rx, &peer_->response_rx}) {
      look(*rx, [](const std::byte* body) {
        wire::RcMessage m;
        require(wire::read_rc_head(body, m), "the victim said nonsense");
        return m.n_cells;
      });
    }
  }

  Operation* make_operation(size_t size) {
    if (operations_.size() >= kOperations) return nullptr;
    Operation o;
    o.buffer = std::make_unique<std::byte[]>(size);
    o.size = size;
    o.region = world().add(World::spec_of(world().own, o.buffer.get(), std::max<size_t>(size, 1),
                                          World::kFirstBuffer + operations_.size(), kLocal));
    operations_.push_back(std::move(o));
    return &operations_.back();
  }
  // Its buffer in one to three pieces; how: one of them may have a wrong key.
  uint32_t pieces_of(const Operation& o, uint8_t how, ib::Sge (&sge)[3]) {
    const auto base = reinterpret_cast<uint64_t>(o.buffer.get());
    const auto key = static_cast<uint32_t>(o.region.key);
    const uint32_t count = o.size < 3 ? 1 : how % 3 + 1;
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t n = i + 1 == count ? o.size - at : o.size / 3;
      sge[i] = {base + at, static_cast<uint32_t>(n), how >= 248 && i + 1 == count ? key + 99 : key};
      at += n;
    }
    return count;
  }
  size_t a_size() {
    constexpr size_t kSizes[] = {0, 1, 8, 48, 100, 256, 257, 5000, 8192, 40000, 70000, 600000};
    return kSizes[steps_.take<uint8_t>() % 12];
  }
  void give_up_last() {
    require(
        world().keys->revocation().revoke(operations_.back().region, now_ns() + 1'000'000'000).ok(),
        "?");
    operations_.pop_back();
  }

  void post_recv() {
    const uint8_t how = steps_.take<uint8_t>();
    const Operation* o = make_operation(a_size());
    if (o == nullptr) return;
    ib::Sge sge[3];
    const ib::RecvWr wr{operations_.size(), sge, pieces_of(*o, how, sge)};
    if (!qp_->post_recv(wr)) give_up_last();
  }
  void post_send() {
    constexpr SendOp kOps[] = {SendOp::write, SendOp::write_with_imm, SendOp::send,
                               SendOp::read,  SendOp::cmp_swap,       SendOp::fetch_add,
                               SendOp::read,  SendOp::send_with_imm,  SendOp::send_with_inv,
                               SendOp::write, SendOp::atomic_write,   SendOp::flush};
    const uint8_t which = steps_.take<uint8_t>();
    const uint8_t how = steps_.take<uint8_t>();
    const SendOp op = kOps[which % 12];
    const bool is_atomic =
        op == SendOp::cmp_swap || op == SendOp::fetch_add || op == SendOp::atomic_write;
    const bool flushes = op == SendOp::flush;
    const Operation* o = make_operation(is_atomic ? 8 : flushes ? 0 : a_size());
    if (o == nullptr) return;
    ib::Sge sge[3];
    ib::SendWr wr;
    wr.id = operations_.size();
    wr.op = op;
    wr.flags = (how % 4 == 0 ? ib::kFence : 0) | (how % 8 == 1 ? ib::kSolicited : 0) |
               (how % 16 == 2 && !is_atomic && op != SendOp::read ? ib::kInline : 0);
    wr.sge = sge;
    wr.sge_count = flushes ? 0 : pieces_of(*o, how, sge);
    wr.swap = how % 8;
    wr.remote_addr = world().peer_memory.address();
    wr.rkey = which < 240 ? World::kPeerKey : World::kKey;
    wr.compare_add = 1;
    if (!qp_->post_send(wr)) give_up_last();
  }
  void post_local() {
    const uint8_t how = steps_.take<uint8_t>();
    const Operation* o = make_operation(0);
    if (o == nullptr) return;
    ib::BindWr bind;
    ib::SendWr wr;
    wr.id = operations_.size();
    wr.op = how % 2 == 0 ? SendOp::bind_mw : SendOp::local_inv;
    wr.imm = window_->key();
    bind.window_key = window_->key();
    bind.rkey = window_->type() == protect::WindowType::type_1 && wr.op == SendOp::bind_mw
                    ? window_->next_key()
                    : window_->key();
    bind.region_key = how / 2 % 16 == 0 ? 0 : World::kKey;
    bind.addr = world().region.base + how;
    bind.len = how / 4 % 8 == 0 ? 0 : 1000;
    bind.rights = kRemote;
    bind.by_work_request = window_->type() != protect::WindowType::type_1;
    wr.bind = &bind;
    if (!qp_->post_send(wr)) give_up_last();
  }

  void change_state() {
    switch (steps_.take<uint8_t>() % 16) {
      case 0: qp_->lose(); break;
      case 1: qp_->fail(); break;
      case 2: reset(); break;
      case 3: bring_to(QpState::sqd); break;
      case 4:
        if (qp_->state() == QpState::sqd || qp_->state() == QpState::sqe) bring_to(QpState::rts);
        break;
      case 5: qp_->lane_failed(Errc::peer_lost); break;
      case 6:
      case 7: renew(); break;
    }
  }
  // What was posted is forgotten, and never told.
  void reset() {
    drain();
    bring_to(QpState::reset);
    for (Operation& o : operations_) o.ended = 1;
    require(send_cq_.empty() && recv_cq_.empty(), "a completion of before the reset");
    renew();
  }
  void renew() {
    if (qp_->state() == QpState::reset) bring_up();
    if (qp_->lane() != nullptr) return;
    part();
    if (qp_->state() == QpState::err) return;
    join();
  }

  void drain() {
    for (ib::CompletionQueue* cq : {&send_cq_, &recv_cq_}) {
      for (; !cq->empty(); cq->pop()) {
        const uint64_t nth = cq->front().id;
        require(nth >= 1 && nth <= operations_.size(), "a completion of nothing");
        require(++operations_[nth - 1].ended == 1, "told again after its end");
      }
    }
  }

  ib::CompletionQueue send_cq_, recv_cq_;
  ib::WindowBook book_;
  std::unique_ptr<protect::Window> window_;
  std::unique_ptr<ib::RcQp> qp_;
  std::unique_ptr<link::Lane> returned_;
  bool wanted_ = false;
  std::vector<Operation> operations_;
};

}  // namespace
}  // namespace aperture

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return aperture::fuzz::play<aperture::Game>(data, size);
}
