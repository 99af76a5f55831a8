// fi_trigger(3): operations that wait for a counter, and deferred work.
#include <gtest/gtest.h>
#include <rdma/fi_trigger.h>

#include <array>
#include <thread>

#include "doors/region.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kAll = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER;
Options with_trigger(uint64_t caps = kAll) {
  Options o;
  o.caps = caps;
  return o;
}

// a sends what waits, b receives.
class Trigger : public testing::Test {
 protected:
  Trigger() : Trigger(with_trigger()) {}
  explicit Trigger(const Options& options)
      : pair(options), counter(open_counter(a().domain())), done(open_counter(a().domain())) {}

  Node& a() { return pair.a; }
  Node& b() { return pair.b; }
  // The order in which b is sent the bytes.
  std::string received(size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) {
      char byte = 0;
      Op op;
      EXPECT_EQ(
          b().post(fi_recv, &byte, size_t{1}, static_cast<void*>(nullptr), FI_ADDR_UNSPEC, &op), 0);
      EXPECT_EQ(b().wait(&op).err, 0);
      out += byte;
    }
    return out;
  }
  static fi_triggered_context2 at(fid_cntr* counter, size_t threshold) {
    fi_triggered_context2 c{};
    c.event_type = FI_TRIGGER_THRESHOLD;
    c.trigger.threshold = {counter, threshold};
    return c;
  }
  int64_t send_at(fi_triggered_context2& context, const char* byte, uint64_t flags = 0) {
    return send_at(&context, byte, flags);
  }
  int64_t send_at(fi_triggered_context2* context, const char* byte, uint64_t flags = 0) {
    iov = {const_cast<char*>(byte), 1};
    fi_msg m{};
    m.msg_iov = &iov;
    m.iov_count = 1;
    m.addr = pair.to_b;
    m.context = context;
    return fi_sendmsg(a().ep(), &m, flags | FI_TRIGGER);
  }

  NodePair pair;
  Fid<fid_cntr> counter;
  Fid<fid_cntr> done;
  iovec iov{};
};

TEST_F(Trigger, a_send_waits_for_its_threshold_and_completes_with_its_context) {
  auto context = at(counter.get(), 2);
  ASSERT_EQ(send_at(context, "x"), 0);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_TRUE(b().quiet());
  EXPECT_TRUE(a().quiet());
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(received(1), "x");
  EXPECT_EQ(a().wait(&context).err, 0);
}

TEST_F(Trigger, operations_start_by_threshold_and_then_by_submission) {
  std::array<fi_triggered_context2, 5> contexts;
  const std::array<size_t, 5> thresholds{3, 1, 2, 1, 9};
  const char* bytes = "acbdz";
  for (size_t i = 0; i < contexts.size(); ++i) {
    contexts[i] = at(counter.get(), thresholds[i]);
    ASSERT_EQ(send_at(contexts[i], bytes + i), 0);
  }
  ASSERT_EQ(fi_cntr_set(counter.get(), 8), 0);
  EXPECT_EQ(received(4), "cdba");
  EXPECT_TRUE(b().quiet()) << "the one at 9";
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(received(1), "z");
}

TEST_F(Trigger, a_condition_that_is_met_already_starts_at_once) {
  ASSERT_EQ(fi_cntr_add(counter.get(), 4), 0);
  auto context = at(counter.get(), 4);
  ASSERT_EQ(send_at(context, "n"), 0);
  EXPECT_EQ(received(1), "n");
}

TEST_F(Trigger, an_injected_buffer_may_be_used_again_when_the_call_returns) {
  auto context = at(counter.get(), 1);
  char byte = 'i';
  ASSERT_EQ(send_at(context, &byte, FI_INJECT), 0);
  byte = '!';
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(received(1), "i");
}

