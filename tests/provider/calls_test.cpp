// Calls that are wrong, early, late or twice: the page's code, and nothing changed.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

class Calls : public testing::Test {
 protected:
  Bench b;
};

TEST_F(Calls, domains_are_opened_from_what_getinfo_returned) {
  fid_domain* d = nullptr;
  EXPECT_EQ(fi_domain(b.fabric.get(), nullptr, &d, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_domain(b.fabric.get(), b.info.get(), nullptr, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_domain2(b.fabric.get(), b.info.get(), &d, FI_PEER, nullptr), -FI_EBADFLAGS);
  b.info->domain_attr->mr_mode = 1 << 25;
  EXPECT_EQ(fi_domain(b.fabric.get(), b.info.get(), &d, nullptr), -FI_EINVAL);
  EXPECT_EQ(d, nullptr);
}

TEST_F(Calls, parents_cannot_be_closed_before_their_children) {
  EXPECT_EQ(fi_close(&b.fabric->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&b.domain->fid), -FI_EBUSY);
  b.enable();
  EXPECT_EQ(fi_close(&b.av->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&b.cq->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&b.cntr->fid), -FI_EBUSY);
}

TEST_F(Calls, an_endpoint_says_what_is_missing) {
  EXPECT_EQ(fi_enable(b.ep.get()), -FI_ENOAV);
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.av->fid, 0), 0);
  EXPECT_EQ(fi_enable(b.ep.get()), -FI_ENOCQ);
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.cq->fid, FI_TRANSMIT), 0);
  EXPECT_EQ(fi_enable(b.ep.get()), -FI_ENOCQ) << "nothing for receives yet";
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.cq->fid, FI_RECV), 0);
  EXPECT_EQ(fi_enable(b.ep.get()), 0);
}

TEST_F(Calls, an_endpoint_that_only_sends_needs_no_receive_queue) {
  Bench sender([](fi_info& h) { h.caps = FI_MSG | FI_SEND; });
  EXPECT_EQ(fi_ep_bind(sender.ep.get(), &sender.av->fid, 0), 0);
  EXPECT_EQ(fi_ep_bind(sender.ep.get(), &sender.cq->fid, FI_TRANSMIT), 0);
  EXPECT_EQ(fi_enable(sender.ep.get()), 0);
  char c;
  EXPECT_EQ(fi_recv(sender.ep.get(), &c, 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_trecv(sender.ep.get(), &c, 1, nullptr, FI_ADDR_UNSPEC, 0, 0, nullptr),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_write(sender.ep.get(), &c, 1, nullptr, 0, 0, 0, nullptr), -FI_EOPNOTSUPP);
}

TEST_F(Calls, bindings_are_checked) {
  Bench other;
  fid_ep* ep = b.ep.get();
  EXPECT_EQ(fi_ep_bind(ep, nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(ep, &b.domain->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(ep, &b.cq->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(ep, &b.cq->fid, FI_TRANSMIT | FI_READ), -FI_EBADFLAGS);
  EXPECT_EQ(fi_ep_bind(ep, &other.cq->fid, FI_TRANSMIT), -FI_EDOMAIN);
  EXPECT_EQ(fi_ep_bind(ep, &other.av->fid, 0), -FI_EDOMAIN);
  EXPECT_EQ(fi_ep_bind(ep, &b.av->fid, 1), -FI_EBADFLAGS);
  EXPECT_EQ(fi_ep_bind(ep, &b.cntr->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(ep, &b.cntr->fid, FI_REMOTE_WRITE), -FI_EINVAL) << "needs FI_RMA_EVENT";
  b.enable();
  EXPECT_EQ(fi_ep_bind(ep, &b.av->fid, 0), -FI_EOPBADSTATE);
}

TEST_F(Calls, bound_twice_is_refused) {
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.av->fid, 0), 0);
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.av->fid, 0), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.cq->fid, FI_RECV), 0);
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.cq->fid, FI_RECV), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.cntr->fid, FI_READ | FI_WRITE), 0);
  EXPECT_EQ(fi_ep_bind(b.ep.get(), &b.cntr->fid, FI_WRITE), -FI_EINVAL);
}

