// Capabilities of receives that came with API 2.0: FI_TAGGED_MULTI_RECV, FI_TAGGED_DIRECTED_RECV
// and FI_EXACT_DIRECTED_RECV, which libraries of 1.17 do not have. fi_getinfo(3), fi_tagged(3).
// Endpoints of one process, in domains of their own.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

constexpr uint64_t kTaggedDirected = 1ull << 45, kTaggedMulti = 1ull << 46, kExact = 1ull << 48;
constexpr uint64_t kBase = FI_MSG | FI_TAGGED | FI_SEND | FI_RECV;

Edit with(uint64_t caps, uint64_t rx_op_flags = 0, fi_ep_type type = FI_EP_RDM) {
  return [=](fi_info& h) {
    h.caps = caps;
    h.ep_attr->type = type;
    h.rx_attr->op_flags = rx_op_flags;
  };
}

// --- what is offered -----------------------------------------------------------------------------

TEST(ReceiveCapsOffer, is_made_from_2_0_on_to_who_asks) {
  for (const uint64_t cap : {kTaggedDirected, kTaggedMulti, kExact}) {
    const Answer answer = ask(kApi20, with(kBase | cap));
    ASSERT_EQ(answer.code, 0) << std::hex << cap;
    EXPECT_NE(answer.info->caps & cap, 0u);
    EXPECT_NE(answer.info->rx_attr->caps & cap, 0u);
    EXPECT_EQ(answer.info->tx_attr->caps & cap, 0u) << "it is of receives";
    EXPECT_EQ(ask(FI_VERSION(1, 22), with(kBase | cap)).code, -FI_ENODATA) << std::hex << cap;
  }
  const Answer unasked = ask(kApi20, with(0));
  ASSERT_EQ(unasked.code, 0);
  EXPECT_EQ(unasked.info->caps & (kTaggedDirected | kTaggedMulti | kExact), 0u);
}

TEST(ReceiveCapsOffer, is_of_endpoints_that_can_have_them) {
  EXPECT_EQ(ask(kApi20, with(kBase | kTaggedMulti, 0, FI_EP_MSG)).code, 0);
  for (const uint64_t cap : {kTaggedDirected, kExact}) {
    EXPECT_EQ(ask(kApi20, with(kBase | cap, 0, FI_EP_MSG)).code, -FI_ENODATA) << "it has one peer";
    EXPECT_EQ(ask(kApi20, with(FI_MSG | cap, 0, FI_EP_DGRAM)).code, -FI_ENODATA);
  }
  EXPECT_EQ(ask(kApi20, with(FI_MSG | kTaggedMulti, 0, FI_EP_DGRAM)).code, -FI_ENODATA);
}

// The bit of FI_EXACT_DIRECTED_RECV was that of FI_VARIABLE_MSG once.
TEST(ReceiveCapsOffer, an_exact_source_makes_no_variable_messages_and_the_reverse) {
  const auto limited = [](fi_info& h) {
    with(kBase | kExact)(h);
    h.ep_attr->max_msg_size = 1000;
  };
  const Answer exact = ask(kApi20, limited);
  ASSERT_EQ(exact.code, 0);
  EXPECT_GT(exact.info->ep_attr->max_msg_size, 1000u) << "no limit of which more is variable";
  const Answer variable = ask(kApi117, limited);
  ASSERT_EQ(variable.code, 0);
  EXPECT_EQ(variable.info->ep_attr->max_msg_size, 1000u);
  EXPECT_NE(variable.info->tx_attr->caps & kExact, 0u) << "that is of messages both ways";
}

TEST(ReceiveCapsOffer, many_messages_by_default_need_one_of_both_capabilities) {
  EXPECT_EQ(ask(kApi20, with(kBase, FI_MULTI_RECV)).code, -FI_ENODATA);
  EXPECT_EQ(ask(kApi20, with(kBase | FI_MULTI_RECV, FI_MULTI_RECV)).code, 0);
  EXPECT_EQ(ask(kApi20, with(kBase | kTaggedMulti, FI_MULTI_RECV)).code, 0);
}

// --- receives ------------------------------------------------------------------------------------

struct Entry {
  uint64_t flags = 0, tag = 0;
  void* context = nullptr;
  size_t len = 0;
  void* buf = nullptr;
};