TEST_F(Trigger, errors_of_the_counter_do_not_reach_a_threshold) {
  auto context = at(counter.get(), 1);
  ASSERT_EQ(send_at(context, "e"), 0);
  ASSERT_EQ(fi_cntr_adderr(counter.get(), 5), 0);
  EXPECT_TRUE(b().quiet());
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(received(1), "e");
}

TEST_F(Trigger, a_context_that_names_no_condition_is_refused) {
  auto context = at(counter.get(), 1);
  EXPECT_EQ(send_at(nullptr, "x"), -FI_EINVAL);
  context.event_type = FI_TRIGGER_XPU;
  EXPECT_EQ(send_at(context, "x"), -FI_ENOSYS);
  context.event_type = no_such_value<fi_trigger_event>(77);
  EXPECT_EQ(send_at(context, "x"), -FI_EINVAL);
  context = at(nullptr, 1);
  EXPECT_EQ(send_at(context, "x"), -FI_EINVAL);
  const Fid<fid_cntr> foreign = open_counter(b().domain());
  context = at(foreign.get(), 1);
  EXPECT_EQ(send_at(context, "x"), -FI_EDOMAIN);
}

TEST(TriggerCaps, the_flag_needs_the_capability) {
  NodePair pair(with_trigger(FI_MSG));
  const Fid<fid_cntr> counter = open_counter(pair.a.domain());
  fi_triggered_context2 context{};
  context.trigger.threshold = {counter.get(), 1};
  iovec iov{&context, 1};
  fi_msg m{&iov, nullptr, 1, pair.to_b, &context, 0};
  EXPECT_EQ(fi_sendmsg(pair.a.ep(), &m, FI_TRIGGER), -FI_EOPNOTSUPP);
  fi_deferred_work work{};
  work.triggering_cntr = counter.get();
  fi_op_msg op{pair.a.ep(), m, 0};
  work.op_type = FI_OP_SEND;
  work.op.msg = &op;
  EXPECT_EQ(fi_control(&pair.a.domain()->fid, FI_QUEUE_WORK, &work), -FI_EOPNOTSUPP);
}

// Default flags are refused as the flag of a call is, wherever they are given.
TEST(TriggerCaps, default_flags_need_the_capability_too) {
  for (const fi_ep_type type : {FI_EP_RDM, FI_EP_DGRAM}) {
    Options options = with_trigger(FI_MSG);
    options.type = type;
    Node node(options);
    for (const uint64_t side : {FI_TRANSMIT, FI_RECV}) {
      SCOPED_TRACE(side);
      uint64_t flags = side | FI_TRIGGER;
      EXPECT_LT(fi_control(&node.ep()->fid, FI_SETOPSFLAG, &flags), 0);
      fid_ep* alias = nullptr;
      EXPECT_LT(fi_ep_alias(node.ep(), &alias, flags), 0);
      const Info info(fi_dupinfo(node.info()));
      (side == FI_RECV ? info->rx_attr->op_flags : info->tx_attr->op_flags) = FI_TRIGGER;
      EXPECT_LT(code_of(fi_endpoint, node.domain(), info.get()), 0);
      Info hints = make_hints(options);
      (side == FI_RECV ? hints->rx_attr->op_flags : hints->tx_attr->op_flags) = FI_TRIGGER;
      fi_info* answer = nullptr;
      EXPECT_EQ(fi_getinfo(options.api, nullptr, nullptr, 0, hints.get(), &answer), -FI_ENODATA);
      const Info owner(answer);
    }
  }
}

TEST_F(Trigger, a_waiting_operation_can_be_cancelled_and_its_counter_is_busy_until_then) {
  auto context = at(counter.get(), 1);
  ASSERT_EQ(send_at(context, "c"), 0);
  EXPECT_EQ(fi_close(&counter->fid), -FI_EBUSY);
  EXPECT_EQ(fi_cancel(&a().ep()->fid, &context), 0);
  EXPECT_EQ(a().wait(&context).err, FI_ECANCELED);
  EXPECT_EQ(fi_cancel(&a().ep()->fid, &context), -FI_ENOENT);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_TRUE(b().quiet());
  EXPECT_EQ(fi_close(&counter.release()->fid), 0);
}

