// What the kernel's own byte streams take: two processes that sleep in epoll, as event-driven
// programs do, over a unix socket or TCP on loopback; and two that poll, over TCP.
//
// The loop of those that sleep is the one of the other programs' rows of the same name: epoll_wait,
// read, write. Those that poll read and write without asking whether they can.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "harness/clients.hpp"
#include "harness/ping_pong.hpp"
#include "limits/limit.hpp"
#include "limits/ping_pong.hpp"
#include "stopwatch/epoll.hpp"
#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

struct Name {
  sockaddr_storage address;
  socklen_t len;
};

[[noreturn]] void throw_errno(const char* call) {
  throw Failure("%s: %s", call, std::strerror(errno));
}

UniqueFd stream_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("socket");
  return fd;
}

// Small messages leave at once, as every server of requests has it.
void be_prompt(int fd, int family) {
  const int on = 1;
  if (family == AF_INET && ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    throw_errno("setsockopt");
  }
}

sockaddr* any_address(int family, Name& name) {
  name = {};
  name.address.ss_family = static_cast<sa_family_t>(family);
  name.len = sizeof(sa_family_t);  // a unix socket is given a name of its own
  if (family == AF_INET) {
    auto& in = reinterpret_cast<sockaddr_in&>(name.address);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.len = sizeof in;
  }
  return reinterpret_cast<sockaddr*>(&name.address);
}

// Rank 1 listens, rank 0 connects that often; each has its ends in the same order.
std::vector<UniqueFd> connect_all(Side& side, int family, size_t count) {
  std::vector<UniqueFd> all;
  Name name;
  if (side.rank == 0) {
    Channel::expect_whole(side.channel.receive(&name, sizeof name), sizeof name, "address");
    for (size_t i = 0; i < count; i++) {
      UniqueFd fd = stream_socket(family);
      const auto* address = reinterpret_cast<const sockaddr*>(&name.address);
      if (::connect(fd.get(), address, name.len) != 0) throw_errno("connect");
      all.push_back(std::move(fd));
    }
  } else {
    const UniqueFd listener = stream_socket(family);
    sockaddr* const address = any_address(family, name);
    if (::bind(listener.get(), address, name.len) != 0) throw_errno("bind");
    name.len = sizeof name.address;
    if (::getsockname(listener.get(), address, &name.len) != 0) throw_errno("getsockname");
    if (::listen(listener.get(), static_cast<int>(count)) != 0) throw_errno("listen");
    side.channel.send(&name, sizeof name);
    for (size_t i = 0; i < count; i++) {
      UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) throw_errno("accept4");
      all.push_back(std::move(fd));
    }
  }
  for (const UniqueFd& fd : all) {
    be_prompt(fd.get(), family);
    make_nonblocking(fd.get());
  }
  return all;
}

// Messages over `count` connections, one under way on each, and one loop for all of them.
class Sockets : public Task {
 public:
  Sockets(Side& side, int family, size_t count, size_t size_bytes)
      : Task(side, Target::asleep),
        size_(size_bytes),
        connections_(connect_all(side, family, count)),
        out_(count * size_bytes, Pages::Kind::own),
        in_(count * size_bytes, Pages::Kind::own) {
    for (size_t i = 0; i < count; i++) epoll_.add(connections_[i].get(), i);
  }

  void progress(int) override {}

 protected:
  size_t clients() const noexcept { return connections_.size(); }
  size_t size() const noexcept { return size_; }
  std::byte* out(size_t i = 0) const noexcept { return out_.data() + i * size_; }
  std::byte* in(size_t i = 0) const noexcept { return in_.data() + i * size_; }

  void send(size_t i = 0) {
    const ssize_t n = ::write(connections_[i].get(), out(i), size_);
    if (n < 0) throw_errno("write");
    if (n != static_cast<ssize_t>(size_)) throw Failure("a write of %zd bytes", n);
  }

  template <typename Look>
  void take_some(Look&& look) {
    epoll_.wait("a message", [&](uint64_t i) {
      read(i);
      look(i, in(i));
    });
  }

 private:
  void read(size_t i) {
    const ssize_t n = ::read(connections_[i].get(), in(i), size_);
    if (n < 0) throw_errno("read");
    expect_length(static_cast<size_t>(n), size_);
  }

  const size_t size_;
  std::vector<UniqueFd> connections_;
  Pages out_, in_;
  Epoll epoll_;
};

// One connection, one message each way in turn.
class Letters : public Sockets {
 public:
  Letters(Side& side, int family, size_t size_bytes) : Sockets(side, family, 1, size_bytes) {}

