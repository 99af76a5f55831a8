// See wording.hpp.
#include "provider/wording.hpp"

namespace aperture::provider {

namespace {

using protect::Denial;
using protect::Rights;

constexpr protect::Wording make() noexcept {
  protect::Wording w;
  w.rules[Denial::wrong_domain] =
      "the key belongs to a region of another domain or authorization key";
  w.remedies[Denial::unknown_key] =
      "send the key that fi_mr_key() returns for the region after it was registered";
  w.remedies[Denial::wrong_domain] =
      "register the memory in the domain of the endpoint that is accessed, and under its "
      "authorization key";
  w.rules[Denial::closed] = "the region of this key has been closed, or its window invalidated";
  w.remedies[Denial::closed] =
      "close the region, or invalidate the window, only after the peer's last access has completed";
  w.rules[Denial::no_window] = "the key is not that of a memory window that peers may invalidate";
  w.remedies[Denial::no_window] = "bind the window to the endpoint that the message goes to";
  w.remedies[Denial::wrong_endpoint] =
      "access it through the endpoint that it is bound to, while that is open; a window that is "
      "bound to a peer, from the connection of that peer that was there at the time";
  w.remedies[Denial::not_enabled] = "call fi_mr_enable() before peers use the key";
  w.remedies[Denial::out_of_range] =
      "give virtual addresses inside the region (FI_MR_VIRT_ADDR is set), or register more";
  w.offset_remedy =
      "give offsets from the start of the region (FI_MR_VIRT_ADDR is not set), or register more";
  w.range_remedy =
      "stay inside the region, by offsets from its start or, where its domain was opened with "
      "FI_MR_VIRT_ADDR, by its virtual addresses; or register more";
  w.remedies[Denial::not_persistent] =
      "register file-backed memory with FI_RMA_PMEM, or ask for no more than delivery";
  w.remedies[Denial::not_verified] = "call fi_mr_refresh() for these pages once they are mapped";

  w.local_remedies[Denial::unknown_key] =
      "pass what fi_mr_desc() returned for a region that is open";
  w.local_remedies[Denial::not_enabled] = "call fi_mr_enable() first";
  w.local_remedies[Denial::wrong_endpoint] = "bind the region to this endpoint with fi_mr_bind()";
  w.local_remedies[Denial::not_verified] = "map the memory and call fi_mr_refresh()";

  w.right_names.set(Rights::send, "FI_SEND");
  w.right_names.set(Rights::recv, "FI_RECV");
  w.right_names.set(Rights::local_write, "FI_READ");
  w.right_names.set(Rights::local_read, "FI_WRITE");
  w.right_names.set(Rights::remote_read, "FI_REMOTE_READ");
  w.right_names.set(Rights::remote_write, "FI_REMOTE_WRITE");
  w.inline_calls[0] = "fi_mr_reg";
  return w;
}

}  // namespace

constinit const protect::Wording kFabricWording = make();

}  // namespace aperture::provider
