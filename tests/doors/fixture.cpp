// Opening nodes and progressing them: see fixture.hpp. One list of live nodes, owned by the thread
// of the test.
#include "doors/fixture.hpp"

#include <sched.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>

#include "doors/demand.hpp"

namespace aperture::doors {
namespace {

std::vector<Polled*>& live() {
  static std::vector<Polled*> all;
  return all;
}

}  // namespace

const char* provider_name() {
  const char* name = std::getenv("APERTURE_TEST_PROVIDER");
  return name != nullptr && *name != '\0' ? name : "aperture";
}

bool on_aperture() {
  return std::strcmp(provider_name(), "aperture") == 0;
}

DoorError::DoorError(const std::string& call, int64_t code, Line line)
    : std::runtime_error(std::filesystem::path(line.file_name()).filename().string() + ":" +
                         std::to_string(line.line()) + ": " + call + " -> " + std::to_string(code) +
                         " (" + fi_strerror(static_cast<int>(code < 0 ? -code : code)) + ")"),
      code_(code) {}

void check(int64_t code, const char* call, Line line) {
  if (code < 0) throw DoorError(call, code, line);
}

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

const char* wait_name(fi_wait_obj wait) {
  switch (wait) {
    case FI_WAIT_NONE: return "none";
    case FI_WAIT_UNSPEC: return "unspec";
    case FI_WAIT_SET: return "set";
    case FI_WAIT_FD: return "fd";
    case FI_WAIT_MUTEX_COND: return "mutex_cond";
    case FI_WAIT_YIELD: return "yield";
    case FI_WAIT_POLLFD: return "pollfd";
  }
  return "?";
}

bool refuses_wait_object(int code) {
  return code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EINVAL;
}

Info make_hints(const Options& o) {
  Info hints(fi_allocinfo());
  hints->caps = o.caps;
  hints->mode = o.mode;
  hints->ep_attr->type = o.type;
  hints->ep_attr->max_msg_size = o.max_msg_size;
  hints->fabric_attr->prov_name = strdup(provider_name());
  hints->domain_attr->mr_mode = o.mr_mode;
  hints->domain_attr->av_type = o.av_type;
  hints->domain_attr->threading = o.threading;
  hints->domain_attr->data_progress = o.progress;
  hints->domain_attr->cq_data_size = o.cq_data_size;
  hints->tx_attr->op_flags = o.tx_op_flags;
  hints->rx_attr->op_flags = o.rx_op_flags;
  set_auth_key(*hints->domain_attr, o.domain_key);
  if (o.av_keys) hints->domain_attr->auth_key_size = ~size_t{0};  // FI_AV_AUTH_KEY
  set_auth_key(*hints->ep_attr, o.ep_key);
  // with the loopback interface only: every test runs on one host, firewalls notwithstanding
  hints->addr_format = FI_SOCKADDR_IN;
  if (std::strstr(provider_name(), "shm") != nullptr) hints->addr_format = FI_FORMAT_UNSPEC;
  return hints;
}

Info get_info(const Options& o) {
  Info hints = make_hints(o);
  fi_info* info = nullptr;
  const bool by_name = std::strstr(provider_name(), "shm") != nullptr;
  const char* node = by_name ? nullptr : "127.0.0.1";
  const Demand demand(o.mr_mode | o.demanded_mr_mode);
  DOOR(fi_getinfo(o.api, node, nullptr, node != nullptr ? FI_SOURCE : 0, hints.get(), &info));
  return Info(info);
}

Polled::Polled(Info info, Polled* host) : info_(std::move(info)) {
  if (host == nullptr) {
    DOOR(fi_fabric(info_->fabric_attr, &fabric_, nullptr));
    own_fabric_.reset(fabric_);
    own_domain_ = DOOR_MADE(fi_domain, fabric_, info_.get());
    domain_ = own_domain_.get();
  } else {
    fabric_ = host->fabric_;
    domain_ = host->domain_;
  }
  live().push_back(this);
}

Polled::~Polled() {
  std::erase(live(), this);
}

Fid<fid_mr> registered(fid_domain* domain, const void* at, size_t len, uint64_t access,
                       uint64_t key, uint64_t flags, Line line) {
  fid_mr* mr = nullptr;
  check(fi_mr_reg(domain, at, len, access, 0, key, flags, &mr, nullptr), "fi_mr_reg", line);
  return Fid<fid_mr>(mr);
}

Fid<fid_cntr> open_counter(fid_domain* domain, Line line) {
  fi_cntr_attr attr{.wait_obj = FI_WAIT_UNSPEC};
  return made(line, "fi_cntr_open", fi_cntr_open, domain, &attr);
}

Node::Node(const Options& options, Node* host)
    : Polled(get_info(options), host), options_(options) {
  open_queues();
  open_endpoint();
}

void Node::open_queues() {
  fi_av_attr av_attr{.type = options_.av_type, .rx_ctx_bits = options_.rx_ctx_bits};
  av_ = DOOR_MADE(fi_av_open, domain_, &av_attr);
  fi_cq_attr cq_attr{.format = options_.cq_format, .wait_obj = options_.wait};
  cq_ = DOOR_MADE(fi_cq_open, domain_, &cq_attr);
  if (options_.split_cq) rx_cq_ = DOOR_MADE(fi_cq_open, domain_, &cq_attr);
  if (options_.counters) {
    tx_cntr_ = open_counter(domain_);
    rx_cntr_ = open_counter(domain_);
  }
  if (options_.remote_counters) {
    remote_read_cntr_ = open_counter(domain_);
    remote_write_cntr_ = open_counter(domain_);
  }
}

void Node::open_endpoint() {
  ep_ = DOOR_MADE(fi_endpoint, domain_, info_.get());
  fid_ep* ep = ep_.get();
  DOOR(fi_ep_bind(ep, &av_->fid, 0));
  if (options_.split_cq) {
    DOOR(fi_ep_bind(ep, &cq_->fid, FI_TRANSMIT | options_.cq_flags));
    DOOR(fi_ep_bind(ep, &rx_cq_->fid, FI_RECV | options_.cq_flags));
  } else {
    DOOR(fi_ep_bind(ep, &cq_->fid, FI_TRANSMIT | FI_RECV | options_.cq_flags));
  }
  if (options_.counters) {
    DOOR(fi_ep_bind(ep, &tx_cntr_->fid, FI_SEND | FI_WRITE | FI_READ));
    DOOR(fi_ep_bind(ep, &rx_cntr_->fid, FI_RECV));
  }
  if (options_.remote_counters) {
    DOOR(fi_ep_bind(ep, &remote_read_cntr_->fid, FI_REMOTE_READ));
    DOOR(fi_ep_bind(ep, &remote_write_cntr_->fid, FI_REMOTE_WRITE));
  }
  if (options_.min_multi_recv != 0) {
    DOOR(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &options_.min_multi_recv,
                   sizeof options_.min_multi_recv));
  }
  if (options_.buffered_limit != 0) {
    DOOR(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_LIMIT, &options_.buffered_limit,
                   sizeof options_.buffered_limit));
  }
  if (options_.buffered_min != 0) {
    DOOR(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_MIN, &options_.buffered_min,
                   sizeof options_.buffered_min));
  }
  if (options_.enable) DOOR(fi_enable(ep));
}

