// What the registering calls take and refuse: fi_mr(3), "fi_mr_reg" and the others, "MEMORY REGION
// ATTRIBUTES", "FLAGS" and "ERRORS".
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>

#include "doors/mr_target.hpp"

namespace aperture::doors::mr {
namespace {

// A domain of its own, opened from an answer that the test has changed.
struct OwnDomain {
  OwnDomain(const Options& options, const std::function<void(fi_info&)>& edit)
      : info(get_info(options)) {
    edit(*info);
    fid_fabric* made = nullptr;
    DOOR(fi_fabric(info->fabric_attr, &made, nullptr));
    fabric.reset(made);
    domain = DOOR_MADE(fi_domain, made, info.get());
  }
  Info info;
  Fid<fid_fabric> fabric;
  Fid<fid_domain> domain;
};

struct Asked {
  uint64_t access = kAllAccess;
  uint64_t offset = 0;
  uint64_t key = 1;
  uint64_t flags = 0;
  size_t len = 64;
};

// The same request through each of the three calls: all must answer alike.
class Calls {
 public:
  explicit Calls(fid_domain* domain) : domain_(domain) {}
  int operator()(const Asked& q) {
    const iovec iov{memory_, q.len};
    fi_mr_attr attr{.mr_iov = &iov,
                    .iov_count = 1,
                    .access = q.access,
                    .offset = q.offset,
                    .requested_key = q.key,
                    .context = this};
    fid_mr* mr[3] = {};
    const int one = keep(mr[0], fi_mr_reg(domain_, memory_, q.len, q.access, q.offset, q.key,
                                          q.flags, &mr[0], this));
    const int two =
        keep(mr[1], fi_mr_regv(domain_, &iov, 1, q.access, q.offset, q.key, q.flags, &mr[1], this));
    const int three = keep(mr[2], fi_mr_regattr(domain_, &attr, q.flags, &mr[2]));
    EXPECT_EQ(one, two);
    EXPECT_EQ(one, three);
    return one;
  }
  uint64_t last_key() const { return last_key_; }

 private:
  int keep(fid_mr*& mr, int rc) {
    EXPECT_EQ(rc == 0, mr != nullptr) << "the answer is written on success only";
    if (mr == nullptr) return rc;
    last_key_ = fi_mr_key(mr);
    EXPECT_EQ(mr->fid.context, this);
    EXPECT_EQ(mr->fid.fclass, static_cast<size_t>(FI_CLASS_MR));
    EXPECT_EQ(fi_close(&mr->fid), 0);
    return rc;
  }
  fid_domain* domain_;
  uint8_t memory_[64] = {};
  uint64_t last_key_ = 0;
};

TEST(RegionCall, an_offset_is_refused) {
  Node node(options_of(0));
  Calls reg(node.domain());
  EXPECT_EQ(reg({}), 0);
  for (const uint64_t offset : {uint64_t{1}, uint64_t{64}, ~uint64_t{0}}) {
    EXPECT_EQ(reg({.offset = offset}), -FI_EINVAL);
  }
}

TEST(RegionCall, flags_that_are_not_offered_are_refused) {
  Node node(options_of(0, FI_RMA_EVENT));
  Calls reg(node.domain());
  EXPECT_EQ(reg({.flags = FI_RMA_EVENT}), 0);
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t flag = uint64_t{1} << bit;
    if (flag == FI_RMA_EVENT || flag == FI_RMA_PMEM) continue;
    EXPECT_EQ(reg({.flags = flag}), -FI_EBADFLAGS) << bit;
  }
}

TEST(RegionCall, rights_that_the_page_does_not_know_are_refused) {
  Node node(options_of(0));
  Calls reg(node.domain());
  EXPECT_EQ(reg({.access = 0}), 0) << "none at all is a choice";
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t right = uint64_t{1} << bit;
    const bool known = (right & (kAllAccess | FI_COLLECTIVE)) != 0;
    EXPECT_EQ(reg({.access = right}), known ? 0 : -FI_EINVAL) << bit;
  }
  EXPECT_EQ(reg({.access = FI_COLLECTIVE | FI_SEND | FI_RECV}), 0);
}

TEST(RegionCall, a_requested_key_is_given) {
  Node node(options_of(0));
  Calls reg(node.domain());
  for (const uint64_t key :
       {uint64_t{0}, uint64_t{1}, uint64_t{0xFFFFFFFF}, uint64_t{1} << 63, FI_KEY_NOTAVAIL - 1}) {
    EXPECT_EQ(reg({.key = key}), 0);
    EXPECT_EQ(reg.last_key(), key);
  }
  EXPECT_EQ(reg({.key = FI_KEY_NOTAVAIL}), -FI_EKEYREJECTED);
  EXPECT_EQ(node.info()->domain_attr->mr_key_size, 8u) << "at most 8 bytes";
}

