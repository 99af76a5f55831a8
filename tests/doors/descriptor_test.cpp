// Descriptors of local buffers, for each argument of each posting call that has one: taken when
// they are right, refused with the page's code and without effect when they are not. fi_mr(3),
// "FI_MR_LOCAL", "FI_MR_HMEM", access rights.
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <vector>

#include "doors/demand.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kLen = 8;
constexpr uint64_t kLocalAccess = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
constexpr uint64_t kTag = 5;

// One pair in which a is tried, and b helps.
struct Play {
  explicit Play(const Options& options)
      : p(options), good(p.a, 4096), helper(p.b, 4096), target(p.b, 64) {}
  void* spare(size_t at) { return good.memory().data() + at; }  // for the arguments not tried

  NodePair p;
  Region good;    // of a, with every right
  Region helper;  // of b
  Region target;  // of b
  Op op;
};

enum class Kind { send, tagged_send, recv, tagged_recv, multi_recv, one_sided };

// One argument of one call: `buf` of kLen bytes with `desc`, everything else is right.
struct Argument {
  const char* name;
  Kind kind;
  uint64_t right;
  std::function<ssize_t(Play&, void* buf, void* desc)> call;
};

iovec piece(void* buf) {
  return {buf, kLen};
}
fi_ioc element(void* buf) {
  return {buf, 1};
}

using Post = std::function<ssize_t(Play&, void* buf, void* desc)>;

// What stands behind buffers and descriptors in a call.
fi_addr_t to_b(Play& y) {
  return y.p.to_b;
}
uint64_t base(Play& y) {
  return y.target.remote().base;
}
uint64_t key(Play& y) {
  return y.target.remote().key;
}
template <uint64_t Value>
uint64_t value(Play&) {
  return Value;
}
constexpr auto kAnybody = value<FI_ADDR_UNSPEC>, kTagged = value<kTag>, kNoMask = value<0>,
               kData = value<1>;

// A call that takes the buffer itself, and then `more`.
template <typename Call, typename... More>
Post plain(Call call, More... more) {
  return [=](Play& y, void* buf, void* desc) {
    return call(y.p.a.ep(), buf, kLen, desc, more(y)..., &y.op);
  };
}

// A call that takes a list: the buffer alone, or behind or before another.
enum class Place { alone, second, first };
template <typename Call, typename... More>
Post listed(Place place, Call call, More... more) {
  return [=](Play& y, void* buf, void* desc) {
    iovec iov[2] = {piece(buf), piece(y.spare(0))};
    void* descs[2] = {desc, y.good.desc()};
    if (place == Place::second) std::swap(iov[0], iov[1]), std::swap(descs[0], descs[1]);
    const size_t count = place == Place::alone ? 1 : 2;
    return call(y.p.a.ep(), iov, descs, count, more(y)..., &y.op);
  };
}

Post with_message(decltype(fi_sendmsg)* call, fi_addr_t (*peer)(Play&), uint64_t flags) {
  return [=](Play& y, void* buf, void* desc) {
    const iovec iov = piece(buf);
    const fi_msg msg{&iov, &desc, 1, peer(y), &y.op, 0};
    return call(y.p.a.ep(), &msg, flags | FI_COMPLETION);
  };
}
Post with_tagged_message(decltype(fi_tsendmsg)* call, fi_addr_t (*peer)(Play&)) {
  return [=](Play& y, void* buf, void* desc) {
    const iovec iov = piece(buf);
    const fi_msg_tagged msg{&iov, &desc, 1, peer(y), kTag, 0, &y.op, 0};
    return call(y.p.a.ep(), &msg, FI_COMPLETION);
  };
}
Post with_rma_message(decltype(fi_readmsg)* call) {
  return [=](Play& y, void* buf, void* desc) {
    const iovec iov = piece(buf);
    const fi_rma_iov range{base(y), kLen, key(y)};
    const fi_msg_rma msg{&iov, &desc, 1, y.p.to_b, &range, 1, &y.op, 0};
    return call(y.p.a.ep(), &msg, FI_COMPLETION);
  };
}

