// What the tests of memory windows share: a target with a region that grants nothing to peers, and
// sending with invalidation from the initiator.
#pragma once

#include "aperture/fi_window.h"
#include "doors/mr_target.hpp"

namespace aperture::doors::mr {

constexpr uint64_t kLocal = FI_SEND | FI_RECV;
constexpr uint64_t kBoth = kGet | kPut;

inline aperture_window_ops& window_ops(fid_domain* domain) {
  void* ops = nullptr;
  DOOR(fi_open_ops(&domain->fid, APERTURE_WINDOW_OPS, 0, &ops, nullptr));
  return *static_cast<aperture_window_ops*>(ops);
}

class Windows : public Regions {
 protected:
  // Region 1: pages 1 and 2 of the arena, with local rights alone; both sides know each other.
  void open_with_region(int mr_mode = 0, uint64_t access = kLocal) {
    open(options_of(mr_mode));
    target->insert(node->name());
    ASSERT_EQ(target->reg(1, {{kPage, 2 * kPage}}, access), 0);
    region = target->remote();
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
    const int64_t posted = post([&] {
      return window_ops(from.domain())
          .send_inv(from.ep(), bytes.data(), len, nullptr, dest, key, &op);
    });
    if (posted != 0) throw DoorError("send_inv", posted);
    const Completion c = from.wait(&op);
    EXPECT_EQ(c.flags & (FI_SEND | FI_MSG), FI_SEND | FI_MSG);
    return c.err;
  }
  int send_inv(uint64_t key, size_t len) { return send_inv(key, len, *node, to); }
  void send_plain(size_t len) {
    std::vector<uint8_t> bytes(len + 1);
    fill({bytes.data(), len}, len);
    Op op;
    ASSERT_EQ(post([&] { return fi_send(node->ep(), bytes.data(), len, nullptr, to, &op); }), 0);
    EXPECT_EQ(node->wait(&op).err, 0);
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
      Options options = options_of(0);
      if (GetParam().idle) options.progress = FI_PROGRESS_AUTO;
      const std::vector<uint8_t> name = test.target_name();
      first_ = std::move(test.node);
      test.node = std::make_unique<Node>(options);
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
