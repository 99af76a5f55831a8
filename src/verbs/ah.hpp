// Address handles: ibv_create_ah(3), ibv_create_ah_from_wc(3). An address handle is a Route: which
// of our addresses is left by, and which one is gone to. Any thread.
#pragma once

#include "ib/attributes.hpp"
#include "verbs/pd.hpp"

namespace aperture::verbs {

struct Ah {
  ibv_ah base{};  // first: object_of()
  ib::Route route;
  Use use_pd;
};

// The route of an address vector, for address handles and connected queue pairs alike. 0, or EINVAL
// with a sentence.
int resolve(const char* call, const ibv_ah_attr& attr, ib::Route& route) noexcept;

}  // namespace aperture::verbs
