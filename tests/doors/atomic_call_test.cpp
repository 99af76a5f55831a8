// The calls of fi_atomic(3) by themselves: what the valid calls and fi_query_atomic say, arguments
// that are refused, counters, completions that were not asked for, and who may do what by its caps.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>

#include "doors/atomic_reference.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

constexpr int kTypes = kUint128 + 1;
constexpr int kOps = kMswap + 1;

Options options_for(int mr_mode, uint64_t caps = FI_MSG | FI_RMA | FI_ATOMIC) {
  return {.caps = caps, .mr_mode = mr_mode};
}

int ask_valid(fid_ep* ep, int kind, int type, int op, size_t* count) {
  const auto t = no_such_value<fi_datatype>(type);
  const auto o = no_such_value<fi_op>(op);
  return kind == kBase    ? fi_atomicvalid(ep, t, o, count)
         : kind == kFetch ? fi_fetch_atomicvalid(ep, t, o, count)
                          : fi_compare_atomicvalid(ep, t, o, count);
}
constexpr uint64_t kQueryFlags[] = {0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC};

class AtomicCall : public testing::TestWithParam<int> {
 protected:
  uint64_t at(size_t offset) { return region.remote().base + offset; }
  uint64_t key() { return region.remote().key; }
  uint64_t& word(size_t n = 0) { return reinterpret_cast<uint64_t*>(region.memory().data())[n]; }
  // Of one element at the start of the region, which is zero.
  ssize_t base(int type, int what) {
    return fi_atomic(p.a.ep(), &one, 1, nullptr, p.to_b, at(0), key(),
                     no_such_value<fi_datatype>(type), no_such_value<fi_op>(what), &op);
  }

  NodePair p{options_for(GetParam())};
  Region region{p.b, 4096, kAllAccess, 0};
  uint64_t one = 1;
  Op op;
};
INSTANTIATE_TEST_SUITE_P(Modes, AtomicCall, testing::Values(0, kBasicMr), kByMrMode);

TEST_P(AtomicCall, valid_and_query_agree_with_the_page) {
  for (int kind = 0; kind < kRefKinds; ++kind) {
    for (int type = 0; type < kTypes; ++type) {
      for (int op_number = 0; op_number < kOps; ++op_number) {
        size_t count = 999;
        fi_atomic_attr attr{999, 999};
        const int valid = ask_valid(p.a.ep(), kind, type, op_number, &count);
        const int query =
            fi_query_atomic(p.a.domain(), no_such_value<fi_datatype>(type),
                            no_such_value<fi_op>(op_number), &attr, kQueryFlags[kind]);
        SCOPED_TRACE(std::to_string(kind) + " " + std::to_string(type) + " " +
                     std::to_string(op_number));
        if (ref_offered(kind, op_number, type)) {
          ASSERT_EQ(valid, 0);
          ASSERT_EQ(query, 0);
          ASSERT_GE(count, 1u);
          ASSERT_EQ(attr.count, count);
          ASSERT_EQ(attr.size, ref_size(type));
        } else {
          ASSERT_EQ(valid, -FI_EOPNOTSUPP);
          ASSERT_EQ(query, -FI_EOPNOTSUPP);
          ASSERT_EQ(count, 999u) << "written although refused";
          ASSERT_EQ(attr.count, 999u);
        }
      }
    }
  }
}

