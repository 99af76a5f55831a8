// What the tests of memory windows share: a target with a region that grants nothing to peers, and
// sending with invalidation from the initiator.
#pragma once

#include "doors/mr_target.hpp"

namespace aperture::doors::mr {

constexpr uint64_t kLocal = FI_SEND | FI_RECV;
constexpr uint64_t kBoth = kGet | kPut;

inline aperture_window_ops& window_ops(fid_domain* domain) {
  void* ops = nullptr;
  DOOR(fi_open_ops(&domain->fid, APERTURE_WINDOW_OPS, 0, &ops, nullptr));
  return *static_cast<aperture_window_ops*>(ops);
}

inline Fid<aperture_window> make_window(fid_domain* domain) {
  aperture_window* window = nullptr;
  DOOR(window_ops(domain).allocate(domain, nullptr, &window));
  return Fid<aperture_window>(window);
}

// Part of a region, for any peer that comes to `ep` (nullptr: to any endpoint of the domain).
inline aperture_window_bind part_of(fid_mr* mr, uint64_t addr, uint64_t length, uint64_t access,
                                    fid_ep* ep = nullptr) {
  return {.size = sizeof(aperture_window_bind),
          .mr = mr,
          .addr = addr,
          .length = length,
          .access = access,
          .ep = ep,
          .peer = FI_ADDR_UNSPEC};
}

// Memory of a station with a window over all of it; the region grants nothing by itself. It can be
// bound for one connection after another.
struct WindowedMemory {
  explicit WindowedMemory(Polled& owner)
      : domain(owner.domain()),
        bytes(4096, 1),
        region(registered(domain, bytes.data(), bytes.size(), kLocal, next_key++)),
        window(make_window(domain)),
        want(part_of(region.get(), 0, bytes.size(), kBoth)) {
    if ((owner.info()->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0)
      want.addr = reinterpret_cast<uint64_t>(bytes.data());
  }
  uint64_t bind_to(fid_ep* ep) {
    want.ep = ep;
    uint64_t key = 0;
    EXPECT_EQ(window_ops(domain).bind(window.get(), &want, &key), 0);
    return key;
  }
  static inline uint64_t next_key = 1000;
  fid_domain* domain;
  Guarded bytes;
  Fid<fid_mr> region;
  Fid<aperture_window> window;
  aperture_window_bind want;
};

class Windows : public Regions {
 protected:
  // Region 1: pages 1 and 2 of the arena, with local rights alone; both sides know each other.
  void open_with_region(int mr_mode = 0, uint64_t access = kLocal) {
    open(options_of(mr_mode));
    target->insert(node->name());
    region = registered(1, {{kPage, 2 * kPage}}, access);
  }
  Remote bind(uint32_t id, Part part, uint64_t access, uint64_t flags = 0) {
    EXPECT_EQ(target->bind_window(id, 1, part, access, flags), 0);
    return target->remote_window();
  }
  // Waits for its one completion and returns its error. The contents are those of its length.
  int send_inv(uint64_t key, size_t len, Node& from, fi_addr_t dest) {
    std::vector<uint8_t> bytes(len + 1);
    fill({bytes.data(), len}, len);
    Op op;
    const int64_t posted =
        from.post(window_ops(from.domain()).send_inv, bytes.data(), len, nullptr, dest, key, &op);
    if (posted != 0) throw DoorError("send_inv", posted);
    const Completion c = from.wait(&op);
    EXPECT_EQ(c.flags & (FI_SEND | FI_MSG), FI_SEND | FI_MSG);
    return c.err;
  }
  int send_inv(uint64_t key, size_t len) { return send_inv(key, len, *node, to); }
  void send_plain(size_t len) {
    std::vector<uint8_t> bytes(len + 1);
    fill({bytes.data(), len}, len);
    ASSERT_EQ(node->run(fi_send, bytes.data(), len, nullptr, to), 0);
  }

  std::vector<uint8_t> target_name() {
    std::vector<uint8_t> name(256);
    size_t len = name.size();
    DOOR(fi_av_lookup(node->av(), to, name.data(), &len));
    name.resize(len);
    return name;
  }

  // For as long as it lives, another endpoint of the test's process is the initiator.
  class Other {
   public:
    explicit Other(Windows& test) : test_(test), there_(test.to) {
      const std::vector<uint8_t> name = test.target_name();
      first_ = std::move(test.node);
      test.node = std::make_unique<Node>(progressing(options_of(0)));
      test.reach(name);
    }
    ~Other() { back(); }
    void back() {
      if (first_ == nullptr) return;
      test_.node = std::move(first_);
      test_.to = there_;
    }

   private:
    Windows& test_;
    std::unique_ptr<Node> first_;
    const fi_addr_t there_;
  };

  Remote region;
};

}  // namespace aperture::doors::mr
