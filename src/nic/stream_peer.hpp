// An endpoint on another host, as first contact knows it: the TCP connection over which it said
// hello, and the one lane that this connection becomes.
//
//   asking   Open or Connect is to come, or was sent; or is held until an application answers
//   carrying the connection is a lane's, which a queue pair has (link/tcp)
//   ending   that lane was given back, and what was published on it still goes out; or an answer
//            without a lane is on its way
//   down
//
// It is known by its address alone: a host can say what it likes of the ports that it has, and is
// not believed to have the address of another. Where both endpoints have an authorization key, the
// proofs are about the packets too, and each frame bears a tag (wire/proof.hpp, wire/frame.hpp).
// Owned by the control thread.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "link/tcp/silence.hpp"
#include "link/tcp/stream_lane.hpp"
#include "nic/deadline.hpp"
#include "nic/peer.hpp"

namespace aperture::nic {

// What both sides have to prove, and what is known of the lane that it will be.
struct AskedOfStream {
  // That packet takes it back.
  bool is_withdrawn_by(const Packet& packet) const noexcept;

  uint32_t attempt = 0;
  wire::Statement statement;
  std::shared_ptr<const Secret> auth_key;   // ours, where we ask
  std::shared_ptr<link::tcp::Mover> mover;  // likewise
  wire::Proof proof{};                      // the other side's, where it asks
  std::array<std::byte, wire::kMaxPeerMessageBytes> beside{};
  size_t beside_bytes = 0;
  uint32_t domain = 0;     // the other side's
  bool checksums = false;  // wanted by who asks, or by either side once it is answered
};

class StreamPeer final : public Peer {
 public:
  // Of that connection. holder: for whom we hold it (Shares); ticket: an acceptor's, 0 of a
  // connector. By exception std::bad_alloc.
  StreamPeer(const PeerContext& context, ParentOnlyFd tcp, const wire::Id128& incarnation,
             Holder holder, uint64_t ticket);
  ~StreamPeer() override;
  // Hears what comes from now on. Errors: no_memory, io.
  Status begin() noexcept;

  // Peer
  const wire::Id128& incarnation() const noexcept override { return incarnation_; }
  Name name() const noexcept override;
  bool is_process() const noexcept override { return false; }
  bool is_down() const noexcept override { return stage_ == Stage::down; }
  bool speaks_for(const Address& source, PortOwners& owners) noexcept override;
  uint64_t ticket() const noexcept override { return ticket_; }
  std::span<const std::byte> proved_beside(const Packet& packet) noexcept override;
  bool may_hold(const Holding& more) override { return share_.take(more); }

  Status open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
              const wire::Answer& offer, uint32_t attempt,
              const wire::PrivateData* request) noexcept override;
  Result<std::unique_ptr<link::Lane>> opened(const wire::Accept& accept, Packet& packet,
                                             std::shared_ptr<PeerLane>& record) noexcept override;
  void open_rejected(uint32_t attempt) noexcept override;
  Result<std::shared_ptr<PeerLane>> hold(const LocalEnd& end, const wire::Open& open,
                                         const wire::Statement& statement,
                                         Packet& packet) noexcept override;
  Result<std::unique_ptr<link::Lane>> admit(const LocalEnd& end, PeerLane& record,
                                            const wire::PrivateData* data) noexcept override;
  void let_go(PeerLane& record) noexcept override;
  void withdraw(uint32_t attempt) noexcept override;
  void close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept override;

  void begin_watch(link::Lane& lane) override;
  void open_within(uint64_t ns) noexcept override;
  void go_down(Errc why) noexcept override;

  // For SilenceWatch, while it carries a lane: ends it where nothing was heard for too long.
  void look_for_silence() noexcept;
  // Whether such silence would be found by a look alone: something of ours is pending, or was sent
  // and is not acknowledged, be it an answer to the other side.
  bool awaits_answer() const noexcept;

  // What one of them holds of ours.
  static constexpr Holding kHolding{.descriptors = 1, .bytes = link::tcp::StreamLane::kMappedBytes};

 private:
  using Asked = AskedOfStream;
  enum class Role : uint8_t { connector, acceptor };
  enum class Stage : uint8_t { asking, carrying, ending, down };
  class LaneHost;  // hears of the lane's end, on whichever thread moves it

  const link::tcp::StreamLane* carried() const noexcept;
  void on_events() noexcept;
  bool take_packet() noexcept;
  bool is_expected(wire::PeerMessage kind) const noexcept;
  void make_record(ListenerId listener, const Address& remote);
  void forget_record() noexcept;
  Result<std::unique_ptr<link::Lane>> make_lane(const Asked& asked, uint32_t domain,
                                                const Secret* key,
                                                std::shared_ptr<link::tcp::Mover> mover) noexcept;
  void say(const wire::PeerPacket& packet) noexcept override;
  void on_lane_ended(Errc why) noexcept;
  void linger() noexcept;

  const PeerContext context_;
  const wire::Id128 incarnation_;
  const uint64_t ticket_;
  const Role role_;
  Shares::Share share_;
  ParentOnlyFd tcp_;  // until it is a lane's
  const Address here_, there_;
  ControlThread::WatchId watch_ = 0;
  Deadline deadline_;  // of the stage
  Stage stage_ = Stage::asking;
  Packet packet_;  // that is coming in
  size_t got_ = 0;
  std::array<std::byte, wire::kMaxPeerMessageBytes> beside_{};
  std::optional<Asked> asked_;
  link::tcp::Silence silence_;
  std::unique_ptr<link::tcp::StreamLane> lingering_;
};

}  // namespace aperture::nic
