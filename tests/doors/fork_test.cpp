// libfabric's objects in a forked child: the engine stays with the parent, so that every call is
// turned away with a code, none crashes or hangs, and the parent goes on undisturbed.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

struct ChildCall {
  const char* name;
  std::function<int64_t()> make;
};

// Each in a child of its own, which has five seconds.
void expect_turned_away(const ChildCall& call, int64_t code) {
  SCOPED_TRACE(call.name);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(5);
    ::_exit(call.make() == code ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "another code";
}

class Fork : public testing::Test {
 protected:
  Fork() {
    fi_eq_attr attr{};
    attr.flags = FI_WRITE;
    attr.wait_obj = FI_WAIT_FD;
    eq = DOOR_MADE(fi_eq_open, a.fabric(), &attr);
    DOOR(fi_mr_reg(a.domain(), bytes, sizeof bytes, FI_SEND, 0, 7, 0, &mr, nullptr));
  }
  ~Fork() override {
    fi_close(&mr->fid);
    // the parent was not disturbed
    EXPECT_EQ(fi_recv(p.b.ep(), bytes, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
    EXPECT_EQ(post([&] { return fi_inject(ep, "all well", 8, p.to_b); }), 0);
    EXPECT_EQ(p.b.wait(&op).err, 0);
    EXPECT_EQ(std::string(reinterpret_cast<char*>(bytes), 8), "all well");
  }

  NodePair p{Options{
      .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC, .wait = FI_WAIT_FD, .counters = true}};
  Node& a = p.a;
  fid_ep* ep = a.ep();
  Fid<fid_eq> eq;
  fid_mr* mr = nullptr;
  uint8_t bytes[64] = {};
  size_t size = sizeof bytes;
  fi_addr_t addr = 0;
  Op op;
};

TEST_F(Fork, turns_a_child_away_from_posting) {
  iovec iov{bytes, 8};
  const std::vector<ChildCall> refused = {
      {"fi_send", [&] { return fi_send(ep, bytes, 8, nullptr, p.to_b, &op); }},
      {"fi_sendv", [&] { return fi_sendv(ep, &iov, nullptr, 1, p.to_b, &op); }},
      {"fi_inject", [&] { return fi_inject(ep, bytes, 8, p.to_b); }},
      {"fi_recv", [&] { return fi_recv(ep, bytes, 8, nullptr, FI_ADDR_UNSPEC, &op); }},
      {"fi_tsend", [&] { return fi_tsend(ep, bytes, 8, nullptr, p.to_b, 1, &op); }},
      {"fi_trecv", [&] { return fi_trecv(ep, bytes, 8, nullptr, FI_ADDR_UNSPEC, 1, 0, &op); }},
      {"fi_read", [&] { return fi_read(ep, bytes, 8, nullptr, p.to_b, 0, 1, &op); }},
      {"fi_write", [&] { return fi_write(ep, bytes, 8, nullptr, p.to_b, 0, 1, &op); }},
      {"fi_atomic",
       [&] { return fi_atomic(ep, bytes, 1, nullptr, p.to_b, 0, 1, FI_UINT64, FI_SUM, &op); }},
      {"fi_cancel", [&] { return fi_cancel(&ep->fid, &op); }},
      {"fi_setopt",
       [&] {
         return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, sizeof size);
       }},
  };
  for (const ChildCall& call : refused) expect_turned_away(call, -FI_EOPNOTSUPP);
}

TEST_F(Fork, turns_a_child_away_from_queues_and_counters) {
  fi_cq_tagged_entry entry{};
  fi_cq_err_entry error{};
  uint32_t event = 0;
  fid* slept_on[] = {&a.cq()->fid};
  const std::vector<ChildCall> refused = {
      {"fi_cq_read", [&] { return fi_cq_read(a.cq(), &entry, 1); }},
      {"fi_cq_readfrom", [&] { return fi_cq_readfrom(a.cq(), &entry, 1, &addr); }},
      {"fi_cq_readerr", [&] { return fi_cq_readerr(a.cq(), &error, 0); }},
      {"fi_cq_sread", [&] { return fi_cq_sread(a.cq(), &entry, 1, nullptr, -1); }},
      {"fi_cq_signal", [&] { return fi_cq_signal(a.cq()); }},
      {"fi_trywait", [&] { return fi_trywait(a.fabric(), slept_on, 1); }},
      {"fi_cntr_add", [&] { return fi_cntr_add(a.tx_cntr(), 1); }},
      {"fi_cntr_wait", [&] { return fi_cntr_wait(a.tx_cntr(), 1, -1); }},
      {"fi_eq_read", [&] { return fi_eq_read(eq.get(), &event, bytes, sizeof bytes, 0); }},
      {"fi_eq_sread", [&] { return fi_eq_sread(eq.get(), &event, bytes, sizeof bytes, -1, 0); }},
      {"fi_eq_write", [&] { return fi_eq_write(eq.get(), FI_NOTIFY, bytes, 8, 0); }},
  };
  for (const ChildCall& call : refused) expect_turned_away(call, -FI_EOPNOTSUPP);
}

TEST_F(Fork, turns_a_child_away_from_opening_and_registering) {
  fid_cq* new_cq = nullptr;
  fid_ep* new_ep = nullptr;
  fid_domain* new_domain = nullptr;
  fi_cq_attr cq_attr{};
  const std::vector<ChildCall> refused = {
      {"fi_mr_reg",
       [&] { return fi_mr_reg(a.domain(), bytes, 8, FI_SEND, 0, 8, 0, &mr, nullptr); }},
      {"fi_av_insert", [&] { return fi_av_insert(a.av(), bytes, 1, &addr, 0, nullptr); }},
      {"fi_cq_open", [&] { return fi_cq_open(a.domain(), &cq_attr, &new_cq, nullptr); }},
      {"fi_endpoint", [&] { return fi_endpoint(a.domain(), a.info(), &new_ep, nullptr); }},
      {"fi_domain", [&] { return fi_domain(a.fabric(), a.info(), &new_domain, nullptr); }},
      {"fi_enable", [&] { return fi_enable(ep); }},
  };
  for (const ChildCall& call : refused) expect_turned_away(call, -FI_EOPNOTSUPP);
}

TEST_F(Fork, lets_a_child_close_and_read_what_needs_no_engine) {
  size_t most = 0;
  const std::vector<ChildCall> harmless = {
      {"fi_close(mr)", [&] { return fi_close(&mr->fid); }},
      {"fi_close(ep)", [&] { return fi_close(&ep->fid); }},
      {"fi_close(cq)", [&] { return fi_close(&a.cq()->fid); }},
      {"fi_close(domain)", [&] { return fi_close(&a.domain()->fid); }},
      {"fi_cntr_read", [&] { return static_cast<int64_t>(fi_cntr_read(a.tx_cntr())); }},
      {"fi_atomicvalid", [&] { return fi_atomicvalid(ep, FI_UINT64, FI_SUM, &most); }},
      {"fi_getname",
       [&] {
         size = sizeof bytes;
         return fi_getname(&ep->fid, bytes, &size);
       }},
  };
  for (const ChildCall& call : harmless) expect_turned_away(call, 0);
}

}  // namespace
}  // namespace aperture::doors
