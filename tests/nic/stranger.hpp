// A process of another user, forked off a test: it does something, says so, and stays.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/forked.hpp"
#include "nic/raw_client.hpp"

namespace aperture::nic::test {

class Stranger {
 public:
  // What its body may use: words to the test, and from there.
  struct Line {
    int out, in;
    void say(uint16_t word) const {
      if (::write(out, &word, sizeof word) != sizeof word) ::_exit(91);
    }
    uint16_t hear() const {
      uint16_t word = 0;
      if (::read(in, &word, sizeof word) != sizeof word) ::_exit(92);
      return word;
    }
  };

  template <typename Body>
  Stranger(uid_t uid, Body body) {
    int out[2], in[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    pid_ = aperture::test::fork_beside_threads();
    if (pid_ == 0) {
      if (::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0) ::_exit(90);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      body(Line{out[1], in[0]});
      for (;;) ::pause();
    }
    ::close(out[1]);
    ::close(in[0]);
    out_ = UniqueFd(out[0]);
    in_ = UniqueFd(in[1]);
  }
  ~Stranger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Stranger(const Stranger&) = delete;

  // The next word it says; 0 where none comes.
  uint16_t hear() {
    uint16_t word = 0;
    if (!readable(out_.get(), 10'000)) return 0;
    return ::read(out_.get(), &word, sizeof word) == sizeof word ? word : uint16_t{0};
  }
  void say(uint16_t word) { EXPECT_EQ(::write(in_.get(), &word, sizeof word), 2); }

 private:
  pid_t pid_ = -1;
  UniqueFd out_, in_;
};

}  // namespace aperture::nic::test
