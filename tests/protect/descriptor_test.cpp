// Descriptors of local buffers: a handle is looked up, never followed.
#include "protect/descriptor.hpp"

#include <random>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

constexpr Rights kLocal = Rights::send | Rights::recv;

class Descriptor : public TableTest {
 protected:
  Denial check(const void* descriptor, uint64_t addr = kBase, uint64_t len = 8,
               Rights need = Rights::send, DomainId pd = kPd) const {
    const LocalAsk ask{pd, descriptor, addr, len, need, through};
    const LocalAnswer answer = check_local(table->own_file().layout(), ask);
    if (answer.denial != Denial::none || answer.beside.generation == 0) return answer.denial;
    return check_beside(*table, answer.beside, ask);
  }
  EndpointId through = 1;
  RegionHandle add_local() { return add(spec_of(kBase, kLength, kLocal)); }
};

TEST_F(Descriptor, of_a_region_in_force_is_taken) {
  void* d = descriptor_of(add_local());
  EXPECT_NE(d, nullptr);
  EXPECT_EQ(check(d), Denial::none);
  EXPECT_EQ(check(d, kBase, kLength), Denial::none);
  EXPECT_EQ(check(d, kBase + kLength - 1, 1, Rights::recv), Denial::none);
}

TEST_F(Descriptor, buffers_are_named_by_virtual_address_in_any_mode) {
  void* d = descriptor_of(add(spec_with({.rights = kLocal, .zero_based = true})));
  EXPECT_EQ(check(d), Denial::none);
  EXPECT_EQ(check(d, 0), Denial::out_of_range);
}

TEST_F(Descriptor, a_buffer_that_leaves_the_region_is_refused) {
  void* d = descriptor_of(add_local());
  EXPECT_EQ(check(d, kBase - 1, 8), Denial::out_of_range);
  EXPECT_EQ(check(d, kBase + kLength - 7, 8), Denial::out_of_range);
  EXPECT_EQ(check(d, kBase, kLength + 1), Denial::out_of_range);
  EXPECT_EQ(check(d, kBase + kLength, 1), Denial::out_of_range);
  EXPECT_EQ(check(d, kBase + 1, ~uint64_t{0}), Denial::out_of_range) << "wraps round";
  EXPECT_EQ(check(d, ~uint64_t{0}, 2), Denial::out_of_range);
}

TEST_F(Descriptor, each_right_is_its_own) {
  for (Rights granted : {Rights::send, Rights::recv, Rights::local_read, Rights::local_write}) {
    void* d = descriptor_of(add(spec_of(kBase, kLength, granted)));
    for (Rights need : {Rights::send, Rights::recv, Rights::local_read, Rights::local_write}) {
      EXPECT_EQ(check(d, kBase, 8, need), need == granted ? Denial::none : Denial::missing_right);
    }
  }
  void* remote = descriptor_of(add(spec_of(kBase, kLength, kReadWrite)));
  EXPECT_EQ(check(remote), Denial::missing_right) << "remote rights are none of ours";
}

TEST_F(Descriptor, of_another_domain_is_refused) {
  EXPECT_EQ(check(descriptor_of(add_local()), kBase, 8, Rights::send, kOtherPd),
            Denial::wrong_domain);
}

TEST_F(Descriptor, of_a_region_that_waits_is_refused_until_it_is_enabled) {
  const RegionHandle region = add(spec_with({.rights = kLocal, .enabled = false}));
  EXPECT_EQ(check(descriptor_of(region)), Denial::not_enabled);
  EXPECT_TRUE(table->enable(region));
  EXPECT_EQ(check(descriptor_of(region)), Denial::none);
}

TEST_F(Descriptor, of_a_closed_region_stays_refused_when_its_entry_lives_again) {
  make(8);
  const RegionHandle old = add_local();
  void* d = descriptor_of(old);
  EXPECT_TRUE(table->revocation().begin(old));
  EXPECT_EQ(check(d), Denial::revoking);
  EXPECT_TRUE(table->revocation().poll(old));
  EXPECT_EQ(check(d), Denial::closed);
  bool reused = false;
  for (int i = 0; i < 1000 && !reused; ++i) {
    const RegionHandle next = add_local();
    reused = next.index == old.index;
    EXPECT_EQ(check(d), Denial::closed);
    EXPECT_NE(descriptor_of(next), d);
    close(next);
  }
  EXPECT_TRUE(reused);
}

