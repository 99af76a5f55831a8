// Carrying out requests, here or in a child: see side.hpp. One thread owns a performer.
#include "doors/side.hpp"

#include <rdma/fi_atomic.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ostream>

namespace aperture::doors {
namespace {

constexpr int kForEver = 1'000'000'000;  // ms

Request make_request(Ask ask, uint32_t id = 0) {
  Request q;
  q.ask = ask;
  q.id = id;
  return q;
}

}  // namespace

void Performer::open(const Request& q, Reply* r) {
  options_ = q.options;
  node_ = host_ != nullptr ? std::make_unique<Node>(q.options, *host_)
                           : std::make_unique<Node>(q.options);
  const std::vector<uint8_t> name = node_->name();
  r->name_len = static_cast<uint32_t>(name.size());
  std::memcpy(r->name, name.data(), name.size());
}

Performer::Buffer& Performer::fresh(uint32_t id, size_t size, uint64_t seed) {
  auto buffer = std::make_unique<Buffer>();
  buffer->id = id;
  buffer->memory = std::make_unique<Guarded>(size, seed);
  Buffer& reference = *buffer;
  buffers_[id] = std::move(buffer);
  return reference;
}

void Performer::transfer(const Request& q, Reply* r) {
  Buffer& b = fresh(q.id, q.size, q.seed);
  iovec iov{b.memory->data(), q.size};
  void* desc = nullptr;
  if (q.ask == Ask::send) {
    fi_msg message{&iov, &desc, 1, q.addr, &b.op, q.data};
    r->status = post([&] { return fi_sendmsg(node_->ep(), &message, q.flags); });
  } else {
    fi_msg_tagged message{&iov, &desc, 1, q.addr, q.tag, 0, &b.op, q.data};
    r->status = post([&] { return fi_tsendmsg(node_->ep(), &message, q.flags); });
  }
}

void Performer::receive(const Request& q, Reply* r) {
  Buffer& b = fresh(q.id, q.size, 0);
  if (q.ask == Ask::receive && q.flags != 0) {
    iovec iov{b.memory->data(), q.size};
    fi_msg message{&iov, nullptr, 1, q.addr, &b.op, 0};
    r->status = post([&] { return fi_recvmsg(node_->ep(), &message, q.flags); });
  } else if (q.ask == Ask::receive) {
    r->status = post(
        [&] { return fi_recv(node_->ep(), b.memory->data(), q.size, nullptr, q.addr, &b.op); });
  } else {
    r->status = post([&] {
      return fi_trecv(node_->ep(), b.memory->data(), q.size, nullptr, q.addr, q.tag, q.ignore,
                      &b.op);
    });
  }
}

void Performer::remote_access(const Request& q, Reply* r) {
  Buffer& b = fresh(q.id, q.size, q.ask == Ask::write ? q.seed : 0);
  const uint64_t at = q.remote.base + q.offset;
  if (q.flags != 0) {
    iovec iov{b.memory->data(), q.size};
    fi_rma_iov range{at, q.size, q.remote.key};
    fi_msg_rma message{&iov, nullptr, 1, q.addr, &range, 1, &b.op, q.data};
    r->status = post([&] {
      return q.ask == Ask::write ? fi_writemsg(node_->ep(), &message, q.flags)
                                 : fi_readmsg(node_->ep(), &message, q.flags);
    });
    return;
  }
  r->status = post([&] {
    return q.ask == Ask::write ? fi_write(node_->ep(), b.memory->data(), q.size, nullptr, q.addr,
                                          at, q.remote.key, &b.op)
                               : fi_read(node_->ep(), b.memory->data(), q.size, nullptr, q.addr, at,
                                         q.remote.key, &b.op);
  });
}

// Both words lose nothing to anybody, or their sums will be too small in the end.
void Performer::add(const Request& q, Reply* r) {
  const uint64_t one = 1;
  const double real_one = 1;
  if (q.ask == Ask::add_here) {
    auto* words = reinterpret_cast<uint64_t*>(regions_.at(q.id)->memory().data());
    for (uint64_t i = 0; i < q.size; ++i) {
      __atomic_fetch_add(&words[0], one, __ATOMIC_RELAXED);
      uint64_t old_bits = __atomic_load_n(&words[1], __ATOMIC_RELAXED), new_bits;
      do {
        double v;
        std::memcpy(&v, &old_bits, sizeof v);
        v += real_one;
        std::memcpy(&new_bits, &v, sizeof v);
      } while (!__atomic_compare_exchange_n(&words[1], &old_bits, new_bits, false, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED));
      if (i % 16 == 0) pump();
    }
    return;
  }
  Op op;
  const uint64_t at = q.remote.base + q.offset;
  const auto failed = [&](int64_t rc) { return (r->status = rc) != 0; };
  for (uint64_t posted = 0, ended = 0; ended < 2 * q.size;) {
    if (posted < q.size) {
      if (failed(post([&] {
            return fi_atomic(node_->ep(), &one, 1, nullptr, q.addr, at, q.remote.key, FI_UINT64,
                             FI_SUM, &op);
          })))
        return;
      if (failed(post([&] {
            return fi_atomic(node_->ep(), &real_one, 1, nullptr, q.addr, at + 8, q.remote.key,
                             FI_DOUBLE, FI_SUM, &op);
          })))
        return;
      ++posted;
    }
    if (posted - ended / 2 < 100 && posted < q.size) continue;
    const Completion c = node_->wait(&op, q.timeout_ms);
    if (c.err != 0) throw DoorError("fi_atomic", -FI_EIO);
    ++ended;
  }
}

void Performer::settle(const Request& q, Reply* r) {
  if (q.ask == Ask::wait) {
    r->completion = node_->wait(&buffers_.at(q.id)->op, q.timeout_ms);
  } else if (q.ask == Ask::wait_any) {
    r->completion = node_->wait_any(q.timeout_ms);
    for (const auto& [id, buffer] : buffers_) {
      if (&buffer->op != r->completion.context) continue;
      r->id = id;
      if (r->completion.buf != nullptr)
        r->offset = static_cast<uint8_t*>(r->completion.buf) - buffer->memory->data();
    }
  } else if (q.ask == Ask::quiet) {
    r->status = node_->quiet(q.timeout_ms) ? 1 : 0;
  } else if (q.ask == Ask::verify) {
    const Guarded& memory = *buffers_.at(q.id)->memory;
    r->status =
        memory.intact() && !first_difference(memory.span().subspan(q.offset, q.size), q.seed);
  } else if (q.ask == Ask::untouched) {
    const Guarded& memory = *buffers_.at(q.id)->memory;
    r->status = memory.intact() && std::all_of(memory.span().begin(), memory.span().end(),
                                               [](uint8_t b) { return b == 0; });
  } else {
    buffers_.erase(q.id);
  }
}

void Performer::regions(const Request& q, Reply* r) {
  if (q.ask == Ask::region_open) {
    if (q.data == 1 && !elsewhere_) elsewhere_ = std::make_unique<Node>(options_);
    Node& owner = q.data == 1 ? *elsewhere_ : *node_;
    auto region = std::make_unique<Region>(owner, q.size, q.flags, q.seed, q.auth_key);
    r->remote = region->remote();
    regions_[q.id] = std::move(region);
  } else if (q.ask == Ask::region_close) {
    r->status = regions_.at(q.id)->close();
  } else {
    Guarded& memory = regions_.at(q.id)->memory();
    r->status = memory.intact() && !first_difference(memory.span(), q.seed);
  }
}

uint64_t Performer::count(uint64_t kind) {
  fid_cntr* counter = kind == FI_RECV           ? node_->rx_cntr()
                      : kind == FI_REMOTE_READ  ? node_->remote_read_cntr()
                      : kind == FI_REMOTE_WRITE ? node_->remote_write_cntr()
                                                : node_->tx_cntr();
  return fi_cntr_read(counter);
}

Reply Performer::perform(const Request& q) noexcept {
  Reply r;
  r.id = q.id;
  try {
    switch (q.ask) {
      case Ask::open: open(q, &r); break;
      case Ask::insert: r.addr = node_->insert({q.name, q.name + q.name_len}); break;
      case Ask::send:
      case Ask::tagged_send: transfer(q, &r); break;
      case Ask::receive:
      case Ask::tagged_receive: receive(q, &r); break;
      case Ask::write:
      case Ask::read: remote_access(q, &r); break;
      case Ask::region_open:
      case Ask::region_close:
      case Ask::region_verify: regions(q, &r); break;
      case Ask::count: r.offset = count(q.flags); break;
      case Ask::cancel: r.status = fi_cancel(&node_->ep()->fid, &buffers_.at(q.id)->op); break;
      case Ask::add:
      case Ask::add_here: add(q, &r); break;
      case Ask::drive:
      case Ask::quit: break;
      default: settle(q, &r);
    }
    if (r.status < 0)
      std::snprintf(r.text, sizeof r.text, "%s", DoorError("request", r.status).what());
  } catch (const DoorError& e) {
    r.status = e.code() < 0 ? e.code() : -FI_EOTHER;
    std::snprintf(r.text, sizeof r.text, "%s", e.what());
  } catch (const std::exception& e) {
    r.status = -FI_EOTHER;
    std::snprintf(r.text, sizeof r.text, "%s", e.what());
  }
  return r;
}

// The child's half of a RemoteSide: serves requests, polling between them when told to.
DOOR_ROLE(side) {
  Performer performer;
  bool driving = true;
  for (Request q;;) {
    if (driving && performer.node() != nullptr)
      pump_until([&] { return control.ready(); }, kForEver);
    if (!control.get(&q)) return 0;
    if (q.ask == Ask::drive) driving = q.size != 0;
    if (!control.put(performer.perform(q))) return 0;
    if (q.ask == Ask::quit) return 0;
  }
}

Reply LocalSide::ask(const Request& q) {
  const Reply r = performer_.perform(q);
  if (r.status < 0) throw DoorError(r.text, r.status);
  return r;
}

RemoteSide::RemoteSide(const ChildOptions& options) : child_("side", options) {}

void Side::begin(const Request& q) {
  ask(q);
}

void RemoteSide::begin(const Request& q) {
  if (!child_.control().put(q)) throw DoorError("asking the child process", -FI_ENOTCONN);
}

void RemoteSide::answer() {
  const bool answered = pump_until([&] { return child_.control().ready(); }, 60000);
  Reply r;
  if (!answered || !child_.control().get(&r, 0))
    throw DoorError("the child process is silent", -FI_ENOTCONN);
  if (r.status < 0) throw DoorError(std::string("in the child: ") + r.text, r.status);
}

Reply RemoteSide::ask(const Request& q) {
  if (!child_.control().put(q)) throw DoorError("asking the child process", -FI_ENOTCONN);
  const bool answered = pump_until([&] { return child_.control().ready(); }, q.timeout_ms + 10000);
  Reply r;
  if (!answered || !child_.control().get(&r, 0))
    throw DoorError(answered ? "the child process ended" : "the child process is silent",
                    -FI_ENOTCONN);
  if (r.status < 0) throw DoorError(std::string("in the child: ") + r.text, r.status);
  return r;
}

std::vector<uint8_t> Side::open(const Options& options) {
  Request q = make_request(Ask::open);
  q.options = options;
  const Reply r = ask(q);
  return {r.name, r.name + r.name_len};
}

fi_addr_t Side::insert(const std::vector<uint8_t>& name) {
  Request q = make_request(Ask::insert);
  q.name_len = static_cast<uint32_t>(name.size());
  std::memcpy(q.name, name.data(), name.size());
  return ask(q).addr;
}

void Side::send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed) {
  Request q = make_request(Ask::send, id);
  q.addr = to, q.size = size, q.seed = seed;
  q.flags = FI_COMPLETION;
  ask(q);
}

