// What is posted while the engine sleeps goes on without a further call of the application, under
// automatic progress and wherever several threads may call: one thread posts, and waits elsewhere.
// man 3 fi_domain, "Progress".
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kLarge = 4 * kMiB;
constexpr size_t kMany = 2000;

enum class Scene : uint32_t {
  counted_write,        // to a region whose owner counts
  large_counted_write,  // of 4 MiB
  written_data,         // with remote CQ data
  fenced_write,         // 8 bytes with a fence behind 4 MiB, counted
  large_send,           // which is offered and pulled
  many_sends,           // as many as there is room for
  atomic,
  large_read,
  receive_of_offer,  // of 4 MiB that came before
  write_to_idle,     // whose owner makes no call, and has no automatic progress
  large_write_to_idle,
};
constexpr const char* kNames[] = {"counted_write", "large_counted_write", "written_data",
                                  "fenced_write",  "large_send",          "many_sends",
                                  "atomic",        "large_read",          "receive_of_offer",
                                  "write_to_idle", "large_write_to_idle"};

struct Case {
  Scene scene;
  bool denied;
  bool waited_for;  // another thread of the poster's waits in fi_cq_sread
};

struct Told {
  Name name;
  Remote remote;
};
struct Posted {
  int64_t result = -1;  // operations, or a negative error
  int64_t at_ns = 0;
};
struct Asked {
  Case what;
  Told peer;
};

Options options_of(const Case& c) {
  return {.caps = kUsualCaps | FI_ATOMIC | FI_RMA_EVENT,
          .wait = FI_WAIT_UNSPEC,
          .threading = FI_THREAD_SAFE,
          .progress = c.waited_for ? FI_PROGRESS_UNSPEC : FI_PROGRESS_AUTO,
          .remote_counters = true};
}

// Posts what the scene has it post; how many operations, or a negative error.
int64_t post_scene(Node& node, Scene scene, Guarded& local, fi_addr_t to, const Remote& there,
                   std::vector<Op>& ops) {
  const auto write = [&](size_t len, Op* op) {
    return fi_write(node.ep(), local.data(), len, nullptr, to, there.base, there.key, op);
  };
  switch (scene) {
    case Scene::write_to_idle:
    case Scene::counted_write: return write(8, &ops[0]);
    case Scene::large_write_to_idle:
    case Scene::large_counted_write: return write(kLarge, &ops[0]);
    case Scene::written_data:
      return fi_writedata(node.ep(), local.data(), 4096, nullptr, 77, to, there.base, there.key,
                          &ops[0]);
    case Scene::fenced_write: {
      if (const int64_t s = write(kLarge, &ops[0]); s != 0) return s;
      const iovec iov{local.data(), 8};
      const fi_rma_iov at{there.base, 8, there.key};
      const fi_msg_rma msg{.msg_iov = &iov,
                           .desc = nullptr,
                           .iov_count = 1,
                           .addr = to,
                           .rma_iov = &at,
                           .rma_iov_count = 1,
                           .context = &ops[1],
                           .data = 0};
      return fi_writemsg(node.ep(), &msg, FI_FENCE);
    }
    case Scene::large_send: return fi_send(node.ep(), local.data(), kLarge, nullptr, to, &ops[0]);
    case Scene::many_sends:
      for (size_t i = 0; i < kMany; ++i) {
        if (fi_send(node.ep(), local.data(), 512, nullptr, to, &ops[i]) != 0) return int64_t(i);
      }
      return kMany;
    case Scene::atomic:
      return fi_atomic(node.ep(), local.data(), 1, nullptr, to, there.base, there.key, FI_UINT64,
                       FI_SUM, &ops[0]);
    case Scene::receive_of_offer:
      return fi_recv(node.ep(), local.data(), kLarge, nullptr, FI_ADDR_UNSPEC, &ops[0]);
    case Scene::large_read:
      return fi_read(node.ep(), local.data(), kLarge, nullptr, to, there.base, there.key, &ops[0]);
  }
  return -FI_EINVAL;
}

}  // namespace

