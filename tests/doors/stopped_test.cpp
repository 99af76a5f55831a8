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

class Stopped : public testing::TestWithParam<Case> {
 protected:
  // The peer is connected, has begun what the scene has it do, and is stopped.
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << "others poll";
    ASSERT_TRUE(peer_.control().get(&there_, 20000));
    to_ = node_.insert(there_.name);
    Op greeting;
    ASSERT_EQ(fi_recv(node_.ep(), in_.data(), 1, nullptr, FI_ADDR_UNSPEC, &greeting), 0);
    ASSERT_TRUE(peer_.control().put(Asked{GetParam().scene, {node_.name(), region_.remote()}}));
    ASSERT_EQ(node_.wait(&greeting).err, 0);
    ASSERT_TRUE(pump_until([&] { return peer_.control().ready(); }));
    bool ready = false;
    ASSERT_TRUE(peer_.control().get(&ready, 20000));
    if (GetParam().scene == Scene::reads_of_it) {
      pump_for(100);  // the answers fill their ring
    } else {
      pump_for(5);
      peer_.signal(SIGSTOP);
      pump_for(20);
    }
  }
  // How many completions there will be.
  size_t post_the_scene() {
    switch (GetParam().scene) {
      case Scene::many_sends: {
        size_t n = 0;
        flood([&] {
          if (n == ops_.size()) return int64_t{-FI_EAGAIN};
          const int64_t s = fi_send(node_.ep(), out_.data(), 64, nullptr, to_, &ops_[n]);
          if (s == 0) ++n;
          return s;
        });
        return n;
      }
      case Scene::large_send:
        return 0 == fi_send(node_.ep(), out_.data(), kLarge, nullptr, to_, &ops_[0]);
      case Scene::atomic:
        return 0 == fi_atomic(node_.ep(), out_.data(), 1, nullptr, to_, there_.remote.base,
                              there_.remote.key, FI_UINT64, FI_SUM, &ops_[0]);
      case Scene::write:
        return 0 == fi_write(node_.ep(), out_.data(), kLarge, nullptr, to_, there_.remote.base,
                             there_.remote.key, &ops_[0]);
      case Scene::receive:
        return 0 == fi_recv(node_.ep(), in_.data(), kLarge, nullptr, FI_ADDR_UNSPEC, &ops_[0]);
      case Scene::reads_of_it: break;
    }
    return 0;
  }

  std::vector<uint8_t> in_ = std::vector<uint8_t>(kLarge), out_ = std::vector<uint8_t>(kLarge, 5);
  std::vector<Op> ops_ = std::vector<Op>(100'000);
  Child peer_{"is_stopped", child_denying(GetParam().denied)};
  Node node_{kOptions};
  Region region_{node_, kLarge};
  Told there_;
  fi_addr_t to_ = FI_ADDR_UNSPEC;
};
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
  size_t pending = post_the_scene();
  ASSERT_EQ(pending == 0, GetParam().scene == Scene::reads_of_it);
  // completions that came without the peer
  pump_for(50);
  pending -= std::min(pending, node_.done().size());
  node_.done().clear();

  fi_cq_tagged_entry entry;
  constexpr int kWaitMs = 400;
  const double before = cpu_seconds();
  const ssize_t got = fi_cq_sread(node_.cq(), &entry, 1, nullptr, kWaitMs);
  const double share = (cpu_seconds() - before) / (kWaitMs / 1000.0);
  std::printf("%s: %.1f %% of a core\n", GetParam().name, 100 * share);
  EXPECT_EQ(got, -FI_EAGAIN) << "it did not have to wait";
  EXPECT_LT(share, 0.25) << "it did not sleep";

  peer_.signal(SIGCONT);
  ASSERT_TRUE(peer_.control().put(true));
  // and by sleeping alone
  for (size_t i = 0; i < pending; ++i) {
    ASSERT_EQ(fi_cq_sread(node_.cq(), &entry, 1, nullptr, 20000), 1) << i << " of " << pending;
  }
}

}  // namespace
}  // namespace aperture::doors
