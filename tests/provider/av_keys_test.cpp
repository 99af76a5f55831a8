// Authorization keys of address vectors (FI_AV_AUTH_KEY), from API 1.20 on, which libraries of 1.17
// do not have. fi_av(3), "fi_av_insert_auth_key"; fi_domain(3), "Default authorization key
// length"; fi_mr(3), "auth_key"; fi_msg(3), "FI_AUTH_KEY". Endpoints of one process, in domains of
// their own.
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

constexpr uint32_t kApi120 = FI_VERSION(1, 20);
constexpr size_t kAvAuthKey = ~size_t{0};      // FI_AV_AUTH_KEY
constexpr uint64_t kAuthKeyFlag = 1ull << 57;  // FI_AUTH_KEY
constexpr size_t kMostKeys = 64;
constexpr uint64_t kCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_SOURCE | FI_DIRECTED_RECV;
constexpr size_t kBytes = 4096;

// Behind av_set in the table of 1.20.
template <typename Call>
Call call_of(fid_av* av, size_t which) {
  const size_t at = offsetof(fi_ops_av, av_set) + (which + 1) * sizeof(void*);
  EXPECT_GE(av->ops->size, at + sizeof(Call));
  Call call;
  std::memcpy(&call, reinterpret_cast<const char*>(av->ops) + at, sizeof call);
  return call;
}
int insert_key(fid_av* av, const void* key, size_t size, fi_addr_t* addr, uint64_t flags = 0) {
  using Call = int (*)(fid_av*, const void*, size_t, fi_addr_t*, uint64_t);
  return call_of<Call>(av, 0)(av, key, size, addr, flags);
}
int lookup_key(fid_av* av, fi_addr_t addr, void* key, size_t* size) {
  using Call = int (*)(fid_av*, fi_addr_t, void*, size_t*);
  return call_of<Call>(av, 1)(av, addr, key, size);
}
int set_user_id(fid_av* av, fi_addr_t addr, fi_addr_t id, uint64_t flags) {
  using Call = int (*)(fid_av*, fi_addr_t, fi_addr_t, uint64_t);
  return call_of<Call>(av, 2)(av, addr, id, flags);
}

struct RegionKey {  // struct fi_mr_auth_key
  fid_av* av;
  fi_addr_t src_addr;
};

Edit keyed(uint64_t caps = kCaps) {
  return [caps](fi_info& h) {
    h.caps = caps;
    h.ep_attr->type = FI_EP_RDM;
    h.domain_attr->auth_key_size = kAvAuthKey;
  };
}

uint8_t* new_key() {
  auto* key = static_cast<uint8_t*>(std::malloc(1));
  *key = 1;
  return key;
}

// One whose endpoint has that key for itself, as from 1.5 on.
Edit with_own_key(const std::string& key) {
  return [key](fi_info& h) {
    keyed()(h);
    h.domain_attr->auth_key_size = 0;
    h.ep_attr->auth_key = static_cast<uint8_t*>(std::malloc(key.size()));
    std::memcpy(h.ep_attr->auth_key, key.data(), key.size());
    h.ep_attr->auth_key_size = key.size();
  };
}

