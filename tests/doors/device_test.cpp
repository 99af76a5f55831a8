// FI_HMEM: messages, remote access and atomics from and to device memory. fi_mr(3), "FI_MR_HMEM"
// and "iface".
//
// Over the stand-in drivers of tests/memory/standin, whose device memory no CPU can touch: a way
// that forgets the device ends the test. Without LD_LIBRARY_PATH to them, over real drivers.
#include "doors/device.hpp"

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_trigger.h>

#include "doors/child.hpp"
#include "doors/demand.hpp"

namespace aperture::doors {
namespace {

using test::DeviceKind;
using test::Devices;

constexpr size_t kRegion = 4 << 20;
constexpr size_t kSizes[] = {1, 8, 45, 300, 5000, 70001, (3 << 20) + 5};

std::vector<uint8_t> bytes_of(size_t n, uint64_t seed) {
  std::vector<uint8_t> bytes(n);
  fill(bytes, seed);
  return bytes;
}

struct Setting {
  DeviceKind kind;
  int mr_mode;
  const char* mode;
  bool automatic = false;  // progress by itself, and threads as they like
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << test::name_of(s.kind) << ", " << s.mode;
}
std::string setting_name(const testing::TestParamInfo<Setting>& info) {
  return std::string(test::name_of(info.param.kind)) + "_" + info.param.mode;
}
std::vector<Setting> all_settings() {
  std::vector<Setting> all;
  for (const DeviceKind kind : test::kDeviceKinds) {
    all.push_back({kind, FI_MR_HMEM, "hmem"});
    all.push_back({kind, kBasicMr | FI_MR_LOCAL | FI_MR_HMEM, "basic_local_hmem"});
    all.push_back({kind, FI_MR_LOCAL, "local"});
    all.push_back({kind, 0, "neither"});
    all.push_back({kind, FI_MR_HMEM, "automatic", true});
    all.push_back({kind, FI_MR_HMEM | FI_MR_MMU_NOTIFY, "notified"});
  }
  return all;
}

class Device : public WithDevices, public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    open(GetParam().kind);
    if (HasFatalFailure()) return;
    before = devices->counts();
    Options options = hmem(GetParam().mr_mode);
    if (GetParam().automatic) {
      options.threading = FI_THREAD_SAFE;
      options.progress = FI_PROGRESS_AUTO;
      options.wait = FI_WAIT_FD;
      options.counters = true;
    }
    p.emplace(options);
    ASSERT_NE(p->a.info()->caps & FI_HMEM, 0u);
  }
  // Whatever stood in for device memory is given back.
  void TearDown() override {
    p.reset();
    if (devices == nullptr || !devices->is_standin()) return;
    EXPECT_EQ(devices->counts().watches, before.watches);
  }
  bool must_describe() const { return (GetParam().mr_mode & FI_MR_HMEM) != 0; }
  bool is_described() const { return GetParam().mr_mode != 0; }

  std::optional<NodePair> p;
  standin_counts before{};
};
INSTANTIATE_TEST_SUITE_P(Settings, Device, testing::ValuesIn(all_settings()), setting_name);

TEST_P(Device, messages_go_from_device_to_device) {
  DeviceRegion from(p->a, *devices, kRegion), to(p->b, *devices, kRegion);
  uint64_t seed = 1;
  for (const size_t size : kSizes) {
    for (const bool tagged : {false, true}) {
      const auto bytes = bytes_of(size, ++seed);
      from.put(3, bytes);
      Op receive;
      ASSERT_EQ(tagged
                    ? fi_trecv(p->b.ep(), to.at(7), size, to.desc(), FI_ADDR_UNSPEC, 9, 0, &receive)
                    : fi_recv(p->b.ep(), to.at(7), size, to.desc(), FI_ADDR_UNSPEC, &receive),
                0);
      ASSERT_EQ(tagged ? p->a.run(fi_tsend, from.at(3), size, from.desc(), p->to_b, 9)
                       : p->a.run(fi_send, from.at(3), size, from.desc(), p->to_b),
                0);
      const Completion c = p->b.wait(&receive);
      ASSERT_EQ(c.err, 0) << size;
      EXPECT_EQ(c.len, size);
      EXPECT_EQ(c.flags & (FI_RECV | FI_TAGGED | FI_MSG), FI_RECV | (tagged ? FI_TAGGED : FI_MSG));
      EXPECT_EQ(to.get(7, size), bytes) << size;
      EXPECT_EQ(to.get(7 + size, 1)[0], 0) << "beside the buffer";
      to.put(7, std::vector<uint8_t>(size, 0));
    }
  }
  EXPECT_TRUE(p->a.quiet() && p->b.quiet());
}

