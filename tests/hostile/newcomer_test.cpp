// Hostile inputs 33 and 34 at full rate: processes of another user begin handshake after handshake,
// open lane after lane and endpoint after endpoint, without a pause, and a newcomer gets in all the
// same. How long it takes is shown: with nobody else about, beside a flood that goes to another
// process (which takes as much of the machine), and beside one that comes to ours. The latter takes
// the time of the victim's control thread: where that gets no processor, the kernel's queue of
// connections stays full, and newcomers wait for a place in it.
//
// APERTURE_NEWCOMERS: how many of each (default 5; ./dev soak: 50).
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "doors/few_descriptors.hpp"
#include "doors/nursery.hpp"
#include "doors/region.hpp"
#include "hostile/live.hpp"
#include "nic/raw_client.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::Control;
using doors::Name;
using doors::Node;
using doors::Op;
using nic::test::RawClient;

constexpr rlim_t kDescriptors = 512;
constexpr int kWait_ms = 60000;
constexpr uid_t kFlooding = 4712;

enum class Flood : uint32_t { handshakes, lanes, endpoints };
constexpr Flood kFloods[] = {Flood::handshakes, Flood::lanes, Flood::endpoints, Flood::handshakes};

doors::Options options() {
  return {.mr_mode = doors::kBasicMr};
}

// An order to a flood.
struct Aim {
  Name victim;
  Flood flood;
};

Address address_of(const Name& name) {
  sockaddr_in in{};
  std::memcpy(&in, name.data(), sizeof in);
  EXPECT_EQ(in.sin_family, AF_INET);
  return Address::v4(ntohl(in.sin_addr.s_addr), ntohs(in.sin_port));
}

// --- the flood -----------------------------------------------------------------------------------

// Each as far as it comes without an answer, and many of them at once.
void begin_handshake(const Address& victim, std::deque<ParentOnlyFd>& open) {
  constexpr size_t kAtOnce = 128;
  auto tcp = nic::connect_tcp(victim);
  if (!tcp) return;
  if (open.size() % 2 == 0)
    (void)nic::send_bytes(tcp->get(), wire::encode(RawClient::hello_to(victim)));
  open.push_back(*std::move(tcp));
  if (open.size() <= kAtOnce) return;
  nic::close_without_waiting(open.front().get());
  open.pop_front();
}

// A process anew each time, which gets one lane and is gone.
void open_lane(const Address& victim, const Address& own) {
  RawClient client(victim);
  client.hello.source = own;
  if (!client.greet() || client.answer.verdict != wire::Verdict::offered) return;
  if (!client.knock() || !client.join(client.answer.nonce)) return;
  wire::Open open = client.good_open();
  open.source = own;
  static auto segment = link::shm::Segment::create();
  if (segment.ok()) (void)client.open(open, {(*segment)->fd()});
}

void open_endpoint(Node& host, const Name& victim, std::deque<std::unique_ptr<Node>>& open) {
  constexpr size_t kAtOnce = 32;
  open.push_back(std::make_unique<Node>(options(), host));
  const fi_addr_t to = open.back()->insert(victim);
  fi_tinject(open.back()->ep(), "g", 1, to, 9);
  for (const auto& one : open) one->poll();
  if (open.size() > kAtOnce) open.pop_front();
}

DOOR_ROLE(flood) {
  Aim aim;
  if (!control.get(&aim)) return 1;
  // the queue of connections is full, and RawClient wonders
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  const Address victim = address_of(aim.victim);
  Address own = Address::v4(0x7f000001, 0);
  const auto listening = nic::listen_tcp(own, own);  // the source of a lane must be its user's
  std::deque<ParentOnlyFd> sockets;
  std::optional<Node> host;
  std::deque<std::unique_ptr<Node>> nodes;
  if (aim.flood == Flood::endpoints) host.emplace(options());
  uint64_t strokes = 0;
  for (; !control.ready(); ++strokes) {
    try {
      if (aim.flood == Flood::handshakes) begin_handshake(victim, sockets);
      if (aim.flood == Flood::lanes) open_lane(victim, own);
      if (aim.flood == Flood::endpoints) open_endpoint(*host, aim.victim, nodes);
    } catch (const doors::DoorError&) {  // it has taken all that it may
    }
    if (strokes == 0 && !control.put('b')) return 1;
  }
  char word = 0;
  return control.get(&word) && control.put(strokes) ? 0 : 1;
}

// --- victims and newcomers -----------------------------------------------------------------------