class Node {
 public:
  explicit Node(const Edit& edit = keyed()) : b(edit, kApi120) {
    must(fi_ep_bind(b.ep.get(), &b.av->fid, 0), "bind av");
    must(fi_ep_bind(b.ep.get(), &b.cq->fid, FI_TRANSMIT | FI_RECV), "bind cq");
  }
  fi_addr_t key(const std::string& bytes) {
    fi_addr_t handle = FI_ADDR_NOTAVAIL;
    must(insert_key(b.av.get(), bytes.data(), bytes.size(), &handle), "insert key");
    return handle;
  }
  void enable() { must(fi_enable(b.ep.get()), "enable"); }
  sockaddr_storage name() {
    sockaddr_storage name{};
    size_t len = sizeof name;
    must(fi_getname(&b.ep->fid, &name, &len), "getname");
    return name;
  }
  fi_addr_t insert(Node& other, std::optional<fi_addr_t> by_key) {
    const sockaddr_storage name = other.name();
    fi_addr_t addr = by_key.value_or(0);
    const int n = fi_av_insert(b.av.get(), &name, 1, &addr, by_key ? kAuthKeyFlag : 0, nullptr);
    if (n != 1) throw std::runtime_error("insert: " + std::to_string(n));
    return addr;
  }
  void post_recv(uint64_t tag, char* to, fi_addr_t from, uint64_t flags, void* context) {
    iovec iov{to, 1};
    const fi_msg_tagged msg{.msg_iov = &iov,
                            .desc = nullptr,
                            .iov_count = 1,
                            .addr = from,
                            .tag = tag,
                            .ignore = 0,
                            .context = context,
                            .data = 0};
    must(fi_trecvmsg(b.ep.get(), &msg, flags | FI_COMPLETION), "trecvmsg");
  }

  struct Ended {
    int err = 0;
    void* context = nullptr;
    fi_addr_t source = FI_ADDR_NOTAVAIL;
  };
  std::optional<Ended> poll() {
    fi_cq_tagged_entry entry{};
    fi_addr_t source = FI_ADDR_NOTAVAIL;
    const ssize_t n = fi_cq_readfrom(b.cq.get(), &entry, 1, &source);
    if (n == 1) return Ended{0, entry.op_context, source};
    if (n != -FI_EAVAIL) return std::nullopt;
    // of 1.20: src_addr is behind what headers of 1.17 know
    struct {
      fi_cq_err_entry entry{};
      fi_addr_t source = 0;
    } error;
    must(fi_cq_readerr(b.cq.get(), &error.entry, 0), "readerr");
    return Ended{error.entry.err, error.entry.op_context, FI_ADDR_NOTAVAIL};
  }

  Bench b;
};

// Both go on until `one` has something, or for at most `ms`.
std::optional<Node::Ended> wait(Node& one, Node& other, int ms = 20'000) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (std::chrono::steady_clock::now() < until) {
    if (auto ended = one.poll()) return ended;
    (void)fi_cq_read(other.b.cq.get(), nullptr, 0);
  }
  return std::nullopt;
}

// --- what is offered -----------------------------------------------------------------------------

// domain_attr->max_ep_auth_key: headers of 1.17 end before it.
size_t max_ep_auth_key(const fi_info& info) {
  size_t most;
  std::memcpy(&most,
              reinterpret_cast<const char*>(info.domain_attr) +
                  ((offsetof(fi_domain_attr, tclass) + sizeof(uint32_t) + 7) & ~size_t{7}),
              sizeof most);
  return most;
}

TEST(AvKeysOffer, is_made_from_1_20_on_and_to_reliable_datagrams) {
  const Answer answer = ask(kApi120, keyed());
  ASSERT_EQ(answer.code, 0);
  EXPECT_EQ(answer.info->domain_attr->auth_key_size, kAvAuthKey);
  EXPECT_EQ(answer.info->domain_attr->auth_key, nullptr);
  EXPECT_EQ(max_ep_auth_key(*answer.info), kMostKeys);
  EXPECT_EQ(ask(kApi117, keyed()).code, -FI_ENODATA) << "a size like any other, and too long";
  const auto refused = [](const Edit& more) {
    return ask(kApi120, [&](fi_info& h) {
      keyed()(h);
      more(h);
    });
  };
  EXPECT_EQ(refused([](fi_info& h) {
              h.ep_attr->type = FI_EP_MSG;
              h.caps = FI_MSG;
            }).code,
            -FI_ENODATA);
  EXPECT_EQ(refused([](fi_info& h) { h.domain_attr->auth_key = new_key(); }).code, -FI_ENODATA);
  EXPECT_EQ(refused([](fi_info& h) {
              h.ep_attr->auth_key = new_key();
              h.ep_attr->auth_key_size = 1;
            }).code,
            -FI_ENODATA);
}

