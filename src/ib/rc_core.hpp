// What the parts of a connected queue pair work on together: the lane, its direct path, the pieces
// in its request ring, and the state that says what may be begun.
//
// Guarded by its context's engine lock. The parts are members of RcQp (rc_qp.hpp) and friends of
// this class; each keeps to itself the state that nobody else looks at. Positions are those of the
// request ring. busy_ is a summary of all parts: RcQp renews it after each poll, and whoever adds
// work sets it.
#pragma once

#include <cassert>
#include <memory>

#include "ib/queue_pair.hpp"
#include "transport/inflight.hpp"
#include "transport/lane_end.hpp"
#include "transport/one_sided.hpp"
#include "transport/permit.hpp"
#include "wire/rc.hpp"

namespace aperture::ib {

// What a connected queue pair asks of who gives it lanes. Engine lock held.
class LaneHost {
 public:
  virtual ~LaneHost() = default;
  // Something is to be sent and there is no lane: attach() or lane_failed() follows. Asked again
  // while under way it changes nothing.
  virtual void want_lane() noexcept = 0;
  virtual void give_back(std::unique_ptr<link::Lane> lane) noexcept = 0;
  // Outside of a poll, requests that had waited were executed, as many as one look takes. Whoever
  // polls may sleep: what is left, and what is to be told the peer, is for him.
  virtual void share_taken() noexcept = 0;
};

// A piece of an RDMA operation in the request ring, which we could claim.
struct RcPiece {
  uint64_t pos;
  uint32_t cells;
  uint32_t at;      // of its WQE
  uint64_t offset;  // in its operation
  uint64_t len;
};

class RcCore : public QueuePair {
 protected:
  friend class RcAnswers;
  friend class RcDirect;
  friend class RcExecution;
  friend class RcLoss;
  friend class RcReceiver;
  friend class RcRequester;
  friend class RcResponder;
  friend class RcWindows;
  friend class RcWordResponder;

  RcCore(const QpSpec& spec, LaneHost& host) : QueuePair(spec), host_(host) {}

  // While one is alive the lane stays, whatever happens to the state: loops over its rings end by
  // themselves, and the lane is given back when the outermost is gone.
  class LaneInUse {
   public:
    explicit LaneInUse(RcCore& core) noexcept : core_(core) { ++core_.lane_uses_; }
    ~LaneInUse() {
      assert(core_.lane_uses_ != 0);
      if (--core_.lane_uses_ == 0 && core_.lane_over_) [[unlikely]]
        core_.release_lane();
    }
    LaneInUse(const LaneInUse&) = delete;
    LaneInUse& operator=(const LaneInUse&) = delete;

   private:
    RcCore& core_;
  };

  bool is_reliable() const noexcept { return spec_.type != QpType::uc; }
  bool is_up() const noexcept { return lane_ && !lane_over_ && !lane_.broken(); }
  bool allows(uint32_t access) const noexcept { return (attr_.access & access) == access; }
  // Somebody waits for what is under way, or something is left to be done for it. Otherwise nothing
  // is out but sends that nobody asks about: their acknowledgements lie in a cache line that the
  // peer is writing, and are looked at now and then (kLookEvery), or when the ring is full.
  bool awaits_answers() const noexcept {
    return sq_.signaled_out != 0 || results_out_ != 0 || !sq_.is_posted() || !inflight_.empty() ||
           rnr_deadline_ns_ != 0 || stopped_;
  }
  // Every earlier request of ours is executed, and that has been told.
  bool is_ring_done() const noexcept {
    return inflight_.done_through() == lane_->request_tx.cells.pos();
  }

  // A WQE has failed before its turn to complete: it does so when those before it have.
  void fail_wqe(Wqe& w, WcStatus status) noexcept;
  // Whether the request at that position is a part of the WQE. One that has nothing in the ring
  // holds no position, though it may begin where the next one does.
  bool holds(const Wqe& w, uint64_t pos) const noexcept;
  void release_lane() noexcept;
  // After a direct copy that was posted: what the other side has put into its ring is executed, and
  // nothing is looked at that only time moves.
  virtual void serve_peer() noexcept = 0;
  void break_protocol(const char* what) noexcept;

  LaneHost& host_;
  transport::LaneEnd lane_;
  transport::Target target_{lane_};
  transport::OneSided one_sided_{lane_, target_};
  transport::Inflight<RcPiece> inflight_;
  Address remote_;
  uint32_t lane_uses_ = 0;        // depth of LaneInUse
  bool lane_over_ = false;        // to be given back
  bool had_lane_ = false;         // and lost it: the other end is gone for this connection
  bool busy_ = false;             // poll() has more to do than to look at the rings
  bool stopped_ = false;          // a WQE has failed: none after it is begun
  uint32_t results_out_ = 0;      // reads and atomics under way
  uint64_t rnr_deadline_ns_ = 0;  // 0: no count is running
  uint64_t lost_until_ns_ = 0;    // the peer is gone, and retried until then; 0: it is not
};

}  // namespace aperture::ib
