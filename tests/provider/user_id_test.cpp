// User ids that are set after the insertion: FI_AV_USER_ID as a flag of fi_av_open, from API 1.20
// on, which libraries of 1.17 do not have. fi_av(3), fi_av_set_user_id.
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

constexpr uint32_t kApi120 = FI_VERSION(1, 20);

// Where the table of 1.20 has it: behind av_set and two calls for authorization keys.
int set_user_id(fid_av* av, fi_addr_t addr, fi_addr_t id, uint64_t flags = 0) {
  using Call = int (*)(fid_av*, fi_addr_t, fi_addr_t, uint64_t);
  constexpr size_t kAt = offsetof(fi_ops_av, av_set) + 3 * sizeof(void*);
  if (av->ops->size < kAt + sizeof(Call)) return -FI_ENOSYS;
  Call call;
  std::memcpy(&call, reinterpret_cast<const char*>(av->ops) + kAt, sizeof call);
  return call(av, addr, id, flags);
}

Edit with_caps(uint64_t caps) {
  return [caps](fi_info& h) { h.caps = caps; };
}

class UserIdCalls : public testing::Test {
 protected:
  explicit UserIdCalls(uint64_t caps = FI_MSG | FI_SOURCE | FI_AV_USER_ID)
      : b(with_caps(caps), kApi120) {}
  ~UserIdCalls() override {
    b.ep.reset();  // it uses the vector, and that the domain
    av.reset();
  }
  int open(uint64_t flags, const char* name = nullptr) {
    fi_av_attr attr{};
    attr.type = FI_AV_TABLE;
    attr.flags = flags;
    attr.name = name;
    fid_av* raw = nullptr;
    const int code = fi_av_open(b.domain.get(), &attr, &raw, nullptr);
    if (code == 0) av.reset(raw);
    return code;
  }
  // A message from the endpoint to itself: what its completion says of the source.
  fi_addr_t source_of_message(fi_addr_t to) {
    char c = 0;
    EXPECT_EQ(fi_recv(b.ep.get(), &c, 1, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    EXPECT_EQ(fi_inject(b.ep.get(), "x", 1, to), 0);
    fi_cq_tagged_entry entry{};
    fi_addr_t source = 4711;
    for (int i = 0; i < 1'000'000; ++i) {
      if (fi_cq_readfrom(b.cq.get(), &entry, 1, &source) == 1) return source;
    }
    ADD_FAILURE() << "no completion";
    return source;
  }
  Bench b;
  Opened<fid_av> av;
};

TEST_F(UserIdCalls, are_set_after_the_insertion) {
  ASSERT_EQ(open(FI_AV_USER_ID), 0);
  ASSERT_EQ(fi_ep_bind(b.ep.get(), &av->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(b.ep.get(), &b.cq->fid, FI_TRANSMIT | FI_RECV), 0);
  ASSERT_EQ(fi_enable(b.ep.get()), 0);
  sockaddr_storage name{};
  size_t len = sizeof name;
  ASSERT_EQ(fi_getname(&b.ep->fid, &name, &len), 0);
  fi_addr_t self = FI_ADDR_NOTAVAIL;
  EXPECT_EQ(fi_av_insert(av.get(), &name, 1, &self, FI_AV_USER_ID, nullptr), -FI_EINVAL)
      << "not with the insertion, where the vector has the flag";
  ASSERT_EQ(fi_av_insert(av.get(), &name, 1, &self, 0, nullptr), 1);
  EXPECT_EQ(source_of_message(self), FI_ADDR_NOTAVAIL) << "none has been set";
  EXPECT_EQ(set_user_id(av.get(), self, 99), 0);
  EXPECT_EQ(source_of_message(self), 99u);
  EXPECT_EQ(set_user_id(av.get(), self, 100), 0);
  EXPECT_EQ(source_of_message(self), 100u);
  EXPECT_EQ(set_user_id(av.get(), self + 1, 100), -FI_EINVAL) << "no such address";
  EXPECT_EQ(set_user_id(av.get(), self, 100, 1), -FI_EBADFLAGS);
}

TEST_F(UserIdCalls, need_a_vector_with_the_flag) {
  ASSERT_EQ(open(0), 0);
  EXPECT_EQ(set_user_id(av.get(), 0, 1), -FI_EINVAL);
  EXPECT_EQ(open(FI_AV_USER_ID, "x"), -FI_EINVAL) << "a shared vector has none";
}

class WithoutUserIds : public UserIdCalls {
 protected:
  WithoutUserIds() : UserIdCalls(FI_MSG | FI_SOURCE) {}
};

TEST_F(WithoutUserIds, the_flag_is_refused) {
  EXPECT_EQ(open(FI_AV_USER_ID), -FI_EINVAL);
}

}  // namespace
}  // namespace aperture::provider_tests
