// When the end of a connection is told: not before what had come over it has been polled, since
// programs destroy their queue pair at that. Through the installed librdmacm, under `aperture run`.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "rdma_cm/endpoints.hpp"

namespace aperture::test {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kHeldAtMost = 100ms;
constexpr int kForEverMs = 30'000;

// One end, with a receive posted before it is connected.
struct End {
  explicit End(rdma_cm_id* with) : id(with) {
    mr = rdma_reg_msgs(id, bytes, sizeof bytes);
    EXPECT_NE(mr, nullptr) << std::strerror(errno);
    EXPECT_EQ(rdma_post_recv(id, nullptr, bytes, sizeof bytes, mr), 0);
  }
  ~End() {
    if (id == nullptr) return;
    EXPECT_EQ(rdma_dereg_mr(mr), 0);
    rdma_destroy_ep(id);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void send() { EXPECT_EQ(rdma_post_send(id, nullptr, bytes, sizeof bytes, mr, 0), 0); }
  void expect_sent() {
    ibv_wc wc;
    EXPECT_EQ(rdma_get_send_comp(id, &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  void expect_received() {
    ibv_wc wc;
    EXPECT_EQ(rdma_get_recv_comp(id, &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  bool is_told_within(int ms) const {
    pollfd at{id->channel->fd, POLLIN, 0};
    return ::poll(&at, 1, ms) == 1;
  }
  void expect_told_of_the_end() {
    ASSERT_TRUE(is_told_within(kForEverMs));
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(id->channel, &event), 0);
    EXPECT_EQ(event->event, RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(event->id, id);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
  }

  char bytes[16] = {};
  ibv_mr* mr = nullptr;
  rdma_cm_id* id;
};

class Ending : public ::testing::Test {
 protected:
  void SetUp() override { ::alarm(100); }
  void TearDown() override { ::alarm(0); }

  // Both ends; the client runs and disconnects, and what it has left is looked at.
  void talk(const std::function<void(End&)>& client, const std::function<void(End&)>& after) {
    rdma_cm_id* const listening = endpoint("0", RAI_PASSIVE);
    ASSERT_EQ(rdma_listen(listening, 1), 0);
    const std::string port = std::to_string(ntohs(rdma_get_src_port(listening)));
    std::thread dialing([&] {
      End end(endpoint(port.c_str(), 0));
      ASSERT_EQ(rdma_connect(end.id, nullptr), 0) << std::strerror(errno);
      client(end);
      began_ = Clock::now();
      EXPECT_EQ(rdma_disconnect(end.id), 0);
    });
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_get_request(listening, &id), 0) << std::strerror(errno);
    {
      End end(id);
      EXPECT_EQ(rdma_accept(end.id, nullptr), 0) << std::strerror(errno);
      accepted_(end);
      dialing.join();
      after(end);
    }
    rdma_destroy_ep(listening);
  }

  // Whatever has held this program up, it is not told earlier.
  void expect_held(const End& end) const {
    if (end.is_told_within(20)) {
      EXPECT_GE(Clock::now() - began_, kHeldAtMost) << "before the completion that came first";
    }
  }

  std::function<void(End&)> accepted_ = [](End&) {};
  Clock::time_point began_;
};

void say(End& client) {
  client.send();
  client.expect_sent();
}

TEST_F(Ending, is_told_after_a_message_that_came_before_it_was_polled) {
  talk(say, [this](End& server) {
    expect_held(server);
    server.expect_received();
    server.expect_told_of_the_end();
  });
}

TEST_F(Ending, is_told_after_the_completion_of_a_send_was_polled) {
  accepted_ = [](End& server) { server.send(); };
  talk([](End& client) { client.expect_received(); },
       [this](End& server) {
         expect_held(server);
         server.expect_sent();
         server.expect_told_of_the_end();
       });
}

TEST_F(Ending, is_told_although_nobody_polls_and_the_message_stays) {
  talk(say, [](End& server) {
    server.expect_told_of_the_end();
    server.expect_received();
  });
}

TEST_F(Ending, is_told_where_nothing_has_come_before_it) {
  talk([](End&) {}, [](End& server) { server.expect_told_of_the_end(); });
}

TEST_F(Ending, of_an_id_that_is_destroyed_before_it_was_told) {
  for (int i = 0; i < 3; ++i) {
    talk(say, [](End&) {});
  }
}

}  // namespace
}  // namespace aperture::test