TEST_P(Device, a_shorter_message_leaves_the_rest_of_the_buffer) {
  DeviceRegion to(p->b, *devices, 4096);
  to.put(0, std::vector<uint8_t>(4096, 0xee));
  Op receive;
  ASSERT_EQ(fi_recv(p->b.ep(), to.at(), 4096, to.desc(), FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(post(fi_inject, p->a.ep(), "short", 5, p->to_b), 0);
  const Completion c = p->b.wait(&receive);
  ASSERT_EQ(c.err, 0);
  EXPECT_EQ(c.len, 5u);
  EXPECT_EQ(to.get(0, 6), (std::vector<uint8_t>{'s', 'h', 'o', 'r', 't', 0xee}));
}

TEST_P(Device, pieces_of_host_and_device_make_one_message) {
  DeviceRegion device(p->a, *devices, 8192);
  Region host(p->a, 100, kAllAccess, 5);
  DeviceRegion to(p->b, *devices, 8192);
  device.put(0, bytes_of(5000, 11));
  Region tail(p->b, 60, kAllAccess, 6);
  iovec out[] = {{device.at(), 3000}, {host.memory().data(), 100}, {device.at(3000), 2000}};
  void* out_desc[] = {device.desc(), host.desc(), device.desc()};
  iovec in[] = {{to.at(), 5040}, {tail.memory().data(), 60}};
  void* in_desc[] = {to.desc(), tail.desc()};
  Op receive;
  ASSERT_EQ(fi_recvv(p->b.ep(), in, in_desc, 2, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(p->a.run(fi_sendv, out, out_desc, 3, p->to_b), 0);
  ASSERT_EQ(p->b.wait(&receive).err, 0);
  std::vector<uint8_t> expected = bytes_of(3000, 11);
  expected = bytes_of(5000, 11);
  expected.insert(expected.begin() + 3000, host.memory().data(), host.memory().data() + 100);
  const auto got = to.get(0, 5040);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin()));
  EXPECT_TRUE(std::equal(expected.begin() + 5040, expected.end(), tail.memory().data()));
  EXPECT_TRUE(host.memory().intact() && tail.memory().intact());
}

TEST_P(Device, remote_access_is_from_to_and_between_devices) {
  DeviceRegion here(p->a, *devices, kRegion), there(p->b, *devices, kRegion);
  Region host(p->a, kRegion, kAllAccess, 1), target(p->b, kRegion, kAllAccess, 2);
  uint64_t seed = 40;
  for (const size_t size : kSizes) {
    const auto bytes = bytes_of(size, ++seed);
    const uint64_t at = 5;
    // host to device, and back into a device
    std::copy(bytes.begin(), bytes.end(), host.memory().data());
    ASSERT_EQ(p->a.run(fi_write, host.memory().data(), size, host.desc(), p->to_b,
                       there.remote().base + at, there.remote().key),
              0);
    ASSERT_EQ(there.get(at, size), bytes) << size;
    ASSERT_EQ(p->a.run(fi_read, here.at(9), size, here.desc(), p->to_b, there.remote().base + at,
                       there.remote().key),
              0);
    ASSERT_EQ(here.get(9, size), bytes) << size;
    // device to host, and back into the host
    ASSERT_EQ(p->a.run(fi_write, here.at(9), size, here.desc(), p->to_b, target.remote().base + at,
                       target.remote().key),
              0);
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), target.memory().data() + at)) << size;
    std::fill_n(host.memory().data(), size, 0);
    ASSERT_EQ(p->a.run(fi_read, host.memory().data(), size, host.desc(), p->to_b,
                       there.remote().base + at, there.remote().key),
              0);
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), host.memory().data())) << size;
  }
  EXPECT_TRUE(p->a.quiet());
}