void Side::tagged_send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, uint64_t tag) {
  Request q = make_request(Ask::tagged_send, id);
  q.addr = to, q.size = size, q.seed = seed, q.tag = tag;
  q.flags = FI_COMPLETION;
  ask(q);
}

void Side::receive(uint32_t id, size_t size, fi_addr_t from) {
  Request q = make_request(Ask::receive, id);
  q.addr = from, q.size = size;
  ask(q);
}

void Side::tagged_receive(uint32_t id, size_t size, uint64_t tag, uint64_t ignore, fi_addr_t from) {
  Request q = make_request(Ask::tagged_receive, id);
  q.addr = from, q.size = size, q.tag = tag, q.ignore = ignore;
  ask(q);
}

Completion Side::wait(uint32_t id, int timeout_ms) {
  Request q = make_request(Ask::wait, id);
  q.timeout_ms = timeout_ms;
  return ask(q).completion;
}

bool Side::verify(uint32_t id, size_t size, uint64_t seed) {
  Request q = make_request(Ask::verify, id);
  q.size = size, q.seed = seed;
  return ask(q).status == 1;
}

bool Side::untouched(uint32_t id) {
  return ask(make_request(Ask::untouched, id)).status == 1;
}

void Side::release(uint32_t id) {
  ask(make_request(Ask::release, id));
}

