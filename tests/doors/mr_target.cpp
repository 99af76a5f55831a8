// Carrying out requests of mr_target.hpp, here or in a child.
#include "doors/mr_target.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <ostream>

#include "aperture/fi_window.h"
#include "doors/child.hpp"

namespace aperture::doors::mr {
namespace {

constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;

std::vector<uint8_t> name_in(const Reply& r) {
  return {r.name, r.name + r.name_len};
}

class Servant {
 public:
  ~Servant() {
    // what is bound to a region goes before it
    for (const auto& node : {node_.get(), sibling_.get()}) {
      if (node != nullptr) node->close_endpoint();
    }
    counters_.clear();
    windows_.clear();
    regions_.clear();
    sibling_.reset();
    node_.reset();
    if (arena_ != nullptr) munmap(arena_, pages_ * kPage);
  }
  Reply perform(const Request& q) noexcept {
    Reply r;
    try {
      if (q.what <= Do::insert) {
        nodes(q, &r);
      } else if (q.what <= Do::resident) {
        memory(q, &r);
      } else if (q.what <= Do::close) {
        regions(q, &r);
      } else if (q.what <= Do::drop) {
        windows(q, &r);
      } else if (q.what <= Do::received) {
        messages(q, &r);
      }
    } catch (const std::exception& e) {
      std::snprintf(r.text, sizeof r.text, "%s", e.what());
    }
    return r;
  }

 private:
  void nodes(const Request& q, Reply* r) {
    if (q.what == Do::insert) {
      peer_ = node_->insert({q.name, q.name + q.name_len});
      return;
    }
    std::unique_ptr<Node>& made = q.what == Do::open ? node_ : sibling_;
    made = q.what == Do::open ? std::make_unique<Node>(q.options)
                              : std::make_unique<Node>(q.options, *node_);
    const std::vector<uint8_t> name = made->name();
    r->name_len = static_cast<uint32_t>(name.size());
    std::memcpy(r->name, name.data(), name.size());
  }

  void memory(const Request& q, Reply* r) {
    if (q.what == Do::arena) {
      pages_ = q.value;
      void* made = mmap(nullptr, pages_ * kPage, PROT_READ | PROT_WRITE, kAnonymous, -1, 0);
      if (made == MAP_FAILED) throw DoorError("mmap", -FI_ENOMEM);
      arena_ = static_cast<uint8_t*>(made);
      return;
    }
    const Part part = q.parts[0];
    uint8_t* at = arena_ + part.offset;
    if (q.what == Do::unmap) {
      munmap(at, part.len);
    } else if (q.what == Do::map) {
      mmap(at, part.len, PROT_READ | PROT_WRITE, kAnonymous | MAP_FIXED, -1, 0);
    } else if (q.what == Do::protect) {
      mprotect(at, part.len, static_cast<int>(q.flags));
    } else if (q.what == Do::fill) {
      doors::fill({at, part.len}, q.value);
    } else if (q.what == Do::holds) {
      r->code = first_difference({at, part.len}, q.value, q.flags) ? 0 : 1;
    } else {
      std::vector<unsigned char> in(part.len / kPage);
      if (mincore(at, part.len, in.data()) != 0) throw DoorError("mincore", -FI_ENOMEM);
      r->value = static_cast<uint64_t>(
          std::count_if(in.begin(), in.end(), [](unsigned char c) { return (c & 1) != 0; }));
    }
  }

  std::vector<iovec> iovs_of(const Request& q) {
    std::vector<iovec> out;
    for (uint32_t i = 0; i < q.part_count; ++i)
      out.push_back({arena_ + q.parts[i].offset, q.parts[i].len});
    return out;
  }

  void reg(const Request& q, Reply* r) {
    static uint64_t next_key = (static_cast<uint64_t>(getpid()) & 0xFFF) << 20 | 1;
    const std::vector<iovec> iov = iovs_of(q);
    const uint64_t key = q.key != 0 ? q.key : next_key++;
    fid_mr* mr = nullptr;
    r->code = fi_mr_regv(node_->domain(), iov.data(), iov.size(), q.access, 0, key, q.flags, &mr,
                         nullptr);
    if (r->code != 0) return;
    regions_[q.id].reset(mr);
    r->remote.base =
        node_->virtual_addresses() ? reinterpret_cast<uint64_t>(iov.front().iov_base) : 0;
    r->remote.key = fi_mr_key(mr);
    bases_[mr] = r->remote.base;
    for (const iovec& part : iov) r->remote.size += part.iov_len;
  }

