// Authorization keys, through the door: who may talk to whom, who may reach which region, and what
// the calls say. man 3 fi_domain, fi_endpoint, fi_mr, "auth_key". The forged proofs of hostile_5
// and hostile_41 are in tests/nic/auth_key_test.cpp; here is what an application sees.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "doors/connected.hpp"
#include "doors/side.hpp"

namespace aperture::doors {
namespace {

Options with_keys(const char* domain_key, const char* ep_key = "") {
  Options o{.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC, .mr_mode = kBasicMr};
  std::snprintf(o.domain_key, sizeof o.domain_key, "%s", domain_key);
  std::snprintf(o.ep_key, sizeof o.ep_key, "%s", ep_key);
  return o;
}

// One side here and one in another process, each with its own options.
struct Two {
  Two(const Options& here_options, const Options& there_options, bool direct = true)
      : there(child_denying(!direct)) {
    const auto name = here.open(here_options);
    to_there = here.insert(there.open(there_options));
    to_here = there.insert(name);
    there.progress(true);
  }
  void expect_talk() {
    there.receive(1, 100);
    here.send(2, to_there, 100, 7);
    EXPECT_EQ(there.wait(1).err, 0);
    EXPECT_EQ(here.wait(2).err, 0);
    here.receive(3, 50000);
    there.send(4, to_here, 50000, 8);
    EXPECT_EQ(here.wait(3).err, 0);
    EXPECT_EQ(there.wait(4).err, 0);
    EXPECT_TRUE(here.verify(3, 50000, 8));
  }
  void expect_no_talk() {
    there.receive(1, 100);
    here.receive(2, 100);
    for (int again = 0; again < 2; ++again) {
      here.send(3, to_there, 100, 7);
      EXPECT_EQ(here.wait(3).err, FI_EACCES);
      EXPECT_TRUE(here.quiet(2)) << "exactly one completion";
    }
    there.send(4, to_here, 100, 8);
    EXPECT_EQ(there.wait(4).err, FI_EACCES);
    EXPECT_TRUE(there.quiet(2));
    EXPECT_TRUE(here.quiet(20)) << "nothing has come";
    EXPECT_TRUE(there.untouched(1));
  }
  void expect_reach(const Remote& remote, size_t size) {
    here.write(5, to_there, size, 99, remote);
    EXPECT_EQ(here.wait(5).err, 0);
    here.read(6, to_there, size, remote);
    EXPECT_EQ(here.wait(6).err, 0);
    EXPECT_TRUE(here.verify(6, size, 99));
  }
  void expect_no_reach(const Remote& remote, size_t size) {
    here.write(5, to_there, size, 99, remote);
    EXPECT_EQ(here.wait(5).err, FI_EACCES);
    here.read(6, to_there, size, remote);
    EXPECT_EQ(here.wait(6).err, FI_EACCES);
    EXPECT_TRUE(here.untouched(6));
    EXPECT_TRUE(here.quiet(2)) << "exactly one completion";
  }

  LocalSide here;
  RemoteSide there;
  fi_addr_t to_there = FI_ADDR_UNSPEC;
  fi_addr_t to_here = FI_ADDR_UNSPEC;
};

class AuthKey : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_aperture()) GTEST_SKIP() << provider_name() << " has no authorization keys";
  }
};

TEST_F(AuthKey, endpoints_with_the_same_key_communicate) {
  for (const bool direct : {true, false}) {
    Two two(with_keys("key of job one"), with_keys("key of job one"), direct);
    two.expect_talk();
    for (const size_t size : {size_t{64}, size_t{300000}}) {
      two.expect_reach(two.there.region_open(7, size, kAllAccess, 1), size);
    }
  }
}

TEST_F(AuthKey, only_endpoints_with_the_same_key_communicate) {
  Two(with_keys("key of job one"), with_keys("key of job two")).expect_no_talk();
  Two(with_keys("key of job one"), with_keys("key of job on")).expect_no_talk();
  Two(with_keys("key of job one"), with_keys("")).expect_no_talk();
  Two(with_keys(""), with_keys("key of job one")).expect_no_talk();
  Two(with_keys(""), with_keys("")).expect_talk();
}