bool Side::quiet(int for_ms) {
  Request q = make_request(Ask::quiet);
  q.timeout_ms = for_ms;
  return ask(q).status == 1;
}

Remote Side::region_open(uint32_t id, size_t size, uint64_t access, uint64_t seed,
                         const char* auth_key) {
  Request q = make_request(Ask::region_open, id);
  q.size = size, q.flags = access, q.seed = seed;
  std::snprintf(q.auth_key, sizeof q.auth_key, "%s", auth_key);
  return ask(q).remote;
}

Remote Side::region_open_elsewhere(uint32_t id, size_t size, uint64_t access, uint64_t seed) {
  Request q = make_request(Ask::region_open, id);
  q.size = size, q.flags = access, q.seed = seed, q.data = 1;
  return ask(q).remote;
}

void Side::region_close(uint32_t id) {
  ask(make_request(Ask::region_close, id));
}

bool Side::region_verify(uint32_t id, uint64_t seed) {
  Request q = make_request(Ask::region_verify, id);
  q.seed = seed;
  return ask(q).status == 1;
}

void Side::write(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, const Remote& remote,
                 uint64_t offset) {
  Request q = make_request(Ask::write, id);
  q.addr = to, q.size = size, q.seed = seed, q.remote = remote, q.offset = offset;
  ask(q);
}

void Side::read(uint32_t id, fi_addr_t to, size_t size, const Remote& remote, uint64_t offset) {
  Request q = make_request(Ask::read, id);
  q.addr = to, q.size = size, q.remote = remote, q.offset = offset;
  ask(q);
}

void Side::drive(bool on) {
  Request q = make_request(Ask::drive);
  q.size = on ? 1 : 0;
  ask(q);
}

uint64_t Side::count(uint64_t kind) {
  Request q = make_request(Ask::count);
  q.flags = kind;
  return ask(q).offset;
}

// Comes to the value, and stays there for a moment.
bool Side::counts_to(uint64_t kind, uint64_t value) {
  if (!pump_until([&] { return count(kind) >= value; }, 10000)) return false;
  pump_for(5);
  return count(kind) == value;
}

void Side::cancel(uint32_t id) {
  ask(make_request(Ask::cancel, id));
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
