// Calls of connection management with bad input and at the wrong moment, and what fi_getinfo says
// of connected endpoints. fi_cm(3), fi_endpoint(3), fi_getinfo(3).
#include <gtest/gtest.h>

#include "doors/connected.hpp"

namespace aperture::doors {
namespace {

class ConnectedInput : public testing::Test {
 protected:
  Station s;
  sockaddr_in nowhere() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(1);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }
};

TEST_F(ConnectedInput, passive_endpoints_of_bad_info_are_refused) {
  fid_pep* pep = nullptr;
  EXPECT_EQ(fi_passive_ep(s.fabric(), nullptr, &pep, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_passive_ep(s.fabric(), s.info(), nullptr, nullptr), -FI_EINVAL);
  Info wrong(fi_dupinfo(s.info()));
  wrong->ep_attr->type = FI_EP_RDM;
  EXPECT_EQ(fi_passive_ep(s.fabric(), wrong.get(), &pep, nullptr), -FI_EINVAL);
  wrong->ep_attr->type = FI_EP_MSG;
  static_cast<sockaddr*>(wrong->src_addr)->sa_family = AF_UNIX;
  EXPECT_EQ(fi_passive_ep(s.fabric(), wrong.get(), &pep, nullptr), -FI_EINVAL);
  EXPECT_EQ(pep, nullptr);
  ASSERT_EQ(fi_passive_ep(s.fabric(), s.info(), &pep, this), 0);
  EXPECT_EQ(pep->fid.context, this);
  EXPECT_EQ(pep->fid.fclass, static_cast<size_t>(FI_CLASS_PEP));
  EXPECT_EQ(fi_close(&pep->fid), 0);
}

TEST_F(ConnectedInput, bad_bindings_are_refused_and_listen_needs_an_event_queue) {
  const Fid<fid_pep> pep = DOOR_MADE(fi_passive_ep, s.fabric(), s.info());
  fid_pep* raw = pep.get();
  EXPECT_EQ(fi_listen(raw), -FI_ENOEQ);
  EXPECT_EQ(fi_pep_bind(raw, nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_pep_bind(raw, &s.cq()->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_pep_bind(raw, &s.eq()->fid, 1), -FI_EBADFLAGS);
  Station elsewhere;
  EXPECT_EQ(fi_pep_bind(raw, &elsewhere.eq()->fid, 0), -FI_EINVAL) << "another fabric";
  ASSERT_EQ(fi_pep_bind(raw, &s.eq()->fid, 0), 0);
  EXPECT_EQ(fi_pep_bind(raw, &s.eq()->fid, 0), -FI_EINVAL) << "twice";
  EXPECT_EQ(fi_close(&s.eq()->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&s.fabric()->fid), -FI_EBUSY);
  ASSERT_EQ(fi_listen(raw), 0);
  EXPECT_EQ(fi_listen(raw), -FI_EOPBADSTATE);
  sockaddr_in at = nowhere();
  EXPECT_EQ(fi_setname(&raw->fid, &at, sizeof at), -FI_EOPBADSTATE);
}

TEST_F(ConnectedInput, an_address_in_use_is_refused_by_listen) {
  Fid<fid_pep> first = s.passive();
  Fid<fid_pep> second = s.passive(false);
  auto taken = name_of(&first->fid);
  ASSERT_EQ(fi_setname(&second->fid, taken.data(), taken.size()), 0);
  EXPECT_EQ(fi_listen(second.get()), -FI_EADDRINUSE);
  first.reset();
  EXPECT_EQ(fi_listen(second.get()), 0) << "free again";
}

TEST_F(ConnectedInput, a_passive_endpoint_has_a_name_once_it_has_a_port) {
  Fid<fid_pep> pep = s.passive(false);
  uint8_t name[64];
  size_t len = sizeof name;
  EXPECT_EQ(fi_getname(&pep->fid, name, &len), -FI_EOPBADSTATE) << "no port yet";
  EXPECT_EQ(fi_getname(&pep->fid, name, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_setname(&pep->fid, nullptr, 16), -FI_EINVAL);
  EXPECT_EQ(fi_setname(&pep->fid, name, 3), -FI_EINVAL);
  ASSERT_EQ(fi_listen(pep.get()), 0);
  len = 2;
  EXPECT_EQ(fi_getname(&pep->fid, name, &len), -FI_ETOOSMALL);
  EXPECT_EQ(len, sizeof(sockaddr_in));
  EXPECT_EQ(fi_getname(&pep->fid, name, &len), 0);
}

TEST_F(ConnectedInput, bad_options_and_controls_of_passive_endpoints_are_refused) {
  Fid<fid_pep> pep = s.passive();
  size_t size = 0, len = sizeof size;
  EXPECT_EQ(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &len), 0);
  EXPECT_GT(size, 0u);
  len = 2;
  EXPECT_EQ(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &len), -FI_ETOOSMALL);
  EXPECT_EQ(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &size, &len), -FI_ENOPROTOOPT);
  EXPECT_EQ(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, nullptr, &len), -FI_EINVAL);
  EXPECT_EQ(fi_setopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, sizeof size),
            -FI_ENOPROTOOPT)
      << "read only";
  int backlog = -1;
  EXPECT_EQ(fi_control(&pep->fid, FI_BACKLOG, &backlog), -FI_EINVAL);
  EXPECT_EQ(fi_control(&pep->fid, FI_BACKLOG, nullptr), -FI_EINVAL);
  backlog = 5;
  EXPECT_EQ(fi_control(&pep->fid, FI_BACKLOG, &backlog), 0) << "also while it listens";
  EXPECT_EQ(fi_control(&pep->fid, FI_ENABLE, nullptr), -FI_ENOSYS);
}

