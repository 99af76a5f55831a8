// Registrations of local buffers that the provider makes on behalf of an application which leaves
// them to it: man 3 fi_mr, "Memory registration cache"; APERTURE_MR_MODE=local_cache.
//
// Aperture needs none of them: queue pairs resolve addresses when they copy. They are there so that
// a program can be tried as over a NIC whose provider keeps them for it (what is registered, how
// often, and what changed memory that was), and only where that setting says so; nobody else pays
// an instruction. The regions stand in a protection domain of their own, and no peer has a right in
// them. A registration is looked at when an operation is posted, as the descriptors of applications
// are, so it is in use for as long as the call alone.
//
// Any thread, no lock held. A domain has one.
#pragma once

#include <memory>

#include "nic/engine.hpp"
#include "protect/rights.hpp"
#include "regcache/watched_cache.hpp"

namespace aperture::provider {

class OwnRegistrations final : private regcache::Registrar {
 public:
  // The engine outlives it. Errors: no_memory.
  static Result<std::unique_ptr<OwnRegistrations>> open(nic::Engine& engine) noexcept;
  ~OwnRegistrations() override;  // says at `info` how often what was kept served
  OwnRegistrations(const OwnRegistrations&) = delete;
  OwnRegistrations& operator=(const OwnRegistrations&) = delete;

  // The buffer of a call, which is not empty, has a registration that allows `need`. 0, or the
  // refusal, -FI_EFAULT: not all of it is memory that can be read, or be written where it is to be.
  ssize_t cover(const char* call, const void* buf, size_t len, protect::Rights need) noexcept;

 private:
  explicit OwnRegistrations(nic::Engine& engine) noexcept;

  Result<Resource> add(const regcache::Range& range, regcache::Access access) noexcept override;
  void remove(Resource resource) noexcept override;
  bool holds_pages() const noexcept override { return false; }

  nic::Engine& engine_;
  const protect::DomainId pd_;
  std::unique_ptr<regcache::WatchedCache> kept_;
};

}  // namespace aperture::provider
