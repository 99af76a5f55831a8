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
//   close           gives the lane back                         -> closed
//   next            the next thing it is told                   -> up | down W | failed W | none
//   settle          takes in everything until one lane is up    -> settled
//   hog MB          touches that much memory                    -> hogged
//   quit
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "nic/side.hpp"

namespace {

using namespace aperture;             // NOLINT: a program of one file
using namespace aperture::nic::test;  // NOLINT

void say(const std::string& line) {
  std::cout << line << std::endl;
}

struct Child {
  std::unique_ptr<Side> side;
  std::unique_ptr<link::Lane> lane;
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

  void drop_lane() {
    if (lane) contact().close_lane(std::move(lane));
  }

  void settle() {
    while (!lane || !side->silent(0)) {
      auto t = side->next();
      if (!t || t->what == Told::What::failed) return say("unsettled");
      if (t->what == Told::What::up) {
        if (lane) return say("two lanes");
        lane = std::move(t->lane);
      } else {
        drop_lane();
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
    const uint64_t until = now_ns() + 3'000'000'000u;
    while (!lane->request_rx.cells.ready()) {
      if (now_ns() > until) return say("got nothing");
    }
    uint64_t word;
    std::memcpy(&word, lane->request_rx.cells.body(), sizeof word);
    lane->request_rx.cells.advance(1);
    lane->request_rx.publish_consumed();
    say("got " + std::to_string(word));
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
      drop_lane();
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
      drop_lane();
      share(static_cast<uint8_t>(n));
    } else if (verb == "lane") {
      lane = side->lane();
      if (!lane) {
        say("none");
      } else {
        say(std::string("up ") + (lane->direct.allowed ? "direct" : "owner") +
            (lane->fence_sends ? " fence" : " nofence"));
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
    } else if (verb == "close") {
      drop_lane();
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

}  // namespace

int main() {
  // a stranger: another user, whom nobody may debug
  if (const char* uid = std::getenv("APERTURE_TEST_UID")) {
    if (::setresuid(static_cast<uid_t>(std::atoi(uid)), static_cast<uid_t>(std::atoi(uid)),
                    static_cast<uid_t>(std::atoi(uid))) != 0) {
      return 1;
    }
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing stays behind when the test is killed
  ::alarm(120);
  Child child;
  std::string line;
  while (std::getline(std::cin, line) && child.obey(line)) {
  }
  child.drop_lane();
  return 0;
}