TEST(AvKeysOffer, is_told_to_who_does_not_ask_for_it) {
  const Answer answer = ask(kApi120, [](fi_info& h) { h.ep_attr->type = FI_EP_RDM; });
  ASSERT_EQ(answer.code, 0);
  EXPECT_EQ(max_ep_auth_key(*answer.info), kMostKeys);
  EXPECT_EQ(answer.info->domain_attr->auth_key_size, 0u);
}

// --- calls ---------------------------------------------------------------------------------------

TEST(AvKeys, are_inserted_looked_up_and_removed) {
  Node node;
  fid_av* av = node.b.av.get();
  const fi_addr_t one = node.key("one");
  const fi_addr_t two = node.key("another");
  EXPECT_NE(one, two);
  char text[16] = {};
  size_t size = 3;
  EXPECT_EQ(lookup_key(av, two, text, &size), 0);
  EXPECT_EQ(size, 7u) << "what there is, whatever fits";
  EXPECT_STREQ(text, "ano");
  EXPECT_EQ(lookup_key(av, two + 1, text, &size), -FI_EINVAL);
  fi_addr_t bad = 0;
  EXPECT_EQ(insert_key(av, "x", 0, &bad), -FI_EINVAL);
  EXPECT_EQ(insert_key(av, nullptr, 4, &bad), -FI_EINVAL);
  EXPECT_EQ(insert_key(av, "x", 1, &bad, 1), -FI_EBADFLAGS);
  EXPECT_EQ(insert_key(av, "x", 1, nullptr), -FI_EINVAL);
  fi_addr_t gone = two;
  EXPECT_EQ(fi_av_remove(av, &gone, 1, 0), -FI_EINVAL) << "it is no address";
  EXPECT_EQ(fi_av_remove(av, &gone, 1, kAuthKeyFlag), 0);
  EXPECT_EQ(fi_av_remove(av, &gone, 1, kAuthKeyFlag), -FI_EINVAL);
  EXPECT_EQ(set_user_id(av, one, 9, kAuthKeyFlag), -FI_EINVAL) << "opened without FI_AV_USER_ID";
  std::vector<fi_addr_t> all;
  for (size_t i = 1; i < kMostKeys; ++i) all.push_back(node.key("k" + std::to_string(i)));
  EXPECT_EQ(insert_key(av, "x", 1, &bad), -FI_ENOSPC);
}

