// Memory regions: ibv_reg_mr(3), ibv_rereg_mr(3), ibv_advise_mr(3), ibv_alloc_null_mr(3).
//
// A region is one entry of the key table, and its lkey and rkey are one number: 24 bits that are
// drawn at random, unique in the process among regions and windows, and 8 bits of tag. Threads:
// any; an MR is changed and deregistered by one thread at a time.
#pragma once

#include "protect/key_table.hpp"
#include "protect/window.hpp"
#include "verbs/dm.hpp"
#include "verbs/pd.hpp"

namespace aperture::verbs {

struct Mr {
  ibv_mr base{};  // first: object_of()
  Pd* pd = nullptr;
  protect::BindableRegion bindable;  // its entry, range and rights; guarded by the engine lock
  protect::WindowCount windows;      // bound to it; guarded by the engine lock
  unsigned access = 0;               // IBV_ACCESS_...
  bool is_dma_buf = false;
  bool revoking = false;  // refused to everybody; somebody was still inside when it was last tried
  // The place that ibv_rereg_mr(3) took it from while somebody was inside, who may still be:
  // refused to everybody, and ended by the next call. Generation 0: none.
  protect::RegionHandle left{};
  Use use_pd;
  Use use_dm;  // of a region of an ibv_dm
};

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, uint64_t dm_offset, size_t length,
                  unsigned access) noexcept;
ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept;
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count) noexcept;

// Of a context that is being closed: nobody reaches it any more.
void stop(Mr& mr) noexcept;

// The remote rights that access flags give, the same for regions and windows.
protect::Rights remote_rights_of(unsigned access) noexcept;

}  // namespace aperture::verbs
