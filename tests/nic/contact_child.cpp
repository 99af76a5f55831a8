// The other process of a first-contact test. Reads one command a line, prints one event a line:
//
//   new [DOMAIN]    a fresh endpoint in place of the last       -> at IP:PORT
//   listen PORT     the same, at that port                      -> listening | why not
//   port            opens a port that endpoints share           -> port PORT
//   share INDEX     a fresh endpoint there in place of the last -> sharing | why not
//   connect PORT [INDEX]    to 127.0.0.1:PORT, or to who shares it
//   lane            waits for a lane                            -> up direct|owner fence|nofence
//   send N / recv   a word on the lane                          -> sent / got N
//   ring / rang     the lane's doorbell, and whether ours rang   -> rung / rang | silence
//   block           clears O_NONBLOCK on every pipe it has      -> blocked
//   flood           fills them all first                        -> flooded
//   close           gives the lane back                         -> closed
//   next            the next thing it is told                   -> up | down W | failed W | none
//   settle          takes in everything until one lane is up    -> settled
//   hog MB          touches that much memory                    -> hogged
//   quit
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <sstream>

#include "nic/side.hpp"

namespace {

using namespace aperture;             // NOLINT: a program of one file
using namespace aperture::nic::test;  // NOLINT

void say(const std::string& line) {
  std::cout << line << std::endl;
}

struct Child {
  std::unique_ptr<Side> side;
  HeldLane lane;
  uint16_t port = 0;

  void open_port() {
    const std::array ips{loopback_v4()};
    if (!contact().open_port(ips, port)) return say("no port");
    say("port " + std::to_string(port));
  }

  void share(uint8_t index) {
    Address at = loopback_v4(port);
    at.index = index;
    side.reset();
    side = std::make_unique<Side>(7, at);
    say(side->listen_error() == Errc::ok ? "sharing" : describe(side->listen_error()));
  }

  void settle() {
    while (!lane || !side->silent(0)) {
      auto t = side->next();
      if (!t || t->what == Told::What::failed) return say("unsettled");
      if (t->what == Told::What::up) {
        if (lane) return say("two lanes");
        lane = std::move(t->lane);
      } else {
        lane.reset();
      }
    }
    say("settled");
  }

  void next() {
    auto t = side->next();
    if (!t) return say("none");
    switch (t->what) {
      case Told::What::up: lane = std::move(t->lane); return say("up");
      case Told::What::down: return say(std::string("down ") + describe(t->why));
      case Told::What::failed: return say(std::string("failed ") + describe(t->why));
    }
  }

  void receive() {
    const auto word = receive_word(*lane);
    say(word ? "got " + std::to_string(*word) : "got nothing");
  }

  // All but what it is told and says through.
  template <typename Fn>
  static void for_each_pipe(Fn&& fn) {
    for (int fd = 3; fd < 1024; ++fd) {
      struct stat st;
      if (::fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode)) fn(fd);
    }
  }
  static void block() {
    for_each_pipe([](int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); });
  }
  static void flood() {
    for_each_pipe([](int fd) {
      ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
      char bytes[4096] = {};
      while (::write(fd, bytes, sizeof bytes) > 0) {
      }
    });
    block();
  }

  void hog(size_t mb) {
    if (mb == 0) return say("hogged");
    void* p = ::mmap(nullptr, mb << 20, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    say(p == MAP_FAILED ? "no memory" : "hogged");
  }

  bool obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    uint64_t n = 0;
    words >> verb >> n;
    if (verb == "new") {
      lane.reset();
      side = std::make_unique<Side>(static_cast<uint32_t>(n));
      say("at " + std::to_string(side->address().port));
    } else if (verb == "listen") {
      side = std::make_unique<Side>(7, loopback_v4(static_cast<uint16_t>(n)));
      say(side->listen_error() == Errc::ok ? "listening" : describe(side->listen_error()));
    } else if (verb == "connect") {
      Address to = loopback_v4(static_cast<uint16_t>(n));
      unsigned index = 0;
      if (words >> index) to.index = static_cast<uint8_t>(index);
      side->connect(to);
    } else if (verb == "port") {
      open_port();
    } else if (verb == "share") {
      lane.reset();
      share(static_cast<uint8_t>(n));
    } else if (verb == "lane") {
      lane = side->lane();
      if (!lane) {
        say("none");
      } else {
        say(std::string("up ") + (lane->direct.allowed ? "direct" : "owner") +
            (lane->fence_always ? " fence" : " nofence"));
      }
    } else if (verb == "send") {
      send_word(*lane, n);
      say("sent");
    } else if (verb == "recv") {
      receive();
    } else if (verb == "ring") {
      lane->ring_doorbell();
      say("rung");
    } else if (verb == "rang") {
      bool rang = false;
      for (int i = 0; i < 1000 && !rang; ++i) {
        rang = side->rung();
        if (!rang) ::usleep(1000);
      }
      say(rang ? "rang" : "silence");
    } else if (verb == "block") {
      block();
      say("blocked");
    } else if (verb == "flood") {
      flood();
      say("flooded");
    } else if (verb == "close") {
      lane.reset();
      say("closed");
    } else if (verb == "next") {
      next();
    } else if (verb == "settle") {
      settle();
    } else if (verb == "hog") {
      hog(n);
    } else {
      return false;
    }
    return true;
  }
};

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

// In a time namespace of its own, as APERTURE_TEST_NAMESPACE=time asks; in a user namespace without
// any user in it, for "user". Says so and ends where the kernel does not allow it.
void change_namespace(std::string_view which) {
  if (which == "user") {
    if (::unshare(CLONE_NEWUSER) == 0) return;
  } else if (::unshare(CLONE_NEWTIME) == 0) {
    const UniqueFd offsets(::open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC));
    constexpr std::string_view kOffset = "boottime 100000 0\n";
    const bool set = ::write(offsets.get(), kOffset.data(), kOffset.size()) > 0;
    // its children are in it
    const pid_t inside = set ? ::fork() : -1;
    if (inside == 0) return;
    if (inside > 0) {
      ::waitpid(inside, nullptr, 0);
      std::_Exit(0);
    }
  }
  say("no namespace");
  std::_Exit(0);
}

}  // namespace

int main() {
  // a stranger: another user, whom nobody may debug
  if (const char* uid = std::getenv("APERTURE_TEST_UID")) {
    const auto stranger = static_cast<uid_t>(std::atoi(uid));
    if (::setresuid(stranger, stranger, stranger) != 0) return 1;
  }
  if (const char* which = std::getenv("APERTURE_TEST_NAMESPACE")) change_namespace(which);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing stays behind when the test is killed
  ::alarm(120);
  Child child;
  std::string line;
  while (std::getline(std::cin, line) && child.obey(line)) {
  }
  child.lane.reset();
  return 0;
}
