// Connection requests from peers that mean no good, or end in the middle. The numbers are those of
// the project's list of hostile inputs.
#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

using wire::Why;

// A passive endpoint, and a record of the requests that come to it.
class Passive final : public ContactEvents {
 public:
  explicit Passive(size_t backlog = 8) {
    ListenSpec spec;
    spec.local = loopback_v4();
    spec.events = this;
    spec.what = ListenFor::requests;
    spec.backlog = backlog;
    auto listening = contact().listen(spec, address);
    EXPECT_TRUE(listening.ok());
    if (listening.ok()) id_ = listening.value();
  }
  ~Passive() override { contact().unlisten(id_); }

  std::optional<ConnectionRequest> next(int timeout_ms = 3000) {
    return take(requests_, timeout_ms);
  }
  std::optional<RequestId> gone(int timeout_ms = 3000) { return take(gone_, timeout_ms); }

  void on_request(const ConnectionRequest& request) noexcept override { put(requests_, request); }
  void on_request_gone(RequestId id) noexcept override { put(gone_, id); }
  void on_lane_up(const Address&, std::unique_ptr<link::Lane>) noexcept override {}
  void on_connect_failed(const Address&, Errc) noexcept override {}
  void on_lane_down(link::Lane*, Errc) noexcept override {}

  Address address;

 private:
  template <typename T>
  std::optional<T> take(std::deque<T>& from, int timeout_ms) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return !from.empty(); })) {
      return std::nullopt;
    }
    T first = from.front();
    from.pop_front();
    return first;
  }
  template <typename T>
  void put(std::deque<T>& to, const T& what) {
    const std::lock_guard guard(mutex_);
    to.push_back(what);
    changed_.notify_all();
  }

  ListenerId id_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ConnectionRequest> requests_;
  std::deque<RequestId> gone_;
};

// A client that has joined and may ask.
struct Asker : RawClient {
  explicit Asker(const Address& to) : RawClient(to) { EXPECT_TRUE(enter()); }
  wire::Connect good_connect(uint32_t lane = 0) const {
    wire::Connect connect;
    connect.open = good_open();
    connect.open.lane = Wild<uint32_t>(lane);
    connect.data.size = 3;
    connect.data.bytes[0] = std::byte{'a'};
    return connect;
  }
  bool tell(std::span<const std::byte> bytes, std::vector<int> fds = {}) {
    return send_packet(unix_socket.get(), bytes, fds).ok();
  }
  bool ask(const wire::Connect& connect) {
    return tell(wire::encode(connect).view(), {sealed_segment(), doorbell()});
  }
  // Another ticket for the same process.
  void greet_again() {
    auto socket = connect_tcp(hello.destination);
    ASSERT_TRUE(socket.ok());
    tcp = *std::move(socket);
    pollfd p{tcp.get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&p, 1, 3000), 1);
    ASSERT_TRUE(greet());
  }
  std::optional<Why> why_not() {
    Packet packet;
    if (!receive(packet)) return std::nullopt;
    const auto reject = wire::decode_reject(packet.view());
    if (!reject) return std::nullopt;
    return reject.value().why;
  }
  bool refused() {
    Packet packet;
    return receive(packet) && wire::decode_refuse(packet.view()).ok();
  }
};

class HostileRequests : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(contact().census().requests, 0u); }
  // The victim still hears honest requests.
  static void expect_well(Passive& victim) {
    Asker honest(victim.address);
    ASSERT_TRUE(honest.ask(honest.good_connect()));
    const auto request = victim.next();
    ASSERT_TRUE(request);
    EXPECT_EQ(request->remote, honest.hello.source);
    EXPECT_EQ(request->data.size, 3u);
    contact().refuse(request->id, {});
    EXPECT_TRUE(honest.refused());
  }
};

TEST_F(HostileRequests, hostile_31_private_data_above_its_limit_ends_the_peer) {
  Passive victim;
  for (const uint32_t size : {257u, 0xffffffffu}) {
    Asker liar(victim.address);
    auto packet = wire::encode(liar.good_connect());
    std::memcpy(packet.bytes.data() + 100, &size, sizeof size);
    ASSERT_TRUE(liar.tell(packet.view(), {sealed_segment(), doorbell()}));
    EXPECT_TRUE(closed_by_peer(liar.unix_socket.get()));
  }
  Asker sloppy(victim.address);
  auto packet = wire::encode(sloppy.good_connect());
  packet.bytes[packet.size - 1] = std::byte{1};  // behind the end of the data
  ASSERT_TRUE(sloppy.tell(packet.view(), {sealed_segment(), doorbell()}));
  EXPECT_TRUE(closed_by_peer(sloppy.unix_socket.get()));
  EXPECT_FALSE(victim.next(0));
  expect_well(victim);
}

