// Device memory that peers copy by themselves, by handles of its driver's: also while its owner
// looks at no queue, and no longer than the region is open. docs/revocation.md;
// docs/threat-model.md.
//
// Over the stand-in drivers of tests/memory/standin, or real ones: see device_test.cpp.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>

#include "doors/child.hpp"
#include "doors/device.hpp"
#include "protect/cma.hpp"

namespace aperture::doors {
namespace {

using test::DeviceKind;
using test::Devices;

constexpr size_t kRegion = 4 << 20;  // whole blocks of a driver's

struct FromChild {
  Name name;
  Remote remote;
};

enum class Ask : uint32_t { copies, bytes, shut, renew, part, replace, count };
struct Answer {
  uint64_t number = 0;
  Remote remote;
};

DeviceKind kind_of_role() {
  const char* const kind = std::getenv("APERTURE_TEST_DEVICE");
  return kind != nullptr ? static_cast<DeviceKind>(std::atoi(kind)) : DeviceKind::cuda;
}

// Answers about its region, and looks at no queue while it waits for the next question; asked for
// `count` it has bound a counter from then on, and looks.
DOOR_ROLE(device_owner) {
  std::string why;
  const auto devices = Devices::open(kind_of_role(), why);
  if (devices == nullptr) return 3;
  const bool counts = std::getenv("APERTURE_TEST_COUNTS") != nullptr;
  Node node(hmem(FI_MR_HMEM | kBasicMr, kUsualCaps | (counts ? FI_RMA_EVENT : 0)));
  std::optional<DeviceRegion> region;
  std::optional<test::DeviceMemory> in_its_place;
  region.emplace(node, *devices, kRegion);
  if (!control.put(FromChild{node.name(), region->remote()})) return 1;
  while (!control.ready()) node.poll();
  const auto sum = [&] {
    std::vector<uint8_t> bytes(kRegion);
    if (!(in_its_place ? *in_its_place : region->memory()).read(bytes.data(), 0, kRegion))
      return ~uint64_t{0};
    return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  };
  Fid<fid_mr> part;
  for (Ask ask{}; control.get(&ask);) {
    Answer answer;
    Fid<fid_cntr> counter;
    switch (ask) {
      case Ask::copies: answer.number = devices->counts().copies; break;
      case Ask::bytes: answer.number = sum(); break;
      case Ask::shut:
        if (region->close() != 0) return 4;
        region->put(0, std::vector<uint8_t>(kRegion, 1));
        usleep(100000);
        answer.number = sum();
        break;
      case Ask::renew:
        region.reset();
        region.emplace(node, *devices, kRegion);
        answer.remote = region->remote();
        break;
      case Ask::part: {  // another region in the same allocation
        const iovec iov{region->at(kRegion / 2), kRegion / 4};
        const fi_mr_attr attr = device_attr(devices->kind(), devices->number_of(0), &iov, 1);
        fid_mr* mr = nullptr;
        if (fi_mr_regattr(node.domain(), &attr, 0, &mr) != 0) return 7;
        part.reset(mr);
        answer.remote.base =
            node.virtual_addresses() ? reinterpret_cast<uint64_t>(iov.iov_base) : 0;
        answer.remote.key = fi_mr_key(mr);
        break;
      }
      case Ask::replace: {  // an application's mistake: it was not closed before
        region->memory().free();
        in_its_place.emplace(*devices, kRegion);
        const std::vector<uint8_t> zeros(kRegion);
        if (!in_its_place->write(0, zeros.data(), kRegion)) return 6;
        break;
      }
      case Ask::count: {
        counter = open_counter(node.domain());
        if (fi_mr_bind(region->mr(), &counter->fid, FI_REMOTE_WRITE) != 0) return 5;
        if (!control.put(answer)) return 1;
        while (!control.ready()) node.poll();
        if (!control.get(&ask)) return 1;
        answer.number = fi_cntr_read(counter.get());
        region->close();
        break;
      }
    }
    if (!control.put(answer)) return 1;
  }
  region.reset();
  return 0;
}

class DeviceByPeer : public WithDevices, public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!test::cma_works()) GTEST_SKIP() << "process_vm_readv(2) is denied here";
    open(GetParam());
    if (!HasFatalFailure()) start({});
  }
  void start(ChildOptions of_owner) {
    node.reset();
    of_owner.env.push_back({"APERTURE_DEVICE_SHARE", share});
    of_owner.env.push_back({"APERTURE_TEST_DEVICE", std::to_string(static_cast<int>(GetParam()))});
    owner.emplace("device_owner", of_owner);
    node.emplace(hmem(FI_MR_HMEM | kBasicMr));
    FromChild there_is;
    ASSERT_TRUE(owner->control().get(&there_is, 20000));
    remote = there_is.remote;
    to_owner = node->insert(there_is.name);
    ASSERT_EQ(write(0, 1), 0);  // the owner looks at its queue until it is asked something
  }
  void TearDown() override {
    node.reset();
    if (devices != nullptr && devices->is_standin()) {
      EXPECT_EQ(devices->counts().shared, 0u);
    }
  }
  Answer ask(Ask what) {
    Answer answer;
    EXPECT_TRUE(owner->control().put(what) && owner->control().get(&answer, 20000));
    return answer;
  }
  // Of `n` ones from there on.
  int64_t write(uint64_t offset, size_t n) {
    ones.resize(std::max(ones.size(), n), 1);
    return node->run(fi_write, ones.data(), n, nullptr, to_owner, remote.base + offset, remote.key);
  }

  const char* share = "on";
  std::optional<Child> owner;
  std::optional<Node> node;
  fi_addr_t to_owner = FI_ADDR_UNSPEC;
  Remote remote;
  std::vector<uint8_t> ones;
};

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceByPeer, testing::ValuesIn(test::kDeviceKinds),
                         [](const auto& kind) { return std::string(test::name_of(kind.param)); });