TEST(AvKeys, addresses_need_one_there_and_have_none_elsewhere) {
  Node node;
  fid_av* av = node.b.av.get();
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(4711);
  fi_addr_t key = node.key("k");
  fi_addr_t addr = key;
  EXPECT_EQ(fi_av_insert(av, &in, 1, &addr, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_av_insert(av, &in, 1, nullptr, kAuthKeyFlag, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_av_insert(av, &in, 1, &addr, kAuthKeyFlag | FI_AV_USER_ID, nullptr), -FI_EINVAL);
  addr = key + 1;
  int error = 0;
  EXPECT_EQ(fi_av_insert(av, &in, 1, &addr, kAuthKeyFlag | FI_SYNC_ERR, &error), 0);
  EXPECT_EQ(addr, FI_ADDR_NOTAVAIL);
  EXPECT_EQ(error, FI_EINVAL);
  addr = key;
  EXPECT_EQ(fi_av_insert(av, &in, 1, &addr, kAuthKeyFlag, nullptr), 1);
  EXPECT_EQ(addr, 0u);
  char text[8] = {};
  size_t size = sizeof text;
  EXPECT_EQ(lookup_key(av, addr, text, &size), 0) << "an address says its key too";
  EXPECT_STREQ(text, "k");
  EXPECT_EQ(fi_av_remove(av, &key, 1, kAuthKeyFlag), -FI_EBUSY) << "an address has it";
  EXPECT_EQ(fi_av_remove(av, &addr, 1, 0), 0);
  EXPECT_EQ(fi_av_remove(av, &key, 1, kAuthKeyFlag), 0);

  Bench plain([](fi_info& h) { h.caps = FI_MSG; }, kApi120);
  EXPECT_EQ(insert_key(plain.av.get(), "x", 1, &addr), -FI_EINVAL);
  EXPECT_EQ(fi_av_insert(plain.av.get(), &in, 1, &addr, kAuthKeyFlag, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_av_remove(plain.av.get(), &addr, 1, kAuthKeyFlag), -FI_EINVAL);
}

TEST(AvKeys, endpoints_are_enabled_with_those_that_are_there) {
  Node node;
  EXPECT_EQ(fi_enable(node.b.ep.get()), -FI_EINVAL) << "with none nobody could be reached";
  fi_addr_t first = node.key("first");
  node.enable();
  EXPECT_EQ(fi_av_remove(node.b.av.get(), &first, 1, kAuthKeyFlag), -FI_EBUSY);
  const fi_addr_t later = node.insert(node, node.key("later"));
  EXPECT_EQ(fi_tinject(node.b.ep.get(), "x", 1, later, 1), -FI_EACCES);
  char c = 0;
  iovec iov{&c, 1};
  fi_msg_tagged msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = first + 1;
  EXPECT_EQ(fi_trecvmsg(node.b.ep.get(), &msg, kAuthKeyFlag), -FI_EINVAL) << "it has not that one";
  msg.addr = first;
  msg.context = &c;
  EXPECT_EQ(fi_trecvmsg(node.b.ep.get(), &msg, kAuthKeyFlag), 0);
  EXPECT_EQ(fi_cancel(&node.b.ep->fid, &c), 0);
  Opened<fid_ep> closed = std::move(node.b.ep);
  closed.reset();
  EXPECT_EQ(fi_av_remove(node.b.av.get(), &first, 1, kAuthKeyFlag), 0);
}

TEST(AvKeys, receives_by_key_need_directed_receive) {
  Node node(keyed(FI_MSG | FI_TAGGED));
  const fi_addr_t key = node.key("k");
  node.enable();
  char c = 0;
  iovec iov{&c, 1};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = key;
  EXPECT_EQ(fi_recvmsg(node.b.ep.get(), &msg, kAuthKeyFlag), -FI_EBADFLAGS);
}

// --- messages ------------------------------------------------------------------------------------

TEST(AvKeys, one_endpoint_is_reached_by_each_of_its_keys) {
  Node a, b;
  const fi_addr_t a_red = a.key("red"), a_blue = a.key("blue");
  const fi_addr_t b_blue = b.key("blue"), b_red = b.key("red");  // in another order
  a.enable();
  b.enable();
  const fi_addr_t to_red = a.insert(b, a_red), to_blue = a.insert(b, a_blue);
  const fi_addr_t from_red = b.insert(a, b_red), from_blue = b.insert(a, b_blue);
  EXPECT_NE(to_red, to_blue);
  // the oldest takes what comes by blue alone, whatever comes first
  char blue = 0, any = 0, exact = 0;
  b.post_recv(7, &blue, b_blue, kAuthKeyFlag, &blue);
  b.post_recv(7, &exact, from_blue, 0, &exact);
  b.post_recv(7, &any, FI_ADDR_UNSPEC, 0, &any);
  const auto send = [&](const char* what, fi_addr_t to) {
    ssize_t rc;
    while ((rc = fi_tinject(a.b.ep.get(), what, 1, to, 7)) == -FI_EAGAIN) (void)b.poll();
    ASSERT_EQ(rc, 0);
  };
  send("r", to_red);
  auto ended = wait(b, a);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->context, &any);
  EXPECT_EQ(ended->source, from_red);
  EXPECT_EQ(any, 'r');
  send("1", to_blue);
  send("2", to_blue);
  for (void* const context : {static_cast<void*>(&blue), static_cast<void*>(&exact)}) {
    ended = wait(b, a);
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->context, context);
    EXPECT_EQ(ended->source, from_blue);
  }
  EXPECT_EQ(blue, '1');
  EXPECT_EQ(exact, '2');
  // messages that came before their receive
  send("r", to_red);
  send("b", to_blue);
  for (int i = 0; i < 100'000; ++i) ASSERT_FALSE(b.poll());
  blue = any = 0;
  b.post_recv(7, &blue, b_blue, kAuthKeyFlag, &blue);
  ended = wait(b, a);
  ASSERT_TRUE(ended);
  EXPECT_EQ(blue, 'b');
  b.post_recv(7, &any, b_red, kAuthKeyFlag, &any);
  ASSERT_TRUE(wait(b, a));
  EXPECT_EQ(any, 'r');
  // and the other way
  char back = 0;
  a.post_recv(8, &back, to_blue, 0, &back);
  ASSERT_EQ(fi_tinject(b.b.ep.get(), "x", 1, from_blue, 8), 0);
  ended = wait(a, b);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->source, to_blue);
}

// Both begin to connect at once, by both keys.
TEST(AvKeys, connects_that_cross_are_told_apart_by_key) {
  for (int round = 0; round < 20; ++round) {
    Node a, b;
    const fi_addr_t a_keys[] = {a.key("red"), a.key("blue")};
    const fi_addr_t b_keys[] = {b.key("red"), b.key("blue")};
    a.enable();
    b.enable();
    char at_a[2] = {}, at_b[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      a.post_recv(i, &at_a[i], FI_ADDR_UNSPEC, 0, &at_a[i]);
      b.post_recv(i, &at_b[i], FI_ADDR_UNSPEC, 0, &at_b[i]);
    }
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(fi_tinject(a.b.ep.get(), "a", 1, a.insert(b, a_keys[i]), i), 0);
      ASSERT_EQ(fi_tinject(b.b.ep.get(), "b", 1, b.insert(a, b_keys[1 - i]), 1 - i), 0);
    }
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(wait(a, b)) << round;
      ASSERT_TRUE(wait(b, a)) << round;
    }
    EXPECT_EQ(at_a[0] + at_a[1], 2 * 'b');
    EXPECT_EQ(at_b[0] + at_b[1], 2 * 'a');
  }
}

