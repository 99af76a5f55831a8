// fi_av(3): maps and tables, insertion one by one and by the ten thousand, lookup, removal, and
// what is refused.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>

#include <set>

#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

sockaddr_in address(uint32_t host, uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(host);
  a.sin_port = htons(port);
  return a;
}

bool same(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_family == b.sin_family && a.sin_port == b.sin_port &&
         a.sin_addr.s_addr == b.sin_addr.s_addr;
}

class Av : public testing::TestWithParam<fi_av_type> {
 protected:
  static Options options() { return {.av_type = GetParam()}; }
  void SetUp() override {
    if (node.info()->addr_format == FI_SOCKADDR_IN) return;
    EXPECT_FALSE(on_aperture()) << "IPv4 was asked for";
    GTEST_SKIP() << "not addressed by IPv4";
  }
  fid_av* av() { return node.av(); }
  sockaddr_in looked_up(fi_addr_t addr) {
    sockaddr_in back{};
    size_t len = sizeof back;
    EXPECT_EQ(fi_av_lookup(av(), addr, &back, &len), 0);
    EXPECT_GE(len, sizeof back);
    return back;
  }
  Node node{options()};
};

TEST_P(Av, ten_thousand_addresses_in_one_call_and_one_by_one) {
  constexpr size_t kCount = 10000;
  std::vector<sockaddr_in> in(kCount);
  for (size_t i = 0; i < kCount; ++i)
    in[i] = address(0x7F000001 + static_cast<uint32_t>(i / 60000), static_cast<uint16_t>(1024 + i));
  std::vector<fi_addr_t> out(kCount, FI_ADDR_NOTAVAIL);
  ASSERT_EQ(fi_av_insert(av(), in.data(), kCount / 2, out.data(), 0, nullptr),
            static_cast<int>(kCount / 2));
  for (size_t i = kCount / 2; i < kCount; ++i)
    ASSERT_EQ(fi_av_insert(av(), &in[i], 1, &out[i], i % 2 ? FI_MORE : 0, nullptr), 1);
  EXPECT_EQ(std::set<fi_addr_t>(out.begin(), out.end()).size(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(GetParam() != FI_AV_TABLE || out[i] == i) << "a table counts";
    ASSERT_TRUE(same(looked_up(out[i]), in[i])) << i;
  }
}

TEST_P(Av, an_inserted_endpoint_can_be_talked_to) {
  Node other(options());
  const fi_addr_t to = node.insert(other.name());
  uint8_t in = 0;
  Op receive;
  ASSERT_EQ(fi_recv(other.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(node.post(fi_inject, "a", 1, to), 0);
  EXPECT_EQ(other.wait(&receive).err, 0);
  EXPECT_EQ(in, 'a');
}

TEST_P(Av, insertsvc_resolves_names_and_services) {
  fi_addr_t addr = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insertsvc(av(), "127.0.0.1", "4711", &addr, 0, nullptr), 1);
  EXPECT_TRUE(same(looked_up(addr), address(INADDR_LOOPBACK, 4711)));
  EXPECT_LE(fi_av_insertsvc(av(), "no-such-host.invalid", "4712", &addr, 0, nullptr), 0);
  EXPECT_LE(fi_av_insertsvc(av(), "127.0.0.1", "no-such-service", &addr, 0, nullptr), 0);
  if (on_aperture()) {
    EXPECT_EQ(fi_av_insertsvc(av(), nullptr, "4712", &addr, 0, nullptr), -FI_EINVAL);
    EXPECT_EQ(fi_av_insertsvc(av(), "127.0.0.1", nullptr, &addr, 0, nullptr), -FI_EINVAL);
  }
}

TEST_P(Av, insertsvc_resolves_a_host_name) {
  addrinfo* known = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &known) != 0)
    GTEST_SKIP() << "this host knows no name, not even localhost (it has no /etc/hosts)";
  freeaddrinfo(known);
  fi_addr_t addr = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insertsvc(av(), "localhost", "4712", &addr, 0, nullptr), 1);
  EXPECT_NE(addr, FI_ADDR_NOTAVAIL);
}