// Two buffers that touch and one apart, in another order than that of memory.
std::unique_ptr<SideRecord> pieces() {
  auto side = std::make_unique<SideRecord>();
  for (uint64_t at : {kBase + 4096, kBase, kBase + 3 * 4096}) {
    side->segments.push_back({reinterpret_cast<std::byte*>(at), 4096, std::nullopt});
  }
  return side;
}

TEST_F(Descriptor, of_several_buffers_covers_each_and_what_spans_neighbours) {
  void* d = descriptor_of(add(spec_of(kBase + 4096, 3 * 4096, kLocal), pieces()));
  EXPECT_EQ(check(d, kBase, 8192), Denial::none);
  EXPECT_EQ(check(d, kBase + 4090, 12), Denial::none);
  EXPECT_EQ(check(d, kBase + 3 * 4096, 4096), Denial::none);
  EXPECT_EQ(check(d, kBase + 8190, 4), Denial::out_of_range) << "into the gap";
  EXPECT_EQ(check(d, kBase + 2 * 4096, 8), Denial::out_of_range);
  EXPECT_EQ(check(d, kBase - 1, 8), Denial::out_of_range);
  EXPECT_EQ(check(d, kBase + 3 * 4096, 4097), Denial::out_of_range);
  EXPECT_EQ(check(d, kBase + 3 * 4096, ~uint64_t{0}), Denial::out_of_range);
}

TEST_F(Descriptor, of_a_region_of_one_endpoint_is_for_that_endpoint) {
  auto side = pieces();
  side->needs_endpoint = true;
  const RegionHandle r = add(spec_of(kBase + 4096, 3 * 4096, kLocal), std::move(side));
  void* d = descriptor_of(r);
  EXPECT_EQ(check(d), Denial::wrong_endpoint) << "bound to none";
  table->side(r)->endpoint = 2;
  EXPECT_EQ(check(d), Denial::wrong_endpoint);
  through = 2;
  EXPECT_EQ(check(d), Denial::none);
  through = 0;
  EXPECT_EQ(check(d), Denial::none) << "a shared receive";
}

TEST_F(Descriptor, outlives_a_refresh) {
  const RegionHandle region = add_local();
  void* d = descriptor_of(region);
  ASSERT_TRUE(table->revocation().begin(region));
  EXPECT_EQ(check(d), Denial::revoking);
  ASSERT_TRUE(table->revocation().is_quiet(region));
  Result<RegionHandle> again = table->revocation().revive(region);
  ASSERT_TRUE(again);
  EXPECT_EQ(check(d), Denial::none);
  EXPECT_EQ(descriptor_of(*again), d);
}

TEST_F(Descriptor, what_nobody_handed_out_is_refused) {
  const RegionHandle region = add_local();
  char on_stack = 0;
  const auto real = reinterpret_cast<uint64_t>(descriptor_of(region));
  for (uint64_t made_up :
       {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, real + 1, real - 1, real ^ uint64_t{1} << 63,
        real + (uint64_t{1} << kDescriptorIndexBits), real & kDescriptorIndexMask,
        reinterpret_cast<uint64_t>(&on_stack), reinterpret_cast<uint64_t>(table.get())}) {
    EXPECT_NE(check(reinterpret_cast<void*>(made_up)), Denial::none) << made_up;
  }
  std::mt19937_64 random(4711);
  for (int i = 0; i < 1'000'000; ++i) {
    const uint64_t made_up = random();
    if (made_up != real) {
      ASSERT_NE(check(reinterpret_cast<void*>(made_up)), Denial::none) << made_up;
    }
  }
}

TEST_F(Descriptor, the_sentence_says_what_was_wrong_and_what_to_do) {
  void* d = descriptor_of(add_local());
  const auto say = [&](const LocalAsk& ask) {
    return explain_local(table->own_file().layout(), ask,
                         check_local(table->own_file().layout(), ask).denial);
  };
  const std::string far = say({kPd, d, kBase + kLength, 8, Rights::send});
  EXPECT_NE(far.find("4096 bytes at 0x100000"), std::string::npos) << far;
  EXPECT_NE(far.find("does not cover"), std::string::npos) << far;
  const std::string right = say({kPd, d, kBase, 8, Rights::local_read});
  EXPECT_NE(right.find("local read"), std::string::npos) << right;
  EXPECT_NE(right.find("access flags"), std::string::npos) << right;
  const std::string none = say({kPd, &d, kBase, 8, Rights::send});
  EXPECT_NE(none.find("pass the descriptor of a region that is open"), std::string::npos) << none;
  EXPECT_NE(right.find("registered at a place that was not recorded"), std::string::npos) << right;
}

}  // namespace
}  // namespace aperture::protect