std::vector<uint8_t> name_of(fid* object) {
  std::vector<uint8_t> bytes(256);
  size_t len = bytes.size();
  DOOR(fi_getname(object, bytes.data(), &len));
  bytes.resize(len);
  return bytes;
}

fi_addr_t Node::insert(const std::vector<uint8_t>& name) {
  fi_addr_t addr = FI_ADDR_NOTAVAIL;
  const int inserted = fi_av_insert(av_.get(), name.data(), 1, &addr, 0, nullptr);
  if (inserted != 1) throw DoorError("fi_av_insert", inserted < 0 ? inserted : -FI_EOTHER);
  return addr;
}

bool Polled::read_one(fid_cq* cq, fi_cq_format format, bool with_source) {
  fi_cq_tagged_entry entry{};
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  const ssize_t got =
      with_source ? fi_cq_readfrom(cq, &entry, 1, &source) : fi_cq_read(cq, &entry, 1);
  if (got == -FI_EAGAIN) return false;
  if (got == 1) {
    Completion c{.context = entry.op_context};
    if (format >= FI_CQ_FORMAT_MSG) c.flags = entry.flags, c.len = entry.len;
    if (format >= FI_CQ_FORMAT_DATA) c.buf = entry.buf, c.data = entry.data;
    if (format >= FI_CQ_FORMAT_TAGGED) c.tag = entry.tag;
    c.source = source;
    done_.push_back(c);
    return true;
  }
  if (got != -FI_EAVAIL) throw DoorError("fi_cq_read", got);
  fi_cq_err_entry error{};
  const ssize_t errors = fi_cq_readerr(cq, &error, 0);
  if (errors != 1) throw DoorError("fi_cq_readerr after -FI_EAVAIL", errors);
  Completion c{.err = error.err != 0 ? error.err : FI_EOTHER,
               .context = error.op_context,
               .flags = error.flags,
               .len = error.len,
               .buf = error.buf,
               .data = error.data,
               .tag = error.tag,
               .olen = error.olen};
  done_.push_back(c);
  return true;
}

