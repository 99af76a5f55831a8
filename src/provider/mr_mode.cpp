// Registration modes: see mr_mode.hpp.
#include "provider/mr_mode.hpp"

#include <rdma/fi_domain.h>

#include <string_view>

#include "base/no_throw.hpp"
#include "base/settings.hpp"
#include "provider/header_names.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

struct MrWord {
  std::string_view word;  // of APERTURE_MR_MODE
  int bit;
  const char* name;
};
constexpr MrWord kWords[] = {
    {"local", FI_MR_LOCAL, "FI_MR_LOCAL"},
    {"raw", FI_MR_RAW, "FI_MR_RAW"},
    {"virt_addr", FI_MR_VIRT_ADDR, "FI_MR_VIRT_ADDR"},
    {"allocated", FI_MR_ALLOCATED, "FI_MR_ALLOCATED"},
    {"prov_key", FI_MR_PROV_KEY, "FI_MR_PROV_KEY"},
    {"mmu_notify", FI_MR_MMU_NOTIFY, "FI_MR_MMU_NOTIFY"},
    {"rma_event", FI_MR_RMA_EVENT, "FI_MR_RMA_EVENT"},
    {"endpoint", FI_MR_ENDPOINT, "FI_MR_ENDPOINT"},
    {"hmem", FI_MR_HMEM, "FI_MR_HMEM"},
};
constexpr int kNineBits = FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
                          FI_MR_PROV_KEY | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT |
                          FI_MR_HMEM;
constexpr int kBasicBits = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
constexpr int kVerbsBits = kBasicBits | FI_MR_LOCAL;
// Beside FI_MR_LOCAL, in what is demanded: of those that do not offer it nothing is.
constexpr int kLocalByCache = 1 << 30;
constexpr int kOldModes = kMrModeBasic | kMrModeScalable;
constexpr int kKnownBits = kNineBits | kOldModes | FI_MR_COLLECTIVE;
static_assert((kKnownBits & kLocalByCache) == 0);
// Bits that concern only the targets of remote access.
constexpr int kTargetBits = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;

constexpr uint32_t kApi111 = FI_VERSION(1, 11);