TEST_P(Device, atomics_work_on_and_from_device_memory) {
  DeviceRegion there(p->b, *devices, 4096), here(p->a, *devices, 4096);
  const auto word = [](DeviceRegion& region, size_t at) {
    uint64_t value = 0;
    const auto bytes = region.get(at, 8);
    std::memcpy(&value, bytes.data(), 8);
    return value;
  };
  const auto put = [](DeviceRegion& region, size_t at, uint64_t value) {
    std::vector<uint8_t> bytes(8);
    std::memcpy(bytes.data(), &value, 8);
    region.put(at, bytes);
  };
  put(there, 64, 40);
  put(here, 0, 2);
  const uint64_t at = there.remote().base + 64, key = there.remote().key;
  ASSERT_EQ(p->a.run(fi_atomic, here.at(), 1, here.desc(), p->to_b, at, key, FI_UINT64, FI_SUM), 0);
  EXPECT_EQ(word(there, 64), 42u);
  ASSERT_EQ(p->a.run(fi_fetch_atomic, here.at(), 1, here.desc(), here.at(8), here.desc(), p->to_b,
                     at, key, FI_UINT64, FI_SUM),
            0);
  EXPECT_EQ(word(there, 64), 44u);
  EXPECT_EQ(word(here, 8), 42u) << "the former value";
  put(here, 16, 44);
  put(here, 24, 7);
  ASSERT_EQ(p->a.run(fi_compare_atomic, here.at(24), 1, here.desc(), here.at(16), here.desc(),
                     here.at(32), here.desc(), p->to_b, at, key, FI_UINT64, FI_CSWAP),
            0);
  EXPECT_EQ(word(there, 64), 7u);
  EXPECT_EQ(word(here, 32), 44u);
  ASSERT_EQ(p->a.run(fi_fetch_atomic, nullptr, 1, nullptr, here.at(40), here.desc(), p->to_b, at,
                     key, FI_UINT64, FI_ATOMIC_READ),
            0);
  EXPECT_EQ(word(here, 40), 7u);
  EXPECT_EQ(p->a.run(fi_atomic, here.at(), 1, here.desc(), p->to_b, at + 4, key, FI_UINT64, FI_SUM),
            FI_EACCES)
      << "misaligned";
  EXPECT_EQ(word(there, 64), 7u);
}

