// The calls of aperture/fi_window.h: each argument that is refused beside the one that is not.
#include <atomic>
#include <thread>

#include "doors/demand.hpp"
#include "doors/window.hpp"

namespace aperture::doors::mr {
namespace {

class WindowCalls : public testing::Test {
 protected:
  WindowCalls() : node(options_of(0)), memory(4096) {
    register_with(kLocal);
    window = make_window(node.domain());
  }
  aperture_window_ops& ops() { return window_ops(node.domain()); }
  void register_with(uint64_t access) {
    static uint64_t next_key = 77;
    mr.reset();
    mr = registered(node.domain(), memory.data(), 4096, access, next_key++);
    want = part_of(mr.get(), 0, 4096, kBoth);
  }
  // What a changed wish gives; a refusal leaves everything as it was.
  int bind(const aperture_window_bind& wish) {
    uint64_t key = 4711;
    const int rc = ops().bind(window.get(), &wish, &key);
    if (rc == 0) {
      EXPECT_EQ(window->key, key);
      EXPECT_EQ(ops().invalidate(window.get()), 0);
    } else {
      EXPECT_EQ(key, 4711u) << "written on success only";
    }
    EXPECT_EQ(window->key, FI_KEY_NOTAVAIL);
    return rc;
  }
  template <typename Change>
  int bind_with(Change change) {
    aperture_window_bind wish = want;
    change(wish);
    return bind(wish);
  }

