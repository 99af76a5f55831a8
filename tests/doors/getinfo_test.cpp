// fi_getinfo(3): matching hints, one attribute at a time. Every hint that can be met has a
// neighbour that cannot, which must give -FI_ENODATA and no list.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "doors/fixture.hpp"
#include "doors/old_names.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kApi117 = FI_VERSION(1, 17);

struct Answer {
  int code = 0;
  Info info;
};

struct Where {
  uint32_t api = kApi117;
  const char* node = nullptr;
  const char* service = nullptr;
  uint64_t flags = 0;
};

using Change = std::function<void(fi_info&)>;

// Asks with hints that hold the provider's name and RDM only, changed by `change`.
Answer ask(const Change& change = {}, const Where& where = {}) {
  Info hints(fi_allocinfo());
  hints->fabric_attr->prov_name = strdup(provider_name());
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  if (where.api >= FI_VERSION(1, 5)) {
    hints->domain_attr->mr_mode = 0;
  } else {
    hints->domain_attr->mr_mode = kMrUnspec;
  }
  if (change) change(*hints);
  fi_info* info = reinterpret_cast<fi_info*>(0x1);
  Answer answer{
      .code = fi_getinfo(where.api, where.node, where.service, where.flags, hints.get(), &info)};
  if (answer.code == 0) answer.info.reset(info);
  return answer;
}

// The answer, which there must be.
Info answered(const Change& change = {}, const Where& where = {}, Line line = Line::current()) {
  Answer a = ask(change, where);
  check(a.code, "fi_getinfo", line);
  return std::move(a.info);
}

void expect_met(const Answer& a) {
  EXPECT_EQ(a.code, 0) << fi_strerror(-a.code);
  EXPECT_TRUE(a.code != 0 || a.info != nullptr);
}
#define EXPECT_MET(...) expect_met(ask(__VA_ARGS__))
#define EXPECT_REFUSED(...) EXPECT_EQ(ask(__VA_ARGS__).code, -FI_ENODATA)

TEST(Getinfo, the_provider_is_there_and_names_itself) {
  const Info a = answered();
  EXPECT_EQ(std::string(a->fabric_attr->prov_name), provider_name());
  EXPECT_NE(a->fabric_attr->name, nullptr);
  EXPECT_NE(a->domain_attr->name, nullptr);
  EXPECT_EQ(a->ep_attr->type, FI_EP_RDM);
  EXPECT_TRUE(a->caps & FI_MSG);
}

TEST(Getinfo, another_provider_name_is_not_answered) {
  EXPECT_REFUSED([](fi_info& h) {
    free(h.fabric_attr->prov_name);
    h.fabric_attr->prov_name = strdup("no_such_provider");
  });
}

TEST(Getinfo, without_hints_the_provider_is_listed) {
  fi_info* list = nullptr;
  ASSERT_EQ(fi_getinfo(kApi117, nullptr, nullptr, 0, nullptr, &list), 0);
  const Info owner(list);
  bool found = false;
  for (const fi_info* i = list; i != nullptr; i = i->next)
    found |= std::strcmp(i->fabric_attr->prov_name, provider_name()) == 0;
  EXPECT_TRUE(found);
}

TEST(Getinfo, a_domain_attr_of_null_does_not_care) {
  const Answer a = ask([](fi_info& h) {
    free(h.domain_attr);
    h.domain_attr = nullptr;
    h.caps = FI_RMA;
  });
  EXPECT_EQ(a.code, 0);
}

TEST(Getinfo, caps_that_are_asked_for_come_and_others_stay_away) {
  for (uint64_t caps :
       {FI_MSG, FI_TAGGED, FI_RMA, FI_MSG | FI_TAGGED | FI_RMA, FI_TAGGED | FI_DIRECTED_RECV,
        FI_MSG | FI_SOURCE, FI_MSG | FI_SEND, FI_RMA | FI_WRITE | FI_REMOTE_WRITE,
        FI_MSG | FI_LOCAL_COMM, FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM}) {
    SCOPED_TRACE(fi_tostr(&caps, FI_TYPE_CAPS));
    const Info a = answered([&](fi_info& h) { h.caps = caps; });
    EXPECT_EQ(a->caps & caps, caps);
    const uint64_t primary = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTICAST |
                             FI_NAMED_RX_CTX | FI_DIRECTED_RECV | FI_COLLECTIVE;
    EXPECT_EQ(a->caps & primary & ~caps, 0u) << "a primary cap that nobody asked for";
  }
}

