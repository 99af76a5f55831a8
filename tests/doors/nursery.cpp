// Forking on demand: see nursery.hpp. A request carries the child's end of its control socket.
#include "doors/nursery.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "doors/whereabouts.hpp"

namespace aperture::doors {
namespace {

// A disk that stalls may hold a fork for many seconds: told, and waited for.
constexpr int kUsual_ms = 5000, kPatience_ms = 60000;

struct Request {
  char role[64];
  char name[64];
  char value[64];
};

struct Envelope {
  explicit Envelope(Request* request) : piece{request, sizeof *request} {
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
  }
  iovec piece;
  msghdr message{};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
};

void put_text(char (&to)[64], const char* text) {
  if (text == nullptr) return;
  if (std::strlen(text) >= sizeof to) throw std::runtime_error("too long for a nursery");
  std::strcpy(to, text);
}

bool send_request(int socket, Request request, int fd) {
  Envelope envelope(&request);
  cmsghdr* header = CMSG_FIRSTHDR(&envelope.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &envelope.message, MSG_NOSIGNAL) == sizeof request;
}

// The file descriptor, or -1: the other end is gone.
int receive_request(int socket, Request* request) {
  Envelope envelope(request);
  ssize_t n;
  do {
    n = recvmsg(socket, &envelope.message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  const cmsghdr* header = n == sizeof *request ? CMSG_FIRSTHDR(&envelope.message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

}  // namespace

void Seedling::signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

void Seedling::kill_now() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (kill(pid_, 0) == 0) usleep(200);  // the nursery reaps it
  pid_ = -1;
}

Seedling Nursery::start(const char* role, const char* name, const char* value) {
  Request request{};
  put_text(request.role, role);
  put_text(request.name, name);
  put_text(request.value, value);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::runtime_error("socketpair failed");
  const bool sent = send_request(child_.control().fd(), request, pair[1]);
  close(pair[1]);
  pid_t pid = 0;
  bool answered = sent && child_.control().get(&pid, kUsual_ms);
  std::string seen;
  if (!answered) {
    seen = whereabouts(child_.pid());
    std::fprintf(stderr, "the nursery is late; it is in\n%s", seen.c_str());
    answered = sent && child_.control().get(&pid, kPatience_ms);
  }
  if (answered && pid > 0) return {pid, pair[0]};
  close(pair[0]);
  if (answered) throw std::runtime_error(std::string("the nursery's fork: ") + strerror(-pid));
  const std::string end = child_.control().ready() || !sent ? " has ended" : " has not answered";
  throw std::runtime_error("the nursery" + end + "; it was in\n" + seen + "and is in\n" +
                           whereabouts(child_.pid()));
}

int serve_nursery(Control& control) {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;  // children are reaped by the kernel
  sigaction(SIGCHLD, &ignore, nullptr);
  for (;;) {
    Request request{};
    const int fd = receive_request(control.fd(), &request);
    if (fd < 0) return 0;
    const pid_t self = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != self) _exit(125);
      close(control.fd());
      if (request.name[0] != '\0') setenv(request.name, request.value, 1);
      _exit(run_role(request.role, fd));
    }
    const pid_t said = pid > 0 ? pid : -errno;
    close(fd);
    if (!control.put(said)) return 0;
  }
}

}  // namespace aperture::doors
