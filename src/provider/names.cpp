// See names.hpp.
#include "provider/names.hpp"

#include <strings.h>

#include "base/per_process.hpp"
#include "base/settings.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

// Above whatever libfabric and its other providers have.
constexpr uint32_t kBeforeAllOthers = FI_VERSION(9999, 0);

bool is_same(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

Name name_of(const char* text) {
  Name name;
  name.whole = text;
  const size_t delimiter = name.whole.find(';');
  if (delimiter != std::string::npos) name.core = name.whole.substr(0, delimiter);
  name.registered = delimiter != std::string::npos ? name.whole.substr(delimiter + 1) : name.whole;
  name.version = kBeforeAllOthers;
  return name;
}

}  // namespace

bool Name::is_meant_by(const char* prov_name) const noexcept {
  std::string_view rest(prov_name);
  for (;;) {
    const size_t delimiter = rest.find(';');
    const std::string_view layer = rest.substr(0, delimiter);
    // "^name" is what it shall not be, as utility providers ask of each other
    const bool excluded = !layer.empty() && layer.front() == '^';
    if (excluded ? is_same(layer.substr(1), registered)
                 : !is_same(layer, registered) && !is_same(layer, core)) {
      return false;
    }
    if (delimiter == std::string_view::npos) return true;
    rest.remove_prefix(delimiter + 1);
  }
}

const Name& own_name() noexcept {
  // never destroyed: libfabric keeps the text of it to the end
  static constinit FoundOnce<const Name*> name;
  return *name.get([] {
    return new Name{kProviderName, kProviderName, std::string(), kProviderVersion};
  });
}

const Name* other_name() noexcept {
  static constinit FoundOnce<const Name*> name;
  return name.get([]() -> const Name* {
    const char* text = setting_text("APERTURE_AS");
    return text != nullptr && is_legal_setting("APERTURE_AS", text) ? new Name(name_of(text))
                                                                    : nullptr;
  });
}

}  // namespace aperture::provider