TEST(AvKeys, by_a_key_that_the_other_has_not_nothing_passes) {
  Node a, b;
  fi_addr_t red = a.key("red"), blue = a.key("blue");
  b.key("blue");
  b.key("green");
  a.enable();
  b.enable();
  const fi_addr_t to_red = a.insert(b, red), to_blue = a.insert(b, blue);
  char c = 0;
  b.post_recv(1, &c, FI_ADDR_UNSPEC, 0, &c);
  ASSERT_EQ(fi_tsend(a.b.ep.get(), "r", 1, nullptr, to_red, 1, &red), 0);
  auto ended = wait(a, b);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->err, FI_EACCES);
  ASSERT_EQ(fi_tsend(a.b.ep.get(), "b", 1, nullptr, to_blue, 1, &blue), 0);
  ASSERT_TRUE(wait(b, a));
  EXPECT_EQ(c, 'b');
}

TEST(AvKeys, meet_endpoints_that_have_one_key_for_themselves) {
  Node a, single(with_own_key("blue"));
  a.key("red");
  const fi_addr_t blue = a.key("blue");
  a.enable();
  single.enable();
  const fi_addr_t to = a.insert(single, blue), back = single.insert(a, std::nullopt);
  char c = 0;
  single.post_recv(1, &c, back, 0, &c);
  ASSERT_EQ(fi_tinject(a.b.ep.get(), "x", 1, to, 1), 0);
  ASSERT_TRUE(wait(single, a));
  EXPECT_EQ(c, 'x');

  Node other, lone(with_own_key("blue"));  // and where the one with one key comes first
  other.key("red");
  const fi_addr_t its_blue = other.key("blue");
  other.enable();
  lone.enable();
  char d = 0;
  other.post_recv(1, &d, its_blue, kAuthKeyFlag, &d);
  ASSERT_EQ(fi_tinject(lone.b.ep.get(), "y", 1, lone.insert(other, std::nullopt), 1), 0);
  ASSERT_TRUE(wait(other, lone));
  EXPECT_EQ(d, 'y');
}