TEST_F(AuthKey, remote_access_with_another_key_ends_with_one_error) {
  Two two(with_keys("key of job one"), with_keys("key of job two"));
  const Remote remote = two.there.region_open(7, 4096, kAllAccess, 1);
  two.expect_no_reach(remote, 4096);
  EXPECT_TRUE(two.there.region_verify(7, 1));
}

TEST_F(AuthKey, the_error_of_an_operation_says_that_the_keys_differ) {
  NodePair p(with_keys("key of job one"), with_keys("key of job two"));
  char memory[8] = {};
  Op ops[2];
  for (int i = 0; i < 2; ++i) {
    const auto call = [&] {
      return i == 0 ? fi_send(p.a.ep(), memory, 8, nullptr, p.to_b, &ops[i])
                    : fi_read(p.a.ep(), memory, 8, nullptr, p.to_b, 0, 1, &ops[i]);
    };
    ASSERT_EQ(post(call), 0);
    fi_cq_tagged_entry entry;
    ssize_t got = -FI_EAGAIN;
    for (const int64_t until = now_ns() + 20'000'000'000; got == -FI_EAGAIN && now_ns() < until;) {
      got = fi_cq_read(p.a.cq(), &entry, 1);
      p.b.poll();
    }
    ASSERT_EQ(got, -FI_EAVAIL);
    char text[512] = {};
    fi_cq_err_entry error{.err_data = text, .err_data_size = sizeof text};
    ASSERT_EQ(fi_cq_readerr(p.a.cq(), &error, 0), 1);
    EXPECT_EQ(error.err, FI_EACCES);
    EXPECT_EQ(error.op_context, &ops[i]);
    EXPECT_NE(std::string(text).find("another authorization key"), std::string::npos) << text;
  }
}

TEST_F(AuthKey, an_endpoint_without_one_takes_the_domains) {
  Two two(with_keys("key of job one"), with_keys("", "key of job one"));
  two.expect_talk();
}

TEST_F(AuthKey, an_endpoints_own_goes_before_the_domains) {
  Two(with_keys("domain", "endpoint"), with_keys("endpoint")).expect_talk();
  Two(with_keys("domain", "endpoint"), with_keys("domain")).expect_no_talk();
}

TEST_F(AuthKey, two_endpoints_of_one_domain_obey_their_keys) {
  Node a(with_keys("domain", "one"));
  Node b(with_keys("domain", "one"), a);
  Node c(with_keys("domain", "two"), a);
  Op in;
  char got[8] = {};
  ASSERT_EQ(fi_recv(b.ep(), got, sizeof got, nullptr, FI_ADDR_UNSPEC, &in), 0);
  const fi_addr_t to_b = a.insert(b.name());
  const fi_addr_t to_c = a.insert(c.name());
  ASSERT_EQ(a.run(fi_send, "same", 5, nullptr, to_b), 0);
  EXPECT_EQ(b.wait(&in).err, 0);
  ASSERT_EQ(a.run(fi_send, "other", 6, nullptr, to_c), FI_EACCES);
  EXPECT_TRUE(c.quiet());
}

TEST_F(AuthKey, only_peers_with_the_regions_key_reach_it) {
  for (const bool direct : {true, false}) {
    for (const size_t size : {size_t{64}, size_t{4096}, size_t{300000}}) {
      Two two(with_keys("", "shared"), with_keys("", "shared"), direct);
      two.expect_talk();
      two.expect_no_reach(two.there.region_open(7, size, kAllAccess, 1, "another"), size);
      EXPECT_TRUE(two.there.region_verify(7, 1));
      two.expect_no_reach(two.there.region_open(8, size, kAllAccess, 1, "share"), size);
      two.expect_reach(two.there.region_open(9, size, kAllAccess, 1, "shared"), size);
      two.expect_talk();
    }
  }
}

