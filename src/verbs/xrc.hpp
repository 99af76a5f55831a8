// XRC domains: ibv_open_xrcd(3), ibv_close_xrcd(3). IBTA vol. 1, 10.2.2 (extended reliable
// connections).
//
// An ibv_xrcd is one opening of a domain. A domain that was opened with the descriptor of a file is
// the same for everybody in this context who opens it with that file; others are refused
// (xrc_files.hpp). Threads: any.
#pragma once

#include <memory>

#include "verbs/context.hpp"
#include "verbs/xrc_files.hpp"

namespace aperture::verbs {

struct Xrcd {
  ibv_xrcd base{};  // first: object_of()
  Context* context = nullptr;
  std::shared_ptr<const XrcDomain> domain;
  ContextUse use_context;
  Uses uses;  // SRQs and queue pairs
};

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr) noexcept;
int close_xrcd(ibv_xrcd* xrcd) noexcept;

}  // namespace aperture::verbs
