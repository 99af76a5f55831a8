// A write whose pieces its owner carries out ends for an initiator that sleeps: in fi_cq_sread, on
// the descriptor of its queue, or, with automatic progress, without any call. man 3 fi_cq and
// fi_domain.
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <thread>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

enum class Owner : uint32_t { polls, sleeps, makes_no_call };
enum class Waits : uint32_t { in_sread, on_the_descriptor, makes_no_call };

struct Case {
  const char* name;
  Owner owner;
  Waits waits;
  fi_threading threading;
  bool denied;
};

struct Asked {
  Case what;
  size_t size;
};
struct Told {
  Name name;
  Remote remote;
};

Options options_of(const Case& c, bool makes_no_call) {
  return {.wait = FI_WAIT_FD,
          .threading = c.threading,
          .progress = makes_no_call ? FI_PROGRESS_AUTO : FI_PROGRESS_UNSPEC};
}

bool arrives_by_itself(Guarded& memory, uint64_t seed) {
  for (int tries = 0; tries < 1500; ++tries) {
    if (!first_difference(memory.span(), seed)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

DOOR_ROLE(owns_what_is_written) {
  Asked asked;
  if (!control.get(&asked)) return 1;
  const Owner owner = asked.what.owner;
  Node node(options_of(asked.what, owner == Owner::makes_no_call));
  Region region(node, asked.size);
  if (!control.put(Told{node.name(), region.remote()})) return 2;
  Op op;
  char hello = 0;
  if (node.run(fi_recv, &hello, 1, nullptr, FI_ADDR_UNSPEC) != 0) return 3;
  if (owner == Owner::makes_no_call && !control.put(arrives_by_itself(region.memory(), 7)))
    return 4;
  char bye = 0;
  if (fi_recv(node.ep(), &bye, 1, nullptr, FI_ADDR_UNSPEC, &op) != 0) return 5;
  if (owner == Owner::polls) return node.wait(&op).err;
  fi_cq_tagged_entry entry;
  return fi_cq_sread(node.cq(), &entry, 1, nullptr, 30000) == 1 ? 0 : 6;
}

namespace {

class WaitingWriter : public testing::TestWithParam<Case> {
 protected:
  // Sleeps until the write has ended, 15 s at most.
  static bool ends(Node& node, Waits how) {
    fi_cq_tagged_entry entry{};
    if (how == Waits::in_sread) return fi_cq_sread(node.cq(), &entry, 1, nullptr, 15000) == 1;
    int fd = -1;
    fid* queue = &node.cq()->fid;
    if (fi_control(queue, FI_GETWAIT, &fd) != 0) return false;
    for (;;) {
      if (fi_cq_read(node.cq(), &entry, 1) == 1) return true;
      if (fi_trywait(node.fabric(), &queue, 1) != 0) continue;
      pollfd p{fd, POLLIN, 0};
      if (::poll(&p, 1, 15000) != 1) return false;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(
    Cases, WaitingWriter,
    testing::Values(
        Case{"sread", Owner::polls, Waits::in_sread, FI_THREAD_DOMAIN, false},
        Case{"sread_denied", Owner::polls, Waits::in_sread, FI_THREAD_DOMAIN, true},
        Case{"sread_denied_safe", Owner::polls, Waits::in_sread, FI_THREAD_SAFE, true},
        Case{"sread_denied_owner_sleeps", Owner::sleeps, Waits::in_sread, FI_THREAD_DOMAIN, true},
        Case{"descriptor_denied", Owner::polls, Waits::on_the_descriptor, FI_THREAD_DOMAIN, true},
        Case{"descriptor_denied_safe", Owner::sleeps, Waits::on_the_descriptor, FI_THREAD_SAFE,
             true},
        Case{"descriptor_denied_owner_sleeps", Owner::sleeps, Waits::on_the_descriptor,
             FI_THREAD_DOMAIN, true},
        Case{"nobody_calls", Owner::makes_no_call, Waits::makes_no_call, FI_THREAD_DOMAIN, false},
        Case{"nobody_calls_denied", Owner::makes_no_call, Waits::makes_no_call, FI_THREAD_DOMAIN,
             true},
        Case{"nobody_calls_denied_safe", Owner::makes_no_call, Waits::makes_no_call, FI_THREAD_SAFE,
             true}),
    kByName);

TEST_P(WaitingWriter, ends_with_its_write) {
  const Case c = GetParam();
  for (const size_t size : {size_t{300} << 10, size_t{3} << 20}) {
    Node node(options_of(c, c.waits == Waits::makes_no_call));
    Guarded local(size, 7);
    Child owner("owns_what_is_written", child_denying(c.denied));
    ASSERT_TRUE(owner.control().put(Asked{c, size}));
    Told there;
    ASSERT_TRUE(owner.control().get(&there, 20000));
    const fi_addr_t to = node.insert(there.name);
    ASSERT_EQ(node.run(fi_send, "h", 1, nullptr, to), 0);
    Op op;
    const auto& [base, key, len, raw] = there.remote;
    ASSERT_EQ(node.post(fi_write, local.data(), size, nullptr, to, base, key, &op), 0);
    if (c.waits == Waits::makes_no_call) {
      bool arrived = false;
      ASSERT_TRUE(owner.control().get(&arrived, 20000));
      EXPECT_TRUE(arrived) << size;
      EXPECT_EQ(node.wait(&op).err, 0);
    } else {
      EXPECT_TRUE(ends(node, c.waits)) << size;
    }
    EXPECT_EQ(node.run(fi_send, "b", 1, nullptr, to), 0);
    EXPECT_EQ(owner.join(), 0);
  }
}

}  // namespace
}  // namespace aperture::doors