TEST_F(ConnectedInput, enabling_needs_both_queues) {
  const Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, s.domain(), s.info());
  fid_ep* raw = ep.get();
  sockaddr_in at = nowhere();
  EXPECT_EQ(fi_enable(raw), -FI_ENOCQ);
  ASSERT_EQ(fi_ep_bind(raw, &s.cq()->fid, FI_TRANSMIT), 0);
  EXPECT_EQ(fi_enable(raw), -FI_ENOCQ);
  EXPECT_EQ(fi_connect(raw, &at, nullptr, 0), -FI_ENOCQ) << "enables it";
  ASSERT_EQ(fi_ep_bind(raw, &s.cq()->fid, FI_RECV), 0);
  EXPECT_EQ(fi_enable(raw), -FI_ENOEQ);
  EXPECT_EQ(fi_connect(raw, &at, nullptr, 0), -FI_ENOEQ);
  ASSERT_EQ(fi_ep_bind(raw, &s.eq()->fid, 0), 0);
  EXPECT_EQ(fi_enable(raw), 0);
  EXPECT_EQ(fi_enable(raw), 0) << "already";
  fi_av_attr attr{};
  const Fid<fid_av> av = DOOR_MADE(fi_av_open, s.domain(), &attr);
  Fid<fid_ep> other = s.open();
  EXPECT_EQ(fi_ep_bind(other.get(), &av->fid, 0), -FI_EINVAL) << "no addresses here";
}

TEST_F(ConnectedInput, a_counter_comes_before_the_call_that_enables_the_endpoint) {
  Fid<fid_pep> pep = s.passive();
  fi_cntr_attr attr{.events = FI_CNTR_EVENTS_COMP};
  const Fid<fid_cntr> counter = DOOR_MADE(fi_cntr_open, s.domain(), &attr);
  Fid<fid_ep> ep = s.open();
  ASSERT_EQ(fi_ep_bind(ep.get(), &counter->fid, FI_SEND), 0);
  ASSERT_EQ(fi_connect(ep.get(), name_of(&pep->fid).data(), nullptr, 0), 0);
  EXPECT_EQ(fi_ep_bind(ep.get(), &counter->fid, FI_RECV), -FI_EOPBADSTATE);
  const CmEvent request = s.expect(FI_CONNREQ);
  Fid<fid_ep> other = s.open(request.info.get());
  ASSERT_EQ(fi_accept(other.get(), nullptr, 0), 0);
  EXPECT_EQ(fi_ep_bind(other.get(), &counter->fid, FI_RECV), -FI_EOPBADSTATE);
}

