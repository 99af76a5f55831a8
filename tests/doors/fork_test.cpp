// libfabric's objects in a forked child: what the parent had opened stays with it, so that every
// call on that is turned away with a code, none crashes or hangs, and the parent goes on
// undisturbed. What the child opens anew works, and talks with its parent and with others.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/forked.hpp"
#include "doors/child.hpp"
#include "doors/contexts.hpp"
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
  const pid_t child = test::fork_beside_threads();
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

// Shared and scalable contexts.
TEST_F(Fork, turns_a_child_away_from_contexts) {
  Hub hub({.tx_contexts = FI_SHARED_CONTEXT, .rx_contexts = FI_SHARED_CONTEXT});
  const Fid<fid_ep> srx = hub.shared_receive();
  const Fid<fid_stx> stx = hub.shared_transmit();
  const Fid<fid_ep> sharer = hub.open(nullptr);
  const Info info = Hub::ask({.tx_contexts = 2, .rx_contexts = 2});
  const Fid<fid_ep> sep = DOOR_MADE(fi_scalable_ep, hub.domain(), info.get());
  fid_ep* raw = nullptr;
  ASSERT_EQ(fi_tx_context(sep.get(), 0, nullptr, &raw, nullptr), 0);
  const Fid<fid_ep> tx(raw);
  fid_stx* new_stx = nullptr;
  fid_ep* out = nullptr;
  const std::vector<ChildCall> refused = {
      {"fi_recv", [&] { return fi_recv(srx.get(), bytes, 8, nullptr, FI_ADDR_UNSPEC, &op); }},
      {"fi_cancel", [&] { return fi_cancel(&srx->fid, &op); }},
      {"fi_ep_bind(srx)", [&] { return fi_ep_bind(sharer.get(), &srx->fid, 0); }},
      {"fi_ep_bind(stx)", [&] { return fi_ep_bind(sharer.get(), &stx->fid, 0); }},
      {"fi_stx_context",
       [&] { return fi_stx_context(hub.domain(), hub.info()->tx_attr, &new_stx, nullptr); }},
      {"fi_srx_context",
       [&] { return fi_srx_context(hub.domain(), hub.info()->rx_attr, &out, nullptr); }},
      {"fi_scalable_ep", [&] { return fi_scalable_ep(hub.domain(), info.get(), &out, nullptr); }},
      {"fi_scalable_ep_bind", [&] { return fi_scalable_ep_bind(sep.get(), &hub.av()->fid, 0); }},
      {"fi_tx_context", [&] { return fi_tx_context(sep.get(), 1, nullptr, &out, nullptr); }},
      {"fi_rx_context", [&] { return fi_rx_context(sep.get(), 1, nullptr, &out, nullptr); }},
      {"fi_ep_bind(tx)", [&] { return fi_ep_bind(tx.get(), &hub.cq()->fid, FI_TRANSMIT); }},
      {"fi_enable", [&] { return fi_enable(tx.get()); }},
  };
  for (const ChildCall& call : refused) expect_turned_away(call, -FI_EOPNOTSUPP);
  for (fid* const each : {&srx->fid, &stx->fid, &tx->fid, &sep->fid}) {
    expect_turned_away({"fi_close", [&] { return fi_close(each); }}, 0);
  }
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

// --- what a child opens anew ---------------------------------------------------------------------

struct Greeting {
  Name name;
  uint64_t key = 0;
  uint64_t base = 0;
};

// Both sides of a pair of sockets call it: each sends the other 8 of its letters and writes 8 into
// its memory.
void talk(Node& node, int fd, char ours, char theirs) {
  Control control(::dup(fd));
  uint8_t bytes[32] = {};
  std::fill_n(bytes, 8, static_cast<uint8_t>(ours));
  const Fid<fid_mr> mr =
      registered(node.domain(), bytes, sizeof bytes, FI_REMOTE_WRITE | FI_SEND | FI_RECV, 77);
  const uint64_t base = node.virtual_addresses() ? reinterpret_cast<uint64_t>(bytes) : 0;
  ASSERT_TRUE(control.put(Greeting{node.name(), fi_mr_key(mr.get()), base}));
  Greeting peer;
  ASSERT_TRUE(control.get(&peer, 20000));
  const fi_addr_t to = node.insert(peer.name);
  Op received;
  ASSERT_EQ(node.post(fi_recv, bytes + 8, 8, nullptr, FI_ADDR_UNSPEC, &received), 0);
  EXPECT_EQ(node.run(fi_send, bytes, 8, nullptr, to), 0);
  EXPECT_EQ(node.wait(&received).err, 0);
  EXPECT_EQ(node.run(fi_write, bytes, 8, nullptr, to, peer.base + 16, peer.key), 0);
  char done = 'd';
  ASSERT_TRUE(control.put(done));
  // the other side may still need our progress
  ASSERT_TRUE(pump_until([&] { return control.ready(); }));
  ASSERT_TRUE(control.get(&done, 20000));
  EXPECT_EQ(std::string(bytes + 8, bytes + 16), std::string(8, theirs));
  EXPECT_EQ(std::string(bytes + 16, bytes + 24), std::string(8, theirs));
}

void open_and_talk(int fd, char ours, char theirs) {
  Node own;
  talk(own, fd, ours, theirs);
}

// A forked child that opens what it needs; it must find nothing wrong.
class Offspring {
 public:
  template <typename Body>
  explicit Offspring(Body body) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0);
    pid_ = test::fork_beside_threads();
    EXPECT_GE(pid_, 0);
    if (pid_ == 0) {
      ::alarm(60);
      leave_nodes_to_parent();
      ::close(ends_[0]);
      try {
        body(ends_[1]);
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    ::close(ends_[1]);
  }
  ~Offspring() {
    ::close(ends_[0]);
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  Offspring(const Offspring&) = delete;
  Offspring& operator=(const Offspring&) = delete;
  int fd() const { return ends_[0]; }

 private:
  int ends_[2] = {-1, -1};
  pid_t pid_ = -1;
};

TEST_F(Fork, lets_a_child_open_its_own_and_talk_with_its_parent) {
  const Offspring child([&](int fd) {
    EXPECT_EQ(fi_inject(ep, bytes, 8, p.to_b), -FI_EOPNOTSUPP);
    Node own;
    talk(own, fd, 'c', 'p');
    EXPECT_EQ(fi_inject(ep, bytes, 8, p.to_b), -FI_EOPNOTSUPP);
    fid* slept_on[] = {&a.cq()->fid};
    EXPECT_EQ(fi_trywait(own.fabric(), slept_on, 1), -FI_EOPNOTSUPP);
    const Fid<fid_ep> fresh = DOOR_MADE(fi_endpoint, own.domain(), own.info());
    EXPECT_EQ(fi_ep_bind(fresh.get(), &a.cq()->fid, FI_RECV), -FI_EDOMAIN);
    EXPECT_EQ(fi_domain(a.fabric(), own.info(), std::array<fid_domain*, 1>{}.data(), nullptr),
              -FI_EOPNOTSUPP);
  });
  talk(a, child.fd(), 'p', 'c');
}

TEST_F(Fork, lets_two_children_talk_with_each_other) {
  int between[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, between), 0);
  {
    const Offspring one([&](int) { open_and_talk(between[0], 'a', 'b'); });
    const Offspring other([&](int) { open_and_talk(between[1], 'b', 'a'); });
  }
  ::close(between[0]);
  ::close(between[1]);
}

TEST_F(Fork, lets_twenty_children_in_turn_talk_with_their_parent) {
  for (int i = 0; i < 20; ++i) {
    const Offspring child([](int fd) { open_and_talk(fd, 'c', 'p'); });
    talk(a, child.fd(), 'p', 'c');
  }
}

TEST_F(Fork, lets_a_grandchild_open_its_own_and_talk_with_both) {
  const Offspring child([&](int fd) {
    Node own;
    talk(own, fd, 'c', 'p');
    const Offspring grandchild([&](int to_child) {
      EXPECT_EQ(fi_inject(ep, bytes, 8, p.to_b), -FI_EOPNOTSUPP);
      EXPECT_EQ(fi_inject(own.ep(), bytes, 8, 0), -FI_EOPNOTSUPP);
      open_and_talk(to_child, 'g', 'c');
      open_and_talk(fd, 'g', 'p');
    });
    talk(own, grandchild.fd(), 'c', 'g');
  });
  talk(a, child.fd(), 'p', 'c');
  talk(a, child.fd(), 'p', 'g');
}

TEST(ForkAfterClosing, lets_a_child_open_what_its_parent_had_open_and_closed) {
  { NodePair pair; }
  const Offspring child([](int) {
    NodePair own;
    EXPECT_EQ(own.pass("s").err, 0);
    EXPECT_EQ(own.passed, 's');
  });
}

// Threads of the parent's are anywhere, with our locks held, when one of them forks.
TEST_F(Fork, lets_a_child_of_a_process_with_busy_threads_open_its_own) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's own locks may be held when the process is forked";
#endif
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    fid_mr* region = nullptr;
    uint8_t own[8];
    for (uint64_t key = 100; !stop; ++key) {
      EXPECT_EQ(fi_mr_reg(a.domain(), own, sizeof own, FI_SEND, 0, key, 0, &region, nullptr), 0);
      EXPECT_EQ(fi_close(&region->fid), 0);
      fid_cq* queue = nullptr;
      fi_cq_attr attr{};
      EXPECT_EQ(fi_cq_open(a.domain(), &attr, &queue, nullptr), 0);
      EXPECT_EQ(fi_close(&queue->fid), 0);
    }
  });
  for (int i = 0; i < 10; ++i) {
    const Offspring child([](int) {
      NodePair own;
      EXPECT_EQ(own.pass("s").err, 0);
    });
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace aperture::doors
