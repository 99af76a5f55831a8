// register_lat and read_any_lat with their companions: a million regions over one 64 MiB buffer.
//
// The row is what registering costs, so nothing else is done between the two calls. That the
// regions are real is verified by a read of the peer. The reads go through all regions in a random
// order that is made beforehand: the initiator walks its list of keys from front to back, so that
// the misses that are measured are those of the key table and of the target's memory.
#include "fabbench/regions.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "fabbench/messenger.hpp"
#include "harness/contents.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kStride = 64;  // bytes of one of many regions

class ManyTargets {
 public:
  ManyTargets(Session& session, size_t count) : memory_(count * kStride, Pages::Kind::own) {
    regions_.reserve(count);
    for (size_t i = 0; i < count; i++) {
      regions_.push_back(session.register_target(at(i), kStride));
    }
  }
  std::byte* at(size_t i) const noexcept { return memory_.data() + i * kStride; }
  const Region& region(size_t i) const noexcept { return regions_[i]; }
  size_t size() const noexcept { return regions_.size(); }

 private:
  Pages memory_;
  std::vector<Region> regions_;
};

class Registering final : public FabricTask {
 public:
  Registering(const Setup& setup, Side& side, size_t size_bytes, size_t others)
      : FabricTask(setup, side), size_(size_bytes), memory_(size_bytes, Pages::Kind::own) {
    if (rank_ == 0 && others != 0) others_ = std::make_unique<ManyTargets>(session_, others);
  }

  // The peer reads a region that was registered as those that are timed.
  void verify(uint64_t seed, Channel& channel) override {
    if (rank_ == 0) {
      fill_pattern(memory_.data(), size_, seed);
      const Region region = session_.register_target(memory_.data(), size_);
      const RemoteRegion mine = session_.remote_of(region, memory_.data());
      channel.send(&mine, sizeof mine);
      await_word(channel);
      return;
    }
    const auto theirs = await_whole<RemoteRegion>(channel, "region");
    std::memset(memory_.data(), 0, size_);
    const Region local = session_.register_local(memory_.data(), size_);
    session_.post("room to read", [&] {
      return fi_read(session_.ep(), memory_.data(), size_, local.desc, session_.peer(), theirs.base,
                     theirs.key, &slot_.context);
    });
    session_.await_tx("the completion of a read");
    expect_pattern(memory_.data(), size_, seed);
    channel.send_word(0);
  }

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      session_.register_target(memory_.data(), size_);  // and closed again at once
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
    }
  }

  std::string note() const override {
    return "fi_mr_reg and fi_close, " + std::to_string(others_ ? others_->size() : 0) +
           " others open, " + session_.registration_text();
  }

 private:
  const size_t size_;
  Pages memory_;
  Slot slot_{};
  std::unique_ptr<ManyTargets> others_;
};

class ManyRegions final : public FabricTask {
 public:
  ManyRegions(const Setup& setup, Side& side, Target target, Choice choice)
      : FabricTask(setup, side, target),
        random_(choice == Choice::random),
        word_(kStride, Pages::Kind::own),
        local_(session_.register_local(word_.data(), kStride)) {
    if (rank_ == 1) {
      targets_ = std::make_unique<ManyTargets>(session_, kManyRegions);
      tell_regions(side.channel);
      return;
    }
    learn_regions(side.channel);
    std::mt19937_64 order(7);
    std::shuffle(remote_.begin(), remote_.end(), order);
  }

  void greet() override { read(remote_[0]); }

  void verify(uint64_t seed, Channel& channel) override {
    seed_ = seed;
    if (rank_ == 1) {
      for (size_t i = 0; i < kManyRegions; i++) {
        store_word(targets_->at(i), value_of(i));
      }
      channel.send_word(0);
      await_word(channel);
      return;
    }
    channel.receive_word();  // the target's memory is ready
    for (size_t i = 0; i < kManyRegions; i += 997) read_checked(remote_[i]);
    channel.send_word(0);
  }

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      if (random_ && ++next_ == remote_.size()) next_ = 0;
      if (random_) fetch_ahead();
      read_checked(remote_[next_]);
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
    }
  }

  std::string note() const override {
    return std::string(random_ ? "a random one" : "the same one") + " of " +
           std::to_string(kManyRegions) + " regions, " + session_.registration_text();
  }

 private:
  struct Remote {
    RemoteRegion region;
    uint64_t index;
  };
  static constexpr size_t kPerDatagram = 1000;  // divides kManyRegions

  void tell_regions(Channel& channel) {
    RemoteRegion some[kPerDatagram];
    for (size_t i = 0; i < kManyRegions; i++) {
      some[i % kPerDatagram] = session_.remote_of(targets_->region(i), targets_->at(i));
      if ((i + 1) % kPerDatagram == 0) channel.send(some, sizeof some);
    }
  }

  void learn_regions(Channel& channel) {
    RemoteRegion some[kPerDatagram];
    remote_.reserve(kManyRegions);
    while (remote_.size() < kManyRegions) {
      if (channel.receive(some, sizeof some) != sizeof some) throw Failure("torn regions");
      for (const RemoteRegion& region : some) remote_.push_back({region, remote_.size()});
    }
  }

  uint64_t value_of(uint64_t index) const noexcept {
    return (index + 1) * 0x9e3779b97f4a7c15u + seed_;
  }

  // The list is not what is measured: 24 MB of it pass by, and are left to no prefetcher's luck.
  void fetch_ahead() const noexcept {
    constexpr size_t kAhead = 16;
    if (next_ + kAhead < remote_.size()) __builtin_prefetch(&remote_[next_ + kAhead]);
  }

  void read(const Remote& remote) {
    session_.post("room to read", [&] {
      return fi_read(session_.ep(), word_.data(), sizeof(uint64_t), local_.desc, session_.peer(),
                     remote.region.base, remote.region.key, &slot_.context);
    });
    session_.await_tx("the completion of a read");
  }

  void read_checked(const Remote& remote) {
    read(remote);
    if (load_word(word_.data()) != value_of(remote.index))
      throw Failure("wrong data from region %lu", remote.index);
  }

  const bool random_;
  Pages word_;
  Slot slot_{};
  Region local_;
  uint64_t seed_ = 0;
  size_t next_ = 0;
  std::vector<Remote> remote_;            // rank 0
  std::unique_ptr<ManyTargets> targets_;  // rank 1
};

}  // namespace

std::unique_ptr<FabricTask> make_registering(const Setup& setup, Side& side, size_t size_bytes,
                                             size_t others) {
  return std::make_unique<Registering>(setup, side, size_bytes, others);
}

std::unique_ptr<FabricTask> make_many_regions(const Setup& setup, Side& side, Target target,
                                              Choice choice) {
  return std::make_unique<ManyRegions>(setup, side, target, choice);
}

}  // namespace aperture::bench