DOOR_ROLE(posts_while_asleep) {
  Asked asked;
  if (!control.get(&asked)) return 1;
  std::vector<Op> ops(kMany);  // these two outlive what uses them
  Guarded local(kLarge, 7);
  Node node(options_of(asked.what));
  const fi_addr_t to = node.insert(asked.peer.name);
  if (post([&] { return fi_inject(node.ep(), "h", 1, to); }) != 0) return 2;
  if (asked.what.scene == Scene::receive_of_offer && !control.put(Name(node.name()))) return 5;
  pump_for(50);  // connected
  std::atomic<bool> over = false, waiting = asked.what.waited_for;
  std::thread waiter;
  if (asked.what.waited_for) {
    waiter = std::thread([&] {
      fi_cq_tagged_entry entry;
      while (!over.load()) fi_cq_sread(node.cq(), &entry, 1, nullptr, 20000);
      waiting = false;
    });
  }
  // no call until it sleeps
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const int64_t at = now_ns();
  const int64_t posted = post_scene(node, asked.what.scene, local, to, asked.peer.remote, ops);
  if (!control.put(Posted{posted, at})) return 3;
  bool all_there = true;
  if (asked.what.scene == Scene::large_read) {  // its memory says that it is done
    for (int tries = 0; first_difference(local.span(), 1) && tries < 1000; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    all_there = !first_difference(local.span(), 1);
    if (!control.put(all_there)) return 4;
  }
  control.get(&all_there);  // no call until the peer has seen it
  over = true;
  while (waiting.load()) {  // a signal before it waits is lost
    fi_cq_signal(node.cq());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (waiter.joinable()) waiter.join();
  return 0;
}

namespace {

class Asleep : public testing::TestWithParam<Case> {};

std::string name_of_case(const testing::TestParamInfo<Case>& p) {
  return std::string(kNames[static_cast<size_t>(p.param.scene)]) +
         (p.param.denied ? "_denied" : "") + (p.param.waited_for ? "_waited_for" : "");
}

// Whose target makes no call.
bool is_to_idle(Scene scene) {
  return scene == Scene::write_to_idle || scene == Scene::large_write_to_idle;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (uint32_t scene = 0; scene < std::size(kNames); ++scene) {
    for (const bool denied : {false, true}) {
      // somebody has to carry it out
      if (denied && is_to_idle(static_cast<Scene>(scene))) continue;
      for (const bool waited_for : {false, true}) {
        cases.push_back({static_cast<Scene>(scene), denied, waited_for});
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Scenes, Asleep, testing::ValuesIn(all_cases()), name_of_case);

// Sleeps until what was posted has come here, or has been said to have arrived there.
void expect_done(Scene scene, int64_t posted, Node& node, Region& region, std::vector<uint8_t>& in,
                 std::vector<Op>& ops, Control& poster) {
  fi_cq_tagged_entry entry{};
  const auto completes = [&] { return fi_cq_sread(node.cq(), &entry, 1, nullptr, 10000) == 1; };
  const auto counts_to = [&](uint64_t n) {
    return fi_cntr_wait(node.remote_write_cntr(), n, 10000) == 0;
  };
  switch (scene) {
    case Scene::counted_write:
    case Scene::large_counted_write: EXPECT_TRUE(counts_to(1)); break;
    case Scene::fenced_write: EXPECT_TRUE(counts_to(2)); break;
    case Scene::written_data:
      EXPECT_TRUE(completes());
      EXPECT_EQ(entry.data, 77u);
      break;
    case Scene::large_send:
      ASSERT_EQ(fi_recv(node.ep(), in.data(), kLarge, nullptr, FI_ADDR_UNSPEC, &ops[0]), 0);
      EXPECT_TRUE(completes());
      break;
    case Scene::many_sends:
      for (int64_t i = 0; i < posted; ++i) {
        ASSERT_EQ(fi_recv(node.ep(), in.data(), 512, nullptr, FI_ADDR_UNSPEC, &ops[i]), 0);
        ASSERT_TRUE(completes()) << i << " of " << posted;
      }
      break;
    case Scene::receive_of_offer: EXPECT_TRUE(completes()); break;
    case Scene::write_to_idle:
    case Scene::large_write_to_idle:
    case Scene::atomic: {
      for (int tries = 0; !first_difference(region.memory().span(), 1) && tries < 1000; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_TRUE(first_difference(region.memory().span(), 1));
      break;
    }
    case Scene::large_read: {
      bool all_there = false;
      EXPECT_TRUE(poster.get(&all_there, 15000) && all_there);
      break;
    }
  }
}

TEST_P(Asleep, what_is_posted_goes_on_by_itself) {
  const Case c = GetParam();
  Options options = options_of(c);
  options.progress = FI_PROGRESS_UNSPEC;
  if (is_to_idle(c.scene)) {
    options.threading = FI_THREAD_DOMAIN;
    options.caps &= ~uint64_t{FI_RMA_EVENT};
    options.remote_counters = false;
    options.wait = FI_WAIT_NONE;
  }
  std::vector<uint8_t> in(kLarge);
  std::vector<Op> ops(kMany);
  Op greeting;
  Node node(options);
  Region region(node, kLarge);
  ASSERT_EQ(fi_recv(node.ep(), in.data(), 1, nullptr, FI_ADDR_UNSPEC, &greeting), 0);
  Child poster("posts_while_asleep", child_denying(c.denied));
  ASSERT_TRUE(poster.control().put(Asked{c, {node.name(), region.remote()}}));
  ASSERT_EQ(node.wait(&greeting).err, 0);
  if (c.scene == Scene::receive_of_offer) {
    Name name;
    ASSERT_TRUE(poster.control().get(&name, 20000));
    ASSERT_EQ(fi_send(node.ep(), in.data(), kLarge, nullptr, node.insert(name), &ops[0]), 0);
  }
  Posted told;
  // neither does this side poll: it sleeps until there is something
  ASSERT_TRUE(poster.control().get(&told, 20000));
  const int64_t posted = told.result;
  ASSERT_GE(posted, 0) << fi_strerror(static_cast<int>(-posted));
  expect_done(c.scene, posted, node, region, in, ops, poster.control());
  std::printf("after %.3f ms\n", static_cast<double>(now_ns() - told.at_ns) / 1e6);
  EXPECT_TRUE(poster.control().put(true));
  EXPECT_EQ(poster.join(), 0);
}

}  // namespace
}  // namespace aperture::doors