std::vector<Argument> rma_arguments() {
  return {
      {"read", Kind::one_sided, FI_READ, plain(fi_read, to_b, base, key)},
      {"readv", Kind::one_sided, FI_READ, listed(Place::second, fi_readv, to_b, base, key)},
      {"readmsg", Kind::one_sided, FI_READ, with_rma_message(fi_readmsg)},
      {"write", Kind::one_sided, FI_WRITE, plain(fi_write, to_b, base, key)},
      {"writev", Kind::one_sided, FI_WRITE, listed(Place::alone, fi_writev, to_b, base, key)},
      {"writemsg", Kind::one_sided, FI_WRITE, with_rma_message(fi_writemsg)},
      {"writedata", Kind::one_sided, FI_WRITE, plain(fi_writedata, kData, to_b, base, key)},
  };
}

std::vector<Argument> message_arguments() {
  return {
      {"send", Kind::send, FI_SEND, plain(fi_send, to_b)},
      {"sendv", Kind::send, FI_SEND, listed(Place::second, fi_sendv, to_b)},
      {"sendmsg", Kind::send, FI_SEND, with_message(fi_sendmsg, to_b, 0)},
      {"senddata", Kind::send, FI_SEND, plain(fi_senddata, kData, to_b)},
      {"tsend", Kind::tagged_send, FI_SEND, plain(fi_tsend, to_b, kTagged)},
      {"tsendv", Kind::tagged_send, FI_SEND, listed(Place::alone, fi_tsendv, to_b, kTagged)},
      {"tsendmsg", Kind::tagged_send, FI_SEND, with_tagged_message(fi_tsendmsg, to_b)},
      {"tsenddata", Kind::tagged_send, FI_SEND, plain(fi_tsenddata, kData, to_b, kTagged)},
      {"recv", Kind::recv, FI_RECV, plain(fi_recv, kAnybody)},
      {"recvv", Kind::recv, FI_RECV, listed(Place::first, fi_recvv, kAnybody)},
      {"recvmsg", Kind::recv, FI_RECV, with_message(fi_recvmsg, kAnybody, 0)},
      {"multi_recv", Kind::multi_recv, FI_RECV, with_message(fi_recvmsg, kAnybody, FI_MULTI_RECV)},
      {"trecv", Kind::tagged_recv, FI_RECV, plain(fi_trecv, kAnybody, kTagged, kNoMask)},
      {"trecvv", Kind::tagged_recv, FI_RECV,
       listed(Place::alone, fi_trecvv, kAnybody, kTagged, kNoMask)},
      {"trecvmsg", Kind::tagged_recv, FI_RECV, with_tagged_message(fi_trecvmsg, kAnybody)},
  };
}

// The arguments of one atomic: the one that is tried, and right ones for the others.
struct Operands {
  Operands(Play& y, const char* which, void* buf, void* d) : play(y), tried(which) {
    for (size_t i = 0; i < 3; ++i) {
      const bool is_tried = kNames[i] == tried;
      ioc[i] = element(is_tried ? buf : y.spare(64 * (i + 1)));
      desc[i] = is_tried ? d : y.good.desc();
    }
  }
  static constexpr const char* kOperand = "operand";
  static constexpr const char* kResult = "result";
  static constexpr const char* kCompare = "compare";
  static constexpr const char* kNames[3] = {kOperand, kResult, kCompare};
  Play& play;
  const char* tried;
  fi_ioc ioc[3];
  void* desc[3];
  void* buf(size_t i) const { return ioc[i].addr; }
  const Remote& remote() const { return play.target.remote(); }
  fi_rma_ioc range() const { return {remote().base, 1, remote().key}; }
};

ssize_t base_atomic(const Operands& o, int form) {
  Play& y = o.play;
  const Remote& r = o.remote();
  if (form == 0)
    return fi_atomic(y.p.a.ep(), o.buf(0), 1, o.desc[0], y.p.to_b, r.base, r.key, FI_UINT64, FI_SUM,
                     &y.op);
  auto* descs = const_cast<void**>(o.desc);
  if (form == 1)
    return fi_atomicv(y.p.a.ep(), o.ioc, descs, 1, y.p.to_b, r.base, r.key, FI_UINT64, FI_SUM,
                      &y.op);
  const fi_rma_ioc range = o.range();
  const fi_msg_atomic msg{o.ioc, descs, 1, y.p.to_b, &range, 1, FI_UINT64, FI_SUM, &y.op, 0};
  return fi_atomicmsg(y.p.a.ep(), &msg, FI_COMPLETION);
}