TEST_P(Av, insertsym_counts_hosts_and_ports) {
  fi_addr_t out[6];
  const int n = fi_av_insertsym(av(), "127.0.0.1", 2, "5000", 3, out, 0, nullptr);
  if (n == -FI_ENOSYS && !on_aperture()) GTEST_SKIP() << "not offered";
  ASSERT_EQ(n, 6);
  for (uint32_t i = 0; i < 6; ++i) {
    const auto port = static_cast<uint16_t>(5000 + i % 3);
    EXPECT_TRUE(same(looked_up(out[i]), address(INADDR_LOOPBACK + i / 3, port))) << i;
  }
}

TEST_P(Av, insertsym_takes_no_more_ports_than_there_are) {
  if (!on_aperture()) GTEST_SKIP() << "not everybody looks";
  fi_addr_t out[2];
  for (const size_t count : {size_t{65536}, size_t{60537}, SIZE_MAX, SIZE_MAX - 4998}) {
    EXPECT_EQ(fi_av_insertsym(av(), "127.0.0.1", 1, "5000", count, out, 0, nullptr), -FI_EINVAL);
  }
  EXPECT_EQ(fi_av_insertsym(av(), "127.0.0.1", 1, "-1", 2, out, 0, nullptr), -FI_EINVAL);
}

// An address is a number, not a name that ends in one.
TEST(AvOfSixes, insertsym_counts_an_address_up) {
  if (!on_aperture()) GTEST_SKIP() << "not everybody does";
  Info hints = make_hints({});
  hints->addr_format = FI_SOCKADDR_IN6;
  fi_info* raw = nullptr;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &raw), 0);
  const Info info(raw);
  fid_fabric* fabric = nullptr;
  ASSERT_EQ(fi_fabric(info->fabric_attr, &fabric, nullptr), 0);
  const Fid<fid_fabric> own_fabric(fabric);
  const Fid<fid_domain> domain = DOOR_MADE(fi_domain, fabric, info.get());
  fi_av_attr attr{.type = FI_AV_MAP};
  const Fid<fid_av> av = DOOR_MADE(fi_av_open, domain.get(), &attr);
  const auto expect_last = [&](const char* first, size_t count, const char* last) {
    std::vector<fi_addr_t> out(count);
    ASSERT_EQ(fi_av_insertsym(av.get(), first, count, "5000", 1, out.data(), 0, nullptr),
              static_cast<int>(count))
        << first;
    sockaddr_in6 found{};
    size_t len = sizeof found;
    ASSERT_EQ(fi_av_lookup(av.get(), out.back(), &found, &len), 0);
    char text[INET6_ADDRSTRLEN];
    EXPECT_STREQ(inet_ntop(AF_INET6, &found.sin6_addr, text, sizeof text), last);
  };
  expect_last("fd00::9", 2, "fd00::a");
  expect_last("fd00::a", 3, "fd00::c");
  expect_last("fd00::ffff", 2, "fd00::1:0");
  expect_last("fd00::fffe:ffff", 258, "fd00::ffff:100");
}

TEST_P(Av, lookup_into_a_short_buffer_tells_the_length) {
  const sockaddr_in one = address(INADDR_LOOPBACK, 4711);
  fi_addr_t addr;
  ASSERT_EQ(fi_av_insert(av(), &one, 1, &addr, 0, nullptr), 1);
  uint8_t bytes[sizeof one + 8];
  std::memset(bytes, 0xEE, sizeof bytes);
  size_t len = 4;
  const int code = fi_av_lookup(av(), addr, bytes, &len);
  EXPECT_TRUE(code == 0 || code == -FI_ETOOSMALL) << code;
  EXPECT_GE(len, sizeof one);
  EXPECT_EQ(bytes[4], 0xEE) << "written beyond the buffer";
  len = 0;
  fi_av_lookup(av(), addr, nullptr, &len);
  EXPECT_GE(len, sizeof one);
}

