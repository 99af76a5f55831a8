// Queues in memory of the application: the allocators of a parent domain.
// ibv_alloc_parent_domain(3).
#include <sys/mman.h>

#include <map>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

// An application's allocator: each buffer between pages that nobody may touch.
struct Arena {
  enum class Mood { gives, leaves_it, has_none, gives_askew };

  static void* alloc(ibv_pd* pd, void* context, size_t size, size_t alignment, uint64_t type) {
    auto& arena = *static_cast<Arena*>(context);
    EXPECT_EQ(pd, arena.pd);
    EXPECT_GT(size, 0u);
    EXPECT_EQ(alignment & (alignment - 1), 0u);
    if (arena.mood == Mood::leaves_it || (arena.every_other && ++arena.asked % 2 == 0)) {
      return IBV_ALLOCATOR_USE_DEFAULT;
    }
    if (arena.mood == Mood::has_none || arena.live.size() == arena.most) return nullptr;
    const size_t room = (size + kPage - 1) / kPage * kPage;
    void* all = ::mmap(nullptr, room + 2 * kPage, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(all, MAP_FAILED);
    char* at = static_cast<char*>(all) + kPage;
    EXPECT_EQ(::mprotect(at, room, PROT_READ | PROT_WRITE), 0);
    // as near to its end as can be, where a byte too many is seen
    char* given = at + (room - size) / alignment * alignment;
    if (arena.mood == Mood::gives_askew) given = at + 8;
    arena.live[given] = {all, room + 2 * kPage, type};
    ++arena.of_type[type];
    return given;
  }
  static void free(ibv_pd* pd, void* context, void* at, uint64_t type) {
    auto& arena = *static_cast<Arena*>(context);
    EXPECT_EQ(pd, arena.pd);
    const auto it = arena.live.find(at);
    ASSERT_NE(it, arena.live.end()) << "it was not given";
    EXPECT_EQ(it->second.type, type);
    EXPECT_EQ(::munmap(it->second.all, it->second.size), 0);
    arena.live.erase(it);
  }

  struct Given {
    void* all;
    size_t size;
    uint64_t type;
  };
  static constexpr size_t kPage = 4096;
  ibv_pd* pd = nullptr;
  Mood mood = Mood::gives;
  bool every_other = false;
  unsigned asked = 0;
  size_t most = ~size_t{0};
  std::map<void*, Given> live;
  std::map<uint64_t, int> of_type;
};

class Buffers : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    arena_.pd = parent_ = make_parent(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                                      IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
    ASSERT_NE(parent_, nullptr);
  }
  void TearDown() override {
    EXPECT_TRUE(arena_.live.empty()) << "all was given back";
    if (parent_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(parent_), 0);
    }
    Verbs::TearDown();
  }
  ibv_pd* make_parent(uint32_t mask) {
    ibv_parent_domain_init_attr attr{};
    attr.pd = pd_;
    attr.comp_mask = mask;
    attr.alloc = Arena::alloc;
    attr.free = Arena::free;
    attr.pd_context = &arena_;
    return ibv_alloc_parent_domain(device_.context, &attr);
  }
  ibv_cq* make_cq(ibv_pd* parent) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 20;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    attr.parent_domain = parent;
    ibv_cq_ex* cq = ibv_create_cq_ex(device_.context, &attr);
    return cq != nullptr ? ibv_cq_ex_to_cq(cq) : nullptr;
  }
  static ibv_qp* make_qp(ibv_pd* pd, ibv_cq* cq, ibv_qp_type type, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.cap = {20, 20, 3, 3, 100};
    attr.qp_type = type;
    attr.srq = srq;
    return ibv_create_qp(pd, &attr);
  }
  static int send(ibv_qp* qp, ibv_sge sge, unsigned flags) {
    ibv_send_wr wr = send_wr(IBV_WR_SEND, sge);
    wr.send_flags |= flags;
    return post_wr(qp, wr);
  }
  // As many messages as go round each queue several times.
  void exchange(ibv_qp* one, ibv_qp* other, ibv_cq* cq, ibv_srq* srq = nullptr) {
    connect(one, other);
    Memory from(pd_, 96, 'b'), to(pd_, 96);
    for (uint64_t i = 0; i < 70; ++i) {
      ibv_sge pieces[] = {to.sge(0, 32), to.sge(32, 32), to.sge(64, 32)};
      ibv_recv_wr wr{i, nullptr, pieces, 3}, *bad = nullptr;
      ASSERT_EQ(
          srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(other, &wr, &bad), 0);
      ASSERT_EQ(send(one, from.sge(0, 96), i % 2 == 0 ? unsigned{IBV_SEND_INLINE} : 0), 0);
      for (int k = 0; k < 2; ++k) EXPECT_EQ(End::completion_of(cq).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(to.bytes, from.bytes);
  }

  Arena arena_;
  ibv_pd* parent_ = nullptr;
};

TEST_F(Buffers, of_queues_come_from_the_application_and_go_back_to_it) {
  ibv_cq* cq = make_cq(parent_);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(arena_.of_type.size(), 1u);
  ibv_srq_init_attr init{nullptr, {20, 3, 0}};
  ibv_srq* srq = ibv_create_srq(parent_, &init);
  EXPECT_EQ(arena_.of_type.size(), 2u);
  ibv_qp* one = make_qp(parent_, cq, IBV_QPT_RC);
  ibv_qp* other = make_qp(parent_, cq, IBV_QPT_RC, srq);
  EXPECT_EQ(arena_.of_type.size(), 3u) << "each kind of resource has its type";
  for (const auto& [type, count] : arena_.of_type) EXPECT_EQ(type >> 32, 0u);
  ASSERT_TRUE(srq != nullptr && one != nullptr && other != nullptr);
  exchange(one, other, cq, srq);
  const size_t before = arena_.live.size();
  ibv_srq_attr more{40, 0, 0};
  EXPECT_EQ(ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR), 0);
  EXPECT_EQ(ibv_resize_cq(cq, 300), 0);
  EXPECT_EQ(arena_.live.size(), before) << "one for the other";
  EXPECT_EQ(ibv_dealloc_pd(parent_), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(one), 0);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent_), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Buffers, of_every_type_of_queue_pair) {
  for (const auto type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    ibv_qp* qp = make_qp(parent_, here_->cq, type);
    ASSERT_NE(qp, nullptr) << type;
    EXPECT_FALSE(arena_.live.empty()) << type;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_TRUE(arena_.live.empty()) << type;
  }
}

