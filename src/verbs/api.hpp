// libibverbs' own header, made fit for the library that defines its functions: they are exported,
// and the macros that stand before three of them are gone. No state.
#pragma once

#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// A function of libibverbs' that this library defines itself.
#define APERTURE_VERB extern "C" [[gnu::visibility("default")]]
