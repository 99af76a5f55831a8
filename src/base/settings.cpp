// The table of settings, and what is said of wrong ones: see settings.hpp.
#include "base/settings.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/fault_plan.hpp"
#include "base/interfaces.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"
#include "base/spelling.hpp"
#include "base/text.hpp"

namespace aperture {

namespace {

using std::string;
using std::string_view;

enum class Kind : uint8_t {
  word,       // one of its words
  list,       // several, with commas between them
  number,     // a whole number, from `least` to `most`
  port,       // 1 to 65535
  interface,  // of this host, or one of its addresses
  provider,   // how libfabric names providers
  directory,  // one that is there
  faults,     // a FaultPlan
  any,        // what `aperture run` puts there for itself
};

constexpr uint64_t kUnbounded = ~uint64_t{0};
struct Setting {
  string_view name;
  Kind kind;
  string_view words;      // the legal ones, with ", " between them
  string_view otherwise;  // what any other value does
  uint64_t least = 0;
  uint64_t most = kUnbounded;
};
constexpr string_view kNotSet = "it is taken as not set";
constexpr string_view kNothingFound = "libfabric finds nothing";
constexpr Setting kSettings[] = {
    {"APERTURE_LOG", Kind::word, "off, warn, info, debug, trace", "it is taken as warn"},
    {"APERTURE_EXPLAIN", Kind::word, "1", kNotSet},
    {"APERTURE_CHOSEN", Kind::any, "", kNotSet},
    {"APERTURE_AS", Kind::provider, "", "only the name aperture is answered under"},
    {"APERTURE_LINK", Kind::word, "tcp", kNotSet},
    {"APERTURE_SHARE", Kind::directory, "", kNotSet},
    {"APERTURE_CMA", Kind::word, "deny, allow", kNotSet},
    {"APERTURE_DEVICE_SHARE", Kind::word, "on, off", kNotSet},
    {"APERTURE_MR_MODE", Kind::list,
     "local, raw, virt_addr, allocated, prov_key, mmu_notify, rma_event, endpoint, hmem, "
     "local_cache, verbs, none",
     kNothingFound},
    {"APERTURE_MR_CLOSE", Kind::word, "lenient, strict", kNotSet},
    {"APERTURE_MR_CACHE_CHECK", Kind::word, "1", kNotSet},
    {"APERTURE_MR_DELAY_MS", Kind::number, "", kNotSet},
    {"APERTURE_RMA_EVENT", Kind::word, "on, off", kNotSet},
    {"APERTURE_MW_TYPE", Kind::word, "2A, 2B", "the device has windows of type 2B"},
    {"APERTURE_RDMA_CM", Kind::word, "kernel", kNotSet},
    {"APERTURE_SILENCE_MS", Kind::number, "", "it is taken as 5000", kShortestSilenceMs,
     kLongestSilenceMs},
    {"APERTURE_FAULT", Kind::faults, "", "no fault is injected"},
    {"APERTURE_CHECKSUMS", Kind::word, "on, off", kNotSet},
    {"APERTURE_CM_PORT", Kind::port, "", "it is taken as 4791", 1, 65535},
    {"FI_APERTURE_IFACE", Kind::interface, "", "no libfabric endpoint is found by it"},
};

const Setting* find(string_view name) noexcept {
  const auto* found = std::find_if(std::begin(kSettings), std::end(kSettings),
                                   [name](const Setting& s) { return s.name == name; });
  return found != std::end(kSettings) ? found : nullptr;
}

// Calls visit(word) for what is between commas until it returns false; whether it never did.
template <typename Visit>
bool all_words(string_view list, Visit visit) {
  for (;;) {
    const size_t comma = list.find(',');
    if (!visit(trimmed(list.substr(0, comma)))) return false;
    if (comma == string_view::npos) return true;
    list.remove_prefix(comma + 1);
  }
}

bool has_word(string_view words, string_view word) noexcept {
  return !all_words(words, [word](string_view w) { return w != word; });
}

bool is_legal_list(string_view words, string_view list) noexcept {
  if (list == "none") return true;
  return all_words(list, [words](string_view w) { return w != "none" && has_word(words, w); });
}

bool is_on_this_host(string_view text) {
  bool found = false;
  visit_interfaces([&](const ifaddrs& interface, const Address& a) {
    const string address = a.text();
    const string bare = address.substr(0, address.rfind(':'));
    found = text == interface.ifa_name || text == bare || '[' + string(text) + ']' == bare;
    return found;
  });
  return found;
}

// "tcp", or a utility provider over another one: "verbs;ofi_rxm". libfabric never asks offload
// providers (off_) by themselves, nor utility providers (ofi_) without what is beneath; "aperture"
// is answered under anyhow.
bool is_provider_name(string_view text) noexcept {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  const auto is_word = [fits](string_view word) {
    return !word.empty() && std::all_of(word.begin(), word.end(), fits);
  };
  const size_t delimiter = text.find(';');
  const string_view core = text.substr(0, delimiter);
  if (!is_word(core) || begins(core, "ofi_") || begins(core, "off_") || text == "aperture") {
    return false;
  }
  if (delimiter == string_view::npos) return true;
  const string_view above = text.substr(delimiter + 1);
  return is_word(above) && begins(above, "ofi_") && above.size() > std::strlen("ofi_");
}

bool is_directory(string_view path) {
  struct stat st;
  return ::stat(string(path).c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

string fault_of_plan(string_view text) {
  FaultPlan plan;
  return read_fault_plan(text, plan);
}

bool is_legal(const Setting& setting, string_view value) {
  uint64_t number = 0;
  if (trimmed(value).empty()) return true;
  switch (setting.kind) {
    case Kind::word: return has_word(setting.words, value);
    case Kind::list: return is_legal_list(setting.words, trimmed(value));
    case Kind::number:
    case Kind::port:
      return is_number(value, number) && number >= setting.least && number <= setting.most;
    case Kind::interface: return is_on_this_host(value);
    case Kind::provider: return is_provider_name(value);
    case Kind::directory: return is_directory(value);
    case Kind::faults: return fault_of_plan(value).empty();
    case Kind::any: return true;
  }
  return false;
}

string wish_of(const Setting& setting) {
  switch (setting.kind) {
    case Kind::word:
    case Kind::list:
    case Kind::any: break;
    case Kind::number:
      if (setting.most == kUnbounded) return "a whole number";
      return "a whole number from " + std::to_string(setting.least) + " to " +
             std::to_string(setting.most);
    case Kind::port: return "a port, from 1 to 65535";
    case Kind::interface: return "an interface of this host or an address of one";
    case Kind::directory: return "a directory that containers of this host have mounted";
    case Kind::faults: return "a list of faults, such as seed=7,delay=2ms:10%,retry=0.1%";
    case Kind::provider: return "the name of another provider, such as tcp or verbs;ofi_rxm";
  }
  const char* before = setting.words.find(',') == string_view::npos ? ""
                       : setting.kind == Kind::word                 ? "one of "
                                                                    : "some of ";
  return before + string(setting.words);
}

// A door refuses these with a sentence of its own, which is logged as refusals are: at warn.
bool is_told_as_refused(const Setting* setting) noexcept {
  return setting != nullptr && log_level() != LogLevel::off &&
         (setting->kind == Kind::list || setting->kind == Kind::interface);
}

// What people get wrong besides letters: underscores, and which names begin with FI_.
string core_of(string_view name) {
  if (begins(name, "FI_")) name.remove_prefix(3);
  name.remove_prefix(std::min(std::strlen("APERTURE"), name.size()));
  string core;
  for (const char c : name) {
    if (c != '_') core += c;
  }
  return core;
}

bool begins_like_ours(string_view name) noexcept {
  return begins(name, "APERTURE_") || begins(name, "FI_APERTURE_");
}

// The setting that was probably meant.
const Setting* meant_by(string_view name) {
  const string core = core_of(name);
  const Setting* best = nullptr;
  size_t least = SIZE_MAX;
  for (const Setting& s : kSettings) {
    const string other = core_of(s.name);
    const size_t d = spelling_distance(core, other);
    if (!is_nearly(core, other) || d >= least) continue;
    best = &s;
    least = d;
  }
  return best;
}

// Empty: nothing is wrong with it, or it is not ours.
string fault_of(string_view name, string_view value, const Setting* setting) {
  if (setting != nullptr) {
    if (is_legal(*setting, value)) return {};
    const string why = setting->kind == Kind::faults ? " (" + fault_of_plan(value) + ")" : "";
    return string(name) + "=" + string(value) + " means nothing" + why + ", so " +
           string(setting->otherwise) + "; set it to " + wish_of(*setting) + ", or unset it";
  }
  if (!begins_like_ours(name)) return {};
  const Setting* meant = meant_by(name);
  // FI_APERTURE_ is a prefix that nobody else has; APERTURE_ may be
  if (meant == nullptr && name.front() != 'F') return {};
  return string(name) + " is set, and no setting of Aperture has that name; " +
         (meant != nullptr ? string(meant->name) + " is perhaps what is meant"
                           : "man 7 fi_aperture lists them");
}

template <typename Visit>
void each_fault(char* const* environment, Visit visit) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const string_view text = *environment;
    const size_t equals = text.find('=');
    if (equals == string_view::npos) continue;
    const string_view name = text.substr(0, equals);
    const Setting* setting = find(name);
    if (const string fault = fault_of(name, text.substr(equals + 1), setting); !fault.empty()) {
      visit(fault, setting);
    }
  }
}

}  // namespace

bool setting_is(const char* name, const char* word) noexcept {
  assert(find(name) != nullptr && has_word(find(name)->words, word));
  const char* value = std::getenv(name);
  return value != nullptr && std::strcmp(value, word) == 0;
}

const char* setting_text(const char* name) noexcept {
  assert(find(name) != nullptr);
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

uint64_t setting_number(const char* name) noexcept {
  assert(find(name)->kind == Kind::number || find(name)->kind == Kind::port);
  const char* text = setting_text(name);
  uint64_t number = 0;
  return text != nullptr && is_number(text, number) ? number : 0;
}

bool is_legal_setting(const char* name, const char* value) {
  assert(find(name) != nullptr);
  return is_legal(*find(name), value);
}

std::vector<string> faults_of_settings(char* const* environment) {
  std::vector<string> out;
  each_fault(environment, [&out](const string& fault, const Setting*) { out.push_back(fault); });
  return out;
}

void check_settings() noexcept {
  static constinit FoundOnce<bool> said;
  said.get([] {
    if (setting_is("APERTURE_LOG", "off")) return true;
    // out of memory: what is wrong with a setting is the least that is to be said then
    return no_throw([]() -> Status {
             each_fault(environ, [](const string& fault, const Setting* setting) {
               if (is_told_as_refused(setting)) return;
               log_line(LogLevel::warn, "%s", fault.c_str());
             });
             return Errc::ok;
           })
        .ok();
  });
}

}  // namespace aperture
