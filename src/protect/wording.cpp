// The neutral words: see wording.hpp.
#include "protect/wording.hpp"

namespace aperture::protect {

namespace {

constexpr const char* kNothing = "nothing needs to change";

constexpr Wording make_neutral() noexcept {
  Wording w;
  w.remedies[Denial::unknown_key] = "send the key of the region after it was registered";
  w.remedies[Denial::wrong_domain] =
      "register the memory in the domain of the endpoint that is accessed";
  w.remedies[Denial::closed] = w.remedies[Denial::revoking] =
      "close the region only after the peer's last access has completed";
  w.remedies[Denial::not_enabled] = "enable the region before peers use the key";
  w.remedies[Denial::missing_right] = "add that right to the access flags of the registration";
  w.remedies[Denial::out_of_range] = "give virtual addresses inside the region, or register more";
  w.offset_remedy = "give offsets from the start of the region, or register more";
  w.range_remedy = "stay inside the region, or register more";
  w.remedies[Denial::not_backed] = "map the memory before it is accessed";
  w.remedies[Denial::misaligned] =
      "place the target of atomics at a multiple of the datatype's alignment in C";
  w.remedies[Denial::not_persistent] =
      "register file-backed memory as persistent, or ask for no more than delivery";
  w.remedies[Denial::wrong_endpoint] =
      "access it through the endpoint that it is bound to, while that is open";
  w.remedies[Denial::not_verified] = "refresh the region for these pages once they are mapped";
  w.remedies[Denial::no_window] = "invalidate only windows of type 2, by the key they have now";

  w.local_remedies[Denial::unknown_key] = "pass the descriptor of a region that is open";
  w.local_remedies[Denial::wrong_domain] = "register the buffer in the domain of this endpoint";
  w.local_remedies[Denial::closed] = w.local_remedies[Denial::revoking] =
      "close the region only when no more operations are posted with it";
  w.local_remedies[Denial::not_enabled] = "enable the region first";
  w.local_remedies[Denial::missing_right] =
      "add that right to the access flags of the registration";
  w.local_remedies[Denial::out_of_range] = "register the whole buffer, or pass its own descriptor";
  w.local_remedies[Denial::wrong_endpoint] = "bind the region to this endpoint";
  w.local_remedies[Denial::not_verified] = "map the memory and refresh the region";

  w.right_names.set(Rights::local_read, "local read");
  w.right_names.set(Rights::local_write, "local write");
  w.right_names.set(Rights::remote_read, "remote read");
  w.right_names.set(Rights::remote_write, "remote write");
  w.right_names.set(Rights::remote_atomic, "remote atomic");
  w.right_names.set(Rights::send, "send");
  w.right_names.set(Rights::recv, "receive");
  w.right_names.set(Rights::bind_window, "window binding");
  w.right_names.set(Rights::flush_global, "global flush");
  w.right_names.set(Rights::flush_persistent, "persistent flush");

  using A = WindowAnswer;
  w.window_remedies[A::in_progress] = "wait for the completion of its last bind";
  w.window_remedies[A::wrong_call] = "bind it by the call of its type";
  w.window_remedies[A::other_domain] = "use a queue pair of the window's protection domain";
  w.window_remedies[A::unknown_right] = "ask for remote rights alone";
  w.window_remedies[A::zero_based] = "use a window of type 2, or virtual addresses";
  w.window_remedies[A::no_length] = "invalidate it instead";
  w.window_remedies[A::already_bound] = "invalidate it first";
  w.window_remedies[A::other_number] = "change no more than the low 8 bits of the window's key";
  w.window_remedies[A::no_region] = "keep the region registered for as long as windows need it";
  w.window_remedies[A::region_domain] = "use a region of the window's protection domain";
  w.window_remedies[A::not_bindable] = "register the region so that windows may be bound to it";
  w.window_remedies[A::not_writable] = "register the region with local write";
  w.window_remedies[A::not_persistent] = "register the region for persistent flushes";
  w.window_remedies[A::out_of_range] = "bind it to bytes inside the region";
  w.window_remedies[A::key_in_force] = "carry binds out before 256 of them are announced";
  w.window_remedies[A::no_room] = "close regions or windows that are not needed";
  w.window_remedies[A::not_a_window] = w.window_remedies[A::never_by_key] =
      "invalidate only windows of type 2";
  w.window_remedies[A::not_bound] = "bind it first, and invalidate it once";
  w.window_remedies[A::other_tag] = "invalidate it by the key of its last bind";
  w.window_remedies[A::other_endpoint] = "invalidate it through the queue pair that it is bound to";
  return w;
}

const char* first_of(const char* a, const char* b) noexcept {
  return a != nullptr ? a : b != nullptr ? b : kNothing;
}

}  // namespace

constinit const Wording kNeutralWording = make_neutral();

const char* rule(const Wording& door, Denial denial) noexcept {
  return first_of(door.rules[denial], sentence(denial));
}

const char* remedy(const Wording& door, Denial denial, Rights need,
                   std::optional<bool> zero_based) noexcept {
  if (denial == Denial::out_of_range && !zero_based) {
    return first_of(door.range_remedy, kNeutralWording.range_remedy);
  }
  if (denial == Denial::out_of_range && *zero_based) {
    return first_of(door.offset_remedy, kNeutralWording.offset_remedy);
  }
  if (denial == Denial::missing_right && need != Rights::none) {
    if (const char* own = door.right_remedies.of(need); own != nullptr) return own;
  }
  return first_of(door.remedies[denial], kNeutralWording.remedies[denial]);
}

const char* local_remedy(const Wording& door, Denial denial) noexcept {
  return first_of(door.local_remedies[denial], kNeutralWording.local_remedies[denial]);
}

const char* remedy(const Wording& door, WindowAnswer answer) noexcept {
  return first_of(door.window_remedies[answer], kNeutralWording.window_remedies[answer]);
}

const char* name_of(const Wording& door, Rights right) noexcept {
  return first_of(door.right_names.of(right), kNeutralWording.right_names.of(right));
}

std::string names_of(const Wording& door, Rights rights) {
  std::string out;
  for (size_t bit = 0; bit < TextByRight::kRights; ++bit) {
    const auto right = static_cast<Rights>(uint32_t{1} << bit);
    if (!includes(rights, right)) continue;
    if (!out.empty()) out += " and ";
    out += name_of(door, right);
  }
  return out.empty() ? "nothing" : out;
}

}  // namespace aperture::protect
