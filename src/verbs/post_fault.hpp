// One sentence for a work request that a queue pair did not take: the one thing that is wrong with
// it. ibv_post_send(3), ibv_wr_post(3), ibv_bind_mw(3). No state, any thread.
#pragma once

#include "verbs/qp.hpp"

namespace aperture::verbs {

// Says it, and returns the errno. Engine lock held, so that the queue pair is as it was.
int refuse_post(const char* call, const DeviceQp& qp, const ib::SendWr& wr,
                ib::PostFault fault) noexcept;

}  // namespace aperture::verbs