TEST_P(DeviceByPeer, reads_and_writes_while_the_owner_looks_at_no_queue) {
  const uint64_t copied = ask(Ask::copies).number;
  std::vector<uint8_t> out(kRegion), in(kRegion);
  fill(out, 5);
  for (const size_t size : {size_t{1}, size_t{300}, size_t{70001}, kRegion - 3}) {
    ASSERT_EQ(node->run(fi_write, out.data(), size, nullptr, to_owner, remote.base + 3, remote.key),
              0);
    std::fill(in.begin(), in.end(), 0);
    ASSERT_EQ(node->run(fi_read, in.data(), size, nullptr, to_owner, remote.base + 3, remote.key),
              0);
    EXPECT_TRUE(std::equal(in.begin(), in.begin() + static_cast<long>(size), out.begin())) << size;
  }
  if (devices->is_standin() && GetParam() == DeviceKind::cuda) {
    EXPECT_GE(devices->counts().at_once, 2u) << "the CPU waits for each of its copies";
  }
  // from and to a device of our own, of which pinned memory stands in between
  DeviceRegion own(*node, *devices, kRegion);
  own.put(0, out);
  ASSERT_EQ(node->run(fi_write, own.at(), kRegion, own.desc(), to_owner, remote.base, remote.key),
            0);
  own.put(0, std::vector<uint8_t>(kRegion, 0));
  ASSERT_EQ(node->run(fi_read, own.at(), kRegion, own.desc(), to_owner, remote.base, remote.key),
            0);
  EXPECT_EQ(own.get(0, kRegion), out);
  if (devices->is_standin()) {
    EXPECT_EQ(ask(Ask::copies).number, copied) << "the owner has copied";
    EXPECT_EQ(devices->counts().shared, 1u) << "one allocation, mapped once";
  }
  EXPECT_EQ(ask(Ask::bytes).number, std::accumulate(out.begin(), out.end(), uint64_t{0}));
}

// What was freed is refused then: docs/threat-model.md.
TEST_P(DeviceByPeer, copies_nothing_unless_the_owner_shares_it) {
  for (const char* not_on : {"off", ""}) {
    share = not_on;
    start({});
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(write(0, kRegion), 0);
    EXPECT_EQ(ask(Ask::bytes).number, kRegion);
    if (devices->is_standin()) {  // a real driver does not count
      EXPECT_GE(ask(Ask::copies).number, kRegion / (256 * 1024)) << "of the owner";
      EXPECT_EQ(devices->counts().shared, 0u);
    }
  }
}

TEST_P(DeviceByPeer, pieces_of_an_operation_land_in_order) {
  std::vector<uint8_t> a(300, 3), b(5000, 4), c(100000, 5), in(105300);
  const iovec out[] = {{a.data(), a.size()}, {b.data(), b.size()}, {c.data(), c.size()}};
  void* none[3] = {};
  ask(Ask::copies);
  ASSERT_EQ(node->run(fi_writev, out, none, 3, to_owner, remote.base + 7, remote.key), 0);
  ASSERT_EQ(
      node->run(fi_read, in.data(), in.size(), nullptr, to_owner, remote.base + 7, remote.key), 0);
  EXPECT_EQ(std::count(in.begin(), in.begin() + 300, 3), 300);
  EXPECT_EQ(std::count(in.begin() + 300, in.begin() + 5300, 4), 5000);
  EXPECT_EQ(std::count(in.begin() + 5300, in.end(), 5), 100000);
}