TEST(RegionCall, a_requested_key_in_use_is_refused) {
  Node node(options_of(0)), other(options_of(0));
  Calls reg(node.domain());
  uint8_t memory[8];
  Fid<fid_mr> mr = registered(node.domain(), memory, 8, 0, 42);
  EXPECT_EQ(reg({.key = 42}), -FI_ENOKEY);
  EXPECT_EQ(reg({.key = 43}), 0);
  EXPECT_EQ(Calls(other.domain())({.key = 42}), 0) << "another domain's keys are its own";
  EXPECT_EQ(fi_close(&mr.release()->fid), 0);
  EXPECT_EQ(reg({.key = 42}), 0) << "free when the region is closed";
}

TEST(RegionCall, a_requested_key_that_mr_key_size_has_no_room_for_is_refused) {
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{4}, size_t{7}}) {
    OwnDomain own(options_of(0), [&](fi_info& i) { i.domain_attr->mr_key_size = bytes; });
    Calls reg(own.domain.get());
    const uint64_t most = (uint64_t{1} << 8 * bytes) - 1;
    EXPECT_EQ(reg({.key = most}), 0) << bytes;
    EXPECT_EQ(reg({.key = most + 1}), -FI_EKEYREJECTED) << bytes;
    EXPECT_EQ(reg({.key = uint64_t{1} << 63}), -FI_EKEYREJECTED) << bytes;
  }
}

TEST(RegionCall, with_fi_mr_prov_key_a_request_is_ignored_and_keys_cannot_be_guessed) {
  Node node(options_of(FI_MR_PROV_KEY));
  Calls reg(node.domain());
  std::set<uint64_t> keys;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(reg({.key = i % 2 == 0 ? 42 : FI_KEY_NOTAVAIL}), 0);
    EXPECT_TRUE(keys.insert(reg.last_key()).second);
  }
  EXPECT_EQ(keys.count(42), 0u);
  uint64_t nearest = ~uint64_t{0}, before = 0;
  for (const uint64_t key : keys) {
    if (before != 0) nearest = std::min(nearest, key - before);
    before = key;
  }
  EXPECT_GT(nearest, uint64_t{1} << 30) << "200 of 2^64: closer than this once in 10^5 runs";
}

TEST(RegionCall, of_no_bytes_gives_access_to_none) {
  NodePair p(options_of(0));
  uint8_t memory[16] = {};
  for (uint8_t* at : {memory, static_cast<uint8_t*>(nullptr)}) {
    Fid<fid_mr> mr = registered(p.b.domain(), at, 0, kAllAccess, 6);
    const auto write = [&](size_t len, uint64_t to) {
      Op op;
      const uint8_t from[16] = {1, 1, 1};
      EXPECT_EQ(p.a.post(fi_write, from, len, nullptr, p.to_b, to, 6, &op), 0);
      return p.a.wait(&op).err;
    };
    EXPECT_EQ(write(0, 0), 0);
    EXPECT_EQ(write(1, 0), FI_EACCES);
    EXPECT_EQ(write(16, 0), FI_EACCES);
    EXPECT_EQ(write(0, 1), FI_EACCES);
    EXPECT_EQ(write(1, ~uint64_t{0}), FI_EACCES);
    EXPECT_EQ(memory[0], 0);
    EXPECT_EQ(fi_close(&mr.release()->fid), 0);
  }
}

// An attr of an application that was built before iface and device came: what lies behind auth_key
// is not its own.
class OldAttr {
 public:
  OldAttr() {
    void* made =
        mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) std::abort();
    base_ = static_cast<uint8_t*>(made);
    munmap(base_ + kPage, kPage);
    constexpr size_t kEnd = offsetof(fi_mr_attr, auth_key) + sizeof(uint8_t*);
    attr_ = base_ + kPage - kEnd;
    iov_ = {memory_, sizeof memory_};
    put(offsetof(fi_mr_attr, mr_iov), static_cast<const iovec*>(&iov_));
    put(offsetof(fi_mr_attr, iov_count), size_t{1});
    put(offsetof(fi_mr_attr, access), uint64_t{FI_REMOTE_READ});
    put(offsetof(fi_mr_attr, requested_key), uint64_t{7});
  }
  ~OldAttr() { munmap(base_, kPage); }
  const fi_mr_attr* get() const { return reinterpret_cast<const fi_mr_attr*>(attr_); }
  template <typename T>
  void put(size_t at, T value) {
    std::memcpy(attr_ + at, &value, sizeof value);
  }

 private:
  uint8_t* base_;
  uint8_t* attr_;
  iovec iov_{};
  uint8_t memory_[8] = {};
};

