// Bad input to every call: NULL, wrong sizes, unsupported flags, objects of another domain, buffers
// that are too small, the wrong moment. The answer is the man page's code, nothing has changed, and
// the same objects go on working.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>
#include <sys/mman.h>

#include "doors/region.hpp"

namespace aperture::doors {
namespace {

// One of several codes where the pages leave a choice.
testing::AssertionResult is_one_of(int64_t code, std::initializer_list<int> allowed) {
  for (int a : allowed)
    if (code == -a) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "returned " << code << " (" << fi_strerror(static_cast<int>(-code)) << ")";
}

constexpr std::initializer_list<int> kNotOffered = {FI_ENOSYS, FI_EOPNOTSUPP};

class BadInput : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << "other providers do not look";
    pair = std::make_unique<NodePair>();
  }
  void TearDown() override {
    if (pair == nullptr) return;
    // nothing was accepted, nothing completes, and both still talk
    EXPECT_TRUE(pair->a.quiet(2));
    EXPECT_TRUE(pair->b.quiet(2));
    EXPECT_EQ(pair->pass("z").err, 0);
    EXPECT_EQ(pair->passed, 'z');
  }
  fid_ep* ep() { return pair->a.ep(); }
  fid_domain* domain() { return pair->a.domain(); }
  fi_info* info() { return pair->a.info(); }
  fi_addr_t to() { return pair->to_b; }
  // An endpoint that is not enabled, in a's domain.
  Fid<fid_ep> fresh() { return DOOR_MADE(fi_endpoint, domain(), info()); }
  std::unique_ptr<NodePair> pair;
};

using Fabric = BadInput;
using Endpoint = BadInput;
using Message = BadInput;
using Tag = BadInput;
using RemoteAccess = BadInput;
using Registration = BadInput;
using Closing = BadInput;

TEST_F(Fabric, unknown_names_and_null_are_refused) {
  fid_fabric* fabric = nullptr;
  EXPECT_EQ(fi_fabric(nullptr, &fabric, nullptr), -FI_EINVAL);
  Info copy(fi_dupinfo(info()));
  free(copy->fabric_attr->name);
  copy->fabric_attr->name = strdup("another");
  EXPECT_TRUE(is_one_of(fi_fabric(copy->fabric_attr, &fabric, nullptr), {FI_ENODATA, FI_EINVAL}));
  EXPECT_EQ(fabric, nullptr);
}