TEST(Getinfo, modifiers_narrow_the_answer) {
  const Info a = answered([](fi_info& h) { h.caps = FI_MSG | FI_SEND; });
  EXPECT_TRUE(a->caps & FI_SEND);
  if (on_aperture()) {
    EXPECT_FALSE(a->caps & FI_RECV) << "only sending was asked for";
  }
  const Info all = answered();
  EXPECT_EQ(all->caps & (FI_SEND | FI_RECV), FI_SEND | FI_RECV) << "none given means both";
}

TEST(Getinfo, no_caps_means_what_there_is) {
  const Info a = answered([](fi_info& h) { h.caps = 0; });
  EXPECT_EQ(a->caps & (FI_MSG | FI_TAGGED), FI_MSG | FI_TAGGED);
}

TEST(Getinfo, caps_that_are_not_offered_are_refused) {
  if (!on_aperture()) GTEST_SKIP() << "each provider offers something else";
  for (uint64_t caps : {FI_MULTICAST, 1ull << 40, 1ull << 60, 1ull << 63}) {
    SCOPED_TRACE(caps);
    EXPECT_REFUSED([&](fi_info& h) { h.caps |= caps; });
  }
}

TEST(Getinfo, caps_of_contexts_and_vectors_are_for_endpoints_that_have_them) {
  if (!on_aperture()) GTEST_SKIP() << "each provider offers something else";
  for (uint64_t caps : {FI_NAMED_RX_CTX, FI_AV_USER_ID, FI_SHARED_AV}) {
    SCOPED_TRACE(caps);
    EXPECT_MET([&](fi_info& h) { h.caps |= caps; });
    EXPECT_REFUSED([&](fi_info& h) {
      h.caps |= caps;
      h.ep_attr->type = FI_EP_MSG;
    });
  }
}

TEST(Getinfo, endpoint_types_that_are_not_offered_are_refused) {
  EXPECT_MET([](fi_info& h) { h.ep_attr->type = FI_EP_UNSPEC; });
  EXPECT_MET([](fi_info& h) { h.ep_attr->type = FI_EP_RDM; });
  if (on_aperture()) {
    EXPECT_REFUSED([](fi_info& h) { h.ep_attr->type = no_such_value<fi_ep_type>(kSockStream); });
    EXPECT_REFUSED([](fi_info& h) { h.ep_attr->type = no_such_value<fi_ep_type>(kSockDgram); });
  }
  EXPECT_NE(ask([](fi_info& h) { h.ep_attr->type = no_such_value<fi_ep_type>(99); }).code, 0);
}

TEST(Getinfo, mode_bits_are_cleared_when_they_are_not_needed) {
  const Info a = answered([](fi_info& h) { h.mode = ~0ull; });
  if (on_aperture()) {
    EXPECT_EQ(a->mode & (kLocalMr | FI_MSG_PREFIX | FI_ASYNC_IOV | FI_RX_CQ_DATA), 0u);
    const Answer none = ask([](fi_info& h) { h.mode = 0; });
    EXPECT_EQ(none.code, 0) << "no mode bit is required of the application";
    EXPECT_TRUE(none.code != 0 || none.info->mode == 0);
  }
}

// What to ask, and the mr_mode bits that must and must not be in the answer.
struct MrCase {
  uint32_t api;
  int ask;
  int code;
  int with;
  int without;
};

