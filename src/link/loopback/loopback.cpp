// Loopback lanes over anonymous memory: see loopback.hpp.
#include "link/loopback/loopback.hpp"

#include <new>

#include "base/doorbell.hpp"
#include "base/fd.hpp"
#include "base/invariant.hpp"
#include "base/no_throw.hpp"

namespace aperture::link::loopback {

namespace {

constexpr uint32_t kCellsLog2 = 8;
constexpr size_t kCellArea = ring::kCellBytes << kCellsLog2;
constexpr size_t kByteArea = 256 * 1024;
constexpr size_t kWordArea = 4096;
constexpr size_t kChannelArea = kCellArea + kByteArea;
constexpr size_t kChannels = 4;  // requests there and back, responses there and back
constexpr size_t kPairBytes = kWordArea + kChannels * kChannelArea;

struct Memory {
  explicit Memory(Mapping m) noexcept : map(std::move(m)) {}
  Mapping map;
};

class LoopbackLane final : public Lane {
 public:
  LoopbackLane(std::shared_ptr<Memory> memory, size_t out, size_t in, int doorbell_fd) noexcept
      : memory_(std::move(memory)), doorbell_fd_(doorbell_fd) {
    APERTURE_DEBUG_ASSERT(memory_->map.size() >= kPairBytes);
    request_tx = tx(out);
    request_rx = rx(in);
    response_tx = tx(2 + out);
    response_rx = rx(2 + in);
  }
  bool prepare_request_bytes() noexcept override { return true; }
  bool prepare_response_bytes() noexcept override { return true; }
  void ring_doorbell() noexcept override { aperture::ring_doorbell(doorbell_fd_); }

 private:
  ring::ChannelWords* words(size_t channel) const noexcept {
    return reinterpret_cast<ring::ChannelWords*>(memory_->map.data()) + channel;
  }
  std::byte* area(size_t channel) const noexcept {
    APERTURE_DEBUG_ASSERT(channel < kChannels);
    return memory_->map.data() + kWordArea + channel * kChannelArea;
  }
  ring::ChannelTx tx(size_t channel) const noexcept {
    std::byte* at = area(channel);
    return {words(channel), reinterpret_cast<ring::Cell*>(at), kCellsLog2, at + kCellArea,
            kByteArea};
  }
  ring::ChannelRx rx(size_t channel) const noexcept {
    std::byte* at = area(channel);
    return {words(channel), reinterpret_cast<ring::Cell*>(at), kCellsLog2, at + kCellArea,
            kByteArea};
  }

  std::shared_ptr<Memory> memory_;
  const int doorbell_fd_;
};

Result<std::shared_ptr<Memory>> make_memory() noexcept {
  auto map = Mapping::map_anonymous(kPairBytes);
  if (!map) return map.error();
  return no_throw([&]() -> Result<std::shared_ptr<Memory>> {
    return std::shared_ptr<Memory>(new Memory(*std::move(map)));
  });
}

}  // namespace

Result<std::unique_ptr<Lane>> make_self_lane(const Address& self, uint32_t domain,
                                             int doorbell_fd) noexcept {
  auto memory = make_memory();
  if (!memory) return memory.error();
  auto* lane = new (std::nothrow) LoopbackLane(*memory, 0, 0, doorbell_fd);
  if (lane == nullptr) return Errc::no_memory;
  lane->remote = self;
  lane->remote_domain = domain;
  lane->to_self = true;
  return std::unique_ptr<Lane>(lane);
}

Result<LanePair> make_lane_pair(int doorbell_of_first, int doorbell_of_second) noexcept {
  auto memory = make_memory();
  if (!memory) return memory.error();
  auto* first = new (std::nothrow) LoopbackLane(*memory, 0, 1, doorbell_of_second);
  auto* second = new (std::nothrow) LoopbackLane(*memory, 1, 0, doorbell_of_first);
  LanePair pair{first, second};
  if (first == nullptr || second == nullptr) return Errc::no_memory;
  return pair;
}

}  // namespace aperture::link::loopback
