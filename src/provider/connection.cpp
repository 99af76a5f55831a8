// Events of connections: see connection.hpp.
#include "provider/connection.hpp"

#include <rdma/fi_cm.h>

#include <cassert>
#include <cstring>

namespace aperture::provider {

namespace {

// An event that finds no memory, not even in the reserve, is lost, with a line in the log: there is
// nobody to hand an error to.
template <typename Fn>
void tell(const char* event, Fn&& fn) noexcept {
  guarded(event, [&]() -> int {
    fn();
    return 0;
  });
}

}  // namespace

int take_private(const char* call, const void* param, size_t len,
                 wire::PrivateData& data) noexcept {
  if (param == nullptr && len != 0)
    return refuse(-FI_EINVAL, "%s: param is NULL but paramlen is %zu", call, len);
  if (len > wire::kPrivateBytes) {  // "will silently truncate", fi_cm(3), NOTES
    APERTURE_INFO("%s: of %zu bytes of private data %zu are sent (FI_OPT_CM_DATA_SIZE)", call, len,
                  wire::kPrivateBytes);
    len = wire::kPrivateBytes;
  }
  data = {};
  data.size = static_cast<uint32_t>(len);
  if (len != 0) std::memcpy(data.bytes.data(), param, len);
  return 0;
}

void ConnectionReports::on_connected(const wire::PrivateData& data) noexcept {
  assert(eq_ != nullptr && endpoint() != nullptr);
  tell("FI_CONNECTED", [&] { eq_->report_connection(FI_CONNECTED, endpoint(), nullptr, data); });
}

void ConnectionReports::on_refused(Errc why, const wire::PrivateData* data) noexcept {
  assert(eq_ != nullptr && endpoint() != nullptr);
  tell("fi_connect", [&] { eq_->report_no_connection(endpoint(), why, data); });
}

void ConnectionReports::on_shut_down(Errc why) noexcept {
  assert(eq_ != nullptr && endpoint() != nullptr);
  APERTURE_INFO("FI_SHUTDOWN: %s", why == Errc::ok          ? "fi_shutdown was called here"
                                   : why == Errc::shut_down ? "the peer has ended the connection"
                                                            : describe(why));
  tell("FI_SHUTDOWN", [&] { eq_->report_connection(FI_SHUTDOWN, endpoint(), nullptr, {}); });
}

}  // namespace aperture::provider
