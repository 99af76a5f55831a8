// Carrying out what a Target is asked for, and reaching for it: see mr_target.hpp.

#include <sys/mman.h>

#include <algorithm>
#include <ostream>

#include "doors/window.hpp"

namespace aperture::doors::mr {
namespace {

constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;

Part pages(uint64_t page, uint64_t count) {
  return {page * kPage, count * kPage};
}

}  // namespace

Servant::~Servant() {
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

Name Servant::open(const Options& options) {
  node_ = std::make_unique<Node>(options);
  return node_->name();
}

Name Servant::open_sibling(const Options& options) {
  sibling_ = std::make_unique<Node>(options, *node_);
  return sibling_->name();
}

void Servant::arena(uint64_t pages) {
  pages_ = pages;
  void* made = mmap(nullptr, pages_ * kPage, PROT_READ | PROT_WRITE, kAnonymous, -1, 0);
  if (made == MAP_FAILED) throw DoorError("mmap", -FI_ENOMEM);
  arena_ = static_cast<uint8_t*>(made);
}

void Servant::unmap(uint64_t page, uint64_t count) {
  munmap(at(pages(page, count)), count * kPage);
}

void Servant::map(uint64_t page, uint64_t count) {
  mmap(at(pages(page, count)), count * kPage, PROT_READ | PROT_WRITE, kAnonymous | MAP_FIXED, -1,
       0);
}

void Servant::protect(uint64_t page, uint64_t count, int prot) {
  mprotect(at(pages(page, count)), count * kPage, prot);
}

bool Servant::holds(Part part, uint64_t seed, uint64_t skip) {
  return !first_difference({at(part), part.len}, seed, skip);
}

uint64_t Servant::resident(uint64_t page, uint64_t count) {
  std::vector<unsigned char> in(count);
  if (mincore(at(pages(page, count)), count * kPage, in.data()) != 0)
    throw DoorError("mincore", -FI_ENOMEM);
  return static_cast<uint64_t>(
      std::count_if(in.begin(), in.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

std::vector<iovec> Servant::iovs_of(const Parts& parts) {
  std::vector<iovec> out;
  for (const Part& part : parts) out.push_back({at(part), part.len});
  return out;
}

Reply Servant::reg(uint32_t id, const Parts& parts, uint64_t access, uint64_t flags) {
  // one that nobody else has
  static uint64_t next_key = (static_cast<uint64_t>(getpid()) & 0xFFF) << 20 | 1;
  const std::vector<iovec> iov = iovs_of(parts);
  fid_mr* mr = nullptr;
  Reply r;
  r.code = fi_mr_regv(node_->domain(), iov.data(), iov.size(), access, 0, next_key++, flags, &mr,
                      nullptr);
  if (r.code != 0) return r;
  regions_[id].reset(mr);
  if (node_->virtual_addresses()) {
    r.remote.base = reinterpret_cast<uint64_t>(iov.front().iov_base);
  }
  r.remote.key = fi_mr_key(mr);
  bases_[mr] = r.remote.base;
  for (const iovec& part : iov) r.remote.size += part.iov_len;
  return r;
}

int Servant::bind_endpoint(uint32_t id, bool sibling) {
  return fi_mr_bind(regions_.at(id).get(), &(sibling ? sibling_ : node_)->ep()->fid, 0);
}

int Servant::refresh(uint32_t id, const Parts& parts) {
  const std::vector<iovec> iov = iovs_of(parts);
  return fi_mr_refresh(regions_.at(id).get(), iov.empty() ? nullptr : iov.data(), iov.size(), 0);
}

int Servant::bind_counter(uint32_t id, uint32_t number, uint64_t flags) {
  return fi_mr_bind(regions_.at(id).get(), &counters_.at(number)->fid, flags);
}

aperture_window_ops& Servant::ops() {
  return window_ops(node_->domain());
}

Fid<aperture_window>& Servant::window(uint32_t id) {
  Fid<aperture_window>& window = windows_[id];
  if (window == nullptr) window = make_window(node_->domain());
  return window;
}

Reply Servant::bind_window(uint32_t id, uint32_t of, Part part, uint64_t access, uint64_t flags) {
  fid_mr* mr = regions_.at(of).get();
  aperture_window_bind bind = part_of(mr, bases_.at(mr) + part.offset, part.len, access);
  if ((flags & kToPeer) != 0) bind.peer = peer_;
  if ((flags & kToEndpoint) != 0) bind.ep = node_->ep();
  if ((flags & kToSibling) != 0) bind.ep = sibling_->ep();
  if ((flags & kFromZero) != 0) bind.flags = APERTURE_WINDOW_ZERO_BASED;
  const bool addresses = node_->virtual_addresses() && (flags & kFromZero) == 0;
  Reply r{.remote = {.base = addresses ? bind.addr : 0, .size = bind.length}};
  r.code = ops().bind(window(id).get(), &bind, &r.remote.key);
  return r;
}

void Servant::recv(uint32_t id, uint64_t size) {
  Inbox& inbox = inboxes_[id];
  inbox.bytes.assign(size + 1, 0);
  DOOR(node_->post(fi_recv, inbox.bytes.data(), size, nullptr, FI_ADDR_UNSPEC, &inbox.op));
}

Reply Servant::received(uint32_t id, int timeout_ms) {
  Inbox& inbox = inboxes_[id];
  const Completion c = node_->wait(&inbox.op, timeout_ms);
  // what was sent is the contents of its length
  const bool whole = !first_difference({inbox.bytes.data(), c.len}, c.len);
  return {whole ? c.err : FI_EIO, c.data, c.flags, {.size = c.len}};
}

DOOR_ROLE(mr_target) {
  Servant servant;
  return serve_calls(control, &servant, [&] { return servant.polls(); });
}

bool Target::counts_to(uint32_t number, uint64_t value) {
  if (!pump_until([&] { return count(number) >= value; }, 10000)) return false;
  pump_for(5);
  return count(number) == value;
}

void PrintTo(const Reached& r, std::ostream* out) {
  *out << r.name;
}

Options options_of(int mr_mode, uint64_t more_caps) {
  return {.caps = FI_MSG | FI_RMA | FI_ATOMIC | more_caps, .mr_mode = mr_mode};
}

void Regions::open(const Options& wanted, uint64_t pages, Environment env) {
  const Options options = progressing(wanted);
  node = std::make_unique<Node>(options);
  if (GetParam().two_processes) {
    ChildOptions child{.env = std::move(env)};
    if (GetParam().denied) child.env.push_back({"APERTURE_CMA", "deny"});
    target = std::make_unique<Target>("mr_target", child);
  } else {
    for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
    set_here = std::move(env);
    target = std::make_unique<Target>(std::make_unique<Servant>());
  }
  reach(target->open(options));
  target->arena(pages);
  alive();
  if (GetParam().idle) target->stop_polling();
}

void Regions::TearDown() {
  for (const auto& setting : set_here) unsetenv(setting.first.c_str());
}

Remote Regions::registered(uint32_t id, const Parts& parts, uint64_t access, uint64_t flags,
                           Line where) {
  const testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()), "registered");
  EXPECT_EQ(target->reg(id, parts, access, flags), 0);
  return target->remote();
}

template <typename Call, typename... Args>
int Regions::carry_out(Call call, Args... args) {
  const int64_t code = node->run(call, args...);
  if (code < 0) throw DoorError("posting, or waiting for the completion", code);
  EXPECT_TRUE(node->quiet(1)) << "exactly one completion";
  return static_cast<int>(code);
}

int Regions::write(const Remote& r, uint64_t offset, size_t len, uint64_t seed) {
  std::vector<uint8_t> bytes(len);
  fill(bytes, seed);
  return carry_out(fi_write, bytes.data(), len, nullptr, to, r.base + offset, r.key);
}

int Regions::read(const Remote& r, uint64_t offset, size_t len) {
  got.assign(len, 0xcd);
  const int err = carry_out(fi_read, got.data(), len, nullptr, to, r.base + offset, r.key);
  if (err != 0) {
    EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](uint8_t b) { return b == 0xcd; }));
  }
  return err;
}

int Regions::add(const Remote& r, uint64_t offset, uint64_t operand) {
  return carry_out(fi_atomic, &operand, 1, nullptr, to, r.base + offset, r.key, FI_UINT64, FI_SUM);
}

int Regions::fetch(const Remote& r, uint64_t offset, fi_op what) {
  const uint64_t operand = 1;
  got.assign(8, 0xcd);
  return carry_out(fi_fetch_atomic, &operand, 1, nullptr, got.data(), nullptr, to, r.base + offset,
                   r.key, FI_UINT64, what);
}

int Regions::compare(const Remote& r, uint64_t offset) {
  const uint64_t operand = 1, with = 2;
  uint64_t result = 0;
  return carry_out(fi_compare_atomic, &operand, 1, nullptr, &with, nullptr, &result, nullptr, to,
                   r.base + offset, r.key, FI_UINT64, FI_CSWAP);
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
  got.assign(8, 0);
  EXPECT_EQ(carry_out(fi_read, got.data(), 8, nullptr, to, 0, 0xdead'0000'0000'0000), FI_EACCES)
      << "it answers";
}

}  // namespace aperture::doors::mr