ssize_t fetch_atomic(Operands o, int form) {
  Play& y = o.play;
  const Remote& r = o.remote();
  if (form == 0)
    return fi_fetch_atomic(y.p.a.ep(), o.buf(0), 1, o.desc[0], o.buf(1), o.desc[1], y.p.to_b,
                           r.base, r.key, FI_UINT64, FI_SUM, &y.op);
  if (form == 1)
    return fi_fetch_atomicv(y.p.a.ep(), &o.ioc[0], &o.desc[0], 1, &o.ioc[1], &o.desc[1], 1,
                            y.p.to_b, r.base, r.key, FI_UINT64, FI_SUM, &y.op);
  const fi_rma_ioc range = o.range();
  const fi_msg_atomic msg{o.ioc, o.desc, 1, y.p.to_b, &range, 1, FI_UINT64, FI_SUM, &y.op, 0};
  return fi_fetch_atomicmsg(y.p.a.ep(), &msg, &o.ioc[1], &o.desc[1], 1, FI_COMPLETION);
}

ssize_t compare_atomic(Operands o, int form) {
  Play& y = o.play;
  const Remote& r = o.remote();
  if (form == 0)
    return fi_compare_atomic(y.p.a.ep(), o.buf(0), 1, o.desc[0], o.buf(2), o.desc[2], o.buf(1),
                             o.desc[1], y.p.to_b, r.base, r.key, FI_UINT64, FI_CSWAP, &y.op);
  if (form == 1)
    return fi_compare_atomicv(y.p.a.ep(), &o.ioc[0], &o.desc[0], 1, &o.ioc[2], &o.desc[2], 1,
                              &o.ioc[1], &o.desc[1], 1, y.p.to_b, r.base, r.key, FI_UINT64,
                              FI_CSWAP, &y.op);
  const fi_rma_ioc range = o.range();
  const fi_msg_atomic msg{o.ioc, o.desc, 1, y.p.to_b, &range, 1, FI_UINT64, FI_CSWAP, &y.op, 0};
  return fi_compare_atomicmsg(y.p.a.ep(), &msg, &o.ioc[2], &o.desc[2], 1, &o.ioc[1], &o.desc[1], 1,
                              FI_COMPLETION);
}

std::vector<Argument> atomic_arguments() {
  std::vector<Argument> all;
  static const char* const kForms[3][3] = {{"atomic", "atomicv", "atomicmsg"},
                                           {"fetch", "fetchv", "fetchmsg"},
                                           {"compare", "comparev", "comparemsg"}};
  for (int kind = 0; kind < 3; ++kind) {
    for (int form = 0; form < 3; ++form) {
      for (int i = 0; i <= kind; ++i) {
        const char* which = Operands::kNames[i];
        const uint64_t right = which == Operands::kResult ? FI_READ : FI_WRITE;
        all.push_back(
            {kForms[kind][form], Kind::one_sided, right, [=](Play& y, void* buf, void* desc) {
               const Operands o(y, which, buf, desc);
               return kind == 0   ? base_atomic(o, form)
                      : kind == 1 ? fetch_atomic(o, form)
                                  : compare_atomic(o, form);
             }});
      }
    }
  }
  return all;
}