TEST_P(Av, straddr_prints_and_tells_the_length_it_needs) {
  const sockaddr_in one = address(INADDR_LOOPBACK, 4711);
  char text[200];
  size_t len = sizeof text;
  ASSERT_NE(fi_av_straddr(av(), &one, text, &len), nullptr);
  EXPECT_NE(std::string(text).find("127.0.0.1"), std::string::npos) << text;
  EXPECT_NE(std::string(text).find("4711"), std::string::npos) << text;
  EXPECT_EQ(len, std::strlen(text) + 1);
  char small[8];
  std::memset(small, 'z', sizeof small);
  size_t small_len = 4;
  fi_av_straddr(av(), &one, small, &small_len);
  EXPECT_EQ(small_len, std::strlen(text) + 1) << "what would have been needed";
  EXPECT_EQ(small[4], 'z');
}

TEST_P(Av, a_removed_address_is_gone_and_others_stay) {
  sockaddr_in in[3] = {address(INADDR_LOOPBACK, 1), address(INADDR_LOOPBACK, 2),
                       address(INADDR_LOOPBACK, 3)};
  fi_addr_t out[3];
  ASSERT_EQ(fi_av_insert(av(), in, 3, out, 0, nullptr), 3);
  ASSERT_EQ(fi_av_remove(av(), &out[1], 1, 0), 0);
  sockaddr_in back{};
  size_t len = sizeof back;
  EXPECT_LT(fi_av_lookup(av(), out[1], &back, &len), 0);
  for (int i : {0, 2}) EXPECT_TRUE(same(looked_up(out[i]), in[i]));
  if (on_aperture()) {
    EXPECT_LT(fi_av_remove(av(), &out[1], 1, 0), 0) << "twice";
    fi_addr_t again = FI_ADDR_NOTAVAIL;
    ASSERT_EQ(fi_av_insert(av(), &in[1], 1, &again, 0, nullptr), 1);
    if (GetParam() == FI_AV_TABLE) {
      EXPECT_EQ(again, 1u) << "the lowest free index";
    }
    Op op;
    EXPECT_LT(fi_send(node.ep(), "x", 1, nullptr, out[1] + 1000000, &op), 0)
        << "an address that was never given out";
  }
}

