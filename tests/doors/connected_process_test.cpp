// Connected endpoints of two processes: talking, and a peer that is killed at every moment of a
// connection's life. Afterwards nothing is held that was not before.
#include <gtest/gtest.h>

#include "doors/child.hpp"
#include "doors/connected.hpp"

namespace aperture::doors {
namespace {

enum class Play : uint32_t {
  echo,        // accept everybody, send back what comes, until the parent goes
  look_away,   // listen and never answer
  accept_all,  // accept everybody, say so, and do nothing
};

// The passive side.
DOOR_ROLE(passive) {
  Play play{};
  if (!control.get(&play)) return 1;
  Station s;
  Fid<fid_pep> pep = s.passive();
  if (!control.put(Name(name_of(&pep->fid)))) return 1;
  std::vector<Fid<fid_ep>> all;
  std::vector<uint8_t> box(kMiB);
  Op receive, answer;
  while (!control.ready()) {
    CmEvent e = s.event(5);
    if (e.code == -FI_EAGAIN) continue;
    if (e.type == FI_CONNREQ) {
      if (!control.put(uint32_t{1})) return 1;
      if (play == Play::look_away) continue;
      all.push_back(s.open(e.info.get()));
      if (fi_enable(all.back().get()) != 0) return 2;
      if (fi_recv(all.back().get(), box.data(), box.size(), nullptr, 0, &receive) != 0) return 3;
      if (fi_accept(all.back().get(), e.data.data(), e.data.size()) != 0) return 4;
      continue;
    }
    if (e.type == FI_SHUTDOWN) {
      std::erase_if(all, [&](const auto& ep) { return &ep->fid == e.fid; });
      s.done().clear();
    }
    if (e.type != FI_CONNECTED || play != Play::echo) continue;
    const Completion got = s.wait(&receive);
    if (got.err != 0) return 5;
    if (post(fi_send, all.back().get(), box.data(), got.len, nullptr, 0, &answer) != 0) {
      return 6;
    }
    if (s.wait(&answer).err != 0) return 7;
  }
  return 0;
}

// The active side: connects to what it is told, says when it has asked, and waits.
DOOR_ROLE(active) {
  Name to;
  if (!control.get(&to)) return 1;
  Station s;
  Fid<fid_ep> ep = s.open();
  if (fi_connect(ep.get(), to.data(), "hello", 5) != 0) return 2;
  uint32_t asked = 1;
  if (!control.put(asked)) return 1;
  pump_until([&] { return control.ready(); }, 60000);
  return 0;
}

class ConnectedProcesses : public testing::Test {
 protected:
  std::unique_ptr<Child> passive(Play play, Name* name, const ChildOptions& options = {}) {
    auto child = std::make_unique<Child>("passive", options);
    child->control().put(play);
    EXPECT_TRUE(child->control().get(name, 20000));
    return child;
  }
  static bool said(Child& child) {
    uint32_t word = 0;
    return child.control().get(&word, 20000);
  }
  Station s;
};

class Talk : public ConnectedProcesses, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Direct, Talk, testing::Bool(),
                         [](const auto& param) { return param.param ? "allowed" : "denied"; });

TEST_P(Talk, messages_go_there_and_back) {
  Name name;
  auto child = passive(Play::echo, &name, child_denying(!GetParam()));
  for (const size_t size : {size_t{0}, size_t{8}, size_t{4096}, kMiB}) {
    Fid<fid_ep> ep = s.open();
    ASSERT_EQ(fi_connect(ep.get(), name.data(), "ask", 3), 0);
    ASSERT_TRUE(said(*child));
    const CmEvent up = s.expect(FI_CONNECTED, &ep->fid);
    EXPECT_EQ(up.data, (std::vector<uint8_t>{'a', 's', 'k'})) << "the child accepts with our words";
    std::vector<uint8_t> out(size), in(size);
    fill(out, seed_of(size));
    Op received;
    ASSERT_EQ(fi_recv(ep.get(), in.data(), size, nullptr, 0, &received), 0);
    ASSERT_EQ(s.run_at(ep.get(), fi_send, out.data(), size, nullptr, 0), 0);
    EXPECT_EQ(s.wait(&received).len, size);
    EXPECT_EQ(in, out);
  }
}

TEST_F(ConnectedProcesses, the_passive_side_is_killed_before_it_answers) {
  Name name;
  auto child = passive(Play::look_away, &name);
  Fid<fid_ep> ep = s.open();
  uint64_t box = 0;
  Op op;
  ASSERT_EQ(fi_enable(ep.get()), 0);
  ASSERT_EQ(fi_recv(ep.get(), &box, 8, nullptr, 0, &op), 0);
  ASSERT_EQ(fi_connect(ep.get(), name.data(), nullptr, 0), 0);
  ASSERT_TRUE(said(*child));
  child->kill_now();
  s.expect_error(FI_ECONNRESET, &ep->fid);
  EXPECT_EQ(s.wait(&op).err, FI_ECONNRESET);
  EXPECT_TRUE(s.no_event());
}

TEST_F(ConnectedProcesses, the_passive_side_is_killed_when_connected) {
  Name name;
  auto child = passive(Play::accept_all, &name);
  Fid<fid_ep> ep = s.open();
  ASSERT_EQ(fi_connect(ep.get(), name.data(), nullptr, 0), 0);
  s.expect(FI_CONNECTED, &ep->fid);
  std::vector<uint8_t> large(4 * kMiB);
  uint64_t box = 0;
  Op receive, sends[3];
  ASSERT_EQ(fi_recv(ep.get(), &box, 8, nullptr, 0, &receive), 0);
  for (Op& op : sends) {
    ASSERT_EQ(post(fi_send, ep.get(), large.data(), large.size(), nullptr, 0, &op), 0);
  }
  child->kill_now();
  s.expect(FI_SHUTDOWN, &ep->fid);
  EXPECT_EQ(s.wait(&receive).err, FI_ECONNRESET);
  for (Op& op : sends) EXPECT_NE(s.wait(&op).err, -1) << "each completes once";
  EXPECT_EQ(fi_inject(ep.get(), &box, 8, 0), -FI_ESHUTDOWN);
  EXPECT_TRUE(s.no_event()) << "once";
  EXPECT_TRUE(s.done().empty());
}

TEST_F(ConnectedProcesses, the_active_side_is_killed_before_it_is_answered) {
  Fid<fid_pep> pep = s.passive();
  for (const bool opened : {false, true}) {
    Child child("active");
    child.control().put(Name(name_of(&pep->fid)));
    ASSERT_TRUE(said(child));
    const CmEvent request = s.expect(FI_CONNREQ);
    EXPECT_EQ(request.data.size(), 5u);
    Fid<fid_ep> ep;
    if (opened) ep = s.open(request.info.get());
    child.kill_now();
    usleep(50000);
    if (opened) {
      EXPECT_EQ(fi_accept(ep.get(), nullptr, 0), -FI_ECONNABORTED);
    } else {
      EXPECT_EQ(fi_reject(pep.get(), request.info->handle, nullptr, 0), 0) << "in vain";
    }
    EXPECT_TRUE(s.no_event());
  }
}

TEST_F(ConnectedProcesses, the_active_side_is_killed_when_connected) {
  Fid<fid_pep> pep = s.passive();
  Child child("active");
  child.control().put(Name(name_of(&pep->fid)));
  const Fid<fid_ep> ep = accept_next(s);
  s.expect(FI_CONNECTED, &ep->fid);
  uint64_t box = 0;
  Op op;
  ASSERT_EQ(fi_recv(ep.get(), &box, 8, nullptr, 0, &op), 0);
  child.kill_now();
  s.expect(FI_SHUTDOWN, &ep->fid);
  EXPECT_EQ(s.wait(&op).err, FI_ECONNRESET);
  EXPECT_TRUE(s.no_event());
}

TEST_F(ConnectedProcesses, a_thousand_connections_leave_nothing) {
  Name name;
  auto child = passive(Play::accept_all, &name);
  Fid<fid_pep> pep = s.passive();
  const auto one = [&](int i) {
    if (i % 2 == 0) {  // with another process
      Fid<fid_ep> ep = s.open();
      ASSERT_EQ(fi_connect(ep.get(), name.data(), nullptr, 0), 0);
      s.expect(FI_CONNECTED, &ep->fid);
      ASSERT_TRUE(said(*child));
      return;
    }
    Fid<fid_ep> ep = ask_for_connection(s, pep.get());
    const CmEvent request = s.expect(FI_CONNREQ);
    if (i % 4 == 1) {
      ASSERT_EQ(fi_reject(pep.get(), request.info->handle, "no", 2), 0);
      s.expect_error(FI_ECONNREFUSED);
      return;
    }
    Fid<fid_ep> other = s.open(request.info.get());
    ASSERT_EQ(fi_accept(other.get(), nullptr, 0), 0);
    s.expect(FI_CONNECTED);
    s.expect(FI_CONNECTED);
  };
  const auto settled = [] {
    usleep(20000);
    return count_holdings();
  };
  for (int i = 0; i < 40; ++i) one(i);  // the first of everything stays: segments, peers
  const Holdings before = settled();
  for (int i = 0; i < 1000 && !HasFailure(); ++i) one(i);
  Holdings after = settled();
  EXPECT_TRUE(pump_until([&] {
    after = count_holdings();
    return after.fds <= before.fds && after.mappings <= before.mappings + 8;
  })) << "fds "
      << before.fds << " -> " << after.fds << ", mappings " << before.mappings << " -> "
      << after.mappings;
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.shm_objects, before.shm_objects);
}

}  // namespace
}  // namespace aperture::doors
