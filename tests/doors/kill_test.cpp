// A peer is killed at seeded moments, in the middle of sends, rendezvous and remote access. The
// survivor gets one completion for each operation it has pending, soon, and goes on with new peers;
// what it holds (fds, mappings, threads, names in /dev/shm) returns to what it was.
//
// APERTURE_KILLS sets the number of kills (default 100). The time to the last completion is
// printed; only a generous limit fails, since timing never fails a build.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "doors/nursery.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

enum class Scene : uint32_t {
  small_sends,  // survivor sends 64 B, victim receives
  rendezvous,   // survivor sends 1 MiB, victim receives
  no_receiver,  // survivor sends 1 MiB, victim posts no receive
  incoming,     // victim sends 1 MiB into the survivor's receives
  writes,       // survivor writes small and large
  reads,        // survivor reads small and large
  idle_target,  // survivor writes, victim does not poll and denies direct access
  both_ways,    // all of it
  count,
};

const char* name_of(Scene scene) {
  static const char* const names[] = {"small_sends", "rendezvous", "no_receiver", "incoming",
                                      "writes",      "reads",      "idle_target", "both_ways"};
  return names[static_cast<size_t>(scene)];
}

struct Hello {
  uint32_t scene = 0;
  Name name;
  Remote remote;
};

constexpr size_t kLarge = kMiB;
constexpr size_t kSmall = 64;
constexpr int kDepth = 16;

Options kill_options() {
  return {.mr_mode = kBasicMr};
}

DOOR_ROLE(kill_nursery) {
  get_info(kill_options());  // libfabric has loaded everything
  return serve_nursery(control);
}

// Plays its scene until it is killed.
DOOR_ROLE(victim) {
  Hello hello;
  Node node(kill_options());
  if (!control.get(&hello)) return 1;
  const auto scene = static_cast<Scene>(hello.scene);
  const fi_addr_t to = node.insert(hello.name);
  Region region(node, 4 * kLarge, kAllAccess, 1);
  const Hello answer{.name = node.name(), .remote = region.remote()};
  std::vector<uint8_t> memory(kDepth * kLarge), source(kLarge, 7);
  std::vector<Op> receives(kDepth), sends(kDepth);
  uint8_t greeting = 0;
  Op greet;
  if (fi_recv(node.ep(), &greeting, 1, nullptr, FI_ADDR_UNSPEC, &greet) != 0) return 2;
  if (!control.put(answer)) return 1;
  if (node.wait(&greet).err != 0) return 3;
  if (node.post(fi_inject, "h", 1, to) != 0) return 4;
  pump_for(1);
  if (scene == Scene::idle_target)
    for (;;) pause();
  const bool receiving = scene != Scene::no_receiver && scene != Scene::incoming;
  const bool sending = scene == Scene::incoming || scene == Scene::both_ways;
  const auto take_one = [&](int i) {
    return fi_trecv(node.ep(), &memory[i * kLarge], kLarge, nullptr, FI_ADDR_UNSPEC, 1, 0,
                    &receives[i]);
  };
  const auto send_one = [&](int i) {
    return fi_tsend(node.ep(), source.data(), kLarge, nullptr, to, 2, &sends[i]);
  };
  for (int i = 0; i < kDepth; ++i) {
    if (receiving) post([&] { return take_one(i); });
    if (sending && i < 4) post([&] { return send_one(i); });
  }
  for (;;) {
    const Completion c = node.wait_any(60000);
    for (int i = 0; i < kDepth; ++i) {
      if (c.context == &receives[i]) post([&] { return take_one(i); });
      if (c.context == &sends[i]) post([&] { return send_one(i); });
    }
  }
}

// One operation of the survivor, posted again as long as the victim lives.
struct Pending {
  Op op;
  bool posted = false;
};

class Kill : public testing::Test {
 protected:
  // Plays one scene with a new victim and kills it; the time in ns from the kill to the last
  // completion.
  int64_t play(Scene scene, uint64_t seed);

