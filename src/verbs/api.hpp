// libibverbs' own header, made fit for the library that defines its functions: the macros that
// stand before three of them are gone. No state.
#pragma once

#include <infiniband/verbs.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// A function of libibverbs' that this library defines itself.
#define APERTURE_VERB extern "C" [[gnu::visibility("default")]]