TEST_F(ConnectedInput, bad_addresses_and_states_are_refused_by_connect) {
  Fid<fid_pep> pep = s.passive();
  Fid<fid_ep> ep = s.open();
  sockaddr_in bad = nowhere();
  EXPECT_EQ(fi_connect(ep.get(), nullptr, nullptr, 0), -FI_EINVAL);
  bad.sin_port = 0;
  EXPECT_EQ(fi_connect(ep.get(), &bad, nullptr, 0), -FI_EINVAL);
  bad = nowhere();
  bad.sin_addr.s_addr = 0;
  EXPECT_EQ(fi_connect(ep.get(), &bad, nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_accept(ep.get(), nullptr, 0), -FI_EOPBADSTATE) << "no request";
  EXPECT_EQ(fi_shutdown(ep.get(), 0), -FI_ENOTCONN);
  uint8_t peer[64];
  size_t len = sizeof peer;
  EXPECT_EQ(fi_getpeer(ep.get(), peer, &len), -FI_ENOTCONN);
  ASSERT_EQ(fi_connect(ep.get(), name_of(&pep->fid).data(), nullptr, 0), 0);
  EXPECT_EQ(fi_connect(ep.get(), name_of(&pep->fid).data(), nullptr, 0), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_shutdown(ep.get(), 0), -FI_ENOTCONN);
  EXPECT_EQ(fi_getpeer(ep.get(), peer, &len), -FI_ENOTCONN);
  sockaddr_in at = nowhere();
  EXPECT_EQ(fi_setname(&ep->fid, &at, sizeof at), -FI_EOPBADSTATE);
  const CmEvent request = s.expect(FI_CONNREQ);
  Fid<fid_ep> other = s.open(request.info.get());
  EXPECT_EQ(fi_connect(other.get(), name_of(&pep->fid).data(), nullptr, 0), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_setname(&other->fid, &at, sizeof at), -FI_EOPBADSTATE);
}

TEST_F(ConnectedInput, handles_that_are_none_are_refused) {
  Fid<fid_pep> pep = s.passive();
  Info info(fi_dupinfo(s.info()));
  fid made_up{.fclass = FI_CLASS_CONNREQ};
  for (fid_t handle : {&made_up, &s.cq()->fid, reinterpret_cast<fid_t>(uintptr_t{64})}) {
    info->handle = handle;
    EXPECT_EQ(code_of(fi_endpoint, s.domain(), info.get()), -FI_EINVAL);
    EXPECT_EQ(fi_reject(pep.get(), handle, nullptr, 0), -FI_EINVAL);
  }
  info->handle = &pep->fid;
  EXPECT_EQ(code_of(fi_endpoint, s.domain(), info.get()), -FI_EOPBADSTATE) << "it listens";
  EXPECT_EQ(fi_reject(pep.get(), nullptr, nullptr, 0), -FI_EINVAL);
  Fid<fid_pep> other = s.passive();
  Fid<fid_ep> ep = ask_for_connection(s, pep.get());
  const CmEvent request = s.expect(FI_CONNREQ);
  EXPECT_EQ(fi_reject(other.get(), request.info->handle, nullptr, 0), -FI_EINVAL) << "not its own";
  EXPECT_EQ(fi_reject(pep.get(), request.info->handle, nullptr, 3), -FI_EINVAL);
  EXPECT_EQ(fi_reject(pep.get(), request.info->handle, nullptr, 0), 0);
  s.expect_error(FI_ECONNREFUSED, &ep->fid);
}

TEST_F(ConnectedInput, closing_at_every_state_leaves_no_event_behind) {
  Fid<fid_pep> pep = s.passive();
  s.open().reset();
  {
    Fid<fid_ep> enabled = s.open();
    ASSERT_EQ(fi_enable(enabled.get()), 0);
  }
  ask_for_connection(s, pep.get()).reset();
  {
    Fid<fid_ep> refused = s.open();
    sockaddr_in at = nowhere();
    ASSERT_EQ(fi_connect(refused.get(), &at, nullptr, 0), 0);
    usleep(20000);  // its error may be in the queue by then
  }
  { Connected c(s, s); }
  usleep(20000);
  pep.reset();
  EXPECT_TRUE(s.no_event());
}

// --- fi_getinfo ---

Info hints_of(fi_ep_type type, uint64_t caps) {
  Info hints = make_hints({.caps = caps});
  hints->ep_attr->type = type;
  return hints;
}

int ask(const Info& hints, Info* out = nullptr) {
  fi_info* info = nullptr;
  const int code = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "7777", 0, hints.get(), &info);
  Info found(info);
  if (out != nullptr) *out = std::move(found);
  return code;
}

