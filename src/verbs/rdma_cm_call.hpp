// One command while it is carried out: the application's bytes in, the answer out.
//
// Used by the thread that called. Every pointer into the application is followed here, guarded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/address.hpp"
#include "base/guarded_copy.hpp"
#include "verbs/rdma_cm_ids.hpp"

namespace aperture::verbs::rdma_cm {

class Call {
 public:
  // How other descriptors are found, for MIGRATE_ID.
  Call(std::shared_ptr<Channel> channel, const void* in, size_t in_bytes, size_t out_bytes) noexcept
      : channel_(std::move(channel)), in_(in), in_bytes_(in_bytes), out_bytes_(out_bytes) {}

  const std::shared_ptr<Channel>& channel() const noexcept { return channel_; }
  size_t out_bytes() const noexcept { return out_bytes_; }

  // The command's struct; what lies behind the first `required` bytes may be missing and is zero.
  template <typename Command>
  int read(Command& command, size_t required = sizeof(Command)) const noexcept {
    command = {};
    if (in_bytes_ < required) return EINVAL;
    const size_t n = std::min(in_bytes_, sizeof command);
    return guarded_copy(&command, in_, n) ? 0 : EFAULT;
  }
  // The answer, as much of it as the caller has room for, but not less than `required` bytes.
  template <typename Answer>
  int answer(uint64_t to, const Answer& value, size_t required = sizeof(Answer)) const noexcept {
    if (out_bytes_ < required) return ENOSPC;
    const size_t n = std::min(out_bytes_, sizeof value);
    return guarded_copy(reinterpret_cast<void*>(to), &value, n) ? 0 : EFAULT;
  }

  // Runs fn(AppId&) -> errno on the control thread.
  template <typename Fn>
  int with_id(uint32_t handle, Fn&& fn) const noexcept {
    auto ids = Ids::instance();
    if (!ids) return ENODEV;
    int error = 0;
    (*ids)->control().run([&] {
      AppId* app = nullptr;
      error = (*ids)->find(*channel_, handle, app);
      if (error == 0) error = fn(*app);
    });
    return error;
  }

 private:
  const std::shared_ptr<Channel> channel_;
  const void* const in_;
  const size_t in_bytes_;
  const size_t out_bytes_;
};

using Handler = int (*)(const Call& call);

// The handler that reads the command for `Do`, which may end after kRequired bytes; 0: not before
// it is whole.
template <typename Command>
int read_and_do(const Call& call, size_t required, int (*run)(const Call&, const Command&)) {
  Command command;
  const int error = call.read(command, required != 0 ? required : sizeof command);
  return error != 0 ? error : run(call, command);
}
template <auto Do, size_t kRequired = 0>
int handle(const Call& call) {
  return read_and_do(call, kRequired, Do);
}

// Connections (rdma_cm_connect.cpp).
// What precedes the fields that newer libraries write: commands may end there.
inline constexpr size_t kConnectBytes = offsetof(rdma_ucm_connect, ece);
inline constexpr size_t kAcceptBytes = offsetof(rdma_ucm_accept, ece);
int do_connect(const Call& call, const rdma_ucm_connect& command);
int do_accept(const Call& call, const rdma_ucm_accept& command);
int do_reject(const Call& call, const rdma_ucm_reject& command);
int do_disconnect(const Call& call, const rdma_ucm_disconnect& command);
int do_notify(const Call& call, const rdma_ucm_notify& command);
int do_init_qp_attr(const Call& call, const rdma_ucm_init_qp_attr& command);

// An address that the application gave, of `size` bytes at most. Empty: no family that we know.
std::optional<Address> address_of(const void* sockaddr_bytes, size_t size) noexcept;
// How long a sockaddr of that family is; 0: no family that we know.
size_t sockaddr_bytes_of(const void* sockaddr_bytes) noexcept;

}  // namespace aperture::verbs::rdma_cm