TEST_F(AuthKey, a_region_of_auth_key_size_0_takes_the_domains) {
  for (const bool direct : {true, false}) {
    Two apart(with_keys("", "shared"), with_keys("domain", "shared"), direct);
    apart.expect_no_reach(apart.there.region_open(7, 4096, kAllAccess, 1), 4096);
    apart.expect_reach(apart.there.region_open(8, 4096, kAllAccess, 1, "shared"), 4096);
    Two same(with_keys("domain"), with_keys("domain"), direct);
    same.expect_reach(same.there.region_open(7, 4096, kAllAccess, 1), 4096);
    same.expect_reach(same.there.region_open(8, 4096, kAllAccess, 1, "domain"), 4096);
    same.expect_no_reach(same.there.region_open(9, 4096, kAllAccess, 1, "shared"), 4096);
  }
}

int register_as(fid_domain* domain, void* buf, size_t len, uint64_t key, const char* auth_key,
                size_t auth_key_size, Fid<fid_mr>* out = nullptr) {
  const iovec iov{buf, len};
  fi_mr_attr attr{.mr_iov = &iov, .iov_count = 1, .access = kAllAccess, .requested_key = key};
  std::string text(auth_key != nullptr ? auth_key : "");
  attr.auth_key = auth_key != nullptr ? reinterpret_cast<uint8_t*>(text.data()) : nullptr;
  attr.auth_key_size = auth_key_size;
  fid_mr* mr = nullptr;
  const int rc = fi_mr_regattr(domain, &attr, 0, &mr);
  if (rc == 0 && out != nullptr) out->reset(mr);
  if (rc == 0 && out == nullptr) fi_close(&mr->fid);
  return rc;
}

TEST_F(AuthKey, a_requested_key_in_use_under_another_of_the_domain_is_refused) {
  for (const int mode : {0, FI_MR_RAW}) {
    Options o = with_keys("domain");
    o.mr_mode = mode;
    Node node(o);
    char memory[64];
    Fid<fid_mr> first;
    ASSERT_EQ(register_as(node.domain(), memory, 64, 77, "one", 3, &first), 0);
    EXPECT_EQ(register_as(node.domain(), memory, 64, 77, "two", 3), -FI_ENOKEY);
    EXPECT_EQ(register_as(node.domain(), memory, 64, 77, nullptr, 0), -FI_ENOKEY);
    EXPECT_EQ(register_as(node.domain(), memory, 64, 77, "one", 3), -FI_ENOKEY);
    EXPECT_EQ(register_as(node.domain(), memory, 64, 78, "two", 3), 0);
    Node other(o);
    EXPECT_EQ(register_as(other.domain(), memory, 64, 77, "one", 3), 0) << "in another domain";
    first.reset();
    EXPECT_EQ(register_as(node.domain(), memory, 64, 77, "two", 3), 0) << "free again";
  }
}

TEST_F(AuthKey, a_size_without_a_key_and_a_key_too_long_are_refused) {
  Node node(with_keys(""));
  char memory[64];
  const std::string longest(1024, 'k');
  EXPECT_EQ(register_as(node.domain(), memory, 64, 1, nullptr, 4), -FI_EINVAL);
  EXPECT_EQ(register_as(node.domain(), memory, 64, 1, longest.c_str(), 1024), 0);
  const std::string longer(1025, 'k');
  EXPECT_EQ(register_as(node.domain(), memory, 64, 1, longer.c_str(), 1025), -FI_EINVAL);

  Info info = get_info(with_keys(""));
  info->domain_attr->auth_key_size = 4;
  EXPECT_EQ(code_of(fi_domain, node.fabric(), info.get()), -FI_EINVAL);
  info->domain_attr->auth_key_size = 0;
  for (const size_t size : {size_t{4}, SIZE_MAX}) {  // FI_AV_AUTH_KEY of later libraries
    info->ep_attr->auth_key_size = size;
    EXPECT_EQ(code_of(fi_endpoint, node.domain(), info.get()), -FI_EINVAL);
  }
}

