// write_bw_all_to_all: each of several processes writes to all others at once by fi_write.
#include "harness/all_to_all.hpp"

#include <cstring>

#include "fabbench/messenger.hpp"
#include "fabbench/one_sided.hpp"

namespace aperture::bench {

namespace {

// What all others have to know of a rank.
struct Card {
  size_t name_len;
  char name[512];
  RemoteRegion region;
};

class Ends : public FabricTask {
 public:
  Ends(const Setup& setup, Side& side, size_t size_bytes, size_t window, unsigned ranks)
      : FabricTask(setup, side),
        size_(size_bytes),
        window_(window),
        all_(side),
        memory_((ranks + 1) * size_bytes, Pages::Kind::own),
        slots_(session_, window),
        local_(session_.register_local(source(), size_bytes)),
        region_(session_.register_target(memory_.data(), ranks * size_bytes)) {
    const std::string name = session_.name();
    // Each session meets one peer by itself; rank 0 is that of all others.
    for (Channel& other : side.others) {
      char theirs[sizeof(Card::name)];
      other.send(name.data(), name.size());
      other.receive(theirs, sizeof theirs);
    }
    Card mine{name.size(), {}, session_.remote_of(region_, memory_.data())};
    std::memcpy(mine.name, name.data(), name.size());
    const std::vector<Card> cards = gather(side, mine);
    for (size_t r = 0; r < cards.size(); r++) {
      addresses_.push_back(address_of(static_cast<int>(r), cards[r]));
      regions_.push_back(cards[r].region);
    }
  }

  std::string note() const override {
    return std::to_string(ranks()) + " processes, window " + std::to_string(window_) +
           " of each, delivery complete, " + session_.registration_text();
  }

 protected:
  unsigned ranks() const noexcept { return static_cast<unsigned>(regions_.size()); }
  std::byte* source() const noexcept { return memory_.data() + memory_.size() - size_; }
  std::byte* slot(unsigned rank) const noexcept { return memory_.data() + rank * size_; }

  void operate(unsigned peer) {
    const size_t slot = slots_.take("the completion of a write");
    const RemoteRegion& there = regions_[peer];
    session_.post(
        "room to write",
        [&] {
          return fi_write(session_.ep(), source(), size_, local_.desc, addresses_[peer],
                          there.base + static_cast<uint64_t>(rank_) * size_, there.key,
                          slots_.context(slot));
        },
        [this] {
          slots_.reap();
          session_.progress();
        });
  }
  void settle() { slots_.settle("the completions of the last writes"); }

  const size_t size_, window_;
  Side& all_;

 private:
  fi_addr_t address_of(int rank, const Card& card) {
    if (rank == rank_) return FI_ADDR_UNSPEC;  // never written to
    const bool met = rank == (rank_ == 0 ? 1 : 0);
    return met ? session_.peer() : session_.insert({card.name, card.name_len});
  }

  Pages memory_;  // a slot of each rank, and what is written from
  Slots slots_;
  Region local_, region_;
  std::vector<fi_addr_t> addresses_;
  std::vector<RemoteRegion> regions_;
};

}  // namespace

std::unique_ptr<FabricTask> make_all_to_all(const Setup& setup, Side& side, size_t size_bytes,
                                            size_t window, unsigned ranks) {
  return std::make_unique<AllToAll<Ends>>(setup, side, size_bytes, window, ranks);
}

}  // namespace aperture::bench