std::vector<Argument> all_arguments() {
  std::vector<Argument> all = message_arguments();
  for (const auto& part : {rma_arguments(), atomic_arguments()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Options options_for(int mr_mode, uint64_t caps = 0) {
  return {.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV | caps,
          .mr_mode = mr_mode,
          .min_multi_recv = kLen};
}

// Posts with a descriptor that is to be taken, and sees the operation through.
void expect_taken(Play& y, const Argument& arg, void* buf, void* desc) {
  SCOPED_TRACE(arg.name);
  Op helper;
  uint8_t* at = y.helper.memory().data();
  fid_ep* ep = y.p.b.ep();
  if (arg.kind == Kind::send) {
    ASSERT_EQ(fi_recv(ep, at, 64, y.helper.desc(), FI_ADDR_UNSPEC, &helper), 0);
  }
  if (arg.kind == Kind::tagged_send) {
    ASSERT_EQ(fi_trecv(ep, at, 64, y.helper.desc(), FI_ADDR_UNSPEC, kTag, 0, &helper), 0);
  }
  ASSERT_EQ(post([&] { return arg.call(y, buf, desc); }), 0);
  if (arg.kind == Kind::recv || arg.kind == Kind::multi_recv) {
    ASSERT_EQ(post(fi_inject, ep, at, kLen, y.p.to_a), 0);
  }
  if (arg.kind == Kind::tagged_recv) {
    ASSERT_EQ(post(fi_tinject, ep, at, kLen, y.p.to_a, kTag), 0);
  }
  EXPECT_EQ(y.p.a.wait(&y.op).err, 0);
  if (arg.kind == Kind::send || arg.kind == Kind::tagged_send) {
    EXPECT_EQ(y.p.b.wait(&helper).err, 0);
  }
  // the release of the buffer, if it comes by itself
  if (arg.kind == Kind::multi_recv) pump_until([&] { return y.p.a.take(&y.op).has_value(); }, 50);
}

// Nothing that was refused has any effect.
void expect_nothing(Play& y) {
  EXPECT_TRUE(y.p.a.quiet(2));
  EXPECT_TRUE(y.p.b.quiet(2));
}

class Descriptors : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << "others do not demand them";
  }
};

// Every wrong descriptor that is not NULL.
void expect_wrong_ones_refused(Play& y, const Argument& arg) {
  SCOPED_TRACE(arg.name);
  const auto refused = [&](void* buf, void* desc) {
    EXPECT_EQ(arg.call(y, buf, desc), -FI_EACCES);
  };
  Region mine(y.p.a, kLen, kLocalAccess);
  void* buf = mine.memory().data();
  {
    SCOPED_TRACE("not this right");
    Region other(y.p.a, kLen, kLocalAccess & ~arg.right);
    refused(other.memory().data(), other.desc());
  }
  {
    SCOPED_TRACE("remote rights only");
    Region other(y.p.a, kLen, FI_REMOTE_READ | FI_REMOTE_WRITE);
    refused(other.memory().data(), other.desc());
  }
  {
    SCOPED_TRACE("not covered");
    Region small(y.p.a, kLen - 1, kLocalAccess);
    refused(small.memory().data(), small.desc());
    refused(small.memory().data() - 1, mine.desc());
    refused(static_cast<uint8_t*>(buf) + 1, mine.desc());
    refused(static_cast<uint8_t*>(buf) - 1, mine.desc());
    refused(y.spare(0), mine.desc());
  }
  {
    SCOPED_TRACE("of another domain");
    Fid<fid_mr> mr = registered(y.p.b.domain(), buf, kLen, kLocalAccess, 4711);
    refused(buf, fi_mr_desc(mr.get()));
    ASSERT_EQ(fi_close(&mr.release()->fid), 0);
  }
  {
    SCOPED_TRACE("made up");
    char here = 0;
    for (void* d : {static_cast<void*>(&here), buf, static_cast<void*>(mine.mr()),
                    reinterpret_cast<void*>(uint64_t{1}), reinterpret_cast<void*>(~uint64_t{0})}) {
      refused(buf, d);
    }
  }
  {
    SCOPED_TRACE("closed");
    void* stale = mine.desc();
    ASSERT_EQ(mine.close(), 0);
    refused(buf, stale);
    Region again(y.p.a, kLen, kLocalAccess);
    refused(again.memory().data(), stale);
  }
}

TEST_F(Descriptors, right_ones_are_taken_where_they_are_demanded) {
  Play y(options_for(FI_MR_LOCAL));
  for (const Argument& arg : all_arguments()) {
    Region exact(y.p.a, kLen, arg.right);
    expect_taken(y, arg, exact.memory().data(), exact.desc());
  }
}

TEST_F(Descriptors, none_is_refused_where_they_are_demanded) {
  Play y(options_for(FI_MR_LOCAL));
  for (const Argument& arg : all_arguments()) {
    SCOPED_TRACE(arg.name);
    EXPECT_EQ(arg.call(y, y.spare(0), nullptr), -FI_EINVAL);
  }
  expect_nothing(y);
}

TEST_F(Descriptors, wrong_ones_are_refused_where_they_are_demanded) {
  Play y(options_for(FI_MR_LOCAL));
  for (const Argument& arg : all_arguments()) expect_wrong_ones_refused(y, arg);
  expect_nothing(y);
  for (const Argument& arg : all_arguments()) expect_taken(y, arg, y.spare(0), y.good.desc());
}

TEST_F(Descriptors, zero_based_regions_describe_virtual_addresses) {
  Play scalable(options_for(FI_MR_LOCAL)), basic(options_for(FI_MR_LOCAL | kBasicMr));
  for (Play* y : {&scalable, &basic}) {
    for (const Argument& arg : rma_arguments()) expect_taken(*y, arg, y->spare(8), y->good.desc());
  }
}

TEST_F(Descriptors, with_fi_mr_hmem_alone_they_are_right_or_null) {
  Play y(options_for(FI_MR_HMEM, FI_HMEM));
  for (const Argument& arg : all_arguments()) {
    expect_taken(y, arg, y.spare(0), nullptr);
    expect_taken(y, arg, y.spare(0), y.good.desc());
    expect_wrong_ones_refused(y, arg);
  }
  EXPECT_TRUE(y.p.a.quiet(2));
}

TEST_F(Descriptors, are_not_looked_at_where_nothing_demands_them) {
  Play y(options_for(0));
  for (const Argument& arg : all_arguments()) {
    expect_taken(y, arg, y.spare(0), nullptr);
    expect_taken(y, arg, y.spare(0), reinterpret_cast<void*>(uint64_t{0x1234567}));
  }
}

// APERTURE_MR_MODE=local_cache: the provider has a registration of each buffer, or makes one.
TEST_F(Descriptors, are_made_by_the_provider_where_it_keeps_registrations) {
  const Demand cache("local_cache");
  Play y(options_for(0));
  constexpr size_t kPage = 4096;
  void* const gone = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ASSERT_EQ(::munmap(gone, kPage), 0);
  for (const Argument& arg : all_arguments()) {
    EXPECT_EQ(arg.call(y, gone, nullptr), -FI_EFAULT) << arg.name;
  }
  expect_nothing(y);
  for (const Argument& arg : all_arguments()) {
    expect_taken(y, arg, y.spare(0), nullptr);
    expect_taken(y, arg, y.spare(0), reinterpret_cast<void*>(uint64_t{0x1234567}));
  }
}

TEST_F(Descriptors, the_old_mode_bit_demands_them_too) {
  Options o = options_for(0);
  o.mode |= uint64_t{1} << 55;  // FI_LOCAL_MR
  o.demanded_mr_mode = FI_MR_LOCAL;
  Play y(o);
  EXPECT_NE(y.p.a.info()->mode & uint64_t{1} << 55, 0u);
  for (const Argument& arg : all_arguments()) {
    SCOPED_TRACE(arg.name);
    EXPECT_EQ(arg.call(y, y.spare(0), nullptr), -FI_EINVAL);
    expect_taken(y, arg, y.spare(0), y.good.desc());
  }
}

// Authorization keys keep peers apart, not an endpoint from memory of its own domain.
TEST_F(Descriptors, of_any_authorization_key_of_the_domain_are_taken) {
  Options o = options_for(FI_MR_LOCAL);
  std::strcpy(o.ep_key, "of the endpoint");
  NodePair p(o);
  Region other(p.b, 64);
  for (const char* key : {"", "of the endpoint", "of the region"}) {
    SCOPED_TRACE(key);
    uint64_t word = 1;
    const iovec iov{&word, sizeof word};
    fi_mr_attr attr{.mr_iov = &iov,
                    .iov_count = 1,
                    .access = FI_SEND,
                    .requested_key = 1,
                    .auth_key_size = std::strlen(key)};
    std::string bytes(key);
    attr.auth_key = reinterpret_cast<uint8_t*>(bytes.data());
    fid_mr* mr = nullptr;
    ASSERT_EQ(fi_mr_regattr(p.a.domain(), &attr, 0, &mr), 0);
    Op op;
    EXPECT_EQ(p.a.run(fi_send, &word, kLen, fi_mr_desc(mr), p.to_b), 0);
    EXPECT_EQ(fi_send(p.a.ep(), &word, kLen, other.desc(), p.to_b, &op), -FI_EACCES);
    EXPECT_EQ(fi_close(&mr->fid), 0);
  }
}

TEST_F(Descriptors, empty_buffers_need_none) {
  Play y(options_for(FI_MR_LOCAL));
  Op ops[3];
  fid_ep* ep = y.p.a.ep();
  const Remote& r = y.target.remote();
  ASSERT_EQ(fi_recv(ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, &ops[0]), 0);
  ASSERT_EQ(y.p.b.post(fi_inject, nullptr, 0, y.p.to_a), 0);
  EXPECT_EQ(y.p.a.wait(&ops[0]).err, 0);
  ASSERT_EQ(y.p.a.run_at(ep, fi_tsend, nullptr, 0, nullptr, y.p.to_b, 1), 0);
  ASSERT_EQ(y.p.a.run_at(ep, fi_read, nullptr, 0, nullptr, y.p.to_b, r.base, r.key), 0);
  const iovec iov[2] = {{y.spare(0), 0}, {y.spare(0), kLen}};
  void* descs[2] = {nullptr, y.good.desc()};
  EXPECT_EQ(y.p.a.run_at(ep, fi_writev, iov, descs, 2, y.p.to_b, r.base, r.key), 0);
}

TEST_F(Descriptors, what_is_injected_needs_none) {
  Play y(options_for(FI_MR_LOCAL));
  fid_ep* ep = y.p.a.ep();
  const Remote& r = y.target.remote();
  uint64_t word = 1;
  EXPECT_EQ(post(fi_inject, ep, &word, kLen, y.p.to_b), 0);
  EXPECT_EQ(post(fi_tinjectdata, ep, &word, kLen, 1, y.p.to_b, 1), 0);
  EXPECT_EQ(post(fi_inject_write, ep, &word, kLen, y.p.to_b, r.base, r.key), 0);
  EXPECT_EQ(post(fi_inject_atomic, ep, &word, 1, y.p.to_b, r.base, r.key, FI_UINT64, FI_SUM), 0);
  const iovec iov{&word, kLen};
  const fi_msg msg{&iov, nullptr, 1, y.p.to_b, &y.op, 0};
  ASSERT_EQ(post(fi_sendmsg, ep, &msg, FI_INJECT | FI_COMPLETION), 0);
  EXPECT_EQ(y.p.a.wait(&y.op).err, 0);
  const fi_rma_iov range{r.base, kLen, r.key};
  const fi_msg_rma write{&iov, nullptr, 1, y.p.to_b, &range, 1, &y.op, 0};
  ASSERT_EQ(post(fi_writemsg, ep, &write, FI_INJECT | FI_COMPLETION), 0);
  EXPECT_EQ(y.p.a.wait(&y.op).err, 0);
  EXPECT_EQ(fi_sendmsg(ep, &msg, FI_COMPLETION), -FI_EINVAL) << "the neighbour that is not";
  // an injected fetch still lands somewhere
  const fi_ioc operand{&word, 1};
  fi_ioc result{&word, 1};
  const fi_rma_ioc at{r.base, 1, r.key};
  const fi_msg_atomic fetch{&operand, nullptr, 1, y.p.to_b, &at, 1, FI_UINT64, FI_SUM, &y.op, 0};
  EXPECT_EQ(fi_fetch_atomicmsg(ep, &fetch, &result, nullptr, 1, FI_INJECT), -FI_EINVAL);
  void* desc = y.good.desc();
  result.addr = y.spare(0);
  ASSERT_EQ(post(fi_fetch_atomicmsg, ep, &fetch, &result, &desc, 1, FI_INJECT | FI_COMPLETION), 0);
  EXPECT_EQ(y.p.a.wait(&y.op).err, 0);
}

TEST_F(Descriptors, endpoints_that_inject_by_default_need_none) {
  Options o = options_for(FI_MR_LOCAL);
  o.tx_op_flags = FI_INJECT;
  Play y(o);
  const Remote& r = y.target.remote();
  uint64_t word = 1;
  ASSERT_EQ(y.p.a.run(fi_send, &word, kLen, nullptr, y.p.to_b), 0);
  EXPECT_EQ(fi_read(y.p.a.ep(), &word, kLen, nullptr, y.p.to_b, r.base, r.key, &y.op), -FI_EINVAL)
      << "what is read lands somewhere";
}

TEST_F(Descriptors, of_receives_that_take_many_messages_by_default_are_looked_at) {
  Options o = options_for(FI_MR_LOCAL);
  o.rx_op_flags = FI_MULTI_RECV;
  Play y(o);
  Region narrow(y.p.a, kLen - 1);
  const iovec iov = piece(y.spare(0));
  void* desc = y.good.desc();
  EXPECT_EQ(fi_recv(y.p.a.ep(), iov.iov_base, kLen, nullptr, FI_ADDR_UNSPEC, &y.op), -FI_EINVAL);
  EXPECT_EQ(fi_recv(y.p.a.ep(), iov.iov_base, kLen, narrow.desc(), FI_ADDR_UNSPEC, &y.op),
            -FI_EACCES);
  EXPECT_EQ(fi_recvv(y.p.a.ep(), &iov, nullptr, 1, FI_ADDR_UNSPEC, &y.op), -FI_EINVAL);
  ASSERT_EQ(fi_recvv(y.p.a.ep(), &iov, &desc, 1, FI_ADDR_UNSPEC, &y.op), 0);
  ASSERT_EQ(y.p.b.post(fi_inject, "eight...", kLen, y.p.to_a), 0);
  const Completion c = y.p.a.wait(&y.op);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.flags & FI_MULTI_RECV, uint64_t{FI_MULTI_RECV}) << "it is full";
}