class Node {
 public:
  explicit Node(uint64_t caps, uint64_t rx_op_flags = 0) : b(with(caps, rx_op_flags), kApi20) {
    must(fi_ep_bind(b.ep.get(), &b.av->fid, 0), "bind av");
    must(fi_ep_bind(b.ep.get(), &b.cq->fid, FI_TRANSMIT | FI_RECV), "bind cq");
  }
  void enable() { must(fi_enable(b.ep.get()), "enable"); }
  fi_addr_t insert(Node& other) {
    sockaddr_storage name{};
    size_t len = sizeof name;
    must(fi_getname(&other.b.ep->fid, &name, &len), "getname");
    fi_addr_t addr = FI_ADDR_NOTAVAIL;
    if (fi_av_insert(b.av.get(), &name, 1, &addr, 0, nullptr) != 1) {
      throw std::runtime_error("insert");
    }
    return addr;
  }
  fid_ep* ep() { return b.ep.get(); }
  bool poll(Entry& entry) {
    fi_cq_tagged_entry e{};
    if (fi_cq_read(b.cq.get(), &e, 1) != 1) return false;
    entry = {e.flags, e.tag, e.op_context, e.len, e.buf};
    return true;
  }

  Bench b;
};

struct Pair {
  explicit Pair(uint64_t caps, uint64_t rx_op_flags = 0) : there(kBase), here(caps, rx_op_flags) {
    there.enable();
    here.enable();
    to_here = there.insert(here);
    from_there = here.insert(there);
  }
  // Both go on until `here` has something, for 20 s at most.
  Entry next() {
    Entry entry, other;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!here.poll(entry)) {
      there.poll(other);
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("nothing has come");
    }
    return entry;
  }
  void send(uint64_t tag, const std::string& text) {
    ssize_t rc = 0;
    Entry entry;
    while ((rc = fi_tinject(there.ep(), text.data(), text.size(), to_here, tag)) == -FI_EAGAIN) {
      there.poll(entry);
    }
    must(static_cast<int>(rc), "tinject");
  }
  void send_untagged(const std::string& text) {
    ssize_t rc = 0;
    Entry entry;
    while ((rc = fi_inject(there.ep(), text.data(), text.size(), to_here)) == -FI_EAGAIN) {
      there.poll(entry);
    }
    must(static_cast<int>(rc), "inject");
  }

  Node there, here;
  fi_addr_t to_here = 0, from_there = 0;
};

ssize_t post_many(fid_ep* ep, void* buf, size_t len, uint64_t tag, uint64_t ignore, void* context,
                  uint64_t flags = FI_MULTI_RECV, fi_addr_t from = FI_ADDR_UNSPEC) {
  iovec iov{buf, len};
  const fi_msg_tagged msg{.msg_iov = &iov,
                          .desc = nullptr,
                          .iov_count = 1,
                          .addr = from,
                          .tag = tag,
                          .ignore = ignore,
                          .context = context,
                          .data = 0};
  return fi_trecvmsg(ep, &msg, flags);
}

void expect(const Entry& entry, const char* text, uint64_t tag, const void* context) {
  EXPECT_EQ(entry.tag, tag);
  EXPECT_EQ(entry.context, context);
  EXPECT_NE(entry.flags & FI_TAGGED, 0u);
  ASSERT_EQ(entry.len, std::strlen(text));
  EXPECT_EQ(std::memcmp(entry.buf, text, entry.len), 0);
}

TEST(TaggedMultiRecv, packs_messages_whose_tags_match_and_tells_the_last) {
  Pair p(kBase | kTaggedMulti);
  size_t least = 16;
  must(fi_setopt(&p.here.ep()->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least),
       "min_multi_recv");
  char many[40], one[8];
  ASSERT_EQ(post_many(p.here.ep(), many, sizeof many, 0x70, 0xf, many), 0);
  ASSERT_EQ(fi_trecv(p.here.ep(), one, sizeof one, nullptr, FI_ADDR_UNSPEC, 0x99, 0, one), 0);
  p.send(0x71, "first");
  Entry entry = p.next();
  expect(entry, "first", 0x71, many);
  EXPECT_EQ(entry.buf, many);
  EXPECT_EQ(entry.flags & FI_MULTI_RECV, 0u);
  p.send(0x99, "other");
  expect(p.next(), "other", 0x99, one);
  p.send(0x7f, "more of it, until less than 16");
  entry = p.next();
  expect(entry, "more of it, until less than 16", 0x7f, many);
  EXPECT_EQ(entry.buf, many + 5);
  EXPECT_NE(entry.flags & FI_MULTI_RECV, 0u) << "it is given back";
}