TEST_F(Fabric, domain_of_what_getinfo_never_returned) {
  fid_domain* out = nullptr;
  EXPECT_EQ(fi_domain(pair->a.fabric(), nullptr, &out, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_domain(pair->a.fabric(), info(), nullptr, nullptr), -FI_EINVAL);
  Info copy(fi_dupinfo(info()));
  free(copy->domain_attr->name);
  copy->domain_attr->name = strdup("another0");
  EXPECT_TRUE(
      is_one_of(fi_domain(pair->a.fabric(), copy.get(), &out, nullptr), {FI_EINVAL, FI_ENODATA}));
  copy.reset(fi_dupinfo(info()));
  copy->domain_attr->mr_mode = 1 << 25;
  EXPECT_TRUE(is_one_of(fi_domain(pair->a.fabric(), copy.get(), &out, nullptr),
                        {FI_EINVAL, FI_ENOSYS, FI_EOPNOTSUPP}));
  EXPECT_EQ(out, nullptr);
}

TEST_F(Fabric, what_is_not_offered_says_so) {
  fid_pep* pep = nullptr;
  EXPECT_EQ(fi_passive_ep(pair->a.fabric(), info(), &pep, nullptr), -FI_EINVAL)
      << "not for FI_EP_RDM";
  fid_ep* out = nullptr;
  EXPECT_TRUE(is_one_of(fi_tx_context(ep(), 0, nullptr, &out, nullptr),
                        {FI_ENOSYS, FI_EOPNOTSUPP, FI_EINVAL}));
  EXPECT_TRUE(is_one_of(fi_rx_context(ep(), 0, nullptr, &out, nullptr),
                        {FI_ENOSYS, FI_EOPNOTSUPP, FI_EINVAL}));
  void* ops = nullptr;
  EXPECT_TRUE(is_one_of(fi_open_ops(&domain()->fid, "no such ops", 0, &ops, nullptr),
                        {FI_ENOSYS, FI_EINVAL}));
  EXPECT_EQ(pep, nullptr);
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(ops, nullptr);
}

TEST_F(Endpoint, is_not_opened_from_bad_info) {
  fid_ep* out = nullptr;
  EXPECT_EQ(fi_endpoint(domain(), nullptr, &out, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_endpoint(domain(), info(), nullptr, nullptr), -FI_EINVAL);
  Info copy(fi_dupinfo(info()));
  copy->ep_attr->type = FI_EP_DGRAM;
  EXPECT_LT(fi_endpoint(domain(), copy.get(), &out, nullptr), 0);
  copy.reset(fi_dupinfo(info()));
  copy->tx_attr->iov_limit = 100000;
  EXPECT_LT(fi_endpoint(domain(), copy.get(), &out, nullptr), 0);
  copy.reset(fi_dupinfo(info()));
  copy->tx_attr->op_flags = 1ull << 62;
  EXPECT_TRUE(
      is_one_of(fi_endpoint(domain(), copy.get(), &out, nullptr), {FI_EBADFLAGS, FI_EINVAL}));
  EXPECT_EQ(out, nullptr);
}

TEST_F(Endpoint, is_not_bound_to_the_wrong_things) {
  const Fid<fid_ep> e = fresh();
  EXPECT_EQ(fi_ep_bind(e.get(), nullptr, 0), -FI_EINVAL);
  EXPECT_LT(fi_ep_bind(e.get(), &pair->a.fabric()->fid, 0), 0);
  EXPECT_EQ(fi_ep_bind(e.get(), &pair->a.cq()->fid, 0), -FI_EINVAL) << "neither send nor receive";
  EXPECT_TRUE(is_one_of(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_TRANSMIT | (1ull << 61)),
                        {FI_EBADFLAGS, FI_EINVAL}));
  EXPECT_TRUE(is_one_of(fi_ep_bind(e.get(), &pair->b.cq()->fid, FI_TRANSMIT | FI_RECV),
                        {FI_EDOMAIN, FI_EINVAL}))
      << "a queue of another domain";
  EXPECT_TRUE(is_one_of(fi_ep_bind(e.get(), &pair->b.av()->fid, 0), {FI_EDOMAIN, FI_EINVAL}));
  EXPECT_TRUE(
      is_one_of(fi_ep_bind(e.get(), &pair->a.av()->fid, FI_TRANSMIT), {FI_EBADFLAGS, FI_EINVAL}));
  EXPECT_EQ(fi_ep_bind(e.get(), &pair->a.av()->fid, 0), 0);
  EXPECT_LT(fi_ep_bind(e.get(), &pair->a.av()->fid, 0), 0) << "a second vector";
  EXPECT_EQ(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_TRANSMIT), 0);
  EXPECT_LT(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_TRANSMIT), 0) << "a second queue";
  EXPECT_EQ(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_RECV), 0);
  EXPECT_EQ(fi_enable(e.get()), 0);
  EXPECT_TRUE(
      is_one_of(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_RECV), {FI_EOPBADSTATE, FI_EINVAL}))
      << "after fi_enable";
}

TEST_F(Endpoint, is_not_enabled_without_what_it_needs) {
  Fid<fid_ep> e = fresh();
  EXPECT_TRUE(is_one_of(fi_enable(e.get()), {FI_ENOAV, FI_ENOCQ}));
  ASSERT_EQ(fi_ep_bind(e.get(), &pair->a.av()->fid, 0), 0);
  EXPECT_EQ(fi_enable(e.get()), -FI_ENOCQ);
  ASSERT_EQ(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_TRANSMIT), 0);
  EXPECT_EQ(fi_enable(e.get()), -FI_ENOCQ) << "none for receives";
  ASSERT_EQ(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_RECV), 0);
  EXPECT_EQ(fi_enable(e.get()), 0);
  e = fresh();
  ASSERT_EQ(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_TRANSMIT | FI_RECV), 0);
  EXPECT_EQ(fi_enable(e.get()), -FI_ENOAV);
}

TEST_F(Endpoint, is_not_used_before_it_is_enabled) {
  const Fid<fid_ep> e = fresh();
  uint8_t byte = 0;
  Op op;
  EXPECT_EQ(fi_send(e.get(), &byte, 1, nullptr, to(), &op), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_recv(e.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, &op), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_tsend(e.get(), &byte, 1, nullptr, to(), 1, &op), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_trecv(e.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, &op), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_write(e.get(), &byte, 1, nullptr, to(), 0, 1, &op), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_read(e.get(), &byte, 1, nullptr, to(), 0, 1, &op), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_inject(e.get(), &byte, 1, to()), -FI_EOPBADSTATE);
  uint8_t name[64];
  size_t len = sizeof name;
  EXPECT_EQ(fi_getname(&e->fid, name, &len), -FI_EOPBADSTATE);
}