TEST_F(Trigger, closing_the_endpoint_drops_what_waits) {
  auto context = at(counter.get(), 1);
  ASSERT_EQ(send_at(context, "c"), 0);
  a().close_endpoint();
  EXPECT_TRUE(a().quiet());
  EXPECT_EQ(fi_close(&counter.release()->fid), 0);
}

TEST_F(Trigger, receives_of_both_kinds_are_posted_when_their_counter_says_so) {
  char bytes[2] = {};
  iovec iovs[2] = {{&bytes[0], 1}, {&bytes[1], 1}};
  auto first = at(counter.get(), 1);
  auto second = at(counter.get(), 2);
  fi_msg m{&iovs[0], nullptr, 1, FI_ADDR_UNSPEC, &first, 0};
  ASSERT_EQ(fi_recvmsg(a().ep(), &m, FI_TRIGGER), 0);
  fi_msg_tagged t{&iovs[1], nullptr, 1, FI_ADDR_UNSPEC, 7, 0, &second, 0};
  ASSERT_EQ(fi_trecvmsg(a().ep(), &t, FI_TRIGGER), 0);
  ASSERT_EQ(b().post(fi_inject, "m", size_t{1}, pair.to_a), 0);
  ASSERT_EQ(b().post(fi_tinject, "t", size_t{1}, pair.to_a, uint64_t{7}), 0);
  EXPECT_TRUE(a().quiet());
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(a().wait(&first).err, 0);
  EXPECT_EQ(bytes[0], 'm');
  EXPECT_TRUE(a().quiet());
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(a().wait(&second).err, 0);
  EXPECT_EQ(bytes[1], 't');
  EXPECT_EQ(fi_trecvmsg(a().ep(), &t, FI_TRIGGER | FI_PEEK), -FI_EBADFLAGS);
}

TEST_F(Trigger, an_alias_with_the_flag_triggers_its_writes_and_injects_nothing) {
  uint64_t target = 0;
  const Fid<fid_mr> mr =
      registered(b().domain(), &target, sizeof target, FI_REMOTE_WRITE | FI_REMOTE_READ, 5);
  const uint64_t addr = b().virtual_addresses() ? reinterpret_cast<uint64_t>(&target) : 0;
  fid_ep* alias = nullptr;
  ASSERT_EQ(fi_ep_alias(a().ep(), &alias, FI_TRANSMIT | FI_TRIGGER), 0);
  const Fid<fid_ep> owner(alias);
  const uint64_t value = 42;
  auto context = at(counter.get(), 1);
  ASSERT_EQ(fi_write(alias, &value, sizeof value, nullptr, pair.to_b, addr, fi_mr_key(mr.get()),
                     &context),
            0);
  EXPECT_EQ(fi_inject(alias, &value, 1, pair.to_b), -FI_EOPNOTSUPP);
  EXPECT_TRUE(a().quiet());
  EXPECT_EQ(target, 0u);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(a().wait(&context).err, 0);
  EXPECT_EQ(target, 42u);
}

TEST_F(Trigger, an_error_of_the_operation_comes_as_its_completion) {
  const uint64_t value = 1;
  const iovec from{const_cast<uint64_t*>(&value), sizeof value};
  const fi_rma_iov to{0, sizeof value, 999999};
  auto context = at(counter.get(), 1);
  fi_msg_rma m{&from, nullptr, 1, pair.to_b, &to, 1, &context, 0};
  ASSERT_EQ(fi_writemsg(a().ep(), &m, FI_TRIGGER), 0);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(a().wait(&context).err, FI_EACCES);
  m.addr = 12345;  // is looked at when it starts
  ASSERT_EQ(fi_cntr_set(counter.get(), 0), 0);
  ASSERT_EQ(fi_writemsg(a().ep(), &m, FI_TRIGGER), 0);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_NE(a().wait(&context).err, 0);
  EXPECT_NE(a().wait(&context, 50).err, 0) << "and only once";
}

