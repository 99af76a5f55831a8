// The domain part of the hints: see hints.hpp. man 3 fi_domain, "DOMAIN ATTRIBUTES".
#include <cstddef>
#include <cstring>

#include "provider/domain.hpp"
#include "provider/header_names.hpp"
#include "provider/hints.hpp"
#include "provider/info_memory.hpp"
#include "provider/mr_mode.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

constexpr int kControlUnified = 3;  // FI_PROGRESS_CONTROL_UNIFIED of libfabric 2.x

void fill_defaults(fi_domain_attr& a, uint64_t caps) {
  a.name = new_text(kDomainName);
  a.domain = first_open_domain();
  a.threading = FI_THREAD_SAFE;
  a.control_progress = FI_PROGRESS_AUTO;
  a.data_progress = FI_PROGRESS_MANUAL;
  a.resource_mgmt = FI_RM_ENABLED;
  a.av_type = FI_AV_UNSPEC;
  a.mr_key_size = kKeyBytes;
  a.cq_data_size = kCqDataBytes;
  a.cq_cnt = kMaxCqs;
  a.ep_cnt = kMaxEndpoints;
  a.tx_ctx_cnt = kMaxEndpoints;
  a.rx_ctx_cnt = kMaxEndpoints;
  a.max_ep_tx_ctx = 1;
  a.max_ep_rx_ctx = 1;
  a.max_ep_stx_ctx = kMaxEndpoints;
  a.max_ep_srx_ctx = kMaxEndpoints;
  a.cntr_cnt = kMaxCounters;
  a.mr_iov_limit = kRegionIovLimit;
  a.caps = caps & kDomainCaps;
  a.max_err_data = kMaxErrorText;
  a.mr_cnt = kMaxRegions;
}

bool domain_at_most(const Matching& m, const char* field, size_t asked, size_t offered) {
  if (asked <= offered) return true;
  return m.refuse("domain_attr->%s %zu is asked for; at most %zu is offered", field, asked,
                  offered);
}

bool match_limits(const Matching& m, const fi_domain_attr& asked, const fi_domain_attr& mine) {
  return domain_at_most(m, "mr_key_size", asked.mr_key_size, mine.mr_key_size) &&
         domain_at_most(m, "cq_data_size", asked.cq_data_size, mine.cq_data_size) &&
         domain_at_most(m, "cq_cnt", asked.cq_cnt, mine.cq_cnt) &&
         domain_at_most(m, "ep_cnt", asked.ep_cnt, mine.ep_cnt) &&
         domain_at_most(m, "tx_ctx_cnt", asked.tx_ctx_cnt, mine.tx_ctx_cnt) &&
         domain_at_most(m, "rx_ctx_cnt", asked.rx_ctx_cnt, mine.rx_ctx_cnt) &&
         domain_at_most(m, "max_ep_tx_ctx", asked.max_ep_tx_ctx, mine.max_ep_tx_ctx) &&
         domain_at_most(m, "max_ep_rx_ctx", asked.max_ep_rx_ctx, mine.max_ep_rx_ctx) &&
         domain_at_most(m, "max_ep_stx_ctx", asked.max_ep_stx_ctx, mine.max_ep_stx_ctx) &&
         domain_at_most(m, "max_ep_srx_ctx", asked.max_ep_srx_ctx, mine.max_ep_srx_ctx) &&
         domain_at_most(m, "cntr_cnt", asked.cntr_cnt, mine.cntr_cnt) &&
         (m.version < kApi15 ||
          domain_at_most(m, "mr_iov_limit", asked.mr_iov_limit, mine.mr_iov_limit));
}

// domain_attr->max_ep_auth_key, of API 1.20: headers of 1.17 end before it.
constexpr size_t kMaxEpAuthKeyAt =
    (offsetof(fi_domain_attr, tclass) + sizeof(uint32_t) + alignof(size_t) - 1) &
    ~(alignof(size_t) - 1);

bool match_max_ep_auth_key(const Matching& m, const fi_domain_attr& asked) {
  if (m.version < kApi120) return true;
  size_t wanted;
  std::memcpy(&wanted, reinterpret_cast<const char*>(&asked) + kMaxEpAuthKeyAt, sizeof wanted);
  return domain_at_most(m, "max_ep_auth_key", wanted, kMaxAvKeys);
}

void offer_av_keys(const Matching& m, fi_domain_attr& mine) {
  if (m.version < kApi120 || m.type != FI_EP_RDM) return;
  constexpr size_t most = kMaxAvKeys;
  std::memcpy(reinterpret_cast<char*>(&mine) + kMaxEpAuthKeyAt, &most, sizeof most);
}

