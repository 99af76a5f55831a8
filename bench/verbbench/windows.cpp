// verbs_bind_lat, verbs_bind_lat_many and verbs_bind1_lat: what a window costs.
//
// That the windows are real is verified before and after over a queue pair of its own, because a
// refused access ends its queue pair: the peer reads through a window that is bound, and is refused
// once it is not.
#include "verbbench/windows.hpp"
#include "base/clock.hpp"

#include <cstring>
#include <vector>

#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kStride = 64;   // bytes of one of many regions
constexpr size_t kPage = 4096;   // of the only one
constexpr size_t kWindows = 64;  // in turn, where there are many regions
constexpr int kMayBeBound = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
constexpr unsigned kGranted = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

class Binding final : public VerbsTask {
 public:
  Binding(const Setup& setup, Side& side, WindowType type, size_t regions)
      : VerbsTask(setup, side, Target::asleep),
        type_(type),
        each_(regions == 1 ? kPage : kStride),
        memory_(regions * each_, Pages::Kind::own) {
    if (rank_ == 1) {
      mrs_.push_back(session_.register_memory(memory_.data(), each_, IBV_ACCESS_LOCAL_WRITE));
      return;
    }
    for (size_t i = 0; i < regions; i++) {
      mrs_.push_back(session_.register_memory(memory_.data() + i * each_, each_, kMayBeBound));
    }
    const size_t count = regions == 1 ? 1 : kWindows;
    for (size_t i = 0; i < count; i++) {
      bound_.push_back(make_window(i * (regions / count), link_));
    }
  }

  // A window that is bound on a queue pair of its own, read through by the peer, and unbound.
  void verify(uint64_t seed, Channel& channel) override {
    Link link(session_, channel);
    if (rank_ == 0) {
      show(link, seed, channel);
    } else {
      look(link, seed, channel);
    }
  }

  void initiate(uint64_t count, Samples& samples) override {
    size_t next = 0;
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      Bound& bound = bound_[next];
      if (++next == bound_.size()) next = 0;
      if (type_ == WindowType::two) {
        bind(bound, 0);
        invalidate(bound);
      } else {
        bind_type_1(bound, each_ / 2 * (i & 1), each_ / 2);
      }
      session_.await_tx("the completion of a bind");
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
    }
  }

  std::string note() const override {
    return std::string(type_ == WindowType::two
                           ? "IBV_WR_BIND_MW unsignalled, then IBV_WR_LOCAL_INV, one completion; "
                           : "ibv_bind_mw, one completion; ") +
           std::to_string(bound_.size()) + " windows in turn, " + std::to_string(mrs_.size()) +
           " regions";
  }

 private:
  struct Bound {
    Mw mw;
    ibv_mr* mr;
    Link* link;
  };

  Bound make_window(size_t region, Link& link) {
    const ibv_mw_type type = type_ == WindowType::two ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1;
    return {Mw(check("ibv_alloc_mw", ibv_alloc_mw(session_.pd(), type))), mrs_[region].get(),
            &link};
  }

  void bind(Bound& bound, unsigned flags) {
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = flags;
    wr.bind_mw.mw = bound.mw.get();
    wr.bind_mw.rkey = ibv_inc_rkey(bound.mw->rkey);
    wr.bind_mw.bind_info = {bound.mr, reinterpret_cast<uint64_t>(bound.mr->addr), each_, kGranted};
    bound.link->post(wr);
    bound.mw->rkey = wr.bind_mw.rkey;
  }

  void invalidate(Bound& bound) {
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = bound.mw->rkey;
    bound.link->post(wr);
  }

  void bind_type_1(Bound& bound, size_t offset, size_t len_bytes) {
    ibv_mw_bind wish{};
    wish.send_flags = IBV_SEND_SIGNALED;
    wish.bind_info = {bound.mr, reinterpret_cast<uint64_t>(bound.mr->addr) + offset, len_bytes,
                      kGranted};
    check("ibv_bind_mw", ibv_bind_mw(bound.link->qp(), bound.mw.get(), &wish));
  }

  // Rank 0's part of verify().
  void show(Link& link, uint64_t seed, Channel& channel) {
    fill_pattern(memory_.data(), each_, seed);
    Bound bound = make_window(0, link);
    if (type_ == WindowType::two) {
      bind(bound, IBV_SEND_SIGNALED);
    } else {
      bind_type_1(bound, 0, each_);
    }
    session_.await_tx("the completion of a bind");
    const RemoteRegion mine{reinterpret_cast<uint64_t>(memory_.data()), bound.mw->rkey, 0};
    channel.send(&mine, sizeof mine);
    channel.receive_word();  // the peer has read
    if (type_ == WindowType::two) {
      invalidate(bound);
    } else {
      bind_type_1(bound, 0, 0);
    }
    session_.await_tx("the completion of an invalidation");
    channel.send_word(0);
    channel.receive_word();  // the peer was refused
  }

  // Rank 1's part.
  void look(Link& link, uint64_t seed, Channel& channel) {
    const auto theirs = await_whole<RemoteRegion>(channel, "window");
    std::memset(memory_.data(), 0, each_);
    const ibv_wc good = read_through(link, theirs);
    if (good.status != IBV_WC_SUCCESS) throw_completion_error(good);
    expect_pattern(memory_.data(), each_, seed);
    channel.send_word(0);
    await_word(channel);
    const ibv_wc refused = read_through(link, theirs);
    if (refused.status != IBV_WC_REM_ACCESS_ERR) {
      throw Failure("a read through a window that is not bound ended as: %s",
                    ibv_wc_status_str(refused.status));
    }
    channel.send_word(0);
  }

  ibv_wc read_through(Link& link, const RemoteRegion& theirs) {
    ibv_sge piece = piece_of(memory_.data(), each_, mrs_[0]);
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {theirs.addr, theirs.rkey};
    link.post(wr);
    return session_.await_tx_or_error("a read through a window");
  }

  const WindowType type_;
  const size_t each_;
  Pages memory_;
  std::vector<Mr> mrs_;
  std::vector<Bound> bound_;  // rank 0
};

}  // namespace

std::unique_ptr<VerbsTask> make_binding(const Setup& setup, Side& side, WindowType type,
                                        size_t regions) {
  return std::make_unique<Binding>(setup, side, type, regions);
}

}  // namespace aperture::bench