// ---- deferred work ------------------------------------------------------------------------------

class Deferred : public Trigger {
 protected:
  int control(int command, void* arg) { return fi_control(&a().domain()->fid, command, arg); }
  fi_deferred_work work_at(uint64_t threshold, fi_op_type type) {
    fi_deferred_work w{};
    w.threshold = threshold;
    w.triggering_cntr = counter.get();
    w.completion_cntr = done.get();
    w.op_type = type;
    return w;
  }
  bool comes_to(fid_cntr* c, uint64_t value) {
    return pump_until([&] { return fi_cntr_read(c) == value; }, 5000);
  }
};

TEST_F(Deferred, a_chain_of_all_kinds_of_operations_runs_by_itself) {
  uint64_t target = 0, seen = 0, value = 5, one = 1, fetched = 9, compared = 6, former = 9;
  const Fid<fid_mr> mr =
      registered(b().domain(), &target, sizeof target, FI_REMOTE_WRITE | FI_REMOTE_READ, 5);
  const uint64_t addr = b().virtual_addresses() ? reinterpret_cast<uint64_t>(&target) : 0;
  const uint64_t key = fi_mr_key(mr.get());
  Op op;
  iovec from{&value, sizeof value};
  fi_rma_iov range{addr, sizeof target, key};
  fi_op_rma write{a().ep(), {&from, nullptr, 1, pair.to_b, &range, 1, &op, 0}, 0};
  fi_deferred_work w = work_at(1, FI_OP_WRITE);
  w.op.rma = &write;
  ASSERT_EQ(control(FI_QUEUE_WORK, &w), 0);

  const auto after = [&](fi_deferred_work& next, uint64_t n) {
    next.triggering_cntr = done.get();
    next.threshold = n;
  };
  fi_ioc operand{&one, 1};
  fi_rma_ioc to{addr, 1, key};
  fi_msg_atomic atomic{&operand, nullptr, 1, pair.to_b, &to, 1, FI_UINT64, FI_SUM, &op, 0};
  fi_op_atomic add{a().ep(), atomic, 0};
  fi_deferred_work w2 = work_at(0, FI_OP_ATOMIC);
  after(w2, 1);
  w2.op.atomic = &add;
  ASSERT_EQ(control(FI_QUEUE_WORK, &w2), 0);

  fi_ioc result{&fetched, 1};
  fi_op_fetch_atomic fetch{a().ep(), atomic, {&result, nullptr, 1}, 0};
  fi_deferred_work w3 = work_at(0, FI_OP_FETCH_ATOMIC);
  after(w3, 2);
  w3.op.fetch_atomic = &fetch;
  ASSERT_EQ(control(FI_QUEUE_WORK, &w3), 0);

  compared = 7;
  fi_ioc against{&compared, 1};
  fi_ioc before{&former, 1};
  fi_op_compare_atomic swap{a().ep(), atomic, {&before, nullptr, 1}, {&against, nullptr, 1}, 0};
  swap.msg.op = FI_CSWAP;
  fi_deferred_work w4 = work_at(0, FI_OP_COMPARE_ATOMIC);
  after(w4, 3);
  w4.op.compare_atomic = &swap;
  ASSERT_EQ(control(FI_QUEUE_WORK, &w4), 0);

  iovec into{&seen, sizeof seen};
  fi_op_rma read{a().ep(), {&into, nullptr, 1, pair.to_b, &range, 1, &op, 0}, 0};
  fi_deferred_work w5 = work_at(0, FI_OP_READ);
  after(w5, 4);
  w5.op.rma = &read;
  ASSERT_EQ(control(FI_QUEUE_WORK, &w5), 0);

  EXPECT_TRUE(a().quiet());
  EXPECT_EQ(target, 0u);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_TRUE(comes_to(done.get(), 5));
  EXPECT_EQ(fetched, 6u);
  EXPECT_EQ(former, 7u);
  EXPECT_EQ(seen, 1u);
  EXPECT_TRUE(a().quiet()) << "no entry without FI_COMPLETION";
}