TEST_F(Descriptors, of_shared_receives_are_looked_at) {
  Play y(options_for(FI_MR_LOCAL));
  fi_rx_attr attr{};
  const Fid<fid_ep> srx = DOOR_MADE(fi_srx_context, y.p.a.domain(), &attr);
  fid_ep* made = srx.get();
  EXPECT_EQ(fi_recv(made, y.spare(0), kLen, nullptr, FI_ADDR_UNSPEC, &y.op), -FI_EINVAL);
  EXPECT_EQ(fi_trecv(made, y.spare(0), kLen, y.helper.desc(), FI_ADDR_UNSPEC, 1, 0, &y.op),
            -FI_EACCES);
  EXPECT_EQ(fi_recv(made, y.spare(0), kLen, y.good.desc(), FI_ADDR_UNSPEC, &y.op), 0);
}

TEST_F(Descriptors, peeks_and_discards_place_nothing) {
  Play y(options_for(FI_MR_LOCAL));
  uint64_t word = 1;
  ASSERT_EQ(y.p.b.post(fi_tinject, &word, kLen, y.p.to_a, kTag), 0);
  const iovec iov{&word, kLen};
  const fi_msg_tagged msg{&iov, nullptr, 1, FI_ADDR_UNSPEC, kTag, 0, &y.op, 0};
  bool seen = false;
  pump_until([&] {
    if (fi_trecvmsg(y.p.a.ep(), &msg, FI_PEEK) != 0) return true;
    seen = y.p.a.wait(&y.op).err == 0;
    return seen;
  });
  EXPECT_TRUE(seen);
  EXPECT_EQ(fi_trecvmsg(y.p.a.ep(), &msg, 0), -FI_EINVAL);
  ASSERT_EQ(fi_trecvmsg(y.p.a.ep(), &msg, FI_PEEK | FI_DISCARD), 0);
  EXPECT_EQ(y.p.a.wait(&y.op).err, 0);
}

}  // namespace
}  // namespace aperture::doors
