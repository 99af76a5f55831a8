// One end of a conversation, in this process or in another: the same requests either way, so that
// a test is written once and runs over every topology.
//
// A Request is carried out by a Performer, which owns one Node, its buffers and its regions.
// LocalSide calls its Performer; RemoteSide sends the bytes to a child process (see child.hpp).
#pragma once

#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"

namespace aperture::doors {

enum class Ask : uint32_t {
  open,            // the node, from options
  insert,          // name -> addr
  send,            // id, addr, size, seed [flags, data]
  tagged_send,     // as send, and tag
  receive,         // id, size [addr, flags]
  tagged_receive,  // id, size, tag, ignore [addr]
  wait,            // id -> completion
  wait_any,        // -> completion with its id; offset = where its buf lies in the buffer
  quiet,           // -> status 1 if nothing completes
  verify,          // id, size, seed [offset]: the buffer holds the contents and its canaries
  untouched,       // id: the buffer is all zeros and its canaries hold (status 1), else 0
  release,         // id: forget the buffer
  region_open,     // id, size, flags = access, seed [auth_key] -> remote; data = 1: in another
                   // domain
  region_close,    // id
  region_verify,   // id, seed: contents and canaries (status 1), else 0
  write,           // id, addr, size, seed, remote, offset [flags, data]
  read,            // id, addr, size, remote, offset [flags]
  count,           // flags = FI_RECV, FI_SEND, FI_REMOTE_READ or FI_REMOTE_WRITE -> offset = value
  cancel,          // id
  add,             // size atomic additions of 1 to a uint64 and to a double behind it: addr, remote
  add_here,        // id, size: the same to its own region, with the CPU's atomics
  drive,           // size != 0: poll between requests; 0: leave the queue alone
  quit,
};

struct Request {
  Ask ask = Ask::quit;
  uint32_t id = 0;
  Options options;
  fi_addr_t addr = FI_ADDR_UNSPEC;
  uint64_t size = 0;
  uint64_t seed = 0;
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t flags = 0;
  uint64_t data = 0;
  uint64_t offset = 0;
  Remote remote;
  char auth_key[24] = {};
  int timeout_ms = 20000;
  uint32_t name_len = 0;
  uint8_t name[256] = {};
};

struct Reply {
  int64_t status = 0;
  uint32_t id = 0;
  uint32_t name_len = 0;
  fi_addr_t addr = FI_ADDR_UNSPEC;
  uint64_t offset = 0;
  Completion completion;
  Remote remote;
  uint8_t name[256] = {};
  char text[200] = {};  // why status is negative
};

class Performer {
 public:
  explicit Performer(Node* share_domain_of = nullptr) : host_(share_domain_of) {}
  Reply perform(const Request& request) noexcept;
  Node* node() { return node_.get(); }

 private:
  struct Buffer {
    Op op;
    uint32_t id;
    std::unique_ptr<Guarded> memory;
  };
  void open(const Request& q, Reply* r);
  void transfer(const Request& q, Reply* r);
  void receive(const Request& q, Reply* r);
  void remote_access(const Request& q, Reply* r);
  void add(const Request& q, Reply* r);
  void settle(const Request& q, Reply* r);
  uint64_t count(uint64_t kind);
  void regions(const Request& q, Reply* r);
  Buffer& fresh(uint32_t id, size_t size, uint64_t seed);

  Node* host_;
  Options options_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Node> elsewhere_;  // opened when a region in another domain is asked for
  std::map<uint32_t, std::unique_ptr<Buffer>> buffers_;
  std::map<uint32_t, std::unique_ptr<Region>> regions_;
};

class Side {
 public:
  virtual ~Side() = default;
  // Carries out and returns the answer; a negative status is thrown as DoorError.
  virtual Reply ask(const Request& request) = 0;
  virtual Node* node() { return nullptr; }  // when it lives in this process

  std::vector<uint8_t> open(const Options& options);
  fi_addr_t insert(const std::vector<uint8_t>& name);
  void send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed);
  void tagged_send(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, uint64_t tag);
  void receive(uint32_t id, size_t size, fi_addr_t from = FI_ADDR_UNSPEC);
  void tagged_receive(uint32_t id, size_t size, uint64_t tag, uint64_t ignore = 0,
                      fi_addr_t from = FI_ADDR_UNSPEC);
  Completion wait(uint32_t id, int timeout_ms = 20000);
  bool verify(uint32_t id, size_t size, uint64_t seed);
  bool untouched(uint32_t id);
  void release(uint32_t id);
  bool quiet(int for_ms = 20);
  Remote region_open(uint32_t id, size_t size, uint64_t access, uint64_t seed,
                     const char* auth_key = "");
  // In another domain of the same process, which has its own endpoint.
  Remote region_open_elsewhere(uint32_t id, size_t size, uint64_t access, uint64_t seed);
  void region_close(uint32_t id);
  bool region_verify(uint32_t id, uint64_t seed);
  void write(uint32_t id, fi_addr_t to, size_t size, uint64_t seed, const Remote& remote,
             uint64_t offset = 0);
  void read(uint32_t id, fi_addr_t to, size_t size, const Remote& remote, uint64_t offset = 0);
  void drive(bool on);
  uint64_t count(uint64_t kind);
  bool counts_to(uint64_t kind, uint64_t value);
  void cancel(uint32_t id);
  // Asks without waiting for the answer, which answer() takes: several sides at work at once.
  virtual void begin(const Request& request);
  virtual void answer() {}
};

class LocalSide : public Side {
 public:
  explicit LocalSide(Node* share_domain_of = nullptr) : performer_(share_domain_of) {}
  Reply ask(const Request& request) override;
  Node* node() override { return performer_.node(); }

 private:
  Performer performer_;
};

class RemoteSide : public Side {
 public:
  explicit RemoteSide(const ChildOptions& options = {});
  Reply ask(const Request& request) override;
  void begin(const Request& request) override;
  void answer() override;
  Child& child() { return child_; }

 private:
  Child child_;
};

enum class Topology { self, one_domain, two_domains, two_processes };
const char* name_of(Topology topology);
void PrintTo(Topology topology, std::ostream* out);  // for gtest

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
  std::unique_ptr<Side> first;
  std::unique_ptr<Side> second_owner;
  Side* second = nullptr;
  fi_addr_t to_second = FI_ADDR_UNSPEC;  // as `first` knows it
  fi_addr_t to_first = FI_ADDR_UNSPEC;
};
Duo make_duo(Topology topology, const Options& options, const ChildOptions& child = {});

}  // namespace aperture::doors