TEST(Getinfo, mr_mode_for_rma_has_no_bit_that_was_not_offered) {
  constexpr uint32_t old = FI_VERSION(1, 4);
  const int all =
      kBasicMr | FI_MR_LOCAL | FI_MR_RAW | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT;
  for (const MrCase& c :
       {MrCase{kApi117, 0, 0, 0, all}, MrCase{kApi117, kBasicMr, 0, 0, 0},
        MrCase{kApi117, kMrBasic, 0, 0, 0}, MrCase{kApi117, kMrScalable, 0, 0, kBasicMr},
        MrCase{kApi117, all, 0, 0, FI_MR_RAW}, MrCase{kApi117, FI_MR_LOCAL, 0, 0, kBasicMr},
        MrCase{old, kMrUnspec, 0, 0, 0}, MrCase{old, kMrBasic, 0, kMrBasic, 0},
        MrCase{old, kMrScalable, 0, kMrScalable, 0}}) {
    SCOPED_TRACE("api " + std::to_string(FI_MINOR(c.api)) + ", mr_mode " + std::to_string(c.ask));
    const Answer a = ask(
        [&](fi_info& h) {
          h.caps = FI_RMA;
          h.domain_attr->mr_mode = c.ask;
        },
        {.api = c.api});
    ASSERT_EQ(a.code, c.code);
    const int mode = a.info->domain_attr->mr_mode;
    if (c.api < FI_VERSION(1, 5)) {
      EXPECT_TRUE(mode == kMrBasic || mode == kMrScalable) << "all that such an API knows";
    } else if ((c.ask & (kMrBasic | kMrScalable)) == 0) {
      EXPECT_EQ(mode & ~c.ask, 0) << "a bit that the application did not offer";
    }
    EXPECT_EQ(mode & c.with, c.with);
    EXPECT_EQ(mode & c.without, 0);
  }
}

TEST(Getinfo, mr_mode_of_an_old_application_can_be_opened) {
  for (int mode : {kMrUnspec, kMrBasic, kMrScalable}) {
    Options options{.api = FI_VERSION(1, 4), .caps = FI_MSG | FI_RMA, .mr_mode = mode};
    EXPECT_NO_THROW(Node node(options)) << mode;
  }
}

TEST(Getinfo, unknown_mr_mode_bits_are_harmless_or_refused) {
  const Answer a = ask([](fi_info& h) { h.domain_attr->mr_mode = 1 << 25; });
  if (a.code == 0) {
    EXPECT_EQ(a.info->domain_attr->mr_mode & (1 << 25), 0);
  } else {
    EXPECT_EQ(a.code, -FI_ENODATA);
  }
}

TEST(Getinfo, the_threading_asked_for_is_given_back) {
  for (fi_threading t : {FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION,
                         FI_THREAD_ENDPOINT}) {
    const Answer a = ask([&](fi_info& h) { h.domain_attr->threading = t; });
    ASSERT_EQ(a.code, 0) << t;
    if (on_aperture()) {
      EXPECT_EQ(a.info->domain_attr->threading, t);
    }
  }
  const Info unspecified = answered();
  EXPECT_NE(unspecified->domain_attr->threading, FI_THREAD_UNSPEC);
  EXPECT_NE(
      ask([](fi_info& h) { h.domain_attr->threading = no_such_value<fi_threading>(77); }).code, 0);
}

TEST(Getinfo, the_progress_asked_for_is_given_back) {
  for (fi_progress p : {FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL}) {
    const Answer a = ask([&](fi_info& h) {
      h.domain_attr->data_progress = p;
      h.domain_attr->control_progress = p;
    });
    ASSERT_EQ(a.code, 0) << p;
    if (on_aperture()) {
      EXPECT_EQ(a.info->domain_attr->data_progress, p);
      EXPECT_EQ(a.info->domain_attr->control_progress, p);
    }
  }
  const Info a = answered();
  EXPECT_NE(a->domain_attr->data_progress, FI_PROGRESS_UNSPEC);
}

TEST(Getinfo, the_av_type_is_the_one_asked_for) {
  for (fi_av_type t : {FI_AV_MAP, FI_AV_TABLE}) {
    const Info a = answered([&](fi_info& h) { h.domain_attr->av_type = t; });
    EXPECT_EQ(a->domain_attr->av_type, t);
  }
  EXPECT_MET([](fi_info& h) { h.domain_attr->av_type = FI_AV_UNSPEC; });
  EXPECT_NE(ask([](fi_info& h) { h.domain_attr->av_type = no_such_value<fi_av_type>(9); }).code, 0);
}

TEST(Getinfo, resource_management_is_met_on_and_off) {
  for (fi_resource_mgmt r : {FI_RM_DISABLED, FI_RM_ENABLED})
    EXPECT_MET([&](fi_info& h) { h.domain_attr->resource_mgmt = r; });
}

