// call_back IP PORT: a server of rdma_cm there, until it is ended. Who connects says at which port
// it listens, and sends a word; then it is connected to, and gets the word back. Of a connection
// over which that does not come to pass nothing is left.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "rdma_cm/endpoints.hpp"

namespace {

using aperture::test::endpoint_at;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPatience = 5s;

// An id, with a queue pair once it is connected; null: it could not be made.
struct Id {
  explicit Id(rdma_cm_id* made = nullptr) : id(made) {}
  ~Id() {
    if (id != nullptr) rdma_destroy_ep(id);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  rdma_cm_id* id;
};

bool completes(ibv_cq* cq) {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    ibv_wc wc{};
    if (ibv_poll_cq(cq, 1, &wc) == 1) return wc.status == IBV_WC_SUCCESS;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

// Connects to `to`, which may be about to listen again, and sends the word.
bool send_back(const sockaddr_in& to, uint64_t word) {
  char ip[INET_ADDRSTRLEN];
  ::inet_ntop(AF_INET, &to.sin_addr, ip, sizeof ip);
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    const Id back(endpoint_at(ip, std::to_string(::ntohs(to.sin_port)).c_str(), 0));
    if (back.id == nullptr || rdma_connect(back.id, nullptr) != 0) {
      std::this_thread::sleep_for(50ms);
      continue;
    }
    if (rdma_post_send(back.id, nullptr, &word, sizeof word, nullptr, IBV_SEND_INLINE) != 0 ||
        !completes(back.id->send_cq))
      return false;
    pollfd told{back.id->channel->fd, POLLIN, 0};  // that the other end disconnects
    ::poll(&told, 1, 5000);
    rdma_disconnect(back.id);
    return true;
  }
  return false;
}

void serve(rdma_cm_id* request) {
  const Id from(request);
  sockaddr_in to{};
  const rdma_conn_param& asked = request->event->param.conn;
  std::memcpy(&to, rdma_get_peer_addr(request), sizeof to);
  if (asked.private_data == nullptr || asked.private_data_len < sizeof to.sin_port) return;
  std::memcpy(&to.sin_port, asked.private_data, sizeof to.sin_port);
  uint64_t word = 0;
  ibv_mr* const mr = rdma_reg_msgs(request, &word, sizeof word);
  if (mr == nullptr) return;
  if (rdma_post_recv(request, nullptr, &word, sizeof word, mr) == 0 &&
      rdma_accept(request, nullptr) == 0) {
    if (completes(request->recv_cq)) send_back(to, word);
    rdma_disconnect(request);  // it waits for the event, which one that was not accepted never has
  }
  rdma_dereg_mr(mr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: call_back IP PORT\n");
    return 2;
  }
  rdma_cm_id* const listening = endpoint_at(argv[1], argv[2], RAI_PASSIVE);
  if (listening == nullptr || rdma_listen(listening, 64) != 0) {
    std::fprintf(stderr, "call_back: %s: %s\n", argv[1], std::strerror(errno));
    return 1;
  }
  for (;;) {
    rdma_cm_id* request = nullptr;
    if (rdma_get_request(listening, &request) != 0) {
      ::usleep(1000);  // who asked is gone already
      continue;
    }
    std::thread(serve, request).detach();
  }
}
