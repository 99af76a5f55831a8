// The owner of regions, in this process or in another (called.hpp), and an initiator that reaches
// for them: what the tests of fi_mr(3) (mr_*_test.cpp) have in common.
//
// The target is a Servant, which owns one node, an arena of pages that can be taken away and given
// back, and regions over parts of it. One thread owns each side.
#pragma once

#include <rdma/fi_atomic.h>

#include <map>
#include <memory>
#include <vector>

#include "aperture/fi_window.h"
#include "doors/rma_setting.hpp"

namespace aperture::doors::mr {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPut = FI_REMOTE_WRITE;
constexpr uint64_t kGet = FI_REMOTE_READ;

struct Part {  // of the arena
  uint64_t offset = 0;
  uint64_t len = 0;
};

class Parts {
 public:
  Parts(std::initializer_list<Part> parts) : Parts(std::vector<Part>(parts)) {}
  Parts(const std::vector<Part>& parts = {}) : count_(std::min(parts.size(), kMost)) {
    std::copy_n(parts.begin(), count_, parts_);
  }
  const Part* begin() const { return parts_; }
  const Part* end() const { return parts_ + count_; }

 private:
  static constexpr size_t kMost = 20;
  size_t count_;
  Part parts_[kMost];
};

// Whom a window is bound to.
constexpr uint64_t kToEndpoint = 1;
constexpr uint64_t kToSibling = 2;
constexpr uint64_t kToPeer = 4;  // the one that was inserted last
constexpr uint64_t kFromZero = 8;

struct Reply {
  int64_t code = 0;  // what libfabric answered, or the error of a completion
  uint64_t value = 0;
  uint64_t flags = 0;
  Remote remote;
};

class Servant {
 public:
  ~Servant();
  bool polls() const { return polls_ && node_ != nullptr; }

  Name open(const Options& options);
  Name open_sibling(const Options& options);
  void insert(const Name& name) { peer_ = node_->insert(name); }
  void progress(bool on) { polls_ = on; }

  void arena(uint64_t pages);
  void unmap(uint64_t page, uint64_t count);
  void map(uint64_t page, uint64_t count);
  void protect(uint64_t page, uint64_t count, int prot);
  void fill(Part part, uint64_t seed) { doors::fill({at(part), part.len}, seed); }
  bool holds(Part part, uint64_t seed, uint64_t skip);
  uint64_t resident(uint64_t page, uint64_t count);

  Reply reg(uint32_t id, const Parts& parts, uint64_t access, uint64_t flags);
  int enable(uint32_t id) { return fi_mr_enable(regions_.at(id).get()); }
  int bind_endpoint(uint32_t id, bool sibling);
  int refresh(uint32_t id, const Parts& parts);
  int close(uint32_t id) { return closed(regions_.at(id)); }
  void close_endpoint(bool sibling) { (sibling ? sibling_ : node_)->close_endpoint(); }
  void open_counter(uint32_t number) { counters_[number] = doors::open_counter(node_->domain()); }
  int bind_counter(uint32_t id, uint32_t number, uint64_t flags);
  uint64_t count(uint32_t number) { return fi_cntr_read(counters_.at(number).get()); }
  int close_counter(uint32_t number) { return closed(counters_.at(number)); }

  Reply bind_window(uint32_t id, uint32_t of, Part part, uint64_t access, uint64_t flags);
  int invalidate(uint32_t id) { return ops().invalidate(window(id).get()); }
  int close_window(uint32_t id) { return closed(window(id)); }

  void recv(uint32_t id, uint64_t size);
  Reply received(uint32_t id, int timeout_ms);

 private:
  uint8_t* at(Part part) { return arena_ + part.offset; }
  std::vector<iovec> iovs_of(const Parts& parts);
  template <typename T>
  static int closed(Fid<T>& object) {
    const int code = fi_close(&object->fid);
    if (code == 0) (void)object.release();
    return code;
  }
  aperture_window_ops& ops();
  Fid<aperture_window>& window(uint32_t id);  // allocated if it is new

  struct Inbox {
    Op op;
    std::vector<uint8_t> bytes;
  };
  bool polls_ = true;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Node> sibling_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::map<uint32_t, Fid<aperture_window>> windows_;
  std::map<uint32_t, Inbox> inboxes_;
  std::map<fid_mr*, uint64_t> bases_;
  uint8_t* arena_ = nullptr;
  uint64_t pages_ = 0;
  std::map<uint32_t, Fid<fid_mr>> regions_;
  std::map<uint32_t, Fid<fid_cntr>> counters_;
};

// What answers with an int answers with libfabric's code; else a failure is thrown.
class Target : public Called<Servant> {
 public:
  using Called::Called;
  std::vector<uint8_t> open(const Options& options) { return call<&Servant::open>(options); }
  // A second endpoint in the same domain.
  std::vector<uint8_t> open_sibling(const Options& options) {
    return call<&Servant::open_sibling>(options);
  }
  // The target knows that peer from now on.
  void insert(const Name& name) { call<&Servant::insert>(name); }
  // Leaves the queues alone from now on.
  void stop_polling() { call<&Servant::progress>(false); }