TEST(RegionAttr, iface_and_device_are_not_read_unless_fi_hmem_was_granted) {
  Node node(options_of(0));
  OldAttr old;
  fid_mr* mr = nullptr;
  ASSERT_EQ(fi_mr_regattr(node.domain(), old.get(), 0, &mr), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  uint8_t memory[8];
  const iovec iov{memory, 8};
  fi_mr_attr attr{.mr_iov = &iov, .iov_count = 1, .iface = FI_HMEM_CUDA};
  ASSERT_EQ(fi_mr_regattr(node.domain(), &attr, 0, &mr), 0) << "ignored";
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST(RegionAttr, with_fi_hmem_system_memory_is_taken_and_devices_without_a_driver_refused) {
  Node node(options_of(FI_MR_HMEM, FI_HMEM));
  ASSERT_NE(node.info()->caps & FI_HMEM, 0u);
  uint8_t memory[8];
  const iovec iov{memory, 8};
  fi_mr_attr attr{.mr_iov = &iov, .iov_count = 1, .iface = FI_HMEM_SYSTEM};
  fid_mr* mr = nullptr;
  ASSERT_EQ(fi_mr_regattr(node.domain(), &attr, 0, &mr), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  mr = nullptr;
  for (const fi_hmem_iface iface : {FI_HMEM_CUDA, FI_HMEM_ROCR, FI_HMEM_ZE}) {
    attr.iface = iface;
    EXPECT_EQ(fi_mr_regattr(node.domain(), &attr, 0, &mr), -FI_ENOSYS);
    EXPECT_EQ(mr, nullptr);
  }
}

TEST(RegionAttr, bad_ones_are_refused) {
  Node node(options_of(0));
  uint8_t memory[8];
  const iovec iov{memory, 8};
  fi_mr_attr attr{};
  fid_mr* mr = nullptr;
  EXPECT_EQ(fi_mr_regattr(node.domain(), &attr, 0, &mr), -FI_EINVAL) << "no buffer";
  attr.iov_count = 1;
  EXPECT_EQ(fi_mr_regattr(node.domain(), &attr, 0, &mr), -FI_EINVAL) << "nor an iov";
  attr.mr_iov = &iov;
  EXPECT_EQ(fi_mr_regattr(node.domain(), &attr, 0, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_mr_regattr(node.domain(), nullptr, 0, &mr), -FI_EINVAL);
  EXPECT_EQ(mr, nullptr);
}

// A file in the working directory, gone from it at once when it is to have no name.
class MappedFile {
 public:
  explicit MappedFile(int sharing, bool named = true) {
    char name[] = "mr_call_test-XXXXXX";
    const int fd = mkstemp(name);
    if (fd < 0 || ftruncate(fd, 2 * kPage) != 0) std::abort();
    path_ = name;
    if (!named) unlink(name);
    at_ = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, sharing, fd, 0);
    close(fd);
  }
  ~MappedFile() {
    munmap(at_, 2 * kPage);
    unlink(path_.c_str());
  }
  void* at() { return at_; }

 private:
  std::string path_;
  void* at_;
};

TEST(RegionFlag, fi_rma_pmem_is_for_memory_that_is_mapped_from_a_file) {
  Node node(options_of(0));
  const auto reg = [&](void* at, size_t len) {
    fid_mr* mr = nullptr;
    const int rc = fi_mr_reg(node.domain(), at, len, kAllAccess, 0, 1, FI_RMA_PMEM, &mr, nullptr);
    if (mr != nullptr) fi_close(&mr->fid);
    return rc;
  };
  MappedFile file(MAP_SHARED), copy(MAP_PRIVATE), nameless(MAP_SHARED, false);
  uint8_t memory[64];
  EXPECT_EQ(reg(file.at(), 2 * kPage), 0);
  EXPECT_EQ(reg(static_cast<uint8_t*>(file.at()) + 100, 8), 0);
  EXPECT_EQ(reg(memory, sizeof memory), -FI_EINVAL) << "not a file's";
  EXPECT_EQ(reg(copy.at(), kPage), -FI_EINVAL) << "private: nothing reaches the file";
  EXPECT_EQ(reg(nameless.at(), kPage), -FI_EINVAL) << "nobody finds it again";
}

TEST(RegionRange, memory_that_is_cut_off_its_file_is_an_error_and_not_a_signal) {
  NodePair p(options_of(0));
  char name[] = "mr_call_test-XXXXXX";
  const int fd = mkstemp(name);
  ASSERT_GE(fd, 0);
  unlink(name);
  ASSERT_EQ(ftruncate(fd, 2 * kPage), 0);
  void* at = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(at, MAP_FAILED);
  Fid<fid_mr> mr = registered(p.b.domain(), at, 2 * kPage, kAllAccess, 6);
  const auto write = [&](uint64_t to) {
    Op op;
    const uint64_t word = 7;
    EXPECT_EQ(p.a.post(fi_write, &word, 8, nullptr, p.to_b, to, 6, &op), 0);
    return p.a.wait(&op).err;
  };
  EXPECT_EQ(write(kPage), 0);
  ASSERT_EQ(ftruncate(fd, kPage), 0);
  EXPECT_EQ(write(kPage), FI_EACCES) << "SIGBUS, for whoever touches it";
  EXPECT_EQ(write(0), 0);
  ASSERT_EQ(ftruncate(fd, 2 * kPage), 0);
  EXPECT_EQ(write(kPage), 0);
  EXPECT_EQ(fi_close(&mr.release()->fid), 0);
  munmap(at, 2 * kPage);
  close(fd);
}

}  // namespace
}  // namespace aperture::doors::mr
