// Threads that are cancelled (pthread_cancel(3)) while they wait in a call of libfabric's: each
// such call is a clean cancellation point, and leaves nothing behind that others would wait for.
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

struct Call {
  int (*make)(void* with);
  void* with;
};

void* keep_calling(void* arg) {
  const auto* call = static_cast<const Call*>(arg);
  while (call->make(call->with) == 0) {
  }
  return nullptr;
}

void expect_cancelled(const char* name, int (*make)(void*), void* with) {
  SCOPED_TRACE(name);
  Call call{make, with};
  pthread_t thread;
  ASSERT_EQ(::pthread_create(&thread, nullptr, keep_calling, &call), 0);
  ::usleep(30'000);
  ASSERT_EQ(::pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(::pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

class Cancel : public testing::TestWithParam<fi_wait_obj> {};
INSTANTIATE_TEST_SUITE_P(objects, Cancel, testing::Values(FI_WAIT_FD, FI_WAIT_YIELD),
                         [](const auto& p) { return std::string(wait_name(p.param)); });

int sread_cq(void* cq) {
  fi_cq_tagged_entry entry{};
  return fi_cq_sread(static_cast<fid_cq*>(cq), &entry, 1, nullptr, -1) == 1;
}
int sread_cq_from(void* cq) {
  fi_cq_tagged_entry entry{};
  fi_addr_t source = 0;
  return fi_cq_sreadfrom(static_cast<fid_cq*>(cq), &entry, 1, &source, nullptr, -1) == 1;
}
int sread_eq(void* eq) {
  uint32_t event = 0;
  fi_eq_cm_entry entry{};
  return fi_eq_sread(static_cast<fid_eq*>(eq), &event, &entry, sizeof entry, -1, 0) > 0;
}
int wait_cntr(void* cntr) {
  return fi_cntr_wait(static_cast<fid_cntr*>(cntr), 1, -1) == 0;
}
int wait_set(void* set) {
  return fi_wait(static_cast<fid_wait*>(set), -1) == 0;
}

TEST_P(Cancel, a_thread_in_fi_cq_sread_ends_and_others_go_on) {
  NodePair p(Options{.wait = GetParam(), .threading = FI_THREAD_SAFE});
  expect_cancelled("fi_cq_sread", sread_cq, p.b.cq());
  expect_cancelled("fi_cq_sreadfrom", sread_cq_from, p.b.cq());
  Op op;
  uint8_t in = 0;
  ASSERT_EQ(fi_recv(p.b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &op), 0);
  ASSERT_EQ(post([&] { return fi_inject(p.a.ep(), "x", 1, p.to_b); }), 0);
  EXPECT_EQ(p.b.wait(&op).err, 0);
  EXPECT_EQ(in, 'x');
}

TEST_P(Cancel, a_thread_in_fi_cntr_wait_ends_and_others_go_on) {
  Node node(Options{.threading = FI_THREAD_SAFE});
  fi_cntr_attr attr{};
  attr.events = FI_CNTR_EVENTS_COMP;
  attr.wait_obj = GetParam();
  auto cntr = DOOR_MADE(fi_cntr_open, node.domain(), &attr);
  expect_cancelled("fi_cntr_wait", wait_cntr, cntr.get());
  ASSERT_EQ(fi_cntr_add(cntr.get(), 1), 0);
  EXPECT_EQ(fi_cntr_wait(cntr.get(), 1, 5000), 0);
}

TEST_P(Cancel, a_thread_in_fi_eq_sread_ends_and_others_go_on) {
  Node node;
  fi_eq_attr attr{};
  attr.flags = FI_WRITE;
  attr.wait_obj = GetParam();
  auto eq = DOOR_MADE(fi_eq_open, node.fabric(), &attr);
  expect_cancelled("fi_eq_sread", sread_eq, eq.get());
  uint64_t body = 7;
  EXPECT_EQ(fi_eq_write(eq.get(), FI_NOTIFY, &body, sizeof body, 0),
            static_cast<ssize_t>(sizeof body));
  uint32_t event = 0;
  EXPECT_EQ(fi_eq_sread(eq.get(), &event, &body, sizeof body, 5000, 0),
            static_cast<ssize_t>(sizeof body));
}

TEST_P(Cancel, a_thread_in_fi_wait_ends_and_others_go_on) {
  Node node(Options{.threading = FI_THREAD_SAFE});
  fi_wait_attr attr{};
  attr.wait_obj = GetParam();
  fid_wait* raw = nullptr;
  ASSERT_EQ(fi_wait_open(node.fabric(), &attr, &raw), 0);
  const Fid<fid_wait> set(raw);
  fi_eq_attr eq_attr{};
  eq_attr.flags = FI_WRITE;
  eq_attr.wait_obj = FI_WAIT_SET;
  eq_attr.wait_set = set.get();
  auto eq = DOOR_MADE(fi_eq_open, node.fabric(), &eq_attr);
  expect_cancelled("fi_wait", wait_set, set.get());
  ASSERT_EQ(fi_eq_write(eq.get(), FI_NOTIFY, "event", 5, 0), 5);
  EXPECT_EQ(fi_wait(set.get(), 5000), 0);
}

}  // namespace
}  // namespace aperture::doors