// A size that can be met when it equals what is offered, and cannot when it is one more.
void expect_limit(const char* name, uint64_t offered,
                  const std::function<void(fi_info&, uint64_t)>& set) {
  SCOPED_TRACE(name);
  ASSERT_GT(offered, 0u);
  EXPECT_MET([&](fi_info& h) { set(h, offered); });
  if (offered == ~0ull) return;
  EXPECT_REFUSED([&](fi_info& h) { set(h, offered + 1); });
  EXPECT_REFUSED([&](fi_info& h) { set(h, ~0ull); });
}

TEST(Getinfo, sizes_are_met_up_to_the_limit_and_refused_above_it) {
  const auto rma = [](fi_info& h) { h.caps = FI_MSG | FI_RMA; };
  const Info a = answered(rma);
  const fi_info& i = *a;
  EXPECT_GE(i.domain_attr->cq_data_size, 4u);
  expect_limit("ep max_msg_size", i.ep_attr->max_msg_size,
               [](fi_info& h, uint64_t v) { h.ep_attr->max_msg_size = v; });
  expect_limit("inject_size", i.tx_attr->inject_size,
               [](fi_info& h, uint64_t v) { h.tx_attr->inject_size = v; });
  expect_limit("tx iov_limit", i.tx_attr->iov_limit,
               [](fi_info& h, uint64_t v) { h.tx_attr->iov_limit = v; });
  expect_limit("rx iov_limit", i.rx_attr->iov_limit,
               [](fi_info& h, uint64_t v) { h.rx_attr->iov_limit = v; });
  expect_limit("rma_iov_limit", i.tx_attr->rma_iov_limit, [&](fi_info& h, uint64_t v) {
    rma(h);
    h.tx_attr->rma_iov_limit = v;
  });
  expect_limit("cq_data_size", i.domain_attr->cq_data_size,
               [](fi_info& h, uint64_t v) { h.domain_attr->cq_data_size = v; });
}

TEST(Getinfo, queue_sizes_are_given_at_least_as_asked) {
  for (size_t size : {1ul, 64ul, 500ul, 4096ul}) {
    const Answer a = ask([&](fi_info& h) { h.tx_attr->size = h.rx_attr->size = size; });
    if (!on_aperture() && a.code != 0) continue;
    ASSERT_EQ(a.code, 0) << size;
    EXPECT_GE(a.info->tx_attr->size, size);
    EXPECT_GE(a.info->rx_attr->size, size);
  }
  EXPECT_REFUSED([](fi_info& h) { h.tx_attr->size = ~0ull; });
  EXPECT_REFUSED([](fi_info& h) { h.rx_attr->size = ~0ull; });
}

TEST(Getinfo, order_and_completion_flags_are_met_where_they_are_known) {
  EXPECT_MET([](fi_info& h) { h.tx_attr->msg_order = h.rx_attr->msg_order = FI_ORDER_SAS; });
  EXPECT_MET([](fi_info& h) { h.tx_attr->op_flags = FI_COMPLETION | FI_TRANSMIT_COMPLETE; });
  EXPECT_MET([](fi_info& h) { h.tx_attr->op_flags = FI_DELIVERY_COMPLETE; });
  EXPECT_MET([](fi_info& h) { h.rx_attr->op_flags = FI_COMPLETION; });
  if (on_aperture()) {
    EXPECT_REFUSED([](fi_info& h) { h.tx_attr->msg_order = 1ull << 62; });
    EXPECT_REFUSED([](fi_info& h) { h.tx_attr->op_flags = 1ull << 62; });
    EXPECT_REFUSED([](fi_info& h) { h.rx_attr->op_flags = FI_MULTICAST; });
    EXPECT_REFUSED([](fi_info& h) { h.tx_attr->caps = FI_MULTICAST; });
  }
}