TEST_F(Deferred, messages_of_both_kinds_count_in_the_completion_counter_alone) {
  char out = 's', in = 0, tagged_in = 0;
  iovec from{&out, 1}, to{&in, 1}, tagged_to{&tagged_in, 1};
  Op op;
  fi_op_msg send{a().ep(), {&from, nullptr, 1, pair.to_b, &op, 0}, 0};
  fi_op_tagged tsend{a().ep(), {&from, nullptr, 1, pair.to_b, 3, 0, &op, 0}, FI_COMPLETION};
  fi_op_msg recv{a().ep(), {&to, nullptr, 1, FI_ADDR_UNSPEC, &op, 0}, 0};
  fi_op_tagged trecv{a().ep(), {&tagged_to, nullptr, 1, FI_ADDR_UNSPEC, 4, 0, &op, 0}, 0};
  fi_deferred_work works[4] = {work_at(1, FI_OP_SEND), work_at(2, FI_OP_TSEND),
                               work_at(1, FI_OP_RECV), work_at(1, FI_OP_TRECV)};
  works[0].op.msg = &send;
  works[1].op.tagged = &tsend;
  works[2].op.msg = &recv;
  works[3].op.tagged = &trecv;
  for (auto& w : works) ASSERT_EQ(control(FI_QUEUE_WORK, &w), 0);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(received(1), "s");
  EXPECT_TRUE(comes_to(done.get(), 1));
  EXPECT_TRUE(a().quiet());
  ASSERT_EQ(b().post(fi_inject, "r", size_t{1}, pair.to_a), 0);
  ASSERT_EQ(b().post(fi_tinject, "t", size_t{1}, pair.to_a, uint64_t{4}), 0);
  EXPECT_TRUE(comes_to(done.get(), 3));
  EXPECT_EQ(in, 'r');
  EXPECT_EQ(tagged_in, 't');
  EXPECT_TRUE(a().quiet());
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(a().wait(&op).err, 0) << "FI_COMPLETION asks for an entry";
  EXPECT_TRUE(comes_to(done.get(), 4));
}

TEST_F(Deferred, counters_are_set_and_added_to_without_any_call_in_between) {
  const Fid<fid_cntr> other = open_counter(a().domain());
  fi_op_cntr set{done.get(), 5}, add{other.get(), 2};
  fi_deferred_work first = work_at(1, FI_OP_CNTR_SET), second = work_at(5, FI_OP_CNTR_ADD);
  first.op.cntr = &set;
  second.op.cntr = &add;
  EXPECT_EQ(control(FI_QUEUE_WORK, &first), -FI_EINVAL) << "completion_cntr must be NULL";
  first.completion_cntr = second.completion_cntr = nullptr;
  second.triggering_cntr = done.get();
  ASSERT_EQ(control(FI_QUEUE_WORK, &first), 0);
  ASSERT_EQ(control(FI_QUEUE_WORK, &second), 0);
  ASSERT_EQ(fi_cntr_adderr(counter.get(), 1), 0) << "errors count for deferred work";
  EXPECT_TRUE(comes_to(other.get(), 2));
  EXPECT_EQ(fi_cntr_read(done.get()), 5u);
}

