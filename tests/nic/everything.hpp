// What is done while something fails, in a process of its own for each N
// (base/each_allocation.hpp): everything is opened, connected, sent and closed. Nobody crashes or
// hangs; whatever fails says so; and the same process then does all of it without a fault. Included
// by the one source of a program.
#pragma once

#include <execinfo.h>

#include <filesystem>
#include <new>

#include "base/each_allocation.hpp"
#include "base/reserve.hpp"
#include "nic/datagram_end.hpp"
#include "nic/datagram_endpoint.hpp"
#include "nic/endpoint.hpp"
#include "nic/first_contact.hpp"

namespace aperture::nic {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kHangNs = 8000 * kMs;

// What a run ends with, as a process's exit status.
enum Outcome : int {
  fine = 0,
  hangs = 10,
  does_not_recover = 11,
  keeps_the_reserve = 12,
  keeps_descriptors = 13
};
inline constexpr const char* kMeaning =
    "12 that blocks of the reserve are not given back, 13 that descriptors are not";

// An endpoint with everything around it.
struct Node {
  Errc open() {
    auto made = Engine::create({.threaded = true});
    if (!made) return made.error();
    engine = *std::move(made);
    cq = std::make_unique<qp::Cq>(64);
    EndpointOptions options;
    options.engine = engine.get();
    options.addresses = &addresses;
    options.tx_cq = options.rx_cq = cq.get();
    options.local = Address::v4(0x7f000001, 0);
    return Endpoint::create(endpoint, options).error();
  }
  void poll() {
    const EngineGuard guard(*engine);
    engine->poll();
  }
  // Whether something completed; the errors go to `why`.
  bool completed(Errc& why) {
    const EngineGuard guard(*engine);
    if (cq->empty()) return false;
    if (cq->error_first()) why = Errc::peer_lost;
    return true;
  }