TEST_P(Av, bad_calls_are_refused_and_insert_nothing) {
  if (!on_aperture()) GTEST_SKIP() << "others take some of these";
  const sockaddr_in one = address(INADDR_LOOPBACK, 4711);
  fi_addr_t addr = 1234;
  EXPECT_EQ(fi_av_insert(av(), &one, 0, &addr, 0, nullptr), 0) << "zero addresses are none";
  EXPECT_EQ(fi_av_insert(av(), nullptr, 1, &addr, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_av_insert(av(), &one, 1, &addr, 1ull << 60, nullptr), -FI_EBADFLAGS);
  EXPECT_EQ(fi_av_insert(av(), &one, 1, nullptr, FI_AV_USER_ID, nullptr), -FI_EINVAL)
      << "the array of the ids is missing";
  EXPECT_EQ(fi_av_insert(av(), &one, 1, &addr, FI_SYNC_ERR, nullptr), -FI_EINVAL)
      << "the array for the errors is missing";
  EXPECT_EQ(addr, 1234u);
  EXPECT_EQ(fi_av_remove(av(), &addr, 1, 1), -FI_EBADFLAGS);
  EXPECT_EQ(fi_av_remove(av(), nullptr, 1, 0), -FI_EINVAL);
  EXPECT_EQ(fi_av_remove(av(), &addr, 0, 0), 0);
  EXPECT_EQ(fi_av_lookup(av(), 0, nullptr, nullptr), -FI_EINVAL);
  if (GetParam() == FI_AV_MAP) {
    EXPECT_EQ(fi_av_insert(av(), &one, 1, nullptr, 0, nullptr), -FI_EINVAL)
        << "a map has to hand its addresses back";
  } else {
    EXPECT_EQ(fi_av_insert(av(), &one, 1, nullptr, 0, nullptr), 1) << "a table need not";
  }
}

TEST_P(Av, a_bad_address_in_a_list_is_marked_and_the_others_inserted) {
  sockaddr_in in[3] = {address(INADDR_LOOPBACK, 1), address(INADDR_LOOPBACK, 2),
                       address(INADDR_LOOPBACK, 3)};
  in[1].sin_family = 250;
  fi_addr_t out[3] = {};
  int errors[3] = {-1, -1, -1};
  const int n = fi_av_insert(av(), in, 3, out, FI_SYNC_ERR, errors);
  if (!on_aperture()) GTEST_SKIP() << "others look at addresses later";
  EXPECT_EQ(n, 2);
  EXPECT_EQ(out[1], FI_ADDR_NOTAVAIL);
  EXPECT_NE(out[0], FI_ADDR_NOTAVAIL);
  EXPECT_NE(out[2], FI_ADDR_NOTAVAIL);
  EXPECT_EQ(errors[0], 0);
  EXPECT_GT(errors[1], 0) << "a fabric errno code";
  EXPECT_EQ(errors[2], 0);
}

TEST_P(Av, is_opened_as_the_type_asked_for) {
  fi_av_attr attr{.type = FI_AV_UNSPEC, .count = 100};
  fid_av* opened = nullptr;
  ASSERT_EQ(fi_av_open(node.domain(), &attr, &opened, &attr), 0);
  EXPECT_NE(attr.type, FI_AV_UNSPEC) << "the type that was chosen comes back";
  EXPECT_EQ(opened->fid.context, &attr);
  EXPECT_EQ(fi_close(&opened->fid), 0);
  if (!on_aperture()) return;
  attr.type = no_such_value<fi_av_type>(17);
  EXPECT_EQ(code_of(fi_av_open, node.domain(), &attr), -FI_EINVAL);
  attr = {.type = GetParam(), .count = 100, .flags = 1ull << 60};
  EXPECT_EQ(code_of(fi_av_open, node.domain(), &attr), -FI_EBADFLAGS);
  attr = {.type = GetParam(), .count = 100, .flags = FI_READ};
  EXPECT_EQ(code_of(fi_av_open, node.domain(), &attr), -FI_EINVAL) << "it has no name";
}

TEST_P(Av, asynchronous_insertion_needs_an_event_queue_and_reports_to_it) {
  fi_av_attr attr{.type = GetParam(), .flags = FI_EVENT};
  fid_av* raw = nullptr;
  const int code = fi_av_open(node.domain(), &attr, &raw, nullptr);
  if (code != 0) {
    EXPECT_TRUE(code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EBADFLAGS) << code;
    EXPECT_FALSE(on_aperture()) << "offered here";
    GTEST_SKIP() << "refused, not taken silently";
  }
  Fid<fid_av> async(raw);
  sockaddr_in in[2] = {address(INADDR_LOOPBACK, 1), address(INADDR_LOOPBACK, 2)};
  fi_addr_t out[2];
  if (on_aperture()) {
    EXPECT_EQ(fi_av_insert(raw, in, 2, out, 0, nullptr), -FI_ENOEQ);
  }
  fi_eq_attr eq_attr{};
  const Fid<fid_eq> eq = DOOR_MADE(fi_eq_open, node.fabric(), &eq_attr);
  ASSERT_EQ(fi_av_bind(raw, &eq->fid, 0), 0);
  EXPECT_EQ(fi_av_insert(raw, in, 2, out, 0, &attr), 0);
  uint32_t event = 0;
  fi_eq_entry entry{};
  ASSERT_TRUE(pump_until(
      [&] { return fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0) == sizeof entry; }));
  EXPECT_EQ(event, static_cast<uint32_t>(FI_AV_COMPLETE));
  EXPECT_EQ(entry.fid, &raw->fid);
  EXPECT_EQ(entry.context, &attr);
  EXPECT_EQ(entry.data, 2u);
  async.reset();
}

TEST_P(Av, cannot_be_closed_while_an_endpoint_uses_it) {
  EXPECT_EQ(fi_close(&av()->fid), -FI_EBUSY);
  const fi_addr_t self = node.insert(node.name());
  EXPECT_NE(self, FI_ADDR_NOTAVAIL) << "it goes on working";
}

INSTANTIATE_TEST_SUITE_P(Types, Av, testing::Values(FI_AV_MAP, FI_AV_TABLE), [](const auto& p) {
  return p.param == FI_AV_MAP ? std::string("map") : std::string("table");
});

}  // namespace
}  // namespace aperture::doors