TEST_F(Deferred, cancelled_and_flushed_work_never_starts) {
  char out = 'f';
  iovec from{&out, 1};
  Op op;
  fi_op_msg send{a().ep(), {&from, nullptr, 1, pair.to_b, &op, 0}, 0};
  fi_deferred_work works[3] = {work_at(1, FI_OP_SEND), work_at(1, FI_OP_SEND),
                               work_at(1, FI_OP_SEND)};
  works[2].triggering_cntr = done.get();
  for (auto& w : works) {
    w.op.msg = &send;
    ASSERT_EQ(control(FI_QUEUE_WORK, &w), 0);
  }
  EXPECT_EQ(fi_close(&done->fid), -FI_EBUSY) << "it completes in it";
  EXPECT_EQ(control(FI_CANCEL_WORK, &works[0]), 0);
  EXPECT_EQ(control(FI_CANCEL_WORK, &works[0]), -FI_ENOENT);
  EXPECT_EQ(control(FI_CANCEL_WORK, nullptr), -FI_EINVAL);
  fi_deferred_work of{};
  of.triggering_cntr = done.get();
  EXPECT_EQ(control(FI_FLUSH_WORK, &of), 0);
  EXPECT_EQ(control(FI_CANCEL_WORK, &works[2]), -FI_ENOENT) << "flushed by its counter";
  EXPECT_EQ(control(FI_FLUSH_WORK, nullptr), 0);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  ASSERT_EQ(fi_cntr_add(done.get(), 1), 0);
  EXPECT_TRUE(b().quiet());
  EXPECT_EQ(fi_cntr_read(done.get()), 1u);
}

TEST_F(Deferred, what_cannot_be_done_is_refused_when_it_is_queued) {
  Op op;
  char out = 'x';
  iovec from{&out, 1};
  fi_op_msg send{a().ep(), {&from, nullptr, 1, pair.to_b, &op, 0}, 0};
  fi_deferred_work w = work_at(1, FI_OP_SEND);
  EXPECT_EQ(control(FI_QUEUE_WORK, nullptr), -FI_EINVAL);
  EXPECT_EQ(control(FI_QUEUE_WORK, &w), -FI_EINVAL) << "no operation";
  w.op.msg = &send;
  w.op_type = no_such_value<fi_op_type>(99);
  EXPECT_EQ(control(FI_QUEUE_WORK, &w), -FI_ENOSYS);
  w.op_type = FI_OP_SEND;
  w.triggering_cntr = nullptr;
  EXPECT_EQ(control(FI_QUEUE_WORK, &w), -FI_EINVAL);
  w.triggering_cntr = counter.get();
  send.ep = b().ep();
  EXPECT_EQ(control(FI_QUEUE_WORK, &w), -FI_EDOMAIN);
  send.ep = a().ep();
  send.msg.iov_count = 99;
  EXPECT_EQ(control(FI_QUEUE_WORK, &w), -FI_EINVAL);
  send.msg.iov_count = 1;
  w.op_type = FI_OP_RECV;
  send.flags = FI_MULTI_RECV;
  EXPECT_LT(control(FI_QUEUE_WORK, &w), 0);
  EXPECT_EQ(control(FI_FLUSH_WORK, nullptr), 0) << "nothing was queued";
  EXPECT_EQ(fi_close(&counter.release()->fid), 0);
}

TEST_F(Deferred, an_operation_that_fails_counts_as_an_error_and_says_why) {
  uint64_t value = 1;
  Op op;
  iovec from{&value, sizeof value};
  fi_rma_iov range{0, sizeof value, 424242};
  fi_op_rma write{a().ep(), {&from, nullptr, 1, pair.to_b, &range, 1, &op, 0}, 0};
  fi_deferred_work w = work_at(1, FI_OP_WRITE);
  w.op.rma = &write;
  ASSERT_EQ(control(FI_QUEUE_WORK, &w), 0);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_TRUE(pump_until([&] { return fi_cntr_readerr(done.get()) == 1; }, 5000));
  EXPECT_EQ(fi_cntr_read(done.get()), 0u);
  EXPECT_EQ(a().wait(&op).err, FI_EACCES);
}