void Polled::read(fid_cq* cq, fi_cq_format format, bool with_source) {
  for (int i = 0; i < 64 && read_one(cq, format, with_source); ++i) {
  }
}

void Node::poll() {
  for (fid_cq* cq : {cq_.get(), rx_cq_.get()}) {
    if (cq != nullptr) read(cq, options_.cq_format, (options_.caps & FI_SOURCE) != 0);
  }
}

std::optional<Completion> Polled::take(const void* context) {
  const auto it = std::find_if(done_.begin(), done_.end(),
                               [&](const Completion& c) { return c.context == context; });
  if (it == done_.end()) return std::nullopt;
  Completion c = *it;
  done_.erase(it);
  return c;
}

Completion Polled::wait(const void* context, int timeout_ms) {
  std::optional<Completion> found;
  pump_until([&] { return (found = take(context)).has_value(); }, timeout_ms);
  Completion none{.err = -1};
  return found.value_or(none);
}

Completion Node::wait_any(int timeout_ms) {
  Completion c{.err = -1};
  if (!pump_until([&] { return !done_.empty(); }, timeout_ms)) return c;
  c = done_.front();
  done_.pop_front();
  return c;
}

bool Node::quiet(int for_ms) {
  pump_for(for_ms);
  return done_.empty();
}

NodePair::NodePair(const Options& a_options, const Options& b_options)
    : a(a_options), b(b_options), to_b(a.insert(b.name())), to_a(b.insert(a.name())) {}

Completion NodePair::pass(const char* text) {
  Op op;
  DOOR(fi_recv(b.ep(), &passed, 1, nullptr, FI_ADDR_UNSPEC, &op));
  DOOR(a.post(fi_inject, text, std::strlen(text), to_b));
  return b.wait(&op);
}

void pump() {
  for (Polled* one : live()) one->poll();
}

void leave_nodes_to_parent() {
  live().clear();
}

bool pump_until(const std::function<bool()>& condition, int timeout_ms) {
  const int64_t deadline = now_ns() + int64_t{timeout_ms} * 1'000'000;
  for (int spins = 0;; ++spins) {
    pump();
    if (condition()) return true;
    if (now_ns() > deadline) return false;
    // the other side may need this core: give it away now and then, and for longer when it is slow
    if (spins % 64 == 63) sched_yield();
    if (spins > 20000 && spins % 64 == 0) usleep(50);
  }
}

void pump_for(int for_ms) {
  pump_until([] { return false; }, for_ms);
}

int64_t post(const std::function<int64_t()>& call, int timeout_ms) {
  int64_t result = -FI_EAGAIN;
  pump_until([&] { return (result = call()) != -FI_EAGAIN; }, timeout_ms);
  return result;
}

}  // namespace aperture::doors