TEST_F(AuthKey, fi_getinfo_gives_back_what_is_asked_in_memory_of_its_own) {
  Info hints = make_hints(with_keys("of the domain", "of the endpoint"));
  fi_info* raw = nullptr;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &raw), 0);
  Info info(raw);
  const auto text = [](const uint8_t* key, size_t size) {
    return key != nullptr ? std::string(reinterpret_cast<const char*>(key), size) : "";
  };
  EXPECT_NE(info->domain_attr->auth_key, hints->domain_attr->auth_key);
  hints.reset();
  EXPECT_EQ(text(info->domain_attr->auth_key, info->domain_attr->auth_key_size), "of the domain");
  EXPECT_EQ(text(info->ep_attr->auth_key, info->ep_attr->auth_key_size), "of the endpoint");
  Info copy(fi_dupinfo(info.get()));
  EXPECT_EQ(text(copy->ep_attr->auth_key, copy->ep_attr->auth_key_size), "of the endpoint");

  hints = make_hints(with_keys(""));
  hints->domain_attr->auth_key_size = 1024;
  hints->ep_attr->auth_key_size = 16;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &raw), 0);
  info.reset(raw);
  EXPECT_EQ(info->domain_attr->auth_key_size, 1024u);
  EXPECT_EQ(info->domain_attr->auth_key, nullptr);
  EXPECT_EQ(info->ep_attr->auth_key_size, 16u);
  hints->domain_attr->auth_key_size = 1025;
  EXPECT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &raw), -FI_ENODATA);
  hints->domain_attr->auth_key_size = 0;
  hints->ep_attr->auth_key_size = 1025;
  EXPECT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &raw), -FI_ENODATA);
}

TEST_F(AuthKey, is_ignored_before_api_1_5) {
  Options o = with_keys("of job one", "of job one");
  o.mr_mode = FI_MR_UNSPEC;
  o.api = FI_VERSION(1, 4);
  o.caps = FI_MSG | FI_TAGGED;
  o.av_type = FI_AV_MAP;
  Node old(o);
  EXPECT_EQ(old.info()->domain_attr->auth_key_size, 0u);
  EXPECT_EQ(old.info()->ep_attr->auth_key_size, 0u);
  // fields that such an application never set
  old.info()->ep_attr->auth_key_size = 4;
  EXPECT_EQ(code_of(fi_endpoint, old.domain(), old.info()), 0);
  old.info()->ep_attr->auth_key_size = 0;
  Node plain(with_keys(""));
  Op in;
  char got[8];
  ASSERT_EQ(fi_recv(plain.ep(), got, sizeof got, nullptr, FI_ADDR_UNSPEC, &in), 0);
  const fi_addr_t to = old.insert(plain.name());
  ASSERT_EQ(old.run(fi_send, "hello", 6, nullptr, to), 0);
  EXPECT_EQ(plain.wait(&in).err, 0);
}

// --- connected endpoints ---

TEST_F(AuthKey, a_connection_needs_the_same_key) {
  StationOptions keyed{.domain_key = "of job one"};
  Station a(keyed);
  Station b(keyed);
  Connected c(a, b);  // the answering endpoint is opened with the info of FI_CONNREQ
  Op in;
  char got[8] = {};
  ASSERT_EQ(fi_recv(c.at_b.get(), got, sizeof got, nullptr, FI_ADDR_UNSPEC, &in), 0);
  ASSERT_EQ(a.run_at(c.at_a.get(), fi_send, "hello", 6, nullptr, 0), 0);
  EXPECT_EQ(b.wait(&in).err, 0);
  EXPECT_STREQ(got, "hello");
}

