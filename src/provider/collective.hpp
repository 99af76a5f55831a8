// Groups and collective operations at the door: fid_mc and fi_ops_collective. man 3 fi_collective.
//
// What an endpoint with FI_COLLECTIVE has beside its core, and the groups that it has joined. All
// guarded by the engine's lock.
#pragma once

#include <rdma/fi_collective.h>

#include <vector>

#include "collective/group.hpp"
#include "provider/ep.hpp"

namespace aperture::provider {

struct Mc;

class EpGroups final : private collective::Carrier, private nic::Engine::PollableOwner {
 public:
  explicit EpGroups(EpBody& body) noexcept : body_(body), runner_(*this) {}
  ~EpGroups() override;
  // Lock not held. Errors: no_memory.
  Status begin() noexcept;
  // Before the core goes, which ends what is under way. Lock held.
  void close() noexcept;

  collective::Runner& runner() noexcept { return runner_; }
  Mc* find(fi_addr_t coll_addr) noexcept;  // null: no group of this endpoint's
  fi_addr_t next_address() noexcept { return kGroupAddresses | number_++; }
  std::vector<Mc*> joined;

 private:
  static constexpr fi_addr_t kGroupAddresses = fi_addr_t{1} << 63;

  Status send(const qp::SendWr& wr) noexcept override { return body_.core->send(wr); }
  Status recv(const qp::RecvWr& wr) noexcept override;
  void cancel_recv(void* context) noexcept override;
  void wake() noexcept override { body_.domain->engine->on_posted(); }
  void wind_up(link::Pollable&) noexcept override {}

  EpBody& body_;
  uint64_t number_ = 0;
  bool begun_ = false;
  collective::Runner runner_;
};

// fi_ops_domain::query_collective
int query_collective(fid_domain* domain, fi_collective_op coll, fi_collective_attr* attr,
                     uint64_t flags) noexcept;
// fi_join with FI_COLLECTIVE.
int join_collective(fid_ep* ep, const fi_collective_addr* addr, uint64_t flags, fid_mc** mc,
                    void* context) noexcept;
// What an endpoint opened with FI_COLLECTIVE has. 0 or a negative fi_errno.
int begin_groups(EpBody& body);

}  // namespace aperture::provider