TEST_P(Device, what_is_injected_is_copied_at_the_call) {
  DeviceRegion from(p->a, *devices, 4096), there(p->b, *devices, 4096);
  const auto bytes = bytes_of(200, 77);
  from.put(0, bytes);
  std::vector<uint8_t> in(200);
  Op receive;
  Region into(p->b, 200);
  ASSERT_EQ(fi_recv(p->b.ep(), into.memory().data(), 200, into.desc(), FI_ADDR_UNSPEC, &receive),
            0);
  ASSERT_EQ(post(fi_inject, p->a.ep(), from.at(), 200, p->to_b), 0);
  from.put(0, std::vector<uint8_t>(200, 0));
  ASSERT_EQ(p->b.wait(&receive).err, 0);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), into.memory().data()));
  from.put(0, bytes);
  ASSERT_EQ(post([&] {
              return fi_inject_write(p->a.ep(), from.at(), 200, p->to_b, there.remote().base,
                                     there.remote().key);
            }),
            0);
  from.put(0, std::vector<uint8_t>(200, 0));
  ASSERT_TRUE(pump_until([&] { return there.get(0, 200) == bytes; }));
  // by flag, from a buffer of which the descriptor is given
  from.put(0, bytes);
  iovec iov{from.at(), 200};
  void* desc = from.desc();
  Op op;
  const fi_msg m{&iov, &desc, 1, p->to_b, &op, 0};
  ASSERT_EQ(fi_recv(p->b.ep(), into.memory().data(), 200, into.desc(), FI_ADDR_UNSPEC, &receive),
            0);
  ASSERT_EQ(p->a.post(fi_sendmsg, &m, FI_INJECT | FI_COMPLETION), 0);
  from.put(0, std::vector<uint8_t>(200, 0));
  ASSERT_EQ(p->a.wait(&op).err, 0);
  ASSERT_EQ(p->b.wait(&receive).err, 0);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), into.memory().data()));
}

TEST_P(Device, memory_without_a_descriptor_is_refused_or_found_out) {
  DeviceRegion from(p->a, *devices, 4096);
  from.put(0, bytes_of(64, 3));
  Region into(p->b, 64);
  Op send, receive;
  ASSERT_EQ(fi_recv(p->b.ep(), into.memory().data(), 64, into.desc(), FI_ADDR_UNSPEC, &receive), 0);
  if (must_describe()) {
    EXPECT_EQ(fi_send(p->a.ep(), from.at(), 64, nullptr, p->to_b, &send), -FI_EINVAL);
    EXPECT_EQ(fi_recv(p->a.ep(), from.at(), 64, nullptr, FI_ADDR_UNSPEC, &send), -FI_EINVAL);
    EXPECT_EQ(fi_write(p->a.ep(), from.at(), 64, nullptr, p->to_b, 0, 1, &send), -FI_EINVAL);
    ASSERT_EQ(p->a.run(fi_send, from.at(), 64, from.desc(), p->to_b), 0);
  } else {
    ASSERT_EQ(p->a.run(fi_send, from.at(), 64, nullptr, p->to_b), 0);
  }
  ASSERT_EQ(p->b.wait(&receive).err, 0);
  EXPECT_FALSE(first_difference(into.memory().span(), 3));
}

