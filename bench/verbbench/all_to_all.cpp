// verbs_write_bw_all_to_all: each of several processes writes to all others at once, over a
// connection to each.
#include "harness/all_to_all.hpp"

#include "verbbench/one_sided.hpp"

namespace aperture::bench {

namespace {

constexpr unsigned kMostRanks = 8;

// What all others have to know of a rank: its ends of the connections that it leads to each.
struct Card {
  LinkEnd ends[kMostRanks];
  RemoteRegion region;
};

class Ends : public VerbsTask {
 public:
  Ends(const Setup& setup, Side& side, size_t size_bytes, size_t window, unsigned ranks)
      : VerbsTask(setup, side),
        size_(size_bytes),
        window_(window),
        all_(side),
        memory_((ranks + 1) * size_bytes, Pages::Kind::own),
        mr_(session_.register_target(memory_.data(), memory_.size())),
        piece_(piece_of(source(), size_bytes, mr_)),
        links_(ranks, nullptr) {
    if (ranks > kMostRanks) throw Failure("more than %u processes", kMostRanks);
    connect();
    wr_.sg_list = &piece_;
    wr_.num_sge = 1;
    wr_.opcode = IBV_WR_RDMA_WRITE;
    wr_.send_flags = IBV_SEND_SIGNALED;
    if (session_.can_inline(size_bytes)) wr_.send_flags |= IBV_SEND_INLINE;
  }

  std::string note() const override {
    return std::to_string(ranks()) + " processes, window " + std::to_string(window_) +
           " of each, all signalled";
  }

 protected:
  unsigned ranks() const noexcept { return static_cast<unsigned>(links_.size()); }
  std::byte* source() const noexcept { return memory_.data() + memory_.size() - size_; }
  std::byte* slot(unsigned rank) const noexcept { return memory_.data() + rank * size_; }

  void operate(unsigned peer) {
    await_pending(window_ - 1);
    const RemoteRegion& there = regions_[peer];
    wr_.wr.rdma = {there.addr + static_cast<uint64_t>(rank_) * size_, there.rkey};
    links_[peer]->post(wr_);
    pending_++;
  }
  void settle() { await_pending(0); }

  const size_t size_, window_;
  Side& all_;

 private:
  void await_pending(size_t most) {
    Patience patience("the completion of a write");
    while (pending_ > most) {
      pending_ -= session_.poll_tx([](const ibv_wc&) {});
      session_.linger(patience);
    }
  }

  // VerbsTask has connected each rank with rank 0, and rank 0 with rank 1; the rest is done here.
  void connect() {
    const auto mine = static_cast<size_t>(rank_);
    links_[rank_ == 0 ? 1 : 0] = &link_;
    for (size_t i = 0; i < all_.others.size(); i++) {
      made_.push_back(std::make_unique<Link>(session_, all_.others[i]));
      links_[i + 2] = made_.back().get();
    }
    Card card{{}, {reinterpret_cast<uint64_t>(memory_.data()), mr_->rkey, 0}};
    for (size_t r = 1; rank_ != 0 && r < links_.size(); r++) {
      if (r == mine) continue;
      made_.push_back(std::make_unique<Link>(session_));
      links_[r] = made_.back().get();
      card.ends[r] = links_[r]->end();
    }
    const std::vector<Card> cards = gather(all_, card);
    for (size_t r = 0; r < cards.size(); r++) {
      regions_.push_back(cards[r].region);
      if (rank_ != 0 && r != 0 && r != mine) links_[r]->connect(cards[r].ends[mine]);
    }
  }

  Pages memory_;  // a slot of each rank, and what is written from
  Mr mr_;
  ibv_sge piece_;
  ibv_send_wr wr_{};
  size_t pending_ = 0;
  std::vector<std::unique_ptr<Link>> made_;
  std::vector<Link*> links_;  // by rank; null for the own
  std::vector<RemoteRegion> regions_;
};

}  // namespace

std::unique_ptr<VerbsTask> make_all_to_all(const Setup& setup, Side& side, size_t size_bytes,
                                           size_t window, unsigned ranks) {
  return std::make_unique<AllToAll<Ends>>(setup, side, size_bytes, window, ranks);
}

}  // namespace aperture::bench
