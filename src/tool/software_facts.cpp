// Facts on the provider and libfabric. Both are loaded in a child, as a program would load them:
// libfabric 1.17 skips a provider that fails to load without saying a word.
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include <sstream>

#include "tool/child_probe.hpp"
#include "tool/host.hpp"
#include "tool/places.hpp"
#include "tool/verbs_door.hpp"

namespace aperture::tool {

namespace {

constexpr const char* kFailure = "!";  // first character of a probe's answer that is a reason

std::string load_provider(const std::string& file) {
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::string(kFailure) + ::dlerror();
  if (::dlsym(handle, "fi_prov_ini") == nullptr)
    return std::string(kFailure) + "no fi_prov_ini in it";
  return "loads";
}

// "1.17 /usr/lib/.../libfabric.so.1.20.0", or a reason.
std::string load_libfabric() {
  void* handle = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::string(kFailure) + ::dlerror();
  using VersionFunction = uint32_t (*)();
  auto function = reinterpret_cast<VersionFunction>(::dlsym(handle, "fi_version"));
  if (function == nullptr) return std::string(kFailure) + "it has no fi_version";
  const uint32_t packed = function();
  Dl_info where{};
  char resolved[PATH_MAX] = "";
  if (::dladdr(reinterpret_cast<void*>(function), &where) != 0 && where.dli_fname != nullptr &&
      ::realpath(where.dli_fname, resolved) == nullptr) {
    resolved[0] = '\0';
  }
  std::ostringstream answer;
  answer << (packed >> 16) << '.' << (packed & 0xffff) << ' ' << resolved;
  return answer.str();
}

// A reason if the probe has one or did not come back, else empty.
std::string reason_in(const ProbeAnswer& answer) {
  if (!answer.answered) return answer.text;
  return answer.text.rfind(kFailure, 0) == 0 ? answer.text.substr(1) : std::string();
}

Fact provider_fact(const std::string& command_folder) {
  Fact fact("provider", "provider");
  const std::string folder = find_provider_folder(command_folder);
  const std::string file = folder + "/" + kProviderFile;
  fact.details["file"] = folder.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(file);
  if (folder.empty()) {
    fact.state = Fact::State::no;
    fact.text = "not found";
    fact.why_not =
        std::string(kProviderFile) + " is neither in " + searched_provider_folders(command_folder);
    fact.gain = "programs could reach Aperture; build it (./dev build) or install Aperture again";
    return fact;
  }
  fact.why_not = reason_in(probe_in_child([&] { return load_provider(file); }));
  fact.state = fact.why_not.empty() ? Fact::State::yes : Fact::State::no;
  fact.text = file + (fact.why_not.empty() ? ", loads" : ", does not load");
  if (!fact.why_not.empty())
    fact.gain = "programs could reach Aperture; libfabric skips in silence what does not load";
  return fact;
}

Fact libfabric_fact() {
  Fact fact("libfabric", "libfabric");
  const ProbeAnswer answer = probe_in_child(load_libfabric);
  fact.why_not = reason_in(answer);
  fact.state = fact.why_not.empty() ? Fact::State::yes : Fact::State::no;
  fact.details["version"] = nullptr;
  fact.details["file"] = nullptr;
  fact.details["provider_folder"] = libfabric_provider_folder();
  if (!fact.why_not.empty()) {
    fact.text = "not found";
    fact.gain = "programs that use libfabric could run; on Debian: apt-get install libfabric1";
    return fact;
  }
  const size_t space = answer.text.find(' ');
  fact.details["version"] = answer.text.substr(0, space);
  fact.details["file"] = answer.text.substr(space + 1);
  fact.text = answer.text.substr(0, space) + ", " + answer.text.substr(space + 1);
  return fact;
}

Fact verbs_fact(const std::string& command_folder) {
  Fact fact("verbs", "verbs door");
  const VerbsDoor door = open_verbs_door(command_folder, Probes::anew);
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  fact.details["file"] = or_null(door.library);
  fact.details["libibverbs"] = or_null(door.real);
  fact.why_not = door.why_not;
  fact.state = door.why_not.empty() ? Fact::State::yes : Fact::State::no;
  fact.text = door.why_not.empty() ? door.library + ", in front of " + door.real : "shut";
  if (!door.why_not.empty()) fact.gain = "programs that use libibverbs would find aperture0";
  return fact;
}

}  // namespace

std::vector<Fact> software_facts(const std::string& command_folder) {
  Fact own("aperture", "aperture");
  own.text = std::string(version()) + ", a software NIC: no RDMA hardware is used";
  own.details["version"] = version();
  own.details["software_nic"] = true;
  return {own, provider_fact(command_folder), libfabric_fact(), verbs_fact(command_folder)};
}

}  // namespace aperture::tool