  void regions(const Request& q, Reply* r) {
    const auto counter = [&] { return counters_.at(q.value).get(); };
    const auto region = [&] { return regions_.at(q.id).get(); };
    const auto endpoint = [&]() -> Node& { return q.value == 1 ? *sibling_ : *node_; };
    switch (q.what) {
      case Do::reg: reg(q, r); break;
      case Do::enable: r->code = fi_mr_enable(region()); break;
      case Do::bind_ep: r->code = fi_mr_bind(region(), &endpoint().ep()->fid, q.flags); break;
      case Do::bind_cntr: r->code = fi_mr_bind(region(), &counter()->fid, q.flags); break;
      case Do::count: r->value = fi_cntr_read(counter()); break;
      case Do::close_ep: endpoint().close_endpoint(); break;
      case Do::open_cntr: {
        fi_cntr_attr attr{};
        fid_cntr* made = nullptr;
        DOOR(fi_cntr_open(node_->domain(), &attr, &made, nullptr));
        counters_[q.value].reset(made);
        break;
      }
      case Do::close_cntr:
        r->code = fi_close(&counter()->fid);
        if (r->code == 0) (void)counters_.at(q.value).release();
        break;
      case Do::refresh: {
        const std::vector<iovec> iov = iovs_of(q);
        r->code = fi_mr_refresh(region(), iov.empty() ? nullptr : iov.data(), iov.size(), 0);
        break;
      }
      default:
        r->code = fi_close(&region()->fid);
        if (r->code == 0) (void)regions_.at(q.id).release();
    }
  }

  void windows(const Request& q, Reply* r) {
    if (ops_ == nullptr) {
      void* ops = nullptr;
      DOOR(fi_open_ops(&node_->domain()->fid, APERTURE_WINDOW_OPS, 0, &ops, nullptr));
      ops_ = static_cast<aperture_window_ops*>(ops);
    }
    Fid<aperture_window>& window = windows_[q.id];
    if (window == nullptr) {
      aperture_window* made = nullptr;
      DOOR(ops_->allocate(node_->domain(), nullptr, &made));
      window.reset(made);
    }
    if (q.what == Do::invalidate) {
      r->code = ops_->invalidate(window.get());
    } else if (q.what == Do::drop) {
      r->code = fi_close(&window->fid);
      if (r->code == 0) (void)window.release();
    } else {
      bind(q, window.get(), r);
    }
  }

  void bind(const Request& q, aperture_window* window, Reply* r) {
    fid_mr* mr = regions_.at(static_cast<uint32_t>(q.value)).get();
    const uint64_t base = bases_.at(mr);
    aperture_window_bind bind{};
    bind.size = sizeof bind;
    bind.mr = mr;
    bind.addr = base + q.parts[0].offset;
    bind.length = q.parts[0].len;
    bind.access = q.access;
    bind.peer = (q.flags & kToPeer) != 0 ? peer_ : FI_ADDR_UNSPEC;
    if ((q.flags & kToEndpoint) != 0) bind.ep = node_->ep();
    if ((q.flags & kToSibling) != 0) bind.ep = sibling_->ep();
    if ((q.flags & kFromZero) != 0) bind.flags = APERTURE_WINDOW_ZERO_BASED;
    const bool addresses = node_->virtual_addresses() && (q.flags & kFromZero) == 0;
    r->remote.base = addresses ? bind.addr : 0;
    r->remote.size = bind.length;
    r->code = ops_->bind(window, &bind, &r->remote.key);
  }

