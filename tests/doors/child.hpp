// Child processes of a test: the same program, started again with a role, and a control pipe.
//
// A role is a function named with DOOR_ROLE; runner.cpp calls it instead of the tests. Children die
// with their parent, and the watchdog kills those that are registered.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace aperture::doors {

// One end of a pair of sockets that keeps message boundaries (SOCK_SEQPACKET).
class Control {
 public:
  explicit Control(int fd) : fd_(fd) {}
  Control(Control&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Control();
  int fd() const { return fd_; }
  bool send(const void* bytes, size_t len);
  // false: the other end is gone, or nothing came in time (-1: wait for ever)
  bool receive(void* bytes, size_t len, int timeout_ms = -1);
  bool ready();  // something can be received, or the other end is gone

  template <typename T>
  bool put(const T& value) {
    return send(&value, sizeof value);
  }
  template <typename T>
  bool get(T* value, int timeout_ms = -1) {
    return receive(value, sizeof *value, timeout_ms);
  }

 private:
  int fd_;
};

struct ChildOptions {
  std::vector<std::pair<std::string, std::string>> env;
  bool not_dumpable = false;  // PR_SET_DUMPABLE 0: others may not read its memory
  uid_t uid = 0;              // 0: ours
};
// A child whose memory is not reached directly, if `denied`.
inline ChildOptions child_denying(bool denied) {
  if (!denied) return {};
  return {.env = {{"APERTURE_CMA", "deny"}}};
}

class Child {
 public:
  Child(const std::string& role, const ChildOptions& options = {});
  ~Child();  // kills and reaps
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  Control& control() { return control_; }
  void kill_now();  // SIGKILL, and reaps
  void signal(int number);
  // The exit status as waitpid gives it; -1 when it did not end in time (it is killed then).
  int join(int timeout_ms = 10000);

 private:
  pid_t pid_;
  Control control_;
};

using RoleFunction = int (*)(Control& control);
struct RoleEntry {
  RoleEntry(const char* name, RoleFunction function);
};
// Runs the role and returns its exit status.
int run_role(const char* name, int fd);

// Kills every child that this process still has; for the watchdog.
void kill_children() noexcept;

#define DOOR_ROLE(role)                                                        \
  static int role##_role(::aperture::doors::Control& control);                 \
  static const ::aperture::doors::RoleEntry role##_entry{#role, &role##_role}; \
  static int role##_role(::aperture::doors::Control& control)

// What a child of that role said until it ended, as it must, with 0: the role calls
// say_to_parent() first. APERTURE_LOG is `level`.
std::string said_by(const char* role, const char* level);
bool say_to_parent();

// What a process holds, to compare before and after.
struct Holdings {
  size_t fds = 0;
  size_t mappings = 0;
  size_t threads = 0;
  size_t shm_objects = 0;  // names in /dev/shm
};
Holdings count_holdings();
// Gives this thread, and what it starts from now on, a /dev/shm of its own where that is permitted
// (root), so that the names of other programs do not count.
void hide_others_shm() noexcept;

}  // namespace aperture::doors
