// The 23 commands of /dev/infiniband/rdma_cm, as librdmacm writes them. rdma/rdma_user_cm.h, ABI
// version 4.
//
// Any thread. Everything but GET_EVENT is carried out on the control thread; pointers of the
// application are followed on the thread that called, and a bad one is EFAULT.
#pragma once

#include <cstddef>
#include <memory>

#include "verbs/rdma_cm_channel.hpp"

namespace aperture::verbs::rdma_cm {

// The whole of what was written: {cmd, in, out} and the command. 0 or an errno. Not noexcept:
// GET_EVENT waits, and a thread that waits there may be cancelled (write(2) is a cancellation
// point).
int carry_out(const std::shared_ptr<Channel>& channel, int fd, const void* bytes, size_t size);

// The channel's last descriptor is closed: its ids end.
void close(const Channel& channel) noexcept;

}  // namespace aperture::verbs::rdma_cm
