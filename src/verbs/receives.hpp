// Posting a list of receives, to a queue pair or to an SRQ: ibv_post_recv(3), ibv_post_srq_recv(3).
// No state.
#pragma once

#include <cstddef>

#include "ib/work.hpp"
#include "nic/engine.hpp"
#include "verbs/api.hpp"
#include "verbs/entry.hpp"
#include "verbs/errors.hpp"

namespace aperture::verbs {

static_assert(sizeof(ib::Sge) == sizeof(ibv_sge));
static_assert(offsetof(ib::Sge, addr) == offsetof(ibv_sge, addr));
static_assert(offsetof(ib::Sge, length) == offsetof(ibv_sge, length));
static_assert(offsetof(ib::Sge, lkey) == offsetof(ibv_sge, lkey));

inline const ib::Sge* sges_of(const ibv_sge* sges) noexcept {
  return reinterpret_cast<const ib::Sge*>(sges);
}

// The sentence for a receive that was not taken: what is wrong with it. Returns the errno.
int refuse_receive(const char* call, Status why, const ibv_recv_wr& wr, uint32_t max_wr,
                   uint32_t max_sge) noexcept;

// post(RecvWr) under the engine lock for each of the list, until one is refused: bad_wr is that
// one, and refuse_one(wr, Status) says why. 0 or a positive errno.
template <typename Post, typename Refuse>
int post_receives(nic::Engine& engine, ibv_recv_wr* wr, ibv_recv_wr** bad_wr, Post&& post,
                  Refuse&& refuse_one) noexcept {
  if (engine.life().is_over()) [[unlikely]] {
    *bad_wr = wr;
    return EOPNOTSUPP;
  }
  nic::EngineGuard guard(engine);
  for (; wr != nullptr; wr = wr->next) {
    const Status s =
        wr->num_sge < 0
            ? Status(Errc::invalid)
            : post(ib::RecvWr{wr->wr_id, sges_of(wr->sg_list), static_cast<uint32_t>(wr->num_sge)});
    if (s.ok()) [[likely]]
      continue;
    *bad_wr = wr;
    return refuse_one(*wr, s);
  }
  return 0;
}

}  // namespace aperture::verbs