TEST(AvKeys, an_endpoint_reaches_itself_by_each) {
  Node a;
  const fi_addr_t red = a.key("red"), blue = a.key("blue");
  a.enable();
  const fi_addr_t by_red = a.insert(a, red), by_blue = a.insert(a, blue);
  char c = 0;
  a.post_recv(1, &c, by_blue, 0, &c);
  ASSERT_EQ(fi_tinject(a.b.ep.get(), "r", 1, by_red, 1), 0);
  ASSERT_EQ(fi_tinject(a.b.ep.get(), "b", 1, by_blue, 1), 0);
  const auto ended = wait(a, a);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->source, by_blue);
  EXPECT_EQ(c, 'b');
}

// --- regions -------------------------------------------------------------------------------------

class AvKeyRegions : public testing::Test {
 protected:
  void SetUp() override {
    a_red_ = a_.key("red");
    a_blue_ = a_.key("blue");
    b_.key("red");
    b_blue_ = b_.key("blue");
    a_.enable();
    b_.enable();
    to_red_ = a_.insert(b_, a_red_);
    to_blue_ = a_.insert(b_, a_blue_);
  }
  int reg(RegionKey key, uint64_t flags, Opened<fid_mr>& mr, size_t size = sizeof(RegionKey)) {
    iovec iov{memory_.data(), memory_.size()};
    fi_mr_attr attr{};
    attr.mr_iov = &iov;
    attr.iov_count = 1;
    attr.access = FI_REMOTE_READ | FI_REMOTE_WRITE;
    attr.auth_key = reinterpret_cast<uint8_t*>(&key);
    attr.auth_key_size = size;
    fid_mr* made = nullptr;
    const int rc = fi_mr_regattr(b_.b.domain.get(), &attr, flags, &made);
    if (rc == 0) mr.reset(made);
    return rc;
  }
  // How a write of that byte at an offset ends.
  int write(char what, fi_addr_t to, uint64_t key, size_t at = 0) {
    ssize_t rc;
    while ((rc = fi_write(a_.b.ep.get(), &what, 1, nullptr, to, at, key, nullptr)) == -FI_EAGAIN) {
      (void)b_.poll();
    }
    EXPECT_EQ(rc, 0);
    const auto ended = wait(a_, b_);
    return ended ? ended->err : -1;
  }

  Node a_, b_;
  fi_addr_t a_red_ = 0, a_blue_ = 0, b_blue_ = 0, to_red_ = 0, to_blue_ = 0;
  std::vector<char> memory_ = std::vector<char>(kBytes, '-');
};

TEST_F(AvKeyRegions, are_reached_by_all_keys_that_were_there) {
  Opened<fid_mr> mr;
  ASSERT_EQ(reg({b_.b.av.get(), FI_ADDR_UNSPEC}, 0, mr), 0);
  const uint64_t key = fi_mr_key(mr.get());
  EXPECT_EQ(write('r', to_red_, key, 1), 0);
  EXPECT_EQ(write('b', to_blue_, key, 2), 0);
  EXPECT_EQ(memory_[1], 'r');
  EXPECT_EQ(memory_[2], 'b');
  mr.reset();
  EXPECT_EQ(write('x', to_red_, key), FI_EACCES);
  EXPECT_EQ(write('x', to_blue_, key), FI_EACCES);
  EXPECT_EQ(memory_[0], '-');
}

TEST_F(AvKeyRegions, are_limited_to_one_key) {
  Opened<fid_mr> mr;
  ASSERT_EQ(reg({b_.b.av.get(), b_blue_}, kAuthKeyFlag, mr), 0);
  const uint64_t key = fi_mr_key(mr.get());
  EXPECT_EQ(write('r', to_red_, key), FI_EACCES);
  EXPECT_EQ(memory_[0], '-');
  EXPECT_EQ(write('b', to_blue_, key), 0);
  EXPECT_EQ(memory_[0], 'b');
}