  Node node;
  Guarded memory;
  Fid<fid_mr> mr;
  Fid<aperture_window> window;
  aperture_window_bind want{};
};

TEST_F(WindowCalls, ops_are_opened_by_their_name_without_flags) {
  void* out = this;
  fid* domain = &node.domain()->fid;
  EXPECT_EQ(fi_open_ops(domain, "aperture_window_ops/2", 0, &out, nullptr), -FI_ENOSYS);
  EXPECT_EQ(fi_open_ops(domain, "", 0, &out, nullptr), -FI_ENOSYS);
  EXPECT_EQ(fi_open_ops(domain, nullptr, 0, &out, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_open_ops(domain, APERTURE_WINDOW_OPS, 1, &out, nullptr), -FI_EBADFLAGS);
  EXPECT_EQ(fi_open_ops(domain, APERTURE_WINDOW_OPS, 0, nullptr, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_open_ops(&node.ep()->fid, APERTURE_WINDOW_OPS, 0, &out, nullptr), -FI_ENOSYS);
  EXPECT_EQ(out, this) << "written on success only";
  ASSERT_EQ(fi_open_ops(domain, APERTURE_WINDOW_OPS, 0, &out, nullptr), 0);
  EXPECT_EQ(static_cast<aperture_window_ops*>(out)->size, sizeof(aperture_window_ops));
}

TEST_F(WindowCalls, allocate_takes_a_domain_and_attributes_of_its_size) {
  int here = 0;
  aperture_window_attr attr{sizeof attr, 0, &here};
  aperture_window* made = nullptr;
  EXPECT_EQ(ops().allocate(nullptr, &attr, &made), -FI_EINVAL);
  EXPECT_EQ(ops().allocate(reinterpret_cast<fid_domain*>(node.ep()), &attr, &made), -FI_EINVAL);
  EXPECT_EQ(ops().allocate(node.domain(), &attr, nullptr), -FI_EINVAL);
  attr.size -= 1;
  EXPECT_EQ(ops().allocate(node.domain(), &attr, &made), -FI_EINVAL);
  attr = {sizeof attr, 1, &here};
  EXPECT_EQ(ops().allocate(node.domain(), &attr, &made), -FI_EBADFLAGS);
  EXPECT_EQ(made, nullptr);
  attr.flags = 0;
  ASSERT_EQ(ops().allocate(node.domain(), &attr, &made), 0);
  EXPECT_EQ(made->fid.context, &here);
  EXPECT_EQ(made->fid.fclass, APERTURE_CLASS_WINDOW);
  EXPECT_EQ(made->key, FI_KEY_NOTAVAIL);
  EXPECT_EQ(ops().invalidate(made), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_close(&node.domain()->fid), -FI_EBUSY) << "windows are open";
  EXPECT_EQ(fi_close(&made->fid), 0);
}

TEST_F(WindowCalls, bind_takes_what_belongs_together) {
  EXPECT_EQ(bind(want), 0);
  uint64_t key = 0;
  EXPECT_EQ(ops().bind(nullptr, &want, &key), -FI_EINVAL);
  EXPECT_EQ(ops().bind(window.get(), nullptr, &key), -FI_EINVAL);
  EXPECT_EQ(ops().bind(window.get(), &want, nullptr), -FI_EINVAL);
  EXPECT_EQ(ops().bind(reinterpret_cast<aperture_window*>(mr.get()), &want, &key), -FI_EINVAL);
  EXPECT_EQ(ops().invalidate(nullptr), -FI_EINVAL);
  EXPECT_EQ(ops().invalidate(reinterpret_cast<aperture_window*>(mr.get())), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { --w.size; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.size += 8; }), 0) << "of a later version";
  EXPECT_EQ(bind_with([](auto& w) { w.mr = nullptr; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([&](auto& w) { w.mr = reinterpret_cast<fid_mr*>(node.ep()); }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.flags = 2; }), -FI_EBADFLAGS);
  EXPECT_EQ(bind_with([](auto& w) { w.flags = APERTURE_WINDOW_ZERO_BASED; }), 0);
  EXPECT_EQ(bind_with([&](auto& w) { w.ep = reinterpret_cast<fid_ep*>(mr.get()); }), -FI_EINVAL);
  EXPECT_EQ(bind_with([&](auto& w) { w.ep = node.ep(); }), 0);
  EXPECT_EQ(bind_with([](auto& w) { w.peer = 0; }), -FI_EINVAL) << "of which endpoint?";
  EXPECT_EQ(bind_with([&](auto& w) { w.ep = node.ep(), w.peer = 9; }), -FI_EINVAL);
  const fi_addr_t self = node.insert(node.name());
  EXPECT_EQ(bind_with([&](auto& w) { w.ep = node.ep(), w.peer = self; }), 0);
}

TEST_F(WindowCalls, bind_refuses_objects_of_another_domain_or_authorization_key) {
  Node other(options_of(0));
  EXPECT_EQ(bind_with([&](auto& w) { w.ep = other.ep(); }), -FI_EDOMAIN);
  const Region theirs(other, 64);
  EXPECT_EQ(bind_with([&](auto& w) { w.mr = const_cast<Region&>(theirs).mr(), w.length = 8; }),
            -FI_EDOMAIN);
  Region locked(node, 64, kAllAccess, 1, "its own key");
  EXPECT_EQ(bind_with([&](auto& w) { w.mr = locked.mr(), w.length = 8; }), 0);
  EXPECT_EQ(bind_with([&](auto& w) { w.mr = locked.mr(), w.length = 8, w.ep = node.ep(); }),
            -FI_EDOMAIN);
}

// 17 and 18
TEST_F(WindowCalls, bind_stays_inside_the_region) {
  EXPECT_EQ(bind_with([](auto& w) { w.length = 0; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.length = 4097; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.addr = 1; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.addr = 1, w.length = 4095; }), 0);
  EXPECT_EQ(bind_with([](auto& w) { w.addr = 4096, w.length = 1; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.addr = ~uint64_t{0}, w.length = 2; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.addr = 8, w.length = ~uint64_t{0}; }), -FI_EINVAL);
  EXPECT_EQ(bind_with([](auto& w) { w.length = uint64_t{1} << 63; }), -FI_EINVAL);
}

// 17
TEST_F(WindowCalls, bind_asks_for_a_local_right_that_fits) {
  struct Case {
    uint64_t region, window;
    int code;
  };
  const Case cases[] = {{FI_SEND, kGet, 0},
                        {FI_SEND, kPut, -FI_EACCES},
                        {FI_SEND, kBoth, -FI_EACCES},
                        {FI_WRITE, kGet, 0},
                        {FI_WRITE, kPut, -FI_EACCES},
                        {FI_RECV, kPut, 0},
                        {FI_RECV, kGet, -FI_EACCES},
                        {FI_READ, kPut, 0},
                        {FI_READ, kGet, -FI_EACCES},
                        {FI_REMOTE_READ, kGet, 0},
                        {FI_REMOTE_WRITE, kPut, 0},
                        {FI_READ | FI_WRITE, kBoth, 0},
                        {FI_REMOTE_READ, kPut, -FI_EACCES},
                        {kLocal, 0, -FI_EINVAL},
                        {kLocal, FI_RECV, -FI_EINVAL},
                        {kLocal, kBoth | FI_SEND, -FI_EINVAL}};
  for (const Case& c : cases) {
    register_with(c.region);
    EXPECT_EQ(bind_with([&](auto& w) { w.access = c.window; }), c.code)
        << std::hex << c.region << " " << c.window;
  }
}

TEST_F(WindowCalls, send_inv_takes_an_endpoint_that_may_send_messages) {
  uint8_t bytes[8] = {};
  Op op;
  const auto send = [&](fid_ep* ep, const void* buf, size_t len, fi_addr_t to) {
    return ops().send_inv(ep, buf, len, nullptr, to, 1, &op);
  };
  EXPECT_EQ(send(nullptr, bytes, 8, 0), -FI_EINVAL);
  EXPECT_EQ(send(reinterpret_cast<fid_ep*>(mr.get()), bytes, 8, 0), -FI_EINVAL);
  EXPECT_EQ(send(node.ep(), bytes, 8, 0), -FI_EINVAL) << "no such address";
  EXPECT_EQ(send(node.ep(), nullptr, 8, 0), -FI_EINVAL);
  EXPECT_EQ(send(node.ep(), bytes, size_t{1} << 41, 0), -FI_EMSGSIZE);
  Options options = options_of(0);
  options.enable = false;
  Node asleep(options);
  EXPECT_EQ(send(asleep.ep(), bytes, 8, 0), -FI_EOPBADSTATE);
  Node tagged({.caps = FI_TAGGED | FI_RMA});
  const fi_addr_t self = tagged.insert(tagged.name());
  EXPECT_EQ(send(tagged.ep(), bytes, 8, self), -FI_EOPNOTSUPP);
  EXPECT_TRUE(node.quiet());
}

TEST_F(WindowCalls, windows_are_invalidated_through_any_link_to_oneself) {
  const fi_addr_t self = node.insert(node.name());
  aperture_window_bind wish = want;
  wish.ep = node.ep();
  wish.peer = self;
  uint64_t key = 0;
  ASSERT_EQ(ops().bind(window.get(), &wish, &key), 0);
  uint8_t bytes[8] = {1, 2, 3}, inbox[8] = {};
  Op receive, send;
  ASSERT_EQ(node.run(fi_write, bytes, 8, nullptr, self, 0, key), 0);
  EXPECT_EQ(memory.data()[2], 3);
  ASSERT_EQ(node.post(fi_recv, inbox, 8, nullptr, self, &receive), 0);
  ASSERT_EQ(node.post(ops().send_inv, bytes, 8, nullptr, self, key, &send), 0);
  const Completion c = node.wait(&receive);
  EXPECT_EQ(c.data, key);
  EXPECT_EQ(c.flags & APERTURE_INVALIDATED, APERTURE_INVALIDATED);
  EXPECT_EQ(node.wait(&send).err, 0);
  EXPECT_EQ(inbox[2], 3);
  EXPECT_EQ(ops().invalidate(window.get()), 0);
}

TEST(WindowWithDescriptors, sends_what_is_registered) {
  const Demand demand(FI_MR_LOCAL);
  Node node(options_of(FI_MR_LOCAL));
  const fi_addr_t self = node.insert(node.name());
  Region buffer(node, 64, FI_SEND);
  Op op;
  const auto send = [&](void* desc) {
    return node.post(window_ops(node.domain()).send_inv, buffer.memory().data(), 64, desc, self, 1,
                     &op);
  };
  EXPECT_EQ(send(nullptr), -FI_EINVAL);
  EXPECT_EQ(send(buffer.desc()), 0);
  EXPECT_EQ(node.wait(&op).err, FI_EACCES) << "no such key";
}

TEST(WindowWithRawKeys, is_reached_by_its_key_once_that_is_mapped) {
  Options options = options_of(FI_MR_RAW);
  NodePair pair(options);
  Region region(pair.b, 64, kLocal);
  aperture_window_ops& ops = window_ops(pair.b.domain());
  Fid<aperture_window> window = make_window(pair.b.domain());
  const aperture_window_bind wish =
      part_of(region.mr(), region.remote().base, 64, kBoth, pair.b.ep());
  uint64_t key = 0;
  ASSERT_EQ(ops.bind(window.get(), &wish, &key), 0);
  uint64_t mapped = 0;
  ASSERT_EQ(fi_mr_map_raw(pair.a.domain(), wish.addr, reinterpret_cast<uint8_t*>(&key), sizeof key,
                          &mapped, 0),
            0);
  uint8_t bytes[8] = {}, inbox[8] = {};
  Op receive, send;
  ASSERT_EQ(pair.a.run(fi_write, bytes, 8, nullptr, pair.to_b, wish.addr, mapped), 0);
  ASSERT_EQ(pair.b.post(fi_recv, inbox, 8, nullptr, pair.to_a, &receive), 0);
  const auto invalidate = [&](uint64_t with) {
    return pair.a.post(ops.send_inv, bytes, 8, nullptr, pair.to_b, with, &send);
  };
  EXPECT_EQ(invalidate(key), -FI_ENOKEY) << "what is not mapped names nothing";
  ASSERT_EQ(invalidate(mapped), 0);
  EXPECT_EQ(pair.a.wait(&send).err, 0);
  EXPECT_EQ(pair.b.wait(&receive).data, key) << "the key itself, as its owner knows it";
  EXPECT_EQ(fi_mr_unmap_key(pair.a.domain(), mapped), 0);
  EXPECT_EQ(fi_close(&window.release()->fid), 0);
}

// Windows of different threads do not get in each other's way.
TEST(WindowThreads, may_bind_and_invalidate_at_once) {
  Node node(options_of(0));
  Region region(node, 4096, kLocal);
  aperture_window_ops& ops = window_ops(node.domain());
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      aperture_window* window = nullptr;
      if (ops.allocate(node.domain(), nullptr, &window) != 0) ++failures;
      for (int i = 0; i < 500; ++i) {
        const aperture_window_bind wish =
            part_of(region.mr(), region.remote().base, 64, kGet, i % 2 == 0 ? node.ep() : nullptr);
        uint64_t key = 0;
        if (ops.bind(window, &wish, &key) != 0 || ops.invalidate(window) != 0) ++failures;
      }
      if (fi_close(&window->fid) != 0) ++failures;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(region.close(), 0);
}

}  // namespace
}  // namespace aperture::doors::mr
