// librdmacm in processes that fork: it keeps a context of each device for as long as a process
// lives, and a child opens the device anew all the same. Through the installed librdmacm, under
// `aperture run`.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "base/forked.hpp"
#include "rdma_cm/endpoints.hpp"

namespace aperture::test {
namespace {

constexpr size_t kBytes = 16;

struct Listener {
  Listener() : id(endpoint("0", RAI_PASSIVE)) {
    EXPECT_EQ(rdma_listen(id, 4), 0);
    port = std::to_string(ntohs(rdma_get_src_port(id)));
  }
  ~Listener() { rdma_destroy_ep(id); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  rdma_cm_id* id;
  std::string port;
};

// Both sides: sends its letters, and has got the other's.
void exchange(rdma_cm_id* id, char* bytes, ibv_mr* mr, char theirs) {
  ibv_wc wc;
  ASSERT_EQ(rdma_post_send(id, nullptr, bytes, kBytes, mr, 0), 0);
  ASSERT_EQ(rdma_get_send_comp(id, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  ASSERT_EQ(rdma_get_recv_comp(id, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(bytes + kBytes, kBytes), std::string(kBytes, theirs));
}

template <typename Join>
void converse(rdma_cm_id* id, char ours, char theirs, Join join) {
  char bytes[2 * kBytes];
  std::memset(bytes, ours, sizeof bytes);
  ibv_mr* const mr = rdma_reg_msgs(id, bytes, sizeof bytes);
  ASSERT_NE(mr, nullptr) << std::strerror(errno);
  ASSERT_EQ(rdma_post_recv(id, nullptr, bytes + kBytes, kBytes, mr), 0);
  ASSERT_EQ(join(), 0) << std::strerror(errno);
  exchange(id, bytes, mr, theirs);
  EXPECT_EQ(rdma_disconnect(id), 0);
  EXPECT_EQ(rdma_dereg_mr(mr), 0);
}

void serve(const Listener& listener, char ours, char theirs) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_get_request(listener.id, &id), 0) << std::strerror(errno);
  converse(id, ours, theirs, [&] { return rdma_accept(id, nullptr); });
  rdma_destroy_ep(id);
}

void visit(const std::string& port, char ours, char theirs) {
  rdma_cm_id* const id = endpoint(port.c_str(), 0);
  ASSERT_NE(id, nullptr);
  converse(id, ours, theirs, [&] { return rdma_connect(id, nullptr); });
  rdma_destroy_ep(id);
}

void talk_alone() {
  const Listener listener;
  std::thread client([&] { visit(listener.port, 'c', 's'); });
  serve(listener, 's', 'c');
  client.join();
}

class Child {
 public:
  template <typename Body>
  explicit Child(Body body) : pid_(test::fork_beside_threads()) {
    EXPECT_GE(pid_, 0);
    if (pid_ != 0) return;
    ::alarm(40);
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ~Child() {
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t pid_;
};

class ForkedRdmaCm : public ::testing::Test {
 protected:
  void SetUp() override { ::alarm(80); }
  void TearDown() override { ::alarm(0); }
};

TEST_F(ForkedRdmaCm, a_child_connects_to_its_parent_which_listens_and_has_talked_before) {
  const Listener listener;
  std::thread client([&] { visit(listener.port, 'c', 's'); });
  serve(listener, 's', 'c');
  client.join();
  for (int i = 0; i < 3; ++i) {
    const Child child([&] {
      EXPECT_NE(rdma_listen(listener.id, 4), 0);  // it has stayed with the parent
      EXPECT_EQ(errno, EOPNOTSUPP);
      visit(listener.port, 'k', 's');
    });
    serve(listener, 's', 'k');
  }
  talk_alone();
}

TEST_F(ForkedRdmaCm, a_child_listens_and_its_parent_connects) {
  talk_alone();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    const Child child([&] {
      const Listener listener;
      char port[8] = {};
      listener.port.copy(port, sizeof port - 1);
      EXPECT_EQ(::write(ends[1], port, sizeof port), static_cast<ssize_t>(sizeof port));
      serve(listener, 'k', 'p');
    });
    char port[8] = {};
    ASSERT_EQ(::read(ends[0], port, sizeof port), static_cast<ssize_t>(sizeof port));
    visit(port, 'p', 'k');
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(ForkedRdmaCm, a_grandchild_of_processes_that_had_it_open_has_it_too) {
  talk_alone();
  const Child child([] {
    talk_alone();
    const Child grandchild([] { talk_alone(); });
    talk_alone();
  });
  talk_alone();
}

TEST_F(ForkedRdmaCm, a_channel_without_ids_is_the_childs_that_uses_it) {
  talk_alone();
  rdma_event_channel* const channel = rdma_create_event_channel();
  ASSERT_NE(channel, nullptr);
  const auto resolve = [&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), 0) << std::strerror(errno);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(7);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(channel, &event), 0);
    EXPECT_EQ(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(event->id, id);
    rdma_ack_cm_event(event);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  };
  { const Child child(resolve); }
  resolve();  // the parent's own events are not the child's
  {
    const Child child([&] {
      rdma_cm_id* id = nullptr;
      EXPECT_NE(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), 0);  // it has been used
      EXPECT_EQ(errno, EOPNOTSUPP);
    });
  }
  rdma_destroy_event_channel(channel);
}

}  // namespace
}  // namespace aperture::test