TEST_F(HostileRequests, hostile_31_a_slow_handshake_is_cut_off_at_a_passive_endpoint) {
  contact().listener_limits.timeout_ns = 200'000'000;
  {
    Passive victim;
    RawClient slow(victim.address);
    const auto bytes = wire::encode(slow.hello);
    bool cut = false;
    for (size_t i = 0; i < bytes.size() && !cut; ++i) {
      cut = !slow.say({bytes.data() + i, 1}) || closed_by_peer(slow.tcp.get(), 10);
    }
    EXPECT_TRUE(cut);
    Asker silent(victim.address);  // joined, and then nothing
    EXPECT_TRUE(closed_by_peer(silent.unix_socket.get()));
    EXPECT_FALSE(victim.next(0));
  }
  contact().listener_limits.timeout_ns = 5'000'000'000;
}

TEST_F(HostileRequests, a_request_may_wait_for_as_long_as_it_likes_and_a_refused_one_is_no_lane) {
  contact().listener_limits.timeout_ns = 200'000'000;
  {
    Passive victim;
    Asker asker(victim.address);
    ASSERT_TRUE(asker.ask(asker.good_connect()));
    const auto request = victim.next();
    ASSERT_TRUE(request);
    EXPECT_FALSE(readable(asker.unix_socket.get(), 500)) << "the application has not answered";
    contact().refuse(request->id, {});
    EXPECT_TRUE(asker.refused());
    EXPECT_TRUE(closed_by_peer(asker.unix_socket.get()));
  }
  contact().listener_limits.timeout_ns = 5'000'000'000;
}

TEST_F(HostileRequests, hostile_30_who_ends_in_the_middle_takes_the_request_along) {
  Passive victim;
  {
    Asker asker(victim.address);
    ASSERT_TRUE(asker.ask(asker.good_connect()));
    const auto request = victim.next();
    ASSERT_TRUE(request);
    asker.unix_socket.reset();
    EXPECT_EQ(victim.gone(), request->id);
    ListenerId id = 0;
    ListenSpec spec;
    Side side;
    spec.doorbell_fd = doorbell();
    spec.events = &side;
    spec.what = ListenFor::nobody;
    EXPECT_EQ(contact().accept(request->id, spec, {}, id).error(), Errc::no_entry);
    contact().refuse(request->id, {});  // in vain, and harmless
  }
  {
    Asker half(victim.address);  // a part of a message, then the end
    const auto packet = wire::encode(half.good_connect());
    ASSERT_TRUE(half.tell(packet.view().first(120), {sealed_segment(), doorbell()}));
    EXPECT_TRUE(closed_by_peer(half.unix_socket.get()));
    EXPECT_FALSE(victim.next(0));
  }
  expect_well(victim);
}

// Each would be looked for among all requests, as fast as they can be sent.
TEST_F(HostileRequests, a_false_withdrawal_over_tcp_ends_the_connection) {
  Passive victim;
  RawClient far(victim.address);
  far.hello.boot_id[0] ^= 1;
  ASSERT_EQ(far.verdict(), wire::Verdict::stays);
  wire::Connect connect;
  connect.open = far.good_open();
  connect.open.segment = Wild<uint32_t>(0);
  ASSERT_TRUE(far.say(wire::encode(connect).view()));
  const auto request = victim.next();
  ASSERT_TRUE(request);
  wire::Withdraw withdraw;
  withdraw.attempt = Wild<uint32_t>(99);
  std::vector<std::byte> many;
  for (int i = 0; i < 1000; ++i) {
    const auto packet = wire::encode(withdraw);
    many.insert(many.end(), packet.view().begin(), packet.view().end());
  }
  ASSERT_TRUE(far.say(many));
  EXPECT_TRUE(closed_by_peer(far.tcp.get()));
  EXPECT_EQ(victim.gone(), request->id);
  expect_well(victim);
}