// Fields that API 1.5 brought.
bool match_since_1_5(const Matching& m, const fi_domain_attr& asked, fi_domain_attr& mine) {
  if (m.version < kApi15) return true;
  if (m.type == FI_EP_DGRAM && asked.auth_key_size != 0) {
    return m.refuse(
        "domain_attr->auth_key_size %zu is asked for; datagrams (FI_EP_DGRAM) prove no "
        "authorization key, leave it 0 or ask for FI_EP_RDM",
        asked.auth_key_size);
  }
  if (m.version >= kApi120 && asked.auth_key_size == kAvAuthKey) {
    if (m.type != FI_EP_RDM || asked.auth_key != nullptr) {
      return m.refuse(
          "FI_AV_AUTH_KEY is asked for; keys of address vectors are for FI_EP_RDM, and "
          "domain_attr->auth_key is NULL with them");
    }
  } else if (!domain_at_most(m, "auth_key_size", asked.auth_key_size, kMaxAuthKeyBytes)) {
    return false;
  }
  mine.auth_key_size = asked.auth_key_size;
  mine.auth_key = new_auth_key(asked.auth_key, asked.auth_key_size);
  const uint64_t beyond = asked.caps & ~kDomainCaps;
  if (beyond != 0) {
    return m.refuse(
        "domain_attr->caps asks for %s; offered are FI_LOCAL_COMM, FI_REMOTE_COMM, "
        "FI_AV_USER_ID, FI_SHARED_AV and FI_DIRECTED_RECV",
        cap_name(beyond, m.version));
  }
  mine.caps |= asked.caps;
  return domain_at_most(m, "max_err_data", asked.max_err_data, mine.max_err_data) &&
         domain_at_most(m, "mr_cnt", asked.mr_cnt, mine.mr_cnt) && match_max_ep_auth_key(m, asked);
}

bool match_models(const Matching& m, const fi_domain_attr& asked, fi_domain_attr& mine) {
  if (asked.threading > FI_THREAD_ENDPOINT) {
    return m.refuse("domain_attr->threading %d is none that fi_domain(3) knows", asked.threading);
  }
  if (asked.threading != FI_THREAD_UNSPEC) mine.threading = asked.threading;
  if (static_cast<int>(asked.control_progress) > kControlUnified ||
      asked.data_progress > FI_PROGRESS_MANUAL) {
    return m.refuse("domain_attr progress %d/%d (control/data) is none that fi_domain(3) knows",
                    asked.control_progress, asked.data_progress);
  }
  if (asked.control_progress != FI_PROGRESS_UNSPEC) mine.control_progress = asked.control_progress;
  if (asked.data_progress != FI_PROGRESS_UNSPEC) mine.data_progress = asked.data_progress;
  if (asked.resource_mgmt > FI_RM_ENABLED || asked.av_type > FI_AV_TABLE) {
    return m.refuse("domain_attr->resource_mgmt %d or av_type %d is none that fi_domain(3) knows",
                    asked.resource_mgmt, asked.av_type);
  }
  if (asked.av_type != FI_AV_UNSPEC) mine.av_type = asked.av_type;
  if (m.version >= FI_VERSION(1, 9)) mine.tclass = asked.tclass;  // one class here: the best effort
  return true;
}

}  // namespace

bool match_domain(const Matching& m, fi_info& answer) {
  fi_domain_attr& mine = *answer.domain_attr;
  fill_defaults(mine, answer.caps);
  offer_av_keys(m, mine);
  MrAnswer regions;
  if (!match_mr_mode(m, answer.caps, regions)) return false;
  mine.mr_mode = regions.mr_mode;
  if (regions.local_mr) answer.mode |= kLocalMr;
  if (m.type == FI_EP_RDM) mine.max_ep_tx_ctx = mine.max_ep_rx_ctx = kMaxContexts;
  if ((mine.mr_mode & FI_MR_RAW) != 0) mine.mr_key_size = kRawKeyBytes;
  if (m.hints == nullptr || m.hints->domain_attr == nullptr) return true;
  const fi_domain_attr& asked = *m.hints->domain_attr;
  if (asked.name != nullptr && std::strcmp(asked.name, kDomainName) != 0) {
    return m.refuse("domain \"%s\" is asked for; the only one here is \"%s\"", asked.name,
                    kDomainName);
  }
  if (asked.domain != nullptr) {
    if (!is_open_domain(asked.domain)) {
      return m.refuse(
          "domain_attr->domain is not an open domain of this provider; leave it NULL or "
          "pass one that fi_domain returned");
    }
    mine.domain = asked.domain;
  }
  return match_models(m, asked, mine) && match_limits(m, asked, mine) &&
         match_since_1_5(m, asked, mine);
}

}  // namespace aperture::provider