TEST(Getinfo, contexts_of_scalable_and_shared_endpoints) {
  EXPECT_MET([](fi_info& h) { h.ep_attr->tx_ctx_cnt = h.ep_attr->rx_ctx_cnt = 1; });
  if (!on_aperture()) return;
  for (size_t n : {size_t{2}, size_t{FI_SHARED_CONTEXT}}) {
    EXPECT_MET([&](fi_info& h) { h.ep_attr->tx_ctx_cnt = n; });
    EXPECT_MET([&](fi_info& h) { h.ep_attr->rx_ctx_cnt = n; });
  }
  EXPECT_REFUSED([&](fi_info& h) { h.ep_attr->tx_ctx_cnt = 1000; });
  EXPECT_REFUSED([&](fi_info& h) { h.ep_attr->rx_ctx_cnt = 1000; });
}

TEST(Getinfo, names_of_fabric_and_domain_choose_among_the_offered) {
  const Info first = answered();
  const std::string fabric = first->fabric_attr->name, domain = first->domain_attr->name;
  EXPECT_MET([&](fi_info& h) { h.fabric_attr->name = strdup(fabric.c_str()); });
  EXPECT_MET([&](fi_info& h) { h.domain_attr->name = strdup(domain.c_str()); });
  EXPECT_REFUSED([&](fi_info& h) { h.fabric_attr->name = strdup("another"); });
  EXPECT_REFUSED([&](fi_info& h) { h.domain_attr->name = strdup("another0"); });
}

TEST(Getinfo, address_formats_of_others_are_refused) {
  const Info a = answered();
  const uint32_t own = a->addr_format;
  EXPECT_MET([&](fi_info& h) { h.addr_format = own; });
  EXPECT_MET([&](fi_info& h) { h.addr_format = FI_FORMAT_UNSPEC; });
  EXPECT_REFUSED([&](fi_info& h) { h.addr_format = FI_ADDR_EFA; });
  EXPECT_REFUSED([&](fi_info& h) { h.addr_format = 0x7777; });
  if (on_aperture()) {
    EXPECT_MET([&](fi_info& h) { h.addr_format = FI_SOCKADDR_IN; });
    EXPECT_MET([&](fi_info& h) { h.addr_format = FI_SOCKADDR; });
  }
}

const sockaddr_in& in(const void* addr) {
  return *static_cast<const sockaddr_in*>(addr);
}