TEST_P(AtomicCall, numbers_that_name_nothing_are_refused) {
  size_t count = 0;
  fi_atomic_attr attr{};
  for (const int nonsense : {-1, int{kRefTypes}, int{FI_VOID}, 1 << 30}) {
    EXPECT_EQ(ask_valid(p.a.ep(), kBase, nonsense, FI_SUM, &count), -FI_EOPNOTSUPP);
    EXPECT_EQ(ask_valid(p.a.ep(), kBase, FI_UINT64, nonsense, &count), -FI_EOPNOTSUPP);
    EXPECT_EQ(base(nonsense, FI_SUM), -FI_EOPNOTSUPP);
    EXPECT_EQ(base(FI_UINT64, nonsense), -FI_EOPNOTSUPP);
  }
  // FI_DIFF and the short floating-point types are of API 2.0: here their numbers end the list
  EXPECT_EQ(ask_valid(p.a.ep(), kBase, FI_UINT64, kDiff, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(ask_valid(p.a.ep(), kBase, kFloat16, FI_SUM, &count), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomicvalid(p.a.ep(), FI_UINT64, FI_SUM, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_query_atomic(p.a.domain(), FI_UINT64, FI_SUM, nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(
      fi_query_atomic(p.a.domain(), FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC),
      -FI_EINVAL);
  EXPECT_EQ(fi_query_atomic(p.a.domain(), FI_UINT64, FI_SUM, &attr, FI_TAGGED), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_query_atomic(p.a.domain(), FI_UINT64, FI_SUM, &attr, FI_MULTICAST), -FI_EBADFLAGS);
}

TEST_P(AtomicCall, the_wrong_kind_of_call_for_an_operation_is_refused) {
  uint64_t result = 0;
  EXPECT_EQ(base(FI_UINT64, FI_CSWAP), -FI_EOPNOTSUPP);
  EXPECT_EQ(base(FI_UINT64, FI_ATOMIC_READ), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_fetch_atomic(p.a.ep(), &one, 1, nullptr, &result, nullptr, p.to_b, at(0), key(),
                            FI_UINT64, FI_MSWAP, &op),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_compare_atomic(p.a.ep(), &one, 1, nullptr, &one, nullptr, &result, nullptr, p.to_b,
                              at(0), key(), FI_UINT64, FI_SUM, &op),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(base(FI_DOUBLE, FI_BOR), -FI_EOPNOTSUPP) << "bits of a floating-point number";
  EXPECT_EQ(word(), 0u);
}

TEST_P(AtomicCall, vectors_are_taken_element_by_element) {
  uint64_t operand[4] = {1, 2, 3, 4}, compare[4] = {1, 0, 3, 0}, result[4] = {};
  fi_ioc from[2] = {{operand, 3}, {operand + 3, 1}};
  ASSERT_EQ(p.a.run(fi_atomicv, from, nullptr, 2, p.to_b, at(64), key(), FI_UINT64, FI_SUM), 0);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(word(8 + i), operand[i]);
  fi_ioc to[2] = {{result + 2, 2}, {result, 2}};
  ASSERT_EQ(p.a.run(fi_fetch_atomicv, from, nullptr, 2, to, nullptr, 2, p.to_b, at(64), key(),
                    FI_UINT64, FI_PROD),
            0);
  EXPECT_EQ(result[2], 1u);
  EXPECT_EQ(result[1], 4u);
  EXPECT_EQ(word(11), 16u);
  // an FI_ATOMIC_READ has no operand
  ASSERT_EQ(p.a.run(fi_fetch_atomicv, nullptr, nullptr, 0, to, nullptr, 2, p.to_b, at(64), key(),
                    FI_UINT64, FI_ATOMIC_READ),
            0);
  EXPECT_EQ(result[1], 16u);
  fi_ioc against[2] = {{compare, 2}, {compare + 2, 2}};
  ASSERT_EQ(p.a.post(fi_compare_atomicv, from, nullptr, 2, against, nullptr, 2, to, nullptr, 2,
                     p.to_b, at(64), key(), FI_UINT64, FI_CSWAP, &op),
            0);
  const Completion c = p.a.wait(&op);
  ASSERT_EQ(c.err, 0);
  EXPECT_EQ(c.flags, FI_ATOMIC | FI_READ);
  EXPECT_EQ(word(8), 1u) << "1 was there: swapped for 1";
  EXPECT_EQ(word(9), 4u) << "not 0: left";
  EXPECT_TRUE(region.memory().intact());
}

TEST_P(AtomicCall, shapes_that_do_not_fit_together_are_refused) {
  uint64_t b[16] = {};
  fi_ioc short_run[1] = {{b, 1}}, long_run[1] = {{b, 2}}, no_run[1] = {{nullptr, 1}};
  std::vector<fi_ioc> many(p.a.info()->tx_attr->iov_limit + 1, fi_ioc{b, 1});
  const auto fetchv = [&](const fi_ioc* from, size_t n, fi_ioc* to, size_t results) {
    return fi_fetch_atomicv(p.a.ep(), from, nullptr, n, to, nullptr, results, p.to_b, at(0), key(),
                            FI_UINT64, FI_SUM, &op);
  };
  EXPECT_EQ(fetchv(short_run, 1, long_run, 1), -FI_EINVAL) << "a result that is too long";
  EXPECT_EQ(fetchv(long_run, 1, short_run, 1), -FI_EINVAL) << "a result that is too short";
  EXPECT_EQ(fetchv(no_run, 1, short_run, 1), -FI_EINVAL) << "no operand";
  EXPECT_EQ(fetchv(short_run, 1, no_run, 1), -FI_EINVAL) << "no result";
  EXPECT_EQ(fetchv(short_run, 1, nullptr, 1), -FI_EINVAL);
  EXPECT_EQ(fetchv(many.data(), many.size(), many.data(), many.size()), -FI_EINVAL) << "iov_limit";
  EXPECT_EQ(fi_compare_atomicv(p.a.ep(), short_run, nullptr, 1, long_run, nullptr, 1, short_run,
                               nullptr, 1, p.to_b, at(0), key(), FI_UINT64, FI_CSWAP, &op),
            -FI_EINVAL);
  fi_ioc huge[2] = {{b, SIZE_MAX}, {b, 2}};
  EXPECT_LT(fetchv(huge, 2, short_run, 1), 0) << "the sum wraps";
  fi_rma_ioc ranges[9];
  for (fi_rma_ioc& r : ranges) r = {at(0), 1, key()};
  fi_msg_atomic m{long_run, nullptr, 1, p.to_b, ranges, 1, FI_UINT64, FI_SUM, &op, 0};
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, 0), -FI_EINVAL) << "remote and local counts differ";
  m.rma_iov_count = 0;
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, 0), -FI_EINVAL);
  m.rma_iov_count = 9;
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, 0), -FI_EINVAL) << "rma_iov_limit";
  m.rma_iov_count = 2;
  ranges[1].count = 0;
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, 0), -FI_EINVAL) << "an empty range";
  m.rma_iov = nullptr;
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, 0), -FI_EINVAL);
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), nullptr, 0), -FI_EINVAL);
  EXPECT_TRUE(p.a.quiet(2));
  EXPECT_EQ(word(), 0u);
}

