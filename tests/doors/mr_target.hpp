// The owner of regions, in this process or in another, and an initiator that reaches for them: what
// the tests of fi_mr(3) (mr_*_test.cpp) have in common.
//
// A Request is carried out by the target's process, which owns one node, an arena of pages that can
// be taken away and given back, and regions over parts of it. One thread owns each side.
#pragma once

#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "doors/rma_setting.hpp"

namespace aperture::doors::mr {

constexpr uint64_t kPage = 4096;
constexpr size_t kMostParts = 20;
constexpr uint64_t kPut = FI_REMOTE_WRITE;
constexpr uint64_t kGet = FI_REMOTE_READ;

struct Part {  // of the arena
  uint64_t offset = 0;
  uint64_t len = 0;
};

enum class Do : uint32_t {
  open,        // the node, from options -> its name
  sibling,     // a second endpoint in the same domain -> its name
  insert,      // name
  arena,       // value pages, mapped
  unmap,       // pages of part
  map,         // pages of part, anew
  protect,     // pages of part; flags = PROT_*
  fill,        // part with the contents of value
  holds,       // code 1: part has the contents of value, from byte `flags` of them on
  resident,    // pages of part that are in memory -> value
  reg,         // id, parts, access, flags, key -> code, remote
  enable,      // id -> code
  bind_ep,     // id; value 1: the sibling -> code
  open_cntr,   // value = number of the counter
  bind_cntr,   // id, value, flags -> code
  count,       // of counter value -> value
  close_cntr,  // value -> code
  close_ep,    // value 1: the sibling
  refresh,     // id, parts (none: all) -> code
  close,       // id -> code
  window,      // id, allocated if it is new, to region value, parts[0] of it, access, flags:
               // kTo... -> code, remote
  invalidate,  // window id -> code
  drop,        // window id: fi_close -> code
  recv,        // id, value bytes
  received,    // id -> code = err (-1: nothing yet), value = data, flags; value 1: soon
  drive,       // value 0: leave the queues alone from now on
  quit,
};

// Whom a window is bound to.
constexpr uint64_t kToEndpoint = 1;
constexpr uint64_t kToSibling = 2;
constexpr uint64_t kToPeer = 4;  // the one that was inserted last
constexpr uint64_t kFromZero = 8;

struct Request {
  Do what = Do::quit;
  uint32_t id = 0;
  Options options;
  uint64_t value = 0;
  uint64_t access = 0;
  uint64_t flags = 0;
  uint64_t key = 0;  // 0: one that nobody else has
  uint32_t part_count = 0;
  Part parts[kMostParts];
  uint32_t name_len = 0;
  uint8_t name[256] = {};
};

struct Reply {
  int64_t code = 0;  // what libfabric answered
  uint64_t value = 0;
  uint64_t flags = 0;
  Remote remote;
  uint32_t name_len = 0;
  uint8_t name[256] = {};
  char text[200] = {};  // of a failure of the test itself
};

class Target {
 public:
  virtual ~Target() = default;
  virtual Reply ask(const Request& request) = 0;  // throws what could not be asked

  std::vector<uint8_t> open(const Options& options);
  std::vector<uint8_t> open_sibling(const Options& options);
  void arena(uint64_t pages);
  void unmap(uint64_t page, uint64_t count = 1);
  void map(uint64_t page, uint64_t count = 1);
  void protect(uint64_t page, uint64_t count, int prot);
  void fill(Part part, uint64_t seed);
  // Whether the part has the contents of the seed from byte `skip` of them on.
  bool holds(Part part, uint64_t seed, uint64_t skip = 0);
  uint64_t resident(uint64_t page, uint64_t count);
  int reg(uint32_t id, std::initializer_list<Part> parts, uint64_t access = kAllAccess,
          uint64_t flags = 0);
  int reg(uint32_t id, const std::vector<Part>& parts, uint64_t access = kAllAccess,
          uint64_t flags = 0);
  const Remote& remote() const { return remote_; }  // of the region registered last
  int enable(uint32_t id);
  int bind_endpoint(uint32_t id, bool sibling = false);
  void open_counter(uint32_t number);
  int bind_counter(uint32_t id, uint32_t number, uint64_t flags = FI_REMOTE_WRITE);
  uint64_t count(uint32_t number);
  // Comes to the value and stays there for a moment.
  bool counts_to(uint32_t number, uint64_t value);
  int close_counter(uint32_t number);
  void close_endpoint(bool sibling = false);
  int refresh(uint32_t id, const std::vector<Part>& parts = {});
  int close(uint32_t id);
  // The target knows that peer from now on.
  void insert(const std::vector<uint8_t>& name);
  // Binds part of region `of`; remote_window() is how it is reached.
  int bind_window(uint32_t id, uint32_t of, Part part, uint64_t access, uint64_t flags = 0);
  const Remote& remote_window() const { return window_; }
  int invalidate(uint32_t id);
  int close_window(uint32_t id);
  void recv(uint32_t id, uint64_t size);
  Reply received(uint32_t id);
  bool still_waits(uint32_t id);

 private:
  Remote remote_;
  Remote window_;
};

// Who reaches whom, and how.
struct Reached {
  const char* name;
  bool two_processes;
  bool denied;  // APERTURE_CMA=deny in the target: it carries out every access itself
  bool idle;    // nobody polls there: progress is automatic
};
void PrintTo(const Reached& r, std::ostream* out);
inline auto every_reach() {
  return testing::Values(
      Reached{"two_domains", false, false, false}, Reached{"processes", true, false, false},
      Reached{"processes_denied", true, true, false}, Reached{"processes_idle", true, true, true});
}
inline std::string reach_name(const testing::TestParamInfo<Reached>& p) {
  return p.param.name;
}

Options options_of(int mr_mode, uint64_t more_caps = 0);

class Regions : public testing::TestWithParam<Reached> {
 protected:
  // Both sides and an arena of `pages`; the target answers. `env` is of the target's process.
  void open(const Options& options, uint64_t pages = 8,
            std::vector<std::pair<std::string, std::string>> env = {});
  // From now on the initiator reaches the target through that endpoint.
  void reach(const std::vector<uint8_t>& name) { to = node->insert(name); }

  // Each waits for its one completion and returns its error.
  int write(const Remote& r, uint64_t offset, size_t len, uint64_t seed = 5);
  int read(const Remote& r, uint64_t offset, size_t len);  // into got
  int add(const Remote& r, uint64_t offset, uint64_t operand = 1);
  int fetch(const Remote& r, uint64_t offset, fi_op op);  // into got
  int compare(const Remote& r, uint64_t offset);
  // All of them, `len` for write and read.
  void refused(const Remote& r, uint64_t offset, size_t len, int err = FI_EACCES);
  void allowed(const Remote& r, uint64_t offset, size_t len);
  bool got_is(uint64_t seed, size_t skip = 0) const;
  // The target still answers.
  void alive();

  std::unique_ptr<Node> node;
  std::unique_ptr<Target> target;
  fi_addr_t to = FI_ADDR_UNSPEC;
  std::vector<uint8_t> got;

 private:
  void TearDown() override;
  int settle(int64_t posted, Op& op);
  std::vector<std::pair<std::string, std::string>> set_here;
};

}  // namespace aperture::doors::mr