  void messages(const Request& q, Reply* r) {
    Inbox& inbox = inboxes_[q.id];
    if (q.what == Do::recv) {
      inbox.bytes.assign(q.value + 1, 0);
      DOOR(post([&] {
        return fi_recv(node_->ep(), inbox.bytes.data(), q.value, nullptr, FI_ADDR_UNSPEC,
                       &inbox.op);
      }));
      return;
    }
    const Completion c = node_->wait(&inbox.op, q.value == 1 ? 30 : 20000);
    r->code = c.err;
    r->value = c.data;
    r->flags = c.flags;
    r->remote.size = c.len;
    // what was sent is the contents of its length
    if (first_difference({inbox.bytes.data(), c.len}, c.len)) r->code = FI_EIO;
  }

  struct Inbox {
    Op op;
    std::vector<uint8_t> bytes;
  };
  std::unique_ptr<Node> node_;
  std::unique_ptr<Node> sibling_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  aperture_window_ops* ops_ = nullptr;
  std::map<uint32_t, Fid<aperture_window>> windows_;
  std::map<uint32_t, Inbox> inboxes_;
  std::map<fid_mr*, uint64_t> bases_;
  uint8_t* arena_ = nullptr;
  uint64_t pages_ = 0;
  std::map<uint32_t, Fid<fid_mr>> regions_;
  std::map<uint64_t, Fid<fid_cntr>> counters_;
};

Reply checked(const Reply& r) {
  if (r.text[0] != '\0') throw DoorError(std::string("the target: ") + r.text, -FI_EOTHER);
  return r;
}

class LocalTarget : public Target {
 public:
  Reply ask(const Request& q) override { return checked(servant_.perform(q)); }

 private:
  Servant servant_;
};

class RemoteTarget : public Target {
 public:
  explicit RemoteTarget(const ChildOptions& options) : child_("mr_target", options) {}
  Reply ask(const Request& q) override {
    if (!child_.control().put(q)) throw DoorError("asking the target", -FI_ENOTCONN);
    Reply r;
    if (!pump_until([&] { return child_.control().ready(); }, 30000) ||
        !child_.control().get(&r, 0))
      throw DoorError("the target is silent, or has ended", -FI_ENOTCONN);
    return checked(r);
  }