TEST_P(AtomicCall, flags_that_the_page_does_not_have) {
  fi_ioc from{&one, 1};
  fi_rma_ioc range{at(0), 1, key()};
  fi_msg_atomic m{&from, nullptr, 1, p.to_b, &range, 1, FI_UINT64, FI_SUM, &op, 0};
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, FI_REMOTE_CQ_DATA), -FI_EBADFLAGS);
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, FI_PEEK), -FI_EBADFLAGS);
  EXPECT_EQ(fi_atomicmsg(p.a.ep(), &m, FI_TAGGED), -FI_EOPNOTSUPP);
  ASSERT_EQ(p.a.run_message(fi_atomicmsg, &m, FI_MORE | FI_COMPLETION), 0);
  EXPECT_EQ(word(), 1u);
}

TEST(AtomicCaps, counters_count_fetches_as_reads_and_the_others_as_writes) {
  Options o = options_for(0);
  NodePair p(o);
  Region region(p.b, 64, kAllAccess, 0);
  Node counting(o);
  const Fid<fid_cntr> read_owner = open_counter(counting.domain());
  const Fid<fid_cntr> write_owner = open_counter(counting.domain());
  fid_cntr *reads = read_owner.get(), *writes = write_owner.get();
  Options unopened = o;
  unopened.enable = false;
  Node node(unopened, counting);
  DOOR(fi_ep_bind(node.ep(), &reads->fid, FI_READ));
  DOOR(fi_ep_bind(node.ep(), &writes->fid, FI_WRITE));
  DOOR(fi_enable(node.ep()));
  const fi_addr_t to = node.insert(p.b.name());
  uint64_t one = 1, result = 0;
  const uint64_t key = region.remote().key;
  ASSERT_EQ(node.run(fi_atomic, &one, 1, nullptr, to, 0, key, FI_UINT64, FI_SUM), 0);
  EXPECT_EQ(fi_cntr_read(writes), 1u);
  EXPECT_EQ(fi_cntr_read(reads), 0u);
  ASSERT_EQ(
      node.run(fi_fetch_atomic, &one, 1, nullptr, &result, nullptr, to, 0, key, FI_UINT64, FI_SUM),
      0);
  ASSERT_EQ(node.run(fi_compare_atomic, &one, 1, nullptr, &one, nullptr, &result, nullptr, to, 0,
                     key, FI_UINT64, FI_CSWAP),
            0);
  EXPECT_EQ(fi_cntr_read(writes), 1u);
  EXPECT_EQ(fi_cntr_read(reads), 2u);
  ASSERT_EQ(node.run(fi_atomic, &one, 1, nullptr, to, 1, key, FI_UINT64, FI_SUM), FI_EACCES)
      << "misaligned";
  EXPECT_EQ(fi_cntr_readerr(writes), 1u);
}

TEST(AtomicCaps, completions_only_where_asked_for) {
  Options o = options_for(0);
  o.cq_flags = FI_SELECTIVE_COMPLETION;
  NodePair p(o);
  Region region(p.b, 64, kAllAccess, 0);
  uint64_t one = 1, result = 0;
  Op op;
  ASSERT_EQ(
      p.a.post(fi_atomic, &one, 1, nullptr, p.to_b, 0, region.remote().key, FI_UINT64, FI_SUM, &op),
      0);
  fi_ioc from{&one, 1}, to{&result, 1};
  fi_rma_ioc range{0, 1, region.remote().key};
  fi_msg_atomic m{&from, nullptr, 1, p.to_b, &range, 1, FI_UINT64, FI_SUM, &op, 0};
  ASSERT_EQ(p.a.run_message(fi_fetch_atomicmsg, &m, &to, nullptr, 1, FI_COMPLETION), 0);
  EXPECT_EQ(result, 1u);
  EXPECT_TRUE(p.a.quiet(2));
  // errors are told always
  range.key ^= 12345;
  ASSERT_EQ(p.a.run_message(fi_atomicmsg, &m, 0), FI_EACCES);
}