TEST(TaggedMultiRecv, takes_what_came_before_it_in_its_order) {
  Pair p(kBase | kTaggedMulti);
  p.send(1, "a");
  p.send(2, "bb");
  p.send(1, "ccc");
  p.send_untagged("not for it");
  char first[16];
  ASSERT_EQ(fi_recv(p.here.ep(), first, sizeof first, nullptr, FI_ADDR_UNSPEC, first), 0);
  EXPECT_EQ(p.next().context, first);  // so all four are there
  char many[4096];
  ASSERT_EQ(post_many(p.here.ep(), many, sizeof many, 1, 0, many), 0);
  expect(p.next(), "a", 1, many);
  expect(p.next(), "ccc", 1, many);
  p.send(1, "d");
  expect(p.next(), "d", 1, many);
  EXPECT_EQ(std::memcmp(many, "acccd", 5), 0);
  char two[8];
  ASSERT_EQ(fi_trecv(p.here.ep(), two, sizeof two, nullptr, FI_ADDR_UNSPEC, 2, 0, two), 0);
  expect(p.next(), "bb", 2, two);
}

// By default as far as its capabilities go: here tagged receives alone.
TEST(TaggedMultiRecv, by_default_is_for_the_kinds_that_were_asked_for) {
  Pair p(kBase | kTaggedMulti, FI_MULTI_RECV);
  char many[4096], vector[4096], one[64];
  ASSERT_EQ(fi_trecv(p.here.ep(), many, sizeof many, nullptr, FI_ADDR_UNSPEC, 1, 0, many), 0);
  const iovec iov{vector, sizeof vector};
  ASSERT_EQ(fi_trecvv(p.here.ep(), &iov, nullptr, 1, FI_ADDR_UNSPEC, 2, 0, vector), 0);
  ASSERT_EQ(fi_recv(p.here.ep(), one, sizeof one, nullptr, FI_ADDR_UNSPEC, one), 0);
  for (const char* text : {"x", "yy"}) {
    p.send(1, text);
    expect(p.next(), text, 1, many);
    p.send(2, text);
    expect(p.next(), text, 2, vector);
  }
  p.send_untagged("once");
  EXPECT_EQ(p.next().context, one);
  EXPECT_EQ(fi_cancel(&p.here.ep()->fid, one), -FI_ENOENT) << "it is over";
}

TEST(TaggedMultiRecv, is_refused_without_its_capability_and_beside_a_probe) {
  char many[64];
  Pair untagged_alone(kBase | FI_MULTI_RECV, FI_MULTI_RECV);
  fid_ep* const ep = untagged_alone.here.ep();
  EXPECT_EQ(post_many(ep, many, sizeof many, 1, 0, many), -FI_EBADFLAGS);
  // tagged ones are as they are without the default
  ASSERT_EQ(fi_trecv(ep, many, sizeof many, nullptr, FI_ADDR_UNSPEC, 1, 0, many), 0);
  untagged_alone.send(1, "x");
  EXPECT_EQ(untagged_alone.next().context, many);
  EXPECT_EQ(fi_cancel(&ep->fid, many), -FI_ENOENT);
  Pair p(kBase | kTaggedMulti);
  EXPECT_EQ(post_many(p.here.ep(), many, sizeof many, 1, 0, many, FI_MULTI_RECV | FI_PEEK),
            -FI_EBADFLAGS);
  EXPECT_EQ(post_many(p.here.ep(), nullptr, 4, 1, 0, many), -FI_EINVAL);
  iovec two[2] = {{many, 8}, {many + 8, 8}};
  fi_msg_tagged msg{};
  msg.msg_iov = two;
  msg.iov_count = 2;
  EXPECT_EQ(fi_trecvmsg(p.here.ep(), &msg, FI_MULTI_RECV), -FI_EINVAL);
}