TEST(ConnectedInfo, connected_endpoints_stand_between_reliable_and_unreliable_ones) {
  Info info;
  ASSERT_EQ(ask(hints_of(FI_EP_UNSPEC, FI_MSG), &info), 0);
  ASSERT_NE(info->next, nullptr);
  EXPECT_EQ(info->ep_attr->type, FI_EP_RDM);
  EXPECT_EQ(info->next->ep_attr->type, FI_EP_MSG);
  ASSERT_NE(info->next->next, nullptr);
  EXPECT_EQ(info->next->next->ep_attr->type, FI_EP_DGRAM);
  EXPECT_EQ(info->next->next->next, nullptr);
  EXPECT_EQ(info->next->caps & (FI_SOURCE | FI_DIRECTED_RECV), 0u);
  EXPECT_NE(info->next->dest_addr, nullptr);
  EXPECT_NE(info->next->src_addr, nullptr);
}

TEST(ConnectedInfo, each_type_is_answered_alone) {
  Info info;
  ASSERT_EQ(ask(hints_of(FI_EP_MSG, FI_MSG | FI_RMA | FI_TAGGED), &info), 0);
  EXPECT_EQ(info->ep_attr->type, FI_EP_MSG);
  EXPECT_EQ(info->next, nullptr);
  ASSERT_EQ(ask(hints_of(FI_EP_RDM, FI_MSG), &info), 0);
  EXPECT_EQ(info->ep_attr->type, FI_EP_RDM);
  EXPECT_EQ(info->next, nullptr);
}

TEST(ConnectedInfo, what_one_peer_has_no_use_for_is_refused) {
  EXPECT_EQ(ask(hints_of(FI_EP_MSG, FI_MSG | FI_SOURCE)), -FI_ENODATA);
  EXPECT_EQ(ask(hints_of(FI_EP_MSG, FI_TAGGED | FI_DIRECTED_RECV)), -FI_ENODATA);
  Info info;
  ASSERT_EQ(ask(hints_of(FI_EP_UNSPEC, FI_TAGGED | FI_SOURCE), &info), 0);
  EXPECT_EQ(info->ep_attr->type, FI_EP_RDM);
  EXPECT_EQ(info->next, nullptr);
}

TEST(ConnectedInfo, shared_contexts_are_offered_and_scalable_ones_are_not) {
  Info hints = hints_of(FI_EP_MSG, FI_MSG), info;
  hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  ASSERT_EQ(ask(hints, &info), 0);
  EXPECT_EQ(info->ep_attr->rx_ctx_cnt, static_cast<size_t>(FI_SHARED_CONTEXT));
  EXPECT_GT(info->domain_attr->max_ep_srx_ctx, 0u);
  hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
  ASSERT_EQ(ask(hints, &info), 0);
  EXPECT_EQ(info->ep_attr->tx_ctx_cnt, static_cast<size_t>(FI_SHARED_CONTEXT));
  EXPECT_GT(info->domain_attr->max_ep_stx_ctx, 0u);
  EXPECT_EQ(info->domain_attr->max_ep_tx_ctx, 1u);
  hints->ep_attr->tx_ctx_cnt = 2;
  EXPECT_EQ(ask(hints), -FI_ENODATA);
  hints->ep_attr->tx_ctx_cnt = 0;
  hints->ep_attr->rx_ctx_cnt = 2;
  EXPECT_EQ(ask(hints), -FI_ENODATA);
}

}  // namespace
}  // namespace aperture::doors