bool is_target(uint64_t caps) noexcept {
  return (caps & (FI_RMA | FI_ATOMIC)) != 0 && (caps & (FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0;
}

// What of the demanded bits such an application has to obey.
int that_matter(int demanded, uint64_t caps) noexcept {
  if ((caps & (FI_SEND | FI_RECV | FI_READ | FI_WRITE)) == 0) demanded &= ~FI_MR_LOCAL;
  if ((caps & FI_HMEM) == 0) demanded &= ~FI_MR_HMEM;
  if (is_target(caps)) return demanded;
  // without remote access, regions are there for local buffers only, if for anything
  return (demanded & (FI_MR_LOCAL | FI_MR_HMEM)) != 0 ? demanded & ~kTargetBits : 0;
}

std::string names_of(int bits) {
  std::string out;
  for (const MrWord& w : kWords) {
    if ((bits & w.bit) == 0) continue;
    if (!out.empty()) out += '|';
    out += w.name;
  }
  return out;
}

// One call's question: what the hints offer, and what has to be met.
struct Offer {
  const Matching& m;
  bool stated = false;         // hints with a domain_attr; else the application does not care
  bool no_hints = false;       // nor about fi_info's mode
  int mr_mode = 0;             // offered
  bool mode_local_mr = false;  // FI_LOCAL_MR in the mode of the hints
  int demanded = 0;            // as far as it matters
  bool local() const noexcept { return (demanded & FI_MR_LOCAL) != 0; }
};

bool refuse_missing(const Offer& offer, int missing) {
  const bool local = (missing & FI_MR_LOCAL) != 0;
  return offer.m.refuse(
      "APERTURE_MR_MODE demands %s, which the hints (mr_mode 0x%x) do not offer; follow what "
      "fi_mr(3) says of it and set it in domain_attr->mr_mode%s, or take it out of "
      "APERTURE_MR_MODE",
      names_of(missing).c_str(), static_cast<unsigned>(offer.mr_mode),
      local ? " (FI_MR_LOCAL: or FI_LOCAL_MR in hints->mode with mr_mode 0 or FI_MR_BASIC)" : "");
}

// A demand for FI_MR_LOCAL that mr_mode cannot carry: the mode bit of before 1.5.
bool meet_by_mode_bit(const Offer& offer, MrAnswer& answer) {
  if (!offer.local()) return true;
  if (!offer.mode_local_mr && !offer.no_hints) return refuse_missing(offer, FI_MR_LOCAL);
  answer.local_mr = true;
  return true;
}

// FI_MR_BASIC or FI_MR_SCALABLE is asked for: it is the answer, or there is none.
bool match_old_mode(const Offer& offer, MrAnswer& answer) {
  const bool basic = (offer.mr_mode & kMrModeBasic) != 0;
  const bool paired = offer.mr_mode == (kMrModeBasic | FI_MR_LOCAL);
  if (offer.mr_mode != kMrModeBasic && offer.mr_mode != kMrModeScalable &&
      !(paired && offer.m.version < kApi111)) {
    return offer.m.refuse(
        "mr_mode 0x%x pairs FI_MR_BASIC or FI_MR_SCALABLE with other bits; set one of the two "
        "alone, or only the newer bits%s",
        static_cast<unsigned>(offer.mr_mode),
        paired ? " (FI_MR_BASIC with FI_MR_LOCAL was legal before API 1.11)" : "");
  }
  const int missing = offer.demanded & ~FI_MR_LOCAL & ~(basic ? kBasicBits : 0);
  if (missing != 0) return refuse_missing(offer, missing);
  answer.mr_mode = basic ? kMrModeBasic : kMrModeScalable;
  if (paired) {
    answer.mr_mode |= offer.demanded & FI_MR_LOCAL;
    return true;
  }
  return meet_by_mode_bit(offer, answer);
}

// Before 1.5 there is nothing but the two, and without a choice it is ours.
bool match_before_1_5(const Offer& offer, MrAnswer& answer) {
  if (offer.mr_mode != kMrModeUnspec) {
    return offer.m.refuse(
        "mr_mode 0x%x is asked for with API %u.%u, which knows only FI_MR_BASIC and "
        "FI_MR_SCALABLE; ask for API 1.5 or newer",
        static_cast<unsigned>(offer.mr_mode), FI_MAJOR(offer.m.version), FI_MINOR(offer.m.version));
  }
  const int others = offer.demanded & ~FI_MR_LOCAL;
  if ((others & ~kBasicBits) != 0) return refuse_missing(offer, others & ~kBasicBits);
  answer.mr_mode = others != 0 ? kMrModeBasic : kMrModeScalable;
  return meet_by_mode_bit(offer, answer);
}

bool match_bits(const Offer& offer, MrAnswer& answer) {
  answer.mr_mode = offer.demanded;
  if (!offer.stated) return true;
  // the mode bit counts where no newer bit is set (fi_getinfo(3), FI_LOCAL_MR)
  if (offer.local() && offer.mr_mode == kMrModeUnspec && offer.mode_local_mr) {
    answer.local_mr = true;
    answer.mr_mode &= ~FI_MR_LOCAL;
  }
  const int missing = answer.mr_mode & ~offer.mr_mode;
  return missing == 0 || refuse_missing(offer, missing);
}

bool check_offered_bits(const Offer& offer) {
  // "all but these" offers whatever there may ever be; one odd bit is a slip
  const int unknown = offer.mr_mode & ~kKnownBits;
  if (unknown == ~kKnownBits) return true;
  if (unknown != 0) {
    return offer.m.refuse("mr_mode bits 0x%x are none that fi_mr(3) knows; clear them",
                          static_cast<unsigned>(unknown));
  }
  if ((offer.mr_mode & FI_MR_HMEM) != 0 && offer.m.version < kApiHmem) {
    return offer.m.refuse(
        "mr_mode has FI_MR_HMEM, which API %u.%u does not know; it came with 1.10: ask for that or "
        "newer, or clear it",
        FI_MAJOR(offer.m.version), FI_MINOR(offer.m.version));
  }
  return true;
}

// FI_MR_LOCAL, in whichever way this version has it. Who states nothing takes what it is told.
bool offers_local(const Offer& offer) noexcept {
  if (offer.no_hints || offer.mode_local_mr || (offer.mr_mode & FI_MR_LOCAL) != 0) return true;
  return !offer.stated && offer.m.version >= kApi15;
}

// FI_LOCAL_MR means something where mr_mode says nothing newer.
bool means_local(const fi_info& info) noexcept {
  const int mode = info.domain_attr->mr_mode;
  if ((mode & FI_MR_LOCAL) != 0) return true;
  return (info.mode & kLocalMr) != 0 && (mode & ~kOldModes) == 0;
}

std::string_view trimmed(std::string_view word) noexcept {
  while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
  while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
  return word;
}

int bits_of(std::string_view word) noexcept {
  if (word == "verbs") return kVerbsBits;
  if (word == "local_cache") return FI_MR_LOCAL | kLocalByCache;
  for (const MrWord& w : kWords) {
    if (w.word == word) return w.bit;
  }
  return 0;
}

// The setting as it is now demands all of these.
bool demands(int wanted) noexcept {
  int bits = 0;
  const Status read = no_throw([&]() -> Status {
    std::string why;
    return parse_mr_mode(setting_text("APERTURE_MR_MODE"), bits, why) ? Status() : Errc::invalid;
  });
  return read.ok() && (bits & wanted) == wanted;
}

}  // namespace

bool parse_mr_mode(const char* text, int& bits, std::string& why) {
  bits = 0;
  std::string_view rest = trimmed(text != nullptr ? text : "");
  if (rest.empty() || rest == "none") return true;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view word = trimmed(rest.substr(0, comma));
    if (more) rest.remove_prefix(comma + 1);
    const int found = bits_of(word);
    if (found == 0) {
      why = "APERTURE_MR_MODE has '" + std::string(word) + "', which is no word of it; there are";
      for (const MrWord& w : kWords) why += ' ' + std::string(w.word) + ',';
      why +=
          " local_cache (local, and a cache for programs that do not offer it), verbs "
          "(virt_addr,allocated,prov_key,local) and, alone, none";
      return false;
    }
    bits |= found;
  }
  return true;
}