TEST_F(AuthKey, a_connection_with_another_key_ends_with_an_error_event) {
  StationOptions one, two, ep_only, none;
  one.domain_key = "of job one";
  two.domain_key = "of job two";
  ep_only.ep_key = "of job one";
  struct {
    const StationOptions& from;
    const StationOptions& to;
    bool may;
  } cases[] = {{one, two, false},    {one, none, false},   {none, one, false},
               {one, ep_only, true}, {ep_only, one, true}, {ep_only, two, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.from.domain_key) + "/" + c.from.ep_key + " to " + c.to.domain_key +
                 "/" + c.to.ep_key);
    Station from(c.from);
    Station to(c.to);
    auto pep = to.passive();
    auto ep = ask_for_connection(from, pep.get());
    if (c.may) {
      const CmEvent request = to.expect(FI_CONNREQ, &pep->fid);
      ASSERT_NE(request.info, nullptr);
      auto answering = to.open(request.info.get());
      EXPECT_EQ(fi_accept(answering.get(), nullptr, 0), 0);
      from.expect(FI_CONNECTED, &ep->fid);
    } else {
      from.expect_error(FI_EACCES, &ep->fid);
      EXPECT_TRUE(from.no_event());
      EXPECT_TRUE(to.no_event()) << "no FI_CONNREQ";
    }
  }
}

TEST_F(AuthKey, accepting_with_an_endpoint_of_another_key_is_refused) {
  StationOptions keyed{.ep_key = "of job one"};
  Station from(keyed);
  Station to(keyed);
  auto pep = to.passive();
  auto ep = ask_for_connection(from, pep.get());
  CmEvent request = to.expect(FI_CONNREQ, &pep->fid);
  ASSERT_NE(request.info, nullptr);
  ASSERT_NE(request.info->ep_attr->auth_key, nullptr);
  request.info->ep_attr->auth_key[0] ^= 1;
  auto answering = to.open(request.info.get());
  EXPECT_EQ(fi_accept(answering.get(), nullptr, 0), -FI_EACCES);
  from.expect_error(FI_EACCES, &ep->fid);
}

TEST_F(AuthKey, a_passive_endpoint_refuses_a_size_without_a_key) {
  Station s;
  s.info()->ep_attr->auth_key_size = 3;
  EXPECT_EQ(code_of(fi_passive_ep, s.fabric(), s.info()), -FI_EINVAL);
  s.info()->ep_attr->auth_key_size = 0;
  s.info()->domain_attr->auth_key_size = 3;
  EXPECT_EQ(code_of(fi_passive_ep, s.fabric(), s.info()), -FI_EINVAL);
  s.info()->domain_attr->auth_key_size = 0;
}

// --- what is said ---

constexpr char kSpoken[] = "zq7Kx!pW9vB2#tL5mJ8";

// Everything that can be done with a key, with stderr in the file that the parent named.
DOOR_ROLE(keyed) {
  if (!say_to_parent()) return 1;
  bool right = false;
  {
    NodePair p(with_keys(kSpoken));
    Node stranger(with_keys("another key"));
    Region region(p.b, 64, FI_REMOTE_READ, 1, kSpoken);
    Op op;
    p.a.post(fi_write, "12345678", 8, nullptr, p.to_b, region.remote().base, region.remote().key,
             &op);
    right = p.a.wait(&op).err == FI_EACCES;
    const fi_addr_t to = stranger.insert(p.b.name());
    stranger.post(fi_send, "x", 1, nullptr, to, &op);
    right = right && stranger.wait(&op).err == FI_EACCES;
    Station s({.domain_key = kSpoken});
    Connected c(s, s);
    Info info = get_info(with_keys(kSpoken));
    const std::string words = fi_tostr(info.get(), FI_TYPE_INFO);
    right = right && words.find(kSpoken) == std::string::npos;
  }
  control.put(right);
  return right ? 0 : 2;
}

TEST_F(AuthKey, hostile_41_is_in_no_log_at_any_level) {
  const std::string text = said_by("keyed", "debug");
  EXPECT_NE(text.find("authorization key"), std::string::npos) << "the refusal is explained";
  EXPECT_NE(text.find("give both endpoints the same auth_key"), std::string::npos);
  const std::string key = kSpoken;
  for (size_t i = 0; i + 6 <= key.size(); ++i) {  // not even a part of it, nor in hexadecimal
    const std::string part = key.substr(i, 6);
    std::string hex;
    for (const char c : part) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(c));
      hex += two;
    }
    EXPECT_EQ(text.find(part), std::string::npos) << part;
    EXPECT_EQ(text.find(hex), std::string::npos) << hex;
  }
}

}  // namespace
}  // namespace aperture::doors
