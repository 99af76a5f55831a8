// See wording.hpp.
#include "verbs/wording.hpp"

namespace aperture::verbs {

namespace {

using protect::Denial;
using protect::Rights;
using protect::WindowAnswer;
using protect::Wording;

// Of remote accesses, and of the buffers of a WR by their lkeys.
constexpr void put_accesses(Wording& w) noexcept {
  w.rules[Denial::unknown_key] = "no MR and no bound memory window has this key";
  w.rules[Denial::wrong_domain] = "the key belongs to another protection domain";
  w.rules[Denial::closed] = "the MR of this key was deregistered, or its memory window invalidated";
  w.rules[Denial::revoking] =
      "the MR of this key is being deregistered, or its memory window bound anew";
  w.rules[Denial::not_enabled] = "the bind of this memory window has not completed";
  w.rules[Denial::missing_right] = "the MR or memory window does not grant this right";
  w.rules[Denial::out_of_range] = "the range leaves the MR or memory window";
  w.rules[Denial::misaligned] = "the target of an atomic is not a multiple of 8 bytes";
  w.rules[Denial::wrong_endpoint] = "the memory window of this key is bound to another queue pair";

  w.remedies[Denial::unknown_key] =
      "use the lkey or rkey of an MR that ibv_reg_mr() returned and that still is registered, or "
      "the rkey of a memory window that is bound";
  w.remedies[Denial::wrong_domain] =
      "call ibv_reg_mr() on the PD that the accessed queue pair was created with";
  w.remedies[Denial::closed] = w.remedies[Denial::revoking] =
      "call ibv_dereg_mr(), ibv_rereg_mr(), ibv_bind_mw() or IBV_WR_LOCAL_INV only after the "
      "peer's last access has completed, and send it the new rkey";
  w.remedies[Denial::not_enabled] =
      "let the peer use the new rkey only after the completion of the bind (IBV_WC_BIND_MW)";
  w.remedies[Denial::missing_right] =
      "add that right to the access flags of ibv_reg_mr() or ibv_rereg_mr()";
  w.right_remedies.set(Rights::local_write,
                       "add IBV_ACCESS_LOCAL_WRITE to the access flags of ibv_reg_mr()");
  w.right_remedies.set(Rights::recv,
                       "add IBV_ACCESS_LOCAL_WRITE to the access flags of ibv_reg_mr()");
  w.right_remedies.set(Rights::remote_read,
                       "add IBV_ACCESS_REMOTE_READ to the access flags of ibv_reg_mr() or "
                       "ibv_rereg_mr(), or bind a memory window with it (ibv_bind_mw(), "
                       "IBV_WR_BIND_MW)");
  w.right_remedies.set(Rights::remote_write,
                       "add IBV_ACCESS_REMOTE_WRITE (and IBV_ACCESS_LOCAL_WRITE) to the access "
                       "flags of ibv_reg_mr() or ibv_rereg_mr(), or bind a memory window with it "
                       "(ibv_bind_mw(), IBV_WR_BIND_MW)");
  w.right_remedies.set(Rights::remote_atomic,
                       "add IBV_ACCESS_REMOTE_ATOMIC (and IBV_ACCESS_LOCAL_WRITE) to the access "
                       "flags of ibv_reg_mr() or ibv_rereg_mr(), or bind a memory window with it "
                       "(ibv_bind_mw(), IBV_WR_BIND_MW)");
  w.right_remedies.set(Rights::flush_global,
                       "add IBV_ACCESS_FLUSH_GLOBAL to the access flags of ibv_reg_mr() or "
                       "ibv_rereg_mr(), or bind a memory window with it");
  w.right_remedies.set(
      Rights::flush_persistent,
      "add IBV_ACCESS_FLUSH_PERSISTENT to the access flags of ibv_reg_mr(), over a "
      "shared mapping of a file");
  w.range_remedy = w.remedies[Denial::out_of_range] =
      "give addresses inside the MR (from the addr of ibv_reg_mr() or the iova of "
      "ibv_reg_mr_iova() on) or inside the memory window, or register or bind more";
  w.offset_remedy =
      "give offsets from the start of the MR or memory window (IBV_ACCESS_ZERO_BASED is set, or "
      "the iova is 0), or register or bind more";
  w.remedies[Denial::not_backed] = "keep the memory mapped until ibv_dereg_mr()";
  w.remedies[Denial::misaligned] = "place the target of atomics at a multiple of 8 bytes";
  w.remedies[Denial::wrong_endpoint] =
      "use the rkey through the queue pair whose IBV_WR_BIND_MW bound the memory window, or bind "
      "one on this queue pair";
  w.remedies[Denial::no_window] =
      "give IBV_WR_LOCAL_INV and IBV_WR_SEND_WITH_INV the rkey of a memory window of type 2 that "
      "is bound to this queue pair (IBV_WR_BIND_MW)";

  w.right_names.set(Rights::local_write, "IBV_ACCESS_LOCAL_WRITE");
  w.right_names.set(Rights::remote_read, "IBV_ACCESS_REMOTE_READ");
  w.right_names.set(Rights::remote_write, "IBV_ACCESS_REMOTE_WRITE");
  w.right_names.set(Rights::remote_atomic, "IBV_ACCESS_REMOTE_ATOMIC");
  w.right_names.set(Rights::bind_window, "IBV_ACCESS_MW_BIND");
  w.right_names.set(Rights::flush_global, "IBV_ACCESS_FLUSH_GLOBAL");
  w.right_names.set(Rights::flush_persistent, "IBV_ACCESS_FLUSH_PERSISTENT");
}

constexpr void put_windows(Wording& w) noexcept {
  auto& to = w.window_remedies;
  to[WindowAnswer::in_progress] =
      "wait for the completion of the last ibv_bind_mw(), and bind nothing after ibv_dealloc_mw()";
  to[WindowAnswer::wrong_call] =
      "bind IBV_MW_TYPE_1 by ibv_bind_mw(), and IBV_MW_TYPE_2 by IBV_WR_BIND_MW through "
      "ibv_post_send()";
  to[WindowAnswer::other_domain] = "use a queue pair of the PD that ibv_alloc_mw() was called with";
  to[WindowAnswer::unknown_right] =
      "ask for IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC, "
      "IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT and IBV_ACCESS_ZERO_BASED alone";
  to[WindowAnswer::zero_based] = "use IBV_MW_TYPE_2, or leave IBV_ACCESS_ZERO_BASED out";
  to[WindowAnswer::no_length] = "post IBV_WR_LOCAL_INV to take an IBV_MW_TYPE_2 window away";
  to[WindowAnswer::already_bound] =
      "post IBV_WR_LOCAL_INV, or let the peer send IBV_WR_SEND_WITH_INV, before IBV_WR_BIND_MW";
  to[WindowAnswer::other_number] =
      "give bind_mw.rkey as ibv_inc_rkey() makes it of the window's last rkey";
  to[WindowAnswer::no_region] =
      "bind by the lkey that the MR has now, and call ibv_dereg_mr() only after the window was "
      "unbound";
  to[WindowAnswer::region_domain] = "call ibv_reg_mr() and ibv_alloc_mw() with the same PD";
  to[WindowAnswer::not_bindable] = "add IBV_ACCESS_MW_BIND to the access flags of ibv_reg_mr()";
  to[WindowAnswer::not_writable] = "add IBV_ACCESS_LOCAL_WRITE to the access flags of ibv_reg_mr()";
  to[WindowAnswer::not_persistent] =
      "add IBV_ACCESS_FLUSH_PERSISTENT to the access flags of ibv_reg_mr()";
  to[WindowAnswer::out_of_range] =
      "give bind_info.addr and bind_info.length inside the MR, as its own addresses count";
  to[WindowAnswer::key_in_force] =
      "poll the completions of ibv_bind_mw() before it is called 256 times";
  to[WindowAnswer::no_room] = "call ibv_dereg_mr() or ibv_dealloc_mw() on what is not needed";
  to[WindowAnswer::not_a_window] = to[WindowAnswer::never_by_key] =
      "give IBV_WR_LOCAL_INV and IBV_WR_SEND_WITH_INV the rkey of a memory window of type 2; take "
      "an MR away by ibv_dereg_mr(), and a window of type 1 by ibv_bind_mw() with length 0";
  to[WindowAnswer::not_bound] = "post IBV_WR_BIND_MW first, and invalidate the window once";
  to[WindowAnswer::other_tag] = "give the rkey of the window's last IBV_WR_BIND_MW";
  to[WindowAnswer::other_endpoint] =
      "invalidate the window on the queue pair that it is bound to, or from that one's peer";
}

constexpr Wording make() noexcept {
  Wording w;
  put_accesses(w);
  put_windows(w);
  w.inline_calls[0] = "__ibv_reg_mr";
  w.inline_calls[1] = "ibv_bind_mw";
  w.inline_calls[2] = "ibv_post_send";
  return w;
}

}  // namespace

constinit const Wording kVerbsWording = make();

}  // namespace aperture::verbs
