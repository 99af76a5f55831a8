// Registrations that complete later: fi_mr(3), DESCRIPTION ("asynchronous") and fi_mr_reg;
// fi_domain(3), fi_domain_bind; fi_eq(3), FI_MR_COMPLETE.
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "doors/mr_target.hpp"

namespace aperture::doors::mr {
namespace {

constexpr int kHeldBackMs = 150;

class Later : public testing::Test {
 protected:
  explicit Later(int mr_mode = 0)
      : pair(std::make_unique<NodePair>(options_of(mr_mode, FI_RMA_EVENT))) {
    fi_eq_attr attr{.wait_obj = FI_WAIT_UNSPEC};
    eq = DOOR_MADE(fi_eq_open, node.fabric(), &attr);
    DOOR(fi_domain_bind(node.domain(), &eq->fid, FI_REG_MR));
  }
  ~Later() override {
    ::unsetenv("APERTURE_MR_DELAY_MS");
    // the queue outlives the domain that it is bound to, and the fabric outlives the queue: the
    // node's own try to close that one finds it busy
    fid_fabric* const fabric = node.fabric();
    pair.reset();
    eq.reset();
    EXPECT_EQ(fi_close(&fabric->fid), 0);
  }
  static void hold_back() {
    ::setenv("APERTURE_MR_DELAY_MS", std::to_string(kHeldBackMs).c_str(), 1);
  }
  int reg(fid_mr** mr, void* context, uint64_t key = 1, uint64_t flags = 0, uint64_t offset = 0) {
    return fi_mr_reg(node.domain(), memory, sizeof memory, kAllAccess, offset, key, flags, mr,
                     context);
  }
  // The next event, or -FI_EAGAIN when none comes in time.
  ssize_t next(uint32_t* event, fi_eq_entry* entry, int timeout_ms = 20000) {
    ssize_t rc = -FI_EAGAIN;
    pump_until(
        [&] {
          rc = fi_eq_read(eq.get(), event, entry, sizeof *entry, 0);
          return rc != -FI_EAGAIN;
        },
        timeout_ms);
    return rc;
  }
  void completed(fid_mr* mr, void* context) {
    uint32_t event = 0;
    fi_eq_entry entry{};
    ASSERT_EQ(next(&event, &entry), static_cast<ssize_t>(sizeof entry));
    EXPECT_EQ(event, static_cast<uint32_t>(FI_MR_COMPLETE));
    EXPECT_EQ(entry.fid, &mr->fid);
    EXPECT_EQ(entry.context, context);
  }
  void no_event(int for_ms = 30) {
    uint32_t event = 0;
    fi_eq_entry entry{};
    EXPECT_EQ(next(&event, &entry, for_ms), -FI_EAGAIN);
  }
  Completion write(uint64_t key) {
    Op op;
    const uint64_t word = 7;
    EXPECT_EQ(peers.a.post(fi_write, &word, 8, nullptr, peers.to_b, 0, key, &op), 0);
    return peers.a.wait(&op);
  }
  std::unique_ptr<NodePair> pair;
  NodePair& peers = *pair;
  Node& node = pair->b;
  Fid<fid_eq> eq;
  uint64_t memory[8] = {};
};

TEST_F(Later, there_is_no_key_and_no_descriptor_before_the_event) {
  hold_back();
  fid_mr* mr = nullptr;
  int context = 0;
  ASSERT_EQ(reg(&mr, &context, 77), 0);
  ASSERT_NE(mr, nullptr) << "written by the call";
  EXPECT_EQ(fi_mr_key(mr), FI_KEY_NOTAVAIL);
  EXPECT_EQ(fi_mr_desc(mr), nullptr);
  EXPECT_EQ(write(77).err, FI_EACCES) << "nor can a peer reach it";
  completed(mr, &context);
  EXPECT_EQ(fi_mr_key(mr), 77u);
  EXPECT_NE(fi_mr_desc(mr), nullptr);
  EXPECT_EQ(write(77).err, 0);
  EXPECT_EQ(memory[0], 7u);
  no_event();
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST_F(Later, nothing_can_be_done_with_it_before_the_event) {
  hold_back();
  const Fid<fid_cntr> counter = open_counter(node.domain());
  fid_mr* mr = nullptr;
  ASSERT_EQ(reg(&mr, nullptr), 0);
  uint64_t base = 1;
  uint8_t raw[16];
  size_t size = sizeof raw;
  EXPECT_EQ(fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_mr_enable(mr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_mr_refresh(mr, nullptr, 0, 0), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_mr_raw_attr(mr, &base, raw, &size, 0), -FI_EOPBADSTATE);
  EXPECT_EQ(base, 1u);
  EXPECT_EQ(size, sizeof raw);
  completed(mr, nullptr);
  EXPECT_EQ(fi_mr_enable(mr), 0);
  EXPECT_EQ(fi_mr_refresh(mr, nullptr, 0, 0), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST_F(Later, the_region_is_written_before_its_event_can_be_read) {
  constexpr int kRounds = 300;
  std::atomic<int> seen{0}, wrong{0};
  std::thread reader([&] {
    while (seen < kRounds) {
      uint32_t event = 0;
      fi_eq_entry entry{};
      if (fi_eq_sread(eq.get(), &event, &entry, sizeof entry, 100, 0) !=
          static_cast<ssize_t>(sizeof entry)) {
        continue;
      }
      auto* given = *static_cast<fid_mr**>(entry.context);
      if (given == nullptr || &given->fid != entry.fid || fi_mr_key(given) == FI_KEY_NOTAVAIL) {
        ++wrong;
      }
      ++seen;
    }
  });
  std::vector<fid_mr*> made(kRounds);
  for (int i = 0; i < kRounds; ++i) {
    if (reg(&made[static_cast<size_t>(i)], &made[static_cast<size_t>(i)],
            static_cast<uint64_t>(i)) != 0) {
      ++wrong;
      ++seen;
    }
  }
  reader.join();
  EXPECT_EQ(wrong, 0);
  for (fid_mr* mr : made) EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST_F(Later, a_call_that_fails_has_no_event) {
  fid_mr* mr = nullptr;
  EXPECT_EQ(reg(&mr, nullptr, 1, 0, 8), -FI_EINVAL);
  EXPECT_EQ(reg(&mr, nullptr, 1, FI_MULTI_RECV), -FI_EBADFLAGS);
  EXPECT_EQ(reg(&mr, nullptr, FI_KEY_NOTAVAIL), -FI_EKEYREJECTED);
  EXPECT_EQ(fi_mr_regv(node.domain(), nullptr, 0, kAllAccess, 0, 1, 0, &mr, nullptr), -FI_EINVAL);
  EXPECT_EQ(mr, nullptr);
  no_event();
}

TEST_F(Later, a_failure_found_later_is_an_error_entry_with_the_context) {
  fid_mr *first = nullptr, *second = nullptr;
  int one = 0, two = 0;
  ASSERT_EQ(reg(&first, &one, 9), 0);
  completed(first, &one);
  const int rc = reg(&second, &two, 9);  // in use
  if (rc == 0) {
    uint32_t event = 0;
    fi_eq_entry entry{};
    ASSERT_EQ(next(&event, &entry), -FI_EAVAIL);
    fi_eq_err_entry error{};
    ASSERT_EQ(fi_eq_readerr(eq.get(), &error, 0), static_cast<ssize_t>(sizeof error));
    EXPECT_EQ(error.err, FI_ENOKEY);
    EXPECT_EQ(error.fid, &second->fid);
    EXPECT_EQ(error.context, &two);
    EXPECT_EQ(fi_mr_key(second), FI_KEY_NOTAVAIL);
    EXPECT_EQ(fi_mr_enable(second), -FI_EOPBADSTATE);
    EXPECT_EQ(fi_close(&second->fid), 0) << "what failed can be closed";
  }
  EXPECT_TRUE(rc == 0 || rc == -FI_ENOKEY);
  no_event();
  EXPECT_EQ(write(9).err, 0) << "the first is as it was";
  EXPECT_EQ(fi_close(&first->fid), 0);
}

TEST_F(Later, what_is_closed_while_it_is_pending_has_no_event) {
  hold_back();
  fid_mr* mr = nullptr;
  ASSERT_EQ(reg(&mr, nullptr, 5), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  no_event(2 * kHeldBackMs);
  EXPECT_EQ(write(5).err, FI_EACCES);
  ASSERT_EQ(reg(&mr, nullptr, 5), 0) << "its key is free";
  completed(mr, nullptr);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST_F(Later, what_is_closed_before_its_event_is_read_has_none) {
  for (int round = 0; round < 300; ++round) {
    fid_mr* mr = nullptr;
    ASSERT_EQ(reg(&mr, nullptr, 5), 0);
    // in this moment the event is about to be written, or has been
    while (round % 2 == 0 && fi_mr_key(mr) != 5) sched_yield();
    ASSERT_EQ(fi_close(&mr->fid), 0);
  }
  no_event();
}

class LaterAllocated : public Later {
 protected:
  LaterAllocated() : Later(FI_MR_ALLOCATED) {}
};

TEST_F(LaterAllocated, memory_that_is_not_there_is_an_error_entry) {
  void* hole = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  munmap(hole, kPage);
  fid_mr* mr = nullptr;
  int context = 0;
  ASSERT_EQ(fi_mr_reg(node.domain(), hole, kPage, kAllAccess, 0, 3, 0, &mr, &context), 0);
  uint32_t event = 0;
  fi_eq_entry entry{};
  ASSERT_EQ(next(&event, &entry), -FI_EAVAIL);
  fi_eq_err_entry error{};
  ASSERT_EQ(fi_eq_readerr(eq.get(), &error, 0), static_cast<ssize_t>(sizeof error));
  EXPECT_EQ(error.err, FI_EFAULT);
  EXPECT_EQ(error.context, &context);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST(NotLater, without_a_bound_queue_the_call_returns_with_all_done) {
  ::setenv("APERTURE_MR_DELAY_MS", "100", 1);
  Node other(options_of(0));
  uint8_t memory[8];
  fid_mr* mr = nullptr;
  ASSERT_EQ(fi_mr_reg(other.domain(), memory, 8, kAllAccess, 0, 5, 0, &mr, &other), 0);
  EXPECT_EQ(fi_mr_key(mr), 5u);
  EXPECT_NE(fi_mr_desc(mr), nullptr);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  ::unsetenv("APERTURE_MR_DELAY_MS");
}

}  // namespace
}  // namespace aperture::doors::mr
