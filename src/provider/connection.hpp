// What becomes of connections, told to an application: events of one endpoint in its event queue.
// man 3 fi_cm, fi_eq. Called on the control thread, or by whoever progresses the engine.
#pragma once

#include <atomic>

#include "nic/msg_endpoint.hpp"
#include "provider/eq.hpp"

namespace aperture::provider {

// Checks and takes what an application wants to say; 0 or a negative fi_errno.
int take_private(const char* call, const void* param, size_t len, wire::PrivateData& data) noexcept;

class ConnectionReports final : public nic::ConnectionEvents {
 public:
  void begin(Eq* eq, struct fid* endpoint) noexcept {
    eq_ = eq;
    name(endpoint);
  }
  // What the events are about: the endpoint's first handle that is open.
  void name(struct fid* endpoint) noexcept {
    // relaxed: the events carry the pointer alone, and what it points to is the application's
    endpoint_.store(endpoint, std::memory_order_relaxed);
  }
  void on_connected(const wire::PrivateData& data) noexcept override;
  void on_refused(Errc why, const wire::PrivateData* data) noexcept override;
  void on_shut_down(Errc why) noexcept override;

 private:
  Eq* eq_ = nullptr;
  struct fid* endpoint() const noexcept {
    return endpoint_.load(std::memory_order_relaxed);  // relaxed: as in name()
  }
  std::atomic<struct fid*> endpoint_{nullptr};
};

}  // namespace aperture::provider
