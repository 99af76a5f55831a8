// Memory windows: ibv_alloc_mw(3), ibv_bind_mw(3). A protect::Window with the face that libibverbs
// gives it; how a bind is carried out is ib/'s. Threads: any.
#pragma once

#include <memory>

#include "ib/work.hpp"
#include "protect/window.hpp"
#include "verbs/pd.hpp"

namespace aperture::verbs {

struct Mw {
  ibv_mw base{};  // first: object_of()
  Pd* pd = nullptr;
  std::unique_ptr<protect::Window> window;  // guarded by the engine lock
  Use use_pd;
};

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept;
int dealloc_mw(ibv_mw* mw) noexcept;
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) noexcept;

enum class BindBy { call, work_request };  // ibv_bind_mw(), or IBV_WR_BIND_MW

// What can be told at the post to a queue pair of that context: no window of the same, the wrong
// call for its type, unknown rights, a zero-based window of type 1, no MR. What is wrong beyond
// that is the completion's to tell. 0, or EINVAL with a sentence.
int validate_bind(const char* call, BindBy by, const ibv_mw* mw, const ibv_context* context,
                  const ibv_mw_bind_info& info) noexcept;
// The core's words for a bind. The MR may be null.
void fill_bind(ib::BindWr& bind, const ibv_mw* mw, const ibv_mw_bind_info& info, uint32_t rkey,
               const void* caller) noexcept;

}  // namespace aperture::verbs