TEST_P(Device, memory_that_was_freed_is_no_memory) {
  DeviceRegion there(p->b, *devices, 4096), here(p->a, *devices, 4096);
  Region host(p->a, 64);
  std::byte* const at = here.at();
  Op receive;
  ASSERT_EQ(fi_recv(p->a.ep(), at, 64, here.desc(), FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_TRUE(there.memory().free() && here.memory().free());
  EXPECT_EQ(p->a.run(fi_write, host.memory().data(), 64, host.desc(), p->to_b, there.remote().base,
                     there.remote().key),
            FI_EACCES);
  ASSERT_EQ(post(fi_inject, p->b.ep(), "lost", 5, p->to_a), 0);
  EXPECT_EQ(p->a.wait(&receive).err, FI_EFAULT) << "it came, and has no place";
  if (!is_described()) return;  // nobody knows that it was a device's
  Op op;
  EXPECT_EQ(fi_send(p->a.ep(), at, 64, here.desc(), p->to_b, &op), -FI_EFAULT);
  EXPECT_EQ(fi_write(p->a.ep(), at, 64, here.desc(), p->to_b, 0, 1, &op), -FI_EFAULT);
}

TEST_P(Device, whichever_call_of_the_driver_fails_operations_end_with_a_code) {
  if (!devices->is_standin() || !is_described()) return;  // nothing makes a real one fail
  DeviceRegion from(p->a, *devices, 4096), to(p->b, *devices, 4096);
  const auto bytes = bytes_of(1000, 9);
  int failures = 0;
  for (size_t nth = 1; nth < 40; ++nth) {
    from.put(0, bytes);
    Op receive;
    ASSERT_EQ(fi_recv(p->b.ep(), to.at(), 1000, to.desc(), FI_ADDR_UNSPEC, &receive), 0);
    devices->fail(nth);
    const int64_t code = p->a.run(fi_send, from.at(), 1000, from.desc(), p->to_b);
    if (code == 0) {
      const Completion c = p->b.wait(&receive);
      devices->fail(0);
      if (c.err == 0) {
        EXPECT_EQ(to.get(0, 1000), bytes);
      } else {
        EXPECT_EQ(c.err, FI_EFAULT);
        ++failures;
      }
    } else {
      devices->fail(0);
      EXPECT_TRUE(code == -FI_EFAULT || code == -FI_ENOMEM || code == -FI_EIO || code == -FI_EINVAL)
          << code;
      ++failures;
      ASSERT_EQ(fi_cancel(&p->b.ep()->fid, &receive), 0);
      EXPECT_EQ(p->b.wait(&receive).err, FI_ECANCELED);
    }
  }
  EXPECT_GT(failures, 2) << "the switch does nothing";
  EXPECT_LT(failures, 39) << "every call fails";
}

TEST_P(Device, a_region_is_refreshed_as_any_other) {
  DeviceRegion there(p->b, *devices, 4096);
  const auto bytes = bytes_of(64, 21);
  Region host(p->a, 64);
  std::copy(bytes.begin(), bytes.end(), host.memory().data());
  const iovec part{there.at(), 4096};
  ASSERT_EQ(fi_mr_refresh(there.mr(), &part, 1, 0), 0);
  ASSERT_EQ(p->a.run(fi_write, host.memory().data(), 64, host.desc(), p->to_b, there.remote().base,
                     there.remote().key),
            0);
  EXPECT_EQ(there.get(0, 64), bytes);
}

TEST_P(Device, a_receive_that_is_cancelled_or_closed_gives_all_back) {
  const size_t host_before = devices->counts().allocations;
  {
    DeviceRegion to(p->b, *devices, kRegion);
    Op one, other;
    ASSERT_EQ(fi_recv(p->b.ep(), to.at(), 1000, to.desc(), FI_ADDR_UNSPEC, &one), 0);
    ASSERT_EQ(fi_trecv(p->b.ep(), to.at(), 5000, to.desc(), FI_ADDR_UNSPEC, 1, 0, &other), 0);
    ASSERT_EQ(fi_cancel(&p->b.ep()->fid, &one), 0);
    const Completion c = p->b.wait(&one);
    EXPECT_EQ(c.err, FI_ECANCELED);
    p->b.close_endpoint();
    if (on_aperture()) {
      EXPECT_TRUE(p->b.quiet()) << "no completions reported";
    }
    EXPECT_EQ(to.close(), 0);
  }
  if (devices->is_standin()) {
    EXPECT_LE(devices->counts().allocations, host_before + 8) << "what is kept for the next";
  }
}

TEST_P(Device, an_error_of_a_peer_is_the_operations_own) {
  DeviceRegion from(p->a, *devices, 4096);
  Region into(p->b, 8);
  EXPECT_EQ(p->a.run(fi_write, from.at(), 64, from.desc(), p->to_b, into.remote().base,
                     into.remote().key),
            FI_EACCES);
  Op receive;
  DeviceRegion to(p->b, *devices, 4096);
  ASSERT_EQ(fi_recv(p->b.ep(), to.at(), 16, to.desc(), FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(p->a.run(fi_send, from.at(), 64, from.desc(), p->to_b), 0);
  const Completion c = p->b.wait(&receive);
  EXPECT_EQ(c.err, FI_ETRUNC);
  EXPECT_EQ(c.olen, 48u);
  EXPECT_EQ(to.get(16, 1)[0], 0) << "beside the buffer";
}

TEST_P(Device, calls_that_do_not_reach_devices_say_so) {
  DeviceRegion to(p->b, *devices, 4096);
  iovec iov{to.at(), 4096};
  void* desc = to.desc();
  Op op;
  fi_msg m{&iov, &desc, 1, FI_ADDR_UNSPEC, &op, 0};
  EXPECT_NE(fi_recvmsg(p->b.ep(), &m, FI_MULTI_RECV), 0);
  fi_op_msg work_op{.ep = p->b.ep(), .msg = m, .flags = 0};
  const Fid<fid_cntr> counter = open_counter(p->b.domain());
  fi_deferred_work work{};
  work.triggering_cntr = counter.get();
  work.threshold = 1;
  work.op_type = FI_OP_RECV;
  work.op.msg = &work_op;
  EXPECT_EQ(fi_control(&p->b.domain()->fid, FI_QUEUE_WORK, &work), -FI_EOPNOTSUPP);
}

// ---- registering --------------------------------------------------------------------------------

class DeviceRegistration : public WithDevices, public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { open(GetParam()); }
  int reg(const iovec& iov, int device, uint64_t flags = 0, fi_hmem_iface* iface = nullptr) {
    fi_mr_attr attr = device_attr(GetParam(), device, &iov, 1);
    if (iface != nullptr) attr.iface = *iface;
    fid_mr* mr = nullptr;
    const int code = fi_mr_regattr(node.domain(), &attr, flags, &mr);
    EXPECT_EQ(mr != nullptr, code == 0);
    if (mr != nullptr) {
      EXPECT_EQ(fi_close(&mr->fid), 0);
    }
    return code;
  }
  Node node{hmem(FI_MR_HMEM)};
};
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceRegistration, testing::ValuesIn(test::kDeviceKinds),
                         [](const auto& p) { return std::string(test::name_of(p.param)); });

TEST_P(DeviceRegistration, takes_memory_of_that_device_and_no_other) {
  test::DeviceMemory memory(*devices, 8192);
  const int number = devices->number_of(0);
  EXPECT_EQ(reg({memory.at(), 8192}, number), 0);
  EXPECT_EQ(reg({memory.at() + 100, 77}, number, FI_HMEM_DEVICE_ONLY), 0);
  EXPECT_EQ(reg({memory.at(), 8192 + (1 << 20)}, number), -FI_EINVAL) << "past its end";
  EXPECT_EQ(reg({memory.at(), 0}, number), -FI_EINVAL) << "no bytes";
  if (GetParam() != DeviceKind::rocr) {  // which has no number on the page
    EXPECT_EQ(reg({memory.at(), 8192}, number + 77), -FI_EINVAL) << "of another device";
  }
  std::vector<uint8_t> host(8192);
  EXPECT_EQ(reg({host.data(), 8192}, number), -FI_EINVAL) << "no memory of the driver's";
  EXPECT_EQ(reg({host.data(), 8192}, number, FI_HMEM_HOST_ALLOC), 0) << "said to be the host's";
  fi_hmem_iface system = FI_HMEM_SYSTEM, neuron = FI_HMEM_NEURON;
  EXPECT_EQ(reg({host.data(), 8192}, 0, 0, &system), 0);
  EXPECT_EQ(reg({host.data(), 8192}, 0, FI_HMEM_DEVICE_ONLY, &system), -FI_EINVAL);
  EXPECT_EQ(reg({host.data(), 8192}, 0, 0, &neuron), -FI_ENOSYS);
  void* const freed = memory.at();
  ASSERT_TRUE(memory.free());
  EXPECT_EQ(reg({freed, 8192}, number), -FI_EINVAL) << "freed";
}

TEST_P(DeviceRegistration, takes_what_the_driver_has_allocated_at_the_host) {
  void* const pinned = devices->allocate_host(4096);
  ASSERT_NE(pinned, nullptr);
  EXPECT_EQ(reg({pinned, 4096}, devices->number_of(0)), 0);
  EXPECT_EQ(reg({pinned, 4096}, devices->number_of(0), FI_HMEM_DEVICE_ONLY), -FI_EOPNOTSUPP);
  EXPECT_TRUE(devices->free(pinned));
  if (void* const managed = devices->allocate_managed(4096); managed != nullptr) {
    EXPECT_EQ(reg({managed, 4096}, devices->number_of(0)), 0);
    EXPECT_TRUE(devices->free(managed));
  }
}

// Memory of a device is nowhere kept (fi_mr(3) leaves that open): no monitor is needed for it.
TEST_P(DeviceRegistration, is_asked_for_anew_where_registrations_are_kept) {
  const Demand cache("local_cache");
  NodePair p(hmem(0));
  constexpr size_t kLen = 8192;
  std::vector<uint8_t> landing(kLen);
  for (uint64_t seed = 1; seed < 20; ++seed) {
    test::DeviceMemory memory(*devices, kLen);  // often where the last one was
    const auto bytes = bytes_of(kLen, seed);
    ASSERT_TRUE(memory.write(0, bytes.data(), kLen));
    Op receive;
    ASSERT_EQ(fi_recv(p.b.ep(), landing.data(), kLen, nullptr, FI_ADDR_UNSPEC, &receive), 0);
    ASSERT_EQ(p.a.run(fi_send, memory.at(), kLen, nullptr, p.to_b), 0);
    EXPECT_EQ(p.b.wait(&receive).err, 0);
    EXPECT_EQ(landing, bytes);
  }
}

// ---- between processes --------------------------------------------------------------------------

struct ToChild {
  Name name;
};
struct FromChild {
  Name name;
  Remote remote;
};

DOOR_ROLE(device_target) {
  std::string why;
  const char* kind = std::getenv("APERTURE_TEST_DEVICE");
  const auto devices = Devices::open(static_cast<DeviceKind>(std::atoi(kind)), why);
  if (devices == nullptr) return 3;
  Node node(hmem(FI_MR_HMEM | kBasicMr));
  DeviceRegion region(node, *devices, kRegion);
  if (!control.put(FromChild{node.name(), region.remote()})) return 1;
  uint64_t seed = 0;
  while (!control.ready()) node.poll();
  while (control.get(&seed)) {  // what it asks for was written
    std::vector<uint8_t> bytes = region.get(11, 100000);
    if (!control.put(!first_difference(bytes, seed))) break;
    while (!control.ready()) node.poll();
  }
  return 0;
}

class DeviceProcess : public WithDevices, public testing::TestWithParam<DeviceKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceProcess, testing::ValuesIn(test::kDeviceKinds),
                         [](const auto& p) { return std::string(test::name_of(p.param)); });

TEST_P(DeviceProcess, a_peer_reaches_it_through_its_owner) {
  Child child("device_target",
              {.env = {{"APERTURE_TEST_DEVICE", std::to_string(static_cast<int>(GetParam()))}}});
  Node node(hmem(FI_MR_HMEM | kBasicMr));
  FromChild there;
  ASSERT_TRUE(child.control().get(&there, 20000));
  const fi_addr_t to = node.insert(there.name);
  std::vector<uint8_t> out(100000), in(100000);
  for (uint64_t round = 1; round < 6; ++round) {
    fill(out, round);
    ASSERT_EQ(node.run(fi_write, out.data(), out.size(), nullptr, to, there.remote.base + 11,
                       there.remote.key),
              0);
    ASSERT_EQ(node.run(fi_read, in.data(), in.size(), nullptr, to, there.remote.base + 11,
                       there.remote.key),
              0);
    EXPECT_EQ(in, out);
    bool right = false;
    ASSERT_TRUE(child.control().put(round) && child.control().get(&right, 20000));
    EXPECT_TRUE(right) << "the owner sees other bytes";
  }
}

}  // namespace
}  // namespace aperture::doors
