// Children that are there at once: libfabric takes a third of a second to load its providers, so
// one process does that first and then forks a child for each that is asked for.
//
// The nursery is a Child whose role calls serve_nursery() once it is warm (it must not have opened
// a domain: what is opened does not survive a fork). Its children die with it, and it dies with the
// test. Used by one thread.
#pragma once

#include "doors/child.hpp"

namespace aperture::doors {

// A child of the nursery.
class Seedling {
 public:
  Seedling(pid_t pid, int fd) : pid_(pid), control_(fd) {}
  ~Seedling() { kill_now(); }
  Seedling(const Seedling&) = delete;
  Seedling& operator=(const Seedling&) = delete;

  pid_t pid() const { return pid_; }
  Control& control() { return control_; }
  void signal(int number);
  void kill_now();  // SIGKILL, and waits until nothing is left of it

 private:
  pid_t pid_;
  Control control_;
};

class Nursery {
 public:
  explicit Nursery(const std::string& role) : child_(role) {}
  // Forks a child that runs `role` with one variable of its environment set (nullptr: none).
  Seedling start(const char* role, const char* name = nullptr, const char* value = nullptr);

 private:
  Child child_;
};

// The nursery's side: forks for whoever asks, until the other end is gone.
int serve_nursery(Control& control);

}  // namespace aperture::doors