TEST_F(Buffers, may_be_left_to_the_default_all_or_some) {
  for (const bool some : {false, true}) {
    arena_.mood = some ? Arena::Mood::gives : Arena::Mood::leaves_it;
    arena_.every_other = some;
    ibv_cq* cq = make_cq(parent_);
    ibv_qp* one = make_qp(parent_, cq, IBV_QPT_RC);
    ibv_qp* other = make_qp(parent_, cq, IBV_QPT_RC);
    ASSERT_TRUE(cq != nullptr && one != nullptr && other != nullptr);
    EXPECT_EQ(arena_.live.empty(), !some);
    exchange(one, other, cq);
    EXPECT_EQ(ibv_destroy_qp(one), 0);
    EXPECT_EQ(ibv_destroy_qp(other), 0);
    EXPECT_EQ(ibv_resize_cq(cq, 100), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
  }
}

TEST_F(Buffers, that_are_not_to_be_had_refuse_the_object) {
  for (const auto mood : {Arena::Mood::has_none, Arena::Mood::gives_askew}) {
    arena_.mood = mood;
    EXPECT_EQ(refusal_of(make_cq(parent_)), ENOMEM);
    for (const auto type : {IBV_QPT_RC, IBV_QPT_UD}) {
      EXPECT_EQ(refusal_of(make_qp(parent_, here_->cq, type)), ENOMEM);
    }
    ibv_srq_init_attr init{nullptr, {20, 3, 0}};
    EXPECT_EQ(refusal_of(ibv_create_srq(parent_, &init)), ENOMEM);
    EXPECT_TRUE(arena_.live.empty());
  }
}

TEST_F(Buffers, go_back_when_one_of_an_object_is_not_to_be_had) {
  ibv_qp* qp = nullptr;
  for (arena_.most = 0; qp == nullptr && arena_.most < 100; ++arena_.most) {
    qp = make_qp(parent_, here_->cq, IBV_QPT_RC);
    EXPECT_EQ(arena_.live.size(), qp != nullptr ? arena_.most : 0);
  }
  EXPECT_GT(arena_.most, 2u);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  // a queue that cannot grow stays as it is
  arena_.most = ~size_t{0};
  ibv_cq* cq = make_cq(parent_);
  arena_.mood = Arena::Mood::has_none;
  EXPECT_EQ(ibv_resize_cq(cq, 1000), ENOMEM);
  EXPECT_EQ(cq->cqe, 20);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Buffers, may_lie_outside_of_protected_memory_and_other_leaves_are_not_known) {
  constexpr uint32_t kAllowUnprotected = 1u << 2;
  EXPECT_EQ(make_parent(kAllowUnprotected << 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_pd* leave = make_parent(kAllowUnprotected);
  ASSERT_NE(leave, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(leave), 0);
}

TEST_F(Buffers, are_not_asked_for_where_no_allocator_was_given) {
  arena_.mood = Arena::Mood::has_none;
  ibv_pd* without = make_parent(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
  ASSERT_NE(without, nullptr);
  for (ibv_pd* pd : {without, pd_}) {
    ibv_qp* qp = make_qp(pd, here_->cq, IBV_QPT_RC);
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
  }
  ibv_cq* cq = make_cq(without);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(without), 0);
  EXPECT_EQ(refusal_of(make_cq(pd_)), EINVAL) << "no parent domain";
  // other objects have no queues
  Memory memory(parent_, 64);
  EXPECT_TRUE(arena_.of_type.empty());
}

}  // namespace
}  // namespace aperture::test
