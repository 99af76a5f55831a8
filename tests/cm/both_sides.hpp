// Ids for tests, progressed from the test's thread, and peers written by hand that may break every
// rule.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "cm/id.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm::test {

inline nic::ControlThread& control() {
  static nic::ControlThread* const the_one = *nic::ControlThread::instance();
  return *the_one;
}

class Side {
 public:
  explicit Side(const Service& service) {
    control().run([&] { adopt(*Id::create(control(), service)); });
  }
  explicit Side(std::unique_ptr<Id> id) {
    control().run([&] { adopt(std::move(id)); });
  }
  ~Side() {
    control().run([&] { id_.reset(); });
    const std::lock_guard guard(mutex_);
    for (Event& e : events_) control().run([&] { e.child.reset(); });
  }

  template <typename Fn>
  auto run(Fn&& fn) -> decltype(fn(std::declval<Id&>())) {
    using Answer = decltype(fn(std::declval<Id&>()));
    if constexpr (std::is_void_v<Answer>) {
      control().run([&] { fn(*id_); });
    } else {
      Answer answer{};
      control().run([&] { answer = fn(*id_); });
      return answer;
    }
  }

  Address listen(size_t backlog = 8, const Address& at = Address::v4(INADDR_LOOPBACK, 0)) {
    return run([&](Id& id) {
      const bool ok = id.bind(at).ok() && id.listen(backlog).ok();
      return ok ? *id.binding().local() : Address{};
    });
  }
  void resolve(const Address& to) {
    EXPECT_TRUE(run([&](Id& id) { return id.resolve_addr({}, to); }));
    EXPECT_EQ(next(), EventKind::addr_resolved);
    EXPECT_TRUE(run([&](Id& id) { return id.resolve_route(); }));
    EXPECT_EQ(next(), EventKind::route_resolved);
  }
  Status connect(const Params& params) {
    return run([&](Id& id) { return id.connect(params); });
  }

  // The next event, which must come; its status is status().
  EventKind next() {
    const Event e = take();
    status_ = e.status;
    return e.kind;
  }
  int status() const { return status_; }
  std::unique_ptr<Side> request() {
    Event e = take();
    EXPECT_EQ(e.kind, EventKind::connect_request);
    return e.child != nullptr ? std::make_unique<Side>(std::move(e.child)) : nullptr;
  }
  // The id of a connection that the other side asks for here.
  std::unique_ptr<Side> asked_by(Side& client, const Params& params = {}) {
    EXPECT_TRUE(client.connect(params));
    auto child = request();
    if (child == nullptr) throw std::runtime_error("no request came");
    return child;
  }
  bool is_quiet(int ms) {
    std::unique_lock lock(mutex_);
    return !came_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return !events_.empty(); });
  }

 private:
  void adopt(std::unique_ptr<Id> id) {
    id_ = std::move(id);
    id_->tell([this](Event&& event) {
      const std::lock_guard guard(mutex_);
      events_.push_back(std::move(event));
      came_.notify_one();
    });
  }
  Event take() {
    std::unique_lock lock(mutex_);
    const bool got =
        came_.wait_for(lock, std::chrono::seconds(20), [&] { return !events_.empty(); });
    EXPECT_TRUE(got) << "no event came";
    if (!got) return {};
    Event e = std::move(events_.front());
    events_.pop_front();
    return e;
  }

  std::unique_ptr<Id> id_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Event> events_;
  int status_ = 0;
};

// Bytes of a stream, as they are.
class RawSocket {
 public:
  RawSocket() = default;
  explicit RawSocket(ParentOnlyFd fd) : fd_(std::move(fd)) {}

  void send(std::span<const std::byte> bytes) {
    ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::vector<std::byte> receive(size_t n) {
    std::vector<std::byte> out(n);
    size_t got = 0;
    while (got < n && readable()) {
      const ssize_t r = ::recv(fd_.get(), out.data() + got, n - got, 0);
      if (r <= 0) break;
      got += static_cast<size_t>(r);
    }
    out.resize(got);
    return out;
  }
  // The other side has closed, whatever it said before.
  bool is_closed() {
    std::byte byte;
    while (readable()) {
      if (::recv(fd_.get(), &byte, 1, 0) <= 0) return true;
    }
    return false;
  }
  bool readable(int ms = 10000) const {
    pollfd p{fd_.get(), POLLIN, 0};
    return ::poll(&p, 1, ms) == 1;
  }
  int fd() const { return fd_.get(); }
  void close() { fd_ = {}; }

 protected:
  ParentOnlyFd fd_;
};

inline Port loopback_port(PortSpace space = PortSpace::tcp) {
  return *Port::take(space, Address::v4(INADDR_LOOPBACK, 0), {});
}

// A client.
struct RawClient : RawSocket {
  explicit RawClient(const Address& to, PortSpace space = PortSpace::tcp)
      : port(loopback_port(space)), peer(to) {
    fd_ = *port.connect(port.bound(), to);
  }
  wire::Req req() const {
    wire::Req r;
    r.source = port.bound();
    r.destination = peer;
    return r;
  }
  Port port;
  Address peer;
};

// A server, for one connection.
struct RawPeer : RawSocket {
  RawPeer() : port(loopback_port()), address(port.bound()), listening(*port.listen()) {}
  void accept() {
    pollfd p{listening.front().socket.get(), POLLIN, 0};
    ::poll(&p, 1, 10000);
    fd_ = *nic::accept_one(listening.front().socket.get());
  }
  Port port;
  Address address;
  std::vector<NamedSocket> listening;
};

// Connects whoever comes, and never says a word.
using Silent = RawPeer;

}  // namespace aperture::cm::test
