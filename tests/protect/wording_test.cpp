// Refusals in the words of the door that was used: libfabric's, libibverbs', or neither's.
#include "protect/wording.hpp"

#include "protect/descriptor.hpp"
#include "protect/window_fixture.hpp"
#include "provider/wording.hpp"
#include "verbs/wording.hpp"

namespace aperture::protect {
namespace {

using provider::kFabricWording;
using verbs::kVerbsWording;

constexpr const Wording* kDoors[] = {&kNeutralWording, &kFabricWording, &kVerbsWording};
constexpr Rights kEach[] = {Rights::local_read,    Rights::local_write,
                            Rights::remote_read,   Rights::remote_write,
                            Rights::remote_atomic, Rights::send,
                            Rights::recv,          Rights::bind_window,
                            Rights::flush_global,  Rights::flush_persistent};

bool is_fabric(const std::string& text) {
  return text.find("fi_") != std::string::npos || text.find("FI_") != std::string::npos;
}
bool is_verbs(const std::string& text) {
  return text.find("ibv_") != std::string::npos || text.find("IBV_") != std::string::npos;
}

// Everything that a door can say.
std::string all_of(const Wording& door) {
  std::string all;
  for (uint8_t d = 0; d < kDenials; ++d) {
    const auto denial = static_cast<Denial>(d);
    all += rule(door, denial);
    all += local_remedy(door, denial);
    for (const Rights right : kEach) {
      all += remedy(door, denial, right, false);
      all += remedy(door, denial, right, true);
      all += remedy(door, denial, right, std::nullopt);
    }
  }
  for (const Rights right : kEach) all += name_of(door, right);
  for (uint8_t a = 0; a < kWindowAnswers; ++a) all += remedy(door, static_cast<WindowAnswer>(a));
  return all;
}

TEST(Wording, each_door_speaks_its_own_language) {
  EXPECT_FALSE(is_fabric(all_of(kNeutralWording)) || is_verbs(all_of(kNeutralWording)));
  EXPECT_TRUE(is_fabric(all_of(kFabricWording)));
  EXPECT_FALSE(is_verbs(all_of(kFabricWording)));
  EXPECT_TRUE(is_verbs(all_of(kVerbsWording)));
  EXPECT_FALSE(is_fabric(all_of(kVerbsWording)));
}

TEST(Wording, every_refusal_has_a_remedy_at_every_door) {
  const std::string nothing = "nothing needs to change";
  for (const Wording* door : kDoors) {
    for (uint8_t d = 1; d < kDenials; ++d) {
      for (const bool zero_based : {false, true}) {
        EXPECT_NE(remedy(*door, static_cast<Denial>(d), Rights::remote_write, zero_based), nothing);
      }
      EXPECT_NE(rule(*door, static_cast<Denial>(d)), std::string());
    }
    for (int a = static_cast<int>(WindowAnswer::in_progress); a < kWindowAnswers; ++a) {
      EXPECT_NE(remedy(*door, static_cast<WindowAnswer>(a)), nothing) << a;
    }
    EXPECT_EQ(remedy(*door, Denial::none, Rights::none, false), nothing);
    EXPECT_EQ(remedy(*door, WindowAnswer::done), nothing);
    // any byte may have come from a peer
    EXPECT_EQ(remedy(*door, static_cast<Denial>(200), Rights::none, false), nothing);
    EXPECT_EQ(local_remedy(*door, static_cast<Denial>(kDenials)), nothing);
    EXPECT_NE(rule(*door, static_cast<Denial>(255)), std::string());
    EXPECT_EQ(remedy(*door, static_cast<WindowAnswer>(kWindowAnswers)), nothing);
  }
}

TEST(Wording, what_a_door_leaves_out_is_said_in_the_fields_words) {
  const Wording silent;
  EXPECT_EQ(all_of(silent), all_of(kNeutralWording));
}

TEST(Wording, every_window_remedy_of_verbs_is_its_own) {
  for (int a = static_cast<int>(WindowAnswer::in_progress); a < kWindowAnswers; ++a) {
    const auto answer = static_cast<WindowAnswer>(a);
    EXPECT_STRNE(remedy(kVerbsWording, answer), remedy(kNeutralWording, answer)) << a;
  }
}

class WordingDoors : public WindowTest {
 protected:
  static void expect_part(const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
};

TEST_F(WordingDoors, the_owner_explains_in_the_words_of_the_asker) {
  const RegionHandle r = add(spec_of(kBase, kLength, Rights::remote_read));
  const AccessAsk write = ask_of(r.key);
  expect_part(explain(table->access(), write, denial(write), kVerbsWording),
              "add IBV_ACCESS_REMOTE_WRITE");
  expect_part(explain(table->access(), write, denial(write), kFabricWording), "access flags");
  expect_part(explain(table->access(), write, denial(write)), "access flags");
  const AccessAsk far = ask_of(r.key, kBase + kLength, 8, Rights::remote_read);
  expect_part(explain(table->access(), far, denial(far), kFabricWording), "FI_MR_VIRT_ADDR is set");
  expect_part(explain(table->access(), far, denial(far), kVerbsWording), "ibv_reg_mr_iova()");
  const AccessAsk past = ask_of(add(spec_with({.zero_based = true})).key, kLength, 8);
  expect_part(explain(table->access(), past, denial(past), kFabricWording),
              "FI_MR_VIRT_ADDR is not set");
  expect_part(explain(table->access(), past, denial(past), kVerbsWording), "IBV_ACCESS_ZERO_BASED");
}

TEST_F(WordingDoors, so_does_the_accessor) {
  const std::unique_ptr<PeerKeyView> peer = peer_view();
  ASSERT_TRUE(peer);
  const RegionHandle r = add(spec_of(kBase, kLength, Rights::remote_read));
  const AccessAsk ask = ask_of(r.key);
  expect_part(peer->explain(::getpid(), ask, Denial::missing_right, kVerbsWording),
              "IBV_ACCESS_REMOTE_WRITE");
  EXPECT_FALSE(is_verbs(peer->explain(::getpid(), ask, Denial::missing_right)));
  expect_part(explain_unseen(Denial::missing_right, Rights::remote_atomic, kVerbsWording),
              "IBV_ACCESS_REMOTE_ATOMIC");
  expect_part(explain_unseen(Denial::missing_right), "add that right to the access flags");
  expect_part(explain_unseen(Denial::missing_right, Rights::none, kVerbsWording),
              "add that right to the access flags of ibv_reg_mr()");
  expect_part(explain_unseen(Denial::not_enabled, Rights::remote_write, kFabricWording),
              "fi_mr_enable()");
}

// Only the owner knows the iova of a region: the accessor must not reckon with its address.
TEST_F(WordingDoors, the_accessor_does_not_reckon_where_an_origin_is_the_owners) {
  const std::unique_ptr<PeerKeyView> peer = peer_view();
  ASSERT_TRUE(peer);
  const AccessAsk ask = ask_of(add(spec_with({.origin = 0x7000'0000'0000})).key, kBase, 8);
  const std::string text = peer->explain(::getpid(), ask, Denial::out_of_range, kVerbsWording);
  expect_part(text, "count from where their owner has chosen");
  EXPECT_EQ(text.find("past its end"), std::string::npos);
  expect_part(explain(table->access(), ask, Denial::out_of_range, kVerbsWording), "before it");
}

// Who sees nothing of the region does not know how peers count in it.
TEST_F(WordingDoors, an_unseen_region_is_not_said_to_have_virtual_addresses) {
  const std::string text =
      explain_unseen(Denial::out_of_range, Rights::remote_write, kFabricWording);
  EXPECT_EQ(text.find("is set"), std::string::npos) << text;
  expect_part(text, "stay inside the region, by offsets");
  expect_part(explain_unseen(Denial::out_of_range, Rights::remote_write, kVerbsWording), "the MR");
}

TEST_F(WordingDoors, libfabric_names_its_calls_for_local_buffers) {
  const RegionHandle r = add(spec_of(kBase, kLength, Rights::send));
  const LocalAsk ask{kPd, descriptor_of(r), kBase, 8, Rights::local_read, 0};
  const std::string right =
      explain_local(table->own_file().layout(), ask, Denial::missing_right, kFabricWording);
  expect_part(right, "FI_WRITE");
  expect_part(right, "access flags");
  expect_part(right, "for FI_SEND, registered");
  EXPECT_EQ(right.find("local"), std::string::npos) << right;
  const LocalAsk made_up{kPd, &ask, kBase, 8, Rights::send, 0};
  expect_part(
      explain_local(table->own_file().layout(), made_up, Denial::unknown_key, kFabricWording),
      "fi_mr_desc()");
}

TEST_F(WordingDoors, windows_say_what_was_asked_and_what_the_region_has) {
  use(WindowType::type_2b);
  WindowBind bind = good();
  bind.addr = kBase + kLength;
  const std::string text = explain(*window, bind, window->bind(bind), kVerbsWording);
  for (const char* part : {"for remote write to 0x101000..0x1017ff (2048 bytes) refused",
                           "leaves the memory region", "0x100000..0x100fff (4096 bytes)",
                           "local write and window binding", "to make it legal, give bind_info"}) {
    expect_part(text, part);
  }
  bind.region = nullptr;
  expect_part(explain(*window, bind, window->bind(bind)), "no memory region has that key any more");
  expect_part(explain_invalidation(0x12345678, WindowAnswer::not_a_window, kVerbsWording),
              "invalidation of key 0x12345678 refused: no memory window has this key");
}

TEST_F(WordingDoors, a_window_of_another_queue_pair_is_called_one) {
  use(WindowType::type_2b);
  AccessAsk ask = ask_with({.key = bind_now(), .addr = kBase + 1024, .through = kOtherQp});
  const std::string text = explain(table->access(), ask, denial(ask), kVerbsWording);
  expect_part(text, "the memory window of this key is bound to another queue pair");
  expect_part(text, "bound to endpoint 21 while endpoint 22 was accessed");
  expect_part(text, "IBV_WR_BIND_MW");
}

}  // namespace
}  // namespace aperture::protect