  void arena(uint64_t pages) { call<&Servant::arena>(pages); }
  void unmap(uint64_t page, uint64_t count = 1) { call<&Servant::unmap>(page, count); }
  void map(uint64_t page, uint64_t count = 1) { call<&Servant::map>(page, count); }
  void protect(uint64_t page, uint64_t count, int prot) {
    call<&Servant::protect>(page, count, prot);
  }
  void fill(Part part, uint64_t seed) { call<&Servant::fill>(part, seed); }
  // Whether the part has the contents of the seed from byte `skip` of them on.
  bool holds(Part part, uint64_t seed, uint64_t skip = 0) {
    return call<&Servant::holds>(part, seed, skip);
  }
  // Pages that are in memory.
  uint64_t resident(uint64_t page, uint64_t count) { return call<&Servant::resident>(page, count); }

  int reg(uint32_t id, const Parts& parts, uint64_t access = kAllAccess, uint64_t flags = 0) {
    const Reply r = call<&Servant::reg>(id, parts, access, flags);
    remote_ = r.remote;
    return static_cast<int>(r.code);
  }
  const Remote& remote() const { return remote_; }  // of the region registered last
  int enable(uint32_t id) { return call<&Servant::enable>(id); }
  int bind_endpoint(uint32_t id, bool sibling = false) {
    return call<&Servant::bind_endpoint>(id, sibling);
  }
  void open_counter(uint32_t number) { call<&Servant::open_counter>(number); }
  int bind_counter(uint32_t id, uint32_t number, uint64_t flags = FI_REMOTE_WRITE) {
    return call<&Servant::bind_counter>(id, number, flags);
  }
  uint64_t count(uint32_t number) { return call<&Servant::count>(number); }
  // Comes to the value and stays there for a moment.
  bool counts_to(uint32_t number, uint64_t value);
  int close_counter(uint32_t number) { return call<&Servant::close_counter>(number); }
  void close_endpoint(bool sibling = false) { call<&Servant::close_endpoint>(sibling); }
  // Without parts: all of it.
  int refresh(uint32_t id, const Parts& parts = {}) { return call<&Servant::refresh>(id, parts); }
  int close(uint32_t id) { return call<&Servant::close>(id); }

  // Binds part of region `of`; remote_window() is how it is reached.
  int bind_window(uint32_t id, uint32_t of, Part part, uint64_t access, uint64_t flags = 0) {
    const Reply r = call<&Servant::bind_window>(id, of, part, access, flags);
    if (r.code == 0) window_ = r.remote;
    return static_cast<int>(r.code);
  }
  const Remote& remote_window() const { return window_; }
  int invalidate(uint32_t id) { return call<&Servant::invalidate>(id); }
  int close_window(uint32_t id) { return call<&Servant::close_window>(id); }

  void recv(uint32_t id, uint64_t size) { call<&Servant::recv>(id, size); }
  // Its error, data, flags, and as size its length.
  Reply received(uint32_t id) { return call<&Servant::received>(id, 20000); }
  bool still_waits(uint32_t id) { return call<&Servant::received>(id, 30).code == -1; }

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

using Environment = std::vector<std::pair<std::string, std::string>>;
// What is bound keeps a region from being closed.
inline const Environment kStrictly = {{"APERTURE_MR_CLOSE", "strict"}};

class Regions : public testing::TestWithParam<Reached> {
 protected:
  // Both sides and an arena of `pages`; the target answers. `env` is of the target's process.
  void open(const Options& options, uint64_t pages = 8, Environment env = {});
  // Where nobody polls at the target, its endpoints progress by themselves.
  static Options progressing(Options options) {
    if (GetParam().idle) options.progress = FI_PROGRESS_AUTO;
    return options;
  }
  // From now on the initiator reaches the target through that endpoint.
  void reach(const std::vector<uint8_t>& name) { to = node->insert(name); }

  // Registers parts of the arena, or counts a failure of the test: how the region is reached.
  Remote registered(uint32_t id, const Parts& parts, uint64_t access = kAllAccess,
                    uint64_t flags = 0, Line where = Line::current());

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
  template <typename Call, typename... Args>
  int carry_out(Call call, Args... args);
  Environment set_here;
};

}  // namespace aperture::doors::mr