TEST(AtomicCaps, what_was_not_asked_for_is_refused) {
  uint64_t one = 1, result = 0;
  size_t count = 0;
  Op op;
  Node without(options_for(0, FI_MSG | FI_RMA));
  fi_addr_t self = without.insert(without.name());
  EXPECT_EQ(fi_atomic(without.ep(), &one, 1, nullptr, self, 0, 1, FI_UINT64, FI_SUM, &op),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_atomicvalid(without.ep(), FI_UINT64, FI_SUM, &count), -FI_EOPNOTSUPP);
  Node writer(options_for(0, FI_ATOMIC | FI_WRITE | FI_REMOTE_WRITE));
  self = writer.insert(writer.name());
  Region region(writer, 64, kAllAccess, 0);
  const uint64_t key = region.remote().key;
  EXPECT_EQ(fi_fetch_atomic(writer.ep(), &one, 1, nullptr, &result, nullptr, self, 0, key,
                            FI_UINT64, FI_SUM, &op),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_write(writer.ep(), &one, 8, nullptr, self, 0, key, &op), -FI_EOPNOTSUPP)
      << "FI_RMA was not asked for";
  ASSERT_EQ(writer.run(fi_atomic, &one, 1, nullptr, self, 0, key, FI_UINT64, FI_SUM), 0);
  Node reader(options_for(0, FI_ATOMIC | FI_READ | FI_REMOTE_READ));
  self = reader.insert(reader.name());
  Region readable(reader, 64);
  EXPECT_EQ(fi_atomic(reader.ep(), &one, 1, nullptr, self, 0, readable.remote().key, FI_UINT64,
                      FI_SUM, &op),
            -FI_EOPNOTSUPP);
  ASSERT_EQ(reader.run(fi_fetch_atomic, nullptr, 1, nullptr, &result, nullptr, self, 0,
                       readable.remote().key, FI_UINT64, FI_ATOMIC_READ),
            0);
  Options closed = options_for(0);
  closed.enable = false;
  Node not_enabled(closed);
  EXPECT_EQ(fi_atomic(not_enabled.ep(), &one, 1, nullptr, 0, 0, 1, FI_UINT64, FI_SUM, &op),
            -FI_EOPBADSTATE);
  EXPECT_EQ(fi_atomicvalid(not_enabled.ep(), FI_UINT64, FI_SUM, &count), 0);
}

TEST(AtomicCaps, an_atomic_may_be_the_first_that_a_peer_hears) {
  for (int round = 0; round < 5; ++round) {
    NodePair p(options_for(0));
    Region region(p.b, 8192, kAllAccess, 0);
    std::vector<uint64_t> ones(1000, 1), results(1000, 7);
    uint64_t injected = 1;
    const uint64_t key = region.remote().key;
    ASSERT_EQ(p.a.post(fi_inject_atomic, &injected, 1, p.to_b, 0, key, FI_UINT64, FI_SUM), 0);
    injected = 1000;
    ASSERT_EQ(p.a.run(fi_fetch_atomic, ones.data(), 1000, nullptr, results.data(), nullptr, p.to_b,
                      0, key, FI_UINT64, FI_SUM),
              0);
    EXPECT_EQ(results[0], 1u);
    EXPECT_EQ(results[999], 0u);
  }
}

// What Open MPI's btl/ofi asks for.
TEST(AtomicCaps, the_hints_of_one_sided_open_mpi_are_met) {
  const Info hints(fi_allocinfo());
  hints->caps = FI_RMA | FI_ATOMIC;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = strdup(provider_name());
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->threading = FI_THREAD_COMPLETION;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  fi_info* list = nullptr;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 5), nullptr, nullptr, 0, hints.get(), &list), 0);
  const Info answer(list);
  EXPECT_EQ(list->caps & (FI_RMA | FI_ATOMIC), FI_RMA | FI_ATOMIC);
  EXPECT_EQ(list->caps & (FI_MSG | FI_TAGGED), 0u);
  EXPECT_EQ(list->domain_attr->mr_mode, 0) << "none of them is needed";
  EXPECT_EQ(list->tx_attr->op_flags, FI_DELIVERY_COMPLETE);
  EXPECT_GE(list->tx_attr->rma_iov_limit, 1u);
  const uint64_t order =
      FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
  EXPECT_EQ(list->tx_attr->msg_order & order, order);
}

}  // namespace
}  // namespace aperture::doors