TEST_F(Calls, data_before_enable_is_the_wrong_state) {
  char c = 0;
  EXPECT_EQ(fi_send(b.ep.get(), &c, 1, nullptr, 0, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_trecv(b.ep.get(), &c, 1, nullptr, 0, 0, 0, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_read(b.ep.get(), &c, 1, nullptr, 0, 0, 0, nullptr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_cancel(&b.ep->fid, nullptr), -FI_EOPBADSTATE);
}

TEST_F(Calls, names_before_and_after_enable) {
  sockaddr_in name{};
  size_t len = sizeof name;
  EXPECT_EQ(fi_getname(&b.ep->fid, &name, &len), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_setname(&b.ep->fid, &name, 3), -FI_EINVAL);
  b.enable();
  EXPECT_EQ(fi_setname(&b.ep->fid, &name, sizeof name), -FI_EOPBADSTATE);
  len = 4;
  EXPECT_EQ(fi_getname(&b.ep->fid, &name, &len), -FI_ETOOSMALL);
  EXPECT_EQ(len, sizeof name);
  EXPECT_EQ(fi_getname(&b.ep->fid, &name, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_getpeer(b.ep.get(), &name, &len), -FI_EOPNOTSUPP);
}

TEST_F(Calls, flags_of_the_data_path_are_checked) {
  const fi_addr_t own = b.enable();
  char c = 0;
  iovec iov{&c, 1};
  const fi_msg msg{&iov, nullptr, 1, own, &b, 0};
  EXPECT_EQ(fi_sendmsg(b.ep.get(), &msg, FI_COMMIT_COMPLETE), -FI_EBADFLAGS);
  EXPECT_EQ(fi_sendmsg(b.ep.get(), &msg, FI_MULTICAST), -FI_EBADFLAGS);
  EXPECT_EQ(fi_recvmsg(b.ep.get(), &msg, FI_MULTI_RECV | FI_FENCE), -FI_EBADFLAGS);
  EXPECT_EQ(fi_sendmsg(b.ep.get(), &msg, FI_MULTI_RECV), -FI_EBADFLAGS);
  EXPECT_EQ(fi_recvmsg(b.ep.get(), &msg, FI_PEEK), -FI_EBADFLAGS);
  EXPECT_EQ(fi_sendmsg(b.ep.get(), nullptr, 0), -FI_EINVAL);
  const fi_msg_tagged tagged{&iov, nullptr, 1, own, 0, 0, nullptr, 0};
  EXPECT_EQ(fi_trecvmsg(b.ep.get(), &tagged, FI_DISCARD), -FI_EINVAL);
  EXPECT_EQ(fi_trecvmsg(b.ep.get(), &tagged, FI_PEEK | FI_CLAIM), -FI_EINVAL) << "no context";
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_read(b.cq.get(), &entry, 1), -FI_EAGAIN) << "nothing was posted";
}

TEST_F(Calls, pieces_and_addresses_are_checked) {
  const fi_addr_t own = b.enable();
  char c = 0;
  iovec many[9];
  for (iovec& i : many) i = {&c, 1};
  EXPECT_EQ(fi_sendv(b.ep.get(), many, nullptr, 9, own, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_sendv(b.ep.get(), nullptr, nullptr, 1, own, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_send(b.ep.get(), nullptr, 1, nullptr, own, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_send(b.ep.get(), &c, 1, nullptr, own + 1, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_send(b.ep.get(), &c, 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
  const iovec wrapping[2] = {{&c, SIZE_MAX}, {&c, 2}};
  EXPECT_EQ(fi_sendv(b.ep.get(), wrapping, nullptr, 2, own, nullptr), -FI_EINVAL);
  const fi_rma_iov range{0, 2, 0};
  iovec iov{&c, 1};
  fi_msg_rma rma{&iov, nullptr, 1, own, &range, 1, nullptr, 0};
  EXPECT_EQ(fi_writemsg(b.ep.get(), &rma, 0), -FI_EINVAL) << "1 byte here, 2 there";
  rma.rma_iov_count = 0;
  EXPECT_EQ(fi_writemsg(b.ep.get(), &rma, 0), -FI_EINVAL);
  rma.rma_iov = nullptr;
  EXPECT_EQ(fi_readmsg(b.ep.get(), &rma, 0), -FI_EINVAL);
  EXPECT_EQ(fi_cntr_read(b.cntr.get()), 0u);
  EXPECT_EQ(fi_cntr_readerr(b.cntr.get()), 0u);
}

TEST_F(Calls, an_alias_differs_in_its_flags_only) {
  const fi_addr_t own = b.enable();
  fid_ep* alias = nullptr;
  EXPECT_EQ(fi_ep_alias(b.ep.get(), &alias, 0), -FI_EINVAL);
  EXPECT_EQ(fi_ep_alias(b.ep.get(), &alias, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
  EXPECT_EQ(fi_ep_alias(b.ep.get(), &alias, FI_TRANSMIT | FI_TRIGGER), -FI_EOPNOTSUPP);
  ASSERT_EQ(fi_ep_alias(b.ep.get(), &alias, FI_TRANSMIT | FI_INJECT), 0);
  uint64_t flags = FI_TRANSMIT;
  EXPECT_EQ(fi_control(&alias->fid, FI_GETOPSFLAG, &flags), 0);
  EXPECT_EQ(flags, FI_INJECT);
  flags = FI_TRANSMIT;
  EXPECT_EQ(fi_control(&b.ep->fid, FI_GETOPSFLAG, &flags), 0);
  EXPECT_EQ(flags, 0u);
  char big[512] = {};
  EXPECT_EQ(fi_send(alias, big, sizeof big, nullptr, own, nullptr), -FI_EMSGSIZE) << "injects";
  flags = FI_TRANSMIT | FI_COMPLETION;
  EXPECT_EQ(fi_control(&alias->fid, FI_SETOPSFLAG, &flags), 0);
  char in[512];
  EXPECT_EQ(fi_recv(b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, &in), 0);
  EXPECT_EQ(fi_send(alias, big, sizeof big, nullptr, own, &big), 0);
  fi_cq_tagged_entry entry;
  EXPECT_EQ(read_cq(b.cq.get(), &entry), 1);
  EXPECT_EQ(read_cq(b.cq.get(), &entry), 1);
  // the endpoint lives until its last handle is closed
  b.ep.reset();
  EXPECT_EQ(fi_close(&b.cq->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&alias->fid), 0);
}

TEST_F(Calls, options_are_read_and_set_as_the_page_says) {
  size_t value = 0;
  size_t len = sizeof value;
  EXPECT_EQ(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &value, &len), 0);
  EXPECT_EQ(value, b.info->tx_attr->size);
  len = 1;
  EXPECT_EQ(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &value, &len), -FI_ETOOSMALL);
  EXPECT_EQ(len, sizeof value);
  EXPECT_EQ(fi_getopt(&b.ep->fid, 7, FI_OPT_TX_SIZE, &value, &len), -FI_ENOPROTOOPT);
  value = 777;
  EXPECT_EQ(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, sizeof value), 0);
  value = 0;
  EXPECT_EQ(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &len), 0);
  EXPECT_EQ(value, 777u);
  EXPECT_EQ(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, 4), -FI_EINVAL);
  EXPECT_EQ(fi_setopt(&b.ep->fid, 7, FI_OPT_MIN_MULTI_RECV, &value, sizeof value), -FI_ENOPROTOOPT);
  EXPECT_EQ(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, nullptr, 0), -FI_EINVAL);
}

// Programs ask every provider for what one kind of hardware has: fi_endpoint(3) says what to answer
// where it is not there.
TEST_F(Calls, options_of_other_hardware_are_answered_as_the_page_says) {
  // of 1.18 and 1.21, where they follow what 1.17 has last
  constexpr int kSharedMemoryPermitted = FI_OPT_XPU_TRIGGER + 2;
  constexpr int kEfaRnrRetry = -(0xefa << 16);
  const auto set = [&](int name, auto value) {
    return fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, name, &value, sizeof value);
  };
  EXPECT_EQ(set(kSharedMemoryPermitted, true), 0);
  EXPECT_EQ(set(kSharedMemoryPermitted, false), -FI_EOPNOTSUPP);
  EXPECT_EQ(set(kSharedMemoryPermitted, 1.5), -FI_EINVAL) << "no bool";
  EXPECT_EQ(set(kEfaRnrRetry, size_t{7}), -FI_ENOPROTOOPT);
  int p2p = 99;
  size_t len = sizeof p2p;
  EXPECT_EQ(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &len), 0);
  EXPECT_EQ(p2p, FI_HMEM_P2P_ENABLED);
  EXPECT_EQ(len, sizeof p2p);
  for (const int mode : {FI_HMEM_P2P_DISABLED, FI_HMEM_P2P_PREFERRED, FI_HMEM_P2P_ENABLED}) {
    EXPECT_EQ(set(FI_OPT_FI_HMEM_P2P, mode), 0);
    EXPECT_EQ(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &len), 0);
    EXPECT_EQ(p2p, mode);
  }
  EXPECT_EQ(set(FI_OPT_FI_HMEM_P2P, int{FI_HMEM_P2P_REQUIRED}), -FI_EOPNOTSUPP);
  EXPECT_EQ(set(FI_OPT_FI_HMEM_P2P, 77), -FI_EINVAL);
  EXPECT_EQ(set(FI_OPT_FI_HMEM_P2P, size_t{0}), -FI_EINVAL) << "no int";
  char trigger[64] = {};
  len = sizeof trigger;
  EXPECT_EQ(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, trigger, &len),
            -FI_EOPNOTSUPP);
}

// fi_endpoint(3), FI_OPT_CUDA_API_PERMITTED. With a CUDA library (provider_calls_cuda: a stand-in)
// and without.
TEST_F(Calls, an_option_that_permits_cuda) {
  constexpr int kCudaApiPermitted = FI_OPT_XPU_TRIGGER + 1;  // 1.18
  const bool has_cuda = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr;
  Bench hmem([](fi_info& h) { h.caps |= FI_HMEM; });
  const auto set = [&](Bench& bench, auto value) {
    return fi_setopt(&bench.ep->fid, FI_OPT_ENDPOINT, kCudaApiPermitted, &value, sizeof value);
  };
  EXPECT_EQ(set(hmem, true), has_cuda ? 0 : -FI_EINVAL);
  EXPECT_EQ(set(hmem, false), has_cuda ? -FI_EOPNOTSUPP : -FI_EINVAL);
  EXPECT_EQ(set(b, true), has_cuda ? 0 : -FI_EINVAL);
  EXPECT_EQ(set(b, false), has_cuda ? 0 : -FI_EINVAL) << "it makes no call";
  EXPECT_EQ(set(hmem, 1), -FI_EINVAL) << "no bool";
}

TEST_F(Calls, an_error_of_an_injected_message_has_the_context_of_the_endpoint) {
  b.enable();
  sockaddr_in nobody{};
  nobody.sin_family = AF_INET;
  nobody.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  nobody.sin_port = htons(1);
  fi_addr_t there = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insert(b.av.get(), &nobody, 1, &there, 0, nullptr), 1);
  ASSERT_EQ(fi_inject(b.ep.get(), "x", 1, there), 0);
  fi_cq_tagged_entry entry;
  ASSERT_EQ(read_cq(b.cq.get(), &entry), -FI_EAVAIL);
  fi_cq_err_entry error{};
  ASSERT_EQ(fi_cq_readerr(b.cq.get(), &error, 0), 1);
  EXPECT_EQ(error.op_context, &b.ep_context);
  EXPECT_NE(error.err, 0);
  EXPECT_EQ(fi_cntr_readerr(b.cntr.get()), 1u);
}

// Attributes that leave nothing open may lie where nothing can be written.
TEST_F(Calls, attributes_that_leave_nothing_open_are_not_written_to) {
  struct Attributes {
    fi_cq_attr queue;
    fi_av_attr table;
  };
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* attr = static_cast<Attributes*>(page);
  attr->queue.format = FI_CQ_FORMAT_DATA;
  attr->table.type = FI_AV_TABLE;
  ASSERT_EQ(mprotect(page, 4096, PROT_READ), 0);
  opened("queue", fi_cq_open, b.domain.get(), &attr->queue);
  opened("table", fi_av_open, b.domain.get(), &attr->table);
  munmap(page, 4096);
  fi_cq_attr open_queue{};
  opened("queue", fi_cq_open, b.domain.get(), &open_queue);
  EXPECT_EQ(open_queue.format, FI_CQ_FORMAT_CONTEXT) << "what it has become";
}

}  // namespace
}  // namespace aperture::provider_tests