// --- sources -------------------------------------------------------------------------------------

// Two senders, and who receives.
struct Three {
  explicit Three(uint64_t caps) : a(kBase), b(kBase), here(caps) {
    for (Node* node : {&a, &b, &here}) node->enable();
    from_a = here.insert(a);
    from_b = here.insert(b);
    a_to_here = a.insert(here);
    b_to_here = b.insert(here);
  }
  Entry next() {
    Entry entry, other;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!here.poll(entry)) {
      a.poll(other);
      b.poll(other);
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("nothing has come");
    }
    return entry;
  }
  template <typename Send>
  void send(Node& from, Send&& send) {
    ssize_t rc = 0;
    Entry entry;
    while ((rc = send(from.ep())) == -FI_EAGAIN) from.poll(entry);
    must(static_cast<int>(rc), "inject");
  }
  void send_tagged_from_b() {
    send(b, [this](fid_ep* ep) { return fi_tinject(ep, "b", 1, b_to_here, 1); });
  }
  void send_tagged_from_a() {
    send(a, [this](fid_ep* ep) { return fi_tinject(ep, "a", 1, a_to_here, 1); });
  }
  void send_from_b() {
    send(b, [this](fid_ep* ep) { return fi_inject(ep, "b", 1, b_to_here); });
  }
  void send_from_a() {
    send(a, [this](fid_ep* ep) { return fi_inject(ep, "a", 1, a_to_here); });
  }

  Node a, b, here;
  fi_addr_t from_a = 0, from_b = 0, a_to_here = 0, b_to_here = 0;
};

TEST(TaggedDirectedRecv, is_of_tagged_receives_alone) {
  Three t(kBase | kTaggedDirected);
  char named = 0, anyone = 0, untagged = 0;
  fid_ep* const ep = t.here.ep();
  ASSERT_EQ(fi_trecv(ep, &named, 1, nullptr, t.from_a, 1, 0, &named), 0);
  ASSERT_EQ(fi_trecv(ep, &anyone, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, &anyone), 0);
  t.send_tagged_from_b();
  EXPECT_EQ(t.next().context, &anyone);
  t.send_tagged_from_a();
  EXPECT_EQ(t.next().context, &named);
  EXPECT_EQ(named, 'a');
  // an untagged one says what it likes
  for (const fi_addr_t said : {t.from_a, fi_addr_t{4711}, FI_ADDR_UNSPEC}) {
    ASSERT_EQ(fi_recv(ep, &untagged, 1, nullptr, said, &untagged), 0);
    t.send_from_b();
    EXPECT_EQ(t.next().context, &untagged);
    EXPECT_EQ(untagged, 'b');
  }
  const iovec iov{&untagged, 1};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = 4711;
  ASSERT_EQ(fi_recvmsg(ep, &msg, 0), 0);
  t.send_from_a();
  EXPECT_EQ(t.next().len, 1u);
  ASSERT_EQ(fi_recvv(ep, &iov, nullptr, 1, 4711, nullptr), 0);
  t.send_from_a();
  EXPECT_EQ(t.next().len, 1u);
}