bool demands_verbs() noexcept {
  return demands(kVerbsBits);
}

bool match_mr_mode(const Matching& m, uint64_t caps, MrAnswer& answer) {
  Offer offer{.m = m};
  offer.no_hints = m.hints == nullptr;
  offer.stated = !offer.no_hints && m.hints->domain_attr != nullptr;
  offer.mr_mode = offer.stated ? m.hints->domain_attr->mr_mode : kMrModeUnspec;
  offer.mode_local_mr = !offer.no_hints && (m.hints->mode & kLocalMr) != 0;
  int demanded = m.demanded_mr_mode;
  if ((demanded & kLocalByCache) != 0) {
    demanded &= offers_local(offer) ? ~kLocalByCache : ~(kLocalByCache | FI_MR_LOCAL);
  }
  offer.demanded = that_matter(demanded, caps);
  if (!check_offered_bits(offer)) return false;
  if ((offer.mr_mode & kOldModes) != 0) return match_old_mode(offer, answer);
  return m.version < kApi15 ? match_before_1_5(offer, answer) : match_bits(offer, answer);
}

bool rules_of(const fi_info& info, uint32_t api_version, RegionRules& out) noexcept {
  int mode = info.domain_attr->mr_mode;
  if ((mode & kOldModes) != 0) {
    const bool paired = mode == (kMrModeBasic | FI_MR_LOCAL) && api_version < kApi111;
    if (mode != kMrModeBasic && mode != kMrModeScalable && !paired) return false;
    mode = (mode & kMrModeBasic) != 0 ? kBasicBits : 0;
  }
  if ((mode & ~kNineBits) != 0) return false;
  out.virtual_addresses = (mode & FI_MR_VIRT_ADDR) != 0;
  out.provider_keys = (mode & FI_MR_PROV_KEY) != 0;
  out.must_be_mapped = (mode & FI_MR_ALLOCATED) != 0;
  out.raw_keys = (mode & FI_MR_RAW) != 0;
  out.mmu_notify = (mode & FI_MR_MMU_NOTIFY) != 0;
  out.rma_event = (mode & FI_MR_RMA_EVENT) != 0;
  out.per_endpoint = (mode & FI_MR_ENDPOINT) != 0;
  out.hmem = (info.caps & FI_HMEM) != 0 && api_version >= kApiHmem;
  out.described_devices = (mode & FI_MR_HMEM) != 0;
  const bool are_read = (mode & FI_MR_HMEM) != 0 || api_version >= kApi122;
  if (means_local(info)) {
    out.descriptors = DescriptorRule::required;
  } else if (demands(kLocalByCache)) {
    out.descriptors = are_read ? DescriptorRule::own_or_valid : DescriptorRule::own;
  } else {
    out.descriptors = are_read ? DescriptorRule::valid_or_null : DescriptorRule::ignored;
  }
  return true;
}

}  // namespace aperture::provider