 private:
  void introduce(Seedling* victim, Scene scene);
  int64_t post_one(size_t i, Scene scene);
  void keep_busy(Scene scene, bool post_more);
  bool nothing_pending() const {
    return std::none_of(pending.begin(), pending.end(), [](const Pending& p) { return p.posted; });
  }

  struct OwnShm {
    OwnShm() { hide_others_shm(); }
  } own_shm;
  Nursery nursery{"kill_nursery"};
  Node node{kill_options()};
  std::vector<Pending> pending{kDepth};
  std::vector<uint8_t> memory = std::vector<uint8_t>(kDepth * kLarge, 3);
  fi_addr_t to = FI_ADDR_UNSPEC;
  Remote remote;
  int64_t last_ended_at = 0;  // of operations that nobody cancelled

 protected:
  uint64_t succeeded = 0, failed = 0;
};

void Kill::introduce(Seedling* victim, Scene scene) {
  Hello hello{.scene = static_cast<uint32_t>(scene), .name = node.name()};
  ASSERT_TRUE(victim->control().put(hello));
  ASSERT_TRUE(pump_until([&] { return victim->control().ready(); }));
  ASSERT_TRUE(victim->control().get(&hello, 0)) << "the victim ended by itself";
  to = node.insert(hello.name);
  remote = hello.remote;
  uint8_t greeting = 0;
  Op op;
  ASSERT_EQ(fi_recv(node.ep(), &greeting, 1, nullptr, FI_ADDR_UNSPEC, &op), 0);
  ASSERT_EQ(node.post(fi_inject, "h", 1, to), 0);
  ASSERT_EQ(node.wait(&op).err, 0) << "a new peer cannot be talked to";
}

int64_t Kill::post_one(size_t i, Scene scene) {
  uint8_t* at = &memory[i * kLarge];
  Op* op = &pending[i].op;
  const size_t size = i % 2 == 0 ? kSmall : kLarge;
  switch (scene) {
    case Scene::small_sends: return fi_tsend(node.ep(), at, kSmall, nullptr, to, 1, op);
    case Scene::rendezvous:
    case Scene::no_receiver: return fi_tsend(node.ep(), at, kLarge, nullptr, to, 1, op);
    case Scene::incoming:
      // a receive that waits for anybody rightly stays: only as many as the victim fills
      return i < 4 ? fi_trecv(node.ep(), at, kLarge, nullptr, FI_ADDR_UNSPEC, 2, 0, op)
                   : -FI_EAGAIN;
    case Scene::writes:
    case Scene::idle_target:
      return fi_write(node.ep(), at, size, nullptr, to, remote.base + i * 64, remote.key, op);
    case Scene::reads:
      return fi_read(node.ep(), at, size, nullptr, to, remote.base + i * 64, remote.key, op);
    default: return post_one(i, static_cast<Scene>(i % 6));
  }
}

void Kill::keep_busy(Scene scene, bool post_more) {
  node.poll();
  for (const Completion& c : node.done()) {
    for (Pending& p : pending) {
      if (c.context != &p.op) continue;
      EXPECT_TRUE(p.posted) << "a second completion of one operation";
      p.posted = false;
      ++(c.err == 0 ? succeeded : failed);
      if (c.err != FI_ECANCELED) last_ended_at = now_ns();
    }
  }
  node.done().clear();
  if (!post_more) return;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].posted) continue;
    const int64_t r = post_one(i, scene);
    pending[i].posted = r == 0;
  }
}

