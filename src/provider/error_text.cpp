// Texts of errors: see error_text.hpp.
#include "provider/error_text.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/guarded_copy.hpp"
#include "protect/rights.hpp"
#include "provider/wording.hpp"

namespace aperture::provider {

namespace {
constexpr int kErrcBase = 256;  // above every Denial
}

int provider_code(uint32_t denial, Errc err) noexcept {
  return denial != 0 ? static_cast<int>(denial) : kErrcBase + static_cast<int>(err);
}

size_t copy_text(const std::string& text, void* to, size_t size) noexcept {
  if (text.empty() || to == nullptr || size == 0) return 0;
  const size_t n = std::min(text.size(), size - 1);
  if (!guarded_copy(to, text.data(), n)) return 0;
  return guarded_copy(static_cast<char*>(to) + n, "", 1) ? n + 1 : 0;
}

const char* error_text(int prov_errno, const void* err_data, char* buf, size_t len) noexcept {
  const char* text = "no provider error code: see err";
  if (err_data != nullptr && *static_cast<const char*>(err_data) != '\0') {
    text = static_cast<const char*>(err_data);
  } else if (prov_errno >= kErrcBase && prov_errno <= kErrcBase + static_cast<int>(Errc::io)) {
    text = describe(static_cast<Errc>(prov_errno - kErrcBase));
  } else if (prov_errno > 0 && prov_errno < protect::kDenials) {
    text = protect::rule(kFabricWording, static_cast<protect::Denial>(prov_errno));
  }
  if (buf == nullptr || len == 0) return text;
  std::snprintf(buf, len, "%s", text);
  return buf;
}

}  // namespace aperture::provider