TEST_F(HostileRequests, a_withdrawal_is_answered_once_and_a_false_one_not_at_all) {
  Passive victim;
  Asker asker(victim.address);
  wire::Withdraw withdraw;
  withdraw.attempt = Wild<uint32_t>(99);
  ASSERT_TRUE(asker.tell(wire::encode(withdraw).view()));
  ASSERT_TRUE(asker.ask(asker.good_connect()));
  const auto request = victim.next();
  ASSERT_TRUE(request);
  withdraw.attempt = Wild<uint32_t>(1);
  ASSERT_TRUE(asker.tell(wire::encode(withdraw).view()));
  EXPECT_EQ(victim.gone(), request->id);
  EXPECT_TRUE(asker.refused());
  ASSERT_TRUE(asker.tell(wire::encode(withdraw).view()));
  expect_well(victim);
  EXPECT_FALSE(readable(asker.unix_socket.get(), 20)) << "the connection lives, and is silent";
}

TEST_F(HostileRequests, a_lane_that_waits_cannot_be_closed_or_asked_for_again) {
  Passive victim;
  Asker asker(victim.address);
  ASSERT_TRUE(asker.ask(asker.good_connect(3)));
  const auto first = victim.next();
  ASSERT_TRUE(first);
  asker.greet_again();
  ASSERT_TRUE(asker.ask(asker.good_connect(3)));
  EXPECT_EQ(asker.why_not(), Why::bad_lane);
  EXPECT_FALSE(victim.next(0));
  wire::LaneClose close;
  close.segment = Wild<uint32_t>(1);
  close.lane = Wild<uint32_t>(3);
  close.of_sender = true;
  ASSERT_TRUE(asker.tell(wire::encode(close).view()));
  EXPECT_TRUE(closed_by_peer(asker.unix_socket.get()));
  EXPECT_EQ(victim.gone(), first->id);
  expect_well(victim);
}

TEST_F(HostileRequests, hostile_5_a_ticket_asks_once) {
  Passive victim;
  Asker asker(victim.address);
  const auto connect = asker.good_connect();
  ASSERT_TRUE(asker.ask(connect));
  const auto request = victim.next();
  ASSERT_TRUE(request);
  ASSERT_TRUE(asker.ask(connect));
  EXPECT_EQ(asker.why_not(), Why::bad_ticket);
  auto wrong = connect;
  wrong.open.nonce[0] ^= 1;
  ASSERT_TRUE(asker.ask(wrong));
  EXPECT_EQ(asker.why_not(), Why::bad_ticket);
  contact().refuse(request->id, {});
  EXPECT_TRUE(asker.refused());
}

TEST_F(HostileRequests, datagram_and_passive_endpoints_are_not_mistaken_for_each_other) {
  Passive passive;
  Side datagram;
  Asker asker(datagram.address());
  ASSERT_TRUE(asker.ask(asker.good_connect()));
  EXPECT_EQ(asker.why_not(), Why::wrong_kind);
  Asker opener(passive.address);
  EXPECT_EQ(opener.refusal(opener.good_open()), Why::wrong_kind);
  datagram.connect(passive.address);
  EXPECT_EQ(datagram.failure(), Errc::refused);
  EXPECT_FALSE(passive.next(0));
}

TEST_F(HostileRequests, hostile_34_one_that_asks_for_ever_fills_the_backlog_and_no_more) {
  Passive victim(4);
  Asker asker(victim.address);
  for (uint32_t i = 0; i < 8; ++i) {
    if (i != 0) asker.greet_again();
    ASSERT_TRUE(asker.ask(asker.good_connect(i)));
    if (i < 4) {
      ASSERT_TRUE(victim.next()) << "heard, before the connection of its ticket is closed";
    } else {
      EXPECT_EQ(asker.why_not(), Why::no_resources);
    }
  }
  EXPECT_EQ(contact().census().requests, 4u);
  asker.unix_socket.reset();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(victim.gone());
  expect_well(victim);
}

TEST_F(HostileRequests, an_answer_that_nobody_asked_for_ends_the_peer) {
  Passive victim;
  Asker asker(victim.address);
  ASSERT_TRUE(asker.tell(wire::encode(wire::Connected{}).view()));
  EXPECT_TRUE(closed_by_peer(asker.unix_socket.get()));
  Asker other(victim.address);
  ASSERT_TRUE(other.tell(wire::encode(wire::Refuse{}).view()));  // may cross with our end
  EXPECT_FALSE(readable(other.unix_socket.get(), 20));
  expect_well(victim);
}

}  // namespace
}  // namespace aperture::nic::test