TEST_F(AvKeyRegions, of_another_vector_are_reached_by_nobody_here) {
  fi_av_attr attr{};
  auto other = opened("av", fi_av_open, b_.b.domain.get(), &attr);
  fi_addr_t handle = 0;
  Opened<fid_mr> mr;
  ASSERT_EQ(reg({other.get(), FI_ADDR_UNSPEC}, 0, mr), -FI_EINVAL) << "it has no key yet";
  ASSERT_EQ(insert_key(other.get(), "red", 3, &handle), 0);
  ASSERT_EQ(reg({other.get(), FI_ADDR_UNSPEC}, 0, mr), 0);
  EXPECT_EQ(write('x', to_red_, fi_mr_key(mr.get())), FI_EACCES) << "the same key of another one";
  EXPECT_EQ(memory_[0], '-');
}

TEST_F(AvKeyRegions, are_registered_by_fi_mr_regattr_alone) {
  Opened<fid_mr> mr;
  fid_mr* made = nullptr;
  EXPECT_EQ(
      fi_mr_reg(b_.b.domain.get(), memory_.data(), kBytes, FI_REMOTE_READ, 0, 0, 0, &made, nullptr),
      -FI_ENOSYS);
  EXPECT_EQ(reg({b_.b.av.get(), FI_ADDR_UNSPEC}, 0, mr, 8), -FI_EINVAL);
  EXPECT_EQ(reg({a_.b.av.get(), FI_ADDR_UNSPEC}, 0, mr), -FI_EINVAL) << "of another domain";
  EXPECT_EQ(reg({nullptr, FI_ADDR_UNSPEC}, 0, mr), -FI_EINVAL);
  EXPECT_EQ(reg({b_.b.av.get(), b_blue_ + 1}, kAuthKeyFlag, mr), -FI_EINVAL);
  EXPECT_EQ(reg({b_.b.av.get(), 0}, 0, mr), -FI_EOPNOTSUPP) << "not to one address";
}

TEST_F(AvKeyRegions, count_what_comes_by_any_key) {
  Node owner(keyed(kCaps | FI_RMA_EVENT));
  const fi_addr_t red = owner.key("red");
  owner.key("blue");
  owner.enable();
  Opened<fid_mr> mr;
  RegionKey key{owner.b.av.get(), FI_ADDR_UNSPEC};
  iovec iov{memory_.data(), memory_.size()};
  fi_mr_attr attr{};
  attr.mr_iov = &iov;
  attr.iov_count = 1;
  attr.access = FI_REMOTE_WRITE;
  attr.auth_key = reinterpret_cast<uint8_t*>(&key);
  attr.auth_key_size = sizeof key;
  fid_mr* made = nullptr;
  ASSERT_EQ(fi_mr_regattr(owner.b.domain.get(), &attr, 0, &made), 0);
  mr.reset(made);
  ASSERT_EQ(fi_mr_bind(mr.get(), &owner.b.cntr->fid, FI_REMOTE_WRITE), 0);
  const auto write_by = [&](fi_addr_t by) {
    const fi_addr_t to = a_.insert(owner, by);
    ssize_t rc;
    while ((rc = fi_write(a_.b.ep.get(), "x", 1, nullptr, to, 0, fi_mr_key(mr.get()), nullptr)) ==
           -FI_EAGAIN) {
    }
    ASSERT_EQ(rc, 0);
    const auto ended = wait(a_, owner);
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->err, 0);
  };
  write_by(a_red_);
  EXPECT_EQ(fi_cntr_read(owner.b.cntr.get()), 1u);
  write_by(a_blue_);
  EXPECT_EQ(fi_cntr_read(owner.b.cntr.get()), 2u);
  EXPECT_NE(red, 0u);
}

}  // namespace
}  // namespace aperture::provider_tests
