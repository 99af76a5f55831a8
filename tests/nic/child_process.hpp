// Starts contact_child and talks to it, a line at a time.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace aperture::nic::test {

using Environment = std::vector<std::pair<std::string, std::string>>;

class ChildProcess {
 public:
  // With these variables in its environment, on top of ours.
  explicit ChildProcess(const Environment& env = {}) {
    ::signal(SIGPIPE, SIG_IGN);  // a child that has ended is a failure to be told
    int to[2], from[2];
    EXPECT_EQ(::pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(from, O_CLOEXEC), 0);
    for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    char name[] = "contact_child";
    char* const argv[] = {name, nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, APERTURE_CONTACT_CHILD, &actions, nullptr, argv, environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    for (const auto& [variable, value] : env) ::unsetenv(variable.c_str());
    ::close(to[0]);
    ::close(from[1]);
    in_ = UniqueFd(to[1]);
    out_ = UniqueFd(from[0]);
  }
  ~ChildProcess() {
    in_.reset();
    kill(SIGKILL);
    reap();
  }
  ChildProcess(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal) {
    if (!reaped_) ::kill(pid_, signal);
  }
  void reap() {
    if (!reaped_) ::waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }

  void tell(std::string command) {
    command += '\n';
    const ssize_t told = ::write(in_.get(), command.data(), command.size());
    if (told < 0 && errno == EPIPE) return;  // it has ended, and what it said last is to be heard
    EXPECT_EQ(told, static_cast<ssize_t>(command.size()));
  }
  // The next line it says; empty when it has ended or is silent for ten seconds.
  std::string hear() {
    for (;;) {
      if (const size_t end = heard_.find('\n'); end != std::string::npos) {
        std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return line;
      }
      pollfd p{out_.get(), POLLIN, 0};
      char bytes[512];
      if (::poll(&p, 1, 10'000) <= 0) return "";
      const ssize_t n = ::read(out_.get(), bytes, sizeof bytes);
      if (n <= 0) return "";
      heard_.append(bytes, static_cast<size_t>(n));
    }
  }
  std::string ask(const std::string& command) {
    tell(command);
    return hear();
  }
  uint16_t new_endpoint(int domain = 7) {
    const std::string said = ask("new " + std::to_string(domain));
    EXPECT_EQ(said.substr(0, 3), "at ") << said;
    return said.size() > 3 ? static_cast<uint16_t>(std::stoi(said.substr(3))) : uint16_t{0};
  }

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  UniqueFd in_;
  UniqueFd out_;
  std::string heard_;
};

}  // namespace aperture::nic::test
