// The tables of functions that libibverbs' inline calls go through: context->ops and the extended
// verbs_context. What stays null there is answered with EOPNOTSUPP by the inline call itself, but
// for those that have no such check.
#include "verbs/context.hpp"
#include "verbs/cq.hpp"
#include "verbs/dm.hpp"
#include "verbs/mr.hpp"
#include "verbs/mw.hpp"
#include "verbs/pd.hpp"
#include "verbs/qp.hpp"
#include "verbs/query.hpp"
#include "verbs/srq.hpp"
#include "verbs/xrc.hpp"

namespace aperture::verbs {

namespace {

void fill_basic(ibv_context_ops& ops) noexcept {
  ops._compat_query_device = compat_query_device;
  ops._compat_query_port = compat_query_port;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_srq_recv = post_srq_recv;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
}

}  // namespace

void fill_operations(verbs_context& extended) noexcept {
  fill_basic(extended.context.ops);
  extended.query_port = query_port;
  extended.advise_mr = advise_mr;
  extended.alloc_null_mr = alloc_null_mr;
  extended.reg_dm_mr = reg_dm_mr;
  extended.alloc_dm = alloc_dm;
  extended.free_dm = free_dm;
  extended.alloc_parent_domain = alloc_parent_domain;
  extended.alloc_td = alloc_td;
  extended.dealloc_td = dealloc_td;
  extended.modify_cq = modify_cq;
  extended.query_rt_values = query_rt_values;
  extended.create_cq_ex = create_cq_ex;
  extended.query_device_ex = query_device_ex;
  extended.open_qp = open_qp;
  extended.create_qp_ex = create_qp_ex;
  extended.get_srq_num = get_srq_num;
  extended.create_srq_ex = create_srq_ex;
  extended.open_xrcd = open_xrcd;
  extended.close_xrcd = close_xrcd;
}

}  // namespace aperture::verbs
