// One libfabric endpoint with everything under it, opened from one struct of options, and the pump
// that progresses every endpoint of this process while a test waits.
//
// The provider under test is APERTURE_TEST_PROVIDER (default "aperture"); nothing here knows it
// otherwise, so the same tests can be tried over libfabric's own providers. Not thread-safe: the
// test's thread owns all nodes unless a test says otherwise.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace aperture::doors {

const char* provider_name();
// Expectations that only hold here (libfabric's own providers have known gaps).
bool on_aperture();

struct InfoFree {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoFree>;

template <typename T>
struct FidClose {
  void operator()(T* object) const { fi_close(&object->fid); }
};
template <typename T>
using Fid = std::unique_ptr<T, FidClose<T>>;

// A line of the tests; as a helper's last parameter, that of its caller. For
// std::source_location, which clang 14 has not.
class Line {
 public:
  static constexpr Line current(const char* file = __builtin_FILE(),
                                unsigned line = __builtin_LINE()) noexcept {
    return {file, line};
  }
  constexpr const char* file_name() const noexcept { return file_; }
  constexpr unsigned line() const noexcept { return line_; }

 private:
  constexpr Line(const char* file, unsigned line) noexcept : file_(file), line_(line) {}
  const char* file_;
  unsigned line_;
};

// A failed set-up: carries the call, its code and its line. gtest reports it as the test's failure.
class DoorError : public std::runtime_error {
 public:
  DoorError(const std::string& call, int64_t code, Line line = Line::current());
  int64_t code() const { return code_; }

 private:
  int64_t code_;
};

void check(int64_t code, const char* call, Line line = Line::current());
#define DOOR(call) ::aperture::doors::check((call), #call)

inline constexpr int kBasicMr = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

inline constexpr uint64_t kUsualCaps = FI_MSG | FI_TAGGED | FI_RMA;

// How to open a node. Trivially copyable: it travels to other processes as it is.
struct Options {
  uint32_t api = FI_VERSION(1, 17);
  fi_ep_type type = FI_EP_RDM;
  uint64_t caps = kUsualCaps;
  uint64_t mode = FI_CONTEXT | FI_CONTEXT2;
  int mr_mode = 0;           // offered; what of it is newer than API 1.5 is demanded too
  int demanded_mr_mode = 0;  // demanded beyond that
  fi_av_type av_type = FI_AV_MAP;
  fi_cq_format cq_format = FI_CQ_FORMAT_TAGGED;
  fi_wait_obj wait = FI_WAIT_NONE;
  uint64_t cq_flags = 0;  // FI_SELECTIVE_COMPLETION
  uint64_t tx_op_flags = 0;
  uint64_t rx_op_flags = 0;
  size_t cq_data_size = 0;
  fi_threading threading = FI_THREAD_UNSPEC;
  fi_progress progress = FI_PROGRESS_UNSPEC;
  bool split_cq = false;         // one queue for sends, one for receives
  bool counters = false;         // bind a counter for each kind of operation
  bool remote_counters = false;  // bind counters with FI_REMOTE_READ and FI_REMOTE_WRITE
  size_t min_multi_recv = 0;     // FI_OPT_MIN_MULTI_RECV; 0: as it is
  size_t buffered_limit = 0;     // FI_OPT_BUFFERED_LIMIT and _MIN, likewise
  size_t buffered_min = 0;
  size_t max_msg_size = 0;  // demanded of ep_attr
  bool enable = true;
  int rx_ctx_bits = 0;       // of the address vector
  char domain_key[24] = {};  // authorization keys, as text; empty: none
  char ep_key[24] = {};
  bool av_keys = false;  // instead: those of its address vector, API 1.20
};
// Sets hints' or an info's authorization key to that text (a copy, which fi_freeinfo frees).
template <typename Attr>
void set_auth_key(Attr& attr, const char* text) {
  attr.auth_key_size = std::strlen(text);
  attr.auth_key = attr.auth_key_size != 0 ? reinterpret_cast<uint8_t*>(strdup(text)) : nullptr;
}

Info make_hints(const Options& options);
// fi_getinfo with hints from `options`; throws when nothing matches.
Info get_info(const Options& options);

struct Completion {
  int err = 0;  // 0: success; a positive fi_errno; -1: none came in time
  void* context = nullptr;
  uint64_t flags = 0;
  size_t len = 0;
  void* buf = nullptr;
  uint64_t data = 0;
  uint64_t tag = 0;
  size_t olen = 0;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
};

// The context of an operation: large enough for FI_CONTEXT2.
struct Op {
  fi_context2 space{};
};

std::vector<uint8_t> name_of(fid* object);

// An endpoint's name as it travels to other processes.
class Name {
 public:
  Name() = default;
  Name(const std::vector<uint8_t>& bytes) : len_(bytes.size()) {
    std::memcpy(bytes_, bytes.data(), std::min(len_, sizeof bytes_));
  }
  operator std::vector<uint8_t>() const { return {bytes_, bytes_ + len_}; }
  const uint8_t* data() const { return bytes_; }