TEST(ExactDirectedRecv, alone_is_of_both_kinds_and_takes_no_unspecified_source) {
  Three t(kBase | kExact);
  fid_ep* const ep = t.here.ep();
  char from_a = 0, from_b = 0;
  const iovec iov{&from_a, 1};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = FI_ADDR_UNSPEC;
  fi_msg_tagged tagged{};
  tagged.msg_iov = &iov;
  tagged.iov_count = 1;
  tagged.addr = FI_ADDR_UNSPEC;
  EXPECT_EQ(fi_recv(ep, &from_a, 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_recvv(ep, &iov, nullptr, 1, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_recvmsg(ep, &msg, 0), -FI_EINVAL);
  EXPECT_EQ(fi_trecv(ep, &from_a, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_trecvv(ep, &iov, nullptr, 1, FI_ADDR_UNSPEC, 1, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_trecvmsg(ep, &tagged, 0), -FI_EINVAL);
  EXPECT_EQ(fi_trecvmsg(ep, &tagged, FI_PEEK), -FI_EINVAL);
  ASSERT_EQ(fi_recv(ep, &from_a, 1, nullptr, t.from_a, &from_a), 0);
  ASSERT_EQ(fi_recv(ep, &from_b, 1, nullptr, t.from_b, &from_b), 0);
  t.send_from_b();
  EXPECT_EQ(t.next().context, &from_b);
  t.send_from_a();
  EXPECT_EQ(t.next().context, &from_a);
  ASSERT_EQ(fi_trecv(ep, &from_a, 1, nullptr, t.from_a, 1, 0, &from_a), 0);
  t.send_tagged_from_b();
  t.send_tagged_from_a();
  EXPECT_EQ(t.next().context, &from_a);
  // what was claimed is meant by its context, and needs no source
  tagged.tag = 1;
  tagged.addr = t.from_b;
  fi_context context{};
  tagged.context = &context;
  ASSERT_EQ(fi_trecvmsg(ep, &tagged, FI_PEEK | FI_CLAIM), 0);
  EXPECT_EQ(t.next().context, &context);
  tagged.addr = FI_ADDR_UNSPEC;
  ASSERT_EQ(fi_trecvmsg(ep, &tagged, FI_CLAIM), 0);
  EXPECT_EQ(t.next().context, &context);
  EXPECT_EQ(from_a, 'b');
}

TEST(ExactDirectedRecv, beside_the_tagged_capability_is_of_tagged_receives_alone) {
  Three t(kBase | kExact | kTaggedDirected);
  char byte = 0;
  EXPECT_EQ(fi_trecv(t.here.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), -FI_EINVAL);
  ASSERT_EQ(fi_recv(t.here.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, &byte), 0);
  t.send_from_b();
  EXPECT_EQ(t.next().context, &byte);
  Three both(kBase | kExact | kTaggedDirected | FI_DIRECTED_RECV);
  EXPECT_EQ(fi_recv(both.here.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
}

TEST(ExactDirectedRecv, goes_with_tagged_buffers_for_many_messages) {
  Three t(kBase | kExact | kTaggedMulti);
  char many[4096];
  EXPECT_EQ(post_many(t.here.ep(), many, sizeof many, 1, 0, many), -FI_EINVAL);
  ASSERT_EQ(post_many(t.here.ep(), many, sizeof many, 1, 0, many, FI_MULTI_RECV, t.from_a), 0);
  t.send_tagged_from_b();
  t.send_tagged_from_a();
  t.send_tagged_from_a();
  for (int i = 0; i < 2; ++i) expect(t.next(), "a", 1, many);
}

TEST(ExactDirectedRecv, is_not_for_shared_receive_contexts) {
  for (const uint64_t cap : {kTaggedDirected, kExact}) {
    const Bench b(
        [cap](fi_info& h) {
          with(kBase | cap)(h);
          h.ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
        },
        kApi20);
    fid_ep* srx = nullptr;
    fi_rx_attr attr = *b.info->rx_attr;
    attr.caps = FI_MSG | FI_TAGGED | FI_RECV;
    must(fi_srx_context(b.domain.get(), &attr, &srx, nullptr), "srx");
    EXPECT_EQ(fi_ep_bind(b.ep.get(), &srx->fid, 0), -FI_EINVAL);
    EXPECT_EQ(fi_close(&srx->fid), 0);
  }
}

// Their calls have tables of their own, which turn a forked child away as all others do.
TEST(ReceiveCaps, are_not_inherited_by_a_forked_child) {
  struct Of {
    uint64_t caps, rx_op_flags;
  };
  for (const Of& of : {Of{kBase | kTaggedMulti, FI_MULTI_RECV}, Of{kBase | kTaggedDirected, 0},
                       Of{kBase | FI_DIRECTED_RECV | kExact, 0}}) {
    Pair p(of.caps, of.rx_op_flags);
    char bytes[64];
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(5);
      const bool refused =
          fi_trecv(p.here.ep(), bytes, 8, nullptr, p.from_there, 1, 0, bytes) == -FI_EOPNOTSUPP &&
          fi_recv(p.here.ep(), bytes, 8, nullptr, p.from_there, bytes) == -FI_EOPNOTSUPP;
      ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "caps " << std::hex << of.caps;
  }
}

}  // namespace
}  // namespace aperture::provider_tests