 protected:
  static void post_receive() {}  // the kernel has room
  static void settle() {}        // and has copied what was sent
  void stamp(uint64_t sequence) { stamp_ends(out(), size(), sequence); }
  void take_stamped(uint64_t sequence) {
    take();
    expect_stamped_ends(in(), size(), sequence);
  }
  void take_pattern(uint64_t seed) {
    take();
    expect_pattern(in(), size(), seed);
  }

 private:
  void take() {
    take_some([](size_t, const std::byte*) {});
  }
};

// One connection whose ends are polled.
class Polled {
 public:
  explicit Polled(Side& side) : ends_(connect_all(side, AF_INET, 1)) {}

  // All of it; the other side reads meanwhile.
  void write(const std::byte* from, size_t n) {
    for (size_t done = 0; done < n;) {
      const ssize_t wrote = ::write(fd(), from + done, n - done);
      if (wrote > 0) done += static_cast<size_t>(wrote);
      if (wrote < 0 && errno != EAGAIN) throw_errno("write");
    }
  }
  // So much of it as is there; false: the other side has ended.
  bool read(std::byte* to, size_t n, size_t& got) {
    const ssize_t come = ::read(fd(), to, n);
    if (come < 0 && errno != EAGAIN) throw_errno("read");
    got = come > 0 ? static_cast<size_t>(come) : 0;
    return come != 0;
  }
  void finish() { ::shutdown(fd(), SHUT_WR); }

 private:
  int fd() const noexcept { return ends_.front().get(); }

  std::vector<UniqueFd> ends_;
};

Plan plan_of(double seconds, bool latency) {
  Plan plan;
  plan.extent.seconds = seconds;
  plan.latency = plan.single = latency;
  plan.scale = 1;
  return plan;
}

Row ping_pong_asleep(Side& side, int family, size_t size_bytes, double seconds) {
  PingPong<Letters> task(side, family, size_bytes);
  return direct(task, side, plan_of(seconds, true));
}

Row serve_clients(Side& side, int family, size_t size_bytes, double seconds) {
  Clients<Sockets> task(side, family, kClients, size_bytes);
  return direct(task, side, plan_of(seconds, false));
}

}  // namespace

Row unix_ping_pong(Side& side, const Pages&, size_t size_bytes, double seconds) {
  return ping_pong_asleep(side, AF_UNIX, size_bytes, seconds);
}

Row tcp_ping_pong(Side& side, const Pages&, size_t size_bytes, double seconds) {
  return ping_pong_asleep(side, AF_INET, size_bytes, seconds);
}

Row tcp_polled_ping_pong(Side& side, const Pages&, size_t, double seconds) {
  Polled stream(side);
  std::byte bytes[sizeof(uint64_t)];
  size_t have = 0;
  uint64_t last = 0;
  return ping_pong(
      side, seconds,
      [&](uint64_t value) {
        std::byte out[sizeof value];
        std::memcpy(out, &value, sizeof value);
        stream.write(out, sizeof out);
      },
      [&] {
        size_t got = 0;
        if (!stream.read(bytes + have, sizeof bytes - have, got)) throw Failure("it has ended");
        have += got;
        if (have < sizeof bytes) return last;
        have = 0;
        std::memcpy(&last, bytes, sizeof last);
        return last;
      });
}

// The other side says so when it has all of a round.
Row tcp_polled_bandwidth(Side& side, const Pages&, size_t size_bytes, double seconds) {
  constexpr size_t kRoundBytes = 16u << 20;
  Polled stream(side);
  Pages memory(size_bytes, Pages::Kind::own);
  std::byte done{};
  size_t got = 0;
  if (side.rank == 1) {
    for (size_t sum = 0; stream.read(memory.data(), size_bytes, got);) {
      sum += got;
      if (sum < kRoundBytes) continue;
      sum -= kRoundBytes;
      stream.write(&done, 1);
    }
    return Row{};
  }
  std::vector<double> values;
  for (const uint64_t until = now_ns() + static_cast<uint64_t>(seconds * 1e9);
       values.size() < 4 || now_ns() < until;) {
    const uint64_t start = now_ns();
    for (size_t sent = 0; sent < kRoundBytes; sent += size_bytes) {
      stream.write(memory.data(), size_bytes);
    }
    for (got = 0; got == 0;) {
      if (!stream.read(&done, 1, got)) throw Failure("it has ended");
    }
    values.push_back(static_cast<double>(kRoundBytes) / static_cast<double>(now_ns() - start));
  }
  stream.finish();
  return rate_row(Unit::gigabytes_per_second, values);
}

Row unix_clients(Side& side, const Pages&, size_t size_bytes, double seconds) {
  return serve_clients(side, AF_UNIX, size_bytes, seconds);
}

Row tcp_clients(Side& side, const Pages&, size_t size_bytes, double seconds) {
  return serve_clients(side, AF_INET, size_bytes, seconds);
}

}  // namespace aperture::bench