 private:
  Child child_;
};

Request request(Do what, uint32_t id = 0, uint64_t value = 0) {
  Request q;
  q.what = what, q.id = id, q.value = value;
  return q;
}

void put_parts(Request& q, const std::vector<Part>& parts) {
  q.part_count = static_cast<uint32_t>(std::min(parts.size(), kMostParts));
  std::copy_n(parts.begin(), q.part_count, q.parts);
}

Request on_pages(Do what, uint64_t page, uint64_t count) {
  Request q = request(what);
  q.parts[0] = {page * kPage, count * kPage};
  return q;
}

}  // namespace

DOOR_ROLE(mr_target) {
  Servant servant;
  bool driving = true, open = false;
  for (Request q;;) {
    if (driving && open) pump_until([&] { return control.ready(); }, 1'000'000'000);
    if (!control.get(&q) || q.what == Do::quit) return 0;
    open = true;
    if (q.what == Do::drive) driving = q.value != 0;
    if (!control.put(servant.perform(q))) return 0;
  }
}

std::vector<uint8_t> Target::open(const Options& options) {
  Request q = request(Do::open);
  q.options = options;
  return name_in(ask(q));
}
std::vector<uint8_t> Target::open_sibling(const Options& options) {
  Request q = request(Do::sibling);
  q.options = options;
  return name_in(ask(q));
}
void Target::arena(uint64_t pages) {
  ask(request(Do::arena, 0, pages));
}
void Target::unmap(uint64_t page, uint64_t count) {
  ask(on_pages(Do::unmap, page, count));
}
void Target::map(uint64_t page, uint64_t count) {
  ask(on_pages(Do::map, page, count));
}
void Target::protect(uint64_t page, uint64_t count, int prot) {
  Request q = on_pages(Do::protect, page, count);
  q.flags = static_cast<uint64_t>(prot);
  ask(q);
}
void Target::fill(Part part, uint64_t seed) {
  Request q = request(Do::fill, 0, seed);
  q.parts[0] = part;
  ask(q);
}
bool Target::holds(Part part, uint64_t seed, uint64_t skip) {
  Request q = request(Do::holds, 0, seed);
  q.flags = skip;
  q.parts[0] = part;
  return ask(q).code == 1;
}
uint64_t Target::resident(uint64_t page, uint64_t count) {
  return ask(on_pages(Do::resident, page, count)).value;
}
int Target::reg(uint32_t id, std::initializer_list<Part> parts, uint64_t access, uint64_t flags) {
  return reg(id, std::vector<Part>(parts), access, flags);
}
int Target::reg(uint32_t id, const std::vector<Part>& parts, uint64_t access, uint64_t flags) {
  Request q = request(Do::reg, id);
  q.access = access, q.flags = flags;
  put_parts(q, parts);
  const Reply r = ask(q);
  remote_ = r.remote;
  return static_cast<int>(r.code);
}
int Target::enable(uint32_t id) {
  return static_cast<int>(ask(request(Do::enable, id)).code);
}
int Target::bind_endpoint(uint32_t id, bool sibling) {
  return static_cast<int>(ask(request(Do::bind_ep, id, sibling ? 1 : 0)).code);
}
void Target::open_counter(uint32_t number) {
  ask(request(Do::open_cntr, 0, number));
}
int Target::bind_counter(uint32_t id, uint32_t number, uint64_t flags) {
  Request q = request(Do::bind_cntr, id, number);
  q.flags = flags;
  return static_cast<int>(ask(q).code);
}
uint64_t Target::count(uint32_t number) {
  return ask(request(Do::count, 0, number)).value;
}
bool Target::counts_to(uint32_t number, uint64_t value) {
  if (!pump_until([&] { return count(number) >= value; }, 10000)) return false;
  pump_for(5);
  return count(number) == value;
}
int Target::close_counter(uint32_t number) {
  return static_cast<int>(ask(request(Do::close_cntr, 0, number)).code);
}
void Target::close_endpoint(bool sibling) {
  ask(request(Do::close_ep, 0, sibling ? 1 : 0));
}
int Target::refresh(uint32_t id, const std::vector<Part>& parts) {
  Request q = request(Do::refresh, id);
  put_parts(q, parts);
  return static_cast<int>(ask(q).code);
}
int Target::close(uint32_t id) {
  return static_cast<int>(ask(request(Do::close, id)).code);
}

void Target::insert(const std::vector<uint8_t>& name) {
  Request q = request(Do::insert);
  q.name_len = static_cast<uint32_t>(name.size());
  std::copy(name.begin(), name.end(), q.name);
  ask(q);
}
int Target::bind_window(uint32_t id, uint32_t of, Part part, uint64_t access, uint64_t flags) {
  Request q = request(Do::window, id, of);
  q.access = access, q.flags = flags;
  put_parts(q, {part});
  const Reply r = ask(q);
  if (r.code == 0) window_ = r.remote;
  return static_cast<int>(r.code);
}
int Target::invalidate(uint32_t id) {
  return static_cast<int>(ask(request(Do::invalidate, id)).code);
}
int Target::close_window(uint32_t id) {
  return static_cast<int>(ask(request(Do::drop, id)).code);
}
void Target::recv(uint32_t id, uint64_t size) {
  ask(request(Do::recv, id, size));
}
Reply Target::received(uint32_t id) {
  return ask(request(Do::received, id));
}
bool Target::still_waits(uint32_t id) {
  return ask(request(Do::received, id, 1)).code == -1;
}

void PrintTo(const Reached& r, std::ostream* out) {
  *out << r.name;
}

Options options_of(int mr_mode, uint64_t more_caps) {
  Options o;
  o.caps = FI_MSG | FI_RMA | FI_ATOMIC | more_caps;
  o.mr_mode = mr_mode;
  return o;
}

void Regions::open(const Options& wanted, uint64_t pages,
                   std::vector<std::pair<std::string, std::string>> env) {
  Options options = wanted;
  if (GetParam().idle) options.progress = FI_PROGRESS_AUTO;
  node = std::make_unique<Node>(options);
  if (GetParam().two_processes) {
    ChildOptions child;
    child.env = std::move(env);
    if (GetParam().denied) child.env.push_back({"APERTURE_CMA", "deny"});
    target = std::make_unique<RemoteTarget>(child);
  } else {
    for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
    set_here = std::move(env);
    target = std::make_unique<LocalTarget>();
  }
  reach(target->open(options));
  target->arena(pages);
  alive();
  if (GetParam().idle) target->ask(request(Do::drive, 0, 0));
}

void Regions::TearDown() {
  for (const auto& setting : set_here) unsetenv(setting.first.c_str());
}

int Regions::settle(int64_t posted, Op& op) {
  if (posted != 0) throw DoorError("posting", posted);
  const Completion c = node->wait(&op);
  EXPECT_TRUE(node->quiet(1)) << "exactly one completion";
  return c.err;
}

int Regions::write(const Remote& r, uint64_t offset, size_t len, uint64_t seed) {
  std::vector<uint8_t> bytes(len);
  fill(bytes, seed);
  Op op;
  return settle(post([&] {
                  return fi_write(node->ep(), bytes.data(), len, nullptr, to, r.base + offset,
                                  r.key, &op);
                }),
                op);
}

int Regions::read(const Remote& r, uint64_t offset, size_t len) {
  got.assign(len, 0xcd);
  Op op;
  const int err = settle(post([&] {
                           return fi_read(node->ep(), got.data(), len, nullptr, to, r.base + offset,
                                          r.key, &op);
                         }),
                         op);
  if (err != 0) {
    EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](uint8_t b) { return b == 0xcd; }));
  }
  return err;
}