DOOR_ROLE(flooded) {
  doors::FewDescriptors few(kDescriptors);
  Node node(options());
  if (!control.put(Name(node.name()))) return 1;
  std::vector<Op> ops(64);
  char bytes[64];
  const auto post = [&](size_t i) {
    DOOR(fi_trecv(node.ep(), &bytes[i], 1, nullptr, FI_ADDR_UNSPEC, 7, 0, &ops[i]));
  };
  for (size_t i = 0; i < ops.size(); ++i) post(i);
  while (!control.ready()) {
    node.poll();
    for (; !node.done().empty(); node.done().pop_front()) {
      for (size_t i = 0; i < ops.size(); ++i) {
        if (node.done().front().context == &ops[i]) post(i);
      }
    }
    usleep(200);
  }
  return 0;
}

struct Meeting {
  Name victim;
  pid_t pid = 0;
};

// Comes, passes one message, and says how that was.
DOOR_ROLE(newcomer) {
  Meeting meeting;
  if (!control.get(&meeting)) return 1;
  Node node(options());
  const fi_addr_t to = node.insert(meeting.victim);
  Report report;
  Stopwatch stopwatch({::getpid(), meeting.pid});
  stopwatch.begin();
  const int64_t code = node.run(fi_tsend, "m", 1, nullptr, to, uint64_t{7});
  stopwatch.end(report);
  if (code != 0) report.fail(code == -1 ? "nothing came" : fi_strerror(static_cast<int>(-code)));
  return control.put(report) ? 0 : 1;
}

class Newcomers : public testing::Test {
 protected:
  static std::unique_ptr<Child> victim(Name& name) {
    auto child = std::make_unique<Child>("flooded");
    EXPECT_TRUE(child->control().get(&name, kWait_ms));
    return child;
  }
  void come(const char* when, const Meeting& meeting) const {
    std::vector<double> took;
    double worst_net = 0;
    for (int i = 0; i < count_; ++i) {
      Child newcomer("newcomer", {.uid = i % 2 == 0 ? uid_t{4714} : uid_t{0}});
      Report report;
      ASSERT_TRUE(newcomer.control().put(meeting));
      ASSERT_TRUE(newcomer.control().get(&report, kWait_ms)) << when;
      EXPECT_TRUE(report.ok()) << when << ": " << report.trouble;
      EXPECT_EQ(newcomer.join(), 0);
      took.push_back(static_cast<double>(report.worst_ns) / 1e6);
      worst_net = std::max(worst_net, static_cast<double>(report.standstill_ns) / 1e6);
    }
    std::sort(took.begin(), took.end());
    std::printf(
        "%s: connected and passed a message in %.1f ms (middle of %zu), p99 %.1f, at most "
        "%.1f (%.1f without waiting for a processor)\n",
        when, took[took.size() / 2], took.size(), took[(took.size() * 99 - 1) / 100], took.back(),
        worst_net);
  }

  const int count_ = [] {
    const char* text = std::getenv("APERTURE_NEWCOMERS");
    return text != nullptr ? std::max(1, std::atoi(text)) : 5;
  }();
};

// Beside processes of another user that begin as much as they can with one process.
class Flooding {
 public:
  explicit Flooding(const Name& victim) {
    for (const Flood flood : kFloods) {
      all_.push_back(std::make_unique<Child>("flood", doors::ChildOptions{.uid = kFlooding}));
      EXPECT_TRUE(all_.back()->control().put(Aim{victim, flood}));
    }
    char begun = 0;
    for (const auto& one : all_) EXPECT_TRUE(one->control().get(&begun, kWait_ms));
  }
  ~Flooding() {
    std::printf("  the flood:");
    for (const auto& one : all_) {
      uint64_t strokes = 0;
      EXPECT_TRUE(one->control().put('e'));
      EXPECT_TRUE(one->control().get(&strokes, kWait_ms)) << "it has ended";
      std::printf(" %llu", static_cast<unsigned long long>(strokes));
    }
    std::printf(" handshakes, lanes, endpoints, handshakes\n");
  }
  Flooding(const Flooding&) = delete;

 private:
  std::vector<std::unique_ptr<Child>> all_;
};

TEST_F(Newcomers, hostile_33_34_get_in_beside_a_flood_of_all_that_can_be_begun) {
  if (geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
  Meeting meeting;
  Name elsewhere;
  const auto ours = victim(meeting.victim);
  const auto other = victim(elsewhere);
  ASSERT_FALSE(HasFailure());
  meeting.pid = ours->pid();
  come("nobody else about", meeting);
  {
    const Flooding flooding(elsewhere);
    come("flood elsewhere", meeting);
  }
  {
    const Flooding flooding(meeting.victim);
    come("flood here", meeting);
  }
  come("afterwards", meeting);
}

}  // namespace
}  // namespace aperture::hostile