TEST_F(Endpoint, a_name_into_a_short_buffer_tells_what_is_needed) {
  const std::vector<uint8_t> name = pair->a.name();
  uint8_t small[256];
  std::memset(small, 0xEE, sizeof small);
  for (size_t room : {size_t{0}, size_t{1}, name.size() - 1}) {
    size_t len = room;
    EXPECT_EQ(fi_getname(&ep()->fid, small, &len), -FI_ETOOSMALL) << room;
    EXPECT_EQ(len, name.size()) << "what is needed";
    EXPECT_EQ(small[room], 0xEE) << "written beyond " << room;
  }
  EXPECT_EQ(fi_getname(&ep()->fid, small, nullptr), -FI_EINVAL);
  size_t len = 0;
  EXPECT_EQ(fi_getname(&ep()->fid, nullptr, &len), -FI_ETOOSMALL);
}

TEST_F(Endpoint, connection_calls_of_a_datagram_endpoint_are_refused) {
  const std::vector<uint8_t> name = pair->b.name();
  EXPECT_LT(fi_connect(ep(), name.data(), nullptr, 0), 0);
  EXPECT_LT(fi_accept(ep(), nullptr, 0), 0);
  EXPECT_LT(fi_shutdown(ep(), 0), 0);
  uint8_t peer[64];
  size_t len = sizeof peer;
  EXPECT_LT(fi_getpeer(ep(), peer, &len), 0);
}

TEST_F(Endpoint, bad_options_and_controls_are_refused) {
  size_t value = 0, len = sizeof value;
  EXPECT_EQ(fi_getopt(&ep()->fid, FI_OPT_ENDPOINT, 9999, &value, &len), -FI_ENOPROTOOPT);
  EXPECT_EQ(fi_setopt(&ep()->fid, FI_OPT_ENDPOINT, 9999, &value, sizeof value), -FI_ENOPROTOOPT);
  EXPECT_LT(fi_getopt(&ep()->fid, 77, FI_OPT_MIN_MULTI_RECV, &value, &len), 0) << "a bad level";
  len = 1;
  const int code = fi_getopt(&ep()->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &len);
  EXPECT_TRUE(is_one_of(code, {FI_ETOOSMALL, FI_ENOPROTOOPT}));
  EXPECT_LT(fi_control(&ep()->fid, 0x7777, nullptr), 0);
  EXPECT_LT(fi_control(&pair->a.cq()->fid, 0x7777, nullptr), 0);
  EXPECT_LT(fi_control(&pair->a.cq()->fid, FI_GETWAIT, nullptr), 0);
}

TEST_F(Message, is_refused_to_addresses_that_are_none) {
  uint8_t byte = 0;
  Op op;
  for (fi_addr_t bad : {FI_ADDR_UNSPEC, to() + 12345, fi_addr_t{1} << 40}) {
    EXPECT_EQ(fi_send(ep(), &byte, 1, nullptr, bad, &op), -FI_EINVAL) << bad;
    EXPECT_EQ(fi_inject(ep(), &byte, 1, bad), -FI_EINVAL) << bad;
    EXPECT_EQ(fi_tsend(ep(), &byte, 1, nullptr, bad, 1, &op), -FI_EINVAL) << bad;
    EXPECT_EQ(fi_write(ep(), &byte, 1, nullptr, bad, 0, 1, &op), -FI_EINVAL) << bad;
    EXPECT_EQ(fi_read(ep(), &byte, 1, nullptr, bad, 0, 1, &op), -FI_EINVAL) << bad;
  }
}

