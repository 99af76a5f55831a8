// Carrying out what a Side is asked for: see side.hpp. One thread owns a performer.
#include "doors/side.hpp"

#include <rdma/fi_atomic.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ostream>

namespace aperture::doors {

Name Performer::open(const Options& options) {
  options_ = options;
  node_ =
      host_ != nullptr ? std::make_unique<Node>(options, *host_) : std::make_unique<Node>(options);
  return node_->name();
}

void Performer::ask(const Request& q) {
  const bool goes_out = q.ask == Ask::send || q.ask == Ask::tagged_send || q.ask == Ask::write;
  auto buffer = std::make_unique<Buffer>();
  buffer->memory = std::make_unique<Guarded>(q.size, goes_out ? q.seed : 0);
  Buffer& fresh = *buffer;
  buffers_[q.id] = std::move(buffer);
  check(start(q, fresh), "request");
}

int64_t Performer::start(const Request& q, Buffer& b) {
  void* at = b.memory->data();
  void* desc = nullptr;
  const iovec iov{at, q.size};
  const uint64_t there = q.remote.base + q.offset, key = q.remote.key;
  const fi_rma_iov range{there, q.size, key};
  const fi_msg in{&iov, nullptr, 1, q.addr, &b.op, 0}, out{&iov, &desc, 1, q.addr, &b.op, q.data};
  const fi_msg_tagged tagged{&iov, &desc, 1, q.addr, q.tag, 0, &b.op, q.data};
  const fi_msg_rma rma{&iov, nullptr, 1, q.addr, &range, 1, &b.op, q.data};
  const bool plain = q.flags == 0;
  switch (q.ask) {
    case Ask::send: return node_->post(fi_sendmsg, &out, q.flags);
    case Ask::tagged_send: return node_->post(fi_tsendmsg, &tagged, q.flags);
    case Ask::receive:
      return plain ? node_->post(fi_recv, at, q.size, nullptr, q.addr, &b.op)
                   : node_->post(fi_recvmsg, &in, q.flags);
    case Ask::tagged_receive:
      return node_->post(fi_trecv, at, q.size, nullptr, q.addr, q.tag, q.ignore, &b.op);
    case Ask::write:
      return plain ? node_->post(fi_write, at, q.size, nullptr, q.addr, there, key, &b.op)
                   : node_->post(fi_writemsg, &rma, q.flags);
    case Ask::read:
      return plain ? node_->post(fi_read, at, q.size, nullptr, q.addr, there, key, &b.op)
                   : node_->post(fi_readmsg, &rma, q.flags);
  }
  return -FI_EINVAL;
}

Completion Performer::wait(uint32_t id, int timeout_ms) {
  return node_->wait(&buffers_.at(id)->op, timeout_ms);
}

Reply Performer::wait_any() {
  Reply r{.completion = node_->wait_any()};
  for (const auto& [id, buffer] : buffers_) {
    if (&buffer->op != r.completion.context) continue;
    r.id = id;
    if (r.completion.buf != nullptr)
      r.offset = static_cast<uint8_t*>(r.completion.buf) - buffer->memory->data();
  }
  return r;
}

bool Performer::verify(uint32_t id, uint64_t size, uint64_t seed, uint64_t offset) {
  const Guarded& memory = *buffers_.at(id)->memory;
  return memory.intact() && !first_difference(memory.span().subspan(offset, size), seed);
}

bool Performer::untouched(uint32_t id) {
  const Guarded& memory = *buffers_.at(id)->memory;
  return memory.intact() &&
         std::all_of(memory.span().begin(), memory.span().end(), [](uint8_t b) { return b == 0; });
}

Remote Performer::region_open(const RegionWanted& w) {
  if (w.elsewhere && !elsewhere_) elsewhere_ = std::make_unique<Node>(options_);
  Node& owner = w.elsewhere ? *elsewhere_ : *node_;
  auto region = std::make_unique<Region>(owner, w.size, w.access, w.seed, w.auth_key);
  const Remote remote = region->remote();
  regions_[w.id] = std::move(region);
  return remote;
}

bool Performer::region_verify(uint32_t id, uint64_t seed) {
  const Guarded& memory = regions_.at(id)->memory();
  return memory.intact() && !first_difference(memory.span(), seed);
}

uint64_t Performer::count(uint64_t kind) {
  fid_cntr* counter = kind == FI_RECV           ? node_->rx_cntr()
                      : kind == FI_REMOTE_READ  ? node_->remote_read_cntr()
                      : kind == FI_REMOTE_WRITE ? node_->remote_write_cntr()
                                                : node_->tx_cntr();
  return fi_cntr_read(counter);
}

// Adds 1 to a word and to the double behind it, as often as that. Nobody's additions may be lost,
// or the sums will be too small in the end.
void Performer::add(fi_addr_t to, const Remote& remote, uint64_t count) {
  const uint64_t one = 1;
  const double real_one = 1;
  Op op;
  for (uint64_t posted = 0, ended = 0; ended < 2 * count;) {
    if (posted < count) {
      DOOR(node_->post(fi_atomic, &one, 1, nullptr, to, remote.base, remote.key, FI_UINT64, FI_SUM,
                       &op));
      DOOR(node_->post(fi_atomic, &real_one, 1, nullptr, to, remote.base + 8, remote.key, FI_DOUBLE,
                       FI_SUM, &op));
      ++posted;
    }
    if (posted - ended / 2 < 100 && posted < count) continue;
    if (node_->wait(&op).err != 0) throw DoorError("fi_atomic", -FI_EIO);
    ++ended;
  }
}

// The same to its own region, with the CPU's atomics.
void Performer::add_here(uint32_t region, uint64_t count) {
  auto* words = reinterpret_cast<uint64_t*>(regions_.at(region)->memory().data());
  for (uint64_t i = 0; i < count; ++i) {
    __atomic_fetch_add(&words[0], uint64_t{1}, __ATOMIC_RELAXED);
    uint64_t old_bits = __atomic_load_n(&words[1], __ATOMIC_RELAXED), new_bits;
    do {
      double v;
      std::memcpy(&v, &old_bits, sizeof v);
      v += 1;
      std::memcpy(&new_bits, &v, sizeof v);
    } while (!__atomic_compare_exchange_n(&words[1], &old_bits, new_bits, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    if (i % 16 == 0) pump();
  }
}

DOOR_ROLE(side) {
  Performer performer;
  return serve_calls(control, &performer, [&] { return performer.polls(); });
}

void Side::send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed) {
  ask({.ask = Ask::send, .id = id, .addr = to, .size = size, .seed = seed, .flags = FI_COMPLETION});
}

void Side::tagged_send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, uint64_t tag) {
  ask({.ask = Ask::tagged_send,
       .id = id,
       .addr = to,
       .size = size,
       .seed = seed,
       .tag = tag,
       .flags = FI_COMPLETION});
}

void Side::receive(uint32_t id, size_t size, fi_addr_t from) {
  ask({.ask = Ask::receive, .id = id, .addr = from, .size = size});
}

void Side::tagged_receive(uint32_t id, size_t size, uint64_t tag) {
  ask({.ask = Ask::tagged_receive, .id = id, .size = size, .tag = tag});
}

void Side::write(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, const Remote& remote,
                 uint64_t offset) {
  ask({.ask = Ask::write,
       .id = id,
       .addr = to,
       .size = size,
       .seed = seed,
       .offset = offset,
       .remote = remote});
}

void Side::read(uint32_t id, fi_addr_t to, size_t size, const Remote& remote, uint64_t offset) {
  ask({.ask = Ask::read, .id = id, .addr = to, .size = size, .offset = offset, .remote = remote});
}

Remote Side::region_open(uint32_t id, size_t size, uint64_t access, uint64_t seed,
                         const char* auth_key) {
  RegionWanted wanted{.id = id, .size = size, .access = access, .seed = seed};
  std::snprintf(wanted.auth_key, sizeof wanted.auth_key, "%s", auth_key);
  return call<&Performer::region_open>(wanted);
}

bool Side::counts_to(uint64_t kind, uint64_t value) {
  if (!pump_until([&] { return count(kind) >= value; }, 10000)) return false;
  pump_for(5);
  return count(kind) == value;
}

const char* name_of(Topology topology) {
  switch (topology) {
    case Topology::self: return "self";
    case Topology::one_domain: return "one_domain";
    case Topology::two_domains: return "two_domains";
    case Topology::two_processes: return "two_processes";
  }
  return "?";
}

void PrintTo(Topology topology, std::ostream* out) {
  *out << name_of(topology);
}
void PrintTo(const Place& place, std::ostream* out) {
  *out << place.name;
}

Completion Duo::write(size_t size, uint64_t seed, const Remote& remote, uint64_t offset) {
  first->write(kWritten, to_second, size, seed, remote, offset);
  return first->wait(kWritten);
}

Completion Duo::read(size_t size, const Remote& remote, uint64_t offset) {
  first->read(kRead, to_second, size, remote, offset);
  return first->wait(kRead);
}

Duo make_duo(Topology topology, const Options& options, const ChildOptions& child) {
  Duo duo;
  duo.first = std::make_unique<LocalSide>();
  const std::vector<uint8_t> first_name = duo.first->open(options);
  if (topology == Topology::self) {
    duo.second = duo.first.get();
    duo.to_first = duo.to_second = duo.first->insert(first_name);
    return duo;
  }
  if (topology == Topology::one_domain)
    duo.second_owner = std::make_unique<LocalSide>(duo.first->node());
  else if (topology == Topology::two_domains)
    duo.second_owner = std::make_unique<LocalSide>();
  else
    duo.second_owner = std::make_unique<RemoteSide>(child);
  duo.second = duo.second_owner.get();
  const std::vector<uint8_t> second_name = duo.second->open(options);
  duo.to_second = duo.first->insert(second_name);
  duo.to_first = duo.second->insert(first_name);
  return duo;
}

}  // namespace aperture::doors
