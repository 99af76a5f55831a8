// Refusals of accesses, binds and invalidations in libibverbs' words: man 3 ibv_reg_mr,
// ibv_bind_mw, ibv_post_send. Constant; any thread.
#pragma once

#include "protect/wording.hpp"

namespace aperture::verbs {

extern const protect::Wording kVerbsWording;

}  // namespace aperture::verbs