int Regions::add(const Remote& r, uint64_t offset, uint64_t operand) {
  Op op;
  return settle(post([&] {
                  return fi_atomic(node->ep(), &operand, 1, nullptr, to, r.base + offset, r.key,
                                   FI_UINT64, FI_SUM, &op);
                }),
                op);
}

int Regions::fetch(const Remote& r, uint64_t offset, fi_op what) {
  const uint64_t operand = 1;
  got.assign(8, 0xcd);
  Op op;
  return settle(post([&] {
                  return fi_fetch_atomic(node->ep(), &operand, 1, nullptr, got.data(), nullptr, to,
                                         r.base + offset, r.key, FI_UINT64, what, &op);
                }),
                op);
}

int Regions::compare(const Remote& r, uint64_t offset) {
  const uint64_t operand = 1, with = 2;
  uint64_t result = 0;
  Op op;
  return settle(post([&] {
                  return fi_compare_atomic(node->ep(), &operand, 1, nullptr, &with, nullptr,
                                           &result, nullptr, to, r.base + offset, r.key, FI_UINT64,
                                           FI_CSWAP, &op);
                }),
                op);
}

void Regions::refused(const Remote& r, uint64_t offset, size_t len, int err) {
  EXPECT_EQ(write(r, offset, len, 99), err) << "write of " << len;
  EXPECT_EQ(read(r, offset, len), err) << "read of " << len;
  EXPECT_EQ(add(r, offset), err) << "atomic";
  EXPECT_EQ(fetch(r, offset, FI_SUM), err) << "fetching atomic";
  EXPECT_EQ(compare(r, offset), err) << "comparing atomic";
}

void Regions::allowed(const Remote& r, uint64_t offset, size_t len) {
  EXPECT_EQ(write(r, offset, len, 31), 0);
  EXPECT_EQ(read(r, offset, len), 0);
  EXPECT_TRUE(got_is(31));
  EXPECT_EQ(add(r, offset, 0), 0);
  EXPECT_EQ(fetch(r, offset, FI_ATOMIC_READ), 0);
  EXPECT_EQ(compare(r, offset), 0);
}

bool Regions::got_is(uint64_t seed, size_t skip) const {
  return !first_difference(got, seed, skip);
}

// A key that nobody has is refused by whoever lives.
void Regions::alive() {
  Op op;
  got.assign(8, 0);
  const int64_t posted = post([&] {
    return fi_read(node->ep(), got.data(), 8, nullptr, to, 0, 0xdead'0000'0000'0000, &op);
  });
  EXPECT_EQ(settle(posted, op), FI_EACCES) << "it answers";
}

}  // namespace aperture::doors::mr
