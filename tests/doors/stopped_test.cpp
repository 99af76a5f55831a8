// A peer is stopped (SIGSTOP) with something of ours under way: whoever waits for it sleeps, and
// goes on when the peer does. man 3 fi_cq, fi_cq_sread.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

const Options kOptions{.caps = kUsualCaps | FI_ATOMIC, .wait = FI_WAIT_UNSPEC};
constexpr size_t kLarge = 4 * kMiB;

enum class Scene : uint32_t {
  many_sends,   // as many as the ring takes, and one more
  large_send,   // that nobody receives yet
  atomic,       // which its target alone executes
  write,        // of 4 MiB, through the ring where copies are denied
  reads_of_it,  // the peer reads from us, and does not take the answers
  receive,      // of 4 MiB, the peer stopped somewhere in the middle
};
struct Case {
  Scene scene;
  bool denied;
  const char* name;
};

struct Told {
  Name name;
  Remote remote;
};
struct Asked {
  Scene scene;
  Told peer;
};

// Posts until there is no room, and never looks.
void flood(const std::function<int64_t()>& call) {
  while (call() == 0) continue;
}

}  // namespace

DOOR_ROLE(is_stopped) {
  Node node(kOptions);
  Region region(node, kLarge);
  if (!control.put(Told{node.name(), region.remote()})) return 1;
  Asked asked;
  if (!control.get(&asked)) return 2;
  const fi_addr_t there = node.insert(asked.peer.name);
  std::vector<Op> ops(100'000);
  Guarded local(kLarge, 7);
  // the connection is there
  if (post([&] { return fi_inject(node.ep(), "h", 1, there); }) != 0) return 3;
  pump_for(50);
  size_t n = 0;
  if (asked.scene == Scene::reads_of_it) {
    flood([&] {
      if (n == ops.size()) return int64_t{-FI_EAGAIN};
      return int64_t{fi_read(node.ep(), local.data(), 4096, nullptr, there, asked.peer.remote.base,
                             asked.peer.remote.key, &ops[n++])};
    });
  } else if (asked.scene == Scene::receive) {
    if (post([&] { return fi_send(node.ep(), local.data(), kLarge, nullptr, there, &ops[n++]); }) !=
        0) {
      return 4;
    }
  }
  if (!control.put(true)) return 5;
  if (asked.scene == Scene::reads_of_it) ::raise(SIGSTOP);
  std::vector<uint8_t> in(kLarge);
  for (bool told = false;;) {
    pump_for(1);
    if (told || !control.ready()) continue;
    // it goes on: whatever was sent is received
    if (!control.get(&told)) return 0;
    for (size_t i = 0; i < 20'000; ++i) {
      if (fi_recv(node.ep(), in.data(), in.size(), nullptr, FI_ADDR_UNSPEC, &ops[n++ % 100'000])) {
        break;
      }
    }
  }
}

namespace {

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class Stopped : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Scenes, Stopped,
                         testing::Values(Case{Scene::many_sends, false, "many_sends"},
                                         Case{Scene::large_send, false, "large_send"},
                                         Case{Scene::large_send, true, "large_send_denied"},
                                         Case{Scene::atomic, false, "atomic"},
                                         Case{Scene::write, true, "write_denied"},
                                         Case{Scene::reads_of_it, true, "reads_of_it_denied"},
                                         Case{Scene::receive, true, "receive_denied"}),
                         kByName);

TEST_P(Stopped, peer_is_waited_for_asleep_and_taken_up_again) {
  if (!on_aperture()) GTEST_SKIP() << "others poll";
  const Case& c = GetParam();
  Child peer("is_stopped", child_denying(c.denied));
  Node node(kOptions);
  Region region(node, kLarge);
  Told there;
  ASSERT_TRUE(peer.control().get(&there, 20000));
  const fi_addr_t to = node.insert(there.name);
  Op greeting, last;
  std::vector<uint8_t> in(kLarge), out(kLarge, 5);
  ASSERT_EQ(fi_recv(node.ep(), in.data(), 1, nullptr, FI_ADDR_UNSPEC, &greeting), 0);
  ASSERT_TRUE(peer.control().put(Asked{c.scene, {node.name(), region.remote()}}));
  ASSERT_EQ(node.wait(&greeting).err, 0);
  bool ready = false;
  ASSERT_TRUE(pump_until([&] { return peer.control().ready(); }));
  ASSERT_TRUE(peer.control().get(&ready, 20000));
  if (c.scene == Scene::reads_of_it) {
    pump_for(100);  // the answers fill their ring
  } else {
    pump_for(5);
    peer.signal(SIGSTOP);
    pump_for(20);
  }
  size_t pending = 1;
  std::vector<Op> ops(100'000);
  switch (c.scene) {
    case Scene::many_sends:
      pending = 0;
      flood([&] {
        const int64_t s = pending == ops.size()
                              ? -FI_EAGAIN
                              : fi_send(node.ep(), out.data(), 64, nullptr, to, &ops[pending]);
        if (s == 0) ++pending;
        return s;
      });
      ASSERT_GT(pending, 0u);
      break;
    case Scene::large_send:
      ASSERT_EQ(fi_send(node.ep(), out.data(), kLarge, nullptr, to, &last), 0);
      break;
    case Scene::atomic:
      ASSERT_EQ(fi_atomic(node.ep(), out.data(), 1, nullptr, to, there.remote.base,
                          there.remote.key, FI_UINT64, FI_SUM, &last),
                0);
      break;
    case Scene::write:
      ASSERT_EQ(fi_write(node.ep(), out.data(), kLarge, nullptr, to, there.remote.base,
                         there.remote.key, &last),
                0);
      break;
    case Scene::reads_of_it: pending = 0; break;
    case Scene::receive:
      ASSERT_EQ(fi_recv(node.ep(), in.data(), kLarge, nullptr, FI_ADDR_UNSPEC, &last), 0);
      break;
  }
  // completions that came without the peer
  pump_for(50);
  pending -= std::min(pending, node.done().size());
  node.done().clear();

  fi_cq_tagged_entry entry;
  constexpr int kWaitMs = 400;
  const double before = cpu_seconds();
  const ssize_t got = fi_cq_sread(node.cq(), &entry, 1, nullptr, kWaitMs);
  const double share = (cpu_seconds() - before) / (kWaitMs / 1000.0);
  std::printf("%s: %.1f %% of a core\n", c.name, 100 * share);
  EXPECT_EQ(got, -FI_EAGAIN) << "it did not have to wait";
  EXPECT_LT(share, 0.25) << "it did not sleep";

  peer.signal(SIGCONT);
  ASSERT_TRUE(peer.control().put(true));
  // and by sleeping alone
  for (size_t i = 0; i < pending; ++i) {
    ASSERT_EQ(fi_cq_sread(node.cq(), &entry, 1, nullptr, 20000), 1) << i << " of " << pending;
  }
}

}  // namespace
}  // namespace aperture::doors
