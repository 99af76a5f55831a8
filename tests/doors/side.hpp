// One end of a conversation, in this process or in another (called.hpp): the same requests either
// way, so that a test is written once and runs over every topology.
//
// What is asked is carried out by a Performer, which owns one Node, its buffers and its regions.
#pragma once

#include <iosfwd>
#include <map>

#include "doors/called.hpp"
#include "doors/region.hpp"

namespace aperture::doors {

enum class Ask : uint32_t { send, tagged_send, receive, tagged_receive, write, read };

// An operation to post. Its buffer is a new one, with canaries, known by its id from then on.
struct Request {
  Ask ask = Ask::send;
  uint32_t id = 0;
  fi_addr_t addr = FI_ADDR_UNSPEC;
  uint64_t size = 0;
  uint64_t seed = 0;  // of what is sent or written
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t flags = 0;  // 0: the call without flags, where there is one
  uint64_t data = 0;
  uint64_t offset = 0;  // in the remote region
  Remote remote;
};

// A completion, of which operation, and where its buf lies in that one's buffer.
struct Reply {
  Completion completion;
  uint32_t id = 0;
  uint64_t offset = 0;
};

struct RegionWanted {
  uint32_t id = 0;
  uint64_t size = 0;
  uint64_t access = 0;
  uint64_t seed = 0;
  bool elsewhere = false;  // in another domain of the process
  char auth_key[24] = {};
};

class Performer {
 public:
  explicit Performer(Node* share_domain_of = nullptr) : host_(share_domain_of) {}
  Node* node() { return node_.get(); }
  bool polls() const { return polls_ && node_ != nullptr; }

  Name open(const Options& options);
  fi_addr_t insert(const Name& name) { return node_->insert(name); }
  void ask(const Request& request);
  Completion wait(uint32_t id, int timeout_ms);
  Reply wait_any();
  bool quiet(int for_ms) { return node_->quiet(for_ms); }
  bool verify(uint32_t id, uint64_t size, uint64_t seed, uint64_t offset);
  bool untouched(uint32_t id);
  void release(uint32_t id) { buffers_.erase(id); }
  void cancel(uint32_t id) { DOOR(fi_cancel(&node_->ep()->fid, &buffers_.at(id)->op)); }
  Remote region_open(const RegionWanted& wanted);
  void region_close(uint32_t id) { DOOR(regions_.at(id)->close()); }
  bool region_verify(uint32_t id, uint64_t seed);
  uint64_t count(uint64_t kind);
  void progress(bool on) { polls_ = on; }
  void add(fi_addr_t to, const Remote& remote, uint64_t count);
  void add_here(uint32_t region, uint64_t count);

 private:
  struct Buffer {
    Op op;
    std::unique_ptr<Guarded> memory;
  };
  int64_t start(const Request& request, Buffer& buffer);

  Node* host_;
  bool polls_ = true;
  Options options_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Node> elsewhere_;  // opened when a region in another domain is asked for
  std::map<uint32_t, std::unique_ptr<Buffer>> buffers_;
  std::map<uint32_t, std::unique_ptr<Region>> regions_;
};

// Every method throws a DoorError when what it asks for fails.
class Side : public Called<Performer> {
 public:
  using Called::Called;
  Node* node() { return here() != nullptr ? here()->node() : nullptr; }

  std::vector<uint8_t> open(const Options& options) { return call<&Performer::open>(options); }
  fi_addr_t insert(const Name& name) { return call<&Performer::insert>(name); }
  void ask(const Request& request) { call<&Performer::ask>(request); }
  void send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed);
  void tagged_send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, uint64_t tag);
  void receive(uint32_t id, size_t size, fi_addr_t from = FI_ADDR_UNSPEC);
  void tagged_receive(uint32_t id, size_t size, uint64_t tag);
  void write(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, const Remote& remote,
             uint64_t offset = 0);
  void read(uint32_t id, fi_addr_t to, size_t size, const Remote& remote, uint64_t offset = 0);
  Completion wait(uint32_t id, int timeout_ms = 20000) {
    return call<&Performer::wait>(id, timeout_ms);
  }
  Reply wait_any() { return call<&Performer::wait_any>(); }
  bool quiet(int for_ms = 20) { return call<&Performer::quiet>(for_ms); }
  // The buffer has those contents from the offset on, and its canaries hold.
  bool verify(uint32_t id, size_t size, uint64_t seed, uint64_t offset = 0) {
    return call<&Performer::verify>(id, size, seed, offset);
  }
  // The buffer is all zeros and its canaries hold.
  bool untouched(uint32_t id) { return call<&Performer::untouched>(id); }
  void release(uint32_t id) { call<&Performer::release>(id); }
  void cancel(uint32_t id) { call<&Performer::cancel>(id); }
  Remote region_open(uint32_t id, size_t size, uint64_t access, uint64_t seed,
                     const char* auth_key = "");
  // In another domain of the same process, which has its own endpoint.
  Remote region_open_elsewhere(uint32_t id, size_t size, uint64_t access, uint64_t seed) {
    return call<&Performer::region_open>(RegionWanted{id, size, access, seed, true, {}});
  }
  void region_close(uint32_t id) { call<&Performer::region_close>(id); }
  // The whole region has those contents, and its canaries hold.
  bool region_verify(uint32_t id, uint64_t seed) {
    return call<&Performer::region_verify>(id, seed);
  }
  // Whether it polls while nothing is asked.
  void progress(bool on) { call<&Performer::progress>(on); }
  // FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE; any other: what was transmitted.
  uint64_t count(uint64_t kind) { return call<&Performer::count>(kind); }
  // Comes to the value, and stays there for a moment.
  bool counts_to(uint64_t kind, uint64_t value);
};

struct LocalSide : Side {
  explicit LocalSide(Node* share_domain_of = nullptr)
      : Side(std::make_unique<Performer>(share_domain_of)) {}
};

struct RemoteSide : Side {
  explicit RemoteSide(const ChildOptions& options = {}) : Side("side", options) {}
};

enum class Topology { self, one_domain, two_domains, two_processes };
const char* name_of(Topology topology);
void PrintTo(Topology topology, std::ostream* out);  // for gtest

// A topology, and whether the child denies direct access.
struct Place {
  const char* name;
  Topology topology;
  bool denied = false;
};
void PrintTo(const Place& place, std::ostream* out);

// Two opened sides that know each other. With Topology::self both are the same.
struct Duo {
  Duo() = default;
  Duo(Duo&&) = default;
  // The second side may live in the first one's domain, so it goes before it.
  Duo& operator=(Duo&& other) noexcept {
    second_owner.reset();
    first = std::move(other.first);
    second_owner = std::move(other.second_owner);
    second = other.second;
    to_second = other.to_second;
    to_first = other.to_first;
    return *this;
  }
  // Posts from the first side to the region, and waits. What was read is known by kRead.
  Completion write(size_t size, uint64_t seed, const Remote& remote, uint64_t offset = 0);
  Completion read(size_t size, const Remote& remote, uint64_t offset = 0);
  static constexpr uint32_t kWritten = 1'000'001, kRead = 1'000'002;
  std::unique_ptr<Side> first;
  std::unique_ptr<Side> second_owner;
  Side* second = nullptr;
  fi_addr_t to_second = FI_ADDR_UNSPEC;  // as `first` knows it
  fi_addr_t to_first = FI_ADDR_UNSPEC;
};
Duo make_duo(Topology topology, const Options& options, const ChildOptions& child = {});

}  // namespace aperture::doors