TEST_P(DeviceByPeer, what_leaves_the_region_changes_nothing) {
  const uint64_t before = ask(Ask::bytes).number;
  EXPECT_EQ(write(1, kRegion), FI_EACCES);
  EXPECT_EQ(write(kRegion, 1), FI_EACCES);
  EXPECT_EQ(write(uint64_t{0} - 1, 1), FI_EACCES);
  EXPECT_EQ(ask(Ask::bytes).number, before);
}

TEST_P(DeviceByPeer, a_buffer_that_cannot_be_touched_is_a_clear_error) {
  ask(Ask::copies);
  void* const none = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(none, MAP_FAILED);
  EXPECT_EQ(node->run(fi_write, none, 8192, nullptr, to_owner, remote.base, remote.key), FI_EFAULT);
  EXPECT_EQ(node->run(fi_read, none, 8192, nullptr, to_owner, remote.base, remote.key), FI_EFAULT);
  EXPECT_EQ(write(5, 100), 0);
  EXPECT_EQ(munmap(none, 8192), 0);
}

// docs/revocation.md: after the close has returned not a byte lands, whoever copies.
TEST_P(DeviceByPeer, nothing_lands_after_the_close) {
  ask(Ask::copies);
  ones.assign(kRegion, 7);
  ASSERT_TRUE(owner->control().put(Ask::shut));
  int64_t ended = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ended == 0 && std::chrono::steady_clock::now() < until) {
    ended = node->run(fi_write, ones.data(), kRegion, nullptr, to_owner, remote.base, remote.key);
    if (owner->control().ready()) break;
  }
  Answer answer;
  ASSERT_TRUE(owner->control().get(&answer, 20000));
  EXPECT_EQ(answer.number, kRegion) << "what the owner wrote after its close was overwritten";
}

TEST_P(DeviceByPeer, a_region_that_comes_to_the_same_place_is_another) {
  ask(Ask::copies);
  for (int round = 0; round < 5; ++round) {
    const Remote old = remote;
    remote = ask(Ask::renew).remote;
    ASSERT_EQ(ask(Ask::bytes).number, 0u);
    ASSERT_EQ(write(9, 1000), 0);
    EXPECT_EQ(ask(Ask::bytes).number, 1000u) << round;
    if (devices->is_standin()) {
      EXPECT_EQ(devices->counts().shared, 1u) << "the allocation before is let go";
    }
    if (old.key == remote.key) continue;
    const Remote next = std::exchange(remote, old);
    EXPECT_NE(write(0, 1), 0) << "by the key of the one before";
    remote = next;
  }
}

TEST_P(DeviceByPeer, regions_of_one_allocation_have_one_mapping) {
  const Remote part = ask(Ask::part).remote;
  ASSERT_EQ(write(kRegion / 2 + 100, 300), 0);
  std::vector<uint8_t> in(1000), nines(200, 9);
  ASSERT_EQ(
      node->run(fi_write, nines.data(), nines.size(), nullptr, to_owner, part.base + 200, part.key),
      0);
  ASSERT_EQ(node->run(fi_read, in.data(), in.size(), nullptr, to_owner, remote.base + kRegion / 2,
                      remote.key),
            0);
  EXPECT_EQ(std::count(in.begin() + 100, in.begin() + 200, 1), 100);
  EXPECT_EQ(std::count(in.begin() + 200, in.begin() + 400, 9), 200);
  EXPECT_EQ(write(0, 1), 0);
  EXPECT_EQ(node->run(fi_write, in.data(), 1, nullptr, to_owner, part.base + kRegion / 4, part.key),
            FI_EACCES);
  if (devices->is_standin()) {
    EXPECT_EQ(devices->counts().shared, 1u);
  }
}

// Where it is open already its bytes go into memory that is nobody's any more. (Where it is not, a
// handle that is out of date may be of what has taken its place: docs/threat-model.md.)
TEST_P(DeviceByPeer, what_takes_the_place_of_memory_that_is_open_is_not_reached) {
  ask(Ask::copies);
  ASSERT_EQ(write(0, 1), 0);  // by ourselves: the owner does not look
  ask(Ask::replace);
  ones.assign(kRegion, 7);
  EXPECT_EQ(write(0, kRegion), 0);
  EXPECT_EQ(write(5, 300), 0);
  EXPECT_EQ(ask(Ask::bytes).number, 0u);
}