 private:
  size_t len_ = 0;
  uint8_t bytes_[256] = {};
};

// Opens an object by one of libfabric's calls that give it a context; throws when that fails.
template <typename Parent, typename Attr, typename T>
Fid<T> made(Line line, const char* call, int (*open)(Parent*, Attr*, T**, void*), Parent* parent,
            Attr* attr, void* context = nullptr) {
  T* object = nullptr;
  const int code = open(parent, attr, &object, context);
  if (code != 0 || object == nullptr) throw DoorError(call, code, line);
  return Fid<T>(object);
}
#define DOOR_MADE(open, ...) \
  ::aperture::doors::made(::aperture::doors::Line::current(), #open, open, __VA_ARGS__)

// What such a call answers. What it opened is closed; what it refuses it leaves unwritten.
template <typename Parent, typename Attr, typename T>
int code_of(int (*open)(Parent*, Attr*, T**, void*), Parent* parent, Attr* attr,
            Line line = Line::current()) {
  T* object = nullptr;
  const int code = open(parent, attr, &object, nullptr);
  if ((code == 0) != (object != nullptr))
    throw DoorError("an output of a refused call", code, line);
  const Fid<T> owner(object);
  return code;
}

// A region of a domain, and a counter; they throw when there is none.
Fid<fid_mr> registered(fid_domain* domain, const void* at, size_t len, uint64_t access,
                       uint64_t key, uint64_t flags = 0, Line line = Line::current());
Fid<fid_cntr> open_counter(fid_domain* domain, Line line = Line::current());

// A fabric and a domain with queues that pump() polls, and the completions that it found there.
class Polled {
 public:
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;

  fid_fabric* fabric() { return fabric_; }
  fid_domain* domain() { return domain_; }
  fi_info* info() { return info_.get(); }

  // Reads what the queues hold into done().
  virtual void poll() = 0;
  std::deque<Completion>& done() { return done_; }
  std::optional<Completion> take(const void* context);
  // Waits for the completion of `context`, polling all that pump() polls.
  Completion wait(const void* context, int timeout_ms = 20000);
  // Posts at `ep` by a call of libfabric, the context left out, which is its last argument, and
  // waits for the completion. 0, the negative code of the call, or the error of the completion.
  template <typename Call, typename... Args>
  int64_t run_at(fid_ep* ep, Call call, Args... args);

 protected:
  // In the fabric and domain of `host`, where there is one.
  Polled(Info info, Polled* host);
  virtual ~Polled();
  // Up to 64 completions.
  void read(fid_cq* cq, fi_cq_format format, bool with_source = false);

  Info info_;
  Fid<fid_fabric> own_fabric_;
  Fid<fid_domain> own_domain_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  std::deque<Completion> done_;

 private:
  bool read_one(fid_cq* cq, fi_cq_format format, bool with_source);
};

class Node : public Polled {
 public:
  explicit Node(const Options& options = {}) : Node(options, nullptr) {}
  // A second endpoint in the fabric and domain of `host`, which must outlive it.
  Node(const Options& options, Node& host) : Node(options, &host) {}
  fid_av* av() { return av_.get(); }
  fid_cq* cq() { return cq_.get(); }
  fid_cntr* tx_cntr() { return tx_cntr_.get(); }
  fid_cntr* rx_cntr() { return rx_cntr_.get(); }
  fid_cntr* remote_read_cntr() { return remote_read_cntr_.get(); }
  fid_cntr* remote_write_cntr() { return remote_write_cntr_.get(); }
  fid_ep* ep() { return ep_.get(); }
  size_t prefix_bytes() const { return info_->ep_attr->msg_prefix_size; }
  bool virtual_addresses() const { return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0; }

  std::vector<uint8_t> name() { return name_of(&ep_->fid); }
  fi_addr_t insert(const std::vector<uint8_t>& name);

  // Posts at this endpoint: see post() below.
  template <typename Call, typename... Args>
  int64_t post(Call call, Args... args);
  // Posts and waits: see run_at(). The context is left out.
  template <typename Call, typename... Args>
  int64_t run(Call call, Args... args);
  // The same of a call that takes a message, which has a context.
  template <typename Call, typename Message, typename... Args>
  int64_t run_message(Call call, const Message* message, Args... args);

  void poll() override;
  Completion wait_any(int timeout_ms = 20000);
  // No completion may be left, and none may come within a moment.
  bool quiet(int for_ms = 20);
  void close_endpoint() { ep_.reset(); }

 private:
  Node(const Options& options, Node* host);
  void open_queues();
  void open_endpoint();

  Options options_;
  Fid<fid_av> av_;
  Fid<fid_cq> cq_;
  Fid<fid_cq> rx_cq_;
  Fid<fid_cntr> tx_cntr_;
  Fid<fid_cntr> rx_cntr_;
  Fid<fid_cntr> remote_read_cntr_;
  Fid<fid_cntr> remote_write_cntr_;
  Fid<fid_ep> ep_;
};

// Two nodes of this process, in two domains, that know each other.
struct NodePair {
  explicit NodePair(const Options& options = {}) : NodePair(options, options) {}
  NodePair(const Options& a_options, const Options& b_options);
  // Injects a text at a for b, which has one byte for it: how the receive ended.
  Completion pass(const char* text);
  Node a;
  Node b;
  fi_addr_t to_b;
  fi_addr_t to_a;
  char passed = 0;
};

// Polls every node and station of this process once.
void pump();
// In a forked child: those of the parent are not polled.
void leave_nodes_to_parent();
bool pump_until(const std::function<bool()>& condition, int timeout_ms = 20000);
void pump_for(int for_ms);

// Calls until the answer is not -FI_EAGAIN, progressing the nodes of this process meanwhile.
int64_t post(const std::function<int64_t()>& call, int timeout_ms = 20000);
// The same of one call with the arguments behind its endpoint: post(fi_send, ep, buf, len, ...).
template <typename Call, typename... Args>
int64_t post(Call call, fid_ep* ep, Args... args) {
  return post([&] { return call(ep, args...); });
}

template <typename Call, typename... Args>
int64_t Polled::run_at(fid_ep* ep, Call call, Args... args) {
  Op op;
  const int64_t posted = doors::post(call, ep, args..., &op);
  return posted != 0 ? posted : wait(&op).err;
}

template <typename Call, typename... Args>
int64_t Node::post(Call call, Args... args) {
  return doors::post(call, ep(), args...);
}

template <typename Call, typename... Args>
int64_t Node::run(Call call, Args... args) {
  return run_at(ep(), call, args...);
}

template <typename Call, typename Message, typename... Args>
int64_t Node::run_message(Call call, const Message* message, Args... args) {
  const int64_t posted = post(call, message, args...);
  return posted != 0 ? posted : wait(message->context).err;
}

int64_t now_ns();

const char* wait_name(fi_wait_obj wait);
// Whether that is how a provider answers who opens a queue or a counter with one it has not got.
bool refuses_wait_object(int code);

// Names the instances of a suite after their parameters, which have names.
inline constexpr auto kByName = [](const auto& info) { return std::string(info.param.name); };
inline constexpr auto kByMrMode = [](const auto& info) {
  return std::string(info.param == 0 ? "scalable" : "basic");
};

// A value that an enumeration does not have, for calls that must refuse it.
template <typename Enum>
Enum no_such_value(int value) {
  Enum out;
  static_assert(sizeof out == sizeof value);
  std::memcpy(&out, &value, sizeof out);
  return out;
}

}  // namespace aperture::doors
