// fi_getinfo: see info.hpp.
#include "provider/info.hpp"

#include <rdma/fi_errno.h>

#include <array>
#include <atomic>
#include <cinttypes>

#include "base/settings.hpp"
#include "provider/addressing.hpp"
#include "provider/hints.hpp"
#include "provider/info_memory.hpp"
#include "provider/mr_mode.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

// libfabric's own flag for "core providers only", with which rxm and rxd look for something to
// layer on; the same from 1.17 on. We are not for them: Open MPI would take `aperture;ofi_rxm`.
constexpr uint64_t kCoreProvidersOnly = 1ull << 59;

// Flags that a caller may set, and those at the top which libfabric keeps for itself. FI_RESCAN
// came with 2.0; there is nothing to scan here.
constexpr uint64_t kQuestionFlags =
    FI_SOURCE | FI_NUMERICHOST | FI_PROV_ATTR_ONLY | ~uint64_t{0} << 58;
constexpr uint64_t kRescan = 1ull << 40;

InfoPtr blank_info() {
  InfoPtr info(new_part<fi_info>());
  info->tx_attr = new_part<fi_tx_attr>();
  info->rx_attr = new_part<fi_rx_attr>();
  info->ep_attr = new_part<fi_ep_attr>();
  info->domain_attr = new_part<fi_domain_attr>();
  info->fabric_attr = new_part<fi_fabric_attr>();
  return info;
}

void* new_sockaddr(const Address& address, size_t& len) {
  sockaddr_storage sa;
  len = address.to_sockaddr(sa);
  return new_copy(&sa, len);
}

bool match_addresses(const Matching& m, const InfoQuestion& question, fi_info& answer) {
  Endpoints found;
  std::string why;
  if (!find_addresses(question, found, why)) return m.refuse("%s", why.c_str());
  answer.addr_format = found.format;
  answer.src_addr = new_sockaddr(found.source, answer.src_addrlen);
  if (found.dest) answer.dest_addr = new_sockaddr(*found.dest, answer.dest_addrlen);
  return true;
}

// `aperture explain`: whoever asks, the refusal is said, and so is an answer.
bool is_explaining() noexcept {
  return setting_is("APERTURE_EXPLAIN", "1");
}

// Whether somebody who named no provider has been answered, and whether a fabric was opened.
std::atomic<bool> g_answered{false};
std::atomic<bool> g_opened{false};

void say_answer(const fi_info& first, const Name& name) noexcept {
  if (log_level() == LogLevel::off) return;
  for (const fi_info* info = &first; info != nullptr; info = info->next) {
    log_line(LogLevel::info,
             "fi_getinfo: the hints are met by %s of %s with caps 0x%" PRIx64 ", mr_mode 0x%x",
             type_name(info->ep_attr->type), name.whole.c_str(), info->caps,
             static_cast<unsigned>(info->domain_attr->mr_mode));
  }
}

bool names(const fi_info* hints, const Name& name) noexcept {
  return hints != nullptr && hints->fabric_attr != nullptr &&
         hints->fabric_attr->prov_name != nullptr &&
         name.is_meant_by(hints->fabric_attr->prov_name);
}

// The answer for one type of endpoint; null: refused.
InfoPtr offer_type(Matching m, const InfoQuestion& question, fi_ep_type type) {
  m.type = type;
  InfoPtr answer = blank_info();
  if (!match_fabric(m, *answer) || !match_caps(m, *answer)) return nullptr;
  match_prefix(m, *answer);
  if (!match_tx(m, *answer) || !match_rx(m, *answer) || !match_ep(m, *answer) ||
      !match_domain(m, *answer)) {
    return nullptr;
  }
  if ((question.flags & FI_PROV_ATTR_ONLY) == 0) {
    if (!match_addresses(m, question, *answer)) return nullptr;
    if (question.hints != nullptr) answer->handle = question.hints->handle;
  }
  return answer;
}

// The answers for all types that may be meant, reliable ones first.
fi_info* offer_types(Matching m, const InfoQuestion& question, int asked) {
  if (asked == FI_EP_MSG) return offer_type(m, question, FI_EP_MSG).release();
  if (asked == FI_EP_DGRAM) return offer_type(m, question, FI_EP_DGRAM).release();
  Matching quiet = m;  // one sentence is enough where all types are looked at
  quiet.level = LogLevel::debug;
  std::array<InfoPtr, 3> found;  // chained at the end: each is freed by itself until then
  if (asked == FI_EP_UNSPEC) {
    found[2] = offer_type(quiet, question, FI_EP_DGRAM);
    found[1] = offer_type(quiet, question, FI_EP_MSG);
  }
  const bool any = found[1] != nullptr || found[2] != nullptr;
  found[0] = offer_type(any ? quiet : m, question, FI_EP_RDM);
  fi_info* first = nullptr;
  for (size_t i = found.size(); i-- > 0;) {
    if (found[i] == nullptr) continue;
    found[i]->next = first;
    first = found[i].release();
  }
  return first;
}

}  // namespace

int get_info(const InfoQuestion& question, fi_info** info) {
  if (info == nullptr) return -FI_EINVAL;
  *info = nullptr;
  check_settings();
  if ((question.flags & kCoreProvidersOnly) != 0) return -FI_ENODATA;
  const bool explaining = is_explaining();
  Matching m{question.version, question.hints,
             names(question.hints, question.name) || explaining ? LogLevel::warn : LogLevel::info,
             question.name};
  if (std::string why; !parse_mr_mode(setting_text("APERTURE_MR_MODE"), m.demanded_mr_mode, why))
    return refuse(-FI_ENODATA, "fi_getinfo: %s", why.c_str());
  const uint64_t known = kQuestionFlags | (question.version >= FI_VERSION(2, 0) ? kRescan : 0);
  if ((question.flags & ~known) != 0) {
    m.refuse("flags 0x%" PRIx64
             " are asked for; FI_SOURCE, FI_NUMERICHOST and FI_PROV_ATTR_ONLY are offered",
             question.flags & ~known);
    return -FI_EBADFLAGS;
  }
  if ((question.flags & FI_PROV_ATTR_ONLY) != 0) m.hints = nullptr;
  const fi_ep_attr* ep = m.hints != nullptr ? m.hints->ep_attr : nullptr;
  *info = offer_types(m, question, ep != nullptr ? static_cast<int>(ep->type) : FI_EP_UNSPEC);
  if (*info == nullptr) return -FI_ENODATA;
  if (explaining) {
    say_answer(**info, question.name);
    // relaxed: it is looked at as the process ends, by its last thread
    if (!names(question.hints, question.name)) g_answered.store(true, std::memory_order_relaxed);
  }
  return 0;
}

void note_opened() noexcept {
  // relaxed: as above
  g_opened.store(true, std::memory_order_relaxed);
}

void explain_what_was_left() noexcept {
  // relaxed: no other thread is left
  if (!g_answered.exchange(false, std::memory_order_relaxed) ||
      g_opened.load(std::memory_order_relaxed) || other_name() != nullptr) {
    return;
  }
  APERTURE_WARN(
      "fi_getinfo answered with the provider %s, and no fabric of it was opened: a program that "
      "knows providers by name and has not this one among them is run with --as, and a name that "
      "it knows",
      own_name().whole.c_str());
}

}  // namespace aperture::provider