int64_t Kill::play(Scene scene, uint64_t seed) {
  const bool idle = scene == Scene::idle_target;
  Seedling victim =
      nursery.start("victim", idle ? "APERTURE_CMA" : nullptr, idle ? "deny" : nullptr);
  introduce(&victim, scene);
  if (HasFatalFailure()) return -1;
  const int64_t kill_at = now_ns() + static_cast<int64_t>(seed % 3'000'000);
  while (now_ns() < kill_at) keep_busy(scene, true);
  const int64_t killed_at = now_ns();
  victim.signal(SIGKILL);
  // receives that match nobody may stay: they are cancelled, which must end them too
  last_ended_at = killed_at;
  const int64_t give_up = killed_at + 5'000'000'000;
  const bool receives = scene == Scene::incoming || scene == Scene::both_ways;
  bool cancelled = false;
  while (!nothing_pending() && now_ns() < give_up) {
    keep_busy(scene, false);
    if (receives && !cancelled && now_ns() > killed_at + 50'000'000) {
      for (Pending& p : pending)
        if (p.posted) fi_cancel(&node.ep()->fid, &p.op);
      cancelled = true;
    }
  }
  EXPECT_TRUE(nothing_pending()) << name_of(scene) << ": operations never completed";
  for (Pending& p : pending) p.posted = false;
  victim.kill_now();  // reaps
  // sends to the dead are refused or end with an error, soon; they never hang
  Op op;
  int err = 0;
  for (const int64_t end = now_ns() + 3'000'000'000; err == 0 && now_ns() < end;) {
    const int64_t r = post([&] { return fi_tsend(node.ep(), "x", 1, nullptr, to, 1, &op); }, 3000);
    err = r == 0 ? node.wait(&op, 6000).err : static_cast<int>(-r);
  }
  EXPECT_GT(err, 0) << "sends to a dead peer go on";
  EXPECT_NE(err, FI_EAGAIN) << "sends to a dead peer are held up for ever";
  EXPECT_EQ(fi_av_remove(node.av(), &to, 1, 0), 0);
  return last_ended_at - killed_at;
}

TEST_F(Kill, of_a_peer_ends_its_operations_and_nothing_else) {
  const char* text = std::getenv("APERTURE_KILLS");
  const uint64_t kills = text != nullptr ? std::strtoull(text, nullptr, 0) : 100;
  constexpr uint64_t kScenes = static_cast<uint64_t>(Scene::count);
  std::vector<int64_t> times;
  Holdings before{};
  for (uint64_t i = 0; i < kills + kScenes; ++i) {
    if (i == kScenes) before = count_holdings();  // each scene once: everything is warm
    const auto scene = static_cast<Scene>(i % kScenes);
    SCOPED_TRACE("kill " + std::to_string(i) + ", " + name_of(scene));
    const int64_t took = play(scene, seed_of(i));
    if (HasFailure()) break;
    if (i >= kScenes) times.push_back(took);
  }
  ASSERT_FALSE(times.empty());
  pump_for(200);
  Holdings after = count_holdings();
  // without a /dev/shm of our own, others' names come and go in it
  for (int i = 0; i < 50 && after.shm_objects > before.shm_objects; ++i) {
    pump_for(100);
    after = count_holdings();
  }
  EXPECT_LE(after.fds, before.fds);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.shm_objects, before.shm_objects);
  EXPECT_LE(after.mappings, before.mappings + 8) << "a few for the allocator's arenas";
  std::sort(times.begin(), times.end());
  const auto ms = [&](size_t percent) {
    const size_t at = std::min(times.size() - 1, times.size() * percent / 100);
    return static_cast<double>(times[at]) / 1e6;
  };
  std::printf(
      "%zu kills: last completion p50 %.2f ms, p99 %.2f ms, max %.2f ms after the kill; "
      "%llu operations succeeded, %llu failed\n",
      times.size(), ms(50), ms(99), ms(100), static_cast<unsigned long long>(succeeded),
      static_cast<unsigned long long>(failed));
  EXPECT_LT(times.back(), 2'000'000'000) << "ns";
  EXPECT_GT(failed, 0u) << "the kills came too late to meet anything";
}

}  // namespace
}  // namespace aperture::doors