TEST(Getinfo, node_and_service_become_the_destination) {
  const Info a = answered({}, {.node = "127.0.0.1", .service = "4711"});
  ASSERT_NE(a->dest_addr, nullptr);
  ASSERT_GE(a->dest_addrlen, sizeof(sockaddr_in));
  EXPECT_EQ(in(a->dest_addr).sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(in(a->dest_addr).sin_port, htons(4711));
}

TEST(Getinfo, with_fi_source_they_become_the_source) {
  const Info a = answered({}, {.node = "127.0.0.1", .service = "4712", .flags = FI_SOURCE});
  ASSERT_NE(a->src_addr, nullptr);
  EXPECT_EQ(in(a->src_addr).sin_port, htons(4712));
  EXPECT_EQ(in(a->src_addr).sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(a->dest_addr, nullptr);
  const Info service_only = answered({}, {.service = "4713", .flags = FI_SOURCE});
  ASSERT_NE(service_only->src_addr, nullptr);
  EXPECT_EQ(in(service_only->src_addr).sin_port, htons(4713));
  const Answer numeric = ask({}, {.node = "127.0.0.1", .flags = FI_SOURCE | FI_NUMERICHOST});
  EXPECT_EQ(numeric.code, 0);
}

TEST(Getinfo, names_that_cannot_be_resolved_find_nothing) {
  EXPECT_REFUSED({}, {.node = "no-such-host.invalid"});
  EXPECT_REFUSED({}, {.node = "no-such-host.invalid", .flags = FI_SOURCE});
  EXPECT_REFUSED({}, {.node = "127.0.0.1", .service = "no-such-service", .flags = FI_SOURCE});
  if (on_aperture()) {
    EXPECT_REFUSED({}, {.node = "192.0.2.77", .flags = FI_SOURCE});
    EXPECT_REFUSED({}, {.node = "localhost", .flags = FI_NUMERICHOST});
  }
}

TEST(Getinfo, an_address_in_the_hints_is_taken) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(4714);
  const auto copy = [&] {
    void* bytes = malloc(sizeof address);
    std::memcpy(bytes, &address, sizeof address);
    return bytes;
  };
  const Info a = answered([&](fi_info& h) {
    h.addr_format = FI_SOCKADDR_IN;
    h.src_addr = copy();
    h.src_addrlen = sizeof address;
    h.dest_addr = copy();
    h.dest_addrlen = sizeof address;
  });
  ASSERT_NE(a->dest_addr, nullptr);
  EXPECT_EQ(in(a->dest_addr).sin_port, htons(4714));
  ASSERT_NE(a->src_addr, nullptr);
  EXPECT_EQ(in(a->src_addr).sin_port, htons(4714));
}

TEST(Getinfo, the_flag_for_core_providers_only_is_not_answered) {
  if (!on_aperture()) GTEST_SKIP() << "a core provider does answer";
  EXPECT_REFUSED({}, {.flags = 1ull << 59});
}

TEST(Getinfo, bad_flags_are_refused) {
  // FI_SOURCE needs a node or a service
  EXPECT_NE(ask({}, {.flags = FI_SOURCE}).code, 0);
  if (on_aperture()) {
    const int code = ask({}, {.flags = 1ull << 40}).code;
    EXPECT_TRUE(code == -FI_EBADFLAGS || code == -FI_ENODATA) << code;
  }
}

TEST(Getinfo, fi_prov_attr_only_is_answered_once) {
  fi_info* list = nullptr;
  Info hints(fi_allocinfo());
  hints->fabric_attr->prov_name = strdup(provider_name());
  ASSERT_EQ(fi_getinfo(kApi117, nullptr, nullptr, FI_PROV_ATTR_ONLY, hints.get(), &list), 0);
  const Info owner(list);
  // every provider answers to this flag, once
  int times = 0;
  for (const fi_info* i = list; i != nullptr; i = i->next) {
    if (std::strcmp(i->fabric_attr->prov_name, provider_name()) != 0) continue;
    ++times;
    EXPECT_NE(i->fabric_attr->prov_version, 0u);
  }
  if (on_aperture()) {
    EXPECT_EQ(times, 1);
  }
}

TEST(Getinfo, no_layered_provider_puts_itself_above_ours) {
  if (!on_aperture()) GTEST_SKIP() << "about aperture";
  Info hints(fi_allocinfo());
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  fi_info* list = nullptr;
  ASSERT_EQ(fi_getinfo(kApi117, nullptr, nullptr, 0, hints.get(), &list), 0);
  const Info owner(list);
  for (const fi_info* i = list; i != nullptr; i = i->next) {
    const std::string name = i->fabric_attr->prov_name;
    EXPECT_TRUE(name == "aperture" || name.find("aperture") == std::string::npos) << name;
  }
}

TEST(Getinfo, answers_can_be_copied_asked_again_and_freed) {
  const Info first = answered();
  Info copy(fi_dupinfo(first.get()));
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->caps, first->caps);
  EXPECT_EQ(std::string(copy->domain_attr->name), first->domain_attr->name);
  // what was answered, asked for again, is answered the same
  fi_info* again = nullptr;
  ASSERT_EQ(fi_getinfo(kApi117, nullptr, nullptr, 0, copy.get(), &again), 0);
  const Info owner(again);
  EXPECT_EQ(again->caps, copy->caps);
  EXPECT_EQ(again->domain_attr->threading, copy->domain_attr->threading);
  fi_freeinfo(nullptr);
}

TEST(Getinfo, a_thousand_calls_do_not_grow) {
  for (int i = 0; i < 20; ++i) ask();
  for (int i = 0; i < 1000; ++i) {
    const Info a = answered();
    if (i % 2 == 0) ask([](fi_info& h) { h.addr_format = FI_ADDR_EFA; });
  }
}

TEST(Getinfo, the_answer_opens_an_endpoint_with_its_source_address) {
  Node node;
  const std::vector<uint8_t> name = node.name();
  ASSERT_GE(name.size(), sizeof(sockaddr_in));
  if (on_aperture()) {
    sockaddr_in address;
    std::memcpy(&address, name.data(), sizeof address);
    EXPECT_EQ(address.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    EXPECT_NE(address.sin_port, 0);
  }
}

}  // namespace
}  // namespace aperture::doors
