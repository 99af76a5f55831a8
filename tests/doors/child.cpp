// Starting, talking to and ending child processes: see child.hpp. The list of children is
// lock-free, since the watchdog walks it from its own thread.
#include "doors/child.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>

namespace aperture::doors {
namespace {

std::map<std::string, RoleFunction>& roles() {
  static std::map<std::string, RoleFunction> all;
  return all;
}

// Fixed, so that the watchdog's thread can walk it whatever the test's thread is doing.
std::array<std::atomic<pid_t>, 256> g_children;

void remember(pid_t pid) {
  for (auto& slot : g_children) {
    pid_t empty = 0;
    if (slot.compare_exchange_strong(empty, pid)) return;
  }
}

void forget(pid_t pid) {
  for (auto& slot : g_children) {
    pid_t expected = pid;
    if (slot.compare_exchange_strong(expected, 0)) return;
  }
}

// What exec takes, put together before the fork: other threads of a test may hold the allocator's
// locks at that moment, and then nothing in the child could allocate.
class Command {
 public:
  Command(const std::string& role, const ChildOptions& options, int fd)
      : words_{"door-child", "--role=" + role, std::to_string(fd)} {
    std::map<std::string, std::string> values;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const size_t name_len = text.find('=');
      if (name_len != std::string::npos)
        values[text.substr(0, name_len)] = text.substr(name_len + 1);
    }
    for (const auto& [name, value] : options.env) values[name] = value;
    // dumpable is reset by exec: the role does it, told by the environment
    values["APERTURE_TEST_NOT_DUMPABLE"] = options.not_dumpable ? "1" : "0";
    values["APERTURE_TEST_UID"] = std::to_string(options.uid);
    for (const auto& [name, value] : values) settings_.push_back(name + "=" + value);
    argv_ = pointers(&words_);
    envp_ = pointers(&settings_);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Returns when it cannot be done.
  void exec() const { execve("/proc/self/exe", argv_.data(), envp_.data()); }

 private:
  static std::vector<char*> pointers(std::vector<std::string>* texts) {
    std::vector<char*> all;
    for (std::string& text : *texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  }

  std::vector<std::string> words_, settings_;
  std::vector<char*> argv_, envp_;
};

[[noreturn]] void become_child(const Command& command, int fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(125);
  fcntl(fd, F_SETFD, 0);
  command.exec();
  _exit(126);
}

size_t count_entries(const char* path) {
  size_t n = 0;
  DIR* dir = opendir(path);
  if (dir == nullptr) return 0;
  while (const dirent* entry = readdir(dir)) n += entry->d_name[0] != '.';
  closedir(dir);
  return n;
}

}  // namespace

Control::~Control() {
  if (fd_ >= 0) close(fd_);
}

bool Control::send(const void* bytes, size_t len) {
  for (;;) {
    const ssize_t n = ::send(fd_, bytes, len, MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(len)) return true;
    if (n < 0 && errno == EINTR) continue;
    return false;
  }
}

bool Control::receive(void* bytes, size_t len, int timeout_ms) {
  for (;;) {
    pollfd p{fd_, POLLIN, 0};
    const int ready = ::poll(&p, 1, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t n = ::recv(fd_, bytes, len, 0);
    if (n < 0 && errno == EINTR) continue;
    return n == static_cast<ssize_t>(len);
  }
}

bool Control::ready() {
  pollfd p{fd_, POLLIN, 0};
  return ::poll(&p, 1, 0) > 0;
}

Child::Child(const std::string& role, const ChildOptions& options) : pid_(-1), control_(-1) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::runtime_error("socketpair failed");
  const Command command(role, options, pair[1]);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become_child(command, pair[1], parent);
  close(pair[1]);
  control_.~Control();
  new (&control_) Control(pair[0]);
  if (pid_ < 0) throw std::runtime_error("fork failed");
  remember(pid_);
}

Child::~Child() {
  kill_now();
}

void Child::signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

void Child::kill_now() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  forget(pid_);
  pid_ = -1;
}

int Child::join(int timeout_ms) {
  for (int waited = 0; pid_ > 0 && waited <= timeout_ms; ++waited) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      forget(pid_);
      pid_ = -1;
      return status;
    }
    usleep(1000);
  }
  kill_now();
  return -1;
}

RoleEntry::RoleEntry(const char* name, RoleFunction function) {
  roles()[name] = function;
}

int run_role(const char* name, int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  const auto found = roles().find(name);
  if (found == roles().end()) {
    std::fprintf(stderr, "no such role: %s\n", name);
    return 127;
  }
  if (const char* uid = std::getenv("APERTURE_TEST_UID"); uid != nullptr && std::atoi(uid) != 0) {
    const auto id = static_cast<uid_t>(std::atoi(uid));
    if (setgid(id) != 0 || setuid(id) != 0) return 124;
    prctl(PR_SET_DUMPABLE, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  const char* hidden = std::getenv("APERTURE_TEST_NOT_DUMPABLE");
  if (hidden != nullptr && *hidden == '1') prctl(PR_SET_DUMPABLE, 0);
  Control control(fd);
  try {
    return found->second(control);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "role %s: %s\n", name, e.what());
    return 1;
  }
}

std::string said_by(const char* role, const char* level) {
  char path[] = "/tmp/aperture-door-said-XXXXXX";
  const int fd = mkstemp(path);
  if (fd < 0) throw std::runtime_error("mkstemp failed");
  Child child(role, {.env = {{"APERTURE_TEST_STDERR", path}, {"APERTURE_LOG", level}}});
  const int status = child.join(30000);
  std::string text(1 << 20, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  close(fd);
  unlink(path);
  if (status != 0) throw std::runtime_error(std::string(role) + " has failed: " + text);
  return text;
}

bool say_to_parent() {
  const char* path = std::getenv("APERTURE_TEST_STDERR");
  const int fd = path != nullptr ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
  return fd >= 0 && dup2(fd, STDERR_FILENO) >= 0;
}

void kill_children() noexcept {
  for (auto& slot : g_children)
    if (const pid_t pid = slot.load(); pid > 0) kill(pid, SIGKILL);
}

void hide_others_shm() noexcept {
  if (unshare(CLONE_NEWNS) != 0) return;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, nullptr);
}

Holdings count_holdings() {
  Holdings h;
  h.fds = count_entries("/proc/self/fd") - 1;  // less the one that reads
  h.threads = count_entries("/proc/self/task");
  h.shm_objects = count_entries("/dev/shm");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++h.mappings;
  return h;
}

}  // namespace aperture::doors