TEST_F(Deferred, a_started_receive_can_be_cancelled_by_its_context) {
  char in = 0;
  Op op;
  iovec to{&in, 1};
  fi_op_msg recv{a().ep(), {&to, nullptr, 1, FI_ADDR_UNSPEC, &op, 0}, 0};
  fi_deferred_work w = work_at(0, FI_OP_RECV);
  w.op.msg = &recv;
  ASSERT_EQ(control(FI_QUEUE_WORK, &w), 0);
  EXPECT_EQ(control(FI_CANCEL_WORK, &w), -FI_ENOENT) << "it was started at once";
  EXPECT_EQ(fi_cancel(&a().ep()->fid, &op), 0);
  EXPECT_EQ(a().wait(&op).err, FI_ECANCELED);
  EXPECT_EQ(fi_cntr_readerr(done.get()), 1u);
}

TEST_F(Deferred, more_than_there_is_room_for_starts_in_order_all_the_same) {
  constexpr size_t kMany = 5000;  // beyond any queue of the endpoint's, to a peer that reads late
  std::vector<uint32_t> numbers(kMany);
  std::vector<iovec> iovs(kMany);
  std::vector<fi_op_msg> ops(kMany);
  std::vector<fi_deferred_work> works(kMany);
  Op op;
  for (uint32_t i = 0; i < kMany; ++i) {
    numbers[i] = i;
    iovs[i] = {&numbers[i], sizeof numbers[i]};
    ops[i] = {a().ep(), {&iovs[i], nullptr, 1, pair.to_b, &op, 0}, 0};
    works[i] = work_at(1, FI_OP_SEND);
    works[i].op.msg = &ops[i];
    ASSERT_EQ(control(FI_QUEUE_WORK, &works[i]), 0);
  }
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  for (uint32_t i = 0; i < kMany; ++i) {
    uint32_t got = ~i;
    Op receive;
    ASSERT_EQ(
        b().post(fi_recv, &got, sizeof got, static_cast<void*>(nullptr), FI_ADDR_UNSPEC, &receive),
        0);
    ASSERT_EQ(b().wait(&receive).err, 0);
    ASSERT_EQ(got, i);
  }
  EXPECT_TRUE(comes_to(done.get(), kMany));
}

// Automatic progress: a receive of a's completes, and the answer leaves without any call of a's.
TEST(DeferredProgress, work_starts_under_automatic_progress_without_a_call) {
  Options o = with_trigger(FI_MSG | FI_TRIGGER);
  o.progress = FI_PROGRESS_AUTO;
  o.counters = true;
  char answer = 'A', in = 0, asked = 0;  // until the endpoints have ended
  NodePair pair(o);
  Op dummy;
  pair.pass("warm");  // the two know each other
  const uint64_t before = fi_cntr_read(pair.b.rx_cntr());
  iovec from{&answer, 1};
  fi_op_msg send{pair.b.ep(), {&from, nullptr, 1, pair.to_a, &dummy, 0}, 0};
  fi_deferred_work w{};
  w.threshold = before + 1;
  w.triggering_cntr = pair.b.rx_cntr();
  w.op_type = FI_OP_SEND;
  w.op.msg = &send;
  ASSERT_EQ(fi_control(&pair.b.domain()->fid, FI_QUEUE_WORK, &w), 0);
  Op recv_b, recv_a;
  ASSERT_EQ(fi_recv(pair.b.ep(), &asked, 1, nullptr, FI_ADDR_UNSPEC, &recv_b), 0);
  ASSERT_EQ(fi_recv(pair.a.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &recv_a), 0);
  ASSERT_EQ(fi_inject(pair.a.ep(), "Q", 1, pair.to_b), 0);
  const int64_t until = now_ns() + 10'000'000'000;
  while (__atomic_load_n(&in, __ATOMIC_ACQUIRE) == 0 && now_ns() < until) pair.a.poll();
  EXPECT_EQ(in, 'A') << "b has made no call meanwhile";
}

}  // namespace
}  // namespace aperture::doors