TEST_F(Message, null_is_refused_where_bytes_are_promised) {
  Op op;
  EXPECT_EQ(fi_send(ep(), nullptr, 8, nullptr, to(), &op), -FI_EINVAL);
  EXPECT_EQ(fi_inject(ep(), nullptr, 8, to()), -FI_EINVAL);
  EXPECT_EQ(fi_sendv(ep(), nullptr, nullptr, 2, to(), &op), -FI_EINVAL);
  EXPECT_EQ(fi_recvv(ep(), nullptr, nullptr, 2, FI_ADDR_UNSPEC, &op), -FI_EINVAL);
  EXPECT_EQ(fi_sendmsg(ep(), nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_recvmsg(ep(), nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_tsend(ep(), nullptr, 8, nullptr, to(), 1, &op), -FI_EINVAL);
  EXPECT_EQ(fi_tsendmsg(ep(), nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_trecvmsg(ep(), nullptr, 0), -FI_EINVAL);
}

TEST_F(Message, flags_that_the_call_does_not_know) {
  uint8_t byte = 0;
  Op op;
  iovec iov{&byte, 1};
  fi_msg m{&iov, nullptr, 1, to(), &op, 0};
  for (uint64_t bad : {FI_PEEK, FI_CLAIM, FI_DISCARD, FI_MULTICAST, 1ull << 57, 1ull << 63}) {
    EXPECT_EQ(fi_sendmsg(ep(), &m, bad), -FI_EBADFLAGS) << bad;
  }
  for (uint64_t bad : {FI_REMOTE_CQ_DATA, FI_MULTI_RECV, FI_FENCE, 1ull << 57, 1ull << 63}) {
    EXPECT_EQ(fi_recvmsg(ep(), &m, bad), -FI_EBADFLAGS) << bad;
  }
}

TEST_F(Message, lists_whose_length_wraps_are_refused) {
  uint8_t byte = 0;
  Op op;
  iovec iov[2] = {{&byte, ~size_t{0}}, {&byte, 2}};
  EXPECT_TRUE(is_one_of(fi_sendv(ep(), iov, nullptr, 2, to(), &op), {FI_EMSGSIZE, FI_EINVAL}));
  EXPECT_TRUE(is_one_of(fi_tsendv(ep(), iov, nullptr, 2, to(), 1, &op), {FI_EMSGSIZE, FI_EINVAL}));
  EXPECT_TRUE(
      is_one_of(fi_writev(ep(), iov, nullptr, 2, to(), 0, 1, &op), {FI_EMSGSIZE, FI_EINVAL}));
}

TEST_F(Tag, flags_that_contradict_are_refused) {
  uint8_t byte = 0;
  Op op;
  iovec iov{&byte, 1};
  fi_msg_tagged m{&iov, nullptr, 1, FI_ADDR_UNSPEC, 1, 0, &op, 0};
  for (uint64_t bad : {FI_DISCARD, FI_PEEK | FI_CLAIM | FI_DISCARD, FI_MULTI_RECV, 1ull << 57}) {
    EXPECT_TRUE(is_one_of(fi_trecvmsg(ep(), &m, bad), {FI_EBADFLAGS, FI_EINVAL})) << bad;
  }
  m.addr = to();
  for (uint64_t bad : {FI_PEEK, FI_CLAIM, FI_MULTI_RECV, 1ull << 57}) {
    EXPECT_EQ(fi_tsendmsg(ep(), &m, bad), -FI_EBADFLAGS) << bad;
  }
}

TEST_F(RemoteAccess, bad_calls_send_nothing) {
  Region region(pair->b, 64);
  uint8_t byte = 0;
  Op op;
  iovec iov{&byte, 1};
  const Remote& r = region.remote();
  fi_rma_iov rma{r.base, 1, r.key};
  fi_msg_rma m{&iov, nullptr, 1, to(), &rma, 1, &op, 0};
  EXPECT_EQ(fi_write(ep(), nullptr, 8, nullptr, to(), r.base, r.key, &op), -FI_EINVAL);
  EXPECT_EQ(fi_read(ep(), nullptr, 8, nullptr, to(), r.base, r.key, &op), -FI_EINVAL);
  EXPECT_EQ(fi_writemsg(ep(), nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_readmsg(ep(), nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_writemsg(ep(), &m, FI_PEEK), -FI_EBADFLAGS);
  EXPECT_EQ(fi_readmsg(ep(), &m, FI_PEEK), -FI_EBADFLAGS);
  EXPECT_EQ(fi_readmsg(ep(), &m, FI_REMOTE_CQ_DATA), -FI_EBADFLAGS);
  m.rma_iov = nullptr;
  EXPECT_EQ(fi_writemsg(ep(), &m, 0), -FI_EINVAL);
  m.rma_iov = &rma;
  m.rma_iov_count = info()->tx_attr->rma_iov_limit + 1;
  EXPECT_EQ(fi_writemsg(ep(), &m, 0), -FI_EINVAL);
  m.rma_iov_count = 1;
  m.iov_count = info()->tx_attr->iov_limit + 1;
  EXPECT_EQ(fi_writemsg(ep(), &m, 0), -FI_EINVAL);
  m.iov_count = 1;
  rma.len = 2;
  EXPECT_EQ(fi_writemsg(ep(), &m, 0), -FI_EINVAL) << "one byte here, two there";
  EXPECT_EQ(fi_readmsg(ep(), &m, 0), -FI_EINVAL);
  EXPECT_FALSE(first_difference(region.memory().span(), 1));
}

TEST_F(RemoteAccess, is_refused_without_the_capability) {
  Options options{.caps = FI_MSG};
  Node plain(options);
  const fi_addr_t self = plain.insert(plain.name());
  uint8_t byte = 0;
  Op op;
  EXPECT_TRUE(is_one_of(fi_write(plain.ep(), &byte, 1, nullptr, self, 0, 1, &op), kNotOffered));
  EXPECT_TRUE(is_one_of(fi_tsend(plain.ep(), &byte, 1, nullptr, self, 1, &op), kNotOffered));
  options.caps = FI_TAGGED;
  Node tagged(options);
  EXPECT_TRUE(is_one_of(fi_recv(tagged.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, &op), kNotOffered));
  options.caps = FI_MSG | FI_SEND;
  Node sender(options);
  EXPECT_TRUE(is_one_of(fi_recv(sender.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, &op), kNotOffered));
}

TEST_F(RemoteAccess, atomics_are_not_silently_taken) {
  uint64_t operand = 1;
  Op op;
  size_t count = 0;
  EXPECT_TRUE(is_one_of(fi_atomic(ep(), &operand, 1, nullptr, to(), 0, 1, FI_UINT64, FI_SUM, &op),
                        kNotOffered));
  EXPECT_TRUE(is_one_of(fi_atomicvalid(ep(), FI_UINT64, FI_SUM, &count), kNotOffered));
}

TEST_F(Registration, bad_arguments_are_refused) {
  std::vector<uint8_t> memory(4096);
  fid_mr* mr = nullptr;
  uint8_t* at = memory.data();
  const auto reg = [&](void* buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
                       uint64_t flags) {
    return fi_mr_reg(domain(), buf, len, access, offset, key, flags, &mr, nullptr);
  };
  EXPECT_EQ(reg(at, 4096, 1ull << 62, 0, 1, 0), -FI_EINVAL) << "an unknown right";
  EXPECT_TRUE(is_one_of(reg(at, 4096, kAllAccess, 0, 1, 1ull << 62), {FI_EBADFLAGS, FI_EINVAL}));
  EXPECT_EQ(reg(at, 4096, kAllAccess, 64, 1, 0), -FI_EINVAL) << "offset is reserved";
  EXPECT_EQ(reg(at, ~size_t{0}, kAllAccess, 0, 1, 0), -FI_EINVAL) << "past the end of memory";
  EXPECT_EQ(reg(reinterpret_cast<void*>(~uintptr_t{0} - 10), 100, kAllAccess, 0, 1, 0), -FI_EINVAL);
  EXPECT_EQ(fi_mr_reg(domain(), at, 4096, kAllAccess, 0, 1, 0, nullptr, nullptr), -FI_EINVAL);
  iovec iov[100];
  std::fill(std::begin(iov), std::end(iov), iovec{at, 16});
  EXPECT_EQ(fi_mr_regv(domain(), nullptr, 1, kAllAccess, 0, 1, 0, &mr, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_mr_regv(domain(), iov, 0, kAllAccess, 0, 1, 0, &mr, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_mr_regv(domain(), iov, 100, kAllAccess, 0, 1, 0, &mr, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_mr_regattr(domain(), nullptr, 0, &mr), -FI_EINVAL);
  EXPECT_EQ(mr, nullptr) << "written although it failed";
}

TEST_F(Registration, a_key_that_is_taken_is_refused) {
  std::vector<uint8_t> memory(4096);
  fid_mr* second = nullptr;
  Fid<fid_mr> first = registered(domain(), memory.data(), 4096, kAllAccess, 77);
  EXPECT_EQ(fi_mr_key(first.get()), 77u);
  EXPECT_EQ(fi_mr_reg(domain(), memory.data(), 8, kAllAccess, 0, 77, 0, &second, nullptr),
            -FI_ENOKEY);
  EXPECT_EQ(second, nullptr);
  // in another domain it is free
  EXPECT_EQ(fi_mr_reg(pair->b.domain(), memory.data(), 8, kAllAccess, 0, 77, 0, &second, nullptr),
            0);
  EXPECT_EQ(fi_close(&second->fid), 0);
  EXPECT_EQ(fi_close(&first.release()->fid), 0);
  EXPECT_EQ(fi_mr_reg(domain(), memory.data(), 8, kAllAccess, 0, 77, 0, &second, nullptr), 0)
      << "and after close it is free again";
  EXPECT_EQ(fi_close(&second->fid), 0);
}

TEST_F(Registration, memory_that_is_not_there_is_refused_in_basic_mode) {
  Node node({.mr_mode = kBasicMr});
  void* hole = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  munmap(hole, 8192);
  fid_mr* mr = nullptr;
  const int code = fi_mr_reg(node.domain(), hole, 8192, kAllAccess, 0, 0, 0, &mr, nullptr);
  EXPECT_TRUE(is_one_of(code, {FI_EFAULT, FI_EINVAL})) << "FI_MR_ALLOCATED";
}

TEST_F(Registration, memory_that_goes_away_while_registered_is_an_error_not_a_crash) {
  NodePair p({.mr_mode = kBasicMr});
  void* page = mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const Fid<fid_mr> mr = registered(p.b.domain(), page, 65536, kAllAccess, 0);
  uint8_t out[8] = {};
  const auto at = reinterpret_cast<uint64_t>(page);
  ASSERT_EQ(mprotect(page, 65536, PROT_READ), 0) << "readable still, so nothing can crash";
  ASSERT_EQ(p.a.run(fi_read, out, 8, nullptr, p.to_b, at, fi_mr_key(mr.get())), 0);
  munmap(page, 65536);
}

TEST_F(Registration, attributes_register_like_arguments) {
  std::vector<uint8_t> memory(4096);
  iovec iov{memory.data(), memory.size()};
  fi_mr_attr attr{.mr_iov = &iov, .iov_count = 1, .access = kAllAccess, .requested_key = 4242};
  attr.context = &attr;
  fid_mr* mr = nullptr;
  ASSERT_EQ(fi_mr_regattr(domain(), &attr, 0, &mr), 0);
  EXPECT_EQ(fi_mr_key(mr), 4242u);
  EXPECT_EQ(mr->fid.context, &attr);
  EXPECT_LT(fi_mr_bind(mr, &pair->a.av()->fid, 0), 0);
  EXPECT_LT(fi_mr_bind(mr, nullptr, 0), 0);
  uint64_t base = 0;
  uint8_t raw[4];
  size_t raw_size = 1;
  const int code = fi_mr_raw_attr(mr, &base, raw, &raw_size, 0);
  EXPECT_TRUE(is_one_of(code, {FI_ETOOSMALL, FI_ENOSYS, FI_EOPNOTSUPP}));
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST_F(Closing, parents_wait_for_their_children) {
  Node node;
  EXPECT_EQ(fi_close(&node.domain()->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&node.fabric()->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&node.cq()->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&node.av()->fid), -FI_EBUSY);
}

TEST_F(Closing, a_domain_waits_for_its_regions) {
  Fid<fid_domain> own = DOOR_MADE(fi_domain, pair->a.fabric(), info());
  std::vector<uint8_t> memory(64);
  Fid<fid_mr> mr = registered(own.get(), memory.data(), 64, kAllAccess, 5);
  EXPECT_EQ(fi_close(&own->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&mr.release()->fid), 0);
  EXPECT_EQ(fi_close(&own.release()->fid), 0);
}

TEST_F(Closing, a_sibling_goes_on) {
  auto sibling = std::make_unique<Node>(Options{}, pair->b);
  Region stays(pair->b, 64), goes(pair->b, 64);
  EXPECT_EQ(goes.close(), 0);
  sibling.reset();
  ASSERT_EQ(pair->a.run_at(ep(), fi_write, "12345678", 8, nullptr, to(), stays.remote().base,
                           stays.remote().key),
            0);
}

TEST_F(Closing, a_thousand_endpoints_one_after_the_other) {
  for (int i = 0; i < 1000; ++i) {
    Fid<fid_ep> e = fresh();
    ASSERT_EQ(fi_ep_bind(e.get(), &pair->a.av()->fid, 0), 0);
    ASSERT_EQ(fi_ep_bind(e.get(), &pair->a.cq()->fid, FI_TRANSMIT | FI_RECV), 0);
    ASSERT_EQ(fi_enable(e.get()), 0) << i;
  }
}

}  // namespace
}  // namespace aperture::doors