  std::unique_ptr<Engine> engine;
  AddressTable addresses;
  std::unique_ptr<qp::Cq> cq;
  std::unique_ptr<Endpoint> endpoint;
};

bool g_hung = false;
// How many are open after a run without a failure: one for all of these processes.
size_t* const descriptors = static_cast<size_t*>(
    ::mmap(nullptr, sizeof(size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));

// A message between two endpoints, over a connection that it makes.
Errc send_one() {
  Node a, b;
  if (const Errc e = a.open(); e != Errc::ok) return e;
  if (const Errc e = b.open(); e != Errc::ok) return e;
  const auto index = a.addresses.insert(b.endpoint->address());
  if (!index) return index.error();
  uint64_t word = 42, got = 0;
  const iovec from{&word, sizeof word}, to{&got, sizeof got};
  {
    const EngineGuard guard(*b.engine);
    const qp::RecvWr recv{.iov = &to, .iov_count = 1, .len = sizeof got};
    if (Status s = b.endpoint->recv(recv); !s) return s.error();
  }
  const qp::SendWr send{.iov = &from, .iov_count = 1, .len = sizeof word};
  bool sent = false;
  Errc why = Errc::ok;
  uint64_t completed_at = 0;
  for (const uint64_t until = now_ns() + kHangNs; now_ns() < until;) {
    if (!sent) {
      const EngineGuard guard(*a.engine);
      const Status s = a.endpoint->send(send);
      if (!s && s.error() != Errc::again) return s.error();
      sent = s.ok();
    }
    a.poll();
    b.poll();
    Errc received = Errc::ok;
    if (b.completed(received)) return received == Errc::ok && got == word ? Errc::ok : Errc::io;
    if (completed_at == 0 && a.completed(why)) completed_at = now_ns();
    if (why != Errc::ok) return why;
    // it was with the peer, whose side of the lane was ended before it was read
    if (completed_at != 0 && now_ns() - completed_at > 500 * kMs) return Errc::peer_lost;
  }
  g_hung = true;
  return Errc::timed_out;
}

// A connection that two verbs queue pairs would have; and datagrams between two others.
Errc use_queue_pairs() {
  test::DatagramEnd a, b;
  if (!a.ok || !b.ok) return Errc::no_memory;
  auto connected = a.nic->make_qp(a.rc_spec());
  if (!connected) return connected.error();
  const Address here = Address::v4(0x7f000001, 0);
  if (Status s = a.send(here, here, b.qpn(), "word"); !s) return s.error();
  return b.next(true, 2000).text == "word" ? Errc::ok : Errc::peer_lost;
}

// A datagram to a group, from one member to another.
Errc send_to_group() {
  auto made = Engine::create({.threaded = true});
  if (!made) return made.error();
  const std::unique_ptr<Engine> engine = *std::move(made);
  AddressTable addresses;
  qp::Cq cq(64);
  EndpointOptions options;
  options.engine = engine.get();
  options.addresses = &addresses;
  options.tx_cq = options.rx_cq = &cq;
  options.local = Address::v4(0x7f000001, 0);
  auto from = DatagramEndpoint::create(options, {});
  if (!from) return from.error();
  auto to = DatagramEndpoint::create(options, {});
  if (!to) return to.error();
  const Address group = Address::v4(0xefc00000 | static_cast<uint32_t>(::getpid() & 0xffff), 5000);
  auto joined = (*from)->groups().join(group, {.receives = false});
  if (!joined) return joined.error();
  if (auto also = (*to)->groups().join(group, {}); !also) return also.error();
  uint64_t word = 42, got = 0;
  const iovec out{&word, sizeof word}, in{&got, sizeof got};
  const EngineGuard guard(*engine);
  if (Status s = (*to)->recv({.iov = &in, .iov_count = 1, .len = sizeof got}); !s) return s.error();
  const qp::SendWr send{
      .iov = &out, .iov_count = 1, .len = sizeof word, .dest = *joined, .completion = false};
  if (Status s = (*from)->send(send); !s) return s.error();
  for (const uint64_t until = now_ns() + 2000 * kMs; now_ns() < until && cq.empty();)
    engine->poll();
  return got == word ? Errc::ok : Errc::peer_lost;
}

Errc do_everything() noexcept {
  try {
    auto contact = Contact::instance();
    if (!contact) return contact.error();
    static_cast<FirstContact*>(*contact)->connector_limits.timeout_ns = 2000 * kMs;
    if (const Errc e = send_one(); e != Errc::ok) return e;
    if (const Errc e = send_to_group(); e != Errc::ok) return e;
    return use_queue_pairs();
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;  // of this program's own
  }
}

size_t open_descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator{}));
}

// In a process of its own.
int outcome_of(uint64_t n) {
  std::set_terminate([] {  // who did not catch
    void* frames[32];
    ::backtrace_symbols_fd(frames, ::backtrace(frames, 32), STDERR_FILENO);
    std::abort();
  });
  nth::fail_from_now_on(n);
  Errc ended = do_everything();
  nth::fails_at = nth::kNever;
  if (n == 0) {
    if (ended != Errc::ok) std::fprintf(stderr, "without a failure: %s\n", describe(ended));
    // some close a little later, and the second time there is all that is there for good
    for (int i = 0; i < 2 && ended == Errc::ok; ++i) ended = do_everything();
    for (int ms = 0; ms < 500; ++ms) ::usleep(1000);
    *descriptors = open_descriptors();
    return ended == Errc::ok ? fine : does_not_recover;
  }
  if (g_hung) return hangs;
  for (int tries = 0; tries < 2; ++tries) {  // a connection may be in its last gasps
    if (ended = do_everything(); ended == Errc::ok) break;
  }
  if (g_hung) return hangs;
  if (ended != Errc::ok) return does_not_recover;
  // looked at once each time: a connection may come and go at any moment
  const auto comes_true = [](auto condition) {
    for (int ms = 0; ms < 8000; ++ms) {
      if (condition()) return true;
      ::usleep(1000);
    }
    return false;
  };
  if (!comes_true([] { return open_descriptors() <= *descriptors; })) return keeps_descriptors;
  // the longest-lived block is the timer over a newcomer, 5 s
  return comes_true([] { return reserve::in_use() == 0; }) ? fine : keeps_the_reserve;
}

}  // namespace
}  // namespace aperture::nic