// Who is to be told of each write has it done by the owner.
TEST_P(DeviceByPeer, a_region_with_a_counter_is_its_owners_to_copy) {
  start({.env = {{"APERTURE_TEST_COUNTS", "1"}}});
  ASSERT_FALSE(HasFatalFailure());
  ask(Ask::count);
  ASSERT_EQ(write(0, 100), 0);
  ASSERT_EQ(write(50, 100), 0);
  EXPECT_EQ(ask(Ask::copies).number, 2u);
}

// Writes 100 bytes of 7 by a driver that says so and pauses before it copies.
DOOR_ROLE(device_slow_writer) {
  std::string why;
  const auto devices = Devices::open(DeviceKind::cuda, why);
  if (devices == nullptr) return 3;
  Node node(hmem(FI_MR_HMEM | kBasicMr));
  FromChild there;
  if (!control.put(Name(node.name())) || !control.get(&there)) return 1;
  const fi_addr_t to = node.insert(there.name);
  std::vector<uint8_t> bytes(100, 7);
  const auto write = [&] {
    return node.run(fi_write, bytes.data(), bytes.size(), nullptr, to, there.remote.base + 200,
                    there.remote.key);
  };
  if (write() != 0 || !control.put('r')) return 2;
  char go = 0;
  if (!control.get(&go)) return 1;
  setenv("STANDIN_PAUSE_MS", "1500", 1);
  setenv("STANDIN_PAUSE_TELLS", std::to_string(control.fd()).c_str(), 1);
  const int64_t ended = write();
  return control.put(ended) ? 0 : 1;
}

class DeviceOwner : public WithDevices, public testing::Test {
 protected:
  void SetUp() override {
    if (!test::cma_works()) GTEST_SKIP() << "process_vm_readv(2) is denied here";
    open(DeviceKind::cuda);
    if (HasFatalFailure()) return;
    if (!devices->is_standin()) GTEST_SKIP() << "a real driver does not pause";
    node.emplace(hmem(FI_MR_HMEM | kBasicMr));
    setenv("APERTURE_DEVICE_SHARE", "on", 1);
    region.emplace(*node, *devices, kRegion);
    unsetenv("APERTURE_DEVICE_SHARE");
    Name name;
    ASSERT_TRUE(writer.control().get(&name, 20000));
    ASSERT_TRUE(writer.control().put(FromChild{node->name(), region->remote()}));
    ASSERT_TRUE(pump_until([&] { return writer.control().ready(); }));
    char ready = 0;
    ASSERT_TRUE(writer.control().get(&ready, 0));
    region->put(0, std::vector<uint8_t>(kRegion, 0));
    const size_t copies = devices->counts().copies;
    char paused = 0;
    ASSERT_TRUE(writer.control().put('g') && writer.control().get(&paused, 20000));
    EXPECT_EQ(devices->counts().copies, copies);
  }
  // Of the sevens.
  long landed() const {
    const auto bytes = region->get(200, 100);
    return std::count(bytes.begin(), bytes.end(), 7);
  }
  void expect_nothing_more() {
    region->put(0, std::vector<uint8_t>(kRegion, 1));
    usleep(600000);
    const auto bytes = region->get(0, kRegion);
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}), kRegion);
  }

  std::optional<Node> node;
  std::optional<DeviceRegion> region;
  Child writer{"device_slow_writer"};
};

TEST_F(DeviceOwner, waits_for_a_driver_that_copies) {
  EXPECT_EQ(region->close(), 0);
  EXPECT_EQ(landed(), 100) << "it had begun";
  expect_nothing_more();
}

// It tells the driver, or goes on to, when it runs again: no close may take it for quiet.
TEST_F(DeviceOwner, does_not_take_who_is_stopped_in_a_drivers_copy_for_quiet) {
  writer.signal(SIGSTOP);
  fid_mr* const mr = region->mr();
  EXPECT_EQ(region->close(), -FI_EBUSY);
  EXPECT_EQ(landed(), 0);
  writer.signal(SIGCONT);
  int closed = -FI_EBUSY;
  for (int i = 0; i < 20 && closed == -FI_EBUSY; ++i) closed = fi_close(&mr->fid);
  EXPECT_EQ(closed, 0);
  EXPECT_EQ(landed(), 100);
  expect_nothing_more();
}

TEST_F(DeviceOwner, waits_for_no_process_that_is_over) {
  writer.kill_now();
  EXPECT_EQ(region->close(), 0);
  expect_nothing_more();
}

}  // namespace
}  // namespace aperture::doors
